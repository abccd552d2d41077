//! NTFS: `$Bitmap` says what is free, and nothing protects it. So every file record is read, and
//! every cluster of every file must be marked in use and belong to that file alone. The walk also
//! finds `hiberfil.sys`, so there is no faster level.
//!
//! Source: the layout structures of ntfs-3g (`layout.h`, `logfile.h`) and of the kernel's `ntfs3`.

mod boot;
mod record;
mod state;
mod volume;

use crate::bytes::{le16, le64};
use crate::clusters::Clusters;
use crate::reader::SuspendedIn;
use crate::refusal::refuse;
use crate::{
    Code, FileSystem, FileSystemReader, FreeList, FreeSpace, FreeSpaceOptions, Level, Refusal,
    Stamp, Volume, Window,
};
use block::Span;
use record::{FileRecord, kind};
use volume::{AttributeStream, Ntfs, Value};

/// Numbers of the system's file records.
const BITMAP: u64 = 6;
const ROOT: u64 = 5;
/// Records below are the system's own.
const FIRST_USER: u64 = 24;

/// Records from here to [`FIRST_USER`] are the system's, but need not be in use.
const FIRST_SPARE: u64 = 12;
/// The most files whose name is `hiberfil.sys` but for its case.
const MAX_HIBERNATION: usize = 64;

/// Whether a look for a sleeping Windows saw all files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FilesSeen {
    All,
    Part,
}

impl FileSystem {
    /// NTFS.
    pub const NTFS: Self = Self("ntfs");
}

/// The line of this file system in the table of readers.
pub(crate) const READER: FileSystemReader = FileSystemReader {
    kinds: &[FileSystem::NTFS],
    recognize: |head| head.has(3, b"NTFS    ").then_some(FileSystem::NTFS),
    read,
    // ntfs-3g leaves no mark.
    shows_mounted: false,
    suspended: SuspendedIn::OwnFile,
};

/// Reads what is free.
fn read(window: &Window<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let volume = Ntfs::open(window, boot::read(window)?)?;
    prove(&volume, options).or_else(|refusal| {
        if refusal.code == Code::Hibernated {
            return Err(refusal);
        }
        // A sleeping Windows counts for the whole machine, so it is looked for whatever else is
        // wrong here.
        state::log_of_a_sleeper(&volume)?;
        match sleeper(&volume)? {
            FilesSeen::All => Err(refusal),
            // Said as damage, which whoever looks for a sleeper takes for a place to hide.
            FilesSeen::Part => refuse!(
                Structure,
                "{}; and of its files not all are seen, so Windows may sleep in it",
                refusal.sentence
            ),
        }
    })
}

/// Reads what is free in a volume whose file table is known.
fn prove(volume: &Ntfs<'_>, options: &FreeSpaceOptions) -> Result<FreeSpace, Refusal> {
    let window = volume.window;
    if !options.shadow_copies {
        state::shadow_copies(window)?;
    }
    mirror(volume)?;
    let label = state::flags(volume)?;
    state::log(volume)?;
    let (mut clusters, map) = bitmap(volume)?;
    let mut list = FreeList::new();
    let unit = volume.boot.cluster;
    clusters.push_free(&mut list, 0, unit)?;
    for file in walk(volume, &mut clusters)? {
        state::hibernation(volume, file)?;
    }
    // The boot sector and shadow copies, the system's file records, the restart pages, the bitmap.
    let mut ranges = vec![Span::whole(16 << 10)];
    ranges.extend(places(volume, &volume.mft, FIRST_USER * volume.boot.record as u64));
    let log = volume.record(2)?;
    if let Some(Value::Clusters(stream)) = volume.value(&log, kind::DATA, &[])? {
        ranges.extend(places(volume, &stream, 64 << 10));
    }
    ranges.extend(places(volume, &map, 8 << 20));
    let (free, dropped) = list.finish();
    Ok(FreeSpace {
        kind: FileSystem::NTFS,
        level: Level::Deep,
        usual: Level::Deep,
        unit: unit as u32,
        size: volume.boot.size,
        free,
        dropped,
        stamp: Stamp::take(window, ranges)?,
        volume: Volume { uuid: Some(format!("{:016X}", volume.boot.serial)), label },
    })
}

/// Where the first `len` bytes of a value lie.
fn places(volume: &Ntfs<'_>, stream: &AttributeStream, len: u64) -> Vec<Span> {
    let mut left = len.min(stream.size);
    let mut spans = Vec::new();
    for run in &stream.runs {
        let bytes = run.len.saturating_mul(volume.boot.cluster).min(left);
        if let Some(first) = run.first {
            let start = first * volume.boot.cluster;
            spans.push(Span::between(start, start + bytes));
        }
        left -= bytes;
        if left == 0 {
            break;
        }
    }
    spans
}

