//! Anything that can answer a chunk id.

use crate::share::MemberId;
use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use store::{ChunkId, ChunkRef, Encoding, MapId, Settings};

/// Requests that a source is given at a time, unless it says otherwise.
pub(crate) const TURNS: usize = 8;

/// What a source is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SourceKind {
    /// A directory in the media layout.
    Media,
    /// An indexed directory tree.
    Tree,
    /// An indexed disk image.
    Image,
    /// Another machine nearby that uses the same store.
    Peer,
    /// Another store, or, in reports, the store itself.
    Store,
}

impl SourceKind {
    /// The name, as reports and metrics spell it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Media => "media",
            Self::Tree => "tree",
            Self::Image => "image",
            Self::Peer => "peer",
            Self::Store => "store",
        }
    }
}

impl fmt::Display for SourceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a request is expected to take before any was measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostEstimate {
    /// Before the first byte.
    pub latency: Duration,
    /// Bytes in a second; not 0.
    pub bandwidth: u64,
}

impl CostEstimate {
    /// A file on a local disk or key.
    pub const LOCAL: Self = Self { latency: Duration::from_millis(2), bandwidth: 50 << 20 };
    /// A store in a directory: on a disk of this machine, with fewer steps than media.
    pub const DIRECTORY: Self = Self { latency: Duration::from_millis(1), bandwidth: 200 << 20 };
    /// A store behind a network.
    pub const DISTANT: Self = Self { latency: Duration::from_millis(50), bandwidth: 10 << 20 };

    /// What a request of so many bytes takes.
    pub(crate) fn of(&self, bytes: u64) -> Duration {
        self.latency + Duration::from_secs_f64(bytes as f64 / self.bandwidth.max(1) as f64)
    }
}

/// What reads of the store take, as seen by whoever makes them.
pub trait StoreLink: Send + Sync + fmt::Debug {
    /// What a read of so many bytes is expected to take, and whether that is sure: otherwise it takes no longer.
    /// `None` before anything was read.
    fn expected(&self, bytes: u64) -> Option<(Duration, bool)>;
}

/// A chunk as a source has it: not verified.
#[derive(Debug, Clone)]
pub enum ChunkBytes {
    /// The plain bytes.
    Plain(Bytes),
    /// The bytes as a store has them: compressed, sealed.
    Stored(Encoding, Bytes),
}

impl ChunkBytes {
    /// Bytes that were moved.
    pub fn len(&self) -> usize {
        match self {
            Self::Plain(bytes) | Self::Stored(_, bytes) => bytes.len(),
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The chunk's plain bytes, if these are the bytes of the chunk that was asked for.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when they are anything else.
    pub fn verify(self, settings: &Settings, at: &ChunkRef) -> Result<Bytes> {
        match self {
            Self::Plain(plain) => {
                let right = plain.len() == at.len as usize && settings.chunk_id(&plain) == at.id;
                right.then_some(plain).ok_or_else(|| {
                    Error::corrupt(format!("what was given for chunk {} is something else", at.id))
                })
            }
            Self::Stored(encoding, stored) => {
                let fits = u32::try_from(stored.len()).is_ok_and(|n| encoding.allows(n, at.len));
                if !fits {
                    return Err(Error::corrupt(format!(
                        "what was given for chunk {} has a length that it cannot have",
                        at.id
                    )));
                }
                ChunkRef { encoding, stored: stored.len() as u32, ..*at }.decode(settings, stored)
            }
        }
    }
}

/// Anything that can answer a chunk id, and perhaps has maps, too. Nothing that it says is trusted: whoever
/// asks verifies the answer by hash ([`ChunkBytes::verify`], [`MapId::verify`]). To add a kind is one file that implements this and passes
/// [`conformance::check`](crate::conformance::check).
#[async_trait]
pub trait ChunkSource: Send + Sync + fmt::Debug {
    /// What people call it: the path or URL that they gave.
    fn name(&self) -> &str;

    /// What it is.
    fn kind(&self) -> SourceKind;

    /// What a request is expected to take before any was measured.
    fn estimate(&self) -> CostEstimate {
        CostEstimate::LOCAL
    }

    /// Whether what it gives comes over a network.
    fn is_distant(&self) -> bool {
        false
    }

    /// Requests that it is given at a time, half of them for what nobody waits for; at least 2.
    fn turns(&self) -> usize {
        TURNS
    }

    /// Whether a read goes on when its future was dropped, as one does that a thread of this machine makes: it keeps
    /// its turn until it ends.
    fn reads_to_the_end(&self) -> bool {
        matches!(self.kind(), SourceKind::Media | SourceKind::Tree | SourceKind::Image)
    }

    /// Whether it claims to have a chunk. Asked on the way of every read, so it is answered from memory:
    /// a source that is far away keeps a summary here of what it has.
    fn claims(&self, id: &ChunkId) -> bool;

    /// How many chunks it claims to have.
    fn chunks(&self) -> u64;

    /// Reads a chunk. The future may be dropped at any time.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it does not have the chunk (any more);
    /// [`Unavailable`](block::ErrorKind::Unavailable) or the system's when it cannot be read now.
    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes>;

    /// Forgets that it claimed a chunk: what it gave was something else.
    fn disown(&self, id: &ChunkId);

    /// What it gave for a chunk was right.
    fn gave(&self, _at: &ChunkRef, _given: &ChunkBytes) {}

    /// The length in bytes of a map's object, if it claims to have that. Answered from memory.
    fn claims_map(&self, _id: &MapId) -> Option<u64> {
        None
    }

    /// Reads a map's object, as a store has it. The future may be dropped at any time.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it does not have the map; else any error from the place.
    async fn map(&self, id: &MapId) -> Result<Bytes> {
        Err(Error::not_found(format!("{id} is not in {}", self.name())))
    }

    /// Forgets that it claimed a map: what it gave was something else.
    fn disown_map(&self, _id: &MapId) {}

    /// The same source as one that reads its share of the store for all, if it is.
    fn sharer(&self) -> Option<&dyn LinkSharer> {
        None
    }
}

/// A chunk that a member read for all.
#[derive(Debug, Clone)]
pub struct Fetched {
    /// The chunk: not verified.
    pub bytes: ChunkBytes,
    /// What asking the member took, without what it waited for the store.
    pub took: Duration,
}

/// A source that reads its share from the store for whoever asks.
#[async_trait]
pub trait LinkSharer: Send + Sync {
    /// Which member it is; `None` while it is away, or cannot read for others.
    fn member(&self) -> Option<MemberId>;

    /// Reads a chunk, out of what it has or from the store. `urgent`: a guest waits. The future may be dropped at any
    /// time.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it cannot read it, either;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it is away.
    async fn fetch(&self, at: &ChunkRef, urgent: bool) -> Result<Fetched>;

    /// Reads a map's object, out of what it has or from the store. The future may be dropped at any time.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it cannot read it, either;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it is away.
    async fn fetch_map(&self, id: &MapId) -> Result<Bytes>;
}
