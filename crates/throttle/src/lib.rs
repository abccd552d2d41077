//! A layer that makes any device behave like a modelled disk: as slow, with the same queue, and with
//! the faults that are asked for. Today's form of the seed's *virtual performance throttle*.
//!
//! This crate knows models of disks and how to wait, and nothing of exports or configuration.
//!
//! | module | concept |
//! |---|---|
//! | [`layer`] | [`Throttle`], a modelled disk in use; [`Throttled`], a device behind it |
//! | [`clock`] | [`ThrottleClock`], which tells and waits; [`Precise`], the machine's own |
//! | [`faults`] | [`Faults`]: errors, bad ranges, stalls |
//! | [`tally`] | [`ThrottleCounters`]: what was done, and how late |

pub mod clock;
pub mod faults;
pub mod layer;
pub mod tally;

pub use clock::{Precise, ThrottleClock};
pub use faults::{Faults, Stall};
pub use layer::{Throttle, ThrottleSetup, Throttled};
pub use tally::ThrottleCounters;
