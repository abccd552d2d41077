//! How to spend an amount of memory: at the server or in the clients, on blocks of which size, kept by
//! which policy. By miniature simulation, as in [`tune`](mod@crate::tune), of both levels at once.
//!
//! Hit ratios of different blocks and different levels are of different things. What is compared is
//! the time that a read takes: an exchange with the server, when the client's own cache lacks a part
//! of it, a fetch, when the server lacks a part, and the bytes that either has to move.
//!
//! A sample is of places: all blocks, whatever their size, of one in `n` stretches as long as the
//! largest block; each cache is an `n`th as large. A read of `k` stretches counts as a `k`th of one in each of them,
//! so that what a read takes is the same whatever else is tried. Where the sample is everything, no read is cut.

use crate::client::CachingClient;
use crate::options::{ReferenceOptions, Sharing};
use crate::stream::{Builder, ReferenceStream};
use crate::table::mix;
use crate::tune::{candidates, mean};
use block::{Error, Result};
use cache::PolicyKind;
use serde::Serialize;
use std::collections::HashMap;
use trace::{Bases, Header, Op, Request, Source};

/// The fewest blocks of a client's miniature cache.
const FEWEST_OF_CLIENT: u64 = 4;
/// The fewest of the largest blocks that all of the memory in miniature holds.
const FEWEST_OF_ALL: u32 = 16;

/// The most pairs of a client and a disk: each has a cache of its own.
const MOST_PARTIES: usize = 1 << 16;

/// What is tried for all blocks and shares, before all policies are for the best of them.
const FIRST: [&str; 5] = ["lru", "duel", "fmpq", "lirs", "s3fifo"];

/// What parts of a read take.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Costs {
    /// Seconds of an exchange between client and server, without its data.
    pub trip: f64,
    /// Bytes a second between client and server.
    pub trip_rate: f64,
    /// Seconds until the server gets what it lacks, without its data.
    pub fetch: f64,
    /// Bytes a second from there.
    pub fetch_rate: f64,
}

/// What there is to spend, and what to choose from.
#[derive(Debug, Clone, PartialEq)]
pub struct Budget {
    /// Bytes for the server and all its clients together.
    pub memory: u64,
    /// Sizes of blocks, in bytes; powers of two.
    pub blocks: Vec<u32>,
    /// Parts of the memory that all clients together may get, 0 to below 1.
    pub shares: Vec<f64>,
    /// How the trace becomes references: writes and sharing; the rest of it is chosen.
    pub options: ReferenceOptions,
    /// What a read takes.
    pub costs: Costs,
    /// A sample is of one in so many places; fewer when the server's cache is small.
    pub one_in: u32,
    /// How many samples are taken: 1 to `one_in`.
    pub samples: u32,
}

/// A way to spend it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpendingPlan {
    /// Bytes of a block.
    pub block: u32,
    /// Bytes for each client's cache, which is LRU; 0 for none.
    pub client: u64,
    /// Bytes for the server's cache.
    pub server: u64,
    /// The server's policy.
    pub policy: PolicyKind,
    /// The part of the reads that clients answer themselves.
    pub client_hit_ratio: f64,
    /// The part of the others that the server answers without fetching anything.
    pub server_hit_ratio: f64,
    /// Seconds that a read takes, on average.
    pub seconds: f64,
    /// Its standard error, from the samples; 0 when there is only one.
    pub error: f64,
    /// Seconds by sample.
    #[serde(skip)]
    by_sample: Vec<f64>,
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spending {
    /// The best policy, of those tried everywhere, for each block and share.
    pub plans: Vec<SpendingPlan>,
    /// All policies for the best block and share, the best first.
    pub policies: Vec<SpendingPlan>,
    /// The best of all.
    pub best: SpendingPlan,
    /// All at the server, the first size of blocks, LRU: what the gain is measured against.
    pub plain: SpendingPlan,
    /// The part of the time that the best saves: below 1.
    pub saved: f64,
    /// Its standard error, from the samples.
    pub saved_error: f64,
    /// Clients of the trace, with a cache for each of their disks.
    pub clients: u32,
    /// A sample was of one in so many places.
    pub one_in: u32,
}

