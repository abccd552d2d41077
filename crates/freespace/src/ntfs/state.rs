//! What says that a volume was left cleanly: flags, log, hibernation file, shadow copies.

use super::record::{fix_up, kind};
use super::volume::{AttributeStream, Ntfs, Value};
use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// Where the header of the volume shadow copies is, and its GUID as it lies on disk.
const SHADOW_AT: u64 = 0x1E00;
const SHADOW_ID: [u8; 16] = [
    0x6B, 0x87, 0x08, 0x38, 0x76, 0xC1, 0x48, 0x4E, 0xB7, 0xAE, 0x04, 0x04, 0x6E, 0x6C, 0xC7, 0x52,
];

/// Refuses a volume with shadow copies: a block that an old version needs may be marked free.
pub(super) fn shadow_copies(window: &Window<'_>) -> Result<(), Refusal> {
    let head = window.bytes(SHADOW_AT, 0x40)?;
    if head[..16] == SHADOW_ID && le64(&head, 0x30) != 0 {
        refuse!(
            Snapshots,
            "it has shadow copies (\"previous versions\"), which writing to free space may damage; delete them in Windows or allow it"
        );
    }
    Ok(())
}

/// `$Volume`: its version and flags. Returns its label.
pub(super) fn flags(volume: &Ntfs<'_>) -> Result<Option<String>, Refusal> {
    let record = volume.record(3)?;
    let mut flags = None;
    let mut label = None;
    for attribute in record.attributes()? {
        match (attribute.kind(), attribute.resident()) {
            (kind::VOLUME_INFORMATION, Some(value)) if value.len() >= 12 => {
                flags = Some((value[8], value[9], le16(value, 10)));
            }
            (kind::VOLUME_NAME, Some(value)) => {
                let units: Vec<u16> = value.chunks_exact(2).map(|unit| le16(unit, 0)).collect();
                label = crate::bytes::label(String::from_utf16_lossy(&units).as_bytes());
            }
            _ => {}
        }
    }
    let Some((major, minor, flags)) = flags else {
        refuse!(Structure, "it has no volume information; check it with chkdsk");
    };
    if !matches!((major, minor), (3, 0 | 1)) {
        refuse!(UnknownFeature, "version {major}.{minor} of NTFS; only 3.0 and 3.1 are known");
    }
    // The flags with which Linux' own driver does not write either. Others, such as 0x80, are set
    // on sound volumes.
    if flags & 0x0001 != 0 {
        refuse!(Unclean, "Windows has marked it dirty; start Windows or run chkdsk, and shut down");
    }
    if flags & 0xC026 != 0 {
        refuse!(
            Errors,
            "Windows has work to finish on it (flags {flags:#06x}); start Windows and shut it down"
        );
    }
    Ok(label)
}

/// `$LogFile`: the restart pages say whether all of the log is in place.
pub(super) fn log(volume: &Ntfs<'_>) -> Result<(), Refusal> {
    let record = volume.record(2)?;
    match volume.value(&record, kind::DATA, &[])? {
        Some(Value::Clusters(stream)) if !stream.coded && stream.initialised >= 64 << 10 => {
            log_stream(volume, &stream)
        }
        _ => refuse!(Structure, "its log is missing or too short; check it with chkdsk"),
    }
}

/// Refuses a volume whose log, whole or damaged, is of the version that only a Windows which still
/// has to go on leaves behind.
pub(super) fn log_of_a_sleeper(volume: &Ntfs<'_>) -> Result<(), Refusal> {
    let value = volume.record(2).and_then(|record| volume.value(&record, kind::DATA, &[]));
    let mut head = vec![0; 8 << 10];
    if let Ok(Some(Value::Clusters(stream))) = value
        && volume.read(&stream, 0, &mut head).is_ok()
        && head
            .chunks_exact(4 << 10)
            .any(|page| &page[..4] == b"RSTR" && (le16(page, 0x1C), le16(page, 0x1A)) == (2, 0))
    {
        return sleeps();
    }
    Ok(())
}

