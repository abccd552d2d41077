//! Records by their keys: for who passes on what others read and write.

use super::{MAX_LEN, RefBody, RefDocument, RefKind, RefRecord, Refs, damaged, key, parse_key};
use crate::Settings;
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use objects::Created;
use std::collections::BTreeMap;

/// The key of a record, taken apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RefKey {
    /// What the name is of.
    pub kind: RefKind,
    /// What stands for the name in keys: the name itself, or in an encrypted store a hash of it.
    pub row: String,
    /// The record's number, from 1.
    pub sequence: u64,
}

/// A record under its key: one that says what a name means, or that it was removed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedRecord {
    /// What the name is of.
    pub kind: RefKind,
    /// The name.
    pub name: String,
    /// The record's number, from 1.
    pub sequence: u64,
    /// What it says; `None` for a removal.
    pub record: Option<RefRecord>,
}

impl RefKey {
    /// Takes the key of an object apart; `None` when it is not that of a record.
    pub fn parse(settings: &Settings, key: &str) -> Option<Self> {
        RefKind::ALL.into_iter().find_map(|kind| {
            let (row, sequence) = parse_key(kind, key, settings.is_encrypted())?;
            Some(Self { kind, row: row.to_owned(), sequence })
        })
    }

    /// The key as text.
    pub fn text(&self) -> String {
        key(self.kind, &self.row, self.sequence)
    }
}

impl KeyedRecord {
    /// Reads a record, whoever wrote it, and checks that it is the one of its key.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) naming what is wrong,
    /// [`Unsupported`](ErrorKind::Unsupported) for a newer format.
    pub fn decode(refs: &Refs, key: &RefKey, bytes: &[u8]) -> Result<Self> {
        let text = key.text();
        if bytes.len() as u64 > MAX_LEN {
            return Err(damaged(&text, "it is too long"));
        }
        let document = RefDocument::decode(refs.store.settings(), &text, bytes)?;
        let right = document.kind == key.kind
            && document.kind.check(&document.name).is_ok()
            && refs.place(key.kind, &document.name) == key.row;
        if !right || document.sequence != key.sequence {
            return Err(damaged(&text, "it is the record of another name or number"));
        }
        Ok(Self::of(document))
    }

    fn of(document: RefDocument) -> Self {
        let (kind, name, sequence) = (document.kind, document.name.clone(), document.sequence);
        Self { kind, name, sequence, record: document.into_record() }
    }

    /// Whether its number is the one behind that of `before`; 1 when there is none.
    pub fn is_next(&self, before: Option<&Self>) -> bool {
        before.map_or(0, |before| before.sequence).checked_add(1) == Some(self.sequence)
    }

    /// What it says; `None` for a removal.
    pub fn body(&self) -> Option<&RefBody> {
        self.record.as_ref().map(|record| &record.body)
    }
}

impl Refs {
    /// The newest number of each row of a kind. Rows with foreign objects among their records are left
    /// out.
    ///
    /// # Errors
    /// Any error from the backend's listing.
    pub async fn rows_of(&self, kind: RefKind) -> Result<BTreeMap<String, u64>> {
        let rows = self.rows(&format!("refs/{kind}"), kind).await?;
        Ok(rows.into_iter().filter_map(|(row, newest)| Some((row, newest.ok()?))).collect())
    }

    /// The record of a key.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt);
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn keyed(&self, key: &RefKey) -> Result<KeyedRecord> {
        self.read(key.kind, &key.row, key.sequence).await.map(KeyedRecord::of)
    }

    /// The newest record of a name, also of one that was removed; `None` when there is none.
    ///
    /// # Errors
    /// Any error from [`get`](Self::get).
    pub async fn newest_keyed(&self, kind: RefKind, name: &str) -> Result<Option<KeyedRecord>> {
        kind.check(name)?;
        Ok(self.newest(kind, name).await?.map(KeyedRecord::of))
    }

    /// Writes a record that was decoded from `bytes` as the one after `before`, which was the newest when it was
    /// looked at and judged; `None`: there was none. Gives whether it is there now: another writer may have been
    /// first. The same bytes again are no other writer's.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn write_keyed(
        &self,
        record: &KeyedRecord,
        before: Option<&KeyedRecord>,
        bytes: Bytes,
    ) -> Result<bool> {
        let (kind, name, sequence) = (record.kind, record.name.as_str(), record.sequence);
        let text = key(kind, &self.place(kind, name), sequence);
        let newest = self.newest_keyed(kind, name).await?;
        match &newest {
            Some(newest) if newest.sequence >= sequence => {
                let there = objects::get(self.store.backend(), &text, MAX_LEN).await;
                return match there {
                    Ok(there) => Ok(there == bytes),
                    Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
                    Err(e) => Err(e),
                };
            }
            // What it was not judged by may forbid it.
            newest if newest.as_ref() != before => return Ok(false),
            newest if !record.is_next(newest.as_ref()) => return Ok(false),
            _ => {}
        }
        match objects::put_new(self.store.backend(), &text, bytes).await? {
            Created::Theirs => Ok(false),
            // The writer may have looked at the name long ago.
            Created::Ours if self.follows(kind, name, sequence).await? => Ok(true),
            Created::Ours => {
                objects::delete(self.store.backend(), &text).await?;
                Ok(false)
            }
        }
    }

    /// Refuses names that no ref of this kind can have.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) naming the rule.
    pub fn check_name(kind: RefKind, name: &str) -> Result<(), Error> {
        kind.check(name)
    }
}
