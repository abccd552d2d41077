//! A medium as a source.

use super::head::HEAD;
use super::map_file::{self, MapFile};
use super::pack_file::{ChunkRow, PackFile};
use super::{DIRECTORY, Media};
use crate::regular::open_regular;
use crate::{ChunkBytes, ChunkSource, SourceKind};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result, offload};
use bytes::Bytes;
use parking_lot::RwLock;
use std::collections::{HashMap, HashSet};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use store::{ChunkId, ChunkRef, MapId, Settings};

/// A medium as a source: its index is in memory, and no file of it is held open, so that it can be
/// unmounted at any time.
#[derive(Debug)]
pub struct MediaSource {
    name: String,
    directory: PathBuf,
    /// By id, each once, with the number of its file.
    rows: Vec<(ChunkRow, u32)>,
    disowned: RwLock<HashSet<ChunkId>>,
    /// Without those that were disowned.
    maps: RwLock<HashMap<MapId, MapFile>>,
}

impl MediaSource {
    /// Opens the medium at `place` for the store with these settings. Waits for the medium.
    ///
    /// # Errors
    /// Any error from [`Media::open`].
    pub fn open(settings: &Settings, place: &Path) -> Result<Self> {
        let Media { packs, maps, .. } = Media::open_content(settings, place)?;
        // Each pack's go when they are taken over: there may be millions.
        let mut rows: Vec<_> = (packs.into_iter())
            .flat_map(|pack| pack.rows.into_iter().map(move |row| (row, pack.number)))
            .collect();
        rows.sort_unstable_by_key(|(row, number)| (row.id, *number));
        rows.dedup_by_key(|(row, _)| row.id);
        rows.shrink_to_fit();
        let directory = place.join(DIRECTORY);
        let name = place.display().to_string();
        let maps = maps.into_iter().map(|map| (map.id, map)).collect();
        let maps = RwLock::new(maps);
        Ok(Self { name, directory, rows, disowned: RwLock::default(), maps })
    }

    fn find(&self, id: &ChunkId) -> Option<(ChunkRow, u32)> {
        let at = self.rows.binary_search_by_key(id, |(row, _)| row.id).ok()?;
        (!self.disowned.read().contains(id)).then(|| self.rows[at])
    }
}

#[async_trait]
impl ChunkSource for MediaSource {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        SourceKind::Media
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.find(id).is_some()
    }

    fn chunks(&self) -> u64 {
        self.rows.len() as u64
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        let (row, number) = self
            .find(&at.id)
            .ok_or_else(|| Error::not_found(format!("chunk {} is not on {}", at.id, self.name)))?;
        let (path, directory) = (PackFile::path(&self.directory, number), self.directory.clone());
        offload(move || {
            let failed = |e: std::io::Error| match e.kind() {
                // The medium is away, not a file of it: it may come back.
                std::io::ErrorKind::NotFound if !directory.exists() => {
                    Error::unavailable(format!("{} is not there", directory.display()))
                        .with_source(e)
                }
                // Of a file that was cut off.
                std::io::ErrorKind::UnexpectedEof => {
                    Error::corrupt(format!("{} is cut off", path.display())).with_source(e)
                }
                _ => Error::io(path.display(), e),
            };
            let (file, _) = open_regular(&path).map_err(failed)?;
            let mut stored = vec![0; row.stored as usize];
            file.read_exact_at(&mut stored, HEAD as u64 + u64::from(row.offset)).map_err(failed)?;
            Ok(ChunkBytes::Stored(row.encoding, stored.into()))
        })
        .await
    }

    fn disown(&self, id: &ChunkId) {
        self.disowned.write().insert(*id);
    }

    fn claims_map(&self, id: &MapId) -> Option<u64> {
        self.maps.read().get(id).map(|map| u64::from(map.len))
    }

    async fn map(&self, id: &MapId) -> Result<Bytes> {
        let map = self.maps.read().get(id).copied();
        let map = map.ok_or_else(|| Error::not_found(format!("{id} is not on {}", self.name)))?;
        let directory = self.directory.clone();
        offload(move || {
            map_file::read_object(&directory, &map).map_err(|e| match e.kind() {
                ErrorKind::NotFound if !directory.exists() => {
                    Error::unavailable(format!("{} is not there", directory.display()))
                        .with_source(e)
                }
                _ => e,
            })
        })
        .await
    }

    fn disown_map(&self, id: &MapId) {
        self.maps.write().remove(id);
    }
}
