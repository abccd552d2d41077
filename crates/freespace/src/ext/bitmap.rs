//! The bitmaps of free clusters.

use super::checksum::crc32c;
use super::groups::{BLOCK_UNINIT, BlockGroup, Groups};
use super::superblock::{Checksums, ExtSuperblock};
use crate::refusal::refuse;
use crate::{FreeList, Refusal, Window};
use block::Span;

/// Bitmaps that lie one behind the other are read together, up to so many bytes.
const TOGETHER: u64 = 1 << 20;

/// Collects the free clusters of all groups, in bytes, after checking each bitmap against its
/// checksum, its group's count and the total.
///
/// # Errors
/// Whatever does not match.
pub(super) fn free(
    window: &Window<'_>,
    sb: &ExtSuperblock,
    groups: &Groups,
) -> Result<FreeList, Refusal> {
    let mut list = FreeList::new();
    let mut buffer = Vec::new();
    let mut synthesised = vec![0; sb.block_size as usize];
    let size = u64::from(sb.block_size);
    let mut total = 0;
    // The blocks that are in `buffer`.
    let mut held = Span::between(0, 0);
    for (number, group) in groups.list.iter().enumerate() {
        let number = number as u32;
        let bitmap = if group.flags & BLOCK_UNINIT != 0 {
            synthesise(&mut synthesised, sb, number, group);
            &synthesised
        } else {
            let at = group.block_bitmap;
            if at >= sb.blocks {
                refuse!(Structure, "the bitmap of group {number} lies at block {at}, outside");
            }
            if at < held.offset() || at >= held.end() {
                held = run(&groups.list[number as usize..], sb);
                buffer.resize((held.len() * size) as usize, 0);
                window.read(held.offset() * size, &mut buffer)?;
            }
            let start = ((at - held.offset()) * size) as usize;
            let bitmap = &buffer[start..start + size as usize];
            verify(bitmap, sb, number, group)?;
            bitmap
        };
        let counted = collect(&mut list, bitmap, sb, number)?;
        if counted != group.free {
            refuse!(
                Counts,
                "group {number} says that {} clusters are free, its bitmap says {counted}; run e2fsck",
                group.free
            );
        }
        total += u64::from(counted);
    }
    // Groups count clusters, the superblock counts them in blocks.
    if total * u64::from(sb.ratio) != sb.free {
        refuse!(
            Counts,
            "the superblock says that {} blocks are free, the bitmaps say {}; run e2fsck",
            sb.free,
            total * u64::from(sb.ratio)
        );
    }
    Ok(list)
}

/// The bitmaps to read at once, as blocks: the first group's, and the next ones' as
/// long as they lie right behind.
fn run(groups: &[BlockGroup], sb: &ExtSuperblock) -> Span {
    let start = groups[0].block_bitmap;
    let most = (TOGETHER / u64::from(sb.block_size)).max(1).min(sb.blocks - start);
    let count = groups
        .iter()
        .zip(start..)
        .take_while(|(group, at)| group.block_bitmap == *at && group.flags & BLOCK_UNINIT == 0)
        .count() as u64;
    Span::between(start, start + count.clamp(1, most))
}

fn verify(
    bitmap: &[u8],
    sb: &ExtSuperblock,
    number: u32,
    group: &BlockGroup,
) -> Result<(), Refusal> {
    let bytes = (sb.clusters_per_group / 8) as usize;
    if sb.checksums == Checksums::Everything {
        let mask = if sb.descriptor_size >= 64 { u32::MAX } else { 0xFFFF };
        if crc32c(sb.seed, &bitmap[..bytes]) & mask != group.bitmap_checksum & mask {
            refuse!(Checksum, "the checksum of group {number}'s bitmap does not match; run e2fsck");
        }
    }
    let valid = sb.clusters_in(number);
    if valid < sb.clusters_per_group {
        let padding = (valid..sb.block_size * 8)
            .find(|bit| bitmap[(bit / 8) as usize] & (1 << (bit % 8)) == 0);
        if let Some(bit) = padding {
            refuse!(
                Structure,
                "the bitmap of group {number} says that bit {bit}, behind the end, is free"
            );
        }
    }
    Ok(())
}

