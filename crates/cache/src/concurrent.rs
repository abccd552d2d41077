//! The concurrent cache.

use crate::flight::{Flight, Outcome};
use crate::policy::PolicyKind;
use crate::shard::Shard;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What an entry is found by: the id of a chunk, which is a keyed hash.
pub type Key = [u8; 32];

/// The least capacity of a shard, in bytes: about a thousand chunks. Policies lose sight in smaller
/// ones, and a smaller cache is one shard.
const SHARD: u64 = 64 << 20;

const MOST_SHARDS: u64 = 64;

/// How a cache is made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Config {
    /// The bytes of values it may hold; 0 keeps nothing, and still shares simultaneous loads.
    pub capacity: u64,
    /// What leaves when it is full.
    pub policy: PolicyKind,
    /// Spreads keys over shards in a way that nobody outside can foresee: a random number.
    pub seed: u64,
}

/// What happened since the cache was made, and what it holds now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Stats {
    /// Accesses that found their value.
    pub hits: u64,
    /// Accesses that did not, those included that then shared another caller's load.
    pub misses: u64,
    /// Loads that were started.
    pub loads: u64,
    /// Entries that left to make room.
    pub evictions: u64,
    /// Entries held now.
    pub entries: u64,
    /// Bytes of values held now; a value counts as at least 512 bytes.
    pub bytes: u64,
    /// The bytes of values that it may hold.
    pub capacity: u64,
}

/// A cache of byte strings by key, shared by any number of tasks.
///
/// It holds at most its capacity in bytes of values. A value should own its memory: a small slice
/// of a large buffer keeps the whole buffer, and only the slice is counted.
///
/// A hit costs a short lock of one shard, and no allocation.
pub struct Cache {
    shards: Box<[Mutex<Shard>]>,
    seed: u64,
    capacity: u64,
    hits: AtomicU64,
    misses: AtomicU64,
    loads: AtomicU64,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache")
            .field("shards", &self.shards.len())
            .field("stats", &self.stats())
            .finish()
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(config: Config) -> Self {
        let wanted = (config.capacity / SHARD).clamp(1, MOST_SHARDS);
        let shards = 1 << wanted.ilog2();
        Self {
            shards: (0..shards)
                .map(|_| Mutex::new(Shard::new(config.capacity / shards, config.policy)))
                .collect(),
            seed: config.seed,
            capacity: config.capacity,
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            loads: AtomicU64::new(0),
        }
    }

    /// The value of `key`, if it is held. Counts a hit; a caller that finds nothing goes on to
    /// [`get_or_load`](Self::get_or_load), which counts the miss.
    pub fn get(&self, key: &Key) -> Option<Bytes> {
        let (shard, fingerprint) = self.place(key);
        let value = shard.lock().get(key, fingerprint)?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(value)
    }

    /// Whether `key` is held. Not an access: it counts nothing and changes no order.
    pub fn contains(&self, key: &Key) -> bool {
        let (shard, fingerprint) = self.place(key);
        shard.lock().contains(key, fingerprint)
    }

    /// The value of `key`: held, or loaded by `load` and then held.
    ///
    /// Any number of callers that miss the same key at the same time share one load. When the caller
    /// that runs it is cancelled, another one runs its own `load` instead. When it finds damage or
    /// nothing, the others run their own too: they may look for the value at another place.
    ///
    /// # Errors
    /// That of the load, told to every caller that shared it; it is not remembered.
    pub async fn get_or_load<F>(&self, key: &Key, load: F) -> Result<Bytes>
    where
        F: Future<Output = Result<Bytes>> + Send,
    {
        let (shard, fingerprint) = self.place(key);
        let flight = {
            let mut shard = shard.lock();
            if let Some(value) = shard.get(key, fingerprint) {
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Ok(value);
            }
            shard.flights.join(key)
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
        let caller = Caller { shard, key, flight };
        let mut load = Some(load);
        let mut own_error = None;
        let outcome = caller
            .flight
            .get_or_init(async || {
                let outcome = match self.run(load.take()).await {
                    Ok(value) => Outcome::Loaded(value),
                    Err(error) => {
                        let shared = Outcome::Failed(error.kind(), error.message().into());
                        own_error = Some(error);
                        shared
                    }
                };
                let mut shard = shard.lock();
                if let Outcome::Loaded(value) = &outcome {
                    shard.insert(key, fingerprint, value.clone());
                }
                shard.flights.land(key);
                outcome
            })
            .await
            .to_result();
        match (own_error, outcome) {
            (Some(error), _) => Err(error), // with its sources
            (None, Err(error)) if is_of_the_place(&error) && load.is_some() => {
                let value = self.run(load).await?;
                shard.lock().insert(key, fingerprint, value.clone());
                Ok(value)
            }
            (None, outcome) => outcome,
        }
    }

    async fn run(&self, load: Option<impl Future<Output = Result<Bytes>>>) -> Result<Bytes> {
        let load = load.ok_or_else(|| Error::internal("a load was run twice"))?;
        self.loads.fetch_add(1, Ordering::Relaxed);
        load.await
    }

    /// What happened so far, and what is held now. The numbers are read one after the other, while
    /// others go on.
    pub fn stats(&self) -> Stats {
        let mut stats = Stats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            loads: self.loads.load(Ordering::Relaxed),
            capacity: self.capacity,
            ..Stats::default()
        };
        for shard in &self.shards {
            let shard = shard.lock();
            stats.entries += shard.entries();
            stats.bytes += shard.bytes();
            stats.evictions += shard.evictions();
        }
        stats
    }

    /// The shard of a key, and the key's fingerprint.
    fn place(&self, key: &Key) -> (&Mutex<Shard>, u64) {
        let fingerprint = fingerprint(self.seed, key);
        // Tables use the low and the highest bits: take others.
        let shard = (fingerprint >> 32) as usize & (self.shards.len() - 1);
        (&self.shards[shard], fingerprint)
    }
}

/// Whether an error says something of the place that a load looked at only.
fn is_of_the_place(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// Keys are keyed hashes, so their bits are good; the seed makes the result differ from cache to
/// cache, and the multiplications spread every bit of the key.
fn fingerprint(seed: u64, key: &Key) -> u64 {
    let (words, _) = key.as_chunks::<8>();
    words.iter().fold(seed, |state, word| {
        let mixed = u128::from(state ^ u64::from_le_bytes(*word)) * 0x9e37_79b9_7f4a_7c15;
        (mixed >> 64) as u64 ^ mixed as u64
    })
}

/// A caller of a load, from joining to leaving, also when it is cancelled.
struct Caller<'a> {
    shard: &'a Mutex<Shard>,
    key: &'a Key,
    flight: Arc<Flight>,
}

impl Drop for Caller<'_> {
    fn drop(&mut self) {
        self.shard.lock().flights.leave(self.key, &self.flight);
    }
}
