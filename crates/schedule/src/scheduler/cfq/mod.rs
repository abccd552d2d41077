//! Linux' CFQ (completely fair queueing) by the rules of `block/cfq-iosched.c` as they were from Linux 2.6.33 to
//! 4.20, with which it ended:
//!
//! 1. Every client has a queue of its reads and of the writes that it waits for; all other writes share one.
//! 2. A queue is served for a slice of time: 100 ms, or less so that all have a slice within `target-latency`
//!    (`low-latency`), but no less than two idle windows.
//! 3. A queue that runs empty within its slice keeps the disk idle for `slice-idle`, as its next request is likely
//!    near its last one, unless its client is seeky or thinks for longer than that.
//! 4. Queues for which nobody idles are served one after the other, with one idle window behind the last of them.
//!    They, those for which the disk idles, and writes are three [workloads](queue::Workload) that take turns.
//! 5. What arrives while the disk idles goes at once when it is near the head.
//! 6. Writes wait while reads are on the disk, and go in batches of 16. A read ends their turn, so while others ask
//!    without a pause they may wait for long, as they did in the kernel.
//! 7. In a queue the nearest request ahead of the head goes next, or a near one behind it; once a slice the oldest, if
//!    it is late.
//!
//! There are no priorities, no control groups and no queueing on the disk that the kernel's has rules for. Queues of
//! clients that read near each other take turns, but are not joined.

mod queue;
#[cfg(test)]
mod tests;

use super::{Decision, Parameters, Scheduler, SchedulerKind, View};
use crate::{DiskRequest, Nanos, Op, model::disk::Travel};
use block::Result;
use queue::{CfqQueue, Due, Slice, ThinkTime, Workload};
use std::collections::{BTreeSet, HashMap};

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "cfq",
    about: "Linux' CFQ: clients in slices of time, idles 8 ms for the next request, seeky ones together",
    make,
};

/// Nearer to the head than this, in sectors, is near (`CFQQ_CLOSE_THR`).
const NEAR: u64 = 8192;

/// A turn of a workload is no shorter, in nanoseconds (`CFQ_MIN_TT`).
const SHORTEST: Nanos = 2_000_000;

/// A queue that goes before all others is due so long before the first of them, in nanoseconds.
const AHEAD: i64 = 1_000_000_000;

/// No slice is longer, in nanoseconds.
const DAY: Nanos = 86_400_000_000_000;

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    let tunables = Tunables {
        slice_idle: parameters.time("slice-idle", 8.0)?,
        seeky_idle: parameters.time("seeky-idle", 0.0)?,
        slice_sync: parameters.time("slice-sync", 100.0)?.clamp(1, DAY),
        slice_async: parameters.time("slice-async", 40.0)?.clamp(1, DAY),
        batch: parameters.number("slice-async-rq", 2.0, 1.0, 1e6)? as u32 * 8,
        quantum: parameters.number("quantum", 8.0, 1.0, 1e6)? as u32,
        low_latency: parameters.switch("low-latency", true)?,
        target_latency: parameters.time("target-latency", 300.0)?.max(1),
        expire_sync: parameters.time("fifo-expire-sync", 125.0)?,
        expire_async: parameters.time("fifo-expire-async", 250.0)?,
        back_most: parameters.number("back-seek-max", 16_384.0, 0.0, 1e9)? as u64 * 2,
        back_penalty: parameters.number("back-seek-penalty", 2.0, 1.0, 1e6)? as u64,
    };
    Ok(Box::new(Cfq::new(tunables)))
}

/// What the kernel has below `queue/iosched`; times in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Tunables {
    /// How long the disk waits for the next request of a client.
    slice_idle: Nanos,
    /// How long for that of a seeky one. The kernel's has no such setting: 0 is what it does, and 2 ms is what it did
    /// before 2.6.33, when there were no queues for which nobody idles.
    seeky_idle: Nanos,
    /// How long a client is served, and the queue of writes.
    slice_sync: Nanos,
    slice_async: Nanos,
    /// Writes of one turn.
    batch: u32,
    /// Requests of one queue on the disk at most.
    quantum: u32,
    low_latency: bool,
    target_latency: Nanos,
    expire_sync: Nanos,
    expire_async: Nanos,
    /// How far back from the head a request may lie, in sectors, and how many times as far that counts.
    back_most: u64,
    back_penalty: u64,
}

/// Queues of one workload.
#[derive(Debug, Default)]
struct ServiceTree {
    line: BTreeSet<Due>,
    think: ThinkTime,
}

