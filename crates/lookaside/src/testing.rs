//! Sources that behave badly, and the bare readers of the formats: for tests and fuzzers of this and other
//! crates.

use crate::media::{index, map_file, record};
use crate::tree::{self, index as tree_index};
use crate::{ChunkBytes, ChunkSource, SourceKind};
use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::{ChunkId, ChunkRef, MapId, Settings, outside};

/// How a [`Fake`] answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// Right, at once.
    Honest,
    /// With bytes that are something else.
    Lying,
    /// Right, after so long.
    Slow(Duration),
    /// Never.
    Hanging,
    /// Right so many times, then with an error for ever.
    Dying(u64),
    /// With the first half of the bytes.
    Truncating,
}

/// A source in memory that answers as it is told to.
#[derive(Debug)]
pub struct Fake {
    name: String,
    chunks: Mutex<HashMap<ChunkId, Bytes>>,
    maps: Mutex<HashMap<MapId, Bytes>>,
    manner: Mutex<Manner>,
    asked: AtomicU64,
}

impl Fake {
    /// A source of these chunks.
    pub fn new(name: &str, settings: &Settings, chunks: &[Bytes], manner: Manner) -> Self {
        let chunks = chunks.iter().map(|plain| (settings.chunk_id(plain), plain.clone())).collect();
        let (chunks, manner) = (Mutex::new(chunks), Mutex::new(manner));
        let maps = Mutex::default();
        Self { name: name.to_owned(), chunks, maps, manner, asked: AtomicU64::new(0) }
    }

    /// It has these maps, too: the objects of a store.
    #[must_use]
    pub fn with_maps(self, maps: impl IntoIterator<Item = (MapId, Bytes)>) -> Self {
        self.maps.lock().extend(maps);
        self
    }

    /// How often it was asked.
    pub fn asked(&self) -> u64 {
        self.asked.load(Relaxed)
    }

    /// From now on it answers in another manner.
    pub fn behave(&self, manner: Manner) {
        *self.manner.lock() = manner;
    }

    /// Answers with these bytes, in its manner.
    async fn answer(&self, bytes: Bytes) -> Result<Bytes> {
        let before = self.asked.fetch_add(1, Relaxed);
        let manner = *self.manner.lock();
        Ok(match manner {
            Manner::Honest => bytes,
            Manner::Lying => bytes.iter().map(|byte| byte ^ 1).collect(),
            Manner::Slow(time) => {
                tokio::time::sleep(time).await;
                bytes
            }
            Manner::Hanging => std::future::pending().await,
            Manner::Dying(after) if before >= after => {
                return Err(Error::unavailable("the device was pulled out"));
            }
            Manner::Dying(_) => bytes,
            Manner::Truncating => bytes.slice(..bytes.len() / 2),
        })
    }
}

#[async_trait]
impl ChunkSource for Fake {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Media
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.chunks.lock().contains_key(id)
    }

    fn chunks(&self) -> u64 {
        self.chunks.lock().len() as u64
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        let plain = self.chunks.lock().get(&at.id).cloned();
        let Some(plain) = plain else {
            self.asked.fetch_add(1, Relaxed);
            return Err(Error::not_found("it is not here"));
        };
        self.answer(plain).await.map(ChunkBytes::Plain)
    }

    fn disown(&self, id: &ChunkId) {
        self.chunks.lock().remove(id);
    }

    fn claims_map(&self, id: &MapId) -> Option<u64> {
        self.maps.lock().get(id).map(|object| object.len() as u64)
    }

    async fn map(&self, id: &MapId) -> Result<Bytes> {
        let object = self.maps.lock().get(id).cloned();
        self.answer(object.ok_or_else(|| Error::not_found("it is not here"))?).await
    }

    fn disown_map(&self, id: &MapId) {
        self.maps.lock().remove(id);
    }
}

/// The files of foreign bytes that this crate reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MediaFormat {
    /// The index of a medium.
    Index,
    /// What was written to a medium.
    Record,
    /// The same, as the first version had it.
    FirstRecord,
    /// A map on a medium.
    Map,
    /// The index of a tree or an image.
    Tree,
}

impl MediaFormat {
    /// All of them.
    pub const ALL: [Self; 5] =
        [Self::Index, Self::Record, Self::Tree, Self::FirstRecord, Self::Map];

    /// The file that has this body, with the right checksum.
    ///
    /// # Errors
    /// None, with a store in clear.
    pub fn frame(self, settings: &Settings, body: &[u8]) -> Result<Vec<u8>> {
        match self {
            Self::Index => outside::encode(settings, index::MAGIC, index::NAME, body),
            Self::Record => {
                let format = (record::MAGIC, record::VERSION);
                outside::encode_version(settings, format, &record::name(0), body)
            }
            Self::FirstRecord => outside::encode(settings, record::MAGIC, &record::name(0), body),
            Self::Tree => outside::encode(settings, tree_index::MAGIC, tree_index::NAME, body),
            Self::Map => Ok(map_file::frame(settings, body)),
        }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// That of the format's reader.
    pub fn decode(self, settings: &Settings, bytes: &[u8]) -> Result<()> {
        match self {
            Self::Index => index::decode(settings, bytes).map(|_| ()),
            Self::Record | Self::FirstRecord => record::decode(settings, 0, bytes).map(|_| ()),
            Self::Map => map_file::decode(settings, bytes),
            Self::Tree => tree::decode(settings, bytes).map(|_| ()),
        }
    }
}
