//! Which logical addresses of a chunk are free: from the tree of free space, or from the tree of
//! all extents.

use super::chunk::Chunk;
use super::key::{TreeKey, kind};
use super::superblock::TreeRoot;
use super::tree::TreeReader;
use crate::Refusal;
use crate::bytes::{le32, le64};
use crate::refusal::refuse;
use block::Span;

/// The most free ranges of one chunk: it has at most 10 GiB.
const MAX_RANGES: usize = 1 << 21;

/// The trees that know.
pub(super) struct Space<'r> {
    pub(super) reader: &'r TreeReader<'r>,
    pub(super) extents: TreeRoot,
    /// Where the block groups' own counts are.
    pub(super) groups: TreeRoot,
    /// Only when it is valid.
    pub(super) free_space: Option<TreeRoot>,
}

/// Ranges of one chunk, rising and apart.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ranges(Vec<Span>);

impl Ranges {
    fn push(&mut self, chunk: &Chunk, start: u64, len: u64) -> Result<(), Refusal> {
        let floor = self.0.last().map_or(chunk.logical, |last| last.end());
        let Some(end) = start.checked_add(len).filter(|end| start >= floor && *end <= chunk.end())
        else {
            refuse!(
                Structure,
                "ranges of chunk {} overlap or leave it; check it with btrfs check",
                chunk.logical
            );
        };
        match self.0.last_mut() {
            Some(last) if last.end() == start => *last = Span::between(last.offset(), end),
            _ if len == 0 => {}
            _ => self.0.push(Span::between(start, end)),
        }
        if self.0.len() > MAX_RANGES {
            refuse!(TooMuchWork, "chunk {} is in too many pieces", chunk.logical);
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.0.iter().map(|span| span.len()).sum()
    }
}

impl Space<'_> {
    /// The free logical ranges of a chunk. With `both`, the two trees must agree.
    pub(super) fn free(&self, chunk: &Chunk, both: bool) -> Result<Vec<Span>, Refusal> {
        let listed = self.free_space.map(|root| self.listed_free(root, chunk)).transpose()?;
        let gaps = match &listed {
            Some(_) if !both => None,
            _ => Some(self.gaps(chunk)?),
        };
        let free = match (listed, gaps) {
            (Some(listed), Some(gaps)) if listed != gaps => refuse!(
                Counts,
                "the trees of free space and of extents differ in chunk {}; check it with btrfs check",
                chunk.logical
            ),
            (Some(free), _) | (None, Some(free)) => free,
            (None, None) => Ranges::default(),
        };
        let used = self.used(chunk)?;
        if used != chunk.len - free.bytes() {
            refuse!(
                Counts,
                "chunk {} counts {used} bytes in use, and {} are not free; check it with btrfs check",
                chunk.logical,
                chunk.len - free.bytes()
            );
        }
        Ok(free.0)
    }

    /// What the block group of a chunk counts as in use.
    fn used(&self, chunk: &Chunk) -> Result<u64, Refusal> {
        let key = TreeKey { object: chunk.logical, kind: kind::BLOCK_GROUP, offset: chunk.len };
        let mut used = None;
        self.reader.walk(self.groups, (key, key), |_, data| {
            used = (data.len() >= 24).then(|| le64(data, 0));
            Ok(())
        })?;
        match used {
            Some(used) => Ok(used),
            None => refuse!(
                Structure,
                "chunk {} has no block group; check it with btrfs check",
                chunk.logical
            ),
        }
    }

    fn listed_free(&self, root: TreeRoot, chunk: &Chunk) -> Result<Ranges, Refusal> {
        let sector = self.reader.superblock.sector;
        let mut ranges = Ranges::default();
        let mut expected = None;
        let keys = TreeKey::objects(chunk.logical, chunk.end() - 1);
        self.reader.walk(root, keys, |key, data| match key.kind {
            kind::FREE_SPACE_INFO if data.len() >= 8 && key.object == chunk.logical => {
                expected = (key.offset == chunk.len).then(|| le32(data, 0));
                Ok(())
            }
            kind::FREE_SPACE_EXTENT => ranges.push(chunk, key.object, key.offset),
            kind::FREE_SPACE_BITMAP => {
                let bits = key.offset / sector;
                if bits.div_ceil(8) != data.len() as u64 {
                    refuse!(
                        Structure,
                        "a bitmap of free space is damaged; check it with btrfs check"
                    );
                }
                for bit in (0..bits).filter(|bit| data[(bit / 8) as usize] >> (bit % 8) & 1 == 1) {
                    let Some(start) = key.object.checked_add(bit * sector) else { break };
                    ranges.push(chunk, start, sector)?;
                }
                Ok(())
            }
            other => refuse!(
                UnknownFeature,
                "an item of kind {other} in the tree of free space; check it with btrfs check"
            ),
        })?;
        if expected != Some(ranges.0.len() as u32) {
            refuse!(
                Counts,
                "the free ranges of chunk {} are not as many as counted; check it with btrfs check",
                chunk.logical
            );
        }
        Ok(ranges)
    }

    /// The gaps between all extents of a chunk.
    fn gaps(&self, chunk: &Chunk) -> Result<Ranges, Refusal> {
        let node = self.reader.superblock.node as u64;
        let mut ranges = Ranges::default();
        let mut at = chunk.logical;
        let keys = TreeKey::objects(chunk.logical, chunk.end() - 1);
        self.reader.walk(self.extents, keys, |key, _| {
            let len = match key.kind {
                kind::EXTENT => key.offset,
                kind::METADATA => node,
                _ => return Ok(()),
            };
            let end = key.object.checked_add(len).filter(|end| *end <= chunk.end());
            let Some(end) = end.filter(|_| key.object >= at) else {
                refuse!(
                    Conflict,
                    "the extent at {} overlaps another or leaves its chunk; check it with btrfs check",
                    key.object
                );
            };
            ranges.push(chunk, at, key.object - at)?;
            at = end;
            Ok(())
        })?;
        ranges.push(chunk, at, chunk.end() - at)?;
        Ok(ranges)
    }
}