/// What the queue in turn does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum TurnStep {
    /// It has a request.
    Serve,
    /// The disk waits for one.
    Hold,
    /// Its turn is over; which queue follows, if it is not the next one in line.
    End(Option<usize>),
}

#[derive(Debug)]
struct Cfq {
    tunables: Tunables,
    queues: Vec<CfqQueue>,
    of_client: HashMap<u32, usize>,
    of_writes: Option<usize>,
    trees: [ServiceTree; 3],
    /// How often a queue was put in line.
    lined_up: u64,
    serving: Workload,
    /// Until when, and how much of that is left between two queues.
    workload_end: Nanos,
    workload_left: Nanos,
    active: Option<usize>,
    idle_until: Option<Nanos>,
    /// Where the last request ends that was handed out.
    head: u64,
    waiting: usize,
    /// Requests on the disk for which nobody waits, and others.
    in_flight: [u32; 2],
    /// How many queues had requests, of late.
    busy_of_late: usize,
    /// When a request was done that had waited too long.
    delayed: Option<Nanos>,
    idled: u64,
    in_vain: u64,
    preempted: u64,
}

impl Cfq {
    fn new(tunables: Tunables) -> Self {
        Self {
            tunables,
            queues: Vec::new(),
            of_client: HashMap::new(),
            of_writes: None,
            trees: Default::default(),
            lined_up: 0,
            serving: Workload::SyncNoIdle,
            workload_end: 0,
            workload_left: 0,
            active: None,
            idle_until: None,
            head: 0,
            waiting: 0,
            in_flight: [0; 2],
            busy_of_late: 0,
            delayed: None,
            idled: 0,
            in_vain: 0,
            preempted: 0,
        }
    }

    /// The queue of a request.
    fn queue(&mut self, request: &DiskRequest, now: Nanos) -> usize {
        let is_sync = request.op == Op::Read || request.awaited;
        let known = match is_sync {
            true => self.of_client.get(&request.client).copied(),
            false => self.of_writes,
        };
        known.unwrap_or_else(|| {
            let index = self.queues.len();
            self.queues.push(CfqQueue::new(is_sync, now));
            if is_sync {
                self.of_client.insert(request.client, index);
            } else {
                self.of_writes = Some(index);
            }
            index
        })
    }

    /// How many queues are in line.
    fn busy(&self) -> usize {
        self.trees.iter().map(|tree| tree.line.len()).sum()
    }

    /// How many of one workload are.
    fn count(&self, workload: Workload) -> usize {
        self.trees[workload as usize].line.len()
    }

    /// Takes a queue out of its line; whether it was in one.
    fn leave(&mut self, index: usize) -> bool {
        let place = self.queues[index].place.take();
        place.is_some_and(|(workload, due)| self.trees[workload as usize].line.remove(&due))
    }

    /// Puts a queue in line: behind those that had less of the disk of late, or before all others.
    fn line_up(&mut self, index: usize, now: Nanos, first: bool) {
        let came = !self.leave(index);
        // Who comes counts one less than who is there.
        let others = self.busy() as i64 - i64::from(came);
        let queue = &mut self.queues[index];
        let workload = queue.workload();
        let line = &mut self.trees[workload as usize].line;
        let due = match (first, line.first()) {
            (true, None) => now as i64 - AHEAD,
            (true, Some((due, _, _))) => due - AHEAD,
            (false, _) => {
                // The shorter its slice beside one of the highest priority, which none has here, the later.
                let t = &self.tunables;
                let own = if queue.is_sync { t.slice_sync } else { t.slice_async };
                let offset = others.saturating_mul((t.slice_sync * 9 / 5) as i64 - own as i64);
                let residue = std::mem::take(&mut queue.residue);
                (now as i64).saturating_add(offset).saturating_sub(residue)
            }
        };
        self.lined_up += 1;
        let due = (due, self.lined_up, index);
        line.insert(due);
        queue.place = Some((workload, due));
    }

    /// Which of two requests of a queue the head comes to sooner; far behind it is last.
    fn nearer(
        &self,
        from: u64,
        one: Option<DiskRequest>,
        other: Option<DiskRequest>,
    ) -> Option<DiskRequest> {
        let Tunables { back_most, back_penalty, .. } = self.tunables;
        let way = |request: &DiskRequest| {
            let start = request.start;
            if start >= from {
                (false, start - from)
            } else if start.saturating_add(back_most) >= from {
                (false, (from - start).saturating_mul(back_penalty))
            } else {
                (true, start)
            }
        };
        one.into_iter().chain(other).min_by_key(|r| (way(r), std::cmp::Reverse(r.start)))
    }

