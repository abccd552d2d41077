//! Asking the store who holds an open disk.
//!
//! A store may take for ever to answer, as a directory over a network does whose server hangs. So
//! what is asked is no handle to the disk: its lock goes with the last one, and nobody waits for the
//! store to close it. An answer is judged by what the disk is when it comes. It says nothing to a
//! disk that was closed since the question, to one that was opened again, and when it was asked anew.

use crate::Disk;
use crate::fence::{self, Tenure};
use block::{ErrorKind, Result};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use store::{RefKind, RefRecord, Store};

/// Whether this server still holds a disk, to be asked of the store.
pub struct Question {
    store: Store,
    name: String,
    mark: Arc<()>,
}

/// What the store said, to be judged by [`Disk::judge`].
#[derive(Debug)]
pub struct Answer {
    found: Result<Option<RefRecord>>,
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

    fn is(&self, mark: &Arc<()>) -> bool {
        self.0.lock().as_ref().is_some_and(|latest| Arc::ptr_eq(latest, mark))
    }

    /// No answer counts that is still to come.
    pub(crate) fn forget(&self) {
        *self.0.lock() = None;
    }
}

impl fmt::Debug for Question {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Question({})", self.name)
    }
}

impl Question {
    /// Asks the store, for as long as it takes. The disk may be closed meanwhile.
    pub async fn ask(self) -> Answer {
        let found = self.store.refs().get(RefKind::Disk, &self.name).await;
        Answer { found, mark: self.mark }
    }
}

impl Disk {
    /// What the store is to be asked: whether this server still holds the disk. The answer to an
    /// earlier question does not count from now on.
    pub fn question(&self) -> Question {
        Question { store: self.store.clone(), name: self.name().to_owned(), mark: self.asked.ask() }
    }

    /// Judges the store's answer: a disk that another server took is not written here any more. An
    /// answer to anything but the last question changes nothing.
    ///
    /// # Errors
    /// As [`confirm`](Self::confirm).
    pub fn judge(&self, answer: Answer) -> Result<()> {
        if !self.asked.is(&answer.mark) {
            return Ok(());
        }
        answer.found?.map_or(Ok(()), |found| self.check_holder(&found))
    }

    /// Looks whether the disk is still held by this server, and waits for the store to say. When it
    /// is not, it is not written any more.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk; those of the store.
    pub async fn confirm(&self) -> Result<()> {
        match self.store.refs().get(RefKind::Disk, self.name()).await? {
            Some(found) => self.check_holder(&found),
            None => Ok(()),
        }
    }

    pub(crate) fn check_holder(&self, found: &RefRecord) -> Result<()> {
        let record = self.record();
        let tenure = Tenure { server: self.server, epoch: record.epoch };
        fence::check(found, record.uuid, tenure, &self.directory).inspect_err(|error| {
            if error.kind() == ErrorKind::Fenced {
                self.shadow.poison().set(error);
            }
        })
    }
}
