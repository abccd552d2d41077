//! From a device or a stream to a manifest.

use crate::{Manifest, ManifestId, Store};
use block::{Device, Error, Result, Span};
use serde::Serialize;
use tokio::io::AsyncRead;

/// Hears how far an import or a verification is.
pub trait Progress: Send + Sync {
    /// So many more bytes of the image were done with (holes included), and so many more were
    /// written to the store (import) or read from it (verification).
    fn advance(&self, scanned: u64, stored: u64);
}

/// Nobody listens.
impl Progress for () {
    fn advance(&self, _: u64, _: u64) {}
}

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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
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

/// Imports a device.
pub async fn from_device(
    store: &Store,
    source: &dyn Device,
    progress: &dyn Progress,
) -> Result<Imported> {
    let _ = (store, source, progress);
    Err(Error::internal("not yet"))
}

/// Imports what a reader gives until it ends.
pub async fn from_stream(
    store: &Store,
    reader: impl AsyncRead + Unpin + Send,
    progress: &dyn Progress,
) -> Result<Imported> {
    let _ = (store, reader, progress);
    Err(Error::internal("not yet"))
}

/// The manifest of `view`, which is `base` but for `changed`.
pub async fn derive(
    store: &Store,
    base: &Manifest,
    size: u64,
    view: &dyn Device,
    changed: &[Span],
    grain: Grain,
    progress: &dyn Progress,
) -> Result<Imported> {
    let _ = (store, base, size, view, changed, grain, progress);
    Err(Error::internal("not yet"))
}
