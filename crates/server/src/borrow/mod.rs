//! Borrowed disks in use: from `borrow up` to `borrow down`.
//!
//! | module | concept |
//! |---|---|
//! | [`place`] | where the room comes from: lent disks, or a directory of a running host |
//! | [`selection`] | which disks are borrowed from |
//! | [`find`] | which free blocks of which disks are taken |
//! | [`session`] | one borrowed disk, and what is done when it ends |
//! | [`control`] | how other commands reach it |
//! | [`in_use`](mod@in_use) | which borrowed disks there are |
//! | [`serve`](mod@serve) | the NBD server around it |
//! | [`kernel`] | swap space, file systems and state on a disk in the kernel |
//! | [`state_record`] | where that state goes back to |
//! | [`source_identity`] | which file or device that is |
//! | [`report`] | what is told of it |
//! | [`lent_map`] | where on the owner's disks it lies |
//! | [`shadow`] | borrowed room for the disks of a server |

pub mod control;
pub mod find;
pub mod in_use;
pub mod kernel;
pub mod lent_map;
pub mod place;
pub mod report;
pub mod selection;
pub mod serve;
pub mod session;
pub mod shadow;
pub mod source_identity;
pub mod state_record;
