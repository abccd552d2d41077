//! An index and what it is of, as a source.

use super::index::{ContentIndex, FileStamp, IndexedKind};
use crate::regular::open_regular;
use crate::{ChunkBytes, ChunkSource, SourceKind};
use async_trait::async_trait;
use block::{Device, Error, Result, Span, offload};
use parking_lot::{Mutex, RwLock};
use std::collections::HashSet;
use std::fmt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use store::chunker::PAGE;
use store::{ChunkId, ChunkRef};

/// So many files of a tree are looked for where it may be away.
const LOOKED_AT: usize = 8;

/// A chunk, and where it is.
#[derive(Debug, Clone, Copy)]
struct Located {
    id: ChunkId,
    file: u32,
    page: u32,
    pages: u16,
}

/// Device and number of a directory.
type DirectoryIdentity = (u64, u64);

/// The files of a tree.
#[derive(Debug)]
struct TreeFiles {
    root: PathBuf,
    /// Path below the root, and what the file was like.
    files: Vec<(PathBuf, FileStamp)>,
    /// The root while files of the index were found in it. A mount point that nothing is mounted on is another
    /// directory.
    found_in: Mutex<Option<DirectoryIdentity>>,
}

impl TreeFiles {
    /// Whether all of the tree is away, and not a file of it alone. Waits for the file system.
    fn is_away(&self) -> bool {
        let Ok(root) = std::fs::metadata(&self.root) else { return true };
        let root = (root.dev(), root.ino());
        if *self.found_in.lock() == Some(root) {
            return false;
        }
        // It may be back, as another directory: then some file of the index is there.
        let step = (self.files.len() / LOOKED_AT).max(1);
        let found = self.files.iter().step_by(step).any(|(path, stamp)| {
            open_regular(&self.root.join(path)).is_ok_and(|(_, now)| FileStamp::of(&now) == *stamp)
        });
        if found {
            *self.found_in.lock() = Some(root);
        }
        !found
    }
}

/// An indexed tree or image, as a source.
pub struct Indexed {
    name: String,
    files: Arc<TreeFiles>,
    /// By id, each once.
    rows: Vec<Located>,
    /// What an image shows; a tree's files are opened when they are read.
    device: Option<Arc<dyn Device>>,
    disowned: RwLock<HashSet<ChunkId>>,
}

impl fmt::Debug for Indexed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Indexed({}, {} chunks)", self.name, self.rows.len())
    }
}

impl Indexed {
    /// The tree that `index` is of. Waits for the file system.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is of an image.
    pub fn tree(name: impl Into<String>, index: ContentIndex) -> Result<Self> {
        match index.kind {
            IndexedKind::Tree => {
                let tree = Self::new(name.into(), index, None);
                // While it is there, which directory it is.
                tree.files.is_away();
                Ok(tree)
            }
            IndexedKind::Image => {
                Err(Error::invalid("this is the index of an image, not of a tree"))
            }
        }
    }

    /// The image that `index` is of; `device` is what it shows.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is of a tree.
    pub fn image(
        name: impl Into<String>,
        index: ContentIndex,
        device: Arc<dyn Device>,
    ) -> Result<Self> {
        match index.kind {
            IndexedKind::Image => Ok(Self::new(name.into(), index, Some(device))),
            IndexedKind::Tree => {
                Err(Error::invalid("this is the index of a tree, not of an image"))
            }
        }
    }

    fn new(name: String, index: ContentIndex, device: Option<Arc<dyn Device>>) -> Self {
        let mut rows = Vec::with_capacity(index.chunks() as usize);
        for (number, file) in index.files.iter().enumerate() {
            rows.extend(file.rows.iter().map(|row| Located {
                id: row.id,
                file: number as u32,
                page: row.page,
                pages: row.pages,
            }));
        }
        rows.sort_unstable_by_key(|row| (row.id, row.file, row.page));
        rows.dedup_by_key(|row| row.id);
        rows.shrink_to_fit();
        let files = index.files.into_iter().map(|file| (file.path, file.stamp)).collect();
        let (disowned, found_in) = (RwLock::default(), Mutex::default());
        let files = Arc::new(TreeFiles { root: index.root, files, found_in });
        Self { name, files, rows, device, disowned }
    }

    fn find(&self, id: &ChunkId) -> Option<Located> {
        let at = self.rows.binary_search_by_key(id, |row| row.id).ok()?;
        (!self.disowned.read().contains(id)).then(|| self.rows[at])
    }
}

#[async_trait]
impl ChunkSource for Indexed {
    fn name(&self) -> &str {
        &self.name
    }

    fn kind(&self) -> SourceKind {
        match self.device {
            Some(_) => SourceKind::Image,
            None => SourceKind::Tree,
        }
    }

    fn claims(&self, id: &ChunkId) -> bool {
        self.find(id).is_some()
    }

    fn chunks(&self) -> u64 {
        self.rows.len() as u64
    }

    async fn chunk(&self, at: &ChunkRef) -> Result<ChunkBytes> {
        let none = || Error::not_found(format!("chunk {} is not in {}", at.id, self.name));
        let row = self.find(&at.id).ok_or_else(none)?;
        let len = usize::from(row.pages) * PAGE;
        let offset = u64::from(row.page) * PAGE as u64;
        if let Some(device) = &self.device {
            let mut bytes = vec![0; len];
            let size = device.size();
            let end = size.min(offset + len as u64);
            let span = Span::between(offset.min(end), end);
            device.read(span, &mut bytes[..span.len() as usize]).await?;
            return Ok(ChunkBytes::Plain(bytes.into()));
        }
        let files = Arc::clone(&self.files);
        offload(move || {
            let Some((path, stamp)) = files.files.get(row.file as usize) else {
                return Err(Error::internal("a chunk is in a file that is not in the index"));
            };
            let (path, root) = (files.root.join(path), &files.root);
            let gone = |e: std::io::Error| match e.kind() {
                // All of it is away, not a file of it: it may come back.
                std::io::ErrorKind::NotFound if files.is_away() => {
                    Error::unavailable(format!("{} is not there", root.display())).with_source(e)
                }
                _ => Error::io(path.display(), e),
            };
            let (file, now) = open_regular(&path).map_err(gone)?;
            if FileStamp::of(&now) != *stamp {
                return Err(Error::not_found(format!(
                    "{} was changed since it was indexed",
                    path.display()
                )));
            }
            // What lies behind its end is zero, as in an image.
            let mut bytes = vec![0; len];
            let there = (stamp.size.saturating_sub(offset)).min(len as u64) as usize;
            file.read_exact_at(&mut bytes[..there], offset)
                .map_err(|e| Error::io(path.display(), e))?;
            Ok(ChunkBytes::Plain(bytes.into()))
        })
        .await
    }

    fn disown(&self, id: &ChunkId) {
        self.disowned.write().insert(*id);
    }
}
