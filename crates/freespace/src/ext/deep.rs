//! The deep check: every inode's own list of blocks against the map of free space.
//!
//! Nothing that any file says is its own is lent, whatever the bitmaps say; and a file system in
//! which two files claim one block is not believed at all.

use super::checksum::crc32c;
use super::groups::{BlockGroup, Groups, INODE_UNINIT};
use super::inode::{Inode, Piece};
use super::superblock::{Checksums, ExtSuperblock};
use crate::bytes::le16;
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

/// Bytes of an inode table that are read at a time.
const PORTION: u32 = 1 << 20;
/// The most clusters whose claims are kept (512 MiB of memory).
const MAX_CLUSTERS: u64 = 4 << 30;
/// The most blocks of attributes that are kept (32 MiB of memory).
const MAX_ATTRIBUTES: usize = 4 << 20;

/// The most bad blocks under inode tables that are kept.
const MAX_BAD: usize = 64 << 10;

const BAD_BLOCKS_INODE: u32 = 1;
const RESIZE_INODE: u32 = 7;

/// Walks all inodes; `own` are the file system's own blocks.
///
/// # Errors
/// [`Code::Conflict`](crate::Code::Conflict) when a claimed block is in `free` (bytes) or claimed
/// twice; broken inodes.
pub(super) fn check(
    window: &Window<'_>,
    sb: &ExtSuperblock,
    groups: &Groups,
    own: &[Span],
    free: &[Span],
) -> Result<(), Refusal> {
    let claims = Claims::new(sb)?;
    let bad = bad_blocks(window, sb, groups, own)?;
    let mut walk = InodeWalk { window, sb, own, bad, claims, attributes: Vec::new() };
    for span in own {
        walk.claims.mark(span.offset(), span.len());
    }
    for (number, group) in groups.list.iter().enumerate() {
        walk.group(number as u32, group)?;
    }
    walk.claim_attributes()?;
    for span in free {
        walk.claims.none_in(span, sb)?;
    }
    Ok(())
}

/// Whether all of a piece is the file system's own.
fn lies_in(own: &[Span], piece: Piece) -> bool {
    let before = own.partition_point(|span| span.offset() <= piece.start);
    before.checked_sub(1).is_some_and(|i| own[i].end() >= piece.start + piece.count)
}

/// The bad blocks that lie under the file system's own: sorted. What lies in them is no inode.
fn bad_blocks(
    window: &Window<'_>,
    sb: &ExtSuperblock,
    groups: &Groups,
    own: &[Span],
) -> Result<Vec<u64>, Refusal> {
    let mut bad = Vec::new();
    if groups.list[0].flags & INODE_UNINIT != 0 {
        return Ok(bad);
    }
    let at = groups.list[0].inode_table * u64::from(sb.block_size);
    let raw = window.bytes(at, sb.inode_size as usize)?;
    let inode = Inode::new(window, sb, BAD_BLOCKS_INODE, &raw);
    if inode.is_blank() {
        return Ok(bad);
    }
    inode.verify()?;
    inode.pieces(&mut |piece: Piece| {
        if piece.logical.is_some() && lies_in(own, piece) {
            if bad.len() as u64 + piece.count > MAX_BAD as u64 {
                refuse!(TooMuchWork, "too many bad blocks lie under its own structures");
            }
            bad.extend(piece.start..piece.start + piece.count);
        }
        Ok(())
    })?;
    bad.sort_unstable();
    Ok(bad)
}

struct InodeWalk<'a> {
    window: &'a Window<'a>,
    sb: &'a ExtSuperblock,
    own: &'a [Span],
    bad: Vec<u64>,
    claims: Claims,
    /// Blocks of attributes, shared or not: claimed once at the end.
    attributes: Vec<u64>,
}

