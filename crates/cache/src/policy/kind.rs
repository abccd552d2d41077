//! The policies by name, with their parameters.

use super::slotted::Slotted;
use super::{
    Algorithm, Arc, Clock, Fbr, Fifo, Fmpq, Lfu, Lirs, Lru, Mq, Policy, Ratio, Room, S3Fifo, Sieve,
    TwoQ, WTinyLfu, fbr, fmpq, lirs, mq, s3fifo, twoq, wtinylfu,
};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A policy and its parameters.
///
/// As text: the name, or the name and what differs from the defaults, as in
/// `fmpq:lifetime=8,history=1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PolicyKind {
    /// [`Arc`]: keeps as much of what was used once as pays.
    Arc,
    /// [`Clock`]: in order of arrival, with a second chance.
    Clock,
    /// [`Fbr`]: the least often used of those not used for long leaves.
    Fbr(fbr::Parameters),
    /// [`Fifo`]: the first that came leaves.
    Fifo,
    /// [`Fmpq`]: the least recently used of the least often used leaves; for a cache behind caches.
    Fmpq(fmpq::Parameters),
    /// [`Lfu`]: the least often used leaves.
    Lfu,
    /// [`Lirs`]: keeps what came back soon.
    Lirs(lirs::Parameters),
    /// [`Lru`]: the least recently used entry leaves.
    Lru,
    /// [`Mq`]: FMPQ that learns its lifetime.
    Mq(mq::Parameters),
    /// [`S3Fifo`]: queues only; what is not used soon leaves soon.
    S3Fifo(s3fifo::Parameters),
    /// [`Sieve`]: a hand passes over what stays where it is.
    Sieve,
    /// [`TwoQ`]: keeps what comes back after it left.
    TwoQ(twoq::Parameters),
    /// [`WTinyLfu`]: what is new has to be used more often than what would leave.
    WTinyLfu(wtinylfu::Parameters),
}

/// What is done with an algorithm of whatever type.
pub trait Visitor {
    /// What comes of it.
    type Output;
    /// Does it.
    fn visit<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output;
}

impl Default for PolicyKind {
    fn default() -> Self {
        // Nearly the best on average, and never far behind: FMPQ, which is as good behind clients'
        // caches, misses up to twice as much as LRU when equal guests boot in step.
        Self::S3Fifo(s3fifo::Parameters::default())
    }
}

impl PolicyKind {
    /// FMPQ with its default parameters.
    pub const FMPQ: Self = Self::Fmpq(fmpq::Parameters::DEFAULT);

    /// All of them with their default parameters, in the order of their names.
    pub fn all() -> [Self; 13] {
        [
            Self::Arc,
            Self::Clock,
            Self::Fbr(Default::default()),
            Self::Fifo,
            Self::Fmpq(Default::default()),
            Self::Lfu,
            Self::Lirs(Default::default()),
            Self::Lru,
            Self::Mq(Default::default()),
            Self::S3Fifo(Default::default()),
            Self::Sieve,
            Self::TwoQ(Default::default()),
            Self::WTinyLfu(Default::default()),
        ]
    }