    /// Whether the disk idles when this queue is empty.
    fn should_idle(&self, index: usize) -> bool {
        let idle = self.tunables.slice_idle;
        let queue = &self.queues[index];
        let Some((workload, _)) = queue.place.filter(|_| idle > 0) else { return false };
        let tree = &self.trees[workload as usize];
        let last = tree.line.len() == 1 && tree.think.mean().is_none_or(|mean| mean <= idle);
        queue.idles || (queue.is_sync && last)
    }

    /// The length of a queue's slice.
    fn slice(&mut self, index: usize) -> Nanos {
        let busy = self.busy();
        let t = &self.tunables;
        let slice = if self.queues[index].is_sync { t.slice_sync } else { t.slice_async };
        if !t.low_latency {
            return slice;
        }
        // Follows a rise at once, and a fall slowly.
        self.busy_of_late = (3 * self.busy_of_late.max(busy) + self.busy_of_late.min(busy) + 2) / 4;
        let all = t.slice_sync.saturating_mul(self.busy_of_late as u64);
        if all <= t.target_latency {
            return slice;
        }
        let part = |of: Nanos, by: Nanos| (slice as f64 * of as f64 / by as f64) as Nanos;
        let least = part(t.slice_idle.saturating_mul(2), t.slice_sync).min(slice);
        part(t.target_latency, all).max(least)
    }

    /// The turn of the active queue is over; `rest`: what is left of its slice, it has next time.
    fn expire(&mut self, now: Nanos, rest: bool) {
        let Some(index) = self.active.take() else { return };
        self.idle_until = None;
        if rest {
            let left = match self.queues[index].slice.time {
                None => self.slice(index) as i64,
                Some((_, end)) => end as i64 - now as i64,
            };
            self.queues[index].residue = left;
        }
        self.workload_left = self.workload_end.saturating_sub(now);
        if self.queues[index].is_empty() {
            self.leave(index);
        } else {
            self.line_up(index, now, false);
        }
        if self.busy() == 0 {
            self.workload_left = 0;
        }
    }

    /// Ends the wait for the next request when its time has come.
    fn wake(&mut self, now: Nanos) {
        let Some(at) = self.idle_until.filter(|at| *at <= now) else { return };
        self.idle_until = None;
        let Some(index) = self.active else { return };
        if self.queues[index].is_empty() || self.queues[index].slice.used(at) {
            self.in_vain += 1;
            self.queues[index].deep = false;
            self.expire(at, false);
        }
    }

    /// Another queue whose next request is near the head, when the disk need not idle for this one.
    fn near(&self, index: usize) -> Option<usize> {
        let queue = &self.queues[index];
        if !queue.is_sync || queue.is_seeky() || self.busy() < 2 {
            return None;
        }
        let distance = |other: &usize| {
            self.queues[*other]
                .next
                .map(|next| next.start.abs_diff(self.head))
                .filter(|d| *d <= NEAR)
        };
        let in_line =
            self.trees.iter().flat_map(|tree| tree.line.iter().map(|(_, _, index)| *index));
        let (_, other) = in_line.filter_map(|other| distance(&other).map(|d| (d, other))).min()?;
        let found = &self.queues[other];
        (found.is_sync && !found.is_seeky() && !found.boosted).then_some(other)
    }

    /// What the queue in turn does.
    fn go_on(&mut self, index: usize, now: Nanos) -> TurnStep {
        if self.queues[index].slice.used(now) {
            return TurnStep::End(None);
        }
        if !self.queues[index].is_empty() {
            return TurnStep::Serve;
        }
        if let Some(near) = self.near(index) {
            return TurnStep::End(Some(near));
        }
        if self.idle_until.is_some() {
            return TurnStep::Hold;
        }
        let queue = &mut self.queues[index];
        let early = queue.slice.time.is_none_or(|(from, end)| end - now > now - from);
        if queue.is_seeky() && queue.idles && early && self.tunables.seeky_idle == 0 {
            // The disk is faster than this client of many requests.
            (queue.deep, queue.idles) = (false, false);
        }
        match self.queues[index].on_disk > 0 && self.should_idle(index) {
            true => TurnStep::Hold,
            false => TurnStep::End(None),
        }
    }

