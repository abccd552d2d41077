//! Refs: the only mutable thing, names that point at manifests.
//!
//! A name is a row of numbered records, `refs/<kind>/<name>/<20-digit sequence>`, of which the
//! newest counts. The only operation that changes one is to create the record of the next number,
//! which one writer alone can do. A removal is a record too.

use crate::{Store, WriterId};
use block::{Error, Result};
use futures::{StreamExt, stream};
use listing::ListedRecords;
use objects::Created;
use record::{MAX_LEN, RefDocument, damaged, key, parse_key};
use std::collections::BTreeMap;

mod keyed;
mod kind;
mod listing;
mod looked_up;
mod record;
mod since;

pub use keyed::{KeyedRecord, RefKey};
pub use kind::RefKind;
pub use listing::{DamagedRef, Listing};
pub use looked_up::LookedUpRef;
pub(crate) use record::check;
pub use record::{RefBody, RefRecord};
use since::{Began, PreviousRecord};

/// Records that are read at the same time by a listing.
const CONCURRENCY: usize = 16;

/// The names of a store.
#[derive(Debug, Clone)]
pub struct Refs {
    store: Store,
}

impl Store {
    /// The names.
    pub fn refs(&self) -> Refs {
        Refs::new(self.clone())
    }
}

impl Refs {
    fn new(store: Store) -> Self {
        Self { store }
    }

