//! A manifest from another one and what changed.

use super::feed::FeedItem;
use super::pipeline::Pipeline;
use super::sections::Sections;
use super::{Grain, Imported};
use crate::Progress;
use crate::chunker::{PAGE, SEGMENT_PAGES, is_zero};
use crate::manifest_root;
use crate::segment::Placed;
use crate::{ChunkRef, Manifest, Session};
use block::{BLOCK, Device, Error, Result, Span};
use bytes::Bytes;
use std::ops::Range;

/// Blocks of an extent of [`Grain::Blocks`]: 64 KiB.
const EXTENT: u64 = 16;
/// With [`Grain::Blocks`] an extent of 64 KiB with more pieces is stored anew.
pub const MAX_PIECES: usize = 4;
/// Blocks that are read at a time.
const READ: u64 = 256;

/// A part of an image of which it is known that it is a part of a chunk of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownPiece {
    /// Where, in bytes of the image: at multiples of 4 KiB, inside one segment of 256 MiB.
    pub span: Span,
    /// The chunk. It has a ref, or is held, until the new manifest has one.
    pub at: ChunkRef,
    /// The byte of the chunk at which the part starts: a multiple of 4 KiB.
    pub skip: u32,
}

/// The manifest of `view`, a device of `size` bytes that holds what `base` does but for the
/// `changed` ranges: sorted, apart, each with ends at multiples of 4 KiB or at `size`. Where `view`
/// is longer than `base`, the rest of it is zero unless it changed.
///
/// With [`Grain::Content`] the result is that of [`from_device`](super::from_device) on `view`, if
/// `base` came from there: cutting starts at the chunk before a change and goes on until a cut
/// falls on one of the base's behind it. Segments without a change are shared and not even read.
///
/// `base` has a ref, or is held, until the new manifest has one.
///
/// # Errors
/// Any error from [`from_device`](super::from_device); [`Invalid`](block::ErrorKind::Invalid) for ranges that
/// are not as said.
pub async fn derive(
    session: &Session,
    base: &Manifest,
    size: u64,
    view: &dyn Device,
    changed: &[Span],
    grain: Grain,
    progress: &dyn Progress,
) -> Result<Imported> {
    derive_with_known(session, base, size, view, (changed, &[]), grain, progress).await
}

/// Does what [`derive`] does, and takes parts of the image that are `known` to be parts of chunks from those chunks: the
/// new manifest names them, and they are not stored, unless the extent that such a part lies in is stored anew. The known
/// parts are sorted, and apart from each other and from the `changed` ranges.
///
/// # Errors
/// Any error from [`derive`]; [`Invalid`](block::ErrorKind::Invalid) for known parts that are out of order, not
/// aligned to 4 KiB, in two segments, beyond the end, or not inside their chunk.
pub async fn derive_with_known(
    session: &Session,
    base: &Manifest,
    size: u64,
    view: &dyn Device,
    (changed, known): (&[Span], &[KnownPiece]),
    grain: Grain,
    progress: &dyn Progress,
) -> Result<Imported> {
    manifest_root::check_size(size)?;
    let changed = changes(base.size(), size, changed)?;
    check_known(known, size)?;
    if view.size() < size {
        return Err(Error::invalid(format!(
            "the view has {} bytes, less than the size asked for ({size})",
            view.size()
        )));
    }
    if u64::from(view.limits().minimum) > BLOCK {
        return Err(Error::unsupported("the view cannot be read in blocks of 4 KiB"));
    }
    let mut derivation = Derivation {
        pipeline: Pipeline::new(session, progress).await?,
        sections: Sections::new(view, size),
        blocks: size.div_ceil(BLOCK),
        size,
        origin: 0,
        pieces: Vec::new(),
    };
    let mut rest = changed.as_slice();
    for segment in 0..size.div_ceil(BLOCK * SEGMENT_PAGES) {
        let start = segment * SEGMENT_PAGES;
        let end = (start + SEGMENT_PAGES).min(derivation.blocks);
        let within: Vec<Range<u64>> = rest
            .iter()
            .take_while(|range| range.start < end)
            .map(|range| range.start.max(start)..range.end.min(end))
            .collect();
        let passed = rest.iter().take_while(|range| range.end <= end).count();
        rest = &rest[passed..];
        let named = placed(known, start, end);
        if within.is_empty() && named.is_empty() {
            if let Some(id) = base.segment_id(segment as usize) {
                derivation.pipeline.feed.push(FeedItem::Shared { segment, id });
                derivation.pipeline.advance().await?;
            }
            continue;
        }
        derivation.origin = start;
        derivation.pieces.clear();
        let pieces = &mut derivation.pieces;
        base.visit(segment as usize, |placed| pieces.push(placed)).await?;
        derivation.clip((end - start) as u32);
        derivation.put(named);
        match grain {
            Grain::Content => derivation.content(&within, end).await?,
            Grain::Blocks => derivation.blocks(&within, end).await?,
        }
        derivation.pipeline.feed.jump(end);
    }
    derivation.pipeline.finish(size).await
}

