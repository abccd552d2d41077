//! A trace, replayed at its own times whatever the disk does.

use super::Load;
use crate::{DiskRequest, Nanos, Op, SECTOR};
use block::{Error, Result};
use std::fmt;

/// What of a trace is replayed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReplaySelection {
    /// The requests to this disk only; all when not given.
    pub disk: Option<u32>,
    /// Times are divided by this.
    pub speed: f64,
    /// For a trace without times: requests per second, at even distances.
    pub rate: Option<f64>,
}

/// A trace as a load. Reads, and writes and zeroing as writes; flushes and trims are left out.
pub struct Replay {
    source: Box<dyn trace::Source>,
    selection: ReplaySelection,
    batch: Vec<trace::Request>,
    at: usize,
    /// The next request that is replayed.
    next: Option<(Nanos, DiskRequest)>,
    count: u64,
}

impl fmt::Debug for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replay").field("selection", &self.selection).finish_non_exhaustive()
    }
}

impl Replay {
    /// Replays this trace.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the trace has no times and no rate was given, or
    /// nothing in it is replayed; any error from the trace.
    pub fn new(source: Box<dyn trace::Source>, selection: ReplaySelection) -> Result<Self> {
        let (batch, at, next, count) = (Vec::new(), 0, None, 0);
        let mut replay = Self { source, selection, batch, at, next, count };
        replay.advance()?;
        if !replay.source.header().times && selection.rate.is_none() {
            return Err(Error::invalid("the trace has no times; give --rate"));
        }
        if replay.next.is_none() {
            return Err(Error::invalid("nothing in the trace reads or writes the disk asked for"));
        }
        Ok(replay)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = None;
        loop {
            if self.at == self.batch.len() {
                self.at = 0;
                if !self.source.read(&mut self.batch)? {
                    return Ok(());
                }
            }
            let request = self.batch[self.at];
            self.at += 1;
            if let Some(found) = self.translate(&request) {
                self.next = Some(found);
                return Ok(());
            }
        }
    }

    fn translate(&mut self, request: &trace::Request) -> Option<(Nanos, DiskRequest)> {
        let op = match request.op {
            trace::Op::Read => Op::Read,
            trace::Op::Write | trace::Op::Zero => Op::Write,
            trace::Op::Flush | trace::Op::Trim => return None,
        };
        let elsewhere = self.selection.disk.is_some_and(|disk| disk != request.disk);
        if elsewhere || request.length == 0 {
            return None;
        }
        let time = match self.selection.rate {
            Some(rate) => (self.count as f64 * 1e9 / rate) as Nanos,
            None => (request.time as f64 / self.selection.speed) as Nanos,
        };
        self.count += 1;
        let start = request.offset / SECTOR;
        let sectors = (request.end().div_ceil(SECTOR) - start) as u32;
        let client = request.client;
        Some((
            time,
            DiskRequest { client, op, awaited: true, start, sectors, ..DiskRequest::default() },
        ))
    }
}

impl Load for Replay {
    fn next(&self) -> Option<Nanos> {
        self.next.map(|(at, _)| at)
    }

    fn arrive(&mut self, now: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()> {
        while let Some((at, request)) = self.next.filter(|(at, _)| *at <= now) {
            let _ = at;
            requests.push(request);
            self.advance()?;
        }
        Ok(())
    }

    fn done(&mut self, _: Nanos, _: &DiskRequest) {}
}
