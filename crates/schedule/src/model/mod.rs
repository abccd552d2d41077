//! Models of disks: how long a request takes, given where the head is and when it begins.
//!
//! | module | device |
//! |---|---|
//! | [`linear`] | rotating: a constant and a term linear in the distance |
//! | [`bins`] | rotating: measured distributions by distance |
//! | [`mechanical`] | rotating: seek curve, rotation, zones |
//! | [`ssd`] | flash: affine in size, parallel servers, write buffer |
//! | [`network`] | a store behind a network: round trip and bandwidth |
//! | [`disk`] | a model with its head and on-board cache: what serves requests |
//!
//! A new model is one file here and one line in [`profile`](crate::profile).

pub mod bins;
pub mod disk;
pub mod linear;
pub mod mechanical;
pub mod network;
pub mod spread;
pub mod ssd;

use crate::{CacheShape, DiskRequest, Nanos, Random};
use std::fmt::Debug;

/// A model of a disk.
pub trait Model: Debug + Send {
    /// How many sectors it has.
    fn sectors(&self) -> u64;

    /// How many requests it works on at the same time.
    fn servers(&self) -> usize {
        1
    }

    /// The cache on board.
    fn cache(&self) -> CacheShape {
        CacheShape::default()
    }

    /// How long a read out of the cache on board takes.
    fn hit(&self, random: &mut Random) -> Nanos {
        let _ = random;
        0
    }

    /// The mean of [`hit`](Self::hit).
    fn expected_hit(&self) -> Nanos {
        0
    }

    /// How long a request that begins at `at` with the head at sector `head` is expected to take,
    /// not out of the cache on board. Changes nothing: schedulers ask it of every request.
    fn expected(&self, at: Nanos, head: u64, request: &DiskRequest) -> Nanos;

    /// How long it does take. Models with state (a write buffer, a link) note the request; calls
    /// come in order of `at`.
    fn access(
        &mut self,
        at: Nanos,
        head: u64,
        request: &DiskRequest,
        random: &mut Random,
    ) -> Nanos {
        let _ = random;
        self.expected(at, head, request)
    }

    /// How long the head takes from one sector to another without reading anything.
    fn travel(&self, from: u64, to: u64) -> Nanos {
        let _ = (from, to);
        0
    }
}
