//! The two levels of tables that map the disk's clusters into a qcow2 file.

use super::header::{Qcow2Header, feature};
use crate::file::read_up_to;
use block::{Error, Result};
use std::fs::File;
use std::path::Path;

/// Bits 9 to 55 of an entry are an offset in the file.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const ZERO: u64 = 1;

/// What a range of the file is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RangeUse {
    /// A table; nothing else may be there.
    Table,
    /// Data, or room for it; compressed clusters may share one.
    Data,
}

/// Told of every range of the file that the tables use: what for, offset, length.
pub(super) type Visit<'a> = dyn FnMut(RangeUse, u64, u64) -> Result<()> + 'a;

/// A qcow2 file whose header was checked.
pub(super) struct Tables<'a> {
    pub(super) file: &'a File,
    pub(super) path: &'a Path,
    /// The length of the file in bytes.
    pub(super) len: u64,
    pub(super) header: Qcow2Header,
}

impl Tables<'_> {
    pub(super) fn cluster(&self) -> u64 {
        1 << self.header.cluster_bits
    }

    pub(super) fn corrupt(&self, what: &str) -> Error {
        Error::corrupt(format!(
            "{}: {what}; repair a copy of it with qemu-img check -r all",
            self.path.display()
        ))
    }

    fn truncated(&self, what: &str, offset: u64) -> Error {
        Error::corrupt(format!(
            "{}: truncated: {what} at offset {offset} lies behind the end of the file ({} bytes); \
             fetch it again",
            self.path.display(),
            self.len
        ))
    }

    /// Whether a cluster at `offset` is in the file; its end may be missing in the last one.
    fn holds(&self, offset: u64) -> bool {
        offset < self.len
    }

    /// Reads a table of big-endian numbers that must be in the file as a whole.
    pub(super) fn read(&self, what: &str, offset: u64, len: u64) -> Result<Vec<u8>> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(self.truncated(what, offset));
        }
        if !offset.is_multiple_of(self.cluster()) {
            return Err(self.corrupt(&format!("{what} at offset {offset} is not aligned")));
        }
        read_up_to(self.file, self.path, offset, len as usize)
    }

    /// Sorts the offsets of tables of one cluster; no two may be the same. So however many entries
    /// a table has, what is read because of it is no more than the file.
    pub(super) fn distinct(&self, what: &str, mut offsets: Vec<u64>) -> Result<Vec<u64>> {
        offsets.sort_unstable();
        if offsets.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(self.corrupt(&format!("two ranges share one {what}")));
        }
        Ok(offsets)
    }

    /// Walks both levels.
    pub(super) fn walk(&self, visit: &mut Visit<'_>) -> Result<()> {
        let len = u64::from(self.header.l1_entries) * 8;
        let l1 = self.read("the L1 table", self.header.l1_offset, len)?;
        visit(RangeUse::Table, self.header.l1_offset, len)?;
        let offsets = numbers(&l1).map(|entry| entry & OFFSET).filter(|offset| *offset != 0);
        for offset in self.distinct("L2 table", offsets.collect())? {
            let l2 = self.read("an L2 table", offset, self.cluster())?;
            visit(RangeUse::Table, offset, self.cluster())?;
            let words = if self.header.features & feature::EXTENDED_L2 != 0 { 2 } else { 1 };
            numbers(&l2).step_by(words).try_for_each(|entry| self.entry(entry, visit))?;
        }
        Ok(())
    }

    fn entry(&self, entry: u64, visit: &mut Visit<'_>) -> Result<()> {
        if entry & COMPRESSED != 0 {
            let offset_bits = 62 - (self.header.cluster_bits - 8);
            let offset = entry & ((1 << offset_bits) - 1);
            let sectors = (entry & (COMPRESSED - 1)) >> offset_bits;
            // The data ends somewhere in the last of its sectors, where the file may end too.
            let last = (offset / 512 + sectors) * 512;
            if !self.holds(offset.max(last)) {
                return Err(self.truncated("compressed data", offset));
            }
            return visit(RangeUse::Data, offset, last + 1 - offset.min(last));
        }
        let offset = entry & OFFSET;
        if offset == 0 {
            return Ok(());
        }
        if !self.holds(offset) && entry & ZERO == 0 {
            return Err(self.truncated("data", offset));
        }
        if self.holds(offset) {
            visit(RangeUse::Data, offset, self.cluster())?;
        }
        Ok(())
    }
}

/// The big-endian numbers of a table.
pub(super) fn numbers(table: &[u8]) -> impl Iterator<Item = u64> + '_ {
    table.as_chunks::<8>().0.iter().map(|bytes| u64::from_be_bytes(*bytes))
}
