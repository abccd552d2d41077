//! The machines that start from a home's disks: what `sojourn netboot`, commands and the HTTP API share.
//!
//! | module | concept |
//! |---|---|
//! | [`list`] | the list of machines in a home, changed by one process at a time |
//! | [`assign`] | a machine is assigned a disk, or forgotten |
//! | [`secrets`] | secrets that machines give before they are told what to start |
//! | `file` | lists in files of the home |

pub mod assign;
pub(crate) mod file;
pub mod list;
pub mod secrets;
