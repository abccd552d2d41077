//! Virtual machines that travel: QEMU driven over its monitor, guest memory on FUSE, and parcels in
//! the store.
//!
//! This crate may know QEMU's command line and monitor, how the memory of a guest is kept in a store,
//! and what a parcel is made of. It must not know a home, who serves the disk of a machine, or what a
//! user typed: its caller brings the store, the directory of the machine and the address of the disk.
//!
//! | module | concept |
//! |---|---|
//! | [`qmp`] | [`Monitor`], QEMU's monitor protocol |
//! | [`spec`] | [`MachineSpec`], what a machine is made of, pinned so that it can go on elsewhere |
//! | [`abilities`] | [`Abilities`], what a QEMU can run, and why a machine cannot run on it |
//! | [`command`] | the command line of QEMU |
//! | [`agent`] | the guest agent, which sets the clock of a guest that goes on |
//! | [`accelerator`] | whether KVM works here |
//! | [`launch`] | QEMU as a child that ends with its keeper, and asks for no huge pages |
//! | [`image`] | [`MemoryImage`], the memory of a suspended machine, read from the store |
//! | [`save`] | the memory of a machine becomes a manifest |
//! | [`disk_pages`] | pages of memory that are blocks of the machine's disk, and stored with that |
//! | [`resume_set`] | which extents a resume reads first |
//! | [`ram`] | [`GuestRam`], the memory of a machine that runs |
//! | [`mount`] | guest memory as a file on FUSE |
//! | [`parcel`] | [`Parcel`], the ref of a suspended machine |
//! | [`claim`] | [`RunClaim`], the ref of a machine that runs |
//! | `demand` | what of the memory is on its way: what somebody waits for, and what is fetched ahead |
//! | `ahead` | a resume set is fetched, behind what somebody waits for, and then the rest |
//! | `disk_use` | whether a guest waits for its disk, which has the same link |
//! | [`machine`] | [`RunningMachine`]: start, resume, end |
//! | `console_log` | what a guest says on its serial line, and no more than the end of it |
//! | `device_state` | the state of its devices, from QEMU and to it |
//! | `document_version` | the version of a JSON document, read before the rest of it |
//! | [`packing`] | a machine that runs is stored: checkpoint, suspend |
//! | [`pending`] | [`PendingSuspension`], which is on this host and not in the store yet |
//! | [`upload`] | a pending suspension becomes a parcel |
//!
//! `docs/vm.md` is for users; `docs/vm-format.md` describes parcels and memory images.

pub mod abilities;
pub mod accelerator;
pub mod agent;
mod ahead;
pub mod claim;
pub mod command;
mod console_log;
mod demand;
mod device_state;
pub mod disk_pages;
mod disk_use;
mod document_version;
pub mod image;
pub mod launch;
pub mod machine;
mod memory_file;
pub mod mount;
pub mod packing;
mod pages;
pub mod parcel;
pub mod pending;
pub mod qmp;
pub mod ram;
pub mod resume_set;
pub mod save;
pub mod spec;
pub mod upload;

pub use abilities::Abilities;
pub use accelerator::Accelerator;
pub use agent::GuestClock;
pub use claim::RunClaim;
pub use disk_pages::NearbyChunks;
pub use image::MemoryImage;
pub use machine::RunningMachine;
pub use parcel::Parcel;
pub use pending::PendingSuspension;
pub use qmp::Monitor;
pub use ram::GuestRam;
pub use spec::MachineSpec;

/// The grain of guest memory: a page, in bytes.
pub const PAGE: u64 = block::BLOCK;
/// The unit in which memory is stored: 64 KiB.
pub const EXTENT: u64 = 64 << 10;
