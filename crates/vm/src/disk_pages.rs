//! Pages of memory that are blocks of the machine's own disk: what a guest has in its page cache is in the store
//! already.
//!
//! The pages that are to be stored are known by a hash; then chunks of the disk are looked through for blocks that have
//! one of these. Only chunks that can be read without a network are: those that the guest has read are, as a rule. What
//! the hash finds is compared byte by byte. Pages that follow each other both in memory and in a chunk are named as a
//! part of that chunk, if they are enough or that chunk is named anyway, and the longest ones where an extent would have
//! too many parts: whoever reads all of an extent fetches a chunk for each.

use crate::{EXTENT, PAGE};
use async_trait::async_trait;
use block::{Device, Result, Span, offload};
use disk::{ChunkLine, Loader};
use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hasher};
use std::ops::Range;
use std::sync::Arc;
use store::import::MAX_PIECES;
use store::{ChunkId, ChunkRef, Content, KnownPiece, Manifest};

/// Bytes of a segment of a manifest: no part crosses the end of one.
const SEGMENT: u64 = 256 << 20;
/// So many pages are worth to look for: 8 MiB. What an idle guest changed is less, and next to nothing of it is found.
pub(crate) const WORTH_A_SEARCH: usize = 2048;
/// The fewest pages that are named as a part of a chunk: for fewer the chunk, of 76 KiB in the mean, would be much to
/// fetch. Of what a booted Debian has of its disk three quarters of the runs are single pages, a seventh of the pages.
/// Those of a chunk that is named for as many elsewhere are named, too: who goes on with the memory fetches that anyway.
const TOGETHER: u64 = 4;
/// So many pieces of the disk's manifest are looked at: 3.5 MiB of maps, which may have to be fetched, of some 5 GB.
const MOST_PIECES: usize = 1 << 16;
/// How many pages that are alike are looked for at the most.
const ALIKE: usize = 16;

/// Whoever knows which chunks can be read without a network.
#[async_trait]
pub trait NearbyChunks: Send + Sync {
    /// The chunks that can be read without a network.
    ///
    /// # Errors
    /// Any error from the file system.
    async fn at_hand(&self, chunks: Vec<ChunkRef>) -> Result<Vec<ChunkRef>>;
}

/// The disk of a machine that is stored.
#[derive(Clone, Copy)]
pub struct StoredDisk<'a> {
    /// What it holds; it has a ref, or is held.
    pub contents: &'a Manifest,
    /// Through which it is read.
    pub loader: &'a Arc<Loader>,
    /// Fewer pages than these are not looked for.
    pub fewest: usize,
    /// Which of it may be read.
    pub nearby: &'a dyn NearbyChunks,
}

/// Where a block of the disk was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FoundPage {
    chunk: u32,
    /// Its number in the chunk.
    page: u32,
}

/// What is to become of changed parts of a view.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct DiskParts {
    /// Parts that are parts of chunks of the disk, in order.
    pub(crate) known: Vec<KnownPiece>,
    /// What is to be stored, in order.
    pub(crate) stored: Vec<Span>,
}

/// Which parts of `spans` of `view` are parts of chunks of the disk. With `over_holes` there is nothing yet where they
/// are: what is zero has not to be stored. Reads no more of the disk than `most` bytes.
///
/// # Errors
/// Any error from the view, the store and the file system.
pub(crate) async fn find(
    view: &dyn Device,
    spans: &[Span],
    over_holes: bool,
    disk: StoredDisk<'_>,
    most: u64,
) -> Result<DiskParts> {
    let wanted = Arc::new(PageHashes::of(view, spans).await?);
    if wanted.0.len() < disk.fewest {
        return Ok(DiskParts { known: Vec::new(), stored: spans.to_vec() });
    }
    let line = disk.loader.chunk_line();
    let chunks = chunks_of(disk.contents).await?;
    let all = chunks.len();
    let chunks = disk.nearby.at_hand(chunks).await?;
    let nearby = chunks.len();
    let mut found = FoundPages::default();
    let mut left = most;
    for at in chunks {
        let Some(rest) = left.checked_sub(u64::from(at.len)) else { break };
        left = rest;
        let bytes = line.chunk(&at, false).await?;
        let wanted = Arc::clone(&wanted);
        let here = offload(move || Ok(wanted.in_chunk(&bytes))).await?;
        found.add(at, &here);
    }
    found.keep_same(view, &line).await?;
    tracing::debug!(
        pages = wanted.0.len(),
        found = found.pages.len(),
        chunks = all,
        nearby,
        read = most - left,
        "memory was looked for in the disk"
    );
    let wanted: HashSet<u64> = wanted.0.iter().map(|(_, block)| *block).collect();
    let is_stored = |block: u64| !over_holes || wanted.contains(&block);
    let extents = || spans.iter().flat_map(|span| span.pieces(EXTENT));
    let mut named = HashSet::new();
    for extent in extents() {
        let runs = found.runs(extent.offset() / PAGE..extent.end() / PAGE);
        named.extend(runs.iter().filter(|run| is_long(run)).map(|run| run.at.id));
    }
    let mut parts = DiskParts::default();
    for extent in extents() {
        parts.add(extent, &found, &named, &is_stored);
    }
    Ok(parts)
}