/// What the kernel makes of a bitmap that was never written: all free but for the group's own
/// blocks. Other groups' blocks are not seen here; the caller checks the result against them.
fn synthesise(bitmap: &mut [u8], sb: &ExtSuperblock, number: u32, group: &BlockGroup) {
    bitmap.fill(0);
    let (start, end) = (sb.group_start(number), sb.group_end(number));
    let mut mark = |from: u64, count: u64| {
        let mine = Span::between(start, end);
        let Some(part) =
            from.checked_add(count).and_then(|to| mine.intersect(Span::between(from, to)))
        else {
            return;
        };
        let ratio = u64::from(sb.ratio);
        let (first, last) = ((part.offset() - start) / ratio, (part.end() - 1 - start) / ratio);
        for bit in first..=last {
            bitmap[(bit / 8) as usize] |= 1 << (bit % 8);
        }
    };
    mark(start, sb.base_blocks(number));
    mark(group.block_bitmap, 1);
    mark(group.inode_bitmap, 1);
    mark(group.inode_table, sb.table_blocks());
}

/// Adds the free clusters of one group to the list and counts them.
fn collect(
    list: &mut FreeList,
    bitmap: &[u8],
    sb: &ExtSuperblock,
    number: u32,
) -> Result<u32, Refusal> {
    let start = sb.group_start(number);
    let end = sb.group_end(number);
    let size = u64::from(sb.block_size);
    let ratio = u64::from(sb.ratio);
    let valid = sb.clusters_in(number);
    let mut counted = 0;
    for (from, to) in zero_runs(bitmap, valid) {
        counted += to - from;
        let from = start + u64::from(from) * ratio;
        let to = (start + u64::from(to) * ratio).min(end);
        list.push(from * size, to * size)?;
    }
    Ok(counted)
}

/// The runs of zero bits among the first `valid` bits: pairs of first bit and bit behind the last.
fn zero_runs(bitmap: &[u8], valid: u32) -> impl Iterator<Item = (u32, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let from = next(bitmap, at, valid, false)?;
        let to = next(bitmap, from, valid, true).unwrap_or(valid);
        at = to;
        Some((from, to))
    })
}

/// The next bit from `at` on that is set (or clear), below `valid`; a word at a time.
fn next(bitmap: &[u8], mut at: u32, valid: u32, set: bool) -> Option<u32> {
    while at < valid {
        let word = at / 64 * 64;
        let mut raw = [0; 8];
        let bytes = &bitmap[(word / 8) as usize..];
        let take = bytes.len().min(8);
        raw[..take].copy_from_slice(&bytes[..take]);
        let mut bits = u64::from_le_bytes(raw);
        if !set {
            bits = !bits;
        }
        bits &= u64::MAX << (at - word);
        if bits != 0 {
            let found = word + bits.trailing_zeros();
            return (found < valid).then_some(found);
        }
        at = word + 64;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zero_runs_are_those_of_a_walk_bit_by_bit(
            bytes in proptest::collection::vec(prop_oneof![Just(0u8), Just(255), any::<u8>()], 1..40),
            cut in 0u32..9,
        ) {
            let valid = bytes.len() as u32 * 8 - cut.min(8);
            let mut expected: Vec<(u32, u32)> = Vec::new();
            for bit in 0..valid {
                if bytes[(bit / 8) as usize] & (1 << (bit % 8)) == 0 {
                    match expected.last_mut() {
                        Some(last) if last.1 == bit => last.1 = bit + 1,
                        _ => expected.push((bit, bit + 1)),
                    }
                }
            }
            prop_assert_eq!(zero_runs(&bytes, valid).collect::<Vec<_>>(), expected);
        }
    }
}
