//! Marks of two bytes, which others may bear by chance: what else has to be right around them.
//!
//! Sources: libblkid's probes, and the headers of the kernel that each comes with.

use crate::bytes::{le16, le32};
use crate::head::PartHead;
use crate::{Refusal, Window};

/// Bytes at the start of a disk and at its end, as far as it has them.
pub(super) struct Around<'a> {
    /// The first 2 KiB.
    pub(super) head: &'a [u8],
    /// The last whole sector of 512 bytes.
    pub(super) tail: &'a [u8],
}

impl<'a> Around<'a> {
    pub(super) fn of(head: &'a PartHead, window: &Window<'_>) -> Result<Self, Refusal> {
        let start = &head.bytes[..head.bytes.len().min(2048)];
        Ok(Self { head: start, tail: head.tail(window)? })
    }
}

/// Whether what `name` needs beside its two bytes is there, too.
pub(super) fn confirmed(name: &str, around: &Around<'_>) -> bool {
    let Some(superblock) = around.head.get(1024..2048) else { return false };
    let head = around.head;
    match name {
        // Revision, own size, size of blocks.
        "NILFS2" => {
            le32(superblock, 0) == 2
                && (120..=1024).contains(&le16(superblock, 8))
                && le32(superblock, 20) <= 6
        }
        // The bitmap's place, the size of allocation blocks.
        "HFS" => {
            let blocks = be32(superblock, 20);
            u16::from_be_bytes([superblock[14], superblock[15]]) == 3
                && blocks > 0
                && blocks.is_multiple_of(512)
        }
        "Minix" => minix(superblock),
        // Version and kind of the volume header.
        "FileVault" => le16(head, 8) == 1 && le16(head, 10) == 0x10,
        // A node's type comes after its magic.
        "JFFS2" => [le16(head, 2), le16(head, 2).swap_bytes()]
            .iter()
            .any(|kind| matches!(kind, 0x2003 | 0x2004 | 0xE001 | 0xE002)),
        // All words together are nothing.
        "Sun" => {
            let words = head[..512].as_chunks::<2>().0;
            words.iter().fold(0, |sum, word| sum ^ u16::from_be_bytes(*word)) == 0
        }
        "JMicron RAID" => {
            let Some(label) = around.tail.get(..128) else { return false };
            let words = label.as_chunks::<2>().0;
            words.iter().fold(0u16, |sum, word| sum.wrapping_add(u16::from_le_bytes(*word))) <= 1
        }
        _ => false,
    }
}

/// Both byte orders; versions 1 and 2, or version 3.
fn minix(superblock: &[u8]) -> bool {
    [false, true].into_iter().any(|swapped| {
        let half = |at: usize| {
            let value = le16(superblock, at);
            u32::from(if swapped { value.swap_bytes() } else { value })
        };
        let old = |maps: usize, first: usize| {
            let (inodes, zones) = (half(maps), half(maps + 2));
            inodes > 0 && zones > 0 && half(first) >= 2 + inodes + zones && half(first + 2) == 0
        };
        (old(4, 8) && half(18) <= 3) || (old(6, 10) && half(28).is_power_of_two())
    })
}

fn be32(bytes: &[u8], at: usize) -> u32 {
    le32(bytes, at).swap_bytes()
}
