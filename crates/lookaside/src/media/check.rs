//! Reading all of a medium.

use super::pack_file::{PackFile, check_chunks};
use super::{Media, write};
use block::{Result, offload};
use serde::Serialize;
use std::path::Path;
use store::{Progress, Settings};

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct MediaVerifyReport {
    /// Pack files that were read.
    pub packs: u64,
    /// Chunks in them.
    pub chunks: u64,
    /// Bytes of all files.
    pub bytes: u64,
    /// Chunks that are damaged.
    pub damaged_chunks: u64,
    /// Files that are damaged or incomplete.
    pub damaged: Vec<String>,
    /// They were deleted.
    pub dropped: bool,
}

/// Reads and verifies every chunk of the medium at `place`. With `drop_damaged`, damaged files are
/// deleted, so that the next writing puts on again what was in them.
///
/// # Errors
/// As [`Media::open`]; the system's when a file cannot be deleted.
pub async fn verify(
    settings: &Settings,
    place: &Path,
    drop_damaged: bool,
    progress: &dyn Progress,
) -> Result<MediaVerifyReport> {
    let (settings, place) = (settings.clone(), place.to_owned());
    let (mut media, settings) = offload(move || {
        let media = Media::open(&settings, &place)?;
        Ok((media, settings))
    })
    .await?;
    let mut report = MediaVerifyReport { bytes: media.used, ..MediaVerifyReport::default() };
    let mut bad: Vec<_> = std::mem::take(&mut media.broken);
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
            Err(_) => {
                report.damaged_chunks += pack.rows.len() as u64;
                bad.push(path);
            }
        }
    }
    report.damaged = bad.iter().map(|path| path.display().to_string()).collect();
    if drop_damaged && !bad.is_empty() {
        media.packs = sound;
        offload(move || write::drop_files(&settings, &mut media, &bad)).await?;
        report.dropped = true;
    }
    Ok(report)
}
