//! Backends for the tests of this and other crates: [`ScriptedStore`], which does what a test says, and three
//! models of backends: [`Clocked`] of one whose clock is the test's, [`Failing`] of one that fills up, and
//! [`Unreliable`] of one behind a bad network.

mod clocked;
mod failing;
mod scripted;
mod unreliable;

pub use clocked::Clocked;
pub use failing::Failing;
pub use scripted::{ScriptedStore, StoreCall, StoreFault};
pub use unreliable::{FaultRates, Unreliable};
