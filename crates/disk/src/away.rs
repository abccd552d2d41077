//! Private blocks that lie elsewhere than in the home: in room that ends with this process, such as
//! a borrowed disk.
//!
//! The files of such a disk stay as they are; what its client writes goes to a layer over them. That
//! is for ephemeral disks only: what they hold is dropped anyway. Nothing of it survives this
//! process, flushed or not, so a client that was attached when the process ended is told, and not
//! shown a disk that has forgotten what it was answered.

use crate::Shadow;
use arc_swap::ArcSwap;
use block::{Device, Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Room for private blocks that ends with this process.
pub trait Room: Send + Sync {
    /// A layer that reads as `base` and keeps here what is written to it. Dropping it gives its room
    /// back.
    ///
    /// # Errors
    /// When there cannot be one for a disk of this size.
    fn over(&self, base: Arc<dyn Device>) -> Result<Kept>;
}

/// A layer of private blocks in some [`Room`].
pub struct Kept {
    /// What the disk's client sees.
    pub device: Arc<dyn Device>,
    /// Bytes of room that it takes now.
    pub bytes: Box<dyn Fn() -> u64 + Send + Sync>,
}

/// The private blocks of one disk, away from its files.
pub(crate) struct Away {
    room: Arc<dyn Room>,
    front: ArcSwap<Kept>,
    /// An earlier process had what the client wrote, and is gone.
    lost: AtomicBool,
}

impl Away {
    /// Over the disk's files. `lost`: a client was attached when the disk was last open.
    pub(crate) fn new(room: Arc<dyn Room>, base: &Shadow, lost: bool) -> Result<Self> {
        let front = room.over(Arc::new(base.handle()))?;
        Ok(Self { room, front: ArcSwap::from_pointee(front), lost: AtomicBool::new(lost) })
    }

    /// What the client sees.
    pub(crate) fn front(&self) -> arc_swap::Guard<Arc<Kept>> {
        self.front.load()
    }

    /// Drops what is there, when nobody is attached: the files may have changed.
    pub(crate) fn renew(&self, base: &Shadow) -> Result<()> {
        self.front.store(Arc::new(self.room.over(Arc::new(base.handle()))?));
        self.lost.store(false, Ordering::Release);
        Ok(())
    }

    /// Bytes of room taken.
    pub(crate) fn bytes(&self) -> u64 {
        (self.front().bytes)()
    }

    /// Refuses the client that was attached when an earlier process ended.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable).
    pub(crate) fn check(&self, disk: &str) -> Result<()> {
        if self.lost.load(Ordering::Acquire) {
            return Err(Error::unavailable(format!(
                "disk {disk:?}: what its client wrote lay in borrowed room and is gone with the \
                 server that had it; shut the guest down, the disk is as its image again in half \
                 a minute"
            )));
        }
        Ok(())
    }
}

/// The error of a verb that needs private blocks which cannot be kept.
pub(crate) fn cannot_keep(disk: &str, what: &str) -> Error {
    Error::denied(format!(
        "disk {disk:?}: its private blocks lie in borrowed room, which keeps nothing, so there is no \
         {what} of it; serve it without --shadow borrowed"
    ))
}
