//! Who may use an open disk inside this process: its clients, one at a time, and whoever changes it as a
//! whole.

use crate::record::DiskClient;
use block::{Error, Result};
use parking_lot::Mutex;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The lease of a disk inside this process.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) state: Mutex<LeaseState>,
    pub(crate) changed: Notify,
    /// Told when nothing keeps clients away any more.
    pub(crate) free: Notify,
    linger: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct LeaseState {
    pub(crate) holder: Option<String>,
    /// What tells the holder from others that are called so before and after it.
    pub(crate) process: Option<String>,
    pub(crate) attachments: usize,
    /// How many connections of the holder are on their way to another process, or back.
    pub(crate) passed: usize,
    /// Until when the disk waits for its holder, who is away.
    pub(crate) deadline: Option<Instant>,
    /// What is done to the disk that nobody may attach meanwhile.
    pub(crate) busy: Option<&'static str>,
    /// How many attachments are being ended.
    pub(crate) leaving: usize,
}

impl LeaseState {
    /// Whether the holder is there, or on its way.
    pub(crate) fn is_used(&self) -> bool {
        self.attachments + self.passed > 0
    }
}

impl Lease {
    /// The lease of a disk that `absent` had attached when the disk was last open.
    pub(crate) fn new(linger: Duration, absent: Option<DiskClient>) -> Self {
        let deadline = absent.is_some().then(|| Instant::now() + linger);
        let (holder, process) = absent.map_or((None, None), |one| (Some(one.name), one.process));
        let state = LeaseState { holder, process, deadline, ..LeaseState::default() };
        Self { state: Mutex::new(state), changed: Notify::new(), free: Notify::new(), linger }
    }

    /// Keeps clients away until the guard is dropped.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while one is attached.
    pub(crate) fn exclude(&self, name: &str, what: &'static str) -> Result<ExclusiveGuard<'_>> {
        let mut state = self.state.lock();
        if let Some(busy) = state.busy {
            return Err(Error::conflict(format!(
                "disk {name:?}: a {busy} is under way; try again when it is done"
            )));
        }
        if state.is_used() {
            let holder = state.holder.as_deref().unwrap_or("a client");
            return Err(Error::conflict(format!(
                "disk {name:?} is attached by {holder}; detach it before a {what}"
            )));
        }
        state.busy = Some(what);
        Ok(ExclusiveGuard { lease: self })
    }

    /// An attachment is being ended until the guard is dropped.
    pub(crate) fn leave(&self) -> LeavingGuard<'_> {
        self.state.lock().leaving += 1;
        LeavingGuard { lease: self }
    }

    pub(crate) fn lingering_is_over(&self) -> bool {
        let state = self.state.lock();
        !state.is_used() && state.deadline.is_some_and(|at| at <= Instant::now())
    }

    /// The holder has ended and cannot come back: it is waited for no longer.
    pub(crate) fn linger_no_more(&self, state: &mut LeaseState) {
        if !state.is_used() {
            state.deadline = Some(Instant::now());
            self.changed.notify_one();
        }
    }

    /// Starts to wait for the holder.
    pub(crate) fn linger(&self) {
        let mut state = self.state.lock();
        if !state.is_used() {
            state.deadline = Some(Instant::now() + self.linger);
            self.changed.notify_one();
        }
    }

    pub(crate) fn release(&self) {
        let mut state = self.state.lock();
        if !state.is_used() {
            state.holder = None;
            state.process = None;
            state.deadline = None;
        }
    }
}

/// Nobody may attach while it lives.
pub(crate) struct ExclusiveGuard<'a> {
    lease: &'a Lease,
}

impl Drop for ExclusiveGuard<'_> {
    fn drop(&mut self) {
        self.lease.state.lock().busy = None;
        self.lease.free.notify_waiters();
    }
}

/// A client's last writes are noted, or its disk is reset, while it lives.
pub(crate) struct LeavingGuard<'a> {
    lease: &'a Lease,
}

impl Drop for LeavingGuard<'_> {
    fn drop(&mut self) {
        self.lease.state.lock().leaving -= 1;
        self.lease.free.notify_waiters();
    }
}
