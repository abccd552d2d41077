//! The first stage of an import: bytes become chunks, in image order.

use crate::SegmentId;
use crate::chunker::{Cutter, PAGE, PageCut};
use crate::segment::Placed;
use bytes::{Bytes, BytesMut};

/// Bytes that are handed on together: one task's work.
pub(crate) const WINDOW: usize = 1 << 20;
/// Items that are handed on together at the most, so that a batch of unchanged pieces stays small.
const MAX_ITEMS: usize = 4096;
/// Buffers that are kept to be used again.
const SPARE: usize = 8;

/// What the next stages get, in image order.
#[derive(Debug)]
pub(crate) enum FeedItem {
    /// A chunk that starts at this block of the image.
    Chunk { start: u64, data: Bytes },
    /// An unchanged piece of the base, in segment number `segment`.
    Base { segment: u64, placed: Placed },
    /// A whole unchanged segment of the base.
    Shared { segment: u64, id: SegmentId },
}

/// A number of items, and what was looked at to make them.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) items: Vec<FeedItem>,
    /// What chunks are parts of; to be given back to [`Feed::recycle`].
    pub(crate) windows: Vec<Bytes>,
    pub(crate) scanned: u64,
    pub(crate) zero: u64,
}

/// Collects bytes that follow each other, cuts them, and skips holes.
#[derive(Debug, Default)]
pub(crate) struct Feed {
    /// Bytes from the start of the current chunk's buffer on; behind `filled` there is rubbish.
    buffer: BytesMut,
    filled: usize,
    /// Buffers to use again: fresh memory costs more than what is done with it.
    spare: Vec<BytesMut>,
    /// The block of the image at which the buffer starts.
    origin: u64,
    /// Where in the buffer the current chunk starts.
    chunk: usize,
    /// How much of the buffer was cut.
    cut: usize,
    /// Chunks that lie finished in the buffer.
    chunks: Vec<(usize, usize)>,
    cutter: Cutter,
    batch: Batch,
    bytes: usize,
}

impl Feed {
    /// Goes to another block: what lies between is hole, or comes from elsewhere.
    pub(crate) fn jump(&mut self, block: u64) {
        self.end_chunk();
        self.seal();
        (self.origin, self.filled, self.chunk, self.cut) = (block, 0, 0, 0);
    }

    /// Counts bytes that were found to be hole without reading them.
    pub(crate) fn count_hole(&mut self, bytes: u64) {
        self.batch.scanned += bytes;
        self.batch.zero += bytes;
    }

    /// How many bytes are wanted at a time.
    pub(crate) fn room(&self) -> usize {
        WINDOW.saturating_sub(self.filled).max(PAGE)
    }

    /// Room for `len` more bytes, to be filled; [`scan`](Self::scan) takes them.
    pub(crate) fn extend(&mut self, len: usize) -> &mut [u8] {
        let at = self.filled;
        self.filled += len;
        if self.buffer.len() < self.filled {
            self.buffer.resize(self.filled, 0);
        }
        &mut self.buffer[at..self.filled]
    }

    /// Takes back `unused` bytes of what [`extend`](Self::extend) gave, and pads the last page
    /// with zeroes.
    pub(crate) fn shorten(&mut self, unused: usize) {
        self.filled = self.filled.saturating_sub(unused);
        let padding = self.filled.next_multiple_of(PAGE) - self.filled;
        self.extend(padding).fill(0);
    }

    /// Cuts what was added: whole pages.
    pub(crate) fn scan(&mut self) {
        let fresh = self.filled - self.cut;
        self.batch.scanned += fresh as u64;
        while self.cut < self.filled {
            let (at, next) = (self.cut, self.cut + PAGE);
            let block = self.origin + (at / PAGE) as u64;
            match self.cutter.page(block, &self.buffer[at..next]) {
                PageCut::Join => {}
                PageCut::Cut => {
                    self.chunks.push((self.chunk, next));
                    self.chunk = next;
                }
                PageCut::Hole => {
                    if self.chunk < at {
                        self.chunks.push((self.chunk, at));
                    }
                    self.batch.zero += PAGE as u64;
                    self.chunk = next;
                }
            }
            self.cut = next;
        }
        if self.filled >= WINDOW {
            self.seal();
        }
    }

    /// Adds whole pages as one chunk, whatever they hold: the caller cuts.
    pub(crate) fn push_chunk(&mut self, start: u64, data: Bytes) {
        self.bytes += data.len();
        self.batch.items.push(FeedItem::Chunk { start, data });
    }

    /// Adds what needs no bytes; [`jump`](Self::jump) was called before.
    pub(crate) fn push(&mut self, item: FeedItem) {
        self.batch.items.push(item);
    }

    /// Counts bytes that were looked at, but went past [`scan`](Self::scan).
    pub(crate) fn count(&mut self, scanned: u64, zero: u64) {
        self.batch.scanned += scanned;
        self.batch.zero += zero;
    }

    /// Whether the next page starts a chunk.
    pub(crate) fn between_chunks(&self) -> bool {
        self.cutter.between_chunks()
    }

    fn end_chunk(&mut self) {
        if self.chunk < self.cut {
            self.chunks.push((self.chunk, self.cut));
            self.chunk = self.cut;
        }
        self.cutter.end();
    }

    /// Turns the finished chunks of the buffer into items; the unfinished one is kept.
    fn seal(&mut self) {
        if self.filled == 0 || (self.chunks.is_empty() && self.chunk == 0) {
            return;
        }
        let tail = self.chunk..self.filled;
        self.filled = tail.len();
        let bytes = if self.chunk < WINDOW / 2 {
            // Little between two holes: a copy rather than a window for each.
            let bytes = Bytes::copy_from_slice(&self.buffer[..self.chunk]);
            self.buffer.copy_within(tail, 0);
            bytes
        } else {
            let mut rest = self.spare.pop().unwrap_or_default();
            if rest.len() < WINDOW {
                rest.resize(WINDOW, 0);
            }
            rest[..tail.len()].copy_from_slice(&self.buffer[tail]);
            std::mem::replace(&mut self.buffer, rest).freeze()
        };
        for (start, end) in self.chunks.drain(..) {
            self.bytes += end - start;
            let data = bytes.slice(start..end);
            self.batch
                .items
                .push(FeedItem::Chunk { start: self.origin + (start / PAGE) as u64, data });
        }
        if bytes.len() >= WINDOW {
            self.batch.windows.push(bytes);
        }
        self.origin += (self.chunk / PAGE) as u64;
        self.cut -= self.chunk;
        self.chunk = 0;
    }

    /// Takes back the windows of a batch whose items are gone.
    pub(crate) fn recycle(&mut self, windows: Vec<Bytes>) {
        let unused = windows.into_iter().filter_map(|bytes| bytes.try_into_mut().ok());
        self.spare.extend(unused.take(SPARE - self.spare.len()));
    }

    /// Whether there is enough for a task.
    pub(crate) fn is_ready(&self) -> bool {
        self.bytes >= WINDOW
            || self.batch.items.len() >= MAX_ITEMS
            || self.batch.scanned >= 64 * WINDOW as u64
    }

    /// What is ready. After a [`jump`](Self::jump) that is everything.
    pub(crate) fn take(&mut self) -> Batch {
        self.bytes = 0;
        std::mem::take(&mut self.batch)
    }
}
