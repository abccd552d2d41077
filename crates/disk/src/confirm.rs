//! Whether this server still holds an open disk.

use crate::fence::{self, Tenure};
use crate::{Disk, OwnershipAnswer, OwnershipQuestion};
use block::{Error, ErrorKind, Result};
use store::{RefKind, RefRecord};

impl Disk {
    /// What the store is to be asked: whether this server still holds the disk. The answer to an
    /// earlier question does not count from now on.
    pub fn question(&self) -> OwnershipQuestion {
        OwnershipQuestion::new(self.store.clone(), self.name(), &self.asked)
    }

    /// Judges the store's answer: a disk that another server took is not written here any more. An
    /// answer to anything but the last question changes nothing. Says whether the store knows the disk: one
    /// that it does not know is to be [told of](Self::tell_store).
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk, [`Conflict`](ErrorKind::Conflict) when its
    /// name is another disk's now; the error that the store answered with.
    pub fn judge(&self, answer: OwnershipAnswer) -> Result<bool> {
        if !self.asked.is_answered_by(&answer) {
            return Ok(true);
        }
        match answer.found? {
            Some(found) => self.check_holder(&found).map(|()| true),
            None => Ok(false),
        }
    }

    /// Tells the store again of a disk that it does not know any more: somebody held the disk for lost, or the store
    /// is an older copy. What the disk stands on would be collected as garbage else. Where that has happened, the
    /// disk is not written any more.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server has the disk by now, or what it stands on is gone;
    /// [`Conflict`](ErrorKind::Conflict) when its name is another disk's; any error from the store.
    pub async fn tell_store(&self) -> Result<()> {
        // Others may change the disk meanwhile: whatever they tell of it is as good, and is not written over.
        let body = self.ref_body(&self.record(), &[]);
        match self.store.refs().create(RefKind::Disk, self.name(), body).await {
            Err(e) if e.kind() == ErrorKind::Conflict => self.confirm().await?,
            made => drop(made?),
        }
        let found = self.find_base().await;
        if !found.as_ref().is_err_and(|e| e.kind() == ErrorKind::Fenced) {
            tracing::warn!(
                disk = self.name(),
                "the store did not know the disk, and knows it again"
            );
        }
        found
    }

    /// Looks whether the store has what the disk stands on. After the ref was made: what that keeps is not collected
    /// while it is looked for. When it is gone the disk is not written any more.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when it is gone; any error from the store.
    pub(crate) async fn find_base(&self) -> Result<()> {
        match self.store.stored_manifest(&self.record().base).await {
            Err(e) if e.kind() == ErrorKind::NotFound => {
                let error = Error::fenced(format!(
                    "disk {name:?} was removed from the store while it was here, and what it stood on is deleted ({}); \
                     give up what is here ('sojourn disk remove {name}')",
                    e.message(),
                    name = self.name()
                ));
                self.shadow.poison().set(&error);
                Err(error)
            }
            other => other.map(drop),
        }
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

    /// The same for who changes the disk as a whole, so that its record stays as it is meanwhile: also refuses a
    /// directory that was set back.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another server took the disk, [`Conflict`](ErrorKind::Conflict) when the store
    /// has a state of it that did not come of this directory; any error from the store.
    pub(crate) async fn confirm_base(&self) -> Result<()> {
        match self.store.refs().get(RefKind::Disk, self.name()).await? {
            Some(found) => {
                self.check_holder(&found)?;
                self.check_base(&found)
            }
            None => Ok(()),
        }
    }

    /// Refuses to write over a state of the disk that did not come of this directory; it is not written any more then.
    pub(crate) fn check_base(&self, found: &RefRecord) -> Result<()> {
        let checked = fence::check_base(found, self.record().base, &self.directory);
        checked.inspect_err(|error| {
            if error.kind() == ErrorKind::Conflict {
                self.shadow.poison().set(error);
            }
        })
    }

    pub(crate) fn check_holder(&self, found: &RefRecord) -> Result<()> {
        let record = self.record();
        let tenure = Tenure { server: self.server, epoch: record.epoch };
        fence::check(found, record.uuid, tenure, &self.directory).inspect_err(|error| {
            // Of another disk of its name, too: nothing keeps what this one stands on.
            if matches!(error.kind(), ErrorKind::Fenced | ErrorKind::Conflict) {
                self.shadow.poison().set(error);
            }
        })
    }
}
