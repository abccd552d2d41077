//! The names of the store and what they mean, as last looked up, for all clients together.

use block::Result;
use futures::{StreamExt, TryStreamExt, stream};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{KeyedRecord, RefKey, RefKind, RefRecord, Store};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The kinds of names that clients may have rights on.
const KINDS: [RefKind; 3] = [RefKind::Image, RefKind::Disk, RefKind::Snapshot];
/// Records that are read at the same time.
const CONCURRENCY: usize = 16;

/// The names of a store. Only records that are new since the last look are read.
#[derive(Default)]
pub(crate) struct StoreNames {
    held: Mutex<CachedNames>,
}

#[derive(Default)]
struct CachedNames {
    known: Arc<KnownNames>,
    looked: Option<Instant>,
}

/// What was known at one time.
#[derive(Default)]
pub(crate) struct KnownNames {
    rows: HashMap<(RefKind, String), Arc<KeyedRecord>>,
}

impl KnownNames {
    /// What the names of a kind mean; removed ones mean nothing.
    pub(crate) fn records(&self, kind: RefKind) -> impl Iterator<Item = &RefRecord> {
        self.rows
            .values()
            .filter(move |record| record.kind == kind)
            .filter_map(|r| r.record.as_ref())
    }

    /// The name for which `row` stands in keys, also of one that was removed.
    pub(crate) fn name(&self, kind: RefKind, row: &str) -> Option<&str> {
        // The map's keys are owned; a lookup by parts would need an owned one as well.
        self.rows.get(&(kind, row.to_owned())).map(|record| record.name.as_str())
    }
}

impl StoreNames {
    /// The names as they were at most `age` ago.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed. A record that cannot be read is left out.
    pub(crate) async fn get(&self, store: &Store, age: Duration) -> Result<Arc<KnownNames>> {
        let mut held = self.held.lock().await;
        if held.looked.is_some_and(|looked| looked.elapsed() < age) {
            return Ok(Arc::clone(&held.known));
        }
        let began = Instant::now();
        let mut rows = HashMap::new();
        let mut changed = Vec::new();
        for kind in KINDS {
            for (row, sequence) in store.refs().rows_of(kind).await? {
                match held.known.rows.get(&(kind, row.clone())) {
                    Some(known) if known.sequence == sequence => {
                        rows.insert((kind, row), Arc::clone(known));
                    }
                    _ => changed.push(RefKey { kind, row, sequence }),
                }
            }
        }
        let refs = store.refs();
        let read: Vec<_> = stream::iter(changed)
            .map(|key| {
                let refs = refs.clone();
                async move {
                    match refs.keyed(&key).await {
                        Ok(record) => Ok(Some(((key.kind, key.row), Arc::new(record)))),
                        Err(error) if error.kind() == block::ErrorKind::Unavailable => Err(error),
                        Err(error) => {
                            tracing::debug!(key = key.text(), %error, "a name is left out");
                            Ok(None)
                        }
                    }
                }
            })
            .buffer_unordered(CONCURRENCY)
            .try_collect()
            .await?;
        rows.extend(read.into_iter().flatten());
        held.known = Arc::new(KnownNames { rows });
        held.looked = Some(began);
        Ok(Arc::clone(&held.known))
    }
}
