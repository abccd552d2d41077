//! One column of a block: transformed so that its numbers get small, cut into byte planes (all
//! lowest bytes, then all second bytes, …), each plane compressed when that makes it shorter.
//!
//! High planes of small numbers are all zero and vanish; bytes of one significance look alike, so
//! what can be compressed is, and what cannot (the lowest bytes of times) costs nothing to read.

use crate::bytes::{u32_at, u64_at};
use block::{Error, Result};
use zstd::bulk::{Compressor, Decompressor};

/// Bytes of a column's head.
pub(crate) const HEAD: usize = 24;
/// Values of a dictionary at most.
const MAX_TABLE: usize = 256;

/// How numbers were made small.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transform {
    /// value = base + scale · x
    Plain = 0,
    /// value = the one before (base for the first) + scale · zigzag(x)
    Delta = 1,
    /// value = the one before + the length before (base and 0 for the first) + scale · zigzag(x)
    After = 2,
    /// value = table\[x\]
    Table = 3,
}

fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

const fn unzigzag(x: u64) -> u64 {
    (x >> 1) ^ (x & 1).wrapping_neg()
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The greatest number that divides all; 1 when all are 0.
fn common(values: impl Iterator<Item = u64>) -> u64 {
    let mut divisor = 0;
    for value in values {
        if divisor == 1 {
            break;
        }
        if divisor == 0 || !value.is_multiple_of(divisor) {
            divisor = gcd(value, divisor);
        }
    }
    divisor.max(1)
}

/// How hard to try to make a file small.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Effort {
    /// Cheap for the processor: what a recorder beside a busy server uses.
    Low,
    /// Small, and still fast.
    #[default]
    Normal,
}

/// Writes columns.
pub(crate) struct Encoder {
    compressor: Compressor<'static>,
    effort: Effort,
    plane: Vec<u8>,
    packed: Vec<u8>,
    best: Vec<u8>,
    small: Vec<u64>,
}

impl Encoder {
    pub(crate) fn new(effort: Effort) -> Result<Self> {
        let level = match effort {
            Effort::Low => -4,
            Effort::Normal => 3,
        };
        let compressor =
            Compressor::new(level).map_err(|e| Error::io("cannot start compressing", e))?;
        Ok(Self {
            compressor,
            effort,
            plane: Vec::new(),
            packed: Vec::new(),
            best: Vec::new(),
            small: Vec::new(),
        })
    }

    /// Appends a column of at least one value. `lengths` allows [`Transform::After`].
    pub(crate) fn column(
        &mut self,
        out: &mut Vec<u8>,
        values: &[u64],
        lengths: Option<&[u64]>,
        sorted: bool,
    ) -> Result<()> {
        if values.iter().all(|v| *v == values[0]) {
            return self.candidate(Transform::Plain, values, lengths).map(|()| {
                out.extend_from_slice(&self.packed);
            });
        }
        let candidates: &[Transform] = match (lengths, sorted, self.effort) {
            (Some(_), _, Effort::Normal) => {
                &[Transform::After, Transform::Plain, Transform::Delta, Transform::Table]
            }
            (Some(_), _, Effort::Low) => &[Transform::After],
            (None, true, _) => &[Transform::Delta],
            (None, false, Effort::Normal) => &[Transform::Table, Transform::Plain],
            (None, false, Effort::Low) => &[Transform::Table],
        };
        self.best.clear();
        for transform in candidates {
            self.candidate(*transform, values, lengths)?;
            if self.best.is_empty() || self.packed.len() < self.best.len() {
                std::mem::swap(&mut self.best, &mut self.packed);
            }
        }
        out.extend_from_slice(&self.best);
        Ok(())
    }