/// The changed blocks, checked and joined. When the image shrinks, its last block changes: the
/// bytes behind the new end must be zero.
fn changes(old: u64, size: u64, changed: &[Span]) -> Result<Vec<Range<u64>>> {
    let blocks = size.div_ceil(BLOCK);
    let mut ranges: Vec<Range<u64>> = Vec::with_capacity(changed.len() + 1);
    let mut add = |range: Range<u64>| match ranges.last_mut() {
        Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
        _ => ranges.push(range),
    };
    let mut at = 0;
    for span in changed {
        let ends_well = span.end().is_multiple_of(BLOCK) || span.end() == size;
        let starts_well = span.offset().is_multiple_of(BLOCK) && span.offset() >= at;
        if !starts_well || !ends_well || span.end() > size {
            return Err(Error::invalid(format!(
                "changed range of {} bytes at offset {} is out of order, not aligned to {BLOCK} \
                 bytes, or beyond the end ({size} bytes)",
                span.len(),
                span.offset()
            )));
        }
        at = span.end();
        if !span.is_empty() {
            add(span.offset() / BLOCK..span.end().div_ceil(BLOCK));
        }
    }
    if size < old {
        add(blocks - 1..blocks);
    }
    Ok(ranges)
}

/// Fails unless known parts are as [`derive_with_known`] wants them.
fn check_known(known: &[KnownPiece], size: u64) -> Result<()> {
    let mut at = 0;
    for KnownPiece { span, at: chunk, skip } in known {
        let aligned = [span.offset(), span.len(), u64::from(*skip)];
        let is_aligned = aligned.iter().all(|bytes| bytes.is_multiple_of(BLOCK));
        let segment = |byte: u64| byte / (BLOCK * SEGMENT_PAGES);
        let is_inside = u64::from(*skip) + span.len() <= u64::from(chunk.len);
        let follows = span.offset() >= at && !span.is_empty() && span.end() <= size;
        if !(is_aligned && is_inside && follows)
            || segment(span.offset()) != segment(span.end() - 1)
        {
            return Err(Error::invalid(format!(
                "the known part of {} bytes at offset {} is out of order, not aligned to {BLOCK} bytes, in two \
                 segments, beyond the end, or not inside its chunk",
                span.len(),
                span.offset()
            )));
        }
        at = span.end();
    }
    Ok(())
}

/// The known parts in the segment of these blocks, as its pieces.
fn placed(known: &[KnownPiece], start: u64, end: u64) -> Vec<Placed> {
    let first = known.partition_point(|piece| piece.span.offset() < start * BLOCK);
    let here = known[first..].iter().take_while(|piece| piece.span.offset() < end * BLOCK);
    let place = |KnownPiece { span, at, skip }: &KnownPiece| Placed {
        start: (span.offset() / BLOCK - start) as u32,
        blocks: (span.len() / BLOCK) as u32,
        skip: (u64::from(*skip) / BLOCK) as u32,
        at: *at,
    };
    here.map(place).collect()
}

/// The work on one segment. Blocks are numbered from the image's start, pieces from the segment's.
struct Derivation<'a> {
    pipeline: Pipeline<'a>,
    sections: Sections<'a>,
    /// Blocks of the image.
    blocks: u64,
    size: u64,
    /// The segment's first block.
    origin: u64,
    /// What the base has in the segment.
    pieces: Vec<Placed>,
}

