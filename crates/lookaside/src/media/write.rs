//! Writing a medium: what fits, and what may go.
//!
//! Each step leaves a medium that can be read: a pack file that is not whole does not count, an image's
//! record comes when its chunks are there, the index file last. So a writing that ended anywhere, by a
//! kill or by pulling the medium out, goes on where it was. What was told to be done is on stable storage: whoever
//! reads that it is finished pulls the medium out, or counts on it when the power fails.

use super::contents::{ImageContents, MediaImage};
use super::files::{delete, make_durable, put_file, put_pack, replace, write_index};
use super::head::{self, HEAD};
use super::lock::MediaLock;
use super::map_file::{self, MapFile};
use super::pack_file::{PackFile, check_chunks, short};
use super::record::{self, MediaRecord, StoredRecord};
use super::room::{MediaRoom, Occupied, PACK, PlannedRecord};
use super::{
    DIRECTORY, FileFault, FileKind, Media, README, README_TEXT, index, is_at, must_be_there,
    parse_name,
};
use crate::regular::create_afresh;
use block::{Error, ErrorKind, Result, offload};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use store::pack::Builder;
use store::{ChunkId, ChunkRef, MapId, Progress, Settings, Store, bulk_read};

/// What images on a medium need: the first bytes of the ids.
struct Needed {
    chunks: HashSet<[u8; 8]>,
    maps: HashSet<[u8; 8]>,
}

impl Needed {
    fn add(&mut self, stored: &StoredRecord) {
        self.chunks.extend(&stored.ids);
        self.maps.extend(&stored.maps);
    }
}

/// What came of one image.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenImage {
    /// The name that the user gave.
    pub name: String,
    /// Which version.
    pub version: String,
    /// Distinct chunks that it has.
    pub chunks: u64,
    /// How many of them are on the medium now.
    pub present: u64,
    /// Chunks that are read first: its boot list's, or a machine's resume set's.
    pub boot_chunks: u64,
    /// How many of them are on the medium now.
    pub boot_present: u64,
    /// Its maps: manifests and boot list.
    pub maps: u64,
    /// How many of them are on the medium now.
    pub maps_present: u64,
    /// Stored bytes that did not fit.
    pub missing_bytes: u64,
}

/// What a writing did.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaWriteReport {
    /// Each image or disk.
    pub images: Vec<WrittenImage>,
    /// Chunks that were written.
    pub written_chunks: u64,
    /// Maps that were written.
    pub written_maps: u64,
    /// Stored bytes of both.
    pub written_bytes: u64,
    /// Stored bytes of chunks and maps that were there already.
    pub kept_bytes: u64,
    /// Bytes that were freed: of damaged files, and of packs that no image on the medium needs any more.
    pub freed_bytes: u64,
    /// Bytes that all files take now, in whole blocks of the file system.
    pub used_bytes: u64,
    /// Files that cannot be read now, with the reason: they count as missing, and stay.
    pub unreadable: Vec<String>,
}

