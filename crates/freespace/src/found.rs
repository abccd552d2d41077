//! What a reader proved free.

use crate::{Refusal, Window};
use block::Span;
use std::fmt;

/// A file system, or a version of one, whose free space is read: `FileSystem::EXT4`. Each is named by its
/// [`FileSystemReader`](crate::FileSystemReader).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileSystem(pub(crate) &'static str);

impl FileSystem {
    /// Its name as `blkid` writes it, but for swap and the FATs.
    pub const fn as_str(self) -> &'static str {
        self.0
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How much is read to prove that a block is free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Level {
    /// Headers and the map of free space with its checksums and counts.
    Fast,
    /// Also every file's own list of blocks.
    Deep,
}

/// What the caller decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpaceOptions {
    /// The level; `None` leaves it to the file system: fast where checksums cover the map of free
    /// space and nothing else tells of it, else deep.
    pub level: Option<Level>,
    /// Also btrfs, which has no mark of being mounted.
    pub btrfs: bool,
    /// Also NTFS with shadow copies, whose old versions may be damaged.
    pub shadow_copies: bool,
}

/// How people call a file system.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Volume {
    /// Its UUID or serial number, as `blkid` writes it.
    pub uuid: Option<String>,
    /// Its label.
    pub label: Option<String>,
}

/// What a reader proved free. Offsets are bytes from the start of the window.
#[derive(Debug, Clone)]
pub struct FreeSpace {
    /// What it is.
    pub kind: FileSystem,
    /// How it was proven.
    pub level: Level,
    /// How it would have been, had the caller left it to the reader.
    pub usual: Level,
    /// Bytes of the smallest thing that can be free: a block, a cluster, a page.
    pub unit: u32,
    /// Bytes that the file system says it has; at most the window's size.
    pub size: u64,
    /// The free bytes before any margin: sorted, disjoint, merged.
    pub free: Vec<Span>,
    /// Free bytes that are not in `free`, because they lie in pieces too many and too small to be
    /// worth keeping.
    pub dropped: u64,
    /// What must still be so right before the first write.
    pub stamp: Stamp,
    /// How people call it.
    pub volume: Volume,
}

/// The bytes of a file system that change when it is used: where they are, and their hash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stamp {
    ranges: Vec<Span>,
    hash: [u8; 32],
}

impl Stamp {
    /// Reads `ranges` (bytes of the window; a few, of at most some MiB together) and hashes them.
    ///
    /// # Errors
    /// Any error from [`Window::read`].
    pub fn take(window: &Window<'_>, ranges: Vec<Span>) -> Result<Self, Refusal> {
        let hash = Self::hash(window, &ranges)?;
        Ok(Self { ranges, hash })
    }

    /// Whether the same bytes are still there.
    ///
    /// # Errors
    /// Any error from [`Window::read`].
    pub fn holds(&self, window: &Window<'_>) -> Result<bool, Refusal> {
        Ok(Self::hash(window, &self.ranges)? == self.hash)
    }

    fn hash(window: &Window<'_>, ranges: &[Span]) -> Result<[u8; 32], Refusal> {
        let mut hasher = blake3::Hasher::new();
        let mut buf = vec![0; 64 << 10];
        for piece in ranges.iter().flat_map(|range| range.pieces(64 << 10)) {
            let bytes = &mut buf[..piece.len() as usize];
            window.read(piece.offset(), bytes)?;
            hasher.update(bytes);
        }
        Ok(*hasher.finalize().as_bytes())
    }
}

/// Collects free ranges in rising order, merging neighbours, in bounded memory: when there are more
/// than [`FreeList::LIMIT`], the small ones are dropped.
#[derive(Debug, Default)]
pub struct FreeList {
    spans: Vec<Span>,
    floor: u64,
    dropped: u64,
}

impl FreeList {
    /// The most ranges that are kept (32 MiB of memory).
    pub const LIMIT: usize = 2 << 20;

    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the bytes from `start` to `end`. Empty ones are ignored; overlapping or falling ones
    /// are a fault of the caller and are refused.
    ///
    /// # Errors
    /// [`Code::Structure`](crate::Code::Structure) when it starts before the last one ended.
    pub fn push(&mut self, start: u64, end: u64) -> Result<(), Refusal> {
        if start >= end {
            return Ok(());
        }
        if let Some(last) = self.spans.last_mut() {
            if start < last.end() {
                crate::refuse!(Structure, "free ranges overlap at offset {start}");
            }
            if start == last.end() {
                *last = Span::between(last.offset(), end);
                return Ok(());
            }
        }
        if self.spans.len() >= Self::LIMIT {
            self.thin();
        }
        self.spans.push(Span::between(start, end));
        Ok(())
    }

    /// Drops the small ranges, so that at most half of the limit stay.
    fn thin(&mut self) {
        while self.spans.len() > Self::LIMIT / 2 {
            self.floor = (self.floor.saturating_mul(2)).max(4096);
            let floor = self.floor;
            let before: u64 = self.spans.iter().map(|span| span.len()).sum();
            self.spans.retain(|span| span.len() > floor);
            self.dropped += before - self.spans.iter().map(|span| span.len()).sum::<u64>();
        }
    }

    /// The ranges, and how many free bytes were dropped.
    pub fn finish(self) -> (Vec<Span>, u64) {
        (self.spans, self.dropped)
    }
}
