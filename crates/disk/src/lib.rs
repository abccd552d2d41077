//! Disks: what a guest sees, an image version and a shadow of private blocks over it.
//!
//! This crate may know how a manifest reads through the cache, how private blocks are kept so that
//! every flushed write survives a crash, and the life of a disk: create, snapshot, roll back,
//! commit, rebase, reset, grow, remove. It must not know who serves a disk nor how.
//!
//! It has more than 10,000 lines because a disk's whole life stands on the same private files: snapshots, rebases,
//! moves and removals stop the write path, change its layers, record and fence in an order that a crash may cut
//! anywhere, and let it go on. In a crate of its own the shadow would have to show these formats to others, and
//! only disks use them.
//!
//! | module | concept |
//! |---|---|
//! | `chunk_map` | [`ChunkMap`], where the bytes of a disk are now |
//! | `image` | [`Image`], a manifest as a read-only device |
//! | `loads` | [`Loader`], which chunk comes from the store next: disks take turns |
//! | `shadow` | [`Shadow`], private blocks over a base: the write path and flushing |
//! | `stack` | layers over a base: where the bytes of a block are |
//! | `layer` | one data file and its map |
//! | `blockmap` | the states of blocks in memory |
//! | `maplog` | the states of blocks on stable storage |
//! | `unsynced` | what a failed sync leaves behind |
//! | `record` | `disk.json`, what a disk is made of |
//! | `lock` | one process has a disk open |
//! | `space` | room in the file system of a home that guests do not get |
//! | `model` | what is told of disks: [`DiskInfo`], [`Mode`], … |
//! | `disks` | [`Disks`], all disks of a home |
//! | `creation` | making disks, from images and from snapshots |
//! | `home` | the directory of all disks, and what a crash leaves in it |
//! | `removal` | removing disks: from the store, then here |
//! | `fence` | which server holds a disk, and how an earlier one is kept out |
//! | [`succession`] | what may follow in a disk's ref, for who passes on others' records |
//! | `residence` | where a home lives: a copy of it is refused |
//! | `ownership` | [`OwnershipQuestion`], who holds an open disk, asked of the store without the disk |
//! | `confirm` | whether this server still holds an open disk |
//! | `lease` | who may use an open disk inside this process |
//! | `taking` | disks of which the store has not said yet that they were taken |
//! | `moves` | taking, releasing and keeping disks: from one server to another |
//! | `disk` | [`Disk`], an open one |
//! | `overlay` | [`Room`], private blocks that lie elsewhere than in the home |
//! | `health` | whether a disk is short of room or slow, and the store slow |
//! | `guest_waits` | [`GuestWaits`], what a guest waits for, and for how long |
//! | `attach` | [`Attachment`], one client writes a disk; when an ephemeral one is reset |
//! | `changes` | changes of a disk as a whole: one at a time, and who makes way |
//! | `snapshot` | snapshot, commit, roll back |
//! | `mark` | whether a disk still holds what it did |
//! | `drawing` | [`DiskLayers`], what a disk or the memory of a machine is made of: a chunk map is drawn of that |
//! | `write_back` | [`WriteBackLag`]: what is written goes up in the background, under no name of its own |
//! | `write_through` | disks of which each write is in the store before it is answered |
//! | `rounds` | the rounds in which these go up together |
//! | `upload_log` | which packs were sent, for an upload that goes on after a crash |
//! | `rebase` | onto another version of the image |
//! | `boot_trace` | [`BootTrace`], what a boot reads of an image |
//! | `boot_progress` | [`BootProgress`], how much of a boot list a guest has read |
//! | `compare` | where two manifests differ |
//!
//! `docs/shadow-format.md` describes the files, and why what was flushed is kept.

mod attach;
mod blockmap;
mod boot_progress;
mod boot_trace;
mod changes;
mod chunk_map;
mod compare;
mod confirm;
mod creation;
mod disk;
mod disks;
mod drawing;
mod fence;
mod guest_waits;
mod health;
mod home;
mod image;
mod layer;
mod lease;
mod loads;
mod lock;
mod maplog;
mod mark;
mod model;
mod moves;
mod overlay;
mod ownership;
mod rebase;
mod record;
mod removal;
mod residence;
mod rounds;
mod shadow;
mod snapshot;
mod space;
mod stack;
pub mod succession;
mod taking;
mod unsynced;
mod upload_log;
mod write_back;
mod write_through;

pub use attach::{Attachment, Ending, PassedAttachment};
pub use boot_progress::{BootProgress, ListedChunks, ReadSoFar};
pub use boot_trace::BootTrace;
pub use chunk_map::{BlockPlace, ChunkMap};
pub use disk::Disk;
pub use disks::{Disks, private_bytes};
pub use drawing::{ClosedDisk, DiskLayers, IsKept};
pub use fence::holder;
pub use guest_waits::{GuestWaits, WaitCause, WaitReading};
pub use health::{DiskHealth, RoomProbe, Slow};
pub use image::{BootCopyLoad, Image};
pub use loads::{ChunkLine, LoadOptions, Loader};
pub use model::{
    CreateOptions, DiskCounters, DiskInfo, DiskSource, Mode, Rebase, RebaseReport, RemoteDisk,
    Resident, SnapshotInfo,
};
pub use overlay::{Room, RoomLayer};
pub use ownership::{OwnershipAnswer, OwnershipQuestion};
pub use shadow::Shadow;
pub use write_back::WriteBackLag;
