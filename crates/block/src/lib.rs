//! The block device: the one trait that every layer of the engine implements and stacks on.
//!
//! This crate may know what a block device is: byte ranges, extents, limits, the kinds of error a
//! caller can act upon, positional files, and how people write sizes. It must not know what is
//! behind a device (a store, a file, a network) nor who uses it.
//!
//! | module | concept |
//! |---|---|
//! | [`device`] | [`Device`], its fast path, limits and durability |
//! | [`layer`] | [`Layer`], a device over another one that says only what it changes |
//! | [`sink`] | [`Sink`], where a read's bytes go, without a copy where they are in memory |
//! | [`span`] | [`Span`], a byte range that is known to be inside a device |
//! | [`extent`] | [`Extent`], what a range holds: data, zeroes, nothing |
//! | [`error`] | [`Error`] and the [`ErrorKind`]s that tell a caller what to do |
//! | [`size`] | [`ByteSize`], sizes as people write them |
//! | [`observe`](mod@observe) | [`Observer`], who is told of requests that were answered |
//! | [`file`](mod@file) | [`RandomFile`], positional file I/O with a fast path |
//! | [`fs`](mod@fs) | [`FsPath`], a path on a file system; the simulated file system |
//! | [`offload`](mod@offload) | [`offload()`] and [`offload_behind`], work that blocks |
//! | [`ring`] | [`Ring`], reads that no thread waits for (io_uring) |
//! | [`reserve`] | [`Reserve`](reserve::Reserve), room that is kept for what must be written when there is none |
//! | [`page_cache`] | [`PageCacheId`](page_cache::PageCacheId), whether two processes see the same page cache |
//! | [`program`] | [`own_program`](program::own_program), the file of this program, also after an upgrade |
//! | [`lock`] | [`LockFile`](lock::LockFile), a lock file that names its holder |
//! | [`image_lock`] | locks on images and devices of others, ours and QEMU's |
//! | [`mapped`] | [`MappedFile`](mapped::MappedFile), small stores into a file without a system call; [`Guarded`](mapped::Guarded), mapped memory that may go away |
//! | [`memory`] | [`Memory`], a device in memory |
//! | [`copy`](mod@copy) | [`copy()`], one device onto another |
//! | [`testing`] | [`ScriptedDevice`], a layer that fails, delays, holds and notes as a script says (for tests) |
//! | [`conformance`](mod@conformance) | the suite that every device and layer must pass |

pub mod conformance;
pub mod copy;
pub mod device;
pub mod error;
pub mod extent;
pub mod file;
pub mod fs;
pub mod image_lock;
pub mod layer;
pub mod lock;
pub mod mapped;
pub mod memory;
pub mod observe;
pub mod offload;
pub mod page_cache;
pub mod program;
pub mod reserve;
pub mod ring;
pub mod sink;
pub mod size;
pub mod span;
pub mod testing;

pub use copy::{CopyOptions, copy};
pub use device::{Attempt, Device, Durability, Limits, ZeroMode};
pub use error::{Error, ErrorKind, Result};
pub use extent::{Extent, ExtentKind};
pub use file::RandomFile;
pub use fs::FsPath;
pub use layer::Layer;
pub use memory::Memory;
pub use observe::{Action, Answered, Observer};
pub use offload::{offload, offload_behind};
pub use ring::Ring;
pub use sink::{Filling, Sink};
pub use size::ByteSize;
pub use span::Span;
pub use testing::{Fault, Operation, ScriptedDevice};

/// The grain of shadows and of guest I/O accounting, in bytes.
pub const BLOCK: u64 = 4096;