fn sleeps<T>() -> Result<T, Refusal> {
    refuse!(
        Hibernated,
        "Windows 8 or newer runs on it, was cut off, or was shut down for a fast start; shut it down with shift held, or restart it"
    )
}

fn log_stream(volume: &Ntfs<'_>, stream: &AttributeStream) -> Result<(), Refusal> {
    let mut head = vec![0; 64 << 10];
    volume.read(stream, 0, &mut head)?;
    if head.iter().all(|byte| *byte == 0xFF) {
        // Reset: then all of it is so.
        let mut at = 0;
        let mut bytes = vec![0; 1 << 20];
        while at < stream.initialised {
            let len = (stream.initialised - at).min(1 << 20) as usize;
            volume.read(stream, at, &mut bytes[..len])?;
            if bytes[..len].iter().any(|byte| *byte != 0xFF) {
                refuse!(
                    NeedsReplay,
                    "its log was reset in part only; start Windows and shut it down"
                );
            }
            at += len as u64;
        }
        return Ok(());
    }
    restart_pages(&head)
}

/// Both restart pages must be whole, and the newer one say that nothing is to be done.
pub(super) fn restart_pages(head: &[u8]) -> Result<(), Refusal> {
    let page = le32(head, 16) as usize;
    if !matches!(page, 512 | 1024 | 2048 | 4096 | 8192 | 16_384 | 32_768) || 2 * page > head.len() {
        refuse!(NeedsReplay, "its log has no restart page; start Windows and shut it down");
    }
    let first = restart_page(&head[..page])?;
    let second = restart_page(&head[page..2 * page])?;
    let newer = if second.0 > first.0 { second } else { first };
    if !newer.1 {
        refuse!(
            NeedsReplay,
            "its log holds changes that are not in place; start Windows and shut it down"
        );
    }
    Ok(())
}

/// The log sequence number of a restart page, and whether it says that all is in place.
fn restart_page(raw: &[u8]) -> Result<(u64, bool), Refusal> {
    if !matches!(&raw[..4], b"RSTR" | b"CHKD") {
        refuse!(NeedsReplay, "its log has a damaged restart page; start Windows and shut it down");
    }
    let mut page = raw.to_vec();
    fix_up(&mut page, "a restart page of its log")?;
    let (minor, major) = (le16(&page, 0x1A), le16(&page, 0x1C));
    if (major, minor) == (2, 0) {
        return sleeps();
    }
    if (major, minor) != (1, 1) {
        refuse!(UnknownFeature, "version {major}.{minor} of its log; only 1.1 is known");
    }
    let area = usize::from(le16(&page, 0x18));
    if le32(&page, 16) as usize != page.len() || area < 0x20 || area + 16 > page.len() {
        refuse!(NeedsReplay, "its log has a damaged restart page; start Windows and shut it down");
    }
    let clients_in_use = le16(&page, area + 0x0C) != 0xFFFF;
    let clean = le16(&page, area + 0x0E) & 2 != 0;
    Ok((le64(&page, area), clean || !clients_in_use))
}

/// `hiberfil.sys`: its first bytes say whether a system sleeps in it.
pub(super) fn hibernation(volume: &Ntfs<'_>, file: u64) -> Result<(), Refusal> {
    let record = volume.record(file)?;
    let mut head = [0; 4096];
    match volume.value(&record, kind::DATA, &[])? {
        Some(Value::Clusters(mut stream)) if stream.size >= 4096 && !stream.coded => {
            // Windows writes it past the file system, which need not know how much of it it wrote.
            stream.initialised = stream.size;
            volume.read(&stream, 0, &mut head)?;
        }
        _ => refuse!(
            Hibernated,
            "its hiberfil.sys is not one that Windows leaves behind when it shuts down"
        ),
    }
    if head.iter().any(|byte| *byte != 0) {
        refuse!(
            Hibernated,
            "Windows sleeps in its hiberfil.sys; start it and shut it down with shift held"
        );
    }
    Ok(())
}
