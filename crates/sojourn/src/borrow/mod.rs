//! Borrowed disks in use: from `borrow up` to `borrow down`.
//!
//! | module | concept |
//! |---|---|
//! | [`place`] | where the room comes from: lent disks, or a directory of a running host |
//! | [`find`] | which free blocks of which disks are taken |
//! | [`session`] | one borrowed disk, and what is done when it ends |
//! | [`control`] | how other commands reach it |
//! | [`serve`](mod@serve) | the NBD server around it |
//! | [`kernel`] | swap space, file systems and state on a disk in the kernel |
//! | [`report`] | what is told of it |
//! | [`shadow`] | borrowed room for the disks of a server |

pub(crate) mod control;
pub(crate) mod find;
pub(crate) mod kernel;
pub(crate) mod place;
pub(crate) mod report;
pub(crate) mod serve;
pub(crate) mod session;
pub(crate) mod shadow;
