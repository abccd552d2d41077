//! The master boot record, and the chain of extended partitions.

use super::{Partition, disjoint};
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

/// More logical partitions than this are refused, so that a chain that bites its tail ends.
const MAX_LOGICAL: u32 = 256;
/// Bytes of a boot record, however large the disk's sectors are.
const RECORD: usize = 512;

/// One of the four entries of a boot record, in sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MbrEntry {
    pub(super) number: u32,
    pub(super) kind: u8,
    start: u64,
    count: u64,
}

impl MbrEntry {
    fn is_extended(self) -> bool {
        matches!(self.kind, 0x05 | 0x0F | 0x85)
    }
}

/// The used entries of a sector; `None` when it holds no partition table: no signature, no entry,
/// or something else (the boot code of a file system) where entries would be.
fn entries(raw: &[u8]) -> Option<Vec<MbrEntry>> {
    if le16(raw, 510) != 0xAA55 {
        return None;
    }
    let mut list = Vec::new();
    for (number, entry) in (1..).zip(raw[446..510].chunks_exact(16)) {
        if !matches!(entry[0], 0 | 0x80) {
            return None;
        }
        let (start, count) = (u64::from(le32(entry, 8)), u64::from(le32(entry, 12)));
        if entry[4] != 0 {
            list.push(MbrEntry { number, kind: entry[4], start, count });
        }
    }
    Some(list)
}

/// The four entries of the first sector, when they are a partition table.
pub(super) fn primary(raw: &[u8], window: &Window<'_>) -> Option<Vec<MbrEntry>> {
    let list = entries(raw)?;
    let fits = |entry: &MbrEntry| entry.start > 0 && entry.count > 0;
    // Where no entry fits it is boot code. Where one does, those that do not are damage: see `read`.
    let table = list.iter().any(fits) && window.size() > RECORD as u64;
    table.then_some(list)
}

/// All partitions, logical ones included.
///
/// # Errors
/// Overlaps, ranges beyond the disk, broken chains.
pub(super) fn read(window: &Window<'_>, primary: &[MbrEntry]) -> Result<Vec<Partition>, Refusal> {
    let mut list = Vec::new();
    let mut containers = Vec::new();
    for entry in primary {
        let partition = partition(window, *entry)?;
        if entry.is_extended() {
            containers.push((*entry, partition.clone()));
        }
        list.push(partition);
    }
    // The extended partition itself takes part in the check for overlaps, then gives way.
    disjoint(&list)?;
    if containers.len() > 1 {
        refuse!(PartitionTable, "it has two extended partitions");
    }
    list.retain(|partition| containers.iter().all(|(_, c)| c.number != partition.number));
    for (entry, container) in containers {
        logical(window, entry, container.span, &mut list)?;
    }
    disjoint(&list)?;
    Ok(list)
}

fn partition(window: &Window<'_>, entry: MbrEntry) -> Result<Partition, Refusal> {
    if entry.start == 0 || entry.count == 0 {
        refuse!(PartitionTable, "partition {} is empty or begins before the disk", entry.number);
    }
    // 2^33 sectors of 4096 bytes: no overflow. Image files do not say what sectors their disk had: 512.
    let sector = u64::from(window.sector_size());
    let (start, end) = (entry.start * sector, (entry.start + entry.count) * sector);
    if end > window.size() {
        refuse!(PartitionTable, "partition {} reaches beyond the end of the disk", entry.number);
    }
    let span = Span::between(start, end);
    let purpose = format!("{:#04x}", entry.kind);
    Ok(Partition { number: entry.number, span, purpose, name: None })
}

/// Follows the chain: each boot record describes one logical partition and where the next one is,
/// the latter from the start of the extended partition.
fn logical(
    window: &Window<'_>,
    container: MbrEntry,
    bounds: Span,
    list: &mut Vec<Partition>,
) -> Result<(), Refusal> {
    let sector = u64::from(window.sector_size());
    let mut at = container.start;
    for number in 5..5 + MAX_LOGICAL {
        let record = Span::between(at * sector, (at + 1) * sector);
        if list.iter().any(|partition| partition.span.intersect(record).is_some()) {
            refuse!(PartitionTable, "a partition lies on the boot record at sector {at}");
        }
        let raw = window.bytes(at * sector, RECORD)?;
        let Some(found) = entries(&raw) else {
            refuse!(PartitionTable, "its chain of logical partitions breaks at sector {at}");
        };
        let (links, own): (Vec<MbrEntry>, Vec<MbrEntry>) =
            found.into_iter().partition(|e| e.is_extended());
        if own.len() > 1 || links.len() > 1 {
            refuse!(PartitionTable, "sector {at} describes more than one logical partition");
        }
        for entry in own {
            let entry = MbrEntry { number, start: at + entry.start, ..entry };
            let partition = partition(window, entry)?;
            if bounds.intersect(partition.span) != Some(partition.span)
                || partition.span.intersect(record).is_some()
            {
                refuse!(PartitionTable, "logical partition {number} is not where it may be");
            }
            list.push(partition);
        }
        let Some(link) = links.first() else { return Ok(()) };
        let next = container.start + link.start;
        // Records that only go forward cannot go round.
        if next <= at || next * sector >= bounds.end() {
            refuse!(
                PartitionTable,
                "its chain of logical partitions leads back or out at sector {at}"
            );
        }
        at = next;
    }
    refuse!(PartitionTable, "it has more than {MAX_LOGICAL} logical partitions");
}
