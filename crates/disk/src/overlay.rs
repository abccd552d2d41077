//! Private blocks that lie elsewhere than in the home: in room that ends with this process, such as
//! a borrowed disk.
//!
//! The files of such a disk stay as they are; what its client writes goes to a layer over them. That
//! is for ephemeral disks only: what they hold is dropped anyway. Nothing of it survives this
//! process, flushed or not, so a client that was attached when the process ended is told, and not
//! shown a disk that has forgotten what it was answered.

use crate::Shadow;
use arc_swap::ArcSwap;
use block::{Device, Error, Result, Span};
use parking_lot::Mutex;
use std::sync::Arc;

/// Room for private blocks that ends with this process.
pub trait Room: Send + Sync {
    /// A layer that reads as `base` and keeps here what is written to it. Dropping it gives its room
    /// back.
    ///
    /// # Errors
    /// When there cannot be one for a disk of this size.
    fn over(&self, base: Arc<dyn Device>) -> Result<RoomLayer>;
}

/// A layer of private blocks in some [`Room`].
pub struct RoomLayer {
    /// What the disk's client sees.
    pub device: Arc<dyn Device>,
    /// Bytes of room that it takes now.
    pub bytes: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The run of blocks at the beginning of a span, which is not empty, that it either holds or does not; and
    /// which of the two.
    pub held: Box<dyn Fn(Span) -> (Span, bool) + Send + Sync>,
}

/// The private blocks of one disk, away from its files.
pub(crate) struct BorrowedOverlay {
    room: Arc<dyn Room>,
    front: ArcSwap<RoomLayer>,
    /// Why nobody may attach until the disk was reset.
    refused: Mutex<Option<String>>,
}

impl BorrowedOverlay {
    /// Over the disk's files. `lost`: a client was attached when the disk was last open.
    pub(crate) fn new(room: Arc<dyn Room>, base: &Shadow, lost: bool) -> Result<Self> {
        let front = room.over(Arc::new(base.handle()))?;
        let refused = lost.then(|| {
            "what its client wrote lay in borrowed room and is gone with the server that had it; shut \
             the guest down, the disk is as its image again in half a minute"
                .to_owned()
        });
        Ok(Self { room, front: ArcSwap::from_pointee(front), refused: Mutex::new(refused) })
    }

    /// What the client sees.
    pub(crate) fn front(&self) -> arc_swap::Guard<Arc<RoomLayer>> {
        self.front.load()
    }

    /// Drops what is there, when nobody is attached: the files may have changed. When there cannot be
    /// a layer over them, nobody may attach.
    ///
    /// # Errors
    /// Any error from [`Room::over`].
    pub(crate) fn renew(&self, base: &Shadow) -> Result<()> {
        let front = self.room.over(Arc::new(base.handle()));
        *self.refused.lock() = front.as_ref().err().map(|e| e.message().to_owned());
        self.front.store(Arc::new(front?));
        Ok(())
    }

    /// Bytes of room taken.
    pub(crate) fn bytes(&self) -> u64 {
        (self.front().bytes)()
    }

    /// Refuses clients after an earlier process ended under one, and while there is no layer.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable).
    pub(crate) fn check(&self, disk: &str) -> Result<()> {
        match &*self.refused.lock() {
            Some(why) => Err(Error::unavailable(format!("disk {disk:?}: {why}"))),
            None => Ok(()),
        }
    }
}

/// The error of a verb that needs private blocks which cannot be kept.
pub(crate) fn cannot_keep(disk: &str, what: &str) -> Error {
    Error::denied(format!(
        "disk {disk:?}: its private blocks lie in borrowed room, which keeps nothing, so there is no \
         {what} of it; serve it without --shadow borrowed"
    ))
}
