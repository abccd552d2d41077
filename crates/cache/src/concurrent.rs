//! The concurrent cache.

use crate::flight::{FlightOutcome, Flights, LoadCaller};
use crate::forecast::{Forecast, Ghosts, Sampler};
use crate::key::{Key, fingerprint};
use crate::policy::PolicyKind;
use crate::shard::Shard;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::future::Future;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The least capacity of a shard, in bytes: about four thousand chunks. Policies lose sight in
/// smaller ones, and a smaller cache is one shard.
const SHARD: u64 = 256 << 20;

const MOST_SHARDS: u64 = 64;

/// Locks over the loads that are under way.
const FLIGHTS: usize = 16;

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
pub struct CacheStats {
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
/// A hit takes no lock and allocates nothing. The policy learns of it when something next comes or
/// goes, or when many such hits have gathered.
pub struct Cache {
    /// All shards that there can be; the ones in use come first.
    pub(crate) shards: Box<[Shard]>,
    pub(crate) layout: CacheLayout,
    flights: Box<[Mutex<Flights>]>,
    seed: u64,
    pub(crate) capacity: AtomicU64,
    pub(crate) policy: Mutex<PolicyKind>,
    /// Held while settings change.
    pub(crate) changing: Mutex<()>,
    misses: AtomicU64,
    loads: AtomicU64,
    sampler: Sampler,
    ghosts: Mutex<Option<Ghosts>>,
    pub(crate) forecast: Mutex<Option<Forecast>>,
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

/// Which shard a key belongs to: among how many, and among how many it was before, while entries
/// move from there.
pub(crate) struct CacheLayout(AtomicU32);

impl CacheLayout {
    /// A key belongs to one of `shards`, a power of two, and may still be where it was among
    /// `before`.
    pub(crate) fn set(&self, shards: usize, before: usize) {
        self.0.store(Self::pack(shards, before), Ordering::Release);
    }

    fn pack(shards: usize, before: usize) -> u32 {
        (shards as u32 - 1) | ((before as u32 - 1) << 16)
    }

    /// Where a key belongs, and where it belonged.
    #[inline]
    fn places(&self, fingerprint: u64) -> (usize, usize) {
        let masks = self.0.load(Ordering::Acquire);
        let bits = (fingerprint >> 32) as u32;
        ((bits & masks & 0xffff) as usize, (bits & (masks >> 16)) as usize)
    }
}

/// Whether a key belongs to the shard of this number among `shards`.
pub(crate) fn belongs(fingerprint: u64, number: usize, shards: usize) -> bool {
    (fingerprint >> 32) as usize & (shards - 1) == number
}

/// How many shards a cache has.
pub(crate) fn shards(capacity: u64) -> usize {
    1 << (capacity / SHARD).clamp(1, MOST_SHARDS).ilog2()
}

impl Cache {
    /// An empty cache.
    pub fn new(config: Config) -> Self {
        let Config { capacity, policy, seed } = config;
        let count = shards(capacity);
        let share = |number| if number < count { capacity / count as u64 } else { 0 };
        Self {
            shards: (0..MOST_SHARDS as usize)
                .map(|number| Shard::new(share(number), policy, seed))
                .collect(),
            layout: CacheLayout(AtomicU32::new(CacheLayout::pack(count, count))),
            flights: std::iter::repeat_with(Mutex::default).take(FLIGHTS).collect(),
            seed,
            capacity: AtomicU64::new(capacity),
            policy: Mutex::new(policy),
            changing: Mutex::new(()),
            misses: AtomicU64::new(0),
            loads: AtomicU64::new(0),
            sampler: Sampler::default(),
            ghosts: Mutex::new(None),
            forecast: Mutex::new(None),
        }
    }

    /// The value of `key`, if it is held. Counts a hit; a caller that finds nothing goes on to
    /// [`get_or_load`](Self::get_or_load), which counts the miss.
    ///
    /// Never waits; what is there may be missed while the cache changes.
    #[inline]
    pub fn get(&self, key: &Key) -> Option<Bytes> {
        self.find(key, fingerprint(self.seed, key))
    }

    #[inline]
    fn find(&self, key: &Key, fingerprint: u64) -> Option<Bytes> {
        let (now, before) = self.layout.places(fingerprint);
        let found = match self.shards[now].get(key, fingerprint) {
            None if before != now => self.shards[before].get(key, fingerprint),
            found => found,
        };
        if let Some(value) = &found {
            self.sampler.note(fingerprint, value.len());
        }
        found
    }