    /// Encodes a column in one way; a table that would be too long becomes plain.
    fn candidate(
        &mut self,
        transform: Transform,
        values: &[u64],
        lengths: Option<&[u64]>,
    ) -> Result<()> {
        let table = match transform {
            Transform::Table => self.tabulate(values),
            _ => None,
        };
        let (transform, base, scale) = match (transform, &table) {
            (Transform::Table, Some(table)) => (Transform::Table, table.len() as u64, 0),
            (Transform::Table | Transform::Plain, _) => {
                let base = values.iter().copied().min().unwrap_or(0);
                let scale = self.divisor(values.iter().map(|v| v - base));
                self.small.clear();
                match scale.is_power_of_two() {
                    true => {
                        let shift = scale.trailing_zeros();
                        self.small.extend(values.iter().map(|v| (v - base) >> shift));
                    }
                    false => self.small.extend(values.iter().map(|v| (v - base) / scale)),
                }
                (Transform::Plain, base, scale)
            }
            (Transform::Delta | Transform::After, _) => {
                let base = values[0];
                let before = |i: usize| {
                    let gap = match (transform, lengths) {
                        (Transform::After, Some(lengths)) => lengths[i - 1],
                        _ => 0,
                    };
                    values[i].wrapping_sub(values[i - 1]).wrapping_sub(gap).cast_signed()
                };
                let scale = self.divisor((1..values.len()).map(|i| before(i).unsigned_abs()));
                // A step of 2^63 does not come about: places end there, times do not go back.
                let step = i64::try_from(scale).unwrap_or(1).max(1);
                self.small.clear();
                self.small.push(0);
                let rest = 1..values.len();
                match scale.is_power_of_two() {
                    // Exact, as the scale divides all.
                    true => {
                        let shift = step.trailing_zeros();
                        self.small.extend(rest.map(|i| zigzag(before(i) >> shift)));
                    }
                    false => self.small.extend(rest.map(|i| zigzag(before(i) / step))),
                }
                (transform, base, step.unsigned_abs())
            }
        };
        let widest = self.small.iter().fold(0, |all, x| all | x);
        let planes = (u64::BITS - widest.leading_zeros()).div_ceil(8) as usize;
        self.packed.clear();
        self.packed.resize(HEAD, 0);
        for value in table.iter().flatten() {
            self.packed.extend_from_slice(&value.to_le_bytes());
        }
        let lengths = self.packed.len();
        self.packed.resize(lengths + 4 * planes, 0);
        for plane in 0..planes {
            self.plane.clear();
            self.plane.extend(self.small.iter().map(|x| (x >> (8 * plane)) as u8));
            let start = self.packed.len();
            self.packed.resize(start + zstd::zstd_safe::compress_bound(self.plane.len()), 0);
            let size = self
                .compressor
                .compress_to_buffer(&self.plane[..], &mut self.packed[start..])
                .map_err(|e| Error::io("cannot compress a trace's column", e))?;
            self.packed.truncate(start + size);
            // Little gain is not worth the time that decompressing takes.
            if size > self.plane.len() / 16 * 15 {
                self.packed.truncate(start);
                self.packed.extend_from_slice(&self.plane);
            }
            let stored = (self.packed.len() - start) as u32;
            self.packed[lengths + 4 * plane..][..4].copy_from_slice(&stored.to_le_bytes());
        }
        self.packed[0] = transform as u8;
        self.packed[1] = planes as u8;
        self.packed[8..16].copy_from_slice(&base.to_le_bytes());
        self.packed[16..24].copy_from_slice(&scale.to_le_bytes());
        Ok(())
    }

    /// A number that divides all values: the greatest, or cheaply the greatest power of two.
    fn divisor(&self, values: impl Iterator<Item = u64>) -> u64 {
        match self.effort {
            Effort::Normal => common(values),
            Effort::Low => {
                let bits = values.fold(0, |bits, value| bits | value);
                1 << bits.trailing_zeros().min(62)
            }
        }
    }

    /// Writes indices to `small` and returns the table, when the values are few.
    fn tabulate(&mut self, values: &[u64]) -> Option<Vec<u64>> {
        const SLOTS: usize = 1024;
        let mut slots = [u16::MAX; SLOTS];
        let mut table: Vec<u64> = Vec::new();
        self.small.clear();
        for value in values {
            // Fibonacci hashing (Knuth, TAOCP 3, 6.4).
            let mut slot = (value.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54) as usize;
            let index = loop {
                match slots[slot] {
                    u16::MAX if table.len() == MAX_TABLE => return None,
                    u16::MAX => {
                        slots[slot] = table.len() as u16;
                        table.push(*value);
                        break table.len() as u64 - 1;
                    }
                    index if table[index as usize] == *value => break u64::from(index),
                    _ => slot = (slot + 1) % SLOTS,
                }
            };
            self.small.push(index);
        }
        Some(table)
    }
}

/// A column being read: its planes, and how far the values before reach.
#[derive(Debug)]
pub(crate) struct Column {
    transform: Transform,
    base: u64,
    scale: u64,
    table: Vec<u64>,
    planes: usize,
    data: Vec<u8>,
    count: usize,
    /// The value before the next chunk.
    carry: u64,
}

impl Default for Column {
    fn default() -> Self {
        Self {
            transform: Transform::Plain,
            base: 0,
            scale: 1,
            table: Vec::new(),
            planes: 0,
            data: Vec::new(),
            count: 0,
            carry: 0,
        }
    }
}

