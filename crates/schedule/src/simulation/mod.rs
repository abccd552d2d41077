//! A run: a load, a scheduler and a disk, from event to event.
//!
//! | module | concept |
//! |---|---|
//! | [`run`](mod@run) | [`SimulationSetup`] and [`run()`]: the events |
//! | [`outcome`] | [`SimulationOutcome`]: what was counted |
//! | [`histogram`] | [`TimeHistogram`]: times with their percentiles |
//! | [`laws`] | Little's law and the utilisation law |

pub mod histogram;
pub mod laws;
pub mod outcome;
pub mod run;

pub use histogram::TimeHistogram;
pub use outcome::{RunSample, SimulationOutcome};
pub use run::{SimulationSetup, run};
