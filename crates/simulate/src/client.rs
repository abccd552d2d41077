//! The caches of the clients: what they answer never reaches the server.

use crate::table::{IdTable, mix};
use block::{Error, Result};
use cache::PolicyKind;
use cache::policy::{Algorithm, Room, Visitor};

/// What all clients' caches may take together, in units: 4 GiB.
pub(crate) const ROOM: u64 = (4 << 30) / UNIT;
/// About the bytes that a cache takes for a block that it knows.
const UNIT: u64 = 48;

/// What the cache of a client takes before it knows a block.
const EMPTY: u64 = 64;
/// What policies of many queues take in addition.
const QUEUES: u64 = 512;
/// What lists by number of uses take in addition.
const COUNTS: u64 = 128;

/// Write-through caches of clients, which also take in what is written.
pub(crate) struct Clients {
    /// Policy and blocks of each, when clients have caches.
    like: Option<(PolicyKind, u32)>,
    all: Vec<CachingClient>,
    /// What is left of the room.
    left: u64,
}

/// One of them.
pub(crate) struct CachingClient {
    ids: IdTable,
    cache: Box<dyn ClientCache>,
    /// Units that are spent on what its policy keeps beside its lists.
    beside: u64,
}

impl CachingClient {
    pub(crate) fn new(policy: PolicyKind, blocks: u32) -> Self {
        let cache = policy.visit(Room::simulated(blocks, 0), Boxed(blocks));
        Self { ids: IdTable::new(), cache, beside: 0 }
    }

    /// Units that it takes more than when this was asked last, blocks not counted.
    fn growth(&mut self) -> u64 {
        let now = self.cache.beside() as u64 / UNIT;
        now.saturating_sub(std::mem::replace(&mut self.beside, now))
    }

    /// An access; whether it was a hit.
    pub(crate) fn access(&mut self, key: u64) -> Result<bool> {
        let id = self.ids.id(key)?;
        Ok(self.cache.access(id))
    }
}

impl Clients {
    /// No clients yet. Together they may take `room` units.
    pub(crate) fn new(like: Option<(PolicyKind, u32)>, room: u64) -> Self {
        Self { like, all: Vec::new(), left: room }
    }

    /// Makes clients up to this number, which is one more than the last at most.
    pub(crate) fn reach(&mut self, number: u32) -> Result<()> {
        let Some((policy, blocks)) = self.like else { return Ok(()) };
        if (number as usize) < self.all.len() {
            return Ok(());
        }
        self.spend(match policy {
            PolicyKind::Fmpq(_) | PolicyKind::Mq(_) => EMPTY + QUEUES,
            PolicyKind::Fbr(_) => EMPTY + COUNTS,
            // Its sketch has 8 to 16 bytes for each entry of a full cache.
            PolicyKind::WTinyLfu(_) => EMPTY + u64::from(blocks) / 2,
            _ => EMPTY,
        })?;
        self.all.push(CachingClient::new(policy, blocks));
        Ok(())
    }

    /// An access of a client; whether it was a hit. Always a miss where clients have no caches.
    pub(crate) fn access(&mut self, number: u32, key: u64) -> Result<bool> {
        let Some(client) = self.all.get_mut(number as usize) else { return Ok(false) };
        let known = client.ids.len();
        let hit = client.access(key)?;
        let fresh = u64::from(client.ids.len() - known);
        // LFU counts uses, MQ notes the last one of each block.
        let grows = matches!(self.like, Some((PolicyKind::Lfu | PolicyKind::Mq(_), _)));
        let units = fresh + if grows { client.growth() } else { 0 };
        if units > 0 {
            self.spend(units)?;
        }
        Ok(hit)
    }

    fn spend(&mut self, units: u64) -> Result<()> {
        self.left = self.left.checked_sub(units).ok_or_else(|| {
            Error::invalid(format!(
                "the caches of {} clients and what they know of their blocks do not fit into 4 GiB; take \
                 a sample of the trace (sojourn trace sample), fewer clients (sojourn trace cut \
                 --client), or larger blocks",
                self.all.len()
            ))
        })?;
        Ok(())
    }
}

trait ClientCache {
    fn access(&mut self, id: u32) -> bool;
    /// Does what [`Algorithm::beside`] does.
    fn beside(&self) -> usize;
}

struct Boxed(u32);

impl Visitor for Boxed {
    type Output = Box<dyn ClientCache>;
    fn visit<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        Box::new(AlgorithmCache { algorithm, blocks: self.0 })
    }
}

struct AlgorithmCache<A> {
    algorithm: A,
    blocks: u32,
}

impl<A: Algorithm> ClientCache for AlgorithmCache<A> {
    fn access(&mut self, id: u32) -> bool {
        access(&mut self.algorithm, self.blocks as usize, id)
    }

    fn beside(&self) -> usize {
        self.algorithm.beside()
    }
}

/// An access of a cache of `blocks` blocks, at least one; whether it was a hit.
#[inline(always)]
pub(crate) fn access<A: Algorithm>(algorithm: &mut A, blocks: usize, id: u32) -> bool {
    if algorithm.holds(id) {
        algorithm.hit(id);
        return true;
    }
    algorithm.miss(id);
    if algorithm.len() >= blocks {
        algorithm.evict();
    }
    algorithm.insert(id, fingerprint(id));
    false
}

/// The fingerprint of a block.
#[inline(always)]
pub(crate) const fn fingerprint(id: u32) -> u64 {
    mix(id as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_that_do_not_fit_are_an_error_and_not_so_much_memory() {
        let small = Some((PolicyKind::Lru, 4));
        let mut clients = Clients::new(small, 3 * EMPTY + 10);
        (0..3).for_each(|number| clients.reach(number).unwrap());
        (0..10).for_each(|key| assert!(!clients.access(key % 3, key.into()).unwrap()));
        assert!(clients.access(0, 9).unwrap(), "what is known takes nothing");
        let error = clients.access(0, 10).unwrap_err();
        assert!(error.message().contains("of 3 clients"), "{error}");
        assert!(clients.reach(3).is_err());
        // As many clients as there can be are no error by themselves.
        const { assert!(EMPTY << 19 < ROOM) };
        let mut clients =
            Clients::new(Some((PolicyKind::WTinyLfu(Default::default()), 1 << 30)), ROOM);
        assert!(clients.reach(0).is_err());
        assert!(!Clients::new(None, 0).access(0, 7).unwrap());
    }

    /// Blocks or uses until so many units are spent; at most a million.
    fn until_full(policy: PolicyKind, room: u64, key: impl Fn(u64) -> u64) -> u64 {
        let mut clients = Clients::new(Some((policy, 8)), room);
        clients.reach(0).unwrap();
        (0..1_000_000).find(|use_| clients.access(0, key(*use_)).is_err()).unwrap_or(1_000_000)
    }

    #[test]
    fn what_a_policy_keeps_beside_its_lists_counts() {
        let room = EMPTY + QUEUES + 2000;
        let mq = PolicyKind::Mq(Default::default());
        let (lru, mq) = (until_full(PolicyKind::Lru, room, |n| n), until_full(mq, room, |n| n));
        assert!(mq < lru - QUEUES - 2000 / 24, "4 to 8 bytes of each block: {mq} of {lru}");
        // One block, of which LFU counts the uses: 4 to 8 bytes for each count.
        let uses = until_full(PolicyKind::Lfu, room, |_| 7);
        assert!((10_000..40_000).contains(&uses), "{uses}");
        assert_eq!(until_full(PolicyKind::Lru, room, |_| 7), 1_000_000);
    }
}
