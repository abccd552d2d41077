//! Asking the store who holds an open disk.
//!
//! A store may take for ever to answer, as a directory over a network does whose server hangs. So
//! what is asked is no handle to the disk: its lock goes with the last one, and nobody waits for the
//! store to close it. An answer is judged by what the disk is when it comes. It says nothing to a
//! disk that was closed since the question, to one that was opened again, and when it was asked anew.

use block::Result;
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use store::{RefKind, RefRecord, Store};

/// Whether this server still holds a disk, to be asked of the store.
pub struct OwnershipQuestion {
    store: Store,
    name: String,
    mark: Arc<()>,
}

/// What the store said, to be judged by [`Disk::judge`](crate::Disk::judge).
#[derive(Debug)]
pub struct OwnershipAnswer {
    pub(crate) found: Result<Option<RefRecord>>,
    mark: Arc<()>,
}

/// The last question about an open disk; none when it is closed. Only that one's answer counts.
#[derive(Debug, Default)]
pub(crate) struct Latest(Mutex<Option<Arc<()>>>);

impl Latest {
    fn ask(&self) -> Arc<()> {
        let mark = Arc::default();
        *self.0.lock() = Some(Arc::clone(&mark));
        mark
    }

    /// Whether it is the answer to the last question.
    pub(crate) fn is_answered_by(&self, answer: &OwnershipAnswer) -> bool {
        self.0.lock().as_ref().is_some_and(|latest| Arc::ptr_eq(latest, &answer.mark))
    }

    /// No answer counts that is still to come.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl fmt::Debug for OwnershipQuestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({})", self.name)
    }
}

impl OwnershipQuestion {
    /// Asks for the disk `name`; what was asked before does not count any more.
    pub(crate) fn new(store: Store, name: &str, latest: &Latest) -> Self {
        Self { store, name: name.to_owned(), mark: latest.ask() }
    }

    /// Asks the store, for as long as it takes. The disk may be closed meanwhile.
    pub async fn ask(self) -> OwnershipAnswer {
        let found = self.store.refs().get(RefKind::Disk, &self.name).await;
        OwnershipAnswer { found, mark: self.mark }
    }
}