/// A request of a sample.
#[derive(Debug, Clone, Copy)]
struct SampledRequest {
    party: u32,
    /// Where its references end.
    end: u32,
    bytes: u32,
    read: bool,
    /// The part of the whole request that it counts as: above 0, and 1 when it was not cut.
    share: f64,
}

/// A sample in blocks of one size.
struct SampledLoad {
    stream: ReferenceStream,
    parts: Vec<SampledRequest>,
    /// By id, whether it is of a disk that was made from an image, and was written: then it is read from the disk's own
    /// file, which no cache of the server's stands before. Empty where such blocks are cached, too.
    private: Vec<bool>,
}

impl SampledLoad {
    fn is_private(&self, id: u64) -> bool {
        self.private.get(id as usize).copied().unwrap_or(false)
    }
}

/// What was counted of a sample.
#[derive(Default, Clone, Copy)]
struct Count {
    reads: f64,
    trips: f64,
    trip_bytes: u64,
    fetches: f64,
    fetch_bytes: u64,
}

/// Requests of samples.
struct Samples {
    /// Each with the part of a whole one that it counts as.
    requests: Vec<Vec<(Request, f64)>>,
    parties: HashMap<(u32, u32), u32>,
    /// The header of the whole trace.
    header: Header,
}

impl Budget {
    /// How to spend it under the load of a trace. Takes about 50 bytes for each request of the samples,
    /// and then what the miniature caches take.
    ///
    /// # Errors
    /// Any error from the trace; [`Invalid`](block::ErrorKind::Invalid) for sizes that cannot be simulated,
    /// and when nothing is read.
    pub fn spend(&self, source: &mut dyn Source) -> Result<Spending> {
        let largest = self.blocks.iter().copied().max().unwrap_or(0);
        let first = self.blocks.first().copied().unwrap_or(0);
        if first == 0 || self.memory / u64::from(largest) < 2 || self.shares.is_empty() {
            return Err(Error::invalid(
                "nothing to choose from: give sizes of blocks of which the memory holds two or more",
            ));
        }
        let blocks = u32::try_from(self.memory / u64::from(largest)).unwrap_or(u32::MAX);
        let one_in = self.one_in.min(blocks / FEWEST_OF_ALL).max(1);
        let samples = self.samples.clamp(1, one_in);
        let sampled = Samples::read(source, largest, one_in, samples)?;
        let clients = sampled.parties.len() as u32;
        let mut plans: Vec<SpendingPlan> = Vec::new();
        let mut plain = None;
        for block in &self.blocks {
            let loads = self.loads(&sampled, *block)?;
            for share in &self.shares {
                let Some(room) = self.room(*block, *share, clients, one_in) else { continue };
                let first: Vec<PolicyKind> =
                    FIRST.iter().filter_map(|name| name.parse().ok()).collect();
                let tried = self.try_all(&loads, room, &first, clients);
                if plain.is_none() && room.client == 0 {
                    plain = tried.iter().find(|plan| plan.policy == PolicyKind::Lru).cloned();
                }
                plans.extend(best(tried));
            }
        }
        let nothing = || Error::invalid("the trace reads nothing, so that memory cannot help it");
        let leader = best(plans.clone()).filter(|plan| plan.seconds > 0.0).ok_or_else(nothing)?;
        let plain = plain.unwrap_or_else(|| leader.clone());
        let loads = self.loads(&sampled, leader.block)?;
        let room = PlanCaches::of(&leader, one_in);
        let mut policies = self.try_all(&loads, room, &candidates(), clients);
        policies.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
        let best = policies.first().cloned().unwrap_or(leader);
        let saved: Vec<f64> = (best.by_sample.iter().zip(&plain.by_sample))
            .map(|(best, plain)| if *plain > 0.0 { 1.0 - best / plain } else { 0.0 })
            .collect();
        let (_, saved_error) = mean(&saved);
        let saved = 1.0 - best.seconds / plain.seconds;
        Ok(Spending { plans, policies, saved, saved_error, best, plain, clients, one_in })
    }
}