/// Whether a run is named whatever its chunk is.
fn is_long(run: &KnownPiece) -> bool {
    run.span.len() >= TOGETHER * PAGE
}

impl DiskParts {
    /// Adds what becomes of one extent, or of a part of one. Of the chunks in `named` there are long runs somewhere.
    fn add(
        &mut self,
        extent: Span,
        found: &FoundPages,
        named: &HashSet<ChunkId>,
        is_stored: &dyn Fn(u64) -> bool,
    ) {
        let blocks = extent.offset() / PAGE..extent.end() / PAGE;
        let mut known: Vec<KnownPiece> = found.runs(blocks.clone());
        known.retain(|piece| is_long(piece) || named.contains(&piece.at.id));
        let stored = loop {
            let stored = between(&blocks, &known, is_stored);
            if known.is_empty() {
                break vec![extent];
            }
            if known.len() + stored.len() <= MAX_PIECES {
                break stored;
            }
            // The shortest one goes.
            let shortest = known.iter().enumerate().min_by_key(|(_, piece)| piece.span.len());
            if let Some((index, _)) = shortest {
                known.remove(index);
            }
        };
        self.known.append(&mut known);
        self.stored.extend(stored);
    }
}

/// The runs of blocks that are to be stored, and in none of the known pieces.
fn between(
    blocks: &Range<u64>,
    known: &[KnownPiece],
    is_stored: &dyn Fn(u64) -> bool,
) -> Vec<Span> {
    let is_known = |block: u64| {
        let at = block * PAGE;
        known.iter().any(|piece| piece.span.offset() <= at && at < piece.span.end())
    };
    let mut spans: Vec<Span> = Vec::new();
    for block in blocks.clone().filter(|block| is_stored(*block) && !is_known(*block)) {
        let (start, end) = (block * PAGE, (block + 1) * PAGE);
        match spans.last_mut() {
            Some(last) if last.end() == start => *last = Span::between(last.offset(), end),
            _ => spans.push(Span::between(start, end)),
        }
    }
    spans
}

/// The chunks of a manifest, each once, in the order of the image; those in its first [`MOST_PIECES`].
async fn chunks_of(manifest: &Manifest) -> Result<Vec<ChunkRef>> {
    let mut seen: HashSet<ChunkId> = HashSet::new();
    let mut chunks = Vec::new();
    let mut left = MOST_PIECES;
    for segment in Span::whole(manifest.size()).pieces(SEGMENT) {
        let pieces = manifest.pieces(segment).await?;
        let Some(rest) = left.checked_sub(pieces.len()) else { break };
        left = rest;
        for piece in pieces {
            if let Content::Chunk { at, .. } = piece.content
                && seen.insert(at.id)
            {
                chunks.push(at);
            }
        }
    }
    Ok(chunks)
}

/// Pages that are looked for, by their hash: in order.
struct PageHashes(Vec<(u64, u64)>);

impl PageHashes {
    /// The hashes of the pages in `spans` that are not zero.
    async fn of(view: &dyn Device, spans: &[Span]) -> Result<Self> {
        let mut all = Vec::new();
        for span in spans.iter().flat_map(|span| span.pieces(EXTENT)) {
            // The last page of an image may be cut; it is none of a disk.
            let len = span.len() / PAGE * PAGE;
            let mut bytes = vec![0; len as usize];
            view.read(Span::between(span.offset(), span.offset() + len), &mut bytes).await?;
            let first = span.offset() / PAGE;
            all.extend(offload(move || Ok(hashes(&bytes, first))).await?);
        }
        all.sort_unstable();
        Ok(Self(all))
    }

