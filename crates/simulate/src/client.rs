//! The cache of one client: what it answers never reaches the server.

use crate::table::{Table, mix};
use block::Result;
use cache::PolicyKind;
use cache::policy::{Algorithm, Room, Visitor};

/// A write-through cache of one client, which also takes in what is written.
pub(crate) struct Client {
    ids: Table,
    cache: Box<dyn Access>,
}

impl Client {
    pub(crate) fn new(policy: PolicyKind, blocks: u32) -> Self {
        Self { ids: Table::new(), cache: policy.visit(Room::simulated(blocks, 0), Boxed(blocks)) }
    }

    /// An access; whether it was a hit.
    pub(crate) fn access(&mut self, key: u64) -> Result<bool> {
        let id = self.ids.id(key)?;
        Ok(self.cache.access(id))
    }
}

trait Access {
    fn access(&mut self, id: u32) -> bool;
}

struct Boxed(u32);

impl Visitor for Boxed {
    type Output = Box<dyn Access>;
    fn visit<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
        Box::new(Cache { algorithm, blocks: self.0 })
    }
}

struct Cache<A> {
    algorithm: A,
    blocks: u32,
}

impl<A: Algorithm> Access for Cache<A> {
    fn access(&mut self, id: u32) -> bool {
        access(&mut self.algorithm, self.blocks as usize, id)
    }
}

/// An access of a cache of `blocks` blocks, at least one; whether it was a hit.
#[inline]
pub(crate) fn access<A: Algorithm>(algorithm: &mut A, blocks: usize, id: u32) -> bool {
    if algorithm.holds(id) {
        algorithm.hit(id);
        return true;
    }
    algorithm.miss(id);
    if algorithm.len() >= blocks {
        algorithm.evict();
    }
    algorithm.insert(id, mix(u64::from(id)));
    false
}
