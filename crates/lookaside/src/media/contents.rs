//! What is to be on a medium, and in which order: of everything the maps, then what is read first, then the
//! rest.

use super::record::RecordKind;
use block::Result;
use std::collections::HashSet;
use store::{BootListId, ChunkId, ChunkRef, ManifestId, MapId, Store, boot_list};

/// What is to be on a medium.
#[derive(Debug, Clone)]
pub struct MediaImage {
    /// The name that the user gave.
    pub name: String,
    /// What it is.
    pub kind: RecordKind,
    /// Which version of an image, or which parcel of a machine; of a disk its name.
    pub version: String,
    /// Its content; of a machine, that of its memory.
    pub manifest: ManifestId,
    /// The content of a machine's disk.
    pub disk: Option<ManifestId>,
    /// What a boot of it reads.
    pub boot_list: Option<BootListId>,
    /// The manifest of its boot copy, which readers of the boot list look at first.
    pub boot_copy: Option<ManifestId>,
    /// Chunks that are read first, without a boot list: a machine's resume set.
    pub first: Vec<ChunkId>,
}

/// The maps of an image, and its chunks in the order in which they go on.
pub(super) struct ImageContents {
    pub(super) maps: Vec<MapId>,
    /// Read first.
    pub(super) boot: Vec<ChunkRef>,
    pub(super) rest: Vec<ChunkRef>,
    /// The size of its content, in bytes.
    pub(super) size: u64,
}

impl ImageContents {
    /// Looks into the store for what an image consists of.
    pub(super) async fn of(store: &Store, image: &MediaImage) -> Result<Self> {
        let manifest = store.manifest(&image.manifest).await?;
        let (mut maps, mut first) = (manifest.maps(), image.first.clone());
        if let Some(id) = &image.boot_list {
            // A boot list makes boots quicker, no more.
            match boot_list::read(store, id).await {
                Ok(list) => {
                    first.extend(list);
                    maps.push(MapId::BootList(*id));
                }
                Err(error) => {
                    tracing::warn!(image = image.version, %error, "its boot list is left out");
                }
            }
        }
        let located = match first.is_empty() {
            true => Vec::new(),
            false => boot_list::locate(&manifest, &first).await?,
        };
        let mut boot: Vec<_> = located.into_iter().map(|located| located.at).collect();
        let mut rest = manifest.chunks().await?;
        if let Some(disk) = &image.disk {
            let disk = store.manifest(disk).await?;
            maps.extend(disk.maps());
            rest.extend(disk.chunks().await?);
        }
        if let Some(copy) = &image.boot_copy {
            match store.manifest(copy).await {
                Ok(copy) => maps.extend(copy.maps()),
                Err(error) => {
                    tracing::warn!(image = image.version, %error, "its boot copy is left out");
                }
            }
        }
        let mut seen: HashSet<ChunkId> = HashSet::new();
        boot.retain(|at| seen.insert(at.id));
        rest.retain(|at| seen.insert(at.id));
        let mut seen: HashSet<MapId> = HashSet::new();
        maps.retain(|id| seen.insert(*id));
        // The short ones first: without them the long ones are not looked for.
        maps.sort_by_key(|id| matches!(id, MapId::Segment(_)));
        Ok(Self { maps, boot, rest, size: manifest.size() })
    }

    /// How many chunks and maps it names.
    pub(super) fn ids(&self) -> u64 {
        (self.boot.len() + self.rest.len() + self.maps.len()) as u64
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &ChunkRef> {
        self.boot.iter().chain(&self.rest)
    }
}
