//! A layer that makes any device behave like a modelled disk: as slow, with the same queue, and with
//! the faults that are asked for. Today's form of the seed's *virtual performance throttle*.
//!
//! This crate knows models of disks and how to wait, and nothing of exports or configuration.
//!
//! | module | concept |
//! |---|---|
//! | [`layer`] | [`Throttle`], a modelled disk in use; [`Throttled`], a device behind it |
//! | [`clock`] | [`Clock`], which tells and waits; [`Precise`], the machine's own |
//! | [`faults`] | [`Faults`]: errors, bad ranges, stalls |
//! | [`tally`] | [`Counters`]: what was done, and how late |

pub mod clock;
pub mod faults;
pub mod layer;
pub mod tally;

pub use clock::{Clock, Precise};
pub use faults::{Faults, Stall};
pub use layer::{Setup, Throttle, Throttled};
pub use tally::Counters;
