//! The content of a file: what is read, and what stable storage has of it.

use crate::BLOCK;
use crate::conformance::Sequence;
use std::collections::BTreeSet;
use std::ops::Range;

/// What storage writes whole or not at all, in bytes.
pub(super) const SECTOR: u64 = 512;
/// What memory keeps together, and what room is counted in, in bytes.
pub(super) const PAGE: u64 = BLOCK;

/// The content of a file.
///
/// A sector is clean (memory and storage hold the same), dirty (memory's is to be written), or lost:
/// a sync could not write it and called it clean all the same.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    visible: Vec<u8>,
    durable: Vec<u8>,
    dirty: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    /// Pages that have room.
    room: BTreeSet<u64>,
}

fn over(range: Range<u64>, unit: u64) -> Range<u64> {
    range.start / unit..range.end.div_ceil(unit)
}

impl Bytes {
    pub(super) fn len(&self) -> u64 {
        self.visible.len() as u64
    }

    /// Room that it takes, in pages.
    pub(super) fn pages(&self) -> u64 {
        self.room.len() as u64
    }

    /// Pages that a write would take beside those that it has.
    pub(super) fn pages_needed(&self, range: Range<u64>) -> u64 {
        over(range, PAGE).filter(|page| !self.room.contains(page)).count() as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let from = (offset as usize).min(self.visible.len());
        let len = buf.len().min(self.visible.len() - from);
        buf[..len].copy_from_slice(&self.visible[from..from + len]);
        len
    }

    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        let end = offset + data.len() as u64;
        self.extend_to(end);
        self.visible[offset as usize..end as usize].copy_from_slice(data);
        self.room.extend(over(offset..end, PAGE));
        self.touch(offset..end);
    }

    fn extend_to(&mut self, end: u64) {
        if self.len() < end {
            self.visible.resize(end as usize, 0);
        }
    }

    /// Pages are written whole, also what is lost of them.
    fn touch(&mut self, range: Range<u64>) {
        self.dirty.extend(over(range.clone(), SECTOR));
        for page in over(range, PAGE) {
            let sectors = page * (PAGE / SECTOR)..(page + 1) * (PAGE / SECTOR);
            let again: Vec<u64> = self.lost.range(sectors).copied().collect();
            for sector in again {
                self.lost.remove(&sector);
                self.dirty.insert(sector);
            }
        }
    }

    pub(super) fn set_len(&mut self, len: u64) {
        let (low, high) = (len.min(self.len()), len.max(self.len()));
        self.visible.resize(len as usize, 0);
        // Storage may have old bytes there, or others that were cut off and come back as zeroes.
        self.touch(low..high.max(self.durable.len() as u64));
        self.room.retain(|page| page * PAGE < len);
    }

    /// Makes a range zeroes.
    pub(super) fn zero(&mut self, range: Range<u64>, keep_room: bool) {
        let end = range.end.min(self.len());
        if range.start < end {
            self.visible[range.start as usize..end as usize].fill(0);
            self.touch(range.start..end);
        }
        if keep_room {
            self.room.extend(over(range, PAGE));
        } else {
            let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
            self.room.retain(|page| !whole.contains(page));
        }
    }

    pub(super) fn seek_data(&self, offset: u64) -> Option<u64> {
        let page = *self.room.range(offset / PAGE..).next()?;
        let at = offset.max(page * PAGE);
        (at < self.len()).then_some(at)
    }

    pub(super) fn seek_hole(&self, offset: u64) -> u64 {
        let mut page = offset / PAGE;
        while self.room.contains(&page) {
            page += 1;
        }
        offset.max(page * PAGE).min(self.len())
    }

    /// Storage takes a sector as memory has it.
    fn store(&mut self, sector: u64) {
        let from = (sector * SECTOR) as usize;
        let to = (from + SECTOR as usize).min(self.visible.len());
        if from >= to {
            return;
        }
        if self.durable.len() < to {
            self.durable.resize(to, 0);
        }
        self.durable[from..to].copy_from_slice(&self.visible[from..to]);
    }

    /// All that is dirty reaches storage, and the length.
    pub(super) fn sync(&mut self) {
        for sector in std::mem::take(&mut self.dirty) {
            self.store(sector);
        }
        self.durable.resize(self.visible.len(), 0);
    }

    /// Storage takes some of what is dirty; all of it is called clean.
    pub(super) fn fail_to_sync(&mut self, random: &mut Sequence) {
        for sector in std::mem::take(&mut self.dirty) {
            match random.below(2) {
                0 => self.store(sector),
                _ => drop(self.lost.insert(sector)),
            }
        }
    }

    /// Some of what is dirty reaches storage early.
    pub(super) fn write_back(&mut self, random: &mut Sequence) {
        let some: Vec<u64> = self.dirty.iter().copied().filter(|_| random.below(2) == 0).collect();
        for sector in some {
            self.store(sector);
            self.dirty.remove(&sector);
        }
    }

    /// Memory forgets what is clean: reads show what storage has.
    pub(super) fn drop_clean(&mut self) {
        for sector in std::mem::take(&mut self.lost) {
            let from = (sector * SECTOR) as usize;
            let to = (from + SECTOR as usize).min(self.visible.len());
            for at in from..to {
                self.visible[at] = self.durable.get(at).copied().unwrap_or(0);
            }
        }
    }

    /// What a power cut leaves: any part of what is dirty, and any length between the old and the new.
    pub(super) fn lose_power(&mut self, random: &mut Sequence) {
        let (old, new) = (self.durable.len() as u64, self.len());
        let kept = match random.below(3) {
            0 => 0,
            1 => 1,
            _ => 2,
        };
        for sector in std::mem::take(&mut self.dirty) {
            if kept == 1 || kept == 2 && random.below(2) == 0 {
                self.store(sector);
            }
        }
        let len = match random.below(3) {
            0 => old,
            1 => new,
            _ => old.min(new) + random.below(old.abs_diff(new) / SECTOR + 1) * SECTOR,
        };
        self.durable.resize(len as usize, 0);
        self.lost.clear();
        self.visible.clone_from(&self.durable);
        self.room = over(0..len, PAGE).collect();
    }
}