/// Writes `images` to the medium at `place`, which is made if there is none: first the maps of all, then what
/// their boots read, then the rest of each in image order, as far as it fits into `size` bytes (what all files
/// together take at any time, in whole blocks of the file system; `None`: what that has). What is there is not
/// written again; what nothing on the medium needs any more is deleted before.
///
/// # Errors
/// [`NoSpace`](ErrorKind::NoSpace) when not even the index and the records have room;
/// [`Unavailable`](ErrorKind::Unavailable) when what is on it cannot be read, or when the store cannot;
/// [`Unsupported`](ErrorKind::Unsupported) when only a newer build reads it; [`Corrupt`](ErrorKind::Corrupt)
/// when the store is damaged, or the record of something else on the medium; [`Denied`](ErrorKind::Denied) when the
/// medium may not be written to, naming the file; [`Conflict`](ErrorKind::Conflict) while another command changes it. A
/// medium that is full is none: the report says what did not fit.
pub async fn write(
    store: &Store,
    place: &Path,
    images: &[MediaImage],
    size: Option<u64>,
    progress: &dyn Progress,
) -> Result<MediaWriteReport> {
    let mut report = MediaWriteReport::default();
    let settings = store.settings().clone();
    let mut wanted = Vec::with_capacity(images.len());
    for image in images {
        wanted.push(ImageContents::of(store, image).await?);
    }
    let needed = Needed {
        chunks: wanted.iter().flat_map(ImageContents::all).map(|at| short(&at.id)).collect(),
        maps: wanted.iter().flat_map(|wanted| &wanted.maps).map(map_file::short).collect(),
    };
    let number = |image: &MediaImage| record::number_of(&settings, image.kind, &image.name);
    let planned: Vec<PlannedRecord> =
        images.iter().map(number).zip(wanted.iter().map(ImageContents::ids)).collect();
    let numbers: HashSet<u32> = planned.iter().map(|(number, _)| *number).collect();
    let (_lock, mut media, freed) = {
        let (settings, place, replaced) = (settings.clone(), place.to_owned(), numbers.clone());
        let planned = planned.clone();
        offload(move || prepare(&settings, &place, &replaced, needed, (&planned, size))).await?
    };
    report.freed_bytes = freed;
    report.unreadable = told_unreadable(&media);
    let occupied = media.occupied(&settings, &numbers, &[]);
    let mut room = MediaRoom::of(&media.directory, &occupied, &planned, size)?;
    report.kept_bytes = kept(&wanted, &media);
    put_maps(store, &mut media, &wanted, &mut room, &mut report).await?;
    let chosen = choose(&media, &wanted, &mut room);
    put(store, &mut media, chosen, &mut report, progress).await?;
    let written = store.world().clock.now();
    for (image, wanted) in images.iter().zip(&wanted) {
        let number = record::number_of(&settings, image.kind, &image.name);
        let record = MediaRecord {
            name: image.name.clone(),
            kind: image.kind,
            version: image.version.clone(),
            manifest: image.manifest,
            size: wanted.size,
            written,
            boot_chunks: wanted.boot.len() as u64,
        };
        let ids = wanted.all().map(|at| short(&at.id)).collect();
        let maps = wanted.maps.iter().map(map_file::short).collect();
        media.records.retain(|record| record.number != number);
        media.records.push(StoredRecord { number, record, ids, maps });
        report.images.push(told(image, wanted, &media));
    }
    let place = place.to_owned();
    report.used_bytes = offload(move || {
        for stored in media.records.iter().filter(|stored| numbers.contains(&stored.number)) {
            let bytes = record::encode(&settings, stored)?;
            replace(&record::path(&media.directory, stored.number), &bytes)?;
        }
        write_index(&settings, &mut media)?;
        make_durable(&media.directory)?;
        Ok(Media::open(&settings, &place)?.used)
    })
    .await?;
    Ok(report)
}

/// The chunks that go on, in their order: those that are not there, as far as there is room.
fn choose(media: &Media, wanted: &[ImageContents], room: &mut MediaRoom) -> Vec<ChunkRef> {
    let mut there = media.short_ids();
    let first = wanted.iter().flat_map(|wanted| &wanted.boot);
    let then = wanted.iter().flat_map(|wanted| &wanted.rest);
    let mut chosen = Vec::new();
    for at in first.chain(then) {
        if there.contains(&short(&at.id)) {
            continue;
        }
        if !room.take_chunk(at.stored.into()) {
            break;
        }
        there.insert(short(&at.id));
        chosen.push(*at);
    }
    chosen
}

