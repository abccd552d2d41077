//! Writing a medium: what goes on first, what fits, and what may go.
//!
//! Each step leaves a medium that can be read: a pack file that is not whole does not count, an image's
//! record comes when its chunks are there, the index file last. So a writing that ended anywhere, by a
//! kill or by pulling the medium out, goes on where it was.

use super::pack_file::{self, ChunkRow, HEAD, PackFile, check_chunks, short};
use super::record::{self, MediaRecord, RecordKind, StoredRecord};
use super::{DIRECTORY, Media, README, README_TEXT, index, is_at};
use crate::regular::create_afresh;
use block::{Error, ErrorKind, Result, offload};
use serde::Serialize;
use std::collections::HashSet;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use store::pack::Builder;
use store::{
    BootListId, ChunkId, ChunkRef, ManifestId, Progress, Settings, Store, bootlist, sweep,
};

/// Stored bytes of the chunks of a pack file.
const PACK: u64 = 8 << 20;
/// Bytes of a pack file beside its chunks: its head, and the pack's own head, trailer and seal.
const PACK_OVERHEAD: u64 = HEAD as u64 + 16 + 32 + 16;
/// Bytes of a chunk beside what is stored of it: in its pack, and in the index file.
const CHUNK_OVERHEAD: u64 = 48 + index::ROW as u64 + 8;
/// Left free on a file system.
const RESERVE: u64 = 1 << 20;

/// What is to be on a medium.
#[derive(Debug, Clone)]
pub struct MediaImage {
    /// As the user called it.
    pub name: String,
    /// What it is.
    pub kind: RecordKind,
    /// Which version of an image; of a disk its name.
    pub version: String,
    /// Its content.
    pub manifest: ManifestId,
    /// What a boot of it reads.
    pub boot_list: Option<BootListId>,
}

/// What came of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WrittenImage {
    /// As the user called it.
    pub name: String,
    /// Which version.
    pub version: String,
    /// Distinct chunks that it has.
    pub chunks: u64,
    /// How many of them are on the medium now.
    pub present: u64,
    /// Chunks of its boot list.
    pub boot_chunks: u64,
    /// How many of them are on the medium now.
    pub boot_present: u64,
    /// Stored bytes that did not fit.
    pub missing_bytes: u64,
}

/// What a writing did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MediaWriteReport {
    /// Each image or disk.
    pub images: Vec<WrittenImage>,
    /// Chunks that were written.
    pub written_chunks: u64,
    /// Stored bytes of them.
    pub written_bytes: u64,
    /// Stored bytes of chunks that were there already.
    pub kept_bytes: u64,
    /// Bytes that were freed: of damaged files, and of packs that no image on the medium needs any more.
    pub freed_bytes: u64,
    /// Bytes of all files now.
    pub used_bytes: u64,
}

/// An image's chunks in the order in which they go on: the boot list's, then the rest in image order.
struct Order {
    boot: Vec<ChunkRef>,
    rest: Vec<ChunkRef>,
}

impl Order {
    fn all(&self) -> impl Iterator<Item = &ChunkRef> {
        self.boot.iter().chain(&self.rest)
    }
}