/// `$MFTMirr`: the first four records again.
fn mirror(volume: &Ntfs<'_>) -> Result<(), Refusal> {
    let boot = &volume.boot;
    let len = 4 * boot.record;
    let copy = volume.window.bytes(boot.mirror * boot.cluster, len)?;
    let mut records = vec![0; len];
    volume.read(&volume.mft, 0, &mut records)?;
    if records != copy {
        refuse!(Structure, "the file table and its copy differ; check it with chkdsk");
    }
    Ok(())
}

/// `$Bitmap`, and where it lies.
fn bitmap(volume: &Ntfs<'_>) -> Result<(Clusters, AttributeStream), Refusal> {
    let record = volume.record(BITMAP)?;
    let count = volume.boot.clusters;
    let needed = count.div_ceil(8);
    let stream = match volume.value(&record, kind::DATA, &[])? {
        Some(Value::Clusters(stream)) if !stream.coded && stream.initialised >= needed => stream,
        _ => refuse!(Structure, "its bitmap is missing or too short; check it with chkdsk"),
    };
    if stream.initialised > needed + 4096 {
        refuse!(
            Structure,
            "its bitmap has {} bytes, and {needed} are needed; check it with chkdsk",
            stream.initialised
        );
    }
    volume.check_solid("its bitmap", &stream)?;
    let mut clusters = Clusters::new(count);
    for piece in Span::whole(stream.initialised).pieces(1 << 20) {
        let mut bits = vec![0; piece.len() as usize];
        volume.read(&stream, piece.offset(), &mut bits)?;
        // Bits behind the last cluster are set.
        for bit in count.max(piece.offset() * 8)..piece.end() * 8 {
            if bits[(bit / 8 - piece.offset()) as usize] >> (bit % 8) & 1 == 0 {
                refuse!(
                    Structure,
                    "its bitmap knows clusters behind the last; check it with chkdsk"
                );
            }
        }
        clusters.load(piece.offset() * 8, &bits);
    }
    if !clusters.is_set(0) {
        refuse!(Conflict, "its bitmap marks the boot sector as free; check it with chkdsk");
    }
    Ok((clusters, stream))
}

/// Reads every file record in use and claims the clusters of all attributes. Returns the records of
/// all files that are called `hiberfil.sys`: names that differ in case only can stand side by side.
fn walk(volume: &Ntfs<'_>, clusters: &mut Clusters) -> Result<Vec<u64>, Refusal> {
    let size = volume.boot.record;
    let in_use = records_in_use(volume)?;
    let mut hibernation = Vec::new();
    let mut bytes = vec![0; (1 << 20) / size * size];
    let total = volume.records() * size as u64;
    for piece in Span::whole(total).pieces(bytes.len() as u64) {
        let bytes = &mut bytes[..piece.len() as usize];
        volume.read(&volume.mft, piece.offset(), bytes)?;
        for (index, raw) in bytes.chunks_exact(size).enumerate() {
            let number = piece.offset() / size as u64 + index as u64;
            let marked = in_use.is_set(number);
            if marked != FileRecord::in_use(raw) {
                if !marked || !is_spare(number, raw) {
                    refuse!(
                        Conflict,
                        "file record {number} and the map of records in use differ; check it with chkdsk"
                    );
                }
                // Some of the system's records are kept free for itself.
                continue;
            }
            if !marked {
                continue;
            }
            let record = FileRecord::new(number, raw.to_vec())?;
            if let Some(file) = claim(volume, &record, clusters)? {
                if hibernation.len() >= MAX_HIBERNATION {
                    refuse!(
                        Hibernated,
                        "more than {MAX_HIBERNATION} of its files are called hiberfil.sys"
                    );
                }
                hibernation.push(file);
            }
        }
    }
    // A marked record behind the last written one would be a file that was not read.
    if !in_use.none_from(volume.records()) {
        refuse!(Structure, "files are beyond the end of the file table; check it with chkdsk");
    }
    Ok(hibernation)
}

/// Whether a record that is marked as in use, and is not, is one that the system keeps for itself.
fn is_spare(number: u64, raw: &[u8]) -> bool {
    (FIRST_SPARE..FIRST_USER).contains(&number) && raw.starts_with(b"FILE")
}

