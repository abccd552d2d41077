//! Disk schedulers, models of disks, and the simulation of one on the other.
//!
//! This crate may know how requests to a disk are ordered and how long they take. It must not know
//! the time, a device or a file: schedulers and models are told the moment, loads draw from seeds,
//! and a run is the same to the last digit on every machine.
//!
//! | module | concept |
//! |---|---|
//! | [`request`] | [`DiskRequest`], [`Nanos`] |
//! | [`random`] | [`Random`] numbers from a seed |
//! | [`cache`] | the cache on board, and a scheduler's shadow of it |
//! | [`model`] | how long requests take: rotating disks, flash, networks |
//! | [`profile`] | models described in TOML; those that are shipped |
//! | [`optimal`] | the static-optimal order on a line |
//! | [`scheduler`] | one file for each scheduler behind one trait |
//! | [`load`] | where requests come from: closed, open, traces |
//! | [`simulation`] | a run, what was counted, and the laws that must hold |
//! | [`compare`] | means and confidence intervals over seeds, and who wins |
//! | [`calibrate`] | models fitted to measured accesses |
//!
//! Sources: Geist, Jones, Westall, "Predicting Disk Scheduling Performance with Virtual Machines"
//! (2010), called *the seed* here; what else is used is named where it is.

pub mod cache;
pub mod calibrate;
pub mod compare;
mod hits;
pub mod load;
pub mod model;
pub mod optimal;
pub mod profile;
pub mod random;
pub mod request;
pub mod scheduler;
pub mod simulation;

pub use cache::{CacheShape, SegmentCache};
pub use model::{Model, disk::ModelledDisk};
pub use profile::Profile;
pub use random::Random;
pub use request::{DiskRequest, Nanos, Op, SECTOR};
pub use scheduler::{Decision, Scheduler, View};
