//! The policies by name, with their parameters: one line of a table for each.

use super::parameters::Tunable;
use super::slotted::Slotted;
use super::{Algorithm, Policy, Room};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The table of policies, in the order of their names: what each is called, the module that it is in,
/// whether a server should use it, and its parameters where it has some.
///
/// The others are worth a comparison only: SIEVE and LFU never let go of what was used once upon a
/// time, FIFO and CLOCK save what costs nothing here.
macro_rules! policies {
    ($(
        $(#[$doc:meta])*
        $policy:ident = $module:ident, serves: $serves:literal
            $(, tuned by $parameters:ident: $type:ident)?;
    )*) => {
        $(pub use super::$module::$policy;)*

        /// A policy and its parameters.
        ///
        /// As text: the name, or the name and what differs from the defaults, as in
        /// `fmpq:lifetime=8,history=1`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub enum PolicyKind {
            $($(#[$doc])* $policy $((super::$module::$type))?,)*
        }

        impl PolicyKind {
            const COUNT: usize = [$(stringify!($policy)),*].len();

            /// All of them with their default parameters, in the order of their names.
            pub fn all() -> [Self; Self::COUNT] {
                [$(Self::$policy $((super::$module::$type::default()))?,)*]
            }

            /// The name, as configuration and command line spell it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$policy { .. } => stringify!($module),)* }
            }

            /// Whether a server should use it, rather than a comparison alone.
            pub const fn serves(self) -> bool {
                match self { $(Self::$policy { .. } => $serves,)* }
            }

            /// Makes the algorithm and hands it to `visitor`, which is compiled for each of them.
            pub fn visit<V: Visitor>(self, room: Room, visitor: V) -> V::Output {
                match self {
                    $(Self::$policy $(($parameters))? => {
                        visitor.visit($policy::new(room $(, $parameters)?))
                    })*
                }
            }

            /// The parameters as they are written.
            pub(super) fn parameters(self) -> Vec<(&'static str, String)> {
                match self {
                    $(Self::$policy $(($parameters))? => {
                        #[allow(unused_mut)] // of those that have none
                        let mut list = Vec::new();
                        $(list.extend($parameters.list());)?
                        list
                    })*
                }
            }

            /// Sets a parameter; `false` when it has none of this name.
            fn try_set(&mut self, name: &str, value: &str) -> Result<bool> {
                match self {
                    $(Self::$policy $(($parameters))? => {
                        $(if $parameters.set(name, value)? {
                            return Ok(true);
                        })?
                    })*
                }
                Ok(false)
            }
        }
    };
}

policies! {
    /// [`Arc`]: keeps as much of what was used once as pays.
    Arc = arc, serves: true;
    /// [`Clock`]: in order of arrival, with a second chance.
    Clock = clock, serves: false;
    /// [`Duel`]: as LRU or LIRS would, whichever missed less lately.
    Duel = duel, serves: true, tuned by p: DuelParameters;
    /// [`Fbr`]: the least often used of those not used for long leaves.
    Fbr = fbr, serves: true, tuned by p: FbrParameters;
    /// [`Fifo`]: the first that came leaves.
    Fifo = fifo, serves: false;
    /// [`Fmpq`]: the least recently used of the least often used leaves; for a cache behind caches.
    Fmpq = fmpq, serves: true, tuned by p: FmpqParameters;
    /// [`Lfu`]: the least often used leaves.
    Lfu = lfu, serves: false;
    /// [`Lirs`]: keeps what came back soon.
    Lirs = lirs, serves: true, tuned by p: LirsParameters;
    /// [`Lru`]: the least recently used entry leaves.
    Lru = lru, serves: true;
    /// [`Mq`]: FMPQ that learns its lifetime.
    Mq = mq, serves: true, tuned by p: MqParameters;
    /// [`S3Fifo`]: queues only; what is not used soon leaves soon.
    S3Fifo = s3fifo, serves: true, tuned by p: S3FifoParameters;
    /// [`Sieve`]: a hand passes over what stays where it is.
    Sieve = sieve, serves: false;
    /// [`TwoQ`]: keeps what comes back after it left.
    TwoQ = twoq, serves: true, tuned by p: TwoQParameters;
    /// [`WTinyLfu`]: what is new has to be used more often than what would leave.
    WTinyLfu = wtinylfu, serves: true, tuned by p: WTinyLfuParameters;
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
        // The best on average over all loads of docs/simulate.md, and hardly ever behind LRU, where
        // every other one misses much more than LRU in some of them.
        Self::Duel(super::duel::DuelParameters::default())
    }
}

impl PolicyKind {
    /// Those that a server should use, in the order of their names.
    pub fn serving() -> impl Iterator<Item = Self> {
        Self::all().into_iter().filter(|kind| kind.serves())
    }

    /// FMPQ with its default parameters.
    pub const FMPQ: Self = Self::Fmpq(super::fmpq::FmpqParameters::DEFAULT);

    /// The same for a cache of one `n`th of the size, on the accesses to one `n`th of the keys: what is a number
    /// and no part of the cache becomes smaller, too.
    #[must_use]
    pub fn in_miniature(self, n: u32) -> Self {
        match self {
            Self::Duel(parameters) => Self::Duel(parameters.in_miniature(n)),
            _ => self,
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

    fn set(&mut self, name: &str, value: &str) -> Result<()> {
        if self.try_set(name, value)? {
            return Ok(());
        }
        let known: Vec<_> = self.parameters().into_iter().map(|(name, _)| name).collect();
        let known = match known.as_slice() {
            [] => "none".to_owned(),
            names => names.join(", "),
        };
        Err(Error::invalid(format!(
            "cache policy {} has no parameter \"{name}\"; it has {known}",
            self.as_str()
        )))
    }
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
