//! The log of XFS: it is clean when its last record says "unmounted".
//!
//! Every 512 bytes of the log begin with the number of the round in which they were written, so the
//! head is where the number falls by one (`fs/xfs/xfs_log_recover.c`, `xlog_find_head`).

use super::superblock::XfsSuperblock;
use crate::bytes::{be32, be64};
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

/// A basic block of the log, in bytes.
const BASIC: u64 = 512;
/// The magic number of a record's header, where other blocks have their round.
const RECORD: u32 = 0xFEED_BABE;
/// The largest record (256 KiB) and its headers, in basic blocks.
const MAX_RECORD: u64 = (256 << 10) / BASIC + 8;
/// What may have been written out of order: eight buffers of the largest size, in basic blocks.
const IN_FLIGHT: u64 = 8 * MAX_RECORD;
/// Data that one header block describes, in bytes.
const PER_HEADER: u32 = 32 << 10;
/// The flag of the operation that ends a clean unmount.
const UNMOUNTED: u8 = 0x20;

struct XfsLog<'a> {
    window: &'a Window<'a>,
    base: u64,
    blocks: u64,
}

/// Refuses a log that does not end with an unmount. Returns where a mount would write first: at
/// the head, or at the beginning of the log when the head is at its end.
pub(super) fn check(window: &Window<'_>, superblock: &XfsSuperblock) -> Result<Vec<Span>, Refusal> {
    let base = superblock.offset(superblock.log_group, superblock.log_block);
    let blocks = superblock.log_blocks * superblock.block / BASIC;
    if blocks < 2 {
        refuse!(Geometry, "its log has {blocks} sectors");
    }
    let log = XfsLog { window, base, blocks };
    let (head, round) = log.head()?;
    log.check_around(head, round)?;
    log.check_last(head, round, &superblock.uuid)?;
    let place = |from: u64, to: u64| Span::between(base + from * BASIC, base + to * BASIC);
    Ok(vec![place(0, blocks.min(128)), place(head.saturating_sub(8), (head + 128).min(blocks))])
}

fn dirty<T>() -> Result<T, Refusal> {
    refuse!(
        NeedsReplay,
        "its log holds changes that are not in place; mount and unmount it in its own system"
    )
}

/// The round in which a basic block was written.
fn round_of(block: &[u8]) -> u32 {
    match be32(block, 0) {
        RECORD => be32(block, 4),
        round => round,
    }
}

impl XfsLog<'_> {
    fn read(&self, block: u64, count: u64) -> Result<Vec<u8>, Refusal> {
        self.window.bytes(self.base + block * BASIC, (count * BASIC) as usize)
    }

    fn round(&self, block: u64) -> Result<u32, Refusal> {
        Ok(round_of(&self.read(block, 1)?))
    }

    /// The block behind the last one written, and its round: by bisection, as the first block of
    /// the previous round. When all are of one round, the last record ends with the log.
    fn head(&self) -> Result<(u64, u32), Refusal> {
        let round = self.round(0)?;
        let last = self.round(self.blocks - 1)?;
        if round == 0 {
            return dirty();
        }
        if last == round {
            return Ok((self.blocks, round));
        }
        let (mut low, mut high) = (0, self.blocks - 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.round(middle)? == round {
                low = middle;
            } else {
                high = middle;
            }
        }
        Ok((high, round))
    }

    /// No block near the head may be of another round: that would be a write that a power cut
    /// caught.
    fn check_around(&self, head: u64, round: u32) -> Result<(), Refusal> {
        let from = head.saturating_sub(IN_FLIGHT);
        let before = self.read(from, head - from)?;
        let behind = self.read(head, (self.blocks - head).min(IN_FLIGHT))?;
        let is = |bytes: &[u8], round: u32| {
            bytes.chunks_exact(BASIC as usize).all(|block| round_of(block) == round)
        };
        if !is(&before, round) || !is(&behind, round.wrapping_sub(1)) {
            return dirty();
        }
        Ok(())
    }

    /// The last record before the head must be the mark of an unmount and reach up to the head.
    fn check_last(&self, head: u64, round: u32, uuid: &[u8; 16]) -> Result<(), Refusal> {
        let from = head.saturating_sub(MAX_RECORD);
        let bytes = self.read(from, head - from)?;
        let blocks = bytes.chunks_exact(BASIC as usize);
        let Some(at) = blocks.rev().position(|block| be32(block, 0) == RECORD) else {
            return dirty();
        };
        // `at` blocks follow the header.
        let record = &bytes[bytes.len() - (at + 1) * BASIC as usize..];
        let place = head - 1 - at as u64;
        let version = be32(record, 8) & 0xFF;
        let len = be32(record, 12);
        let size = be32(record, 320);
        let headers = if version == 2 && size > PER_HEADER { size.div_ceil(PER_HEADER) } else { 1 };
        let blocks = u64::from(headers) + u64::from(len).div_ceil(BASIC);
        let here = u64::from(round) << 32 | place;
        if !matches!(version, 1 | 2)
            || be32(record, 4) != round
            || be64(record, 16) != here
            || record[304..320] != *uuid
            || blocks != at as u64 + 1
            || be32(record, 40) != 1
            || u64::from(headers) > at as u64
        {
            return dirty();
        }
        let operation = &record[headers as usize * BASIC as usize..];
        if operation[9] & UNMOUNTED == 0 {
            return dirty();
        }
        Ok(())
    }
}
