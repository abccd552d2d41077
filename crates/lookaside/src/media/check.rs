//! Reading all of a medium.

use super::lock::MediaLock;
use super::map_file::{self, MapFile};
use super::pack_file::{PackFile, check_chunks};
use super::{FileFault, Media, must_be_there, write};
use block::{Result, offload};
use serde::{Deserialize, Serialize};
use std::path::Path;
use store::{Progress, Settings};

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaVerifyReport {
    /// Pack files that were read.
    pub packs: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Maps that were read.
    pub maps: u64,
    /// Bytes that all files take.
    pub bytes: u64,
    /// Chunks that are damaged.
    pub damaged_chunks: u64,
    /// Maps that are damaged.
    pub damaged_maps: u64,
    /// Files that are damaged or incomplete.
    pub damaged: Vec<String>,
    /// Those were deleted.
    pub dropped: bool,
    /// Files that cannot be read now, with the reason: what is in them may be sound, and they stay.
    pub unreadable: Vec<String>,
}

/// Reads and verifies every chunk and every map of the medium at `place`. With `drop_damaged`, damaged files are
/// deleted, so that the next writing puts on again what was in them. A file that cannot be read now is not damaged.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is no medium; [`Conflict`](block::ErrorKind::Conflict) with
/// `drop_damaged` while another command changes it; the system's when its directory cannot be read, or a file cannot be
/// deleted.
pub async fn verify(
    settings: &Settings,
    place: &Path,
    drop_damaged: bool,
    progress: &dyn Progress,
) -> Result<MediaVerifyReport> {
    let (settings, place) = (settings.clone(), place.to_owned());
    let (_lock, mut media, settings) = offload(move || {
        must_be_there(&place)?;
        let lock = drop_damaged.then(|| MediaLock::take(&place)).transpose()?;
        let media = Media::open(&settings, &place)?;
        Ok((lock, media, settings))
    })
    .await?;
    let mut report = MediaVerifyReport { bytes: media.used, ..MediaVerifyReport::default() };
    let mut bad: Vec<_> = std::mem::take(&mut media.broken);
    let mut unreadable = std::mem::take(&mut media.unreadable);
    let mut sound = Vec::new();
    for pack in std::mem::take(&mut media.packs) {
        report.packs += 1;
        report.chunks += pack.rows.len() as u64;
        progress.advance(pack.len, 0);
        let path = PackFile::path(&media.directory, pack.number);
        let (settings, directory) = (settings.clone(), media.directory.clone());
        let (pack, outcome) = offload(move || {
            let outcome = check_chunks(&settings, &directory, &pack);
            Ok((pack, outcome))
        })
        .await?;
        match outcome {
            Ok(0) => sound.push(pack),
            Ok(damaged) => {
                report.damaged_chunks += damaged;
                bad.push(path);
            }
            Err(e) => match FileFault::of(&e) {
                FileFault::Damaged | FileFault::Missing => {
                    report.damaged_chunks += pack.rows.len() as u64;
                    bad.push(path);
                }
                FileFault::Foreign => sound.push(pack),
                FileFault::Unreadable => {
                    unreadable.push((path, e));
                    sound.push(pack);
                }
            },
        }
    }
    let mut sound_maps = Vec::new();
    for map in std::mem::take(&mut media.maps) {
        report.maps += 1;
        progress.advance(map.file_len(), 0);
        let (settings, directory) = (settings.clone(), media.directory.clone());
        match offload(move || map_file::check(&settings, &directory, &map)).await {
            Ok(()) => sound_maps.push(map),
            Err(e) => match FileFault::of(&e) {
                FileFault::Damaged | FileFault::Missing => {
                    report.damaged_maps += 1;
                    bad.push(MapFile::path(&media.directory, map.number));
                }
                FileFault::Foreign => sound_maps.push(map),
                FileFault::Unreadable => {
                    unreadable.push((MapFile::path(&media.directory, map.number), e));
                    sound_maps.push(map);
                }
            },
        }
    }
    report.unreadable = unreadable.iter().map(|(_, error)| error.message().to_owned()).collect();
    report.damaged = bad.iter().map(|path| path.display().to_string()).collect();
    if drop_damaged && !bad.is_empty() {
        (media.packs, media.maps) = (sound, sound_maps);
        offload(move || write::drop_files(&settings, &mut media, &bad)).await?;
        report.dropped = true;
    }
    Ok(report)
}