impl InodeWalk<'_> {
    fn group(&mut self, number: u32, group: &BlockGroup) -> Result<(), Refusal> {
        let sb = self.sb;
        if group.flags & INODE_UNINIT != 0 {
            return Ok(());
        }
        let block = u64::from(sb.block_size);
        let bitmap = self.window.bytes(group.inode_bitmap * block, sb.block_size as usize)?;
        let bytes = sb.inodes_per_group as usize / 8;
        if sb.checksums == Checksums::Everything {
            let mask = if sb.descriptor_size >= 64 { u32::MAX } else { 0xFFFF };
            if crc32c(sb.seed, &bitmap[..bytes]) & mask != group.inode_bitmap_checksum & mask {
                refuse!(Checksum, "the checksum of group {number}'s inode bitmap does not match");
            }
        }
        let Some(used) = sb.inodes_per_group.checked_sub(group.unused_inodes) else {
            refuse!(Counts, "group {number} says that more inodes are unused than it has");
        };
        let is_set = |slot: u32| bitmap[(slot / 8) as usize] & (1 << (slot % 8)) != 0;
        if let Some(slot) = (used..sb.inodes_per_group).find(|slot| is_set(*slot)) {
            refuse!(Conflict, "slot {slot} of group {number}'s inodes is both in use and unused");
        }
        let per_portion = PORTION / sb.inode_size;
        let mut table = Vec::new();
        for first in (0..used).step_by(per_portion as usize) {
            let count = per_portion.min(used - first);
            table.resize((count * sb.inode_size) as usize, 0);
            let skip = u64::from(first) * u64::from(sb.inode_size);
            self.window.read(group.inode_table * block + skip, &mut table)?;
            for (slot, raw) in (first..).zip(table.chunks_exact(sb.inode_size as usize)) {
                let linked = le16(raw, 0x1A) != 0;
                if (linked || is_set(slot)) && !self.is_bad(group, slot) {
                    self.inode(number * sb.inodes_per_group + slot + 1, raw, linked, is_set(slot))?;
                }
            }
        }
        Ok(())
    }

    /// Whether an inode lies in a bad block.
    fn is_bad(&self, group: &BlockGroup, slot: u32) -> bool {
        let skip = u64::from(slot) * u64::from(self.sb.inode_size);
        let block = group.inode_table + skip / u64::from(self.sb.block_size);
        !self.bad.is_empty() && self.bad.binary_search(&block).is_ok()
    }

    fn inode(&mut self, number: u32, raw: &[u8], linked: bool, set: bool) -> Result<(), Refusal> {
        let (sb, window) = (self.sb, self.window);
        let inode = Inode::new(window, sb, number, raw);
        // The kernel looks at no reserved inode without links or type, but for these two.
        let looked_at = matches!(number, BAD_BLOCKS_INODE | RESIZE_INODE);
        let idle = number < sb.first_inode && !looked_at && (!linked || le16(raw, 0) >> 12 == 0);
        if inode.is_blank() || idle {
            return Ok(());
        }
        if !set {
            refuse!(Conflict, "inode {number} is in use although its map says free; run e2fsck");
        }
        if !linked && number >= sb.first_inode {
            refuse!(Orphans, "inode {number} is deleted but not given back; run e2fsck");
        }
        inode.verify()?;
        if number == RESIZE_INODE && sb.resize_inode {
            return self.resize_inode(&inode);
        }
        if let Some(at) = inode.attributes()? {
            if self.attributes.last() != Some(&at) {
                self.attributes.push(at);
            }
            if self.attributes.len() > MAX_ATTRIBUTES {
                self.attributes.sort_unstable();
                self.attributes.dedup();
                if self.attributes.len() > MAX_ATTRIBUTES / 2 {
                    refuse!(TooMuchWork, "too many files have blocks of attributes");
                }
            }
        }
        let (own, claims) = (self.own, &mut self.claims);
        // With bigalloc, neighbours in the file may share a cluster.
        let mut last = None;
        inode.pieces(&mut |piece: Piece| {
            if number == BAD_BLOCKS_INODE && piece.logical.is_some() && lies_in(own, piece) {
                return Ok(());
            }
            let clusters = claims.clusters(piece.start, piece.count);
            let from =
                if last == Some(clusters.start) { clusters.start + 1 } else { clusters.start };
            last = Some(clusters.end - 1);
            match claims.claim(from..clusters.end) {
                None => Ok(()),
                Some(cluster) => {
                    let block = claims.block(cluster);
                    refuse!(Conflict, "block {block} of inode {number} is used twice; run e2fsck");
                }
            }
        })
    }

    /// The reserved descriptor blocks are the file system's own; only the block that lists them
    /// is a block like any file's.
    fn resize_inode(&mut self, inode: &Inode<'_>) -> Result<(), Refusal> {
        let (own, claims) = (self.own, &mut self.claims);
        let mut first = true;
        inode.resize_pieces(&mut |piece: Piece| {
            if std::mem::take(&mut first) {
                if claims.claim(claims.clusters(piece.start, piece.count)).is_none() {
                    return Ok(());
                }
            } else if lies_in(own, piece) {
                return Ok(());
            }
            refuse!(
                Conflict,
                "inode 7 reserves block {}, which is no descriptor's; run e2fsck",
                piece.start
            );
        })
    }

    fn claim_attributes(&mut self) -> Result<(), Refusal> {
        self.attributes.sort_unstable();
        self.attributes.dedup();
        let mut last = None;
        for at in std::mem::take(&mut self.attributes) {
            let clusters = self.claims.clusters(at, 1);
            if last == Some(clusters.start) {
                continue;
            }
            last = Some(clusters.start);
            if self.claims.claim(clusters).is_some() {
                refuse!(Conflict, "block {at} of extended attributes is used twice; run e2fsck");
            }
        }
        Ok(())
    }
}

