//! Listings: of names the newest records.
//!
//! Every change of a name is one more record, and most of them wait for a collection to clear them away. Who reads a
//! listing wants the newest one, and writes only what follows it: the others would only make listings long. Records of
//! machines are judged one by one, as a name may have been that of a machine on another disk.

use super::Gateway;
use super::client::Client;
use super::limits::RequestPermit;
use super::read::{backend_error, json};
use super::rights::is_of_machine;
use crate::wire::{ListPrefix, ListedObject};
use block::{Error, Result};
use bytes::Bytes;
use futures::TryStreamExt;
use futures::future::try_join_all;
use object_store::ObjectMeta;
use object_store::path::Path;
use std::collections::BTreeMap;
use store::{RefKey, RefKind};

/// The most records of a name that are shown, and the most other objects among them.
const SHOWN: usize = 8;
/// The most objects of one listing.
const MOST_LISTED: usize = 100_000;
/// What an object takes in memory, with its line in the answer, in bytes; and of how many that is asked for at a time.
const OBJECT: u64 = 512;
const STEP: usize = 1024;

/// What is listed of one name.
#[derive(Default)]
struct ShownRecords {
    newest: BTreeMap<u64, ListedObject>,
    /// What is no record.
    strays: Vec<ListedObject>,
}

impl ShownRecords {
    fn len(&self) -> usize {
        self.newest.len() + self.strays.len()
    }

    /// Adds one; of records the `most` newest stay.
    fn add(&mut self, number: Option<u64>, object: ListedObject, most: usize) {
        match number {
            Some(number) => {
                self.newest.insert(number, object);
                if self.newest.len() > most {
                    self.newest.pop_first();
                }
            }
            None if self.strays.len() < SHOWN => self.strays.push(object),
            None => {}
        }
    }
}

/// Answers a listing.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store cannot be
/// listed, [`Unavailable`](block::ErrorKind::Unavailable) when too much is under way for the client.
pub(crate) async fn list(
    gateway: &Gateway,
    client: &Client,
    prefix: &ListPrefix,
    turn: &mut RequestPermit,
) -> Result<Bytes> {
    let mut listed = Vec::new();
    match prefix {
        ListPrefix::Nothing => {}
        ListPrefix::KeySlots => {
            let all = objects(gateway, "keys").try_collect::<Vec<_>>().await;
            listed = all.map_err(backend_error)?;
        }
        ListPrefix::Names(kind) => {
            for (row, shown) in rows(gateway, client, *kind, "", turn).await? {
                if may_list(gateway, client, *kind, &row, &shown).await? {
                    listed.extend(shown.newest.into_values());
                }
            }
        }
        ListPrefix::Name(kind, row) => {
            let mut rows = rows(gateway, client, *kind, row, turn).await?;
            let shown = rows.remove(row).unwrap_or_default();
            if may_list(gateway, client, *kind, row, &shown).await? {
                let records = readable(gateway, client, *kind, row, shown.newest).await?;
                listed.extend(records.into_iter().chain(shown.strays));
            }
        }
    }
    json(&listed)
}

/// Whether a client may use the name that has these records.
async fn may_list(
    gateway: &Gateway,
    client: &Client,
    kind: RefKind,
    row: &str,
    shown: &ShownRecords,
) -> Result<bool> {
    let Some((sequence, _)) = shown.newest.last_key_value() else { return Ok(false) };
    let newest = RefKey { kind, row: row.to_owned(), sequence: *sequence };
    Ok(client.right_on_row(gateway, kind, row, Some(&newest)).await?.is_some())
}

/// What a client may read of the records of a name that it may use.
async fn readable(
    gateway: &Gateway,
    client: &Client,
    kind: RefKind,
    row: &str,
    records: BTreeMap<u64, ListedObject>,
) -> Result<Vec<ListedObject>> {
    if !is_of_machine(kind) {
        return Ok(records.into_values().collect());
    }
    let judged = records.into_iter().map(|(sequence, object)| async move {
        let key = RefKey { kind, row: row.to_owned(), sequence };
        let right = client.right_on_row(gateway, kind, row, Some(&key)).await?;
        Ok::<_, Error>(right.map(|_| object))
    });
    Ok(try_join_all(judged).await?.into_iter().flatten().collect())
}

/// What is listed of the names of a kind, or of one.
async fn rows(
    gateway: &Gateway,
    client: &Client,
    kind: RefKind,
    row: &str,
    turn: &mut RequestPermit,
) -> Result<BTreeMap<String, ShownRecords>> {
    let mut rows: BTreeMap<String, ShownRecords> = BTreeMap::new();
    // Each one more of a machine would have to be read and judged: of all machines the newest does.
    let most = if row.is_empty() && is_of_machine(kind) { 1 } else { SHOWN };
    let mut listed = std::pin::pin!(objects(gateway, &format!("refs/{}/{row}", kind.as_str())));
    let (mut held, mut paid) = (0, 0);
    while let Some(object) = listed.try_next().await.map_err(backend_error)? {
        let key = RefKey::parse(gateway.store().settings(), &object.key);
        let (row, number) = match key {
            Some(key) => (key.row, Some(key.sequence)),
            None => (object.key.split('/').nth(2).unwrap_or_default().to_owned(), None),
        };
        let shown = rows.entry(row).or_default();
        let before = shown.len();
        shown.add(number, object, most);
        held += shown.len() - before;
        if held > MOST_LISTED {
            return Err(Error::unsupported("the store has more names than a listing can show"));
        }
        if held > paid {
            client.usage.more_memory(turn, STEP as u64 * OBJECT).await?;
            paid += STEP;
        }
    }
    Ok(rows)
}

fn objects(
    gateway: &Gateway,
    prefix: &str,
) -> impl futures::Stream<Item = object_store::Result<ListedObject>> + use<> {
    gateway.backend().list(Some(&Path::from(prefix))).map_ok(|meta: ObjectMeta| ListedObject {
        key: meta.location.to_string(),
        size: meta.size,
        modified: meta.last_modified.timestamp_millis(),
    })
}