    /// The blocks that are looked for and have the hash of one of the pages of a chunk, with the page's number.
    fn in_chunk(&self, chunk: &[u8]) -> Vec<(u64, u32)> {
        let mut here = Vec::new();
        for (hash, page) in hashes(chunk, 0) {
            let range = self.alike(hash);
            here.extend(self.0[range].iter().take(ALIKE).map(|(_, block)| (*block, page as u32)));
        }
        // So that each is seen behind the one before it.
        here.sort_unstable();
        here
    }

    fn alike(&self, hash: u64) -> Range<usize> {
        let start = self.0.partition_point(|(other, _)| *other < hash);
        let len = self.0[start..].partition_point(|(other, _)| *other == hash);
        start..start + len
    }
}

/// The hash and the number of each page that is not zero; the first one has the number `first`.
fn hashes(bytes: &[u8], first: u64) -> Vec<(u64, u64)> {
    let pages = bytes.chunks_exact(PAGE as usize).zip(first..);
    let some = pages.filter(|(page, _)| page.iter().any(|byte| *byte != 0));
    some.map(|(page, number)| {
        let mut hasher = DefaultHasher::new();
        hasher.write(page);
        (hasher.finish(), number)
    })
    .collect()
}

/// The pages that were found, and in which chunks.
#[derive(Debug, Default)]
struct FoundPages {
    pages: BTreeMap<u64, FoundPage>,
    chunks: Vec<ChunkRef>,
}

impl FoundPages {
    /// Adds what was found in a chunk: blocks in order, each with the number of a page of the chunk.
    fn add(&mut self, at: ChunkRef, here: &[(u64, u32)]) {
        if here.is_empty() {
            return;
        }
        let chunk = self.chunks.len() as u32;
        self.chunks.push(at);
        for (block, page) in here.iter().copied() {
            let before = block.checked_sub(1).and_then(|block| self.pages.get(&block));
            let goes_on =
                page.checked_sub(1).is_some_and(|page| before == Some(&FoundPage { chunk, page }));
            // The one that goes on with what is before it, or the first one.
            if goes_on || !self.pages.contains_key(&block) {
                self.pages.insert(block, FoundPage { chunk, page });
            }
        }
    }

    /// The pieces of chunks among these blocks, in order. No two of them go on with each other.
    fn runs(&self, blocks: Range<u64>) -> Vec<KnownPiece> {
        let mut pieces: Vec<KnownPiece> = Vec::new();
        for (block, FoundPage { chunk, page }) in self.pages.range(blocks) {
            let Some(at) = self.chunks.get(*chunk as usize) else { continue };
            let (start, skip) = (block * PAGE, page * PAGE as u32);
            match pieces.last_mut() {
                Some(last)
                    if last.at == *at
                        && last.span.end() == start
                        && u64::from(last.skip) + last.span.len() == u64::from(skip) =>
                {
                    last.span = Span::between(last.span.offset(), start + PAGE);
                }
                _ => {
                    let span = Span::between(start, start + PAGE);
                    pieces.push(KnownPiece { span, at: *at, skip });
                }
            }
        }
        pieces
    }

    /// Keeps the pages that are what is in their chunks, byte by byte.
    async fn keep_same(&mut self, view: &dyn Device, line: &ChunkLine) -> Result<()> {
        for run in self.runs(0..u64::MAX) {
            let chunk = line.chunk(&run.at, false).await?;
            // A run is within a chunk, and none is longer than 256 KiB.
            let mut bytes = vec![0; run.span.len() as usize];
            view.read(run.span, &mut bytes).await?;
            let from = run.skip as usize;
            if chunk.get(from..from + bytes.len()) != Some(&bytes[..]) {
                for block in run.span.offset() / PAGE..run.span.end() / PAGE {
                    self.pages.remove(&block);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// All chunks can be read without a network.
    pub(crate) struct AllNearby;

    #[async_trait]
    impl NearbyChunks for AllNearby {
        async fn at_hand(&self, chunks: Vec<ChunkRef>) -> Result<Vec<ChunkRef>> {
            Ok(chunks)
        }
    }

    /// None can.
    pub(crate) struct NoneNearby;

    #[async_trait]
    impl NearbyChunks for NoneNearby {
        async fn at_hand(&self, _: Vec<ChunkRef>) -> Result<Vec<ChunkRef>> {
            Ok(Vec::new())
        }
    }
}