    /// The newest record of a name; `None` when there is none or it was removed.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a bad name, [`Corrupt`](block::ErrorKind::Corrupt) for a
    /// damaged record or a foreign object in the row; [`Unavailable`](block::ErrorKind::Unavailable),
    /// [`Denied`](block::ErrorKind::Denied) or [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub async fn get(&self, kind: RefKind, name: &str) -> Result<Option<RefRecord>> {
        kind.check(name)?;
        Ok(self.newest(kind, name).await?.and_then(RefDocument::into_record))
    }

    /// All names of a kind, sorted. One listing, then one read for each name. A name that cannot be
    /// read is among the damaged ones.
    ///
    /// # Errors
    /// Any error from the backend's listing.
    pub async fn list(&self, kind: RefKind) -> Result<Listing> {
        self.list_some(kind, |_| true).await
    }

    /// Lists, as [`list`](Self::list) does, the names for which `wanted` says so: the others are not read, but in
    /// an encrypted store, where they are hidden. There a damaged one may be wanted.
    ///
    /// # Errors
    /// Any error from the backend's listing.
    pub async fn list_some(&self, kind: RefKind, wanted: impl Fn(&str) -> bool) -> Result<Listing> {
        let mut rows = self.rows(&format!("refs/{kind}"), kind).await?;
        let hidden = self.store.settings().is_encrypted();
        if !hidden {
            rows.retain(|name, _| wanted(name));
        }
        let mut found = stream::iter(rows)
            .map(|(name, row)| async move {
                let document = match row {
                    Ok(sequence) => self.read(kind, &name, sequence).await,
                    Err(error) => Err(error),
                };
                (name, document)
            })
            .buffer_unordered(CONCURRENCY);
        let mut listing = Listing::default();
        while let Some((name, document)) = found.next().await {
            match document {
                Ok(document) => listing.records.extend(document.into_record()),
                Err(error) => listing.damaged.push(DamagedRef { name, error }),
            }
        }
        listing.records.retain(|record| !hidden || wanted(&record.name));
        listing.records.sort_by(|a, b| a.name.cmp(&b.name));
        listing.damaged.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listing)
    }

    /// The record of the name with the highest `rank`; `None` when no name has one. Records of other names are read in an
    /// encrypted store only, whose keys do not show the names.
    ///
    /// # Errors
    /// Any error from [`get`](Self::get), also where a name that may rank higher cannot be read; any error from the
    /// backend's listing.
    pub async fn last_of<R: Ord>(
        &self,
        kind: RefKind,
        rank: impl Fn(&str) -> Option<R>,
    ) -> Result<Option<RefRecord>> {
        if self.store.settings().is_encrypted() {
            let listing = self.list_some(kind, |name| rank(name).is_some()).await?;
            return match listing.damaged.into_iter().next() {
                Some(bad) => Err(bad.error),
                None => Ok(listing.records.into_iter().max_by_key(|found| rank(&found.name))),
            };
        }
        let rows = self.rows(&format!("refs/{kind}"), kind).await?;
        let ranked = rows.into_iter().filter_map(|(name, row)| Some((rank(&name)?, name, row)));
        let mut ranked: Vec<_> = ranked.collect();
        ranked.sort_by(|a, b| b.0.cmp(&a.0));
        for (_, name, row) in ranked {
            if let Some(record) = self.read(kind, &name, row?).await?.into_record() {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    /// Makes a name.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when it exists or another writer was first; and as
    /// [`get`](Self::get).
    pub async fn create(&self, kind: RefKind, name: &str, body: RefBody) -> Result<RefRecord> {
        kind.check(name)?;
        let began = Began::now(&self.store);
        let taken = || {
            Error::conflict(format!(
                "{kind} {name:?} exists already; choose another name, or remove it first"
            ))
        };
        let (sequence, over) = match self.newest(kind, name).await? {
            Some(RefDocument { body: Some(_), .. }) => return Err(taken()),
            // Removals are forgotten in the end: then another creator begins at 1.
            Some(removed) => (removed.sequence + 1, PreviousRecord::Removal),
            None => (1, PreviousRecord::Record),
        };
        self.write(kind, name, sequence, Some(body), (began, over))
            .await?
            .and_then(RefDocument::into_record)
            .ok_or_else(taken)
    }

    /// Moves a name from the record numbered `expected`.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when that is not its newest record,
    /// [`NotFound`](block::ErrorKind::NotFound) when there is none; and any error from [`get`](Self::get).
    pub async fn update(
        &self,
        kind: RefKind,
        name: &str,
        expected: u64,
        body: RefBody,
    ) -> Result<RefRecord> {
        let written = self.replace(kind, name, expected, Some(body)).await?;
        written.into_record().ok_or_else(|| Error::internal("an update wrote a removal"))
    }

    /// Removes a name whose newest record is numbered `expected`.
    ///
    /// # Errors
    /// Any error from [`update`](Self::update).
    pub async fn remove(&self, kind: RefKind, name: &str, expected: u64) -> Result<()> {
        self.replace(kind, name, expected, None).await.map(|_| ())
    }

    async fn replace(
        &self,
        kind: RefKind,
        name: &str,
        expected: u64,
        body: Option<RefBody>,
    ) -> Result<RefDocument> {
        kind.check(name)?;
        let began = Began::now(&self.store);
        let moved = |now: u64| {
            Error::conflict(format!(
                "{kind} {name:?} was changed by somebody else (record {now}, not {expected}); look \
                 at it and try again"
            ))
        };
        match self.newest(kind, name).await? {
            Some(RefDocument { body: Some(_), sequence, .. }) if sequence == expected => {}
            Some(RefDocument { body: Some(_), sequence, .. }) => return Err(moved(sequence)),
            _ => return Err(Error::not_found(format!("{kind} {name:?} does not exist"))),
        }
        let sequence = expected + 1;
        let since = (began, PreviousRecord::Record);
        self.write(kind, name, sequence, body, since).await?.ok_or_else(|| moved(sequence))
    }

    /// Writes a record that follows the one numbered `before`, whatever that says: it is damaged.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when another writer was first;
    /// [`Unavailable`](block::ErrorKind::Unavailable), [`Denied`](block::ErrorKind::Denied) or
    /// [`NoSpace`](block::ErrorKind::NoSpace) from the backend.
    pub(crate) async fn follow(
        &self,
        kind: RefKind,
        name: &str,
        before: u64,
        body: RefBody,
    ) -> Result<RefRecord> {
        let since = (Began::now(&self.store), PreviousRecord::Record);
        let written = self.write(kind, name, before + 1, Some(body), since).await?;
        written.and_then(RefDocument::into_record).ok_or_else(|| {
            Error::conflict(format!("{kind} {name:?} was changed by somebody else; try again"))
        })
    }

    /// Deletes the records of a name before this one, from the start of the row on.
    pub(crate) async fn drop_before(&self, kind: RefKind, name: &str, sequence: u64) -> Result<()> {
        let prefix = format!("refs/{kind}/{}", self.place(kind, name));
        let mut keys: Vec<String> = Vec::new();
        for meta in objects::list(self.store.backend(), &prefix).await? {
            let key = meta.location.as_ref();
            let found = parse_key(kind, key, self.store.settings().is_encrypted());
            keys.extend(found.filter(|(_, number)| *number < sequence).map(|_| key.to_owned()));
        }
        keys.sort_unstable();
        for key in keys {
            objects::delete(self.store.backend(), &key).await?;
        }
        Ok(())
    }

    /// Writes the record `sequence` over the one before it, which was read at `since`; `None` when another
    /// writer did.
    async fn write(
        &self,
        kind: RefKind,
        name: &str,
        sequence: u64,
        body: Option<RefBody>,
        since: (Began, PreviousRecord),
    ) -> Result<Option<RefDocument>> {
        let world = self.store.world();
        // One id for each attempt: two tasks of one process must not take each other's record for
        // their own.
        let mut writer = [0; 16];
        world.entropy.fill(&mut writer)?;
        let document = RefDocument {
            kind,
            name: name.to_owned(),
            sequence,
            writer: WriterId(writer),
            written: world.clock.now(),
            body,
        };
        let key = key(kind, &self.place(kind, name), sequence);
        let bytes = document.encode(self.store.settings(), &key)?;
        match objects::put_new(self.store.backend(), &key, bytes).await? {
            Created::Ours => {}
            Created::Theirs => return Ok(None),
        }
        let (began, over) = since;
        if matches!(over, PreviousRecord::Record) && !began.is_long_ago(&self.store) {
            return Ok(Some(document));
        }
        if self.follows(kind, name, sequence).await? {
            return Ok(Some(document));
        }
        objects::delete(self.store.backend(), &key).await?;
        Ok(None)
    }

    /// Whether a record that was just written follows the one that it was meant to: others may have
    /// written it first, and cleared it away since.
    async fn follows(&self, kind: RefKind, name: &str, sequence: u64) -> Result<bool> {
        let prefix = format!("refs/{kind}/{}", self.place(kind, name));
        let listed = objects::list(self.store.backend(), &prefix).await?;
        let numbers: Vec<u64> = listed
            .iter()
            .filter_map(|meta| meta.location.as_ref().rsplit_once('/')?.1.parse().ok())
            .collect();
        Ok(match sequence {
            1 => numbers == [1],
            _ => numbers.contains(&(sequence - 1)),
        })
    }

    /// What a name was before it was removed; `None` when it was not, or when nobody knows any more.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when it is there; and any error from [`get`](Self::get).
    pub async fn removed(&self, kind: RefKind, name: &str) -> Result<Option<RefRecord>> {
        kind.check(name)?;
        let removal = match self.newest(kind, name).await? {
            Some(RefDocument { body: Some(_), .. }) => {
                return Err(Error::conflict(format!("{kind} {name:?} was not removed")));
            }
            Some(removal) => removal,
            None => return Ok(None),
        };
        match self.read(kind, &self.place(kind, name), removal.sequence - 1).await {
            Ok(before) => Ok(before.into_record()),
            Err(e) if e.kind() == block::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The number of a name's newest record, also of a removal; `None` when there is no record.
    pub(crate) async fn sequence(&self, kind: RefKind, name: &str) -> Result<Option<u64>> {
        let place = self.place(kind, name);
        let mut rows = self.rows(&format!("refs/{kind}/{place}"), kind).await?;
        rows.remove(&place).transpose()
    }

    async fn newest(&self, kind: RefKind, name: &str) -> Result<Option<RefDocument>> {
        let place = self.place(kind, name);
        let mut rows = self.rows(&format!("refs/{kind}/{place}"), kind).await?;
        match rows.remove(&place) {
            Some(sequence) => self.read(kind, &place, sequence?).await.map(Some),
            None => Ok(None),
        }
    }

    /// What stands for a name in keys.
    fn place(&self, kind: RefKind, name: &str) -> String {
        match self.store.settings().sealer() {
            Some(sealer) => sealer.hide_name(kind.as_str(), name),
            None => name.to_owned(),
        }
    }

    /// The newest number of each place below a prefix, or what is wrong with its row.
    async fn rows(&self, prefix: &str, kind: RefKind) -> Result<BTreeMap<String, Result<u64>>> {
        let mut rows: BTreeMap<String, ListedRecords> = BTreeMap::new();
        for meta in objects::list(self.store.backend(), prefix).await? {
            let key = meta.location.as_ref();
            match parse_key(kind, key, self.store.settings().is_encrypted()) {
                Some((name, sequence)) => {
                    let row = rows.entry(name.to_owned()).or_default();
                    row.last = row.last.max(sequence);
                }
                None => {
                    let name = key.split('/').nth(2).unwrap_or(key);
                    rows.entry(name.to_owned()).or_default().stray = Some(key.to_owned());
                }
            }
        }
        Ok(rows
            .into_iter()
            .map(|(name, row)| {
                let newest = row.newest();
                (name, newest)
            })
            .collect())
    }

    /// Checks the record that a listing showed, whatever its kind and its age.
    pub(crate) async fn check_key(&self, key: &str) -> Result<()> {
        self.read_key(key).await.map(drop)
    }

    /// Reads the record that a listing showed, whatever its kind and its age; `None` for a removal.
    pub(crate) async fn read_key(&self, key: &str) -> Result<(RefKind, Option<RefRecord>)> {
        let hidden = self.store.settings().is_encrypted();
        let found = RefKind::ALL.into_iter().find_map(|kind| {
            parse_key(kind, key, hidden).map(|(place, sequence)| (kind, place, sequence))
        });
        match found {
            Some((kind, place, sequence)) => {
                let document = self.read(kind, place, sequence).await?;
                Ok((kind, document.into_record()))
            }
            None => Err(damaged(key, "its name is not a record's")),
        }
    }

    async fn read(&self, kind: RefKind, place: &str, sequence: u64) -> Result<RefDocument> {
        let key = key(kind, place, sequence);
        let bytes = objects::get(self.store.backend(), &key, MAX_LEN).await?;
        let document = RefDocument::decode(self.store.settings(), &key, &bytes)?;
        let right = document.kind == kind && self.place(kind, &document.name) == place;
        if !right || document.sequence != sequence {
            return Err(damaged(&key, "it is the record of another name or number"));
        }
        Ok(document)
    }
}

#[cfg(test)]
mod tests;
