//! Attached disks: disks of a distant store that are used on this machine. What is written goes up in
//! the background, and what they stand on comes down ahead of need.
//!
//! There is a home for each store, in `attached/` of the user's own home or beside root's, and one process for all
//! disks in it: the server of `sojourn serve`, with a [`Porter`] that carries what is written to the store.
//!
//! This crate may know homes, their configuration, open disks and their store. It must not know who serves
//! a disk, sockets, or how a person asks for any of this. Time is tokio's; nothing here reaches for a clock
//! of its own.
//!
//! | module | concept |
//! |---|---|
//! | `budget` | [`ByteBudget`]: bytes per second, and a way to pause |
//! | `write_back` | [`WriteBack`]: when a disk is published, and what is done when that fails |
//! | `hoard` | [`Hoard`]: everything that a disk stands on comes here, behind what guests read |
//! | [`peers`](mod@peers) | what this machine has of the store, for other machines nearby |
//! | `progress` | [`UploadProgress`], [`HoardProgress`]: how far they are, in words, too |
//! | [`homes`] | the homes of attached disks: found, made, changed |
//! | [`api`] | what commands ask, and what they are told |
//! | `marks` | `DiskMark`: wishes that outlive the process |
//! | `porter` | [`Porter`]: looks after all attached disks of a home |

pub mod api;
mod budget;
mod hoard;
pub mod homes;
mod marks;
pub mod peers;
mod porter;
mod progress;
mod write_back;

pub use budget::ByteBudget;
pub use hoard::Hoard;
pub use porter::Porter;
pub use progress::{HoardProgress, HoardState, UploadProgress, UploadState};
pub use write_back::{Timing, WriteBack};
