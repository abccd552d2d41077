//! All names and all pins as they were at one moment.
//!
//! Something may move from one name to another while names are being listed: a disk is made from an
//! image that is then removed. So names and pins are read between two listings of their keys, until
//! both show the same. Every change makes a new key, so that nothing changed in between.

use super::pin::{self, Pin};
use crate::object::ObjectKind;
use crate::{RefKind, RefRecord, Store, backend};
use block::{Error, ErrorKind, Result};
use object_store::ObjectMeta;
use std::collections::BTreeSet;
use std::time::Duration;

const REFS: &str = "refs";
/// Listings that may differ before the census is given up.
const ATTEMPTS: u32 = 12;
/// Rises with each attempt.
const PAUSE: Duration = Duration::from_millis(50);
/// What names objects that are kept.
const KINDS: [RefKind; 4] = [RefKind::Image, RefKind::Disk, RefKind::Snapshot, RefKind::Server];

/// A pin as a listing showed it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) meta: ObjectMeta,
    /// `None` when it cannot be read: then it may hold back anything.
    pub(crate) pin: Option<Pin>,
}

impl Seen {
    /// The record of garbage collection that the session has seen.
    pub(crate) fn sequence(&self) -> u64 {
        self.pin.as_ref().map_or(0, |pin| pin.sequence)
    }

    /// How many seconds before `now`, the store's time, it was written.
    pub(crate) fn silent(&self, now: u64) -> u64 {
        now.saturating_sub(seconds(&self.meta))
    }
}

/// When an object was written, in Unix seconds of the store's clock.
pub(crate) fn seconds(meta: &ObjectMeta) -> u64 {
    u64::try_from(meta.last_modified.timestamp()).unwrap_or(0)
}

/// Names and pins.
#[derive(Debug, Default)]
pub(crate) struct Census {
    pub(crate) refs: Vec<(RefKind, RefRecord)>,
    pub(crate) pins: Vec<Seen>,
    /// Names of which nobody can tell what they keep.
    pub(crate) doubts: Vec<Error>,
}

/// Reads all pins.
pub(crate) async fn pins(store: &Store) -> Result<Vec<Seen>> {
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
        pins.push(Seen { meta, pin });
    }
    Ok(pins)
}

/// Takes a census.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) when names change all the time; the store's.
pub(crate) async fn take(store: &Store) -> Result<Census> {
    let mut before = keys(store).await?;
    for attempt in 1..=ATTEMPTS {
        let mut census = Census { doubts: unknown(&before), ..Census::default() };
        for kind in KINDS {
            let listing = store.refs().list(kind).await?;
            census.refs.extend(listing.records.into_iter().map(|record| (kind, record)));
            census.doubts.extend(listing.damaged.into_iter().map(|bad| bad.error));
        }
        census.pins = pins(store).await?;
        let after = keys(store).await?;
        if before == after {
            return Ok(census);
        }
        before = after;
        tokio::time::sleep(PAUSE * attempt).await;
    }
    Err(Error::unavailable(
        "the names in the store change too fast to be collected now; try again at a quieter time",
    ))
}

/// The keys of all names and pins, but for the records of collections.
async fn keys(store: &Store) -> Result<BTreeSet<String>> {
    let collections = format!("{REFS}/{}/", RefKind::Gc);
    let mut keys = BTreeSet::new();
    for prefix in [REFS, ObjectKind::Pin.prefix()] {
        let listed = backend::list(store.backend(), prefix).await?;
        keys.extend(listed.into_iter().map(|meta| meta.location.to_string()));
    }
    keys.retain(|key| !key.starts_with(&collections));
    Ok(keys)
}

/// Names of kinds that this build does not know.
fn unknown(keys: &BTreeSet<String>) -> Vec<Error> {
    let known = |key: &str| {
        let kind = key.strip_prefix(REFS).and_then(|rest| rest.strip_prefix('/')?.split_once('/'));
        kind.is_none_or(|(kind, _)| KINDS.iter().any(|known| known.as_str() == kind))
    };
    let strange = keys.iter().find(|key| !known(key));
    let error = |key: &String| {
        Error::unsupported(format!(
            "{key} is a name of a kind that this build does not know; use a newer sojourn"
        ))
    };
    strange.map(error).into_iter().collect()
}
