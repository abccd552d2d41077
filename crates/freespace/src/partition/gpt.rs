//! The GUID partition table (UEFI specification 2.10, section 5.3).

use super::{Partition, disjoint};
use crate::bytes::{le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

const SIGNATURE: &[u8] = b"EFI PART";
/// Most tables have 128 entries; more than this are refused.
const MAX_ENTRIES: u32 = 4096;

/// One of the two headers.
#[derive(Debug, PartialEq, Eq)]
struct GptHeader {
    own: u64,
    other: u64,
    first_usable: u64,
    last_usable: u64,
    disk: [u8; 16],
    entries_at: u64,
    entries: u32,
    entry_size: u32,
    entries_checksum: u32,
}

/// Reads the table, `None` when there is none. Where sectors of 512 bytes lead nowhere, 4096 are
/// tried: image files do not say.
pub(super) fn read(
    window: &Window<'_>,
    protective: bool,
) -> Result<Option<Vec<Partition>>, Refusal> {
    for sector in [512, 4096] {
        if window.size() < sector * 6 {
            continue;
        }
        let raw = window.bytes(sector, sector as usize)?;
        if !raw.starts_with(SIGNATURE) {
            continue;
        }
        if !protective {
            refuse!(
                PartitionTable,
                "it has a GPT without the MBR that protects it; one of them is stale"
            );
        }
        return table(window, &raw, sector).map(Some);
    }
    Ok(None)
}

fn table(window: &Window<'_>, raw: &[u8], sector: u64) -> Result<Vec<Partition>, Refusal> {
    let sectors = window.size() / sector;
    let primary = GptHeader::read(raw, 1, sectors, "first")?;
    let entries = primary.entries(window, sector, "first")?;
    if primary.other != sectors - 1 {
        refuse!(
            PartitionTable,
            "its GPT says the disk ends at sector {}, and it ends at {}; the disk was resized or cut short",
            primary.other,
            sectors - 1
        );
    }
    let raw = window.bytes(primary.other * sector, sector as usize)?;
    if !raw.starts_with(SIGNATURE) {
        refuse!(PartitionTable, "the copy of its GPT at the end of the disk is missing");
    }
    let backup = GptHeader::read(&raw, primary.other, sectors, "second")?;
    if backup.entries(window, sector, "second")? != entries
        || backup.disk != primary.disk
        || (backup.first_usable, backup.last_usable) != (primary.first_usable, primary.last_usable)
    {
        refuse!(PartitionTable, "the two copies of its GPT differ");
    }
    let usable = primary.first_usable..=primary.last_usable;
    for header in [&primary, &backup] {
        let last = header.entries_at + (entries.len() as u64).div_ceil(sector).saturating_sub(1);
        if usable.contains(&header.own)
            || (header.entries_at <= *usable.end() && last >= *usable.start())
        {
            refuse!(PartitionTable, "its GPT lies where partitions may be");
        }
    }
    let mut list = Vec::new();
    for (index, entry) in entries.chunks_exact(primary.entry_size as usize).enumerate() {
        if entry[..16].iter().all(|byte| *byte == 0) {
            continue;
        }
        let number = index as u32 + 1;
        let (first, last) = (le64(entry, 32), le64(entry, 40));
        if first < primary.first_usable || last > primary.last_usable || first > last {
            refuse!(
                PartitionTable,
                "partition {number} (sectors {first} to {last}) is not where it may be"
            );
        }
        let name: Vec<u16> = entry[56..128]
            .chunks_exact(2)
            .map(|pair| u16::from_le_bytes([pair[0], pair[1]]))
            .take_while(|unit| *unit != 0)
            .collect();
        let name: String =
            String::from_utf16_lossy(&name).chars().filter(|c| !c.is_control()).collect();
        list.push(Partition {
            number,
            span: Span::between(first * sector, (last + 1) * sector),
            purpose: guid(entry),
            name: (!name.is_empty()).then_some(name),
        });
    }
    disjoint(&list)?;
    Ok(list)
}

impl GptHeader {
    fn read(raw: &[u8], at: u64, sectors: u64, which: &str) -> Result<Self, Refusal> {
        let size = le32(raw, 12);
        if le32(raw, 8) != 0x1_0000 {
            refuse!(
                PartitionTable,
                "its GPT has version {:#x}; only 0x10000 is known",
                le32(raw, 8)
            );
        }
        if !(92..=512).contains(&size) {
            refuse!(PartitionTable, "its {which} GPT header says it has {size} bytes");
        }
        let mut covered = raw[..size as usize].to_vec();
        covered[16..20].fill(0);
        if crc32(&covered) != le32(raw, 16) {
            refuse!(PartitionTable, "the checksum of its {which} GPT header does not match");
        }
        let mut disk = [0; 16];
        disk.copy_from_slice(&raw[56..72]);
        let header = Self {
            own: le64(raw, 24),
            other: le64(raw, 32),
            first_usable: le64(raw, 40),
            last_usable: le64(raw, 48),
            disk,
            entries_at: le64(raw, 72),
            entries: le32(raw, 80),
            entry_size: le32(raw, 84),
            entries_checksum: le32(raw, 88),
        };
        if header.own != at
            || header.other >= sectors
            || header.last_usable >= sectors
            || header.first_usable > header.last_usable
            || header.entries_at >= sectors
            || header.entries > MAX_ENTRIES
            || header.entry_size > 4096
            || header.entry_size < 128
            || !header.entry_size.is_power_of_two()
        {
            refuse!(PartitionTable, "its {which} GPT header contradicts itself or the disk's size");
        }
        Ok(header)
    }

    fn entries(&self, window: &Window<'_>, sector: u64, which: &str) -> Result<Vec<u8>, Refusal> {
        let bytes = self.entries as usize * self.entry_size as usize;
        let entries = window.bytes(self.entries_at * sector, bytes)?;
        if crc32(&entries) != self.entries_checksum {
            refuse!(PartitionTable, "the checksum of its {which} GPT does not match");
        }
        Ok(entries)
    }
}

/// A GUID as people write it: its first three fields are little-endian.
fn guid(raw: &[u8]) -> String {
    format!(
        "{:08x}-{:04x}-{:04x}-{:02x}{:02x}-{:02x}{:02x}{:02x}{:02x}{:02x}{:02x}",
        le32(raw, 0),
        u16::from_le_bytes([raw[4], raw[5]]),
        u16::from_le_bytes([raw[6], raw[7]]),
        raw[8],
        raw[9],
        raw[10],
        raw[11],
        raw[12],
        raw[13],
        raw[14],
        raw[15]
    )
}

const CRC: [u32; 256] = {
    let mut table = [0; 256];
    let mut n = 0;
    while n < 256 {
        let mut crc = n as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
            bit += 1;
        }
        table[n] = crc;
        n += 1;
    }
    table
};

/// CRC-32 (IEEE 802.3).
pub(super) fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| (crc >> 8) ^ CRC[usize::from(crc as u8 ^ byte)])
}
