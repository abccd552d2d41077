//! A queue of CFQ: its requests, its turn, and what is known of who sends them.

use crate::scheduler::sorted::Sorted;
use crate::{DiskRequest, Nanos};
use std::collections::VecDeque;

/// Requests farther apart than this, in sectors, are a seek (`CFQQ_SEEK_THR`).
const SEEK: u64 = 800;

/// A client is seeky when more than this of its last 32 requests were seeks.
const SEEKY: u32 = 4;

/// A client that has so many requests waiting is worth idling for though it is seeky.
const DEEP: usize = 4;

/// What queues are served together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Workload {
    /// Writes for which nobody waits.
    Async,
    /// Clients for which the disk does not idle one by one.
    SyncNoIdle,
    /// Clients for which it does.
    Sync,
}

impl Workload {
    pub(super) const ALL: [Self; 3] = [Self::Async, Self::SyncNoIdle, Self::Sync];
}

/// The time from an answer to the next request, of late.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ThinkTime {
    pub(super) last_done: Nanos,
    pub(super) total: u64,
    pub(super) samples: u64,
}

impl ThinkTime {
    /// A request arrived. Longer than two idle windows is all the same.
    pub(super) fn arrived(&mut self, now: Nanos, idle: Nanos) {
        let elapsed = now.saturating_sub(self.last_done).min(idle.saturating_mul(2));
        self.samples = (7 * self.samples + 256) / 8;
        self.total = self.total.saturating_mul(7).saturating_add(elapsed.saturating_mul(256)) / 8;
    }

    /// The mean, once there are three samples.
    pub(super) fn mean(&self) -> Option<Nanos> {
        (self.samples > 80).then(|| (self.total + 128) / self.samples)
    }
}

/// A turn of a queue.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slice {
    /// From when to when; `None` until the first request is done.
    pub(super) time: Option<(Nanos, Nanos)>,
    /// Requests that were handed out.
    pub(super) given: u32,
    /// The oldest request was looked at.
    pub(super) oldest_seen: bool,
}

impl Slice {
    pub(super) fn used(&self, now: Nanos) -> bool {
        self.time.is_some_and(|(_, end)| now >= end)
    }
}

/// The requests of a client, or all writes for which nobody waits.
#[derive(Debug)]
pub(super) struct CfqQueue {
    pub(super) is_sync: bool,
    pub(super) sorted: Sorted,
    /// In order of arrival; some of them are gone from `sorted`.
    pub(super) fifo: VecDeque<DiskRequest>,
    pub(super) next: Option<DiskRequest>,
    /// Where it stands in line.
    pub(super) place: Option<(Workload, Due)>,
    pub(super) on_disk: u32,
    pub(super) slice: Slice,
    /// What was left of its last slice, in nanoseconds; below 0 by how much it was overrun.
    pub(super) residue: i64,
    pub(super) think: ThinkTime,
    /// The last 32 requests, a bit set for each seek.
    pub(super) seeks: u32,
    pub(super) last_end: Option<u64>,
    /// The disk idles for it.
    pub(super) idles: bool,
    pub(super) deep: bool,
    /// It had a turn since it was near the head, and not yet one when it was due.
    pub(super) boosted: bool,
}

/// When a queue is due, in nanoseconds; its turn among queues that are due at that moment; its index.
pub(super) type Due = (i64, u64, usize);

impl CfqQueue {
    pub(super) fn new(is_sync: bool, now: Nanos) -> Self {
        Self {
            is_sync,
            sorted: Sorted::default(),
            fifo: VecDeque::new(),
            next: None,
            place: None,
            on_disk: 0,
            slice: Slice::default(),
            residue: 0,
            think: ThinkTime { last_done: now, ..ThinkTime::default() },
            seeks: 0,
            last_end: None,
            idles: is_sync,
            deep: false,
            boosted: false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sorted.len() == 0
    }

    pub(super) fn is_seeky(&self) -> bool {
        self.seeks.count_ones() > SEEKY
    }

    /// The workload that it is of when it lines up next.
    pub(super) fn workload(&self) -> Workload {
        match (self.is_sync, self.idles) {
            (false, _) => Workload::Async,
            (true, false) => Workload::SyncNoIdle,
            (true, true) => Workload::Sync,
        }
    }

    /// Learns from a request that arrived whether the disk is to idle for more of them: for `idle` nanoseconds, and
    /// for seeky clients, too?
    pub(super) fn learn(
        &mut self,
        request: &DiskRequest,
        now: Nanos,
        idle: Nanos,
        for_seeky: bool,
    ) {
        let is_seek = self.last_end.is_some_and(|end| request.start.abs_diff(end) > SEEK);
        self.seeks = self.seeks << 1 | u32::from(is_seek);
        self.last_end = Some(request.end());
        self.deep |= self.sorted.len() >= DEEP;
        if !self.is_sync {
            return;
        }
        self.think.arrived(now, idle);
        if idle == 0 || (self.is_seeky() && !self.deep && !for_seeky) {
            self.idles = false;
        } else if let Some(mean) = self.think.mean() {
            self.idles = mean <= idle;
        }
    }

    /// The oldest request, once a slice, when it has waited longer than `expire`.
    pub(super) fn late(&mut self, now: Nanos, expire: Nanos) -> Option<DiskRequest> {
        if std::mem::replace(&mut self.slice.oldest_seen, true) {
            return None;
        }
        while self.fifo.front().is_some_and(|first| !self.sorted.has(first)) {
            self.fifo.pop_front();
        }
        self.fifo.front().filter(|oldest| now.saturating_sub(oldest.arrived) >= expire).copied()
    }
}
