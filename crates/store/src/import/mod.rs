//! From a device or a stream to a manifest.
//!
//! Three stages: `feed` cuts bytes into chunks, `pipeline` hashes and compresses them on all
//! cores, `writer` stores packs, segments and the root in that order. Memory is bounded but for
//! the index of the chunks that the store has (48 bytes for each) and of those that this import
//! adds (some 100 bytes for each).

mod anew;
mod cut;
mod derive;
mod feed;
mod pipeline;
mod prepared;
mod sections;
mod writer;

pub(crate) use anew::anew;
pub(crate) use cut::search;
pub use derive::{KnownPiece, MAX_PIECES, derive, derive_with_known};

use crate::manifest_root;
use crate::object_kind;
use crate::{ManifestId, Progress, Session};
use block::{BLOCK, Device, Error, Result};
use pipeline::Pipeline;
use sections::Sections;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt};

/// How changed ranges become chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grain {
    /// By content, as a full import: for what others will share (image versions).
    Content,
    /// Only the changed blocks, cut at multiples of 64 KiB: for what is written often (snapshots).
    Blocks,
}

/// What an import did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// The manifest; a ref makes it visible.
    pub manifest: ManifestId,
    /// The image's size in bytes.
    pub size: u64,
    /// Figures.
    pub stats: ImportStats,
}

/// Figures of an import, in chunks and plain bytes unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ImportStats {
    /// Bytes that were looked at, holes included; for [`derive()`], the changed ones and their
    /// neighbourhood.
    pub scanned: u64,
    /// Bytes of these that are zero, and are not stored.
    pub zero: u64,
    /// Chunks that were not in the store.
    pub new_chunks: u64,
    /// Their bytes.
    pub new_bytes: u64,
    /// Bytes that they take in packs.
    pub stored_bytes: u64,
    /// Chunks that were there already.
    pub reused_chunks: u64,
    /// Their bytes.
    pub reused_bytes: u64,
    /// Packs written.
    pub packs: u64,
}

/// Fails when no image may have this size in bytes.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is 0, not a multiple of 512, or above 256 TiB.
pub fn check_size(size: u64) -> Result<()> {
    manifest_root::check_size(size)
}

/// Imports a device. What the store has already is not stored again, so an import that was
/// interrupted goes on where it ended.
///
/// Nothing refers to the manifest yet. Everything that it names is durable, and stays until the
/// session ends.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the size is 0, not a multiple of 512, or above
/// 256 TiB; the source's, naming the offset; the backend's, naming the object.
pub async fn from_device(
    session: &Session,
    source: &dyn Device,
    progress: &dyn Progress,
) -> Result<Imported> {
    let size = source.size();
    check_size(size)?;
    let mut pipeline = Pipeline::new(session, progress).await?;
    let mut sections = Sections::new(source, size);
    let mut at = 0;
    while at < size {
        let (hole, until) = sections.at(at).await?;
        if hole {
            pipeline.feed.count_hole(until - at);
            pipeline.feed.jump(until.div_ceil(BLOCK));
            at = until;
        } else {
            at = sections.feed(&mut pipeline.feed, at, until).await?;
        }
        pipeline.advance().await?;
    }
    pipeline.finish(size).await
}

/// Imports what a reader gives until it ends; as [`from_device`].
///
/// # Errors
/// Any error from [`from_device`]; the size is known, and checked, at the end.
pub async fn from_stream(
    session: &Session,
    mut reader: impl AsyncRead + Unpin + Send,
    progress: &dyn Progress,
) -> Result<Imported> {
    let mut pipeline = Pipeline::new(session, progress).await?;
    let mut size = 0u64;
    let mut ended = false;
    while !ended && size <= object_kind::MAX_IMAGE {
        let room = pipeline.feed.room();
        let buffer = pipeline.feed.extend(room);
        let mut filled = 0;
        while filled < room && !ended {
            match reader.read(&mut buffer[filled..]).await {
                Ok(0) => ended = true,
                Ok(n) => filled += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let at = size + filled as u64;
                    return Err(Error::io(format!("reading the source at offset {at}"), e));
                }
            }
        }
        pipeline.feed.shorten(room - filled);
        pipeline.feed.scan();
        size += filled as u64;
        pipeline.advance().await?;
    }
    check_size(size)?;
    pipeline.finish(size).await
}

#[cfg(test)]
mod tests;