    /// The name, as configuration and command line spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Arc => "arc",
            Self::Clock => "clock",
            Self::Fbr(_) => "fbr",
            Self::Fifo => "fifo",
            Self::Fmpq(_) => "fmpq",
            Self::Lfu => "lfu",
            Self::Lirs(_) => "lirs",
            Self::Lru => "lru",
            Self::Mq(_) => "mq",
            Self::S3Fifo(_) => "s3fifo",
            Self::Sieve => "sieve",
            Self::TwoQ(_) => "twoq",
            Self::WTinyLfu(_) => "wtinylfu",
        }
    }

    /// Whether a server should use it. The others are worth a comparison only: SIEVE and LFU
    /// never let go of what was used once upon a time, FIFO and CLOCK save what costs nothing here.
    pub const fn serves(self) -> bool {
        !matches!(self, Self::Clock | Self::Fifo | Self::Lfu | Self::Sieve)
    }

    /// Makes the algorithm and hands it to `visitor`, which is compiled for each of them.
    pub fn visit<V: Visitor>(self, room: Room, visitor: V) -> V::Output {
        match self {
            Self::Arc => visitor.visit(Arc::new(room)),
            Self::Clock => visitor.visit(Clock::new(room)),
            Self::Fbr(parameters) => visitor.visit(Fbr::new(room, parameters)),
            Self::Fifo => visitor.visit(Fifo::new(room)),
            Self::Fmpq(parameters) => visitor.visit(Fmpq::new(room, parameters)),
            Self::Lfu => visitor.visit(Lfu::new(room)),
            Self::Lirs(parameters) => visitor.visit(Lirs::new(room, parameters)),
            Self::Lru => visitor.visit(Lru::new(room)),
            Self::Mq(parameters) => visitor.visit(Mq::new(room, parameters)),
            Self::S3Fifo(parameters) => visitor.visit(S3Fifo::new(room, parameters)),
            Self::Sieve => visitor.visit(Sieve::new(room)),
            Self::TwoQ(parameters) => visitor.visit(TwoQ::new(room, parameters)),
            Self::WTinyLfu(parameters) => visitor.visit(WTinyLfu::new(room, parameters)),
        }
    }

    /// A policy for a cache of about `entries` entries.
    pub fn build(self, entries: u32) -> Box<dyn Policy> {
        struct Boxed(u32);
        impl Visitor for Boxed {
            type Output = Box<dyn Policy>;
            fn visit<A: Algorithm + 'static>(self, algorithm: A) -> Self::Output {
                Box::new(Slotted::new(algorithm, self.0))
            }
        }
        self.visit(Room { entries, ids: 0, reuse: true }, Boxed(entries))
    }

    /// The parameters as they are written.
    fn parameters(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Fbr(p) => vec![
                ("new", p.new.to_string()),
                ("old", p.old.to_string()),
                ("mean", p.mean.to_string()),
            ],
            Self::Fmpq(p) => vec![
                ("queues", p.queues.to_string()),
                ("lifetime", p.lifetime.to_string()),
                ("history", p.history.to_string()),
            ],
            Self::Lirs(p) => {
                vec![("queue", p.queue.to_string()), ("history", p.history.to_string())]
            }
            Self::Mq(p) => {
                vec![("queues", p.queues.to_string()), ("history", p.history.to_string())]
            }
            Self::S3Fifo(p) => vec![
                ("small", p.small.to_string()),
                ("history", p.history.to_string()),
                ("promote", p.promote.to_string()),
                ("fill", p.fill.to_string()),
            ],
            Self::TwoQ(p) => {
                vec![("inside", p.inside.to_string()), ("outside", p.outside.to_string())]
            }
            Self::WTinyLfu(p) => {
                vec![("window", p.window.to_string()), ("protected", p.protected.to_string())]
            }
            Self::Arc | Self::Clock | Self::Fifo | Self::Lfu | Self::Lru | Self::Sieve => vec![],
        }
    }

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        let part = || -> Result<Ratio> {
            let ratio: Ratio = value.parse()?;
            if ratio <= Ratio::times(1) {
                return Ok(ratio);
            }
            Err(Error::invalid(format!("{name}={value} is more than the whole; use 0 to 1")))
        };
        match (&mut *self, name) {
            (Self::Fbr(p), "new") => p.new = part()?,
            (Self::Fbr(p), "old") => p.old = part()?,
            (Self::Fbr(p), "mean") => p.mean = integer(name, value, 1, 1 << 20)?,
            (Self::Fmpq(p), "queues") => p.queues = integer(name, value, 1, 24)? as u8,
            (Self::Fmpq(p), "lifetime") => p.lifetime = value.parse()?,
            (Self::Fmpq(p), "history") => p.history = value.parse()?,
            (Self::Lirs(p), "queue") => p.queue = part()?,
            (Self::Lirs(p), "history") => p.history = value.parse()?,
            (Self::Mq(p), "queues") => p.queues = integer(name, value, 1, 24)? as u8,
            (Self::Mq(p), "history") => p.history = value.parse()?,
            (Self::S3Fifo(p), "small") => p.small = part()?,
            (Self::S3Fifo(p), "history") => p.history = value.parse()?,
            (Self::S3Fifo(p), "fill") => p.fill = value.parse()?,
            (Self::S3Fifo(p), "promote") => p.promote = integer(name, value, 1, 3)? as u8,
            (Self::TwoQ(p), "inside") => p.inside = part()?,
            (Self::TwoQ(p), "outside") => p.outside = value.parse()?,
            (Self::WTinyLfu(p), "window") => p.window = part()?,
            (Self::WTinyLfu(p), "protected") => p.protected = part()?,
            _ => {
                let known: Vec<_> = self.parameters().into_iter().map(|(name, _)| name).collect();
                let known = match known.as_slice() {
                    [] => "none".to_owned(),
                    names => names.join(", "),
                };
                return Err(Error::invalid(format!(
                    "cache policy {} has no parameter \"{name}\"; it has {known}",
                    self.as_str()
                )));
            }
        }
        Ok(())
    }
}

fn integer(name: &str, value: &str, least: u32, most: u32) -> Result<u32> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        Error::invalid(format!("{name}={value} is not a whole number from {least} to {most}"))
    })
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())?;
        let plain = Self::all().into_iter().find(|kind| kind.as_str() == self.as_str());
        let plain = plain.map(Self::parameters).unwrap_or_default();
        let mut separator = ':';
        for ((name, value), (_, default)) in self.parameters().into_iter().zip(plain) {
            if value != default {
                write!(f, "{separator}{name}={value}")?;
                separator = ',';
            }
        }
        Ok(())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
        let mut kind =
            Self::all().into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
                let names = Self::all().map(Self::as_str).join(", ");
                Error::invalid(format!("cache policy \"{name}\" is unknown; use one of {names}"))
            })?;
        for parameter in parameters.split(',').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').ok_or_else(|| {
                Error::invalid(format!("\"{parameter}\" in \"{text}\" is not NAME=VALUE"))
            })?;
            kind.set(name, value)?;
        }
        Ok(kind)
    }
}

impl TryFrom<String> for PolicyKind {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl From<PolicyKind> for String {
    fn from(kind: PolicyKind) -> Self {
        kind.to_string()
    }
}
