//! A manifest as a read-only device.

use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Result, Span, ZeroMode, extent,
};
use bytes::Bytes;
use cache::Cache;
use futures::stream::{self, TryStreamExt};
use parking_lot::Mutex;
use std::ops::ControlFlow;
use std::sync::Arc;
use store::{ChunkRef, Content, Manifest, Piece, Store};
use tokio::task::JoinSet;

/// Chunks that one read loads at the same time.
const LOADS: usize = 8;
/// Chunks that are fetched ahead at the same time; more requests to do so are dropped.
const AHEAD: usize = 16;
/// How much of a manifest is looked at in one step when it is asked for extents: a segment.
const WINDOW: u64 = 256 << 20;

/// The content of a manifest, read through the cache. Chunks are verified when they enter it.
pub struct Image {
    source: Arc<Source>,
    /// Chunks that are being fetched ahead; they end with the image.
    ahead: Mutex<JoinSet<()>>,
}

struct Source {
    store: Store,
    manifest: Arc<Manifest>,
    cache: Arc<Cache>,
}

impl Source {
    async fn chunk(&self, at: ChunkRef) -> Result<Bytes> {
        self.cache.get_or_load(at.id.as_bytes(), self.store.read_chunk(&at)).await
    }
}

/// The bytes of a chunk that a piece shows.
fn part<'a>(at: &ChunkRef, skip: u32, span: Span, chunk: &'a [u8]) -> Result<&'a [u8]> {
    let start = skip as usize;
    chunk.get(start..start + span.len() as usize).ok_or_else(|| {
        Error::corrupt(format!(
            "chunk {}: has {} bytes, but the manifest shows {} from {start}; verify the image",
            at.id,
            chunk.len(),
            span.len()
        ))
    })
}

impl Image {
    /// The image that `manifest` describes; its chunks come from `store` through `cache`.
    pub fn new(store: Store, manifest: Arc<Manifest>, cache: Arc<Cache>) -> Self {
        let source = Arc::new(Source { store, manifest, cache });
        Self { source, ahead: Mutex::new(JoinSet::new()) }
    }

    /// What it shows.
    pub fn manifest(&self) -> &Arc<Manifest> {
        &self.source.manifest
    }

    /// Whether the cache holds every chunk that `span` shows; no access of it.
    fn holds(&self, span: Span) -> Result<bool> {
        let mut all = true;
        let attempt = self.source.manifest.try_pieces(span, &mut |piece| {
            if let Content::Chunk { at, .. } = piece.content {
                all &= self.source.cache.contains(at.id.as_bytes());
            }
            Ok(if all { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
        Ok(all && attempt == Attempt::Done)
    }

    fn refuse(&self) -> Error {
        Error::denied(format!(
            "image {} never changes; create a disk from it to write",
            self.source.manifest.id()
        ))
    }
}

#[async_trait]
impl Device for Image {
    fn size(&self) -> u64 {
        self.source.manifest.size()
    }

    fn read_only(&self) -> bool {
        true
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        // What is inside one block is inside one chunk. Elsewhere all is looked for first: a chunk
        // that is taken here and again by the read that waits would count as used twice.
        let blocks = span.align_outward(BLOCK).len() / BLOCK;
        if blocks > 1 && !self.holds(span)? {
            return Ok(Attempt::WouldWait);
        }
        let mut all = true;
        let attempt = self.source.manifest.try_pieces(span, &mut |piece| {
            let target = &mut buf[piece.span.index_in(span)];
            match piece.content {
                Content::Hole => target.fill(0),
                Content::Chunk { at, skip } => match self.source.cache.get(at.id.as_bytes()) {
                    Some(chunk) => target.copy_from_slice(part(&at, skip, piece.span, &chunk)?),
                    None => {
                        all = false;
                        return Ok(ControlFlow::Break(()));
                    }
                },
            }
            Ok(ControlFlow::Continue(()))
        })?;
        Ok(if all { attempt } else { Attempt::WouldWait })
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let pieces = self.source.manifest.pieces(span).await?;
        let mut rest = buf;
        let mut loads: Vec<(Piece, &mut [u8])> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let (target, behind) = rest.split_at_mut(piece.span.len() as usize);
            rest = behind;
            loads.push((piece, target));
        }
        stream::iter(loads.into_iter().map(Ok))
            .try_for_each_concurrent(LOADS, |(piece, target)| async move {
                match piece.content {
                    Content::Hole => target.fill(0),
                    Content::Chunk { at, skip } => {
                        let chunk = self.source.chunk(at).await?;
                        target.copy_from_slice(part(&at, skip, piece.span, &chunk)?);
                    }
                }
                Ok(())
            })
            .await
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(self.refuse())
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        for window in span.pieces(WINDOW) {
            for piece in self.source.manifest.pieces(window).await? {
                let kind = match piece.content {
                    Content::Hole => ExtentKind::Hole,
                    Content::Chunk { .. } => ExtentKind::Data,
                };
                extent::push(&mut list, piece.span, kind);
            }
            if list.len() > limit {
                list.truncate(limit);
                break;
            }
        }
        Ok(list)
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        let mut wanted = Vec::new();
        let _ = self.source.manifest.try_pieces(span, &mut |piece| {
            if let Content::Chunk { at, .. } = piece.content
                && !self.source.cache.contains(at.id.as_bytes())
            {
                wanted.push(at);
            }
            Ok(if wanted.len() < AHEAD {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            })
        })?;
        if wanted.is_empty() {
            return Ok(());
        }
        let mut ahead = self.ahead.lock();
        while ahead.try_join_next().is_some() {}
        for at in wanted {
            if ahead.len() >= AHEAD {
                break;
            }
            let source = Arc::clone(&self.source);
            ahead.spawn(async move {
                if let Err(error) = source.chunk(at).await {
                    tracing::debug!(%error, "cannot fetch ahead");
                }
            });
        }
        Ok(())
    }
}
