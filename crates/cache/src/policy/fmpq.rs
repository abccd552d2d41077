//! Frequency-based multi-priority queues: for a cache behind other caches, where an entry comes back
//! only after a long distance and recency says little.
//!
//! FMPQ is the server cache of TransCom ("Transparent Computing"); it is the multi-queue algorithm
//! (Y. Zhou, J. F. Philbin, K. Li: "The Multi-Queue Replacement Algorithm for Second Level Buffer
//! Caches", USENIX 2001) with a fixed lifetime:
//!
//! * Queue `k` holds entries with `floor(log2 count) = k`, the last queue all above, each in order
//!   of use.
//! * An entry that is not used for the lifetime, in accesses, moves to the tail of the next lower
//!   queue when it stands at its queue's head. Its count stays.
//! * The head of the lowest queue that is not empty leaves. Its count goes to a history; if it comes
//!   back while that remembers it, it goes on from there.
//!
//! The defaults come from real desktop traces: more than 8 queues change nothing, a lifetime
//! between 3 and 8 times the entries is best (too short is far worse than too long), a history of
//! once or twice the entries is enough, and none at all costs 4 to 12 points of hits.

use super::Policy;
use super::history::History;
use super::list::{Links, List};

/// The parameters of FMPQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Parameters {
    /// The number of queues: 1 (which is LRU) to 32.
    pub queues: usize,
    /// How long an entry stays in a queue without a use, as a multiple of the cache's entries.
    pub lifetime: u64,
    /// The length of the history, as a multiple of the cache's entries; 0 for none.
    pub history: usize,
}

impl Default for Parameters {
    fn default() -> Self {
        Self { queues: 8, lifetime: 4, history: 2 }
    }
}

/// Evicts the least recently used of the least often used entries.
///
/// Lifetime and history follow the number of entries that the cache holds when it is full. A cache
/// whose entries differ in size holds now more, now fewer; the policy goes by what it held when
/// something last had to leave.
#[derive(Debug)]
pub struct Fmpq {
    parameters: Parameters,
    entries: Vec<Entry>,
    links: Links,
    queues: Vec<List>,
    history: History,
    len: usize,
    /// The number of entries of the full cache.
    full: usize,
    /// Accesses so far.
    now: u64,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    fingerprint: u64,
    /// The access after which it has not been used for the lifetime.
    expires: u64,
    count: u32,
    queue: u32,
}

impl Fmpq {
    /// A policy for a cache of about `entries` entries.
    pub fn new(entries: u32, parameters: Parameters) -> Self {
        let full = entries.max(1) as usize;
        Self {
            entries: Vec::with_capacity(full),
            links: Links::new(entries),
            queues: vec![List::EMPTY; parameters.queues.clamp(1, 32)],
            history: History::new(full.saturating_mul(parameters.history)),
            len: 0,
            full,
            now: 0,
            parameters,
        }
    }

    fn expiry(&self) -> u64 {
        self.now.saturating_add(self.parameters.lifetime.saturating_mul(self.full as u64))
    }

    /// Puts `slot`, which is in no queue, where its count says.
    fn enqueue(&mut self, slot: u32, fingerprint: u64, count: u32) {
        let queue = count.max(1).ilog2().min(self.queues.len() as u32 - 1);
        let entry = Entry { fingerprint, expires: self.expiry(), count, queue };
        if slot as usize >= self.entries.len() {
            self.entries.resize(slot as usize + 1, entry);
        }
        self.entries[slot as usize] = entry;
        self.queues[queue as usize].push_tail(&mut self.links, slot);
    }

    fn dequeue(&mut self, slot: u32) -> Entry {
        let entry = self.entries[slot as usize];
        self.queues[entry.queue as usize].remove(&mut self.links, slot);
        entry
    }

    /// Ends an access: heads that were not used for the lifetime go one queue down.
    fn advance(&mut self) {
        self.now += 1;
        let expires = self.expiry();
        for queue in 1..self.queues.len() {
            let Some(slot) = self.queues[queue].head() else { continue };
            if self.entries[slot as usize].expires < self.now {
                self.queues[queue].remove(&mut self.links, slot);
                self.queues[queue - 1].push_tail(&mut self.links, slot);
                let entry = &mut self.entries[slot as usize];
                entry.queue = queue as u32 - 1;
                entry.expires = expires;
            }
        }
    }

    fn drop_entry(&mut self, slot: u32) -> Entry {
        self.len -= 1;
        self.dequeue(slot)
    }
}

impl Policy for Fmpq {
    fn hit(&mut self, slot: u32) {
        let entry = self.dequeue(slot);
        self.enqueue(slot, entry.fingerprint, entry.count.saturating_add(1));
        self.advance();
    }

    fn insert(&mut self, slot: u32, fingerprint: u64) {
        let count = self.history.recall(fingerprint).unwrap_or(0).saturating_add(1);
        self.enqueue(slot, fingerprint, count);
        self.len += 1;
        self.advance();
    }

    fn evict(&mut self) -> Option<u32> {
        let slot = self.queues.iter().find_map(List::head)?;
        self.full = self.len;
        let entry = self.drop_entry(slot);
        let limit = self.full.saturating_mul(self.parameters.history);
        if limit > 0 {
            self.history.remember(entry.fingerprint, entry.count, limit);
        }
        Some(slot)
    }

    fn remove(&mut self, slot: u32) {
        self.drop_entry(slot);
    }

    fn len(&self) -> usize {
        self.len
    }
}
