//! Borrowed disks: the free blocks of disks whose system is not running, stitched into one private
//! disk, encrypted, and forgotten.
//!
//! This crate may know the disks of this machine, who else can reach their bytes, and what of their
//! free space is taken. Which bytes are free is what `freespace` says, in terms of which it refuses. It
//! must not know who uses the borrowed disk.
//!
//! | module | concept |
//! |---|---|
//! | [`disk`] | [`HostDisk`], a device or image file, held and read only |
//! | `machine` | the disks that the kernel knows, and where a suspended system may hide |
//! | `identity` | what a disk is, whatever its path |
//! | `loops` | what loop devices stand on, asked so that nobody waits for ever |
//! | `around`, `direct` | who else can reach its bytes; what is on it, past the page cache |
//! | [`Scan`] | from disks and images to a report, with the rules for the whole machine |
//! | [`policy`] | [`BorrowPolicy`], which of the free ranges are taken |
//! | [`Loan`], [`Claim`] | what a file system lends, and how to tell that nobody has used it since |
//! | [`Plan`], [`Member`] | what is lent of which disks, held, opened for writing |
//! | [`Watch`], `clock` | looks at the lenders again before the first write, and from then on; how old a look is |
//! | [`Layout`], [`Stitched`], [`DiskKey`] | the one map from logical to physical, the encrypted disk on it |
//! | [`State`] | state from elsewhere on a borrowed disk, copied in and written back; or the shadow of a base |
//! | [`Pool`], [`Thin`] | one borrowed disk shared by devices that take room as they are written |
//! | [`Live`] | room of a running host, given back when it falls short |
//! | [`dm`] | the same disk in the kernel's device-mapper |
//! | `sys` | the only unsafe code: locked memory, pages written out, the kernel's keyring, ioctls, a process that waits |

mod around;
mod bits;
mod clock;
mod direct;
pub mod disk;
pub mod dm;
mod identity;
mod key;
mod layout;
mod live;
mod loan;
mod loops;
mod machine;
mod member;
mod plan;
pub mod policy;
mod pool;
mod region;
mod scan;
mod stack;
mod state;
mod stitched;
mod sys;
mod watch;
mod xts;

pub use disk::HostDisk;
pub use key::DiskKey;
pub use layout::{Layout, Lent};
pub use live::{GiveBack, GivenBack, Live};
pub use loan::{Claim, Loan};
pub use machine::Sleeper;
pub use member::Member;
pub use plan::Plan;
pub use policy::{BorrowPolicy, Offer};
pub use pool::{Pool, Thin};
pub use scan::{Accepted, DiskReport, PartitionReport, Scan, ScanOptions};
pub use state::State;
pub use stitched::Stitched;
pub use watch::Watch;
