//! What a trace is like: sizes, mixes, places, order, time, sharing (TransCom's section 3.2, and
//! more). One pass, in bounded memory: where there are too many blocks to follow, a sample of them
//! is followed, and what is said of blocks is an estimate.
//!
//! | module | concept |
//! |---|---|
//! | [`blocks`] | working set, temporal distance, sharing |
//! | [`timeline`] | rates and working set over time |
//! | [`sizes`] | request sizes |
//! | [`order`] | sequentiality |
//! | [`latency`] | how long answers took |

mod blocks;
mod latency;
mod order;
mod sizes;
mod timeline;

#[cfg(test)]
mod tests;

pub use blocks::{Distances, SharingStats, WorkingSet};
pub use latency::Latencies;
pub use order::AccessOrder;
pub use sizes::Sizes;
pub use timeline::{Bin, Timeline};

use crate::{Flags, Op, Request, Source, TimeHistogram};
use block::{Error, Result};
use serde::Serialize;

/// How to count.
#[derive(Clone, Copy, Debug)]
pub struct StatsOptions {
    /// Bytes of a block.
    pub block: u32,
    /// Blocks that are followed one by one; about 70 bytes of memory each. At least 1,000.
    pub most_blocks: usize,
}

impl Default for StatsOptions {
    fn default() -> Self {
        Self { block: block::BLOCK as u32, most_blocks: 8 << 20 }
    }
}

/// Requests of one operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Count {
    /// How many.
    pub requests: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// What one client or disk did.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Party {
    /// Its number in the trace.
    pub number: u32,
    /// Its name; empty when not known.
    pub name: String,
    /// Its reads.
    pub reads: Count,
    /// Its writes.
    pub writes: Count,
    /// Everything else.
    pub others: u64,
}

impl Party {
    /// All of its requests.
    pub fn requests(&self) -> u64 {
        self.reads.requests + self.writes.requests + self.others
    }

    fn add(&mut self, request: &Request) {
        let count = match request.op {
            Op::Read => &mut self.reads,
            Op::Write => &mut self.writes,
            _ => {
                self.others += 1;
                return;
            }
        };
        count.requests += 1;
        count.bytes += u64::from(request.length);
    }
}

/// What a trace is like.
#[derive(Clone, Debug, Serialize)]
pub struct TraceStats {
    /// All requests.
    pub requests: u64,
    /// From the first to the last request, in nanoseconds; without times, their number.
    pub duration: u64,
    /// Whether the trace has times, latencies and operations.
    pub times: bool,
    /// See `times`.
    pub latencies: bool,
    /// See `times`.
    pub ops: bool,
    /// Whether the trace was finished.
    pub complete: bool,
    /// By operation: read, write, flush, trim, zero.
    pub operations: Vec<(Op, Count)>,
    /// Requests with forced unit access.
    pub fua: u64,
    /// Requests answered with an error.
    pub failed: u64,
    /// Sizes of reads.
    pub read_sizes: Sizes,
    /// Sizes of writes.
    pub write_sizes: Sizes,
    /// Reads and writes that begin and end at multiples of a block.
    pub aligned: u64,
    /// Sequentiality.
    pub order: AccessOrder,
    /// Blocks.
    pub working_set: WorkingSet,
    /// How far back the last use of a block is.
    pub distances: Distances,
    /// Blocks by how many clients use them.
    pub sharing: SharingStats,
    /// Over time.
    pub timeline: Timeline,
    /// How long answers took, by operation; those without any are left out.
    pub latency: Vec<(Op, Latencies)>,
    /// By client.
    pub clients: Vec<Party>,
    /// By disk.
    pub disks: Vec<Party>,
}

/// Counts all of a source.
///
/// # Errors
/// Any error from the source; [`Invalid`](block::ErrorKind::Invalid) for options out of range.
pub fn collect(source: &mut dyn Source, options: &StatsOptions) -> Result<TraceStats> {
    if options.block == 0 || options.most_blocks < 1000 {
        return Err(Error::invalid(
            "statistics need blocks of 1 byte or more, and 1,000 of them; give larger numbers",
        ));
    }
    let mut blocks = blocks::BlockTracker::new(*options);
    let mut timeline = timeline::Recorder::default();
    let mut order = order::Follower::default();
    let mut sizes = [sizes::Counter::default(), sizes::Counter::default()];
    let mut latency = [const { None }; Op::ALL.len()];
    let mut operations = [Count::default(); Op::ALL.len()];
    let (mut clients, mut disks): (Vec<Party>, Vec<Party>) = (Vec::new(), Vec::new());
    let (mut fua, mut failed, mut aligned, mut requests) = (0, 0, 0, 0);
    let (mut first, mut last) = (None, 0);
    let mut batch = Vec::new();
    let grain = u64::from(options.block);
    while source.read(&mut batch)? {
        blocks.learn(source.header());
        for request in &batch {
            requests += 1;
            first.get_or_insert(request.time);
            last = request.time;
            let op = request.op as usize;
            operations[op].requests += 1;
            operations[op].bytes += u64::from(request.length);
            fua += u64::from(request.flags.has(Flags::FUA));
            failed += u64::from(request.flags.has(Flags::FAILED));
            party(&mut clients, request.client).add(request);
            party(&mut disks, request.disk).add(request);
            if request.latency > 0 {
                latency[op].get_or_insert_with(TimeHistogram::default).add(request.latency.into());
            }
            timeline.request(request);
            if matches!(request.op, Op::Read | Op::Write) {
                sizes[op].add(request.length);
                let ends = request.offset.is_multiple_of(grain) && request.end() % grain == 0;
                aligned += u64::from(ends);
                order.add(request);
                blocks.add(request, &mut timeline);
            }
        }
    }
    let header = source.header();
    for (number, party) in clients.iter_mut().enumerate() {
        party.name = header.clients.get(number).cloned().unwrap_or_default();
    }
    for (number, party) in disks.iter_mut().enumerate() {
        party.name = header.disks.get(number).map(|d| d.name.clone()).unwrap_or_default();
    }
    clients.retain(|party| party.requests() > 0);
    disks.retain(|party| party.requests() > 0);
    let [read_sizes, write_sizes] = sizes.map(sizes::Counter::finish);
    let (working_set, distances, sharing) = blocks.finish();
    Ok(TraceStats {
        requests,
        duration: last - first.unwrap_or(last),
        times: header.times,
        latencies: header.latencies,
        ops: header.ops,
        complete: header.complete,
        operations: Op::ALL.into_iter().zip(operations).collect(),
        fua,
        failed,
        read_sizes,
        write_sizes,
        aligned,
        order: order.finish(),
        working_set,
        distances,
        sharing,
        timeline: timeline.finish(),
        latency: Op::ALL
            .into_iter()
            .zip(latency)
            .filter_map(|(op, histogram)| Some((op, Latencies::of(&histogram?))))
            .collect(),
        clients,
        disks,
    })
}

/// The entry of a number; numbers are bounded by every source.
fn party(parties: &mut Vec<Party>, number: u32) -> &mut Party {
    let index = number as usize;
    while parties.len() <= index {
        let number = parties.len() as u32;
        parties.push(Party { number, ..Party::default() });
    }
    &mut parties[index]
}