/// Writes `images` to the medium at `place`, which is made if there is none: first what their boots read,
/// then the rest of each in image order, as far as it fits into `size` bytes (all files together; `None`:
/// what the file system has). What is there is not written again; what no image on the medium needs any
/// more is deleted before.
///
/// # Errors
/// Those of the store; the system's, naming the file. A medium that is full is none: the report says what
/// did not fit.
pub async fn write(
    store: &Store,
    place: &Path,
    images: &[MediaImage],
    size: Option<u64>,
    progress: &dyn Progress,
) -> Result<MediaWriteReport> {
    let mut report = MediaWriteReport::default();
    let settings = store.settings().clone();
    let mut orders = Vec::with_capacity(images.len());
    for image in images {
        orders.push(order(store, image).await?);
    }
    let replaced: HashSet<u32> =
        images.iter().map(|image| record::number_of(&settings, image.kind, &image.name)).collect();
    let needed: HashSet<[u8; 8]> =
        orders.iter().flat_map(Order::all).map(|at| short(&at.id)).collect();
    let (opened, freed) = {
        let (settings, place) = (settings.clone(), place.to_owned());
        offload(move || prepare(&settings, &place, &replaced, needed)).await?
    };
    let mut media = opened;
    report.freed_bytes = freed;
    let mut there = media.short_ids();
    let mut room = room(&media, size)?;
    for order in &orders {
        room = room.saturating_sub(4096 + 8 * order.all().count() as u64);
    }
    let first = orders.iter().flat_map(|order| &order.boot);
    let then = orders.iter().flat_map(|order| &order.rest);
    let mut chosen = Vec::new();
    for at in first.chain(then) {
        if there.contains(&short(&at.id)) {
            continue;
        }
        let cost = u64::from(at.stored) + CHUNK_OVERHEAD;
        let packs = u64::from(chosen.is_empty());
        let share = PACK_OVERHEAD * u64::from(at.stored) / PACK + packs * PACK_OVERHEAD + 1;
        let Some(left) = room.checked_sub(cost + share) else { break };
        room = left;
        there.insert(short(&at.id));
        chosen.push(*at);
    }
    report.kept_bytes = kept(&orders, &media);
    put(store, &mut media, chosen, &mut report, progress).await?;
    let written = store.world().clock.now();
    let place = place.to_owned();
    for (image, order) in images.iter().zip(&orders) {
        let number = record::number_of(&settings, image.kind, &image.name);
        let manifest = store.manifest(&image.manifest).await?;
        let record = MediaRecord {
            name: image.name.clone(),
            kind: image.kind,
            version: image.version.clone(),
            manifest: image.manifest,
            size: manifest.size(),
            written,
            boot_chunks: order.boot.len() as u64,
        };
        let ids = order.all().map(|at| short(&at.id)).collect();
        media.records.retain(|record| record.number != number);
        media.records.push(StoredRecord { number, record, ids });
        report.images.push(told(image, order, &media.short_ids()));
    }
    let fresh: HashSet<u32> =
        images.iter().map(|image| record::number_of(&settings, image.kind, &image.name)).collect();
    report.used_bytes = offload(move || {
        for stored in media.records.iter().filter(|stored| fresh.contains(&stored.number)) {
            let bytes = record::encode(&settings, stored)?;
            replace(&record::path(&media.directory, stored.number), &bytes)?;
        }
        write_index(&settings, &mut media)?;
        Ok(Media::open(&settings, &place)?.used)
    })
    .await?;
    Ok(report)
}

/// Takes an image or a disk off the medium at `place`: its record, and the packs that no other one needs.
/// Returns the bytes that were freed. With the last one all of the medium is deleted.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when nothing of that name is on it; as [`Media::open`]; the system's
/// when a file cannot be deleted.
pub fn remove(settings: &Settings, place: &Path, name: &str) -> Result<u64> {
    let mut media = Media::open(settings, place)?;
    let before = media.used;
    let is_it = |stored: &StoredRecord| stored.record.name == name || stored.record.version == name;
    if !media.records.iter().any(is_it) {
        return Err(Error::not_found(format!(
            "{name} is not on the medium at {}; `sojourn media list` says what is",
            place.display()
        )));
    }
    let (gone, kept): (Vec<_>, Vec<_>) = media.records.drain(..).partition(is_it);
    media.records = kept;
    for stored in &gone {
        delete(&record::path(&media.directory, stored.number))?;
    }
    let needed = media.records.iter().flat_map(|stored| stored.ids.iter().copied()).collect();
    prune(&mut media, &needed)?;
    if media.records.is_empty() && media.packs.is_empty() {
        delete(&index::path(settings, &media.directory))?;
        let _ = std::fs::remove_file(media.directory.join(README));
        // Another store's files may be left.
        let _ = std::fs::remove_dir(&media.directory);
        return Ok(before);
    }
    write_index(settings, &mut media)?;
    Ok(before.saturating_sub(Media::open(settings, place)?.used))
}

/// Deletes damaged files, and writes the index without them.
pub(super) fn drop_files(settings: &Settings, media: &mut Media, files: &[PathBuf]) -> Result<()> {
    files.iter().try_for_each(|path| delete(path))?;
    write_index(settings, media)
}

