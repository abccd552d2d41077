//! What a partition or disk holds, by the marks that it bears.
//!
//! Two marks are one too many: a stale signature of an earlier format looks like a fresh one, so
//! what bears the marks of two things is refused.

pub(crate) mod marks;
mod weak;

use crate::bytes::{le16, le32, le64};
use crate::head::PartHead;
use crate::refusal::refuse;
use crate::{Code, FileSystem, READERS, Refusal, Window};
use marks::{DiskMark, MARKS, MarkOffset};
use weak::{Around, confirmed};

/// Recognises what is in `window`.
///
/// # Errors
/// [`Code::Unknown`], [`Code::Ambiguous`]; the code and name of what cannot be borrowed from.
pub fn probe(window: &Window<'_>) -> Result<FileSystem, Refusal> {
    let head = PartHead::read(window)?;
    let kinds = kinds(&head);
    let mut others: Vec<(Code, &str)> = Vec::new();
    for mark in MARKS {
        if !bears(window, &head, mark)? || others.iter().any(|(_, name)| *name == mark.name) {
            continue;
        }
        // Beside something else, two bytes alone may be there by chance.
        let alone = kinds.is_empty() && others.is_empty();
        if !mark.weak || alone || confirmed(mark.name, &Around::of(&head, window)?) {
            others.push((mark.code, mark.name));
        }
    }
    others.extend(computed(window, &head)?);
    // Whoever formats a partition anew leaves the copy where it is.
    if kinds.is_empty() && others.is_empty() && headless_ntfs(window)? {
        others.push((Code::OtherFileSystem, "an NTFS without its first sector"));
    }
    // What stands around file systems is said first: there may be one inside.
    others.sort_by_key(|(code, _)| *code == Code::OtherFileSystem);
    match (kinds.as_slice(), others.as_slice()) {
        ([kind], []) => Ok(*kind),
        ([], []) => refuse!(Unknown, "nothing that is known is there"),
        ([], [(code, name)]) => Err(Refusal::new(*code, sentence(*code, name))),
        (kinds, [(code, name), ..]) if *code != Code::OtherFileSystem => {
            let rest = names(kinds, &others[1..]);
            Err(Refusal::new(
                *code,
                format!("{}; it bears the marks of {rest} too", sentence(*code, name)),
            ))
        }
        (kinds, others) => {
            refuse!(Ambiguous, "it bears the marks of {}; wipe the stale one", names(kinds, others))
        }
    }
}

fn names(kinds: &[FileSystem], others: &[(Code, &str)]) -> String {
    let kinds = kinds.iter().map(|kind| kind.as_str());
    kinds.chain(others.iter().map(|(_, name)| *name)).collect::<Vec<_>>().join(" and ")
}

fn sentence(code: Code, name: &str) -> String {
    match code {
        Code::Encrypted => format!("it is encrypted ({name}); open it and offer what is inside"),
        Code::RaidMember => {
            format!("it is a member of a RAID set ({name}); offer the assembled set")
        }
        Code::VolumeManager => {
            format!("it belongs to a volume manager ({name}); offer its volumes")
        }
        Code::CacheMember => format!("it is one half of a cached disk ({name})"),
        Code::PartitionTable => format!("it holds a partition table that is not read ({name})"),
        _ => format!("it holds {name}, whose free space is not read"),
    }
}

fn bears(window: &Window<'_>, head: &PartHead, mark: &DiskMark) -> Result<bool, Refusal> {
    let len = mark.magic.len() as u64;
    let offset = match mark.place {
        MarkOffset::Start(offset) => Some(offset),
        // The start of the last whole piece of so many bytes, less so many.
        MarkOffset::Rounded { grain, back } => (window.size() / grain * grain).checked_sub(back),
    };
    let Some(offset) =
        offset.filter(|at| at.checked_add(len).is_some_and(|end| end <= window.size()))
    else {
        return Ok(false);
    };
    if offset + len <= head.bytes.len() as u64 {
        return Ok(head.has(offset as usize, mark.magic));
    }
    Ok(window.bytes(offset, mark.magic.len())? == mark.magic)
}

