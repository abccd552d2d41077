//! MQ with its adaptive lifetime (Y. Zhou, J. F. Philbin, K. Li: "The Multi-Queue Replacement
//! Algorithm for Second Level Buffer Caches", USENIX 2001, section 5): FMPQ whose lifetime follows
//! the peak of the temporal distances, in accesses, of what comes back.

use super::fmpq::{Fmpq, FmpqParameters};
use super::parameters::{Tunable, integer};
use super::{Algorithm, Ratio, Room};
use block::Result;

/// The histogram's steps: four to a doubling.
const STEPS: usize = 4 * 32;

/// The parameters of MQ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MqParameters {
    /// The number of queues: 1 to 24.
    pub queues: u8,
    /// The length of the history, as a multiple of the cache's entries; 0 for none.
    pub history: Ratio,
}

impl Default for MqParameters {
    fn default() -> Self {
        Self { queues: 8, history: Ratio::times(4) }
    }
}

impl Tunable for MqParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![("queues", self.queues.to_string()), ("history", self.history.to_string())]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "queues" => self.queues = integer(name, value, 1, 24)? as u8,
            "history" => self.history = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

/// Evicts the least recently used of the least often used entries; learns how long to keep them.
#[derive(Debug)]
pub struct Mq {
    queues: Fmpq,
    /// The access at which each id was last used; 0: never.
    last: Vec<u32>,
    now: u32,
    histogram: [u32; STEPS],
    /// Accesses until the lifetime is set anew.
    left: usize,
}

impl Mq {
    /// An empty cache.
    pub fn new(room: Room, parameters: MqParameters) -> Self {
        let MqParameters { queues, history } = parameters;
        let lifetime = Ratio::times(4);
        Self {
            queues: Fmpq::new(room, FmpqParameters { queues, lifetime, history }),
            last: vec![0; room.ids as usize],
            now: 1,
            histogram: [0; STEPS],
            left: room.entries.max(1) as usize,
        }
    }

    fn step(distance: u32) -> usize {
        let octave = distance.max(1).ilog2();
        let quarter = (u64::from(distance) << 2 >> octave) & 3;
        4 * octave as usize + quarter as usize
    }

    /// Notes an access to `id`; `again` when it is held or remembered.
    fn note(&mut self, id: u32, again: bool) {
        if id as usize >= self.last.len() {
            self.last.resize(id as usize + 1, 0);
        }
        if again {
            self.histogram[Self::step(self.now.wrapping_sub(self.last[id as usize]))] += 1;
        }
        self.last[id as usize] = self.now;
        self.now = self.now.wrapping_add(1);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.adapt();
        }
    }

    fn adapt(&mut self) {
        self.left = self.queues.full();
        let highest = self.histogram.iter().copied().max().unwrap_or(0);
        if highest > 0
            && let Some(peak) = self.histogram.iter().rposition(|count| *count == highest)
        {
            // The upper end of the step.
            let lifetime = (4 + (peak as u64 & 3) + 1) << (peak / 4) >> 2;
            self.queues.set_lifetime((lifetime as usize).max(self.queues.full()));
        }
        for count in &mut self.histogram {
            *count /= 2;
        }
    }
}

impl Algorithm for Mq {
    const REMEMBERS: bool = true;

    #[inline]
    fn holds(&self, id: u32) -> bool {
        self.queues.holds(id)
    }

    #[inline]
    fn hit(&mut self, id: u32) {
        self.note(id, true);
        self.queues.hit(id);
    }

    #[inline]
    fn insert(&mut self, id: u32, fingerprint: u64) {
        let again = self.queues.remembers(id);
        self.note(id, again);
        self.queues.insert(id, fingerprint);
    }

    #[inline]
    fn evict(&mut self) -> Option<u32> {
        self.queues.evict()
    }

    fn remove(&mut self, id: u32) {
        self.queues.remove(id);
    }

    fn beside(&self) -> usize {
        self.last.capacity() * size_of::<u32>()
    }

    #[inline]
    fn len(&self) -> usize {
        self.queues.len()
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.queues.forgotten()
    }
}
