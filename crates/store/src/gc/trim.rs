//! Clearing away old records of names.
//!
//! The newest record of a name stays, unless it is of a removal that was 30 days ago. The others are of no
//! use once nobody can be about to follow one of them, and nobody wants a removed name back: a day after
//! they were superseded, or the grace period. Who writes over a removal, or wrote over a record that it
//! had read long before, looks whether that is still there: see [`Refs`](crate::Refs).

use super::census::Removal;
use super::sweep;
use crate::Store;
use crate::collection::seconds;
use block::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};
use object_store::ObjectMeta;
use std::collections::BTreeMap;

/// For how many seconds a record stays after it was superseded, at the least.
const KEPT: u64 = 86_400;
/// For how many seconds the record of a removal stays.
const REMEMBERED: u64 = 30 * 86_400;
/// Rows that are cleared at the same time.
const CONCURRENCY: usize = 16;

/// Deletes the records of removals that were long ago; returns how many. `now` is the store's time.
pub(crate) async fn forget(
    store: &Store,
    removals: &[Removal],
    now: u64,
    dry: bool,
) -> Result<u64> {
    let old = removals.iter().filter(|removal| now.saturating_sub(removal.written) > REMEMBERED);
    let old: Vec<String> = old.map(|removal| removal.key.clone()).collect();
    let count = old.len() as u64;
    if !dry {
        sweep::delete(store, old).await?;
    }
    Ok(count)
}

/// Deletes old records; returns how many. `now` is the store's time, `grace` for how many seconds what was
/// removed may be wanted back.
pub(crate) async fn trim(store: &Store, now: u64, grace: u64, dry: bool) -> Result<u64> {
    let kept = grace.max(KEPT);
    let mut rows: BTreeMap<String, BTreeMap<u64, ObjectMeta>> = BTreeMap::new();
    for meta in objects::list(store.backend(), "refs").await? {
        let key = meta.location.to_string();
        // Anything else is somebody else's.
        let Some((row, digits)) = key.rsplit_once('/') else { continue };
        if let (20, Ok(number)) = (digits.len(), digits.parse()) {
            rows.entry(row.to_owned()).or_default().insert(number, meta);
        }
    }
    let old: Vec<Vec<String>> = rows
        .values()
        .map(|row| superseded(row, now, kept).map(|meta| meta.location.to_string()).collect())
        .collect();
    let count = old.iter().map(|row| row.len() as u64).sum();
    if !dry {
        // Within a row one after the other: should it be stopped, nothing is missing in the middle.
        stream::iter(old)
            .map(|row| async move {
                for key in row {
                    objects::delete(store.backend(), &key).await?;
                }
                Ok(())
            })
            .buffer_unordered(CONCURRENCY)
            .try_for_each(|()| async { Ok::<_, Error>(()) })
            .await?;
    }
    Ok(count)
}

/// The records of a row that can go, from its start on: what was superseded long ago, and what lies
/// before a gap. Such a one was written by somebody who slept while the row was trimmed.
fn superseded(
    row: &BTreeMap<u64, ObjectMeta>,
    now: u64,
    kept: u64,
) -> impl Iterator<Item = &ObjectMeta> {
    let gap = row
        .keys()
        .rev()
        .zip(row.keys().rev().skip(1))
        .find(|(later, earlier)| *later - *earlier > 1)
        .map_or(0, |(_, earlier)| *earlier);
    row.iter()
        .zip(row.iter().skip(1))
        .take_while(move |((number, _), (_, next))| {
            **number <= gap || now.saturating_sub(seconds(next)) > kept
        })
        .map(|((_, meta), _)| meta)
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::path::Path;

    const NOW: u64 = 10_000_000;

    fn row(records: &[(u64, u64)]) -> BTreeMap<u64, ObjectMeta> {
        let meta = |number: u64, age: u64| ObjectMeta {
            location: Path::from(format!("refs/disk/a/{number:020}")),
            last_modified: std::time::UNIX_EPOCH
                .checked_add(std::time::Duration::from_secs(NOW - age))
                .unwrap()
                .into(),
            size: 1,
            e_tag: None,
            version: None,
        };
        records.iter().map(|(number, age)| (*number, meta(*number, *age))).collect()
    }

    fn gone(records: &[(u64, u64)]) -> Vec<u64> {
        let row = row(records);
        let numbers = superseded(&row, NOW, KEPT)
            .filter_map(|meta| meta.location.as_ref().rsplit_once('/')?.1.parse().ok());
        numbers.collect()
    }

    #[test]
    fn the_newest_record_stays_for_good_and_the_others_a_day_after_they_were_superseded() {
        let day = KEPT;
        assert_eq!(gone(&[(5, 99 * day)]), [0u64; 0]);
        assert_eq!(gone(&[(1, 9 * day), (2, 8 * day), (3, day / 2), (4, 10)]), [1]);
        assert_eq!(gone(&[(1, 9 * day), (2, 8 * day), (3, 7 * day)]), [1, 2]);
        // A clock that jumped back: rows are cleared from their start on only.
        assert_eq!(gone(&[(1, 9 * day), (2, 0), (3, 7 * day)]), [0u64; 0]);
    }

    #[test]
    fn what_lies_before_a_gap_goes_at_once() {
        assert_eq!(gone(&[(3, 0), (7, 5), (8, 3)]), [3]);
    }
}