    /// Whose turn it is; `None` while the disk waits.
    fn select(&mut self, now: Nanos) -> Option<usize> {
        let mut following = None;
        if let Some(active) = self.active {
            match self.go_on(active, now) {
                TurnStep::Serve => return Some(active),
                TurnStep::Hold => return None,
                TurnStep::End(near) => following = near,
            }
            self.expire(now, false);
        }
        let boosted = following.is_some();
        let index = match following {
            Some(index) => index,
            None => {
                self.choose_workload(now);
                self.trees[self.serving as usize].line.first()?.2
            }
        };
        self.queues[index].slice = Slice::default();
        self.queues[index].boosted = boosted;
        self.active = Some(index);
        Some(index)
    }

    /// Goes on with the workload in turn, or to the one whose first queue is due first.
    fn choose_workload(&mut self, now: Nanos) {
        if self.workload_left > 0 && self.count(self.serving) > 0 {
            self.workload_end = now.saturating_add(self.workload_left);
            return;
        }
        let first = |w: &Workload| self.trees[*w as usize].line.first().map(|due| due.0);
        let best = Workload::ALL.into_iter().filter_map(|w| first(&w).map(|due| (due, w)));
        let Some((_, workload)) = best.min_by_key(|(due, _)| *due) else { return };
        let busy = self.busy();
        let t = &self.tunables;
        let part =
            |of: usize, by: usize| (t.target_latency as f64 * of as f64 / by as f64) as Nanos;
        let slice = part(self.count(workload), self.busy_of_late.max(busy));
        let slice = match workload {
            Workload::Async => {
                let slice = slice.min(part(self.count(workload), busy));
                (slice as f64 * t.slice_async as f64 / t.slice_sync as f64) as Nanos
            }
            _ => slice.max(t.slice_idle.saturating_mul(2)),
        };
        self.serving = workload;
        self.workload_end = now.saturating_add(slice.max(SHORTEST));
    }

    /// Whether a queue may have one more request on the disk.
    fn may_dispatch(&self, index: usize, now: Nanos) -> bool {
        let (t, queue) = (&self.tunables, &self.queues[index]);
        let [writes, others] = self.in_flight;
        if (writes > 0 && self.should_idle(index)) || (others > 0 && !queue.is_sync) {
            return false;
        }
        let mut most = (t.quantum / 2).max(1);
        if queue.on_disk >= most {
            let busy = self.busy();
            let alone = busy == 1 || (queue.is_sync && busy - self.count(Workload::Async) == 1);
            let wait = t.slice_idle.saturating_mul(u64::from(queue.on_disk));
            let soon = queue.slice.time.is_none_or(|(_, end)| now.saturating_add(wait) > end);
            if soon && !alone {
                return false;
            }
            most = if alone { u32::MAX } else { t.quantum };
        }
        if !queue.is_sync && t.low_latency {
            // More and more of them as long as no read is late.
            let calm = self.delayed.map_or(u64::MAX, |at| now.saturating_sub(at) / t.slice_sync);
            let depth = if queue.on_disk == 0 { calm.max(1) } else { calm };
            most = most.min(u32::try_from(depth).unwrap_or(u32::MAX));
        }
        queue.on_disk < most
    }

    /// Has the disk idle for the next request of a queue that is empty, if that is worth it.
    fn idle(&mut self, index: usize, now: Nanos) {
        let queue = &self.queues[index];
        let left = queue.slice.time.map_or(0, |(_, end)| end.saturating_sub(now));
        let too_late = queue.think.mean().is_some_and(|mean| left < mean);
        if queue.on_disk == 0 && !too_late && self.should_idle(index) {
            let Tunables { slice_idle, seeky_idle, .. } = self.tunables;
            let short = queue.idles && queue.is_seeky() && !queue.deep;
            let window = if short { seeky_idle.min(slice_idle) } else { slice_idle };
            self.idle_until = Some(now.saturating_add(window));
            self.idled += 1;
        }
    }

