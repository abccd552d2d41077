//! The kernel that a disk would start, found without starting or mounting the disk.
//!
//! A disk is as hostile as its guest: every read is counted, every file has a longest size, and what
//! cannot be read for sure is an error that names the way out: iSCSI, where the disk's own boot loader
//! does all this.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | [`Bytes`](source::DiskBytes), a device read step by step, so much at most |
//! | [`partitions`] | the parts of a disk and their names |
//! | [`tree`] | [`FileTree`](tree::FileTree), files and directories of one part |
//! | [`entry`] | what boot loaders would start: their configuration, or Debian's names |
//! | [`find`](mod@find) | all of it: from a device to a kernel, a RAM disk and parameters |

pub mod entry;
pub mod find;
pub mod partitions;
pub mod source;
pub mod tree;

pub use find::{BootFiles, NbdRoot, find};

/// A file of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BootFile {
    /// The kernel.
    Kernel,
    /// The initial RAM disk.
    Initrd,
}
