//! How far garbage collection is: the ref `refs/gc/store`.
//!
//! Its label `state` is a JSON document, `{"version":1,"lists":[…]}`. Each list has the `id` of a
//! `condemned` object, the `sequence` of the record that first had it, the number of its `objects`
//! and their `bytes`, and `swept`: `null`, or when it was swept, in Unix seconds of the store's clock.

use super::{lists, seconds};
use crate::condemned::{Absent, key};
use crate::id::CondemnedId;
use crate::object_kind::ObjectKind;
use crate::{RefBody, RefKind, Store};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};

/// The ref's name.
const NAME: &str = "store";
const LABEL: &str = "state";
const VERSION: u64 = 1;
/// Lists that are read at the same time.
const CONCURRENCY: usize = 8;
/// Swept lists that are remembered at the most, but for those that were swept lately; and that one collection sweeps.
const REMEMBERED: usize = 64;
/// How long a swept list is remembered at the most, in seconds: 30 days. No object gets an id of a
/// remembered one, in case that whoever swept it sleeps in the middle of a deletion.
const MEMORY: u64 = 30 * 86_400;
/// Swept lists that are remembered at the most: the record of them has a limit. All that were swept within
/// [`LATELY`] are among them; once there are so many, no more are swept.
const MOST_REMEMBERED: usize = 128;
/// How long a swept list is remembered at the least, in seconds: the day for which a session may be silent.
const LATELY: u64 = 86_400;

/// A list of condemned objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct List {
    pub(crate) id: CondemnedId,
    /// The number of the record that first had it.
    pub(crate) sequence: u64,
    pub(crate) objects: u64,
    pub(crate) bytes: u64,
    /// When what was still unreferenced had been deleted; in Unix seconds of the store's clock.
    pub(crate) swept: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct Opening {
    version: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CollectionDocument {
    version: u64,
    lists: Vec<List>,
}

/// What the newest record says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CollectionState {
    /// The record's number; 0 when there was no collection yet.
    pub(crate) sequence: u64,
    /// Oldest first.
    pub(crate) lists: Vec<List>,
}

/// What lists of condemned objects name.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    pub(crate) absent: Absent,
    /// Lists that are damaged, or are to be swept and missing: nobody knows what else is condemned.
    pub(crate) damaged: Vec<(CondemnedId, Error)>,
    /// There is a newer record: a list that it does not have any more is gone.
    pub(crate) is_outdated: bool,
}

impl Contents {
    /// What they name, when all of them can be read.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when one is damaged or missing: it says what to do.
    pub(crate) fn whole(self) -> Result<Absent> {
        match self.damaged.into_iter().next() {
            None => Ok(self.absent),
            Some((_, error)) => Err(error.context(
                "nothing can be written to the store while a list of its garbage is damaged or missing; run \
                 `sojourn gc`, which replaces it",
            )),
        }
    }
}

impl CollectionState {
    /// Reads the newest record.
    pub(crate) async fn load(store: &Store) -> Result<Self> {
        let record = store.refs().get(RefKind::Gc, NAME).await.map_err(|e| match e.kind() {
            ErrorKind::Corrupt => e.context(
                "the record of garbage collection is damaged; run `sojourn gc` or `sojourn repair`, which \
                 replace it",
            ),
            _ => e,
        });
        let Some(record) = record? else {
            return Ok(Self::default());
        };
        let damaged = |why: &dyn std::fmt::Display| {
            Error::corrupt(format!(
                "the record of garbage collection (refs/gc/{NAME}, number {}) is damaged: {why}; \
                 run `sojourn gc` or \
                 `sojourn repair`, which replace it",
                record.sequence
            ))
        };
        let text = record.body.labels.get(LABEL).ok_or_else(|| damaged(&"it has no state"))?;
        let opening: Opening = serde_json::from_str(text).map_err(|e| damaged(&e))?;
        if opening.version > VERSION {
            return Err(Error::unsupported(format!(
                "garbage collection in this store is of version {}, this build knows up to \
                 {VERSION}; use a newer sojourn",
                opening.version
            )));
        }
        let document: CollectionDocument = serde_json::from_str(text).map_err(|e| damaged(&e))?;
        Ok(Self { sequence: record.sequence, lists: document.lists })
    }

