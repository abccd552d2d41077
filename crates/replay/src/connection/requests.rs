//! The requests under way of a connection, and when its clients send their next ones.

use super::Lane;
use crate::plan::Pace;
use crate::replies::ReplySink;
use crate::script::ScriptStep;
use crate::state::ReplayState;
use block::{Error, Result};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tokio::time::Instant;
use trace::Op;

/// A request under way.
#[derive(Debug)]
struct RequestSlot {
    /// The cookie; 0 marks a free slot.
    cookie: u64,
    lane: usize,
    op: Op,
    offset: u64,
    length: u32,
    sent: u64,
    /// Bytes of a read's data that came.
    got: u64,
    error: u32,
    text: String,
    /// A read's data, when it is verified.
    data: Vec<u8>,
    moment: u64,
}

/// The requests under way of a connection, and its clients.
pub(super) struct RequestTable {
    pub(super) shared: Arc<ReplayState>,
    lanes: Vec<Lane>,
    /// Clients that may send, by the time when their next request is due.
    pub(super) due: BinaryHeap<Reverse<(u64, usize)>>,
    slots: Vec<RequestSlot>,
    free: Vec<usize>,
    pub(super) under_way: usize,
    /// Requests sent: the upper part of cookies, and the stamp of writes.
    count: u64,
    /// Now, in nanoseconds since the start.
    now: u64,
    pub(super) export: String,
}

impl RequestTable {
    /// No request under way, and the first of every client in the queue.
    pub(super) fn new(shared: Arc<ReplayState>, lanes: Vec<Lane>, export: String) -> Self {
        let mut table = Self {
            shared,
            lanes,
            due: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            count: 0,
            now: 0,
            export,
        };
        (0..table.lanes.len()).for_each(|lane| table.queue(lane));
        table
    }

    /// Looks at the clock.
    pub(super) fn tick(&mut self) {
        self.now = (Instant::now() - self.shared.start()).as_nanos() as u64;
    }

    /// Puts a client that may send into the queue of due times, if it has anything left to do.
    fn queue(&mut self, at: usize) {
        let (plan, script) = (&self.shared.plan, &self.shared.script);
        let lane = &mut self.lanes[at];
        if lane.queued || lane.under_way >= plan.depth {
            return;
        }
        let steps = &script.parts[lane.part].steps;
        if lane.next == steps.len() && plan.repeat {
            lane.next = 0;
            if let Pace::Times(speed) = plan.pace {
                // A trace without duration would begin again at the same time for ever.
                let round = ((script.duration as f64 / speed) as u64).max(1000);
                lane.base = lane.base.saturating_add(round);
            }
        }
        let Some(step) = steps.get(lane.next) else { return };
        let due = match plan.pace {
            Pace::Fast => lane.base,
            Pace::Times(speed) => lane.base.saturating_add((step.time as f64 / speed) as u64),
        };
        let over = plan.until.is_some_and(|until| due.max(self.now) >= until.as_nanos() as u64);
        if over || self.shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        lane.queued = true;
        self.due.push(Reverse((due, at)));
    }

    /// The client whose request is due and was due longest, and since when.
    pub(super) fn next_due(&mut self) -> Option<(usize, u64)> {
        if self.shared.stopping.load(Ordering::Relaxed) {
            self.due.clear();
            return None;
        }
        let Reverse((due, lane)) = *self.due.peek()?;
        if due > self.now {
            return None;
        }
        self.due.pop();
        self.lanes[lane].queued = false;
        Some((lane, due))
    }

    pub(super) fn step(&self, lane: usize) -> ScriptStep {
        let lane = &self.lanes[lane];
        self.shared.script.parts[lane.part].steps[lane.next]
    }

    /// Leaves out a client's next request.
    pub(super) fn skip(&mut self, at: usize) {
        self.shared.tally().unsupported += 1;
        let lane = &mut self.lanes[at];
        lane.next += 1;
        lane.skipped += 1;
        // A script of nothing else must not go round for ever.
        if lane.skipped < self.shared.script.parts[lane.part].steps.len() {
            self.queue(at);
        }
    }

