//! Borrowed disks: the free blocks of disks whose system is not running, proven free, stitched into
//! one private disk, encrypted, and forgotten.
//!
//! This crate may know how file systems and partition tables say which blocks are free, and when
//! not to believe them. It must not know who uses the borrowed disk. Safety comes before capacity:
//! one wrong block is somebody's file, so whatever is in doubt is refused with a [`Code`] and a
//! sentence. Everything that it reads is hostile: every reader is bounded in time and memory.
//!
//! | module | concept |
//! |---|---|
//! | [`source`] | [`Source`], read-only bytes of a disk; [`Window`], a part of them with bounded work |
//! | [`disk`] | [`HostDisk`], a device or image file, held and read only |
//! | `around`, `direct` | who else can reach its bytes; what is on it, past the page cache |
//! | [`refusal`] | [`Refusal`]: a stable [`Code`] and a sentence |
//! | [`found`] | [`Found`], what a reader proved free; [`Stamp`], what is re-read before writing |
//! | [`Table`], [`probe()`] | what a disk is divided into, and what each part holds, by name |
//! | [`read`](fn@read) | the readers, one per file system |
//! | [`Scan`] | from disks and images to a report, with the rules for the whole machine |
//! | [`policy`] | [`Policy`], which of the free ranges are taken |
//! | [`Plan`], [`Member`] | what is lent of which disks, held, opened for writing |
//! | [`Watch`] | looks at the lenders again before the first write, and from then on |
//! | [`Layout`], [`Stitched`], [`Key`] | the one map from logical to physical, the encrypted disk on it |
//! | [`State`] | state from elsewhere on a borrowed disk, copied in and written back; or the shadow of a base |
//! | [`Pool`], [`Thin`] | one borrowed disk shared by devices that take room as they are written |
//! | [`Live`] | room of a running host, given back when it falls short |
//! | [`dm`] | the same disk in the kernel's device-mapper |
//! | `sys` | the only unsafe code: locked memory, the kernel's keyring, one ioctl |

mod around;
mod bits;
mod btrfs;
mod bytes;
mod clusters;
mod direct;
pub mod disk;
pub mod dm;
mod exfat;
mod ext;
mod fat;
pub mod found;
mod key;
mod layout;
mod live;
mod machine;
mod member;
mod ntfs;
mod partition;
mod plan;
pub mod policy;
mod pool;
mod probe;
pub mod refusal;
mod region;
mod scan;
pub mod source;
mod stack;
mod state;
mod stitched;
mod suspended;
mod swap;
mod swap_files;
mod sys;
mod watch;
mod xfs;
mod xts;

pub use disk::HostDisk;
pub use found::{Found, FreeList, Kind, Level, Options, Stamp, Volume};
pub use key::Key;
pub use layout::{Layout, Lent};
pub use live::{GiveBack, Given, Live};
pub use machine::Sleeper;
pub use member::Member;
pub use partition::{Partition, Table};
pub use plan::{Claim, Loan, Plan};
pub use policy::{Offer, Policy};
pub use pool::{Pool, Thin};
pub use probe::probe;
pub use refusal::{Code, Refusal};
pub use scan::{Accepted, DiskReport, Part, Scan, ScanOptions};
pub use source::{Source, Window};
pub use state::State;
pub use stitched::Stitched;
pub use watch::Watch;

/// Reads what the file system of `kind` in `window` proves free.
///
/// # Errors
/// Why nothing of it may be lent.
pub fn read(kind: Kind, window: &Window<'_>, options: &Options) -> Result<Found, Refusal> {
    match kind {
        Kind::Ext2 | Kind::Ext3 | Kind::Ext4 => ext::read(window, options),
        Kind::Ntfs => ntfs::read(window, options),
        Kind::Swap => swap::read(window, options),
        Kind::Fat16 | Kind::Fat32 => fat::read(window, options),
        Kind::Exfat => exfat::read(window, options),
        Kind::Xfs => xfs::read(window, options),
        Kind::Btrfs => btrfs::read(window, options),
    }
}
