//! A run: a load, a scheduler and a disk, from event to event.
//!
//! | module | concept |
//! |---|---|
//! | [`run`](mod@run) | [`Setup`] and [`run()`]: the events |
//! | [`outcome`] | [`Outcome`]: what was counted |
//! | [`histogram`] | [`Histogram`]: times with their percentiles |
//! | [`laws`] | Little's law and the utilisation law |

pub mod histogram;
pub mod laws;
pub mod outcome;
pub mod run;

pub use histogram::Histogram;
pub use outcome::{Outcome, Sample};
pub use run::{Setup, run};
