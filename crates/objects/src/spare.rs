//! A directory whose file system is full: what frees room, and what says who is at work, can be written
//! all the same.
//!
//! To remove a name or to collect garbage, small objects are written first. For those some room is kept
//! by a file of nothing ([`Reserve`]), which is given up when one finds none. What holds content (packs,
//! segments, manifests) is not written while that room is not there.

use super::layer::object_layer;
use super::requests::io_cause;
use super::turns::Turns;
use async_trait::async_trait;
use block::fs::FsPath;
use block::reserve::Reserve;
use bytes::Bytes;
use object_store::path::Path;
use object_store::{Error, ObjectStore, PutOptions, PutPayload, PutResult, Result};
use std::fmt;
use std::io::ErrorKind;
use std::ops::Range;
use std::sync::Arc;

/// The file, in the directory of the store. No listing shows it, as it is called like one that is being
/// written.
pub(super) const FILE: &str = "reserve#0";

/// Where the small objects are that must be written.
const RECORDS: [&str; 4] = ["refs", "pins", "condemned", "servers"];

/// A directory with some room kept in it.
#[derive(Debug)]
pub(super) struct RoomyDirectory {
    inner: Turns,
    reserve: Arc<Reserve>,
}

impl RoomyDirectory {
    /// The directory `inner` with this reserve in it.
    pub(super) fn new(inner: Turns, reserve: Reserve) -> Self {
        Self { inner, reserve: Arc::new(reserve) }
    }

    /// Makes sure that the room is kept; `false` when there is not enough for that. Where nothing can
    /// be made, what is to be written finds out why.
    async fn keep(&self) -> bool {
        if self.reserve.is_kept() {
            return true;
        }
        let reserve = Arc::clone(&self.reserve);
        let keep = move || Ok(reserve.keep().unwrap_or(true));
        self.inner.directory().work(keep).await.unwrap_or(true)
    }

    async fn give_up(&self) -> bool {
        let reserve = Arc::clone(&self.reserve);
        self.inner.directory().work(move || Ok(reserve.give_up())).await.unwrap_or(false)
    }
}

/// The reserve of a store in `directory`.
pub(super) fn reserve(directory: &FsPath) -> Reserve {
    Reserve::new(&directory.join(FILE))
}

fn is_record(location: &Path) -> bool {
    location.parts().next().is_some_and(|first| RECORDS.contains(&first.as_ref()))
}

fn is_full(error: &Error) -> bool {
    matches!(io_cause(error), Some(ErrorKind::StorageFull | ErrorKind::QuotaExceeded))
}

/// What becomes of content where the room is not kept.
fn full() -> Error {
    let why = "what is left is kept for records";
    Error::Generic {
        store: "directory",
        source: std::io::Error::new(ErrorKind::StorageFull, why).into(),
    }
}

impl fmt::Display for RoomyDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

object_layer!(RoomyDirectory);

#[async_trait]
impl super::layer::ObjectLayer for RoomyDirectory {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let kept = self.keep().await;
        if !is_record(location) {
            return match kept {
                true => self.below().put_opts(location, payload, opts).await,
                false => Err(full()),
            };
        }
        match self.below().put_opts(location, payload.clone(), opts.clone()).await {
            Err(e) if is_full(&e) && self.give_up().await => {
                self.below().put_opts(location, payload, opts).await
            }
            other => other,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        self.below().get_ranges(location, ranges).await
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Created, list_all, local, put_content, put_new, sweep_staging};
    use super::*;
    use std::time::Duration;

    #[tokio::test]
    async fn the_reserve_is_made_with_the_first_object_and_is_no_object_nor_a_leftover() {
        let dir = tempfile::tempdir().unwrap();
        let backend = local(dir.path()).unwrap();
        let created = put_new(&*backend, "refs/disk/a/1", Bytes::from_static(b"x")).await;
        assert_eq!(created.unwrap(), Created::Ours);
        let file = dir.path().join(FILE);
        assert!(file.exists());
        assert_eq!(list_all(&*backend).await.unwrap().len(), 1);
        let swept = sweep_staging(dir.path(), Duration::ZERO, false).unwrap();
        assert_eq!(swept.objects, 0);
        assert!(file.exists());
    }

    #[tokio::test]
    async fn where_the_reserve_cannot_be_made_everything_is_written_all_the_same() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join(FILE)).unwrap();
        let backend = local(dir.path()).unwrap();
        put_content(&*backend, "packs/a", Bytes::from_static(b"x"), 1).await.unwrap();
        put_new(&*backend, "refs/disk/a/1", Bytes::from_static(b"x")).await.unwrap();
    }
}
