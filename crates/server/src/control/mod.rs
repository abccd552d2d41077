//! The control socket: HTTP and JSON on `control.sock` in the home, for the commands that touch
//! disks while a server has them open.
//!
//! | module | concept |
//! |---|---|
//! | [`api`] | the requests and replies, which are also what `--json` prints |
//! | [`client`] | one request to a running server |
//! | [`server`] | answering them |

pub mod api;
pub mod client;
pub(crate) mod server;
