//! A disk that is waited for and that another machine took.

use agent::UploadState;
use agent::api::AttachedDisk;
use block::{Error, Result};
use std::time::Duration;
use tokio::time::Instant;

/// How long is waited until what was written here is a disk of its own, while there is an error.
const KEEPING: Duration = Duration::from_secs(10);

/// Notices that a disk is lost.
#[derive(Debug, Default)]
pub(super) struct LossWatch {
    since: Option<Instant>,
}

impl LossWatch {
    /// Fails when the disk is another machine's: as soon as what was written here is kept under another name, and
    /// soon after it is known that this fails, which is tried again for as long as it takes.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced), with all there is to say.
    pub(super) fn must_be_ours(&mut self, disk: &AttachedDisk) -> Result<()> {
        let is_lost = disk.upload.state == UploadState::Lost && disk.error.is_some();
        let since = *self.since.get_or_insert_with(Instant::now);
        if disk.kept_as.is_some() || (is_lost && since.elapsed() > KEEPING) {
            return Err(Error::fenced(disk.text.join("; ")));
        }
        if !is_lost {
            self.since = None;
        }
        Ok(())
    }
}