    /// Notes a client's next request as sent; gives its cookie and the stamp of its content.
    pub(super) fn launch(
        &mut self,
        at: usize,
        due: u64,
        op: Op,
        offset: u64,
        length: u32,
    ) -> (u64, u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot {
                cookie: 0,
                lane: 0,
                op,
                offset: 0,
                length: 0,
                sent: 0,
                got: 0,
                error: 0,
                text: String::new(),
                data: Vec::new(),
                moment: 0,
            });
            self.slots.len() - 1
        });
        self.count += 1;
        self.under_way += 1;
        let cookie = self.count << 20 | slot as u64;
        let verify = self.shared.plan.verify;
        let lane = &mut self.lanes[at];
        let stamp = u64::from(lane.client) << 40 | self.count;
        lane.next += 1;
        lane.skipped = 0;
        lane.under_way += 1;
        let request = &mut self.slots[slot];
        (request.cookie, request.lane, request.op) = (cookie, at, op);
        (request.offset, request.length, request.sent) = (offset, length, self.now);
        (request.got, request.error) = (0, 0);
        if verify {
            match op {
                Op::Read => {
                    request.data = vec![0; length as usize];
                    request.moment = lane.expected.moment();
                }
                Op::Write => lane.expected.begin(offset, length as usize, Some(stamp)),
                Op::Trim | Op::Zero => lane.expected.begin(offset, length as usize, None),
                Op::Flush => {}
            }
        }
        let mut tally = self.shared.tally();
        tally.sent += 1;
        if self.now >= self.shared.plan.warm_up.as_nanos() as u64 {
            let free = lane.free.max(due);
            tally.late.add(self.now.saturating_sub(due));
            tally.own.add(self.now.saturating_sub(free));
        }
        drop(tally);
        self.queue(at);
        (cookie, stamp)
    }

    fn slot(&self, cookie: u64) -> Result<usize> {
        let slot = (cookie & 0xf_ffff) as usize;
        match self.slots.get(slot) {
            Some(request) if request.cookie == cookie => Ok(slot),
            _ => Err(Error::invalid("the server answered a request that was not made")),
        }
    }

    /// A part of a read's data came.
    fn cover(&mut self, cookie: u64, offset: u64, length: u64) -> Result<(usize, usize)> {
        let slot = self.slot(cookie)?;
        let request = &mut self.slots[slot];
        let from = offset.checked_sub(request.offset);
        let inside = from.is_some_and(|from| {
            from.checked_add(length).is_some_and(|end| end <= u64::from(request.length))
        });
        request.got = request.got.saturating_add(length);
        if request.op != Op::Read || !inside || request.got > u64::from(request.length) {
            return Err(Error::invalid("the server sent data outside of the request"));
        }
        Ok((slot, from.unwrap_or(0) as usize))
    }

    /// Clients that have not done everything: a replay that was cut short.
    pub(super) fn left(&self) -> u64 {
        let parts = &self.shared.script.parts;
        self.lanes.iter().filter(|lane| lane.next < parts[lane.part].steps.len()).count() as u64
    }

    /// Checks what a read got and notes what a change did.
    fn verify(&mut self, slot: usize) {
        let request = &mut self.slots[slot];
        let done = request.error == 0;
        let lane = &mut self.lanes[request.lane];
        match request.op {
            Op::Read => {
                let data = std::mem::take(&mut request.data);
                if !done {
                    return;
                }
                let checked = lane.expected.check(request.offset, &data, request.moment);
                let mut tally = self.shared.tally();
                tally.verified += checked.grains;
                if let Some(at) = checked.wrong {
                    tally.wrong += 1;
                    let export = &self.export;
                    tally.first_wrong.get_or_insert_with(|| format!("export {export:?} at {at}"));
                }
            }
            Op::Flush => {}
            _ => lane.expected.end(request.offset, request.length as usize, done),
        }
    }
}

impl ReplySink for RequestTable {
    fn expects(&self, cookie: u64) -> Result<(u64, u64)> {
        let request = &self.slots[self.slot(cookie)?];
        let length = if request.op == Op::Read { u64::from(request.length) } else { 0 };
        Ok((request.offset, length))
    }

    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let (slot, from) = self.cover(cookie, offset, bytes.len() as u64)?;
        if let Some(place) = self.slots[slot].data.get_mut(from..from + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn hole(&mut self, cookie: u64, offset: u64, length: u64) -> Result<()> {
        self.cover(cookie, offset, length).map(|_| ()) // its data is zero already
    }

    fn fail(&mut self, cookie: u64, error: u32, text: &str) -> Result<()> {
        let slot = self.slot(cookie)?;
        self.slots[slot].error = error;
        text.clone_into(&mut self.slots[slot].text);
        Ok(())
    }

    fn done(&mut self, cookie: u64) -> Result<()> {
        let slot = self.slot(cookie)?;
        let request = &self.slots[slot];
        let failed = request.error != 0;
        if request.op == Op::Read && !failed && request.got != u64::from(request.length) {
            return Err(Error::invalid("the server left out a part of the data"));
        }
        let shared = Arc::clone(&self.shared);
        {
            let mut tally = shared.tally();
            let carried = matches!(request.op, Op::Read | Op::Write) && !failed;
            let bytes = if carried { u64::from(request.length) } else { 0 };
            tally.answers += 1;
            tally.bytes += bytes;
            tally.last = tally.last.max(self.now);
            if failed {
                tally.errors += 1;
                let (op, offset) = (request.op.as_str(), request.offset);
                let (export, text, error) = (&self.export, &request.text, request.error);
                tally.first_error.get_or_insert_with(|| {
                    format!("export {export:?}: {op} at {offset}: error {error} {text}")
                });
            }
            if shared.in_window(self.now) {
                let one = &mut tally.ops[request.op as usize];
                one.bytes += bytes;
                one.errors += u64::from(failed);
                let latency = self.now.saturating_sub(request.sent);
                one.latency.add(latency);
                let client = self.lanes[request.lane].client;
                tally.detail.add(client, self.now, bytes, failed, latency);
            }
        }
        if shared.plan.verify {
            self.verify(slot);
        }
        let at = self.slots[slot].lane;
        self.slots[slot].cookie = 0;
        self.free.push(slot);
        self.under_way -= 1;
        let lane = &mut self.lanes[at];
        lane.under_way -= 1;
        if !lane.queued {
            // It waited for this answer.
            lane.free = self.now;
            self.queue(at);
        }
        Ok(())
    }
}