    /// Hands out a request of a queue that has one.
    fn dispatch(&mut self, index: usize, now: Nanos) -> Option<DiskRequest> {
        let queue = &mut self.queues[index];
        let expire =
            if queue.is_sync { self.tunables.expire_sync } else { self.tunables.expire_async };
        let request = queue.late(now, expire).or(queue.next)?;
        queue.sorted.remove(&request);
        queue.on_disk += 1;
        queue.slice.given += 1;
        let ended = !queue.is_sync && queue.slice.given >= self.tunables.batch;
        self.in_flight[usize::from(queue.is_sync)] += 1;
        self.waiting -= 1;
        self.head = request.end();
        let sorted = &self.queues[index].sorted;
        let (ahead, behind) = (sorted.circular(request.start), sorted.below(request.start));
        self.queues[index].next = self.nearer(request.start, ahead, behind);
        if ended && self.busy() > 1 {
            self.expire(now, false);
        }
        Some(request)
    }

    /// Whether a request of another queue ends the turn of the active one.
    fn preempts(&self, index: usize, active: usize, request: &DiskRequest, now: Nanos) -> bool {
        let (new, old) = (&self.queues[index], &self.queues[active]);
        if old.slice.used(now) || new.is_sync != old.is_sync {
            return old.slice.used(now) || new.is_sync;
        }
        let idle_for_all = self.serving == Workload::SyncNoIdle
            && new.place.is_some_and(|(workload, _)| workload == Workload::SyncNoIdle)
            && self.count(Workload::SyncNoIdle) == 2;
        if old.is_empty() && (idle_for_all || !self.should_idle(active)) {
            return true;
        }
        self.idle_until.is_some() && request.start.abs_diff(self.head) <= NEAR
    }
}

impl Scheduler for Cfq {
    fn add(&mut self, request: DiskRequest, view: &View<'_>) {
        let now = view.now;
        self.wake(now);
        let index = self.queue(&request, now);
        let queue = &mut self.queues[index];
        queue.sorted.add(request);
        queue.fifo.push_back(request);
        self.waiting += 1;
        if self.queues[index].place.is_none() {
            self.line_up(index, now, false);
        }
        let next = self.queues[index].next;
        self.queues[index].next = self.nearer(self.head, next, Some(request));
        if let (true, Some((workload, _))) = (self.queues[index].is_sync, self.queues[index].place)
        {
            self.trees[workload as usize].think.arrived(now, self.tunables.slice_idle);
        }
        let Tunables { slice_idle, seeky_idle, .. } = self.tunables;
        self.queues[index].learn(&request, now, slice_idle, seeky_idle > 0);
        match self.active {
            Some(active) if active == index => self.idle_until = None,
            Some(active) if self.preempts(index, active, &request, now) => {
                let same = self.queues[active].workload() == self.queues[index].workload();
                self.expire(now, true);
                if !same {
                    self.workload_left = 0;
                }
                self.line_up(index, now, true);
                self.preempted += 1;
            }
            _ => {}
        }
    }

    fn next(&mut self, view: &View<'_>) -> Decision {
        self.wake(view.now);
        if self.waiting == 0 {
            return Decision::Idle;
        }
        let Some(index) = self.select(view.now) else {
            return self.idle_until.map_or(Decision::Idle, Decision::Wait);
        };
        let allowed = self.may_dispatch(index, view.now);
        let request = allowed.then(|| self.dispatch(index, view.now)).flatten();
        request.map_or(Decision::Idle, |request| Decision::Go(request, Travel::Direct))
    }

    fn done(&mut self, request: &DiskRequest, view: &View<'_>) {
        let now = view.now;
        self.wake(now);
        let index = self.queue(request, now);
        let queue = &mut self.queues[index];
        queue.on_disk = queue.on_disk.saturating_sub(1);
        let flying = &mut self.in_flight[usize::from(queue.is_sync)];
        *flying = flying.saturating_sub(1);
        if queue.is_sync {
            queue.think.last_done = now;
            let workload = queue.place.map_or(queue.workload(), |(workload, _)| workload);
            self.trees[workload as usize].think.last_done = now;
            if now.saturating_sub(request.arrived) >= self.tunables.expire_sync {
                self.delayed = Some(now);
            }
        }
        if self.active != Some(index) {
            return;
        }
        if self.queues[index].slice.time.is_none() {
            let slice = self.slice(index);
            self.queues[index].slice.time = Some((now, now.saturating_add(slice)));
        }
        if self.queues[index].slice.used(now) {
            self.expire(now, true);
        } else if self.queues[index].is_sync
            && self.queues[index].is_empty()
            && self.near(index).is_none()
        {
            self.idle(index, now);
        }
    }

    fn waiting(&self) -> usize {
        self.waiting
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        vec![("idled", self.idled), ("idled_in_vain", self.in_vain), ("preempted", self.preempted)]
    }
}
