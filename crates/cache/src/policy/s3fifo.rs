//! S3-FIFO (J. Yang, Y. Zhang, Z. Qiu, Y. Yue, K. V. Rashmi: "FIFO Queues are All You Need for Cache
//! Eviction", SOSP 2023, Algorithm 1).
//!
//! A small queue of the new, a main queue where what was used goes round again, and the names of
//! what left the small queue without a use.

use super::parameters::{Tunable, integer, part};
use super::queues::Queues;
use super::{Algorithm, Forgotten, Ratio, Room};
use block::{Error, Result};
use std::fmt;
use std::str::FromStr;

const SMALL: u8 = 0;
const MAIN: u8 = 1;
const LEFT: u8 = 2;

/// The most uses that are counted of an entry.
const USES: u32 = 3;

/// The parameters of S3-FIFO.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct S3FifoParameters {
    /// The small queue, as a part of the cache.
    pub small: Ratio,
    /// How many names are remembered, as a multiple of the cache's entries.
    pub history: Ratio,
    /// Uses in the small queue after which an entry goes to the main queue: 1 to 3.
    pub promote: u8,
    /// Where new entries go until the first one is evicted.
    pub fill: Fill,
}

/// Where new entries go while there is room. The paper does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Fill {
    /// Into the main queue, once the small one is full, as in the authors' own libCacheSim: the first
    /// entries are not passed over for being new.
    Main,
    /// Into the small queue: what of them was used moves on when room is needed.
    Small,
}

impl Default for S3FifoParameters {
    fn default() -> Self {
        Self {
            small: Ratio::hundredths(10),
            history: Ratio::hundredths(90),
            promote: 1,
            fill: Fill::Small,
        }
    }
}

impl Tunable for S3FifoParameters {
    fn list(&self) -> Vec<(&'static str, String)> {
        vec![
            ("small", self.small.to_string()),
            ("history", self.history.to_string()),
            ("promote", self.promote.to_string()),
            ("fill", self.fill.to_string()),
        ]
    }

    fn set(&mut self, name: &str, value: &str) -> Result<bool> {
        match name {
            "small" => self.small = part(name, value)?,
            "history" => self.history = value.parse()?,
            "promote" => self.promote = integer(name, value, 1, 3)? as u8,
            "fill" => self.fill = value.parse()?,
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl fmt::Display for Fill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Main => "main",
            Self::Small => "small",
        })
    }
}

impl FromStr for Fill {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "main" => Ok(Self::Main),
            "small" => Ok(Self::Small),
            _ => Err(Error::invalid(format!("fill={text} is neither main nor small"))),
        }
    }
}

/// Evicts the first of the new that was not used, or the first of the others that was not used
/// since it last went round.
#[derive(Debug)]
pub struct S3Fifo {
    parameters: S3FifoParameters,
    /// An entry's count is the number of its uses.
    queues: Queues<3>,
    full: usize,
    /// Whether nothing had to leave so far.
    filling: bool,
    forgotten: Forgotten,
}

impl S3Fifo {
    /// An empty cache.
    pub fn new(room: Room, parameters: S3FifoParameters) -> Self {
        Self {
            parameters,
            queues: Queues::new(room.ids),
            full: room.entries.max(1) as usize,
            filling: true,
            forgotten: room.forgotten(),
        }
    }

    /// Whether the small queue has its part of the cache.
    #[inline(always)]
    fn small_is_full(&self) -> bool {
        self.queues.len(SMALL) as usize >= self.parameters.small.of(self.full).max(1)
    }

    #[inline(always)]
    fn evict_small(&mut self) -> Option<u32> {
        while let Some(id) = self.queues.head(SMALL) {
            if self.queues.count(id) >= u32::from(self.parameters.promote.max(1)) {
                self.queues.set_count(id, 0);
                self.queues.move_to_tail(MAIN, id);
                continue;
            }
            self.queues.move_to_tail(LEFT, id);
            while self.queues.len(LEFT) as usize > self.parameters.history.of(self.full) {
                let Some(old) = self.queues.pop_head(LEFT) else { break };
                self.forgotten.push(old);
            }
            return Some(id);
        }
        None
    }

    #[inline(always)]
    fn evict_main(&mut self) -> Option<u32> {
        while let Some(id) = self.queues.head(MAIN) {
            let uses = self.queues.count(id);
            if uses == 0 {
                self.queues.take(id);
                self.forgotten.push(id);
                return Some(id);
            }
            self.queues.set_count(id, uses - 1);
            self.queues.move_to_tail(MAIN, id);
        }
        None
    }
}

impl Algorithm for S3Fifo {
    const REMEMBERS: bool = true;

    #[inline(always)]
    fn holds(&self, id: u32) -> bool {
        self.queues.list(id) <= MAIN
    }

    #[inline(always)]
    fn hit(&mut self, id: u32) {
        self.queues.set_count(id, (self.queues.count(id) + 1).min(USES));
    }

    #[inline(always)]
    fn insert(&mut self, id: u32, _: u64) {
        self.queues.reserve(id);
        self.queues.set_count(id, 0);
        if self.queues.list(id) == LEFT {
            self.queues.move_to_tail(MAIN, id);
        } else if self.filling && self.parameters.fill == Fill::Main && self.small_is_full() {
            self.queues.push_tail(MAIN, id);
        } else {
            self.queues.push_tail(SMALL, id);
        }
    }

    #[inline(always)]
    fn evict(&mut self) -> Option<u32> {
        (self.full, self.filling) = (self.len(), false);
        if self.small_is_full()
            && let Some(id) = self.evict_small()
        {
            return Some(id);
        }
        self.evict_main().or_else(|| self.evict_small())
    }

    fn remove(&mut self, id: u32) {
        self.queues.take(id);
    }

    #[inline(always)]
    fn len(&self) -> usize {
        (self.queues.len(SMALL) + self.queues.len(MAIN)) as usize
    }

    fn forgotten(&mut self) -> Option<u32> {
        self.forgotten.pop()
    }
}