/// Caches of a plan, whole and in miniature.
#[derive(Clone, Copy)]
struct PlanCaches {
    block: u32,
    client: u64,
    server: u64,
    one_in: u32,
}

impl PlanCaches {
    fn of(plan: &SpendingPlan, one_in: u32) -> Self {
        Self { block: plan.block, client: plan.client, server: plan.server, one_in }
    }

    fn small(self, bytes: u64) -> u32 {
        u32::try_from(bytes / u64::from(self.block) / u64::from(self.one_in)).unwrap_or(u32::MAX)
    }
}

impl Budget {
    /// The caches of a share; `None` when they are too small to be simulated.
    fn room(&self, block: u32, share: f64, clients: u32, one_in: u32) -> Option<PlanCaches> {
        let each = (self.memory as f64 * share / f64::from(clients.max(1))) as u64;
        let each = each / u64::from(block) * u64::from(block);
        let server = self.memory.saturating_sub(each * u64::from(clients));
        let room = PlanCaches { block, client: each, server, one_in };
        let enough = share <= 0.0 || u64::from(room.small(each)) >= FEWEST_OF_CLIENT;
        (enough && room.small(server) > 0).then_some(room)
    }

    fn loads(&self, samples: &Samples, block: u32) -> Result<Vec<SampledLoad>> {
        let options = ReferenceOptions {
            block,
            chunks: None,
            per: None,
            writes: true,
            client: None,
            one_in: 1,
            ..self.options.clone()
        };
        let mut bases = Bases::default();
        bases.learn(&samples.header.disks);
        let load = |requests: &Vec<(Request, f64)>| {
            let mut builder = Builder::new(&options)?;
            builder.learn(&samples.header);
            let mut parts = Vec::new();
            for (request, share) in requests {
                builder.push(request)?;
                let party = samples.parties.get(&(request.client, request.disk));
                parts.push(SampledRequest {
                    party: party.copied().unwrap_or(0),
                    end: u32::try_from(builder.len()).unwrap_or(u32::MAX),
                    bytes: request.length,
                    read: request.op == Op::Read,
                    share: *share,
                });
            }
            let stream = builder.finish();
            let private = self.private(&stream, requests, &parts, &bases);
            Ok(SampledLoad { stream, parts, private })
        };
        samples.requests.iter().map(load).collect()
    }

    /// [`SampledLoad::private`] of a stream that these requests became.
    fn private(
        &self,
        stream: &ReferenceStream,
        requests: &[(Request, f64)],
        parts: &[SampledRequest],
        bases: &Bases,
    ) -> Vec<bool> {
        if self.options.writes || self.options.sharing != Sharing::Base || !bases.are_known() {
            return Vec::new();
        }
        let mut private = vec![false; stream.blocks() as usize];
        let mut from = 0;
        for ((request, _), part) in requests.iter().zip(parts) {
            for reference in &stream.packed()[from..part.end as usize] {
                let (id, written) = ReferenceStream::unpack(*reference);
                private[id as usize] |= written && bases.of(request.disk).is_some();
            }
            from = part.end as usize;
        }
        private
    }

    /// What each of these policies makes of a share.
    fn try_all(
        &self,
        loads: &[SampledLoad],
        room: PlanCaches,
        all: &[PolicyKind],
        clients: u32,
    ) -> Vec<SpendingPlan> {
        let of = |policy: &PolicyKind| {
            let counts: Vec<Count> =
                loads.iter().map(|load| self.count(load, room, *policy, clients)).collect();
            let mut sum = Count::default();
            let mut by_sample = Vec::new();
            for count in &counts {
                by_sample.push(self.seconds(count));
                sum.reads += count.reads;
                sum.trips += count.trips;
                sum.trip_bytes += count.trip_bytes;
                sum.fetches += count.fetches;
                sum.fetch_bytes += count.fetch_bytes;
            }
            let ratio = |part: f64, all: f64| if all > 0.0 { 1.0 - part / all } else { 1.0 };
            SpendingPlan {
                block: room.block,
                client: room.client,
                server: room.server,
                policy: *policy,
                client_hit_ratio: ratio(sum.trips, sum.reads),
                server_hit_ratio: ratio(sum.fetches, sum.trips),
                seconds: self.seconds(&sum),
                error: mean(&by_sample).1,
                by_sample,
            }
        };
        all.iter().map(of).collect()
    }

