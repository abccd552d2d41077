//! A server under the load of a trace, event by event: where arithmetic ends.
//!
//! [`model`] solves a server exactly as long as clients know nothing of each other. Clients that boot from
//! one image do: one load serves all who wait for it, what one has read the others find, and what the
//! piece cache keeps never goes to the store again. Here every client of a trace asks one request
//! after the other, each is served at the centres of a [`Profile`] in turn, and what the block cache
//! has not got is loaded as the server loads it.
//!
//! What is the server's own: the policies of the block cache, the read-ahead ([`ReadAhead`](cache::ReadAhead)),
//! the number of loads under way ([`LoadDepth`](cache::LoadDepth)), one load for all who want a chunk, one
//! request for chunks that lie near each other, and the piece cache's LRU of 128 KiB. Service is first come, first
//! served, and takes as long each time.
//!
//! | module | concept |
//! |---|---|
//! | [`load`] | [`ServerLoad`], what clients ask, in chunks |
//! | `engine` | the events |
//! | `gather` | reads that become one request to the store |
//! | `line` | which chunk is loaded next, and which come with it |
//! | `pieces` | what of the store is kept on the server's disk |
//! | `stations` | centres with their queues |

mod engine;
mod gather;
mod line;
pub mod load;
mod pieces;
mod stations;
#[cfg(test)]
mod tests;

pub use load::ServerLoad;

use block::{ByteSize, Error, Result};
use cache::PolicyKind;
use cache::policy::{Algorithm, Room, Visitor};
use model::Profile;
use serde::Serialize;

/// The most requests that one simulation answers.
const MOST_ANSWERS: u64 = 100_000_000;

/// The bytes of an entry by which the server's cache reckons how many its policy has to expect.
const TYPICAL_ENTRY: u64 = 64 << 10;

/// How a server is configured.
#[derive(Debug, Clone, PartialEq)]
pub struct ServerSetup {
    /// Bytes of the block cache: `cache.size`.
    pub memory: u64,
    /// Its policy: `cache.policy`.
    pub policy: PolicyKind,
    /// Bytes of the piece cache, `pieces.size`; 0 for none, and for a store that needs none.
    pub pieces: u64,
    /// Most bytes that are loaded ahead of a client that reads in order: `serve.read_ahead`.
    pub read_ahead: u64,
    /// Most requests to the store at a time, `serve.loads`; 0 is no limit.
    pub loads: usize,
    /// Whether the image has a boot list, of what the trace's first client reads.
    pub boot_list: bool,
}

/// When a client sends its next request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientPace {
    /// Waits as long after an answer as in the trace.
    Trace,
    /// So many nanoseconds after an answer.
    Pause(u64),
}

/// Who asks, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Crowd {
    /// How many clients; when the trace has fewer, the next ones begin again with its first.
    pub clients: u32,
    /// Whether clients that the trace does not have ask for data of their own.
    pub private: bool,
    /// Nanoseconds from one client's start to the next one's.
    pub stagger: u64,
    /// When they ask.
    pub pace: ClientPace,
    /// Clients begin again until this time, in nanoseconds; `None`: each asks what it has once.
    pub until: Option<u64>,
    /// Answers before this time, in nanoseconds, are not counted.
    pub warm_up: u64,
}

/// What came of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct ServerOutcome {
    /// Answers that were counted.
    pub answers: u64,
    /// Seconds in which they were given.
    pub seconds: f64,
    /// Answers a second.
    pub throughput: f64,
    /// From sending to the answer, seconds on average.
    pub response: f64,
    /// Look-ups in the block cache that hit, of all clients' reads.
    pub hits: u64,
    /// Look-ups that did not; as the server counts them, with read-ahead and boot lists.
    pub misses: u64,
    /// Look-ups that found their chunk on its way for somebody else: among the misses.
    pub shared: u64,
    /// Loads: requests for one or several chunks.
    pub loads: u64,
    /// Bytes that came from the store.
    pub store_bytes: u64,
    /// Requests to the store.
    pub store_loads: u64,
    /// By centre of the profile: the share of the time that each of its servers was busy; for a delay, how
    /// many were in it on average.
    pub utilisation: Vec<f64>,
}

impl ServerOutcome {
    /// Hits per look-up; 1 when nothing was looked up.
    pub fn hit_ratio(&self) -> f64 {
        match self.hits + self.misses {
            0 => 1.0,
            all => self.hits as f64 / all as f64,
        }
    }
}

/// Runs a load on a server that begins with empty caches.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) without clients or requests, for a cache that does not hold one
/// chunk, and when more than 100 million requests would be answered.
pub fn serve(
    profile: &Profile,
    load: &ServerLoad,
    setup: &ServerSetup,
    crowd: &Crowd,
) -> Result<ServerOutcome> {
    profile.check()?;
    if crowd.clients == 0 || load.is_empty() {
        return Err(Error::invalid(
            "no client asks anything: give clients, and a trace with requests",
        ));
    }
    if setup.memory < load.longest_chunk() {
        return Err(Error::invalid(format!(
            "a cache of {} does not hold a chunk of {}: give it more",
            ByteSize(setup.memory),
            ByteSize(load.longest_chunk())
        )));
    }
    // Queues and memories of a policy are parts of what the server's cache tells it to expect.
    let entries = (setup.memory / TYPICAL_ENTRY).clamp(1, 1 << 20) as u32;
    let copies = if crowd.private { crowd.clients.div_ceil(load.clients()) } else { 1 };
    let ids = load.distinct().saturating_mul(copies);
    setup.policy.visit(Room::simulated(entries, ids), ServeVisitor { profile, load, setup, crowd })
}

struct ServeVisitor<'a> {
    profile: &'a Profile,
    load: &'a ServerLoad,
    setup: &'a ServerSetup,
    crowd: &'a Crowd,
}

impl Visitor for ServeVisitor<'_> {
    type Output = Result<ServerOutcome>;

    fn visit<A: Algorithm + 'static>(self, cache: A) -> Self::Output {
        engine::ServerSimulation::new(self.profile, self.load, self.setup, self.crowd, cache)?.run()
    }
}
