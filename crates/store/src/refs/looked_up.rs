//! A name that was looked up, and is written over as it was then: that asks nothing twice.

use super::record::RefDocument;
use super::since::{Began, PreviousRecord};
use super::{RefBody, RefKind, RefRecord, Refs};
use block::{Error, Result};

/// What a name was when somebody looked it up.
#[derive(Debug, Clone)]
pub struct LookedUpRef {
    kind: RefKind,
    name: String,
    began: Began,
    /// The number of the newest record, also of a removal; 0 if there was none.
    sequence: u64,
    record: Option<RefRecord>,
}

impl LookedUpRef {
    /// What it is a name of.
    pub(crate) fn kind(&self) -> RefKind {
        self.kind
    }

    /// The newest record; `None` when there was none or the name was removed.
    pub fn record(&self) -> Option<&RefRecord> {
        self.record.as_ref()
    }
}

impl Refs {
    /// Looks a name up, so that it can be [written over](Self::write_over).
    ///
    /// # Errors
    /// Any error from [`get`](Self::get).
    pub async fn look_up(&self, kind: RefKind, name: &str) -> Result<LookedUpRef> {
        kind.check(name)?;
        let began = Began::now(&self.store);
        let newest = self.newest(kind, name).await?;
        let sequence = newest.as_ref().map_or(0, |document| document.sequence);
        let record = newest.and_then(RefDocument::into_record);
        Ok(LookedUpRef { kind, name: name.to_owned(), began, sequence, record })
    }

    /// Makes a name, or moves it on, if it is still what it was when it was looked up.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody else changed it since;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn write_over(&self, found: &LookedUpRef, body: RefBody) -> Result<RefRecord> {
        let LookedUpRef { kind, name, began, sequence, record } = found;
        let over = match (sequence, record) {
            (1.., None) => PreviousRecord::Removal,
            _ => PreviousRecord::Record,
        };
        let written = self.write(*kind, name, sequence + 1, Some(body), (*began, over)).await?;
        written.and_then(RefDocument::into_record).ok_or_else(|| {
            Error::conflict(format!(
                "{kind} {name:?} was changed by somebody else just now; look at it and try again"
            ))
        })
    }

    /// The same, and what the name is now, to be written over in its turn: who writes a name again and again looks it
    /// up once.
    ///
    /// # Errors
    /// Any error from [`write_over`](Self::write_over).
    pub async fn write_on(&self, found: &LookedUpRef, body: RefBody) -> Result<LookedUpRef> {
        let began = Began::now(&self.store);
        let record = self.write_over(found, body).await?;
        let (kind, name) = (found.kind, found.name.clone());
        Ok(LookedUpRef { kind, name, began, sequence: record.sequence, record: Some(record) })
    }
}
