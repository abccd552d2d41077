//! What a listing shows of the names of a kind.

use super::RefRecord;
use block::{Error, Result};

/// All names of a kind.
#[derive(Debug, Default)]
pub struct Listing {
    /// The newest record of each name, by name.
    pub records: Vec<RefRecord>,
    /// Names whose newest record cannot be read, by name: one never hides the others.
    pub damaged: Vec<DamagedRef>,
}

/// A name of which nothing but the name is known.
#[derive(Debug)]
pub struct DamagedRef {
    /// The name, as it stands in the keys: it may break the rules for names, and is hidden in an
    /// encrypted store.
    pub name: String,
    /// What is wrong, and what to do about it.
    pub error: Error,
}

impl Listing {
    /// Whether there is no name at all.
    pub fn is_empty(&self) -> bool {
        self.records.is_empty() && self.damaged.is_empty()
    }
}

/// The records of a name, as a listing shows them.
#[derive(Default)]
pub(super) struct ListedRecords {
    pub(super) last: u64,
    /// The key of an object among them that is none.
    pub(super) stray: Option<String>,
}

impl ListedRecords {
    /// The newest number, which alone counts: what is missing before it was cleared away, or is what
    /// somebody left who slept while it was.
    pub(super) fn newest(&self) -> Result<u64> {
        if let Some(key) = &self.stray {
            return Err(Error::corrupt(format!(
                "object {key} is not a ref's record; something else wrote it, remove it"
            )));
        }
        Ok(self.last)
    }
}
