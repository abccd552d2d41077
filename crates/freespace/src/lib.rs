//! The free space of disks: what a disk is divided into, what each part holds, and which of its bytes
//! a file system proves free.
//!
//! This crate may know how file systems and partition tables say which blocks are free, and when not
//! to believe them. It reads [`Source`]s and writes nothing; it must not know of the machine that a
//! disk is in, nor what is done with the free space. Safety comes before capacity: one wrong block is
//! somebody's file, so whatever is in doubt is refused with a [`Code`] and a sentence. Everything that
//! it reads is hostile: every reader is bounded in time and memory.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | [`Source`], read-only bytes of a disk; [`Window`], a part of them with bounded work |
//! | [`UnheldDisk`] | a device or an image file as a source, without keeping others away |
//! | [`refusal`] | [`Refusal`]: a stable [`Code`] and a sentence |
//! | [`found`] | [`FreeSpace`], what a reader proved free; [`Stamp`], what is re-read before writing |
//! | [`PartitionTable`] | partition tables: MBR and GPT |
//! | [`probe`](mod@probe) | what a part holds, by its marks |
//! | [`READERS`], [`read`](fn@read) | the table of readers, one folder for each file system |
//! | [`suspended`] | suspended systems in swap space and swap files |
//! | `reader`, `head` | what a reader is, and the bytes that it recognises a file system by |
//! | `bytes`, `clusters`, `swap_files` | what several readers need: integers, maps of clusters, `fstab` |

mod btrfs;
mod bytes;
mod clusters;
mod exfat;
mod ext;
mod fat;
pub mod found;
mod head;
mod ntfs;
mod partition;
pub mod probe;
mod reader;
mod readers;
pub mod refusal;
pub mod source;
pub mod suspended;
mod swap;
mod swap_files;
mod unheld;
mod xfs;

pub use found::{FileSystem, FreeList, FreeSpace, FreeSpaceOptions, Level, Stamp, Volume};
pub use partition::{Partition, PartitionTable};
pub use reader::{FileSystemReader, SuspendedIn};
pub use readers::READERS;
pub use refusal::{Code, Refusal};
pub use source::{Source, Window};
pub use unheld::UnheldDisk;

/// Reads what the file system of `kind` in `window` proves free.
///
/// # Errors
/// Why nothing of it may be lent.
pub fn read(
    kind: FileSystem,
    window: &Window<'_>,
    options: &FreeSpaceOptions,
) -> Result<FreeSpace, Refusal> {
    (kind.reader().read)(window, options)
}