/// The chunks of an image in their order.
async fn order(store: &Store, image: &MediaImage) -> Result<Order> {
    let manifest = store.manifest(&image.manifest).await?;
    let mut boot = Vec::new();
    if let Some(list) = &image.boot_list {
        match bootlist::read(store, list).await {
            Ok(list) => {
                let located = bootlist::locate(&manifest, &list).await?;
                boot.extend(located.into_iter().map(|located| located.at));
            }
            // A boot list makes boots quicker, no more.
            Err(error) => {
                tracing::warn!(image = image.version, %error, "its boot list is left out")
            }
        }
    }
    let mut seen: HashSet<ChunkId> = HashSet::new();
    boot.retain(|at| seen.insert(at.id));
    let mut rest = manifest.chunks().await?;
    rest.retain(|at| seen.insert(at.id));
    Ok(Order { boot, rest })
}

/// Opens or makes a medium that is about to be written, and deletes what is of no use on it.
fn prepare(
    settings: &Settings,
    place: &Path,
    replaced: &HashSet<u32>,
    mut needed: HashSet<[u8; 8]>,
) -> Result<(Media, u64)> {
    if !place.is_dir() {
        return Err(Error::not_found(format!("{} is not a directory", place.display())));
    }
    let directory = place.join(DIRECTORY);
    if !is_at(place) {
        std::fs::create_dir(&directory).map_err(|e| Error::io(directory.display(), e))?;
    }
    let readme = directory.join(README);
    if !readme.is_file() {
        create_afresh(&readme)
            .and_then(|mut file| file.write_all(README_TEXT.as_bytes()))
            .map_err(|e| Error::io(readme.display(), e))?;
    }
    let mut media = Media::open(settings, place)?;
    let before = media.used;
    // Of one that was written last before the medium was pulled out, the middle may be missing.
    let mut sound = Vec::with_capacity(media.packs.len());
    for pack in std::mem::take(&mut media.packs) {
        match pack.indexed || matches!(check_chunks(settings, &media.directory, &pack), Ok(0)) {
            true => sound.push(pack),
            false => media.broken.push(PackFile::path(&media.directory, pack.number)),
        }
    }
    media.packs = sound;
    for path in std::mem::take(&mut media.broken) {
        delete(&path)?;
    }
    let others = media.records.iter().filter(|stored| !replaced.contains(&stored.number));
    needed.extend(others.flat_map(|stored| stored.ids.iter().copied()));
    prune(&mut media, &needed)?;
    // What was deleted is in no index.
    let media = Media { packs: media.packs, ..Media::open(settings, place)? };
    let freed = before.saturating_sub(media.used);
    Ok((media, freed))
}

/// Deletes packs of which nothing is needed.
fn prune(media: &mut Media, needed: &HashSet<[u8; 8]>) -> Result<()> {
    let is_needed = |pack: &PackFile| pack.rows.iter().any(|row| needed.contains(&row.short()));
    let (kept, gone): (Vec<_>, Vec<_>) = media.packs.drain(..).partition(is_needed);
    media.packs = kept;
    gone.iter().try_for_each(|pack| delete(&PackFile::path(&media.directory, pack.number)))
}

/// Bytes that may still be written.
fn room(media: &Media, size: Option<u64>) -> Result<u64> {
    let stat = rustix::fs::statvfs(&media.directory)
        .map_err(|e| Error::io(media.directory.display(), e.into()))?;
    let free = (stat.f_bavail.saturating_mul(stat.f_frsize)).saturating_sub(RESERVE);
    Ok(size.map_or(free, |size| size.saturating_sub(media.used).min(free)))
}

fn kept(orders: &[Order], media: &Media) -> u64 {
    let there = media.short_ids();
    let mut seen = HashSet::new();
    let all = orders.iter().flat_map(Order::all);
    let kept = all.filter(|at| seen.insert(at.id) && there.contains(&short(&at.id)));
    kept.map(|at| u64::from(at.stored)).sum()
}

