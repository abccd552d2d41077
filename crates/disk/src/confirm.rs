//! Whether this server still holds an open disk.

use crate::fence::{self, Tenure};
use crate::{Disk, OwnershipAnswer, OwnershipQuestion};
use block::{ErrorKind, Result};
use store::{RefKind, RefRecord};

impl Disk {
    /// What the store is to be asked: whether this server still holds the disk. The answer to an
    /// earlier question does not count from now on.
    pub fn question(&self) -> OwnershipQuestion {
        OwnershipQuestion::new(self.store.clone(), self.name(), &self.asked)
    }

    /// Judges the store's answer: a disk that another server took is not written here any more. An
    /// answer to anything but the last question changes nothing.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk; the error that the store answered with.
    pub fn judge(&self, answer: OwnershipAnswer) -> Result<()> {
        if !self.asked.is_answered_by(&answer) {
            return Ok(());
        }
        answer.found?.map_or(Ok(()), |found| self.check_holder(&found))
    }

    /// Looks whether the disk is still held by this server, and waits for the store to say. When it
    /// is not, it is not written any more.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk; any error from the store.
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
