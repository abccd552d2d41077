//! The kernel that a disk would start, found without starting or mounting the disk.
//!
//! A disk is as hostile as its guest: every read is counted, every file has a longest size, and what
//! cannot be read for sure is an error that names the way out: iSCSI, where the disk's own boot loader
//! does all this, or a kernel that is given.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | [`Bytes`](source::DiskBytes), a device read step by step, so much at most |
//! | [`partitions`] | the parts of a disk and their names |
//! | [`tree`] | [`FileTree`](tree::FileTree), files and directories of one part |
//! | [`ext`] | ext2, ext3 and ext4 as such a tree |
//! | [`fat`] | FAT as such a tree |
//! | [`file_systems`] | which file system a part has, and what others are called |
//! | [`entry`] | what boot loaders would start: their configuration, or Debian's names |
//! | [`uki`] | unified kernel images: kernel, RAM disk and parameters in one file |
//! | [`look`] | all of these on all parts of a disk |
//! | [`root`] | where the root file system is |
//! | [`given`] | kernels that are given, and go before those of a disk |
//! | [`find`](mod@find) | all of it: from a device to a kernel, a RAM disk and parameters |

pub mod entry;
pub mod ext;
pub mod fat;
pub mod file_systems;
pub mod find;
pub mod given;
pub mod look;
pub mod partitions;
pub mod root;
pub mod source;
pub mod tree;
pub mod uki;

pub use find::{BootFiles, NbdRoot, find, find_given};
pub use given::{GivenKernel, GivenKernels};

/// A file of a boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BootFile {
    /// The kernel.
    Kernel,
    /// The initial RAM disk.
    Initrd,
}
