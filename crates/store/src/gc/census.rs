//! All names and all pins that there were at one moment, and perhaps some more.
//!
//! Something may move from one name to another while names are being listed: a disk is made from an
//! image that is then removed. So names are listed twice, and what counts is each name's newest
//! record of the first listing and all that the second one has beyond it: among them is the one that
//! was the newest in between. Pins are read between the two. One that was there, but is gone when it
//! would be listed, is of a session that has ended, and what that published the second listing has.

use crate::collection::{Pin, pin, seconds};
use crate::{RefKind, RefRecord, Store};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use std::collections::BTreeMap;

const REFS: &str = "refs";
/// Listings in which rows may have gaps before that is believed.
const ATTEMPTS: u32 = 4;
/// Records that are read at the same time.
const CONCURRENCY: usize = 16;

/// A pin as a listing showed it.
#[derive(Debug)]
pub(crate) struct ListedPin {
    pub(crate) meta: ObjectMeta,
    /// `None` when it cannot be read: then it may hold back anything.
    pub(crate) pin: Option<Pin>,
}

impl ListedPin {
    /// The record of garbage collection that the session has seen.
    pub(crate) fn sequence(&self) -> u64 {
        self.pin.as_ref().map_or(0, |pin| pin.sequence)
    }

    /// What the session does, for people.
    pub(crate) fn what(&self) -> String {
        match &self.pin {
            Some(pin) => pin.what.clone(),
            None => format!("{} (damaged)", self.meta.location),
        }
    }
}

/// How many seconds before `now`, the store's time, an object was written.
pub(crate) fn silent(meta: &ObjectMeta, now: u64) -> u64 {
    now.saturating_sub(seconds(meta))
}

/// A name's record.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) kind: RefKind,
    pub(crate) record: RefRecord,
    /// Whether it is the newest one.
    pub(crate) current: bool,
}

/// The newest record of a name that was removed.
#[derive(Debug)]
pub(crate) struct Removal {
    pub(crate) key: String,
    /// In Unix seconds of the store's clock.
    pub(crate) written: u64,
}

/// Names and pins.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) names: Vec<Named>,
    pub(crate) removals: Vec<Removal>,
    pub(crate) pins: Vec<ListedPin>,
    /// Names of which nobody can tell what they keep.
    pub(crate) doubts: Vec<Error>,
}

/// Reads all pins.
pub(crate) async fn pins(store: &Store) -> Result<Vec<ListedPin>> {
    let mut pins = Vec::new();
    for meta in pin::list(store).await? {
        let pin = match Pin::read(store, meta.location.as_ref()).await {
            Ok(pin) => Some(pin),
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
                tracing::warn!(pin = %meta.location, error = %e, "a pin cannot be read");
                None
            }
            Err(e) => return Err(e),
        };
        pins.push(ListedPin { meta, pin });
    }
    Ok(pins)
}

/// The records of each name, `refs/<kind>/<name>`: number, and when it was written.
type Rows = BTreeMap<String, Vec<(u64, u64)>>;

/// Takes a census.
pub(crate) async fn take(store: &Store) -> Result<Census> {
    let (before, _) = rows(store).await?;
    let mut census = Census { pins: pins(store).await?, ..Census::default() };
    let (mut after, mut strange) = rows(store).await?;
    for _ in 1..ATTEMPTS {
        if after.values().all(|row| gap(row).is_none()) {
            break;
        }
        // Records that were made while they were being listed leave gaps too.
        (after, strange) = rows(store).await?;
    }
    census.doubts.extend(strange.iter().map(|key| unknown(key)));
    let mut keys = Vec::new();
    for (row, numbers) in &after {
        if let Some(number) = gap(numbers) {
            census.doubts.push(Error::corrupt(format!(
                "{row}: the record {number} is missing; restore it from a backup"
            )));
        }
        let from = before.get(row).and_then(|numbers| numbers.last()).map_or(0, |last| last.0);
        let newest = numbers.last().copied();
        let wanted = numbers.iter().filter(|(number, _)| *number >= from);
        keys.extend(wanted.map(|(number, written)| {
            let current = newest.filter(|newest| newest.0 == *number).map(|_| *written);
            (format!("{row}/{number:020}"), current)
        }));
    }
    let refs = &store.refs();
    let mut reads = stream::iter(keys)
        .map(|(key, current)| async move { (refs.read_key(&key).await, key, current) })
        .buffer_unordered(CONCURRENCY);
    while let Some((read, key, current)) = reads.next().await {
        match read {
            Ok((kind, Some(record))) => {
                census.names.push(Named { kind, record, current: current.is_some() });
            }
            Ok((_, None)) => {
                census.removals.extend(current.map(|written| Removal { key, written }))
            }
            Err(e) => match e.kind() {
                ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::NotFound => {
                    census.doubts.push(e);
                }
                _ => return Err(e),
            },
        }
    }
    drop(reads);
    Ok(census)
}

/// Lists all records but the collections', and the keys that are none.
async fn rows(store: &Store) -> Result<(Rows, Vec<String>)> {
    let (mut rows, mut strange) = (Rows::new(), Vec::new());
    for meta in objects::list(store.backend(), REFS).await? {
        let key = meta.location.to_string();
        let mut parts = key.split('/').skip(1);
        let kind = parts.next().unwrap_or_default();
        if kind == RefKind::Gc.as_str() {
            continue;
        }
        let number = parts.nth(1).filter(|digits| digits.len() == 20 && parts.next().is_none());
        let known = RefKind::ALL.iter().any(|known| known.as_str() == kind);
        match (number.and_then(|digits| digits.parse().ok()), key.rsplit_once('/')) {
            (Some(number), Some((row, _))) if known => {
                rows.entry(row.to_owned()).or_default().push((number, seconds(&meta)));
            }
            _ => strange.push(key),
        }
    }
    rows.values_mut().for_each(|numbers| numbers.sort_unstable());
    Ok((rows, strange))
}

/// The first number that a row lacks.
fn gap(row: &[(u64, u64)]) -> Option<u64> {
    row.windows(2).find(|pair| pair[1].0 - pair[0].0 > 1).map(|pair| pair[0].0 + 1)
}

fn unknown(key: &str) -> Error {
    Error::unsupported(format!(
        "{key} is not a name's record as this build knows them; use a newer sojourn, or remove what \
         something else wrote"
    ))
}