    /// Loads as [`load`](Self::load) does; of a damaged record what is still known: its number, and the lists
    /// that are there, which count as swept when they were written. Also gives what is wrong with it.
    pub(crate) async fn load_despite_damage(store: &Store) -> Result<(Self, Option<Error>)> {
        let error = match Self::load(store).await {
            Ok(state) => return Ok((state, None)),
            Err(e) if e.kind() == ErrorKind::Corrupt => e,
            Err(e) => return Err(e),
        };
        let sequence = Self::newest(store).await?;
        let mut found = objects::list(store.backend(), ObjectKind::Condemned.prefix()).await?;
        found.sort_by_key(|meta| std::cmp::Reverse(seconds(meta)));
        let list = |meta: &ObjectMeta| {
            let id = crate::id::parse_hex("id", meta.location.as_ref().rsplit_once('/')?.1).ok()?;
            let swept = Some(seconds(meta));
            Some(List { id: CondemnedId(id), sequence, objects: 0, bytes: 0, swept })
        };
        let lists = found.iter().take(REMEMBERED).filter_map(list).collect();
        Ok((Self { sequence, lists }, Some(error)))
    }

    /// Replaces as [`replace`](Self::replace) does, where the record of this state is damaged.
    pub(crate) async fn replace_damaged(&self, store: &Store, lists: Vec<List>) -> Result<Self> {
        let (lists, body) = Self::body(store, lists)?;
        let record = store.refs().follow(RefKind::Gc, NAME, self.sequence, body).await?;
        store.refs().drop_before(RefKind::Gc, NAME, record.sequence).await?;
        Ok(Self { sequence: record.sequence, lists })
    }

    /// The number of the newest record, from its key alone.
    pub(crate) async fn newest(store: &Store) -> Result<u64> {
        Ok(store.refs().sequence(RefKind::Gc, NAME).await?.unwrap_or(0))
    }

    /// Makes these lists the newest record's, unless there is a newer one than this state.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when another collection was first; the store's.
    pub(crate) async fn replace(&self, store: &Store, lists: Vec<List>) -> Result<Self> {
        let (lists, body) = Self::body(store, lists)?;
        let refs = store.refs();
        let written = match self.sequence {
            0 => refs.create(RefKind::Gc, NAME, body).await,
            sequence => refs.update(RefKind::Gc, NAME, sequence, body).await,
        };
        match written {
            Ok(record) => Ok(Self { sequence: record.sequence, lists }),
            Err(e) if e.kind() == ErrorKind::Conflict => Err(Error::conflict(
                "another garbage collection is at work on this store; let it end, then try again",
            )
            .with_source(e)),
            Err(e) => Err(e),
        }
    }

    /// What a record says that has these lists, which are given back.
    fn body(store: &Store, lists: Vec<List>) -> Result<(Vec<List>, RefBody)> {
        let document = CollectionDocument { version: VERSION, lists };
        let text = serde_json::to_string(&document).map_err(|e| {
            Error::internal("the record of a collection cannot be written").with_source(e)
        })?;
        let body = RefBody {
            manifest: None,
            size: 0,
            created: store.world().clock.now(),
            labels: BTreeMap::from([(LABEL.to_owned(), text)]),
        };
        Ok((document.lists, body))
    }

    /// Lists that were not swept yet.
    pub(crate) fn open(&self) -> impl Iterator<Item = &List> {
        self.lists.iter().filter(|list| list.swept.is_none())
    }

    /// What counts as absent for whoever has seen this state. A swept list that is gone names nothing: what it
    /// named is gone, too. One that is still to be swept may come back, and would then take what whoever did not see
    /// it relies on.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when a list is damaged, or is to be swept and missing: it says what to do;
    /// the store's.
    pub(crate) async fn absent(&self, store: &Store) -> Result<Absent> {
        self.read(store, self.lists.clone()).await?.whole()
    }

    /// What is condemned, and not deleted yet; as [`absent`](Self::absent).
    pub(crate) async fn condemned(&self, store: &Store) -> Result<Absent> {
        self.read(store, self.open().cloned().collect()).await?.whole()
    }

    /// What all lists name, as far as they can be read.
    pub(crate) async fn contents(&self, store: &Store) -> Result<Contents> {
        self.read(store, self.lists.clone()).await
    }

    async fn read(&self, store: &Store, lists: Vec<List>) -> Result<Contents> {
        let mut contents = Contents::default();
        let mut lists = stream::iter(lists)
            .map(|list| async move {
                let read = lists::read(store, list.id.as_bytes()).await;
                (list, read)
            })
            .buffer_unordered(CONCURRENCY);
        while let Some((list, read)) = lists.next().await {
            match read {
                Ok(items) => contents.absent.add(&items),
                Err(e) => match e.kind() {
                    ErrorKind::NotFound if list.swept.is_some() => {}
                    ErrorKind::NotFound if contents.is_outdated => {}
                    ErrorKind::NotFound if Self::newest(store).await? != self.sequence => {
                        contents.is_outdated = true;
                    }
                    ErrorKind::NotFound => {
                        let missing = format!("{} is missing", key(list.id.as_bytes()));
                        contents.damaged.push((list.id, Error::corrupt(missing).with_source(e)));
                    }
                    ErrorKind::Corrupt => contents.damaged.push((list.id, e)),
                    _ => return Err(e),
                },
            }
        }
        Ok(contents)
    }