    /// Whether `key` is held. Not an access: it counts nothing and changes no order.
    pub fn contains(&self, key: &Key) -> bool {
        let fingerprint = fingerprint(self.seed, key);
        let (now, before) = self.layout.places(fingerprint);
        self.shards[now].contains(key, fingerprint)
            || (before != now && self.shards[before].contains(key, fingerprint))
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
        let fingerprint = fingerprint(self.seed, key);
        if let Some(value) = self.find(key, fingerprint) {
            return Ok(value);
        }
        let flights = &self.flights[fingerprint as usize % FLIGHTS];
        let caller = {
            let mut boarding = flights.lock();
            if let Some(value) = self.find_surely(key, fingerprint) {
                return Ok(value);
            }
            LoadCaller::join(flights, &mut boarding, key)
        };
        self.misses.fetch_add(1, Ordering::Relaxed);
        let mut load = Some(load);
        let mut own_error = None;
        let outcome = caller
            .flight()
            .get_or_init(async || {
                let outcome = match self.run(load.take()).await {
                    Ok(value) => FlightOutcome::Loaded(value),
                    Err(error) => {
                        let shared = FlightOutcome::Failed(error.kind(), error.message().into());
                        own_error = Some(error);
                        shared
                    }
                };
                if let FlightOutcome::Loaded(value) = &outcome {
                    self.insert(key, fingerprint, value.clone());
                }
                flights.lock().land(key);
                outcome
            })
            .await
            .to_result();
        let value = match (own_error, outcome) {
            (Some(error), _) => return Err(error), // with its sources
            (None, Err(error)) if is_of_the_place(&error) && load.is_some() => {
                let value = self.run(load).await?;
                self.insert(key, fingerprint, value.clone());
                value
            }
            (None, outcome) => outcome?,
        };
        self.sampler.note(fingerprint, value.len());
        Ok(value)
    }

    async fn run(&self, load: Option<impl Future<Output = Result<Bytes>>>) -> Result<Bytes> {
        let load = load.ok_or_else(|| Error::internal("a load was run twice"))?;
        self.loads.fetch_add(1, Ordering::Relaxed);
        load.await
    }

    /// Finds an entry as [`find`](Self::find) does, but misses nothing that is there.
    fn find_surely(&self, key: &Key, fingerprint: u64) -> Option<Bytes> {
        let (now, before) = self.layout.places(fingerprint);
        let look = |number: usize| {
            let shard = &self.shards[number];
            let _unchanged = shard.lock();
            shard.get(key, fingerprint)
        };
        let found = look(now).or_else(|| if before == now { None } else { look(before) })?;
        self.sampler.note(fingerprint, found.len());
        Some(found)
    }

    /// Takes a value in.
    pub(crate) fn insert(&self, key: &Key, fingerprint: u64, value: Bytes) {
        loop {
            let (number, _) = self.layout.places(fingerprint);
            let shard = &self.shards[number];
            let mut state = shard.lock();
            // Who moves entries locks each shard after it changed the layout: either what comes in
            // now is moved with the others, or this is seen.
            if self.layout.places(fingerprint).0 == number {
                return shard.insert(&mut state, key, fingerprint, value);
            }
        }
    }

    /// What happened so far, and what is held now. The numbers are read one after the other, while
    /// others go on.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            misses: self.misses.load(Ordering::Relaxed),
            loads: self.loads.load(Ordering::Relaxed),
            capacity: self.capacity(),
            ..CacheStats::default()
        };
        for shard in self.shards.iter().map(Shard::counters) {
            stats.hits += shard.hits;
            stats.entries += shard.entries;
            stats.bytes += shard.bytes;
            stats.evictions += shard.evictions;
        }
        stats
    }

    /// Looks at the accesses since the last time, for [`forecast`](Self::forecast). To be called
    /// every second or so, away from the threads that serve requests: it takes up to some
    /// milliseconds. Nothing is kept of accesses before the first call.
    pub fn follow(&self) {
        let settings = || (self.capacity(), self.policy());
        let (capacity, policy) = settings();
        let mut ghosts = self.ghosts.lock();
        match ghosts.as_mut().filter(|ghosts| ghosts.are_of(capacity, policy)) {
            Some(ghosts) => ghosts.catch_up(&self.sampler),
            None => ghosts.insert(Ghosts::new(capacity, policy)).start(&self.sampler),
        }
        let mut forecast = self.forecast.lock();
        // Nothing of settings that have changed meanwhile.
        let still = (capacity, policy) == settings();
        *forecast = ghosts.as_ref().filter(|_| still).and_then(Ghosts::forecast);
    }

    /// What other sizes and policies would have given lately, up to the last call of
    /// [`follow`](Self::follow); `None` before there were enough accesses.
    pub fn forecast(&self) -> Option<Forecast> {
        self.forecast.lock().clone()
    }

    /// The bytes of values that it may hold.
    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// The policy in use.
    pub fn policy(&self) -> PolicyKind {
        *self.policy.lock()
    }
}

/// Whether an error says something of the place that a load looked at only.
fn is_of_the_place(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}
