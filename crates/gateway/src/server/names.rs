//! The names of the store and what they mean, as last looked up, for all clients together.

use block::Result;
use futures::{StreamExt, TryStreamExt, future, stream};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{KeyedRecord, RefKey, RefKind, RefRecord, Store};
use tokio::sync::Mutex;
use tokio::time::Instant;

/// The kinds of names that clients may have rights on.
const KINDS: [RefKind; 5] =
    [RefKind::Image, RefKind::Disk, RefKind::Snapshot, RefKind::Parcel, RefKind::Machine];
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
    /// When somebody had to know them as they are, and they were looked up for that.
    forced: Option<Instant>,
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

    /// The newest record of a row, as last looked up; also of a name that was removed.
    pub(crate) fn record(&self, kind: RefKind, row: &str) -> Option<&Arc<KeyedRecord>> {
        self.rows.get(&(kind, row.to_owned()))
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
        held.look(store).await
    }

    /// The names as they are after this was asked: at once, unless that was done for somebody within the last `pause`.
    ///
    /// # Errors
    /// As for [`get`](Self::get).
    pub(crate) async fn now(&self, store: &Store, pause: Duration) -> Result<Arc<KnownNames>> {
        let asked = Instant::now();
        loop {
            let until = {
                let mut held = self.held.lock().await;
                if held.looked.is_some_and(|looked| looked > asked) {
                    return Ok(Arc::clone(&held.known));
                }
                match held.forced.map(|forced| forced + pause) {
                    Some(until) if until > Instant::now() => until,
                    _ => {
                        held.forced = Some(Instant::now());
                        return held.look(store).await;
                    }
                }
            };
            tokio::time::sleep_until(until).await;
        }
    }
}

impl CachedNames {
    /// Looks them up. Only records that are new since the last look are read.
    async fn look(&mut self, store: &Store) -> Result<Arc<KnownNames>> {
        let began = Instant::now();
        let mut rows = HashMap::new();
        let mut changed = Vec::new();
        let refs = store.refs();
        let listed = KINDS.map(|kind| {
            let refs = refs.clone();
            async move { Ok::<_, block::Error>((kind, refs.rows_of(kind).await?)) }
        });
        for (kind, listed) in future::try_join_all(listed).await? {
            for (row, sequence) in listed {
                match self.known.rows.get(&(kind, row.clone())) {
                    Some(known) if known.sequence == sequence => {
                        rows.insert((kind, row), Arc::clone(known));
                    }
                    _ => changed.push(RefKey { kind, row, sequence }),
                }
            }
        }
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
        self.known = Arc::new(KnownNames { rows });
        self.looked = Some(began);
        Ok(Arc::clone(&self.known))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use object_store::memory::InMemory;
    use store::{RefBody, testing};

    fn body() -> RefBody {
        RefBody { manifest: None, size: 4096, created: 1, labels: [].into() }
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_to_know_the_names_as_they_are_waits_only_behind_others_who_had_to() {
        const PAUSE: Duration = Duration::from_secs(1);
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let names = StoreNames::default();
        let count = |known: &KnownNames| known.records(RefKind::Disk).count();
        assert_eq!(count(&names.get(&store, PAUSE).await.unwrap()), 0);
        let began = Instant::now();
        store.refs().create(RefKind::Disk, "one", body()).await.unwrap();
        assert_eq!(count(&names.get(&store, PAUSE).await.unwrap()), 0, "as a moment ago");
        assert_eq!(count(&names.now(&store, PAUSE).await.unwrap()), 1);
        assert_eq!(began.elapsed(), Duration::ZERO);
        store.refs().create(RefKind::Disk, "two", body()).await.unwrap();
        let (first, second) = tokio::join!(names.now(&store, PAUSE), names.now(&store, PAUSE));
        assert_eq!((count(&first.unwrap()), count(&second.unwrap())), (2, 2));
        assert_eq!(began.elapsed(), PAUSE, "one look for both");
    }
}