impl Derivation<'_> {
    /// Cuts the base's pieces off at the end of a shorter image.
    fn clip(&mut self, blocks: u32) {
        self.pieces.retain(|piece| piece.start < blocks);
        if let Some(last) = self.pieces.last_mut()
            && last.end() > blocks
        {
            *last = last.part(last.start, blocks);
        }
    }

    /// Puts pieces in order in the place of what the base has there.
    fn put(&mut self, named: Vec<Placed>) {
        if named.is_empty() {
            return;
        }
        let mut merged = named.clone();
        for piece in &self.pieces {
            let mut at = piece.start;
            let first = named.partition_point(|other| other.end() <= piece.start);
            for other in named[first..].iter().take_while(|other| other.start < piece.end()) {
                if other.start > at {
                    merged.push(piece.part(at, other.start));
                }
                at = other.end();
            }
            if at < piece.end() {
                merged.push(piece.part(at, piece.end()));
            }
        }
        merged.sort_unstable_by_key(|piece| piece.start);
        self.pieces = merged;
    }

    /// The piece of the base that holds a block; `None` in a hole.
    fn piece_at(&self, block: u64) -> Option<&Placed> {
        let at = (block - self.origin) as u32;
        let index = self.pieces.partition_point(|piece| piece.end() <= at);
        self.pieces.get(index).filter(|piece| piece.start <= at)
    }

    /// Where the base's piece or hole at a block ends, at most at `end`.
    fn boundary_behind(&self, block: u64, end: u64) -> u64 {
        let at = (block - self.origin) as u32;
        let index = self.pieces.partition_point(|piece| piece.end() <= at);
        match self.pieces.get(index) {
            Some(piece) if piece.start <= at => (self.origin + u64::from(piece.end())).min(end),
            Some(piece) => (self.origin + u64::from(piece.start)).min(end),
            None => end,
        }
    }

    /// Where cutting has to start for a change at a block.
    fn start_for(&self, block: u64) -> u64 {
        if let Some(piece) = self.piece_at(block) {
            return self.origin + u64::from(piece.start);
        }
        // A chunk that ended because a hole followed might go on now.
        match block.checked_sub(1).filter(|before| *before >= self.origin) {
            Some(before) => match self.piece_at(before) {
                Some(piece) => self.origin + u64::from(piece.start),
                None => block,
            },
            None => block,
        }
    }

    /// Hands on the base's pieces between two blocks.
    async fn keep(&mut self, from: u64, to: u64) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let segment = self.origin / SEGMENT_PAGES;
        let (from, to) = ((from - self.origin) as u32, (to - self.origin) as u32);
        let first = self.pieces.partition_point(|piece| piece.end() <= from);
        for index in first..self.pieces.len() {
            let piece = self.pieces[index];
            if piece.start >= to {
                break;
            }
            let placed = piece.part(piece.start.max(from), piece.end().min(to));
            self.pipeline.feed.push(FeedItem::Base { segment, placed });
            self.pipeline.advance().await?;
        }
        Ok(())
    }

    /// The byte at which a block starts, or the image's end.
    fn byte(&self, block: u64) -> u64 {
        (block * BLOCK).min(self.size)
    }

    /// [`Grain::Content`] in one segment, which ends at block `end`.
    async fn content(&mut self, changed: &[Range<u64>], end: u64) -> Result<()> {
        let mut at = self.origin; // all before is handed on
        let mut next = 0;
        while let Some(change) = changed.get(next) {
            let start = self.start_for(change.start).max(at);
            self.keep(at, start).await?;
            self.pipeline.feed.jump(start);
            at = start;
            let mut dirty = change.end;
            loop {
                while let Some(more) = changed.get(next).filter(|range| range.start <= at) {
                    dirty = dirty.max(more.end);
                    next += 1;
                }
                if at >= end {
                    break;
                }
                if at >= dirty {
                    let piece = self.piece_at(at);
                    let hole = piece.is_none();
                    let starts = piece.is_some_and(|p| self.origin + u64::from(p.start) == at);
                    if hole || (starts && self.pipeline.feed.between_chunks()) {
                        break;
                    }
                }
                let target = if at < dirty { dirty } else { self.boundary_behind(at, end) };
                at = self.cut(at, target.min(end)).await?;
            }
            self.pipeline.feed.jump(at);
        }
        self.keep(at, end).await
    }

    /// Feeds blocks of the view on, at most to `target`; returns how far.
    async fn cut(&mut self, at: u64, target: u64) -> Result<u64> {
        let (from, to) = (self.byte(at), self.byte(target));
        let (hole, until) = self.sections.at(from).await?;
        let until = until.min(to);
        let reached = if hole {
            self.pipeline.feed.count_hole(until - from);
            self.pipeline.feed.jump(until.div_ceil(BLOCK));
            until
        } else {
            self.sections.feed(&mut self.pipeline.feed, from, until).await?
        };
        self.pipeline.advance().await?;
        Ok(reached.div_ceil(BLOCK))
    }

    /// [`Grain::Blocks`] in one segment, which ends at block `end`.
    async fn blocks(&mut self, changed: &[Range<u64>], end: u64) -> Result<()> {
        let mut at = self.origin; // all before is handed on
        let mut rest = changed;
        while let Some(change) = rest.first() {
            if change.end <= at {
                rest = &rest[1..];
                continue;
            }
            let start = change.start.max(at);
            let extent = start / EXTENT * EXTENT..((start / EXTENT + 1) * EXTENT).min(end);
            self.keep(at, extent.start.max(at)).await?;
            at = if start == extent.start && change.end >= extent.end {
                self.whole_extents(start, change.end, end).await?
            } else {
                let within: Vec<Range<u64>> = rest
                    .iter()
                    .take_while(|range| range.start < extent.end)
                    .map(|range| range.start.max(start)..range.end.min(extent.end))
                    .collect();
                self.parts_of_extent(&extent, &within).await?;
                extent.end
            };
        }
        self.keep(at, end).await
    }

    /// Stores extents that changed from end to end, some at a time; returns how far.
    async fn whole_extents(&mut self, start: u64, changed_to: u64, end: u64) -> Result<u64> {
        let whole = if changed_to == end { end } else { changed_to / EXTENT * EXTENT };
        // A long range that was trimmed is not read block by block.
        let (hole, until) = self.sections.at(self.byte(start)).await?;
        if hole {
            let until = if until == self.size { self.blocks } else { until / BLOCK };
            let until = if until >= whole { whole } else { until / EXTENT * EXTENT };
            if until > start {
                let bytes = self.byte(until) - self.byte(start);
                self.pipeline.feed.count(bytes, bytes);
                self.pipeline.advance().await?;
                return Ok(until);
            }
        }
        let to = whole.min(start + READ);
        let bytes = self.read(start..to).await?;
        let mut at = start;
        while at < to {
            let next = (at + EXTENT).min(to);
            let place = ((at - start) * BLOCK) as usize..((next - start) * BLOCK) as usize;
            self.store_run(at, bytes.slice(place)).await?;
            at = next;
        }
        Ok(to)
    }

    /// Stores the changed parts of an extent, or all of it when too many pieces would be left.
    async fn parts_of_extent(&mut self, extent: &Range<u64>, parts: &[Range<u64>]) -> Result<()> {
        if self.pieces_after(extent, parts) > MAX_PIECES {
            let bytes = self.read(extent.clone()).await?;
            return self.store_run(extent.start, bytes).await;
        }
        let mut kept = extent.start;
        for part in parts {
            self.keep(kept, part.start).await?;
            let bytes = self.read(part.clone()).await?;
            self.store_run(part.start, bytes).await?;
            kept = part.end;
        }
        self.keep(kept, extent.end).await
    }

    /// Reads blocks of the view; the last one is padded with zeroes.
    async fn read(&self, blocks: Range<u64>) -> Result<Bytes> {
        let mut bytes = vec![0; ((blocks.end - blocks.start) * BLOCK) as usize];
        let (from, to) = (self.byte(blocks.start), self.byte(blocks.end));
        self.sections.read(from, &mut bytes[..(to - from) as usize]).await?;
        Ok(bytes.into())
    }

    /// How many pieces an extent would have if only the ranges were stored anew.
    fn pieces_after(&self, extent: &Range<u64>, ranges: &[Range<u64>]) -> usize {
        let mut count = ranges.len();
        let mut kept = extent.start;
        for range in ranges.iter().cloned().chain(std::iter::once(extent.end..extent.end)) {
            let (from, to) = ((kept - self.origin) as u32, (range.start - self.origin) as u32);
            let first = self.pieces.partition_point(|piece| piece.end() <= from);
            count += self.pieces[first..].iter().take_while(|piece| piece.start < to).count();
            kept = range.end;
        }
        count
    }

    /// Stores blocks as one chunk, without the zero blocks at its ends.
    async fn store_run(&mut self, start: u64, data: Bytes) -> Result<()> {
        let pages = data.len() / PAGE;
        let page = |i: usize| &data[i * PAGE..(i + 1) * PAGE];
        let first = (0..pages).find(|i| !is_zero(page(*i))).unwrap_or(pages);
        let last = (first..pages).rev().find(|i| !is_zero(page(*i))).map_or(first, |i| i + 1);
        let zero = (pages - (last - first)) * PAGE;
        self.pipeline.feed.count(data.len() as u64, zero as u64);
        if first < last {
            let chunk = data.slice(first * PAGE..last * PAGE);
            self.pipeline.feed.push_chunk(start + first as u64, chunk);
        }
        self.pipeline.advance().await
    }
}