/// Takes an image, a disk or a machine off the medium at `place`: its record, and the packs and maps that no
/// other one needs.
/// Returns the bytes that were freed. With the last one all of the medium is deleted.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is no medium, or nothing of that name on it;
/// [`Unavailable`](ErrorKind::Unavailable) when a record cannot be read, [`Corrupt`](ErrorKind::Corrupt) when one is
/// damaged, [`Unsupported`](ErrorKind::Unsupported) when only a newer build reads it; [`Conflict`](ErrorKind::Conflict)
/// while another command changes the medium; the system's when a file cannot be deleted.
pub fn remove(settings: &Settings, place: &Path, name: &str) -> Result<u64> {
    must_be_there(place)?;
    let _lock = MediaLock::take(place)?;
    let mut media = Media::open(settings, place)?;
    media.must_know_records(&HashSet::new())?;
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
    let mut needed = Needed { chunks: HashSet::new(), maps: HashSet::new() };
    media.records.iter().for_each(|stored| needed.add(stored));
    prune(&mut media, &needed)?;
    if media.records.is_empty() && media.packs.is_empty() && media.maps.is_empty() {
        delete(&index::path(settings, &media.directory))?;
        let _ = std::fs::remove_file(media.directory.join(README));
        // Another store's files may be left.
        let _ = std::fs::remove_dir(&media.directory);
        make_durable(place)?;
        return Ok(before);
    }
    write_index(settings, &mut media)?;
    make_durable(&media.directory)?;
    Ok(before.saturating_sub(Media::open(settings, place)?.used))
}

/// Deletes damaged files, and writes the index without them.
pub(super) fn drop_files(settings: &Settings, media: &mut Media, files: &[PathBuf]) -> Result<()> {
    files.iter().try_for_each(|path| delete(path))?;
    write_index(settings, media)?;
    make_durable(&media.directory)
}

/// Takes a medium that is about to be written, or makes one, and deletes what is of no use on it: not before it is
/// known that the index and the records that are planned fit into `size` bytes beside what stays.
fn prepare(
    settings: &Settings,
    place: &Path,
    replaced: &HashSet<u32>,
    mut needed: Needed,
    (planned, size): (&[PlannedRecord], Option<u64>),
) -> Result<(MediaLock, Media, u64)> {
    if !place.is_dir() {
        return Err(Error::not_found(format!("{} is not a directory", place.display())));
    }
    let directory = place.join(DIRECTORY);
    if !is_at(place) {
        std::fs::create_dir(&directory).map_err(|e| Error::io(directory.display(), e))?;
    }
    let lock = MediaLock::take(place)?;
    let readme = directory.join(README);
    if !readme.is_file() {
        create_afresh(&readme)
            .and_then(|mut file| file.write_all(README_TEXT.as_bytes()))
            .map_err(|e| Error::io(readme.display(), e))?;
    }
    let mut media = Media::open(settings, place)?;
    media.must_know_records(replaced)?;
    let before = media.used;
    // Of one that was written last before the medium was pulled out, the middle may be missing.
    let mut sound = Vec::with_capacity(media.packs.len());
    for pack in std::mem::take(&mut media.packs) {
        if pack.indexed {
            sound.push(pack);
            continue;
        }
        let path = PackFile::path(&media.directory, pack.number);
        match check_chunks(settings, &media.directory, &pack) {
            Ok(0) => sound.push(pack),
            Ok(_) => media.broken.push(path),
            Err(e) => match FileFault::of(&e) {
                FileFault::Damaged => media.broken.push(path),
                FileFault::Missing => {}
                // A newer build's is not ours to judge.
                FileFault::Foreign => sound.push(pack),
                FileFault::Unreadable => media.unreadable.push((path, e)),
            },
        }
    }
    media.packs = sound;
    // Nobody says of a map that all of it was there once; they are short.
    for map in std::mem::take(&mut media.maps) {
        match map_file::check(settings, &media.directory, &map) {
            Ok(()) => media.maps.push(map),
            Err(e) => {
                let path = MapFile::path(&media.directory, map.number);
                match FileFault::of(&e) {
                    FileFault::Damaged => media.broken.push(path),
                    FileFault::Missing => {}
                    FileFault::Foreign => media.maps.push(map),
                    FileFault::Unreadable => media.unreadable.push((path, e)),
                }
            }
        }
    }
    let others = media.records.iter().filter(|stored| !replaced.contains(&stored.number));
    others.for_each(|stored| needed.add(stored));
    let mut gone = std::mem::take(&mut media.broken);
    gone.extend(split_off(&mut media, &needed));
    let occupied = media.occupied(settings, replaced, &gone);
    MediaRoom::of(&media.directory, &occupied, planned, size)?;
    gone.iter().try_for_each(|path| delete(path))?;
    // What was deleted is in no index.
    let Media { packs, maps, unreadable, .. } = media;
    let media = Media { packs, maps, unreadable, ..Media::open(settings, place)? };
    let freed = before.saturating_sub(media.used);
    Ok((lock, media, freed))
}