impl Column {
    /// Takes a column of `count` values off the front of `bytes`.
    pub(crate) fn load(
        &mut self,
        bytes: &mut &[u8],
        count: usize,
        decompressor: &mut Decompressor<'_>,
    ) -> Result<()> {
        let wrong = |what: &str| Error::corrupt(format!("a column {what}"));
        if bytes.len() < HEAD {
            return Err(wrong("is cut off"));
        }
        let (head, rest) = bytes.split_at(HEAD);
        self.transform = match head[0] {
            0 => Transform::Plain,
            1 => Transform::Delta,
            2 => Transform::After,
            3 => Transform::Table,
            _ => return Err(wrong("is of an unknown kind; a newer version may read it")),
        };
        self.planes = usize::from(head[1]);
        (self.base, self.scale) = (u64_at(head, 8), u64_at(head, 16));
        self.carry = self.base;
        self.count = count;
        if self.planes > 8 || head[2..8] != [0; 6] {
            return Err(wrong("is of an unknown kind; a newer version may read it"));
        }
        let mut rest = rest;
        self.table.clear();
        if self.transform == Transform::Table {
            let entries = self.base as usize;
            if self.base == 0 || self.base > MAX_TABLE as u64 || self.planes > 1 {
                return Err(wrong("has a table of no possible length"));
            }
            let Some((table, behind)) = rest.split_at_checked(entries * 8) else {
                return Err(wrong("is cut off"));
            };
            self.table.extend(table.chunks_exact(8).map(|entry| u64_at(entry, 0)));
            // So that any byte is an index; what it stands for is checked below.
            self.table.resize(MAX_TABLE, u64::MAX);
            rest = behind;
        }
        let Some((lengths, mut rest)) = rest.split_at_checked(4 * self.planes) else {
            return Err(wrong("is cut off"));
        };
        self.data.resize(self.planes * count, 0);
        for (plane, length) in self.data.chunks_exact_mut(count).zip(lengths.chunks_exact(4)) {
            let Some((stored, behind)) = rest.split_at_checked(u32_at(length, 0) as usize) else {
                return Err(wrong("is cut off"));
            };
            if stored.len() == count {
                plane.copy_from_slice(stored);
            } else if decompressor.decompress_to_buffer(stored, plane).ok() != Some(count) {
                return Err(wrong("cannot be decompressed"));
            }
            rest = behind;
        }
        if self.transform == Transform::Table && self.planes == 1 {
            let largest = self.data.iter().copied().max().unwrap_or(0);
            if u64::from(largest) >= self.base {
                return Err(wrong("points outside its table"));
            }
        }
        *bytes = rest;
        Ok(())
    }

    /// Whether every value is the same.
    pub(crate) fn constant(&self) -> Option<u64> {
        match (self.planes, self.transform) {
            (0, Transform::Plain | Transform::Delta) => Some(self.base),
            (0, Transform::Table) => self.table.first().copied(),
            _ => None,
        }
    }

    /// The values from the one at `from` on, in order of calls; `gaps` are the lengths of the
    /// same requests, and `gap` that of the request before them.
    pub(crate) fn chunk(&mut self, from: usize, out: &mut [u64], gaps: &[u64], gap: u64) {
        self.gather(from, out);
        match self.transform {
            Transform::Plain => {
                let (base, scale) = (self.base, self.scale);
                out.iter_mut().for_each(|v| *v = base.wrapping_add(v.wrapping_mul(scale)));
            }
            Transform::Table => {
                let table = &self.table;
                out.iter_mut().for_each(|v| *v = table[(*v & 0xff) as usize]);
            }
            Transform::Delta => {
                let (mut last, scale) = (self.carry, self.scale);
                for v in out.iter_mut() {
                    last = last.wrapping_add(unzigzag(*v).wrapping_mul(scale));
                    *v = last;
                }
                self.carry = last;
            }
            Transform::After => {
                let (mut last, scale) = (self.carry.wrapping_add(gap), self.scale);
                for (v, gap) in out.iter_mut().zip(gaps) {
                    let here = last.wrapping_add(unzigzag(*v).wrapping_mul(scale));
                    *v = here;
                    last = here.wrapping_add(*gap);
                }
                // The next chunk adds the last length itself.
                self.carry = out.last().copied().unwrap_or(self.carry);
            }
        }
    }

    /// Puts the bytes of the planes together.
    fn gather(&self, from: usize, out: &mut [u64]) {
        let n = out.len();
        let plane = |k: usize| &self.data[k * self.count + from..k * self.count + from + n];
        match self.planes {
            0 => out.fill(0),
            1 => out.iter_mut().zip(plane(0)).for_each(|(v, a)| *v = u64::from(*a)),
            2 => {
                for ((v, a), b) in out.iter_mut().zip(plane(0)).zip(plane(1)) {
                    *v = u64::from(*a) | u64::from(*b) << 8;
                }
            }
            3 => {
                let planes = plane(0).iter().zip(plane(1)).zip(plane(2));
                for (v, ((a, b), c)) in out.iter_mut().zip(planes) {
                    *v = u64::from(*a) | u64::from(*b) << 8 | u64::from(*c) << 16;
                }
            }
            _ => {
                let low = plane(0).iter().zip(plane(1)).zip(plane(2)).zip(plane(3));
                for (v, (((a, b), c), d)) in out.iter_mut().zip(low) {
                    *v = u64::from(u32::from_le_bytes([*a, *b, *c, *d]));
                }
                for k in 4..self.planes {
                    for (v, byte) in out.iter_mut().zip(plane(k)) {
                        *v |= u64::from(*byte) << (8 * k);
                    }
                }
            }
        }
    }
}
