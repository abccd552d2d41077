//! Backends that fail, and one whose clock stands still: for the tests of this and other crates.

mod clocked;
mod failing;
mod unreliable;

pub use clocked::Clocked;
pub use failing::Failing;
pub use unreliable::{FaultRates, Unreliable};
