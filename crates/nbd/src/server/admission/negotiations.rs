//! The connections that negotiate, and which of them leaves when there are too many.
//!
//! Whoever reaches a listener can connect, and say nothing. So when all places are taken a newcomer is
//! not refused as long as somebody who negotiates has kept the server waiting for a while: the one who
//! came first of those gives its place up. Whoever uses an export keeps its place, and so does who
//! waits for the server: a class that boots at nine is not thinned out because the server is busy.

use super::attachments::Attachments;
use crate::server::exports::{ExportSummary, Exports, Peer, Purpose, Session, SessionEnding};
use crate::server::sockets::stream::Watch;
use async_trait::async_trait;
use block::Result;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// The part of the deadline of a negotiation after which it may have to give its place up.
const PART: u32 = 10;
/// The most that are looked at for a newcomer.
const LOOKS: usize = 16;

/// The negotiations of one server, in the order of arrival.
#[derive(Debug, Default)]
pub(in crate::server) struct Negotiations {
    by_age: Mutex<(u64, BTreeMap<u64, Arc<NegotiationState>>)>,
}

#[derive(Debug)]
struct NegotiationState {
    began: Instant,
    watch: Watch,
    /// The server is at work for it.
    served: AtomicBool,
    /// Its place went to a newer connection. Changes while the list is locked.
    evicted: Arc<AtomicBool>,
    leaves: Notify,
}

impl NegotiationState {
    /// Whether the next step is the client's, for `patience` at least.
    fn is_waited_for(&self, patience: Duration) -> bool {
        self.began.elapsed() >= patience && !self.served.load(Relaxed) && self.watch.is_waited_for()
    }
}

impl Negotiations {
    fn by_age(&self) -> MutexGuard<'_, (u64, BTreeMap<u64, Arc<NegotiationState>>)> {
        self.by_age.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection begins; `evicted` tells when its place went to a newer one. Without a `watch` nobody can tell
    /// whether it is silent, and it stays.
    pub(in crate::server) fn begin(
        &self,
        watch: Option<Watch>,
        evicted: &Arc<AtomicBool>,
    ) -> Negotiation<'_> {
        let entry = watch.map(|watch| {
            let (began, served) = (Instant::now(), AtomicBool::new(false));
            let (evicted, leaves) = (Arc::clone(evicted), Notify::new());
            let state = Arc::new(NegotiationState { began, watch, served, evicted, leaves });
            let mut by_age = self.by_age();
            by_age.0 += 1;
            let number = by_age.0;
            by_age.1.insert(number, Arc::clone(&state));
            (number, state)
        });
        Negotiation { all: self, entry }
    }

    /// Has the first one leave that keeps the server waiting; false when there is none. `deadline` is that
    /// of negotiations.
    pub(in crate::server) fn make_room(&self, deadline: Duration) -> bool {
        let mut by_age = self.by_age();
        let mut first = by_age.1.iter().take(LOOKS);
        let found = first.find(|(_, state)| state.is_waited_for(deadline / PART));
        let Some(number) = found.map(|(number, _)| *number) else { return false };
        if let Some(state) = by_age.1.remove(&number) {
            state.evicted.store(true, Relaxed);
            state.leaves.notify_one();
        }
        true
    }
}

#[cfg(test)]
impl Negotiations {
    /// Whether the server is at work for each of them, and there are any.
    pub(in crate::server) fn all_are_served(&self) -> bool {
        let by_age = self.by_age();
        !by_age.1.is_empty() && by_age.1.values().all(|state| state.served.load(Relaxed))
    }
}

/// One of them, up to its end.
#[derive(Debug)]
pub(in crate::server) struct Negotiation<'a> {
    all: &'a Negotiations,
    entry: Option<(u64, Arc<NegotiationState>)>,
}

impl Negotiation<'_> {
    /// Waits until it has to leave.
    pub(in crate::server) async fn leaves(&self) {
        match &self.entry {
            Some((_, state)) => state.leaves.notified().await,
            None => std::future::pending().await,
        }
    }

    /// It came to an end; whether the connection keeps its place.
    pub(in crate::server) fn ends(mut self) -> bool {
        self.leave()
    }

    fn leave(&mut self) -> bool {
        let Some((number, _)) = self.entry.take() else { return true };
        self.all.by_age().1.remove(&number).is_some()
    }

    fn serves(&self, now: bool) {
        if let Some((_, state)) = &self.entry {
            state.served.store(now, Relaxed);
        }
    }
}

impl Drop for Negotiation<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The exports as one negotiation sees them: while it waits for them the server does not wait for it, and whose
/// system has begun finds none of its own connections there.
pub(in crate::server) struct Attended<'a> {
    pub(in crate::server) exports: &'a dyn Exports,
    pub(in crate::server) attachments: &'a Attachments,
    pub(in crate::server) negotiation: &'a Negotiation<'a>,
}

#[async_trait]
impl Exports for Attended<'_> {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.negotiation.serves(true);
        let list = self.exports.list(peer).await;
        self.negotiation.serves(false);
        list
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        self.negotiation.serves(true);
        if let (Purpose::Use, Some(run)) = (purpose, &peer.run) {
            self.end_earlier_runs(name, peer, run).await;
        }
        let opened = self.exports.open(name, peer, purpose).await;
        self.negotiation.serves(false);
        opened
    }
}

impl Attended<'_> {
    /// Ends what an earlier run of the client's system left at an export.
    async fn end_earlier_runs(&self, name: &str, peer: &Peer, run: &[u8; 16]) {
        // Connections are known by the canonical name. What cannot be opened is refused behind this.
        let Ok(session) = self.exports.open(name, peer, Purpose::Info).await else { return };
        let canonical = session.name().to_owned();
        session.close(SessionEnding::Clean).await;
        self.attachments.end_earlier_runs(&canonical, &peer.identity, run).await;
    }
}
