//! Recording: what the guests of a boot read, until the boot is over, becomes part of the list.

use super::list::add;
use crate::Engine;
use block::Result;
use disk::{BootTrace, Image};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A boot is over when nothing new was read for this long.
pub(super) const QUIET: Duration = Duration::from_secs(8);
/// … or when it took this long.
pub(super) const LONGEST: Duration = Duration::from_secs(300);
/// How often it is looked at.
const TICK: Duration = Duration::from_millis(500);
/// What reads more chunks than this (about 512 MiB) is not a boot but a copy: nothing is kept of it.
pub(super) const MOST: usize = 8192;
/// What reads fewer is not worth a list.
pub(super) const FEWEST: usize = 16;

/// An image whose reads are recorded, or would be.
pub(super) struct Recording(pub(super) Arc<Image>);

impl Drop for Recording {
    fn drop(&mut self) {
        self.0.stop_recording();
    }
}

/// Adds a boot to the lists of image versions, and gives those whose lists are whole now.
pub(super) async fn keep(
    engine: &Engine,
    versions: &[String],
    touches: &BootTrace,
) -> Result<Vec<String>> {
    let mut whole = Vec::new();
    let (chunks, bytes) = (touches.chunks(), touches.bytes());
    for image in versions {
        if let Some(added) = add(&engine.store, image, &chunks).await? {
            let (read, new, boots) = (chunks.len(), added.new, added.boots);
            tracing::info!(image, chunks = read, bytes, new, boots, "boot recorded");
            if added.is_last() {
                whole.push(image.clone());
            }
        }
    }
    Ok(whole)
}

/// Waits for the end of a boot; whether it was one.
pub(super) async fn watch(touches: &BootTrace) -> bool {
    let (began, mut count, mut last) = (Instant::now(), 0, Instant::now());
    while last.elapsed() < QUIET && began.elapsed() < LONGEST {
        tokio::time::sleep(TICK).await;
        if touches.is_over() {
            return false;
        }
        if touches.count() != count {
            (count, last) = (touches.count(), Instant::now());
        }
    }
    count >= FEWEST
}

#[cfg(test)]
mod tests;
