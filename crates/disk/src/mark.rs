//! Marks: by which it is told later whether a disk still holds what it did.
//!
//! A layer that took a write never changes again once another one is over it. So while the newest layer is empty and
//! has the number that it had, the disk holds what it did then, whatever was published of it meanwhile: publishing
//! keeps the newest layer, and everything that changes the content as a whole (a rollback, a reset) begins another.

use crate::{Disk, Mode};
use block::{Device, Error, Result};
use std::fmt::Write;
use store::ManifestId;

impl Disk {
    /// The mark of what the disk holds now; later writes go to another layer. Asks nobody: what was flushed is
    /// recognised after a crash, too.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when its private blocks lie in borrowed room or go with its client;
    /// [`Conflict`](block::ErrorKind::Conflict) when too many layers wait to be published; any error from the file
    /// system.
    pub async fn set_mark(&self) -> Result<String> {
        self.check_keeps("mark")?;
        if self.mode() == Mode::Ephemeral {
            return Err(Error::denied(format!(
                "disk {:?} is ephemeral: what it holds goes with its client",
                self.name()
            )));
        }
        let _changing = self.begin_change().await;
        self.freeze_here().await?;
        self.mark()
            .ok_or_else(|| Error::conflict(format!("disk {:?} is being written", self.name())))
    }

    /// Whether the disk holds what a manifest says, and nothing that was written since.
    pub fn holds(&self, contents: &ManifestId) -> bool {
        // Not by the room of its layers: what was trimmed or zeroed since takes none.
        self.record().base == *contents && self.shadow.is_empty()
    }

    /// The mark of what the disk holds; `None` when it was written since any mark was set.
    pub fn mark(&self) -> Option<String> {
        let stack = self.shadow.stack();
        let record = self.record();
        let mut mark = String::new();
        // The image: a rebase keeps the layers.
        let _ = write!(mark, "{}/{}/{}", record.uuid, record.epoch, stack.top().number);
        let _ = write!(mark, "/{}/{}", self.shadow.size(), record.image);
        stack.top().is_empty().then_some(mark)
    }
}
