//! What the load made, and what of it must be there after a power cut.

use crate::history::{Bounds, History};
use std::sync::{Arc, Mutex};

/// When a thing was made and removed, in positions of the record.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) struct Life {
    /// Its making was begun.
    pub(crate) begun: usize,
    /// Its making was answered.
    pub(crate) made: Option<usize>,
    /// Its removal was begun.
    pub(crate) removing: Option<usize>,
    /// Its removal was answered.
    pub(crate) removed: Option<usize>,
}

impl Life {
    /// Whether it must be there when the power is cut at `position`.
    pub(crate) fn must_be(self, position: usize) -> bool {
        self.made.is_some_and(|made| made <= position)
            && self.removing.is_none_or(|removing| removing > position)
    }

    /// Whether it must not be there then.
    pub(crate) fn must_not_be(self, position: usize) -> bool {
        self.begun > position || self.removed.is_some_and(|removed| removed <= position)
    }
}

/// A disk.
pub(crate) struct Disk {
    pub(crate) name: String,
    pub(crate) history: Mutex<History>,
    pub(crate) life: Mutex<Life>,
}

/// An image version, or a snapshot of a disk.
pub(crate) struct State {
    pub(crate) name: String,
    pub(crate) life: Life,
    pub(crate) content: Content,
}

/// What an image version or snapshot holds.
pub(crate) enum Content {
    Bytes(Arc<Vec<u8>>),
    /// A state of this disk.
    Of(Arc<Disk>, Bounds),
}

impl Content {
    /// Checks that it is `bytes`.
    ///
    /// # Errors
    /// Where it is not.
    pub(crate) fn check(&self, bytes: &[u8]) -> Result<(), String> {
        match self {
            Self::Bytes(expected) if expected.as_slice() == bytes => Ok(()),
            Self::Bytes(_) => Err("holds other bytes than were imported".into()),
            Self::Of(disk, bounds) => disk.history.lock().expect("history").check(0, bytes, bounds),
        }
    }
}

/// Everything that the load made.
#[derive(Default)]
pub(crate) struct Ledger {
    pub(crate) disks: Vec<Arc<Disk>>,
    pub(crate) images: Vec<State>,
    pub(crate) snapshots: Vec<State>,
}
