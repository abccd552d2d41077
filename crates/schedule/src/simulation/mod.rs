//! A run: a load, a scheduler and a disk, from event to event.
//!
//! | module | concept |
//! |---|---|
//! | [`run`](mod@run) | [`SimulationSetup`] and [`run()`]: the events |
//! | [`outcome`] | [`SimulationOutcome`]: what was counted |
//! | [`laws`] | Little's law and the utilisation law |

pub mod laws;
pub mod outcome;
pub mod run;

pub use outcome::{RunSample, SimulationOutcome};
pub use run::{SimulationSetup, run};