    /// The lists that need not be remembered any more at `now`, and the others.
    pub(crate) fn forget(&self, now: u64) -> (Vec<List>, Vec<List>) {
        // An old list may be swept late: what counts is when.
        let mut swept: Vec<(u64, CondemnedId)> =
            self.lists.iter().filter_map(|list| Some((list.swept?, list.id))).collect();
        swept.sort_unstable_by(|a, b| b.cmp(a));
        let newest: HashSet<CondemnedId> =
            swept.iter().take(REMEMBERED).map(|(_, id)| *id).collect();
        self.lists.iter().cloned().partition(|list| {
            let Some(swept) = list.swept else { return false };
            let age = now.saturating_sub(swept);
            age > MEMORY || (age >= LATELY && !newest.contains(&list.id))
        })
    }

    /// How many lists may be swept at `now`, and all of them be remembered for long enough.
    pub(crate) fn room(&self, now: u64) -> usize {
        let is_late = |swept: u64| now.saturating_sub(swept) < LATELY;
        let lately = self.lists.iter().filter(|list| list.swept.is_some_and(is_late)).count();
        MOST_REMEMBERED.saturating_sub(lately).min(REMEMBERED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(sequence: u64, swept: Option<u64>) -> List {
        List { id: CondemnedId([sequence as u8; 32]), sequence, objects: 1, bytes: 2, swept }
    }

    #[test]
    fn swept_lists_are_remembered_for_a_while_and_open_ones_for_good() {
        let now = 100 * 86_400;
        let mut lists = vec![list(1, Some(now - MEMORY - 1)), list(2, None), list(3, Some(now))];
        let state = CollectionState { sequence: 3, lists: lists.clone() };
        let (gone, kept) = state.forget(now);
        assert_eq!((gone.len(), kept.len()), (1, 2));
        assert_eq!(gone[0].sequence, 1);
        lists.extend((0..100).map(|n| list(10 + n, Some(now - LATELY))));
        let state = CollectionState { sequence: 3, lists };
        let (_, kept) = state.forget(now);
        assert_eq!(kept.len(), REMEMBERED + 1);
        assert!(kept.iter().any(|list| list.sequence == 2), "it is not swept yet");
        assert!(kept.iter().any(|list| list.sequence == 3), "it was swept last");
        // All of these were swept lately.
        assert_eq!(state.forget(now - 1).1.len(), 102);
        assert_eq!((state.room(now), state.room(now - 1)), (REMEMBERED, 128 - 101));
    }

    #[tokio::test]
    async fn what_is_swept_in_one_go_is_remembered_and_the_record_has_room_for_it() {
        let now = 1_800_000_000;
        let backend = std::sync::Arc::new(object_store::memory::InMemory::new());
        let settings = crate::testing::encrypted_settings();
        let (world, secret) = (crate::testing::world(1), crate::Secret::key_file(vec![7; 40]));
        let secret = secret.unwrap();
        let cost = crate::Argon2Cost::NORMAL;
        let key = crate::NewKey { name: "test", secret: &secret, cost };
        let store = Store::create_encrypted(backend, settings, world, &key).await.unwrap();
        let big = |n: u16, swept| {
            let mut id = [0xff; 32];
            id[..2].copy_from_slice(&n.to_be_bytes());
            let (objects, bytes) = (1 << 20, 16 << 40);
            List { id: CondemnedId(id), sequence: 1_000_000, objects, bytes, swept }
        };
        // A session of several days has ended, and a collection runs every hour.
        let lists = (0..200).map(|n| big(n, None)).collect();
        let mut state = CollectionState { sequence: 0, lists };
        for hour in 0..100 {
            let now = now + hour * 3600;
            let (_, mut lists) = state.forget(now);
            let swept: Vec<CondemnedId> =
                state.open().take(state.room(now)).map(|l| l.id).collect();
            for list in &mut lists {
                list.swept = swept.contains(&list.id).then_some(now).or(list.swept);
            }
            // Of each, something is condemned again.
            let again = |n: usize| big(1000 + hour as u16 * 100 + n as u16, None);
            lists.extend((0..swept.len()).map(again));
            let most = lists.iter().filter(|list| list.swept.is_some()).count();
            assert!(most <= MOST_REMEMBERED && lists.len() <= 200 + MOST_REMEMBERED, "{most}");
            state = state.replace(&store, lists).await.unwrap();
            for id in swept {
                assert!(state.forget(now + LATELY - 1).1.iter().any(|list| list.id == id));
            }
        }
    }
}