/// Deletes packs of which nothing is needed, and maps that are not.
fn prune(media: &mut Media, needed: &Needed) -> Result<()> {
    split_off(media, needed).iter().try_for_each(|path| delete(path))
}

/// Takes packs of which nothing is needed, and maps that are not, off the list; gives their files.
fn split_off(media: &mut Media, needed: &Needed) -> Vec<PathBuf> {
    let is_needed =
        |pack: &PackFile| pack.rows.iter().any(|row| needed.chunks.contains(&row.short()));
    let (kept, gone): (Vec<_>, Vec<_>) = media.packs.drain(..).partition(is_needed);
    media.packs = kept;
    let packs = gone.iter().map(|pack| PackFile::path(&media.directory, pack.number));
    let mut files: Vec<PathBuf> = packs.collect();
    let is_needed = |map: &MapFile| needed.maps.contains(&map.short());
    let (kept, gone): (Vec<_>, Vec<_>) = media.maps.drain(..).partition(is_needed);
    media.maps = kept;
    files.extend(gone.iter().map(|map| MapFile::path(&media.directory, map.number)));
    files
}

impl Media {
    /// Fails while it is not known what is needed on it: nothing is deleted then. Of the records of these numbers, which
    /// are written again, a damaged one counts for nothing.
    fn must_know_records(&self, replaced: &HashSet<u32>) -> Result<()> {
        if let Some((path, error)) = self.newer.first() {
            return Err(Error::unsupported(format!(
                "{}: {}; what a newer build needs on the medium is not known to this one, and nothing is changed",
                path.display(),
                error.message()
            )));
        }
        let is_record = |(path, _): &&(PathBuf, Error)| {
            path.extension().is_some_and(|found| found.eq_ignore_ascii_case("img"))
        };
        if let Some((_, error)) = self.unreadable.iter().find(is_record) {
            return Err(Error::unavailable(format!(
                "{}: what is needed on the medium is not known while this cannot be read, and nothing is \
                 changed; if it stays so, delete the file",
                error.message()
            )));
        }
        let is_missed = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.and_then(parse_name).is_some_and(|(number, kind)| {
                kind == FileKind::Record && !replaced.contains(&number)
            })
        };
        match self.broken.iter().find(is_missed) {
            Some(path) => Err(Error::corrupt(format!(
                "{} is damaged: what is needed on the medium is not known, and nothing is changed; write once more what \
                 it was of, or drop it with `sojourn media verify --drop-damaged`: what it alone needs goes when something \
                 is written next",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    /// What stays on it when records of these numbers are written and these files are gone.
    fn occupied(&self, settings: &Settings, replaced: &HashSet<u32>, gone: &[PathBuf]) -> Occupied {
        let (mut files, mut bytes) = (self.files, self.used - self.blocks.directory(self.files));
        let mut take_off = |path: &Path| match std::fs::metadata(path) {
            Ok(found) => {
                let taken = self.blocks.taken(found.len());
                files = files.saturating_sub(1);
                bytes = bytes.saturating_sub(taken);
                taken
            }
            Err(_) => 0,
        };
        let index = take_off(&index::path(settings, &self.directory));
        let records = self.records.iter().filter(|stored| replaced.contains(&stored.number));
        let records = records
            .map(|stored| (stored.number, take_off(&record::path(&self.directory, stored.number))))
            .collect();
        for path in gone {
            take_off(path);
        }
        let chunks = self.packs.iter().map(|pack| pack.rows.len() as u64).sum();
        let indexed = (chunks, self.packs.len() as u64);
        Occupied { blocks: self.blocks, files, bytes, index, records, indexed }
    }
}

fn told_unreadable(media: &Media) -> Vec<String> {
    media.unreadable.iter().map(|(_, error)| error.message().to_owned()).collect()
}

fn kept(wanted: &[ImageContents], media: &Media) -> u64 {
    let there = media.short_ids();
    let mut seen = HashSet::new();
    let all = wanted.iter().flat_map(ImageContents::all);
    let kept = all.filter(|at| seen.insert(at.id) && there.contains(&short(&at.id)));
    let maps: HashSet<&MapId> = wanted.iter().flat_map(|wanted| &wanted.maps).collect();
    let kept_maps = media.maps.iter().filter(|map| maps.contains(&map.id));
    kept.map(|at| u64::from(at.stored)).sum::<u64>()
        + kept_maps.map(|map| u64::from(map.len)).sum::<u64>()
}

fn told(image: &MediaImage, order: &ImageContents, media: &Media) -> WrittenImage {
    let (there, maps) = (media.short_ids(), media.short_map_ids());
    let has_map = |id: &&MapId| maps.contains(&map_file::short(id));
    let is_there = |at: &&ChunkRef| there.contains(&short(&at.id));
    WrittenImage {
        name: image.name.clone(),
        version: image.version.clone(),
        chunks: order.all().count() as u64,
        present: order.all().filter(is_there).count() as u64,
        boot_chunks: order.boot.len() as u64,
        boot_present: order.boot.iter().filter(is_there).count() as u64,
        maps: order.maps.len() as u64,
        maps_present: order.maps.iter().filter(has_map).count() as u64,
        missing_bytes: order.all().filter(|at| !is_there(at)).map(|at| u64::from(at.stored)).sum(),
    }
}

/// Reads maps from the store and writes those that there is room for.
async fn put_maps(
    store: &Store,
    media: &mut Media,
    wanted: &[ImageContents],
    room: &mut MediaRoom,
    report: &mut MediaWriteReport,
) -> Result<()> {
    let mut there: HashSet<MapId> = media.maps.iter().map(|map| map.id).collect();
    for id in wanted.iter().flat_map(|wanted| &wanted.maps) {
        if !there.insert(*id) {
            continue;
        }
        let object = match store.map_object(id).await {
            Ok(object) => object,
            // A boot copy's: it is of some use without.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corrupt) => {
                tracing::warn!(map = %id, error = %e, "it is left out");
                continue;
            }
            Err(e) => return Err(e),
        };
        let len = HEAD as u64 + object.len() as u64;
        // A shorter one may fit.
        if !room.take_file(len) {
            continue;
        }
        let (settings, directory, id) = (store.settings().clone(), media.directory.clone(), *id);
        let put = offload(move || {
            let start = map_file::head_of(&settings, &id, &object);
            let number =
                put_file(&directory, head::number_of(id.as_bytes()), "map", &start, &object)?;
            Ok(MapFile { number, id, len: object.len() as u32 })
        });
        match put.await {
            Ok(map) => {
                report.written_maps += 1;
                report.written_bytes += u64::from(map.len);
                media.maps.push(map);
            }
            Err(e) if e.kind() == ErrorKind::NoSpace => {
                tracing::warn!(error = %e, "the medium is full");
                room.end();
                return Ok(());
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
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
        let mut stored = bulk_read::stored(store, now.to_vec()).await?;
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
