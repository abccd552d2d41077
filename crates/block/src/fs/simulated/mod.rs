//! A file system in memory that crashes, for tests.
//!
//! It tells what is *visible*, what a process reads, from what is *durable*, what a power cut leaves. A
//! [`Machine`] has the one memory and the one disk; a [`SimulatedFs`] is the file system as one process on
//! it sees it. Processes are [killed](Machine::kill), which leaves what is visible, and the power
//! [fails](Machine::lose_power), which leaves what is durable and any part of the rest that the
//! [`Nature`] of the file system allows. A seed decides everything, and takes the same course each time.
//!
//! | module | concept |
//! |---|---|
//! | `bytes` | the content of a file: pages, sectors, what a failed sync leaves |
//! | `names` | directories: which changes of names survive, by [`Nature`] |
//! | `machine` | [`Machine`]: memory, disk, faults, kills and power cuts |
//! | `process` | [`SimulatedFs`], the file system of one process |

mod bytes;
mod machine;
mod names;
mod process;
#[cfg(test)]
mod tests;

pub use machine::{FaultRates, Machine};
pub use names::Nature;
pub use process::SimulatedFs;