fn told(image: &MediaImage, order: &Order, there: &HashSet<[u8; 8]>) -> WrittenImage {
    let is_there = |at: &&ChunkRef| there.contains(&short(&at.id));
    WrittenImage {
        name: image.name.clone(),
        version: image.version.clone(),
        chunks: order.all().count() as u64,
        present: order.all().filter(is_there).count() as u64,
        boot_chunks: order.boot.len() as u64,
        boot_present: order.boot.iter().filter(is_there).count() as u64,
        missing_bytes: order.all().filter(|at| !is_there(at)).map(|at| u64::from(at.stored)).sum(),
    }
}

/// Reads chunks from the store and writes them, pack by pack, until all are there or the medium is full.
async fn put(
    store: &Store,
    media: &mut Media,
    chosen: Vec<ChunkRef>,
    report: &mut MediaWriteReport,
    progress: &dyn Progress,
) -> Result<()> {
    let mut rest = chosen.as_slice();
    while !rest.is_empty() {
        let mut bytes = 0;
        let count = rest
            .iter()
            .take_while(|at| {
                let before = bytes;
                bytes += u64::from(at.stored);
                before < PACK
            })
            .count();
        let (now, later) = rest.split_at(count);
        rest = later;
        let mut stored = sweep::stored(store, now.to_vec()).await?;
        let place_of: std::collections::HashMap<ChunkId, usize> =
            now.iter().enumerate().map(|(place, at)| (at.id, place)).collect();
        stored.sort_by_key(|(at, ..)| place_of.get(&at.id).copied());
        let (settings, directory) = (store.settings().clone(), media.directory.clone());
        let pack = offload(move || {
            let mut builder = Builder::new();
            for (at, encoding, bytes) in &stored {
                builder.add(at.id, at.len, *encoding, bytes);
            }
            put_pack(&settings, &directory, builder)
        })
        .await;
        match pack {
            Ok(pack) => {
                report.written_chunks += pack.rows.len() as u64;
                let bytes = pack.rows.iter().map(|row| u64::from(row.stored)).sum::<u64>();
                report.written_bytes += bytes;
                progress.advance(bytes, bytes);
                media.packs.push(pack);
            }
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                tracing::warn!(error = %e, "the medium is full");
                return Ok(());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes a pack file under the first number from that of its id on that is free.
fn put_pack(settings: &Settings, directory: &Path, builder: Builder) -> Result<PackFile> {
    let pack = builder.finish(settings, |_| false)?;
    let mut number = PackFile::number_of(&pack.id);
    let (path, mut file) = loop {
        let path = PackFile::path(directory, number);
        match File::create_new(&path) {
            Ok(file) => break (path, file),
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {
                number = number.wrapping_add(1);
            }
            Err(e) => return Err(Error::io(path.display(), e)),
        }
    };
    let head = pack_file::head(settings, &pack.id, pack.bytes.len() as u64);
    let written = (file.write_all(&head))
        .and_then(|()| file.write_all(&pack.bytes))
        .and_then(|()| file.sync_data());
    if let Err(e) = written {
        drop(file);
        let _ = std::fs::remove_file(&path);
        return Err(Error::io(path.display(), e));
    }
    let len = (HEAD + pack.bytes.len()) as u64;
    let index = store::pack::Index::decode(
        settings,
        pack.id,
        "pack",
        &pack.bytes,
        pack.bytes.len() as u64,
    )?;
    let rows: Vec<ChunkRow> = pack_file::rows(&index);
    Ok(PackFile { number, id: pack.id, len, rows, indexed: true })
}

fn write_index(settings: &Settings, media: &mut Media) -> Result<()> {
    media.packs.sort_by_key(|pack| pack.number);
    let bytes = index::encode(settings, &media.packs)?;
    replace(&index::path(settings, &media.directory), &bytes)
}

/// Writes a file in place of another one: beside it first.
fn replace(path: &Path, bytes: &[u8]) -> Result<()> {
    let fresh = path.with_extension("new");
    let at_path = |e| Error::io(fresh.display(), e);
    let mut file = create_afresh(&fresh).map_err(at_path)?;
    let written = file.write_all(bytes).and_then(|()| file.sync_data());
    drop(file);
    if let Err(e) = written {
        let _ = std::fs::remove_file(&fresh);
        return Err(at_path(e));
    }
    std::fs::rename(&fresh, path).map_err(at_path)
}

fn delete(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path.display(), e)),
        _ => Ok(()),
    }
}