    fn seconds(&self, count: &Count) -> f64 {
        let costs = self.costs;
        let time = count.trips * costs.trip
            + count.trip_bytes as f64 / costs.trip_rate
            + count.fetches * costs.fetch
            + count.fetch_bytes as f64 / costs.fetch_rate;
        if count.reads > 0.0 { time / count.reads } else { 0.0 }
    }

    /// Both levels of caches on a sample.
    fn count(
        &self,
        load: &SampledLoad,
        room: PlanCaches,
        policy: PolicyKind,
        clients: u32,
    ) -> Count {
        let block = u64::from(room.block);
        let small = room.small(room.client);
        let mut own: Vec<CachingClient> = match small {
            0 => Vec::new(),
            _ => (0..clients).map(|_| CachingClient::new(PolicyKind::Lru, small)).collect(),
        };
        let mut server = CachingClient::new(policy, room.small(room.server));
        let mut count = Count::default();
        let mut from = 0;
        for part in &load.parts {
            let (mut lacks, mut fetched) = (0, 0);
            for reference in &load.stream.packed()[from..part.end as usize] {
                let id = u64::from(ReferenceStream::unpack(*reference).0);
                let own = own.get_mut(part.party as usize);
                let hit = own.is_some_and(|own| own.access(id).unwrap_or(false));
                if part.read && hit {
                    continue;
                }
                lacks += 1;
                if (part.read || self.options.writes) && !load.is_private(id) {
                    fetched += u64::from(!server.access(id).unwrap_or(false));
                }
            }
            from = part.end as usize;
            if part.read {
                let if_any = |blocks: u64| if blocks > 0 { part.share } else { 0.0 };
                count.reads += part.share;
                count.trips += if_any(lacks);
                count.trip_bytes += if small == 0 { u64::from(part.bytes) } else { lacks * block };
                count.fetches += if_any(fetched);
                count.fetch_bytes += fetched * block;
            }
        }
        count
    }
}

impl Samples {
    /// Reads a trace, and keeps what lies in the places of the samples.
    fn read(source: &mut dyn Source, stretch: u32, one_in: u32, samples: u32) -> Result<Self> {
        let mut sampled = Self {
            requests: vec![Vec::new(); samples as usize],
            parties: HashMap::new(),
            header: Header::default(),
        };
        let stretch = u64::from(stretch);
        let mut batch = Vec::new();
        while source.read(&mut batch)? {
            let touching = |r: &&Request| r.length > 0 && !matches!(r.op, Op::Flush | Op::Trim);
            for request in batch.iter().filter(touching) {
                let next = sampled.parties.len() as u32;
                sampled.parties.entry((request.client, request.disk)).or_insert(next);
                if sampled.parties.len() > MOST_PARTIES {
                    return Err(Error::invalid(format!(
                        "the trace has more than {MOST_PARTIES} pairs of a client and a disk; cut it \
                         into parts"
                    )));
                }
                if one_in == 1 {
                    sampled.requests.iter_mut().for_each(|kept| kept.push((*request, 1.0)));
                    continue;
                }
                let places = request.offset / stretch..=(request.end() - 1) / stretch;
                let share = 1.0 / (places.end() - places.start() + 1) as f64;
                for place in places {
                    // The upper bits of a product are a fair die.
                    let class = ((mix(place ^ 0x00b1_0c5a) >> 32) * u64::from(one_in)) >> 32;
                    if let Some(kept) = sampled.requests.get_mut(class as usize) {
                        let offset = request.offset.max(place * stretch);
                        let end =
                            request.end().min(place.saturating_add(1).saturating_mul(stretch));
                        let length = (end - offset) as u32;
                        kept.push((Request { offset, length, ..*request }, share));
                    }
                }
            }
        }
        sampled.header = source.header().clone();
        Ok(sampled)
    }
}

fn best(plans: Vec<SpendingPlan>) -> Option<SpendingPlan> {
    plans.into_iter().min_by(|a, b| a.seconds.total_cmp(&b.seconds))
}
