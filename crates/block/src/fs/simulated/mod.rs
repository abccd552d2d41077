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
//! | `state` | files, locks, room and faults of one machine, behind its lock |
//! | `process` | [`SimulatedFs`], the file system of one process |
//! | `machine` | [`Machine`]: it starts, is killed, loses its power |

mod bytes;
mod machine;
mod names;
mod process;
mod state;
#[cfg(test)]
mod tests;

pub use machine::Machine;
pub use names::Nature;
pub use process::SimulatedFs;
pub use state::FaultRates;
