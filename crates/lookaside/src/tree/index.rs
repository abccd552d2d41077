//! Which chunk is where in a tree or an image, and the file that says so.
//!
//! The file is framed and sealed by [`store::outside`], under the magic `SOJTREE\n`. Its body, all numbers
//! little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 1 | 0: a directory tree; 1: a disk image |
//! | 4, … | length of the root's path; the path |
//! | 4 | n, number of files |
//! | n times: | |
//! | 4, … | length of a file's path below the root (0 for an image); the path |
//! | 8 | its size in bytes |
//! | 8, 4 | when it was changed: Unix seconds (signed), nanoseconds |
//! | 4 | m, number of chunks |
//! | m times 40 | chunk id (32), first page of 4 KiB in the file (4), pages (2), reserved (2) |

use crate::wire::WireReader;
use block::{Error, Result};
use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use store::chunker::{MAX_PAGES, PAGE};
use store::{ChunkId, Settings, outside};

pub(crate) const MAGIC: [u8; 8] = *b"SOJTREE\n";
/// What it is called where it is sealed.
pub(crate) const NAME: &str = "index of a tree";
/// The longest file that is read: an index of some 2 TiB.
const MAX_LEN: u64 = 1 << 30;
/// Bytes of a chunk in the file.
const ROW: usize = 40;
/// Bytes of a file without chunks and without a path.
const FILE: usize = 4 + 8 + 8 + 4 + 4;
/// The longest path.
const MAX_PATH: usize = 4096;

/// What is indexed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexedKind {
    /// A directory tree.
    Tree,
    /// A disk image, in whichever format.
    Image,
}

/// A file as it was when it was read: while this is the same, it holds the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileStamp {
    /// Its size in bytes.
    pub size: u64,
    /// When it was changed last, in Unix seconds.
    pub seconds: i64,
    /// … and nanoseconds.
    pub nanos: u32,
}

/// A file and its chunks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IndexedFile {
    /// Below the root; empty for an image.
    pub(crate) path: PathBuf,
    pub(crate) stamp: FileStamp,
    pub(crate) rows: Vec<IndexRow>,
}

/// A chunk in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct IndexRow {
    pub(crate) id: ChunkId,
    pub(crate) page: u32,
    pub(crate) pages: u16,
}

/// What is known of a tree or an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentIndex {
    pub(crate) kind: IndexedKind,
    pub(crate) root: PathBuf,
    pub(crate) files: Vec<IndexedFile>,
}

impl ContentIndex {
    /// An index of nothing yet.
    pub fn new(kind: IndexedKind, root: impl Into<PathBuf>) -> Self {
        Self { kind, root: root.into(), files: Vec::new() }
    }

    /// What is indexed.
    pub fn kind(&self) -> IndexedKind {
        self.kind
    }

    /// The directory or the image file.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// How many files have chunks.
    pub fn files(&self) -> u64 {
        self.files.len() as u64
    }

    /// How many chunks it names, some perhaps more than once.
    pub fn chunks(&self) -> u64 {
        self.files.iter().map(|file| file.rows.len() as u64).sum()
    }

    /// The files by their paths.
    pub(crate) fn by_path(self) -> HashMap<PathBuf, IndexedFile> {
        self.files.into_iter().map(|file| (file.path.clone(), file)).collect()
    }

    /// The file that holds it.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) when it would be longer than 1 GiB.
    pub fn encode(&self, settings: &Settings) -> Result<Vec<u8>> {
        let rows = self.chunks() as usize * ROW;
        let mut body = Vec::with_capacity(rows + self.files.len() * 64);
        body.push(match self.kind {
            IndexedKind::Tree => 0,
            IndexedKind::Image => 1,
        });
        put_path(&mut body, &self.root);
        body.extend_from_slice(&(self.files.len() as u32).to_le_bytes());
        for file in &self.files {
            put_path(&mut body, &file.path);
            body.extend_from_slice(&file.stamp.size.to_le_bytes());
            body.extend_from_slice(&file.stamp.seconds.to_le_bytes());
            body.extend_from_slice(&file.stamp.nanos.to_le_bytes());
            body.extend_from_slice(&(file.rows.len() as u32).to_le_bytes());
            for row in &file.rows {
                body.extend_from_slice(row.id.as_bytes());
                body.extend_from_slice(&row.page.to_le_bytes());
                body.extend_from_slice(&row.pages.to_le_bytes());
                body.extend_from_slice(&[0; 2]);
            }
        }
        if body.len() as u64 > MAX_LEN - 4096 {
            return Err(Error::unsupported(format!(
                "an index of {} would be longer than 1 GiB; index parts of it",
                self.root.display()
            )));
        }
        outside::encode(settings, MAGIC, NAME, &body)
    }
}

fn put_path(body: &mut Vec<u8>, path: &Path) {
    let bytes = path.as_os_str().as_bytes();
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(bytes);
}

fn take_path(reader: &mut WireReader<'_>) -> Result<PathBuf> {
    let len = reader.u32()? as usize;
    if len > MAX_PATH {
        return Err(reader.damaged("a path is too long"));
    }
    Ok(PathBuf::from(OsStr::from_bytes(reader.take(len)?)))
}

/// Reads the file of an index.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it breaks its format;
/// [`Unsupported`](block::ErrorKind::Unsupported) when that is newer;
/// [`Invalid`](block::ErrorKind::Invalid) when it is another store's.
pub fn decode(settings: &Settings, bytes: &[u8]) -> Result<ContentIndex> {
    let body = outside::decode(settings, MAGIC, NAME, bytes)?;
    let mut reader = WireReader::new(NAME, &body);
    let kind = match reader.u8()? {
        0 => IndexedKind::Tree,
        1 => IndexedKind::Image,
        _ => return Err(reader.damaged("it is of nothing that is known")),
    };
    let root = take_path(&mut reader)?;
    let count = reader.count(FILE)?;
    if kind == IndexedKind::Image && count > 1 {
        return Err(reader.damaged("an image is one file"));
    }
    let mut files = Vec::with_capacity(count);
    for _ in 0..count {
        let path = take_path(&mut reader)?;
        let is_below = path.components().all(|part| matches!(part, Component::Normal(_)))
            && path.as_os_str().is_empty() == (kind == IndexedKind::Image)
            && !path.as_os_str().as_bytes().contains(&0);
        if !is_below {
            return Err(reader.damaged("a path leads elsewhere"));
        }
        let stamp =
            FileStamp { size: reader.u64()?, seconds: reader.u64()? as i64, nanos: reader.u32()? };
        let chunks = reader.count(ROW)?;
        let mut rows = Vec::with_capacity(chunks);
        for _ in 0..chunks {
            let row =
                IndexRow { id: ChunkId(reader.id()?), page: reader.u32()?, pages: reader.u16()? };
            let reserved = reader.u16()?;
            let starts_inside =
                u64::from(row.page) * (PAGE as u64) < stamp.size || kind == IndexedKind::Image;
            let fits = (1..=MAX_PAGES as u16).contains(&row.pages);
            if !starts_inside || !fits || reserved != 0 {
                return Err(reader.damaged("a chunk's place is not possible"));
            }
            rows.push(row);
        }
        files.push(IndexedFile { path, stamp, rows });
    }
    reader.end()?;
    Ok(ContentIndex { kind, root, files })
}
