//! The parts of a disk. Less strict than what looks for room to borrow: a disk that was made larger has
//! the second copy of its table at its old end, and starts all the same.

use super::source::DiskBytes;
use block::{Error, Result};

/// The most entries of a table that are looked at.
const MOST: u32 = 128;
const SECTOR: u64 = 512;

/// A part of a disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskPart {
    /// Its number, from 1; 0 is the whole disk, where that has no table.
    pub number: u32,
    /// Its first byte.
    pub start: u64,
    /// Its bytes.
    pub length: u64,
    /// What the kernel calls its PARTUUID, in lower case.
    pub uuid: Option<String>,
    /// What it is for, by the number that a GPT has for that, in lower case.
    pub purpose: Option<String>,
}

/// The bytes of a part of a disk.
#[derive(Clone)]
pub struct PartBytes {
    disk: DiskBytes,
    start: u64,
    length: u64,
}

impl PartBytes {
    /// Those of `part`.
    pub fn new(disk: &DiskBytes, part: &DiskPart) -> Self {
        Self { disk: disk.clone(), start: part.start, length: part.length }
    }

    /// How many there are.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Fills `to` from `start`. Waits, as [`DiskBytes::read`] does.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) beyond the end, and any error from the disk.
    pub fn fill(&self, start: u64, to: &mut [u8]) -> Result<()> {
        let end = start.checked_add(to.len() as u64).filter(|end| *end <= self.length);
        end.ok_or_else(|| Error::invalid("its file system leads beyond its partition"))?;
        self.disk.read(self.start + start, to)
    }
}

/// The parts of a disk; the whole of it when it has no table.
///
/// # Errors
/// Any error from reading.
pub fn read(disk: &DiskBytes) -> Result<Vec<DiskPart>> {
    let size = disk.size();
    let whole = DiskPart { number: 0, start: 0, length: size, uuid: None, purpose: None };
    if size < 2 * SECTOR {
        return Ok(vec![whole]);
    }
    let mut first = [0; SECTOR as usize];
    disk.read(0, &mut first)?;
    if first[510..] != [0x55, 0xaa] {
        return Ok(vec![whole]);
    }
    let mut parts = match gpt(disk)? {
        Some(parts) => parts,
        None => mbr(&first),
    };
    // Overlaps do no harm: nothing is written.
    parts.retain(|part| {
        part.length > 0 && part.start.checked_add(part.length).is_some_and(|end| end <= size)
    });
    if parts.is_empty() {
        parts.push(whole);
    }
    Ok(parts)
}

/// UEFI 2.10, 5.3.
fn gpt(disk: &DiskBytes) -> Result<Option<Vec<DiskPart>>> {
    let mut header = [0; SECTOR as usize];
    disk.read(SECTOR, &mut header)?;
    if !header.starts_with(b"EFI PART") {
        return Ok(None);
    }
    let (table, count, entry) = (le64(&header, 72), le32(&header, 80), le32(&header, 84));
    if !(128..=4096).contains(&entry) {
        return Ok(None);
    }
    let mut parts = Vec::new();
    let mut bytes = vec![0; entry as usize];
    for index in 0..count.min(MOST) {
        let at = table
            .checked_mul(SECTOR)
            .and_then(|at| at.checked_add(u64::from(index) * u64::from(entry)));
        let Some(at) = at.filter(|at| at + u64::from(entry) <= disk.size()) else { break };
        disk.read(at, &mut bytes)?;
        let (first, last) = (le64(&bytes, 32), le64(&bytes, 40));
        let sectors = last.checked_sub(first).and_then(|sectors| sectors.checked_add(1));
        let bounds =
            (first.checked_mul(SECTOR), sectors.and_then(|sectors| sectors.checked_mul(SECTOR)));
        let (true, (Some(start), Some(length))) = (bytes[..16] != [0; 16], bounds) else {
            continue;
        };
        let (purpose, uuid) = (Some(guid(&bytes[..16])), Some(guid(&bytes[16..32])));
        parts.push(DiskPart { number: index + 1, start, length, uuid, purpose });
    }
    Ok(Some(parts))
}

/// The four entries of a master boot record; logical partitions hold no kernels.
fn mbr(first: &[u8]) -> Vec<DiskPart> {
    let signature = le32(first, 440);
    let parts = first[446..510].chunks_exact(16).zip(1..).filter(|(entry, _)| {
        matches!(entry[0], 0 | 0x80) && !matches!(entry[4], 0 | 0x05 | 0x0f | 0x85 | 0xee)
    });
    let part = |(entry, number): (&[u8], u32)| DiskPart {
        number,
        start: u64::from(le32(entry, 8)) * SECTOR,
        length: u64::from(le32(entry, 12)) * SECTOR,
        uuid: Some(format!("{signature:08x}-{number:02x}")),
        purpose: None,
    };
    parts.map(part).collect()
}

/// Its first three fields have the least byte first.
fn guid(bytes: &[u8]) -> String {
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let mut text = String::with_capacity(36);
    for (index, at) in order.into_iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{:02x}", bytes[at]));
    }
    text
}

pub(super) fn le16(bytes: &[u8], at: usize) -> u16 {
    bytes[at..].first_chunk().map_or(0, |bytes| u16::from_le_bytes(*bytes))
}

pub(super) fn le32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn le64(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}
