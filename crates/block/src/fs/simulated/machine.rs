//! A machine: it starts, is killed, loses its power; and what goes wrong with it is set here.

use super::names::Nature;
use super::process::SimulatedFs;
use super::state::{FaultRates, MachineState};
use parking_lot::{Mutex, MutexGuard};
use std::fmt;
use std::sync::Arc;

/// A machine with one simulated file system. Clones are the same machine.
#[derive(Clone)]
pub struct Machine(Arc<Mutex<MachineState>>);

impl fmt::Debug for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Machine")
    }
}

impl Machine {
    /// One with an empty file system of a nature. The seed decides what survives, and what fails.
    pub fn new(nature: Nature, seed: u64) -> Self {
        Self(Arc::new(Mutex::new(MachineState::new(nature, seed))))
    }

    fn state(&self) -> MutexGuard<'_, MachineState> {
        self.0.lock()
    }

    /// The file system as a process sees it that starts now. What began before has been killed.
    pub fn start(&self) -> SimulatedFs {
        self.kill();
        SimulatedFs::new(Arc::clone(&self.0), self.state().process)
    }

    /// Kills the process: what it still calls fails and changes nothing. What it wrote stays visible.
    pub fn kill(&self) {
        self.state().kill();
    }

    /// The process is killed by itself after `calls` more of them.
    pub fn kill_after(&self, calls: u64) {
        let mut state = self.state();
        state.dies_at = Some(state.calls + calls);
    }

    /// Whether the process was killed that was to be.
    pub fn is_dead(&self) -> bool {
        let state = self.state();
        state.dies_at.is_some_and(|at| state.calls >= at)
    }

    /// Cuts the power: processes are gone, and of what was not durable any part that may.
    pub fn lose_power(&self) {
        self.state().lose_power();
    }

    /// From now on calls fail that often.
    pub fn set_faults(&self, faults: FaultRates) {
        self.state().faults = faults;
    }

    /// From now on files take at most so many bytes, in pages.
    pub fn set_room(&self, bytes: u64) {
        self.state().room = bytes / crate::BLOCK;
    }

    /// Bytes that files take now, in pages.
    pub fn used(&self) -> u64 {
        self.state().used * crate::BLOCK
    }

    /// The date of what changes from now on, in Unix seconds; a nanosecond more with each call.
    pub fn set_now(&self, now: u64) {
        self.state().now = now;
    }

    /// Whether nothing can be changed until the next start, because the journal ended.
    pub fn has_ended(&self) -> bool {
        self.state().ended
    }

    /// Calls so far, killed ones included.
    pub fn calls(&self) -> u64 {
        self.state().calls
    }

    /// Syncs of files that failed so far.
    pub fn failed_syncs(&self) -> u64 {
        self.state().failed_syncs
    }

    /// What was called so far, as a number: two machines that took the same course have the same.
    pub fn course(&self) -> u64 {
        self.state().course
    }
}
