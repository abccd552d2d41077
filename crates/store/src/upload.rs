//! How what an import stores goes up: in packs of which size, how many at a time, at whose pace, and
//! written down where, so that whoever goes on after a crash sends no chunk again.

use crate::{PackId, settings};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;

/// Uploads at the same time, unless told otherwise; each may hold a pack.
const AT_ONCE: usize = 4;

/// Decides when the next object may go up, and hears of those that did.
#[async_trait]
pub trait UploadPace: Send + Sync {
    /// Waits until an object of so many bytes may be sent.
    async fn admit(&self, bytes: u64);

    /// An object of so many bytes is durable in the store.
    fn uploaded(&self, bytes: u64);
}

/// The end of a pack: its index and its trailer, which say what it holds and prove its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackTail {
    /// The pack's name.
    pub id: PackId,
    /// Bytes of the whole pack.
    pub size: u64,
    /// Its last bytes, as they are in the store.
    pub tail: Bytes,
}

/// Remembers which packs were sent, for an upload that goes on after a crash.
#[async_trait]
pub trait UploadJournal: Send + Sync {
    /// The packs that were noted, in any order; none where they cannot be read. Damaged and foreign ones
    /// do no harm: each is checked against its name, and looked for in the store.
    async fn packs(&self) -> Vec<PackTail>;

    /// Notes a pack before its first byte is sent. One that cannot be noted is sent again after a crash.
    async fn note(&self, pack: &PackTail);
}

/// How a session uploads.
#[derive(Clone)]
pub struct UploadPlan {
    /// A pack is sent when its chunks take this many bytes, from 64 KiB to 8 MiB. What is in flight
    /// when the process is killed is sent again: smaller packs lose less.
    pub pack_bytes: usize,
    /// Objects that are sent at the same time, at least one.
    pub at_once: usize,
    /// Who says when; `None`: at once.
    pub pace: Option<Arc<dyn UploadPace>>,
    /// With a journal, only what it names counts as stored already, beside what the base holds: the
    /// indexes of the store's packs are not read. Without one, all of them are.
    pub journal: Option<Arc<dyn UploadJournal>>,
    /// Chunks are compressed at least at this level of zstd, up to 19; the store's counts where it is higher.
    pub level: i32,
}

impl Default for UploadPlan {
    /// Packs of 8 MiB, four at a time, as fast as they go, compressed at the store's level, and nothing is remembered.
    fn default() -> Self {
        Self {
            pack_bytes: crate::pack::FULL,
            at_once: AT_ONCE,
            pace: None,
            journal: None,
            level: 0,
        }
    }
}

impl UploadPlan {
    /// The plan within the bounds of its fields.
    pub(crate) fn bounded(mut self) -> Self {
        self.pack_bytes = self.pack_bytes.clamp(64 << 10, crate::pack::FULL);
        self.at_once = self.at_once.max(1);
        self.level = self.level.min(settings::HIGHEST_LEVEL);
        self
    }
}

impl fmt::Debug for UploadPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UploadPlan({} bytes, {} at once)", self.pack_bytes, self.at_once)
    }
}