/// One bit for every cluster of the file system: who claims it is its owner.
struct Claims {
    bits: Vec<u64>,
    first_data: u64,
    ratio: u64,
}

impl Claims {
    fn new(sb: &ExtSuperblock) -> Result<Self, Refusal> {
        let ratio = u64::from(sb.ratio);
        let clusters = (sb.blocks - sb.first_data).div_ceil(ratio);
        if clusters > MAX_CLUSTERS {
            refuse!(
                TooMuchWork,
                "it has {clusters} clusters; a deep check takes at most {MAX_CLUSTERS}"
            );
        }
        let bits = vec![0; clusters.div_ceil(64) as usize];
        Ok(Self { bits, first_data: sb.first_data, ratio })
    }

    /// The clusters of a range of blocks that was checked to lie inside.
    fn clusters(&self, start: u64, count: u64) -> std::ops::Range<u64> {
        let first = start - self.first_data;
        first / self.ratio..(first + count).div_ceil(self.ratio)
    }

    fn block(&self, cluster: u64) -> u64 {
        self.first_data + cluster * self.ratio
    }

    /// The bits of one word that lie in a range.
    fn words(range: std::ops::Range<u64>) -> impl Iterator<Item = (usize, u64)> {
        let mut at = range.start;
        std::iter::from_fn(move || {
            if at >= range.end {
                return None;
            }
            let word = at / 64;
            let end = range.end.min((word + 1) * 64);
            let mask = (u64::MAX >> (64 - (end - at))) << (at % 64);
            at = end;
            Some((word as usize, mask))
        })
    }

    fn mark(&mut self, start: u64, count: u64) {
        for (word, mask) in Self::words(self.clusters(start, count)) {
            self.bits[word] |= mask;
        }
    }

    /// Claims clusters; the first that was claimed before, if any.
    fn claim(&mut self, clusters: std::ops::Range<u64>) -> Option<u64> {
        for (word, mask) in Self::words(clusters) {
            let twice = self.bits[word] & mask;
            if twice != 0 {
                return Some(word as u64 * 64 + u64::from(twice.trailing_zeros()));
            }
            self.bits[word] |= mask;
        }
        None
    }

    fn none_in(&self, free: &Span, sb: &ExtSuperblock) -> Result<(), Refusal> {
        let size = u64::from(sb.block_size);
        let clusters = self.clusters(free.offset() / size, free.len() / size);
        for (word, mask) in Self::words(clusters) {
            let claimed = self.bits[word] & mask;
            if claimed != 0 {
                let block = self.block(word as u64 * 64 + u64::from(claimed.trailing_zeros()));
                refuse!(Conflict, "block {block} is in use although its map says free; run e2fsck");
            }
        }
        Ok(())
    }
}
