//! Directories of exFAT: the system files in the root, and the walk over everything.

use super::{ClusterRun, Exfat, ExfatStream};
use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};
use block::Span;

/// Bytes of a directory entry.
const ENTRY: usize = 32;
/// The most directories that wait to be walked (a directory takes a cluster, and some memory).
const MAX_WAITING: usize = 1 << 20;

/// Entry types (specification 6.3); bit 7 says that the entry is in use.
mod kind {
    pub(super) const END: u8 = 0x00;
    pub(super) const BITMAP: u8 = 0x81;
    pub(super) const UPCASE: u8 = 0x82;
    pub(super) const LABEL: u8 = 0x83;
    pub(super) const FILE: u8 = 0x85;
    pub(super) const GUID: u8 = 0xA0;
    pub(super) const STREAM: u8 = 0xC0;
    pub(super) const NAME: u8 = 0xC1;
    pub(super) const IN_USE: u8 = 0x80;
    pub(super) const SECONDARY: u8 = 0x40;
    pub(super) const BENIGN: u8 = 0x20;
}

/// The system files that the root directory names: first cluster and bytes.
pub(super) struct System {
    pub(super) bitmap: (u32, u64),
    pub(super) upcase: (u32, u64),
    pub(super) label: Option<String>,
}

/// The entries of a directory, up to the first that was never used.
struct Entries<'a> {
    window: &'a Window<'a>,
    /// What is not read yet, the next piece last.
    pieces: Vec<Span>,
    buffer: Vec<u8>,
    at: usize,
}

impl<'a> Entries<'a> {
    fn new(volume: &Exfat<'a>, runs: &[ClusterRun]) -> Self {
        let mut pieces: Vec<Span> = runs
            .iter()
            .map(|run| Span::between(volume.offset(run.first), volume.offset(run.first + run.len)))
            .flat_map(|span| span.pieces(256 << 10))
            .collect();
        pieces.reverse();
        Self { window: volume.window, pieces, buffer: Vec::new(), at: 0 }
    }

    fn next(&mut self) -> Result<Option<[u8; ENTRY]>, Refusal> {
        if self.at == self.buffer.len() {
            let Some(piece) = self.pieces.pop() else { return Ok(None) };
            self.buffer = self.window.bytes(piece.offset(), piece.len() as usize)?;
            self.at = 0;
        }
        let mut entry = [0; ENTRY];
        entry.copy_from_slice(&self.buffer[self.at..self.at + ENTRY]);
        if entry[0] == kind::END {
            return Ok(None);
        }
        self.at += ENTRY;
        Ok(Some(entry))
    }
}

/// Finds the allocation bitmap and the up-case table.
pub(super) fn system(volume: &Exfat<'_>, root: &[ClusterRun]) -> Result<System, Refusal> {
    let (mut bitmap, mut upcase, mut label) = (None, None, None);
    let mut entries = Entries::new(volume, root);
    while let Some(entry) = entries.next()? {
        let place = (le32(&entry, 20), le64(&entry, 24));
        let twice = match entry[0] {
            kind::BITMAP if entry[1] & 1 != 0 => {
                refuse!(UnsupportedFeature, "it has a second allocation bitmap (TexFAT)")
            }
            kind::BITMAP => bitmap.replace(place).is_some(),
            kind::UPCASE => upcase.replace(place).is_some(),
            kind::LABEL => {
                let units = entry[2..24].chunks_exact(2).take(usize::from(entry[1]));
                let units: Vec<u16> = units.map(|unit| le16(unit, 0)).collect();
                label = crate::bytes::label(String::from_utf16_lossy(&units).as_bytes());
                false
            }
            _ => false,
        };
        if twice {
            refuse!(
                Structure,
                "the root directory names a system file twice; check it with its own tool"
            );
        }
    }
    match (bitmap, upcase) {
        (Some(bitmap), Some(upcase)) => Ok(System { bitmap, upcase, label }),
        _ => refuse!(
            Structure,
            "the root directory does not name the allocation bitmap or the up-case table; check it with its own tool"
        ),
    }
}

/// Claims the clusters of everything that can be reached from the root.
pub(super) fn walk(volume: &mut Exfat<'_>, root: &[ClusterRun]) -> Result<(), Refusal> {
    let mut waiting = Vec::new();
    scan(volume, root, true, &mut waiting)?;
    while let Some(stream) = waiting.pop() {
        let runs = volume.claim_stream(stream, true)?;
        scan(volume, &runs, false, &mut waiting)?;
    }
    Ok(())
}

/// Claims the files of one directory; its directories have to wait.
fn scan(
    volume: &mut Exfat<'_>,
    runs: &[ClusterRun],
    root: bool,
    waiting: &mut Vec<ExfatStream>,
) -> Result<(), Refusal> {
    let mut entries = Entries::new(volume, runs);
    let mut streams = Vec::new();
    while let Some(entry) = entries.next()? {
        match entry[0] {
            kind if kind & kind::IN_USE == 0 => {}
            kind::FILE => file(&mut entries, &entry, &mut streams)?,
            kind::BITMAP | kind::UPCASE | kind::LABEL | kind::GUID if root => {}
            other => refuse!(
                UnknownFeature,
                "a directory entry of type {other:#04x} where none can be; check it with its own tool"
            ),
        }
        for (stream, directory) in streams.drain(..) {
            if !directory {
                volume.claim_stream(stream, false)?;
            } else if waiting.len() < MAX_WAITING {
                waiting.push(stream);
            } else {
                refuse!(TooMuchWork, "it has more than {MAX_WAITING} directories side by side");
            }
        }
    }
    Ok(())
}

/// One file: its entry, and the secondary entries behind it, all under one checksum. Adds what they
/// point to, and whether that is a directory.
fn file(
    entries: &mut Entries<'_>,
    head: &[u8; ENTRY],
    found: &mut Vec<(ExfatStream, bool)>,
) -> Result<(), Refusal> {
    let directory = le16(head, 4) & 0x10 != 0;
    let mut sum = head
        .iter()
        .enumerate()
        .filter(|(i, _)| !matches!(i, 2 | 3))
        .fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
    if !(2..=18).contains(&head[1]) {
        refuse!(Structure, "a file has {} further entries; check it with its own tool", head[1]);
    }
    for index in 0..head[1] {
        let Some(entry) = entries.next()? else {
            refuse!(Structure, "a directory ends within a file; check it with its own tool");
        };
        sum =
            entry.iter().fold(sum, |sum, byte| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
        let known = match entry[0] {
            kind::STREAM => index == 0,
            kind::NAME => index > 0,
            other => {
                let mask = kind::IN_USE | kind::SECONDARY | kind::BENIGN;
                index > 0 && other & mask == mask
            }
        };
        if !known {
            refuse!(
                UnknownFeature,
                "entry {index} of a file is of type {:#04x}; check it with its own tool",
                entry[0]
            );
        }
        // Not every system looks at the flag that a file can have clusters.
        if entry[0] == kind::STREAM
            && entry[1] & 1 == 0
            && (le32(&entry, 20) != 0 || le64(&entry, 24) != 0)
        {
            refuse!(
                Structure,
                "a file has clusters and says that it can have none; check it with its own tool"
            );
        }
        // Names have no room for a place.
        if entry[0] != kind::NAME
            && let Some(stream) = ExfatStream::from_entry(&entry)
        {
            found.push((stream, directory && index == 0));
        }
    }
    if sum != le16(head, 2) {
        refuse!(
            Checksum,
            "the checksum of a file's entries does not match; check it with its own tool"
        );
    }
    Ok(())
}