/// The file systems that are read.
fn kinds(head: &PartHead) -> Vec<FileSystem> {
    READERS.iter().filter_map(|reader| (reader.recognize)(head)).collect()
}

/// What more than a few fixed bytes tell.
fn computed(window: &Window<'_>, head: &PartHead) -> Result<Vec<(Code, &'static str)>, Refusal> {
    let mut found = Vec::new();
    // BitLocker To Go looks like FAT; its GUID does not.
    if head.has(424, &marks::BITLOCKER_TO_GO) || head.has(424, &marks::BITLOCKER_USED_SPACE) {
        found.push((Code::Encrypted, "BitLocker To Go"));
    }
    if zfs(window)? {
        found.push((Code::VolumeManager, "ZFS"));
    }
    // VIA's RAID has only a sum over its last sector.
    let raw = head.tail(window)?;
    if raw.len() == 512 {
        let sum = raw[..50].iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        if le16(raw, 0) == 0xAA55 && raw[2] <= 2 && raw[50] == sum {
            found.push((Code::RaidMember, "VIA RAID"));
        }
    }
    Ok(found)
}

/// Whether the copy of the boot sector that ends an NTFS is there and says that it does.
fn headless_ntfs(window: &Window<'_>) -> Result<bool, Refusal> {
    for sector in [512, 1024, 2048, 4096] {
        let Some(at) = (window.size() / sector * sector).checked_sub(sector) else { continue };
        let copy = window.bytes(at, 512)?;
        if &copy[3..11] == b"NTFS    "
            && copy[510..] == [0x55, 0xAA]
            && u64::from(le16(&copy, 11)) == sector
            && le64(&copy, 40).checked_mul(sector) == Some(at)
        {
            return Ok(true);
        }
    }
    Ok(false)
}

/// ZFS has four labels of 256 KiB, two at each end; the second half of each is a ring of
/// uberblocks. The first and the third are looked at.
fn zfs(window: &Window<'_>) -> Result<bool, Refusal> {
    const LABEL: u64 = 256 << 10;
    const MAGIC: u64 = 0x00BA_B10C;
    let end = window.size() / LABEL * LABEL;
    let labels = [Some(0), end.checked_sub(2 * LABEL)];
    for label in labels.into_iter().flatten().filter(|label| label + LABEL <= window.size()) {
        let ring = window.bytes(label + LABEL / 2, LABEL as usize / 2)?;
        let magic = |raw: &[u8]| {
            [MAGIC.to_le_bytes(), MAGIC.to_be_bytes()].iter().any(|m| raw.starts_with(m))
        };
        if ring.chunks_exact(1024).any(magic) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Whether `window` is a store of what belongs on another disk, its origin, that bears no mark of it: a cache that
/// may hold newer bytes than the origin does, or a snapshot that needs the origin's old ones. What it is, and what
/// disks are refused with that may be its origin.
pub fn store(window: &Window<'_>) -> Option<(&'static str, Code)> {
    let head = PartHead::read(window).ok()?;
    let found = |mark: &&DiskMark| mark.origin.is_some() && bears(window, &head, mark) == Ok(true);
    let mark = MARKS.iter().find(found)?;
    Some((mark.name, mark.origin?))
}

/// Why a partition of this purpose is refused, whatever it holds.
pub fn refused_purpose(purpose: &str) -> Option<Refusal> {
    let (_, code, name) = marks::PURPOSES.iter().find(|(known, ..)| *known == purpose)?;
    Some(Refusal::new(*code, sentence(*code, name)))
}

/// How many bytes the hashes of dm-verity cover whose superblock is at `at`, if there is one.
///
/// Layout (`struct verity_sb` of cryptsetup): size of data blocks at 64, their number at 72.
pub fn verity(window: &Window<'_>, at: u64) -> Option<u64> {
    let head = window.bytes(at, 80).ok()?;
    let (size, count) = (le32(&head, 64), le64(&head, 72));
    head.starts_with(b"verity\0\0").then(|| count.saturating_mul(u64::from(size)))
}

#[cfg(test)]
mod tests;