/// Refuses a volume with a `hiberfil.sys` in which a system sleeps, or of which nobody can say. Of
/// what is damaged on the way, nothing is said but that not all was seen.
fn sleeper(volume: &Ntfs<'_>) -> Result<FilesSeen, Refusal> {
    let size = volume.boot.record;
    // Without the map of records in use, each of them counts.
    let in_use = records_in_use(volume).ok();
    let behind = in_use.as_ref().is_some_and(|map| map.none_from(volume.records()));
    let mut seen = if behind { FilesSeen::All } else { FilesSeen::Part };
    let mut bytes = vec![0; (1 << 20) / size * size];
    for piece in Span::whole(volume.records() * size as u64).pieces(bytes.len() as u64) {
        let bytes = &mut bytes[..piece.len() as usize];
        if volume.read(&volume.mft, piece.offset(), bytes).is_err() {
            seen = FilesSeen::Part;
            continue;
        }
        for (index, raw) in bytes.chunks_exact(size).enumerate() {
            let number = piece.offset() / size as u64 + index as u64;
            let record = FileRecord::new(number, raw.to_vec());
            let names = record.as_ref().map(FileRecord::attributes);
            let Ok(Ok(attributes)) = names else {
                let marked = in_use.as_ref().is_none_or(|map| map.is_set(number));
                if FileRecord::in_use(raw) || (marked && !is_spare(number, raw)) {
                    seen = FilesSeen::Part;
                }
                continue;
            };
            let named = attributes.iter().any(|attribute| {
                attribute.kind() == kind::FILE_NAME
                    && attribute.resident().is_some_and(is_hibernation_file)
            });
            if named && let Ok(record) = &record {
                let file = record.base().unwrap_or(number);
                state::hibernation(volume, file).or_else(|refusal| match refusal.code {
                    Code::Hibernated => Err(refusal),
                    _ => {
                        seen = FilesSeen::Part;
                        Ok(())
                    }
                })?;
            }
        }
    }
    Ok(seen)
}

/// The file table's own map of records in use.
fn records_in_use(volume: &Ntfs<'_>) -> Result<Clusters, Refusal> {
    let record = volume.record(0)?;
    let Some(value) = volume.value(&record, kind::BITMAP, &[])? else {
        refuse!(Structure, "the file table has no map of records in use; check it with chkdsk");
    };
    let count = volume.records();
    let needed = count.div_ceil(8);
    // It grows in steps ahead of the table.
    if value.size() < needed || value.size() > needed + (1 << 20) {
        refuse!(
            Structure,
            "the map of records in use has an impossible size; check it with chkdsk"
        );
    }
    if let Value::Clusters(stream) = &value {
        volume.check_solid("the map of records in use", stream)?;
    }
    let mut map = Clusters::new(value.size() * 8);
    match value {
        Value::Resident(bytes) => map.load(0, &bytes),
        Value::Clusters(stream) => {
            for piece in Span::whole(stream.size).pieces(1 << 20) {
                let mut bits = vec![0; piece.len() as usize];
                volume.read(&stream, piece.offset(), &mut bits)?;
                map.load(piece.offset() * 8, &bits);
            }
        }
    }
    Ok(map)
}

/// Claims the clusters of a record's attributes; returns its file when its name is `hiberfil.sys`.
fn claim(
    volume: &Ntfs<'_>,
    record: &FileRecord,
    clusters: &mut Clusters,
) -> Result<Option<u64>, Refusal> {
    let mut hibernation = None;
    for attribute in record.attributes()? {
        if attribute.in_clusters() {
            for run in attribute.runs(volume.boot.clusters)? {
                if let Some(first) = run.first {
                    clusters.claim(first, run.len, &format!("file record {}", record.number))?;
                }
            }
        }
        if attribute.kind() == kind::FILE_NAME
            && let Some(value) = attribute.resident()
            && is_hibernation_file(value)
        {
            hibernation = Some(record.base().unwrap_or(record.number));
        }
    }
    Ok(hibernation)
}

/// Whether a file name attribute names `hiberfil.sys` in the root directory, in any case.
fn is_hibernation_file(value: &[u8]) -> bool {
    const NAME: &[u8] = b"hiberfil.sys";
    value.len() >= 0x42 + 2 * NAME.len()
        && le64(value, 0) & 0xFFFF_FFFF_FFFF == ROOT
        && usize::from(value[0x40]) == NAME.len()
        && NAME.iter().enumerate().all(|(i, expected)| {
            let unit = le16(value, 0x42 + 2 * i);
            u8::try_from(unit).is_ok_and(|unit| unit.eq_ignore_ascii_case(expected))
        })
}

#[cfg(test)]
mod tests;
