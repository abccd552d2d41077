//! A directory that may be a mount point: while nothing is mounted there, or there is not even a directory, it is
//! away, and not an empty store.
//!
//! A store always has its settings. Where they are missing, what is not there says nothing, and nothing is
//! written: it would lie below the mount point.

use super::layer::object_layer;
use super::local;
use async_trait::async_trait;
use block::{ErrorKind, offload};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta,
    ObjectStore, ObjectStoreExt, PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use tokio::sync::Mutex;

/// What every store has.
const SETTINGS: &str = "store.json";

/// A store in a directory that may be away.
#[derive(Debug, Clone)]
pub(crate) struct Mounted {
    /// The directory, since it was there first.
    inner: Arc<OnceLock<Arc<dyn ObjectStore>>>,
    away: AwayDirectory,
    /// Had by what waits for the file system beside `inner`: where that hangs, one thread hangs with it.
    turn: Arc<Mutex<()>>,
}

impl Mounted {
    /// The store in the directory `place`, which need not be there now.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) when it is no directory, [`Denied`](ErrorKind::Denied) when it may not be
    /// looked at.
    pub(crate) fn at(place: &str) -> block::Result<Self> {
        let inner = OnceLock::new();
        match local(place) {
            Ok(directory) => drop(inner.set(directory)),
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Unavailable) => {
                tracing::warn!(store = place, error = %e, "the store is away");
            }
            Err(e) => return Err(e),
        }
        let (inner, away) = (Arc::new(inner), AwayDirectory(place.to_owned()));
        Ok(Self { inner, away, turn: Arc::default() })
    }

    /// Does work that waits for the file system, one piece after the other.
    async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> block::Result<T> + Send + 'static,
    ) -> block::Result<T> {
        let turn = Arc::clone(&self.turn).lock_owned().await;
        offload(move || {
            // Also of a caller that has gone away meanwhile.
            let _turn = turn;
            work()
        })
        .await
    }

    /// The store, if there is its directory.
    async fn store(&self) -> Result<&Arc<dyn ObjectStore>> {
        if let Some(store) = self.inner.get() {
            return Ok(store);
        }
        let (place, inner) = (self.away.0.clone(), Arc::clone(&self.inner));
        let found = self.in_turn(move || {
            // Who had the turn before may have found it.
            inner.get().cloned().map_or_else(|| local(&*place), Ok)
        });
        let found = found.await.map_err(|_| self.away.error())?;
        Ok(self.inner.get_or_init(|| found))
    }

    /// Fails, in a way that may pass, while the store is away.
    async fn must_be_there(&self) -> Result<()> {
        match self.store().await?.head(&Path::from(SETTINGS)).await {
            Err(Error::NotFound { .. }) => Err(self.away.error()),
            other => other.map(|_| ()),
        }
    }

    /// Fails while the store is away, and when it does not hold an object that was just put.
    async fn must_still_hold(&self, location: &Path, was_put: bool) -> Result<()> {
        self.must_be_there().await?;
        if !was_put {
            return Ok(());
        }
        match self.store().await?.head(location).await {
            // It went away and came back.
            Err(Error::NotFound { .. }) => Err(self.away.error()),
            other => other.map(drop),
        }
    }

    /// Removes what was written below the mount point, as far as that can be done: nobody looks for it there.
    async fn take_away(&self, location: &Path) {
        let (place, name) = (PathBuf::from(&self.away.0), PathBuf::from(location.as_ref()));
        let removed = self.in_turn(move || {
            // Only where it is sure that the store is away: what is there else may be the store's.
            match std::fs::symlink_metadata(place.join(SETTINGS)) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                _ => return Ok(()),
            }
            let _ = std::fs::remove_file(place.join(&name));
            // The directories that were made for it, while they are empty.
            for directory in name.ancestors().skip(1).filter(|above| !above.as_os_str().is_empty())
            {
                if std::fs::remove_dir(place.join(directory)).is_err() {
                    break;
                }
            }
            Ok(())
        });
        let _ = removed.await;
    }

    /// What is said to be missing, in a store that is there.
    async fn judged<T>(&self, location: &Path, answer: Result<T>) -> Result<T> {
        if matches!(answer, Err(Error::NotFound { .. })) && location.as_ref() != SETTINGS {
            self.must_be_there().await?;
        }
        answer
    }
}

impl fmt::Display for Mounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.away.0)
    }
}

object_layer!(Mounted);

#[async_trait]
impl super::layer::ObjectLayer for Mounted {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        match self.inner.get() {
            Some(inner) => &**inner,
            None => &self.away,
        }
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.must_be_there().await?;
        let put = self.store().await?.put_opts(location, payload, opts).await;
        // It may have gone away meanwhile: then the object lies below the mount point, and nobody finds it again.
        if let Err(away) = self.must_still_hold(location, put.is_ok()).await {
            if put.is_ok() {
                self.take_away(location).await;
            }
            return Err(away);
        }
        put
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let store = self.store().await?;
        self.judged(location, store.get_opts(location, options).await).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let store = self.store().await?;
        self.judged(location, store.get_ranges(location, ranges).await).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listed = async move {
            let mut below = this.store().await?.list(prefix.as_ref());
            if let Some(first) = below.next().await {
                return Ok(stream::iter([first]).chain(below).boxed());
            }
            // It may have gone away meanwhile: that is looked at afterwards.
            this.must_be_there().await.map(|()| stream::empty().boxed())
        };
        stream::once(listed).try_flatten().boxed()
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let deleted = async move {
            let below = this.store().await?.delete_stream(locations);
            let judged = move |deleted| {
                let this = this.clone();
                async move { this.judged(&Path::default(), deleted).await }
            };
            Ok::<_, Error>(below.then(judged))
        };
        stream::once(deleted).try_flatten().boxed()
    }
}

/// A directory that is not there: nothing of it can be had.
#[derive(Debug, Clone)]
struct AwayDirectory(String);

impl AwayDirectory {
    fn error(&self) -> Error {
        let why = format!("there is no store in {} now; is it mounted?", self.0);
        let source = Box::new(io::Error::new(io::ErrorKind::NotConnected, why));
        Error::Generic { store: "directory", source }
    }
}

impl fmt::Display for AwayDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[async_trait]
impl ObjectStore for AwayDirectory {
    async fn put_opts(&self, _: &Path, _: PutPayload, _: PutOptions) -> Result<PutResult> {
        Err(self.error())
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(self.error())
    }

    async fn get_opts(&self, _: &Path, _: GetOptions) -> Result<GetResult> {
        Err(self.error())
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        locations.map(move |location| location.and_then(|_| Err(this.error()))).boxed()
    }

    fn list(&self, _: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        stream::iter([Err(self.error())]).boxed()
    }

    async fn list_with_delimiter(&self, _: Option<&Path>) -> Result<ListResult> {
        Err(self.error())
    }

    async fn copy_opts(&self, _: &Path, _: &Path, _: CopyOptions) -> Result<()> {
        Err(self.error())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{ScriptedStore, StoreCall, StoreFault};
    use crate::{create_local, put_new};

    #[tokio::test]
    async fn what_is_put_while_the_share_goes_away_is_not_taken_for_stored() {
        for comes_back in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let (path, away) = (dir.path().join("share"), dir.path().join("away"));
            let place = path.display().to_string();
            let made = create_local(&path).unwrap();
            put_new(&*made, SETTINGS, "{}".into()).await.unwrap();
            let inner = OnceLock::new();
            let (from, to) = (path.clone(), away.clone());
            let vanish = move |call: &StoreCall| {
                if matches!(call, StoreCall::Put(_)) {
                    std::fs::rename(&from, &to).unwrap();
                    std::fs::create_dir(&from).unwrap();
                }
                StoreFault::None
            };
            let (from, to) = (path.clone(), away.clone());
            let come_back = move |_: &Path| {
                if comes_back {
                    std::fs::remove_dir_all(&from).unwrap();
                    std::fs::rename(&to, &from).unwrap();
                }
            };
            inner.set(Arc::new(ScriptedStore::telling(made, vanish, come_back)) as _).unwrap();
            let (inner, none) = (Arc::new(inner), AwayDirectory(place.clone()));
            let mounted = Mounted { inner, away: none, turn: Arc::default() };
            let put = mounted.put(&Path::from("packs/ab/one"), "x".into()).await;
            says(&put.unwrap_err(), &place);
            assert!(!path.join("packs").exists() && !away.join("packs").exists());
            assert_eq!(path.join(SETTINGS).exists(), comes_back);
        }
    }

    fn says(error: &Error, place: &str) {
        assert!(matches!(error, Error::Generic { .. }), "{error}");
        let text = format!("there is no store in {place} now; is it mounted?");
        assert!(error.to_string().contains(&text), "{error}");
    }

    #[tokio::test]
    async fn a_mount_point_that_is_empty_or_gone_is_a_store_that_is_away_and_is_not_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join("share"), dir.path().join("away"));
        let place = path.display().to_string();
        // It is not there when it is opened; then it comes, and goes again.
        let mounted = Mounted::at(&place).unwrap();
        let name = Path::from("refs/disk/alice/1");
        let list = || mounted.list(Some(&Path::from("refs/disk"))).try_collect::<Vec<_>>();
        let (range, put) = (0..1, || mounted.put(&name, "x".into()));
        for is_there in [false, true, false, true] {
            match (is_there, away.exists()) {
                (true, false) => {
                    let made = create_local(&path).unwrap();
                    put_new(&*made, SETTINGS, "{}".into()).await.unwrap();
                    assert!(matches!(mounted.get(&name).await, Err(Error::NotFound { .. })));
                    assert!(list().await.unwrap().is_empty());
                    put().await.unwrap();
                }
                (true, true) => {
                    std::fs::remove_dir(&path).unwrap();
                    std::fs::rename(&away, &path).unwrap();
                }
                (false, _) if path.exists() => std::fs::rename(&path, &away).unwrap(),
                (false, _) => {}
            }
            if is_there {
                assert_eq!(list().await.unwrap().len(), 1);
                assert_eq!(mounted.get(&name).await.unwrap().bytes().await.unwrap(), "x");
                continue;
            }
            for is_empty in [false, true] {
                if is_empty {
                    std::fs::create_dir(&path).unwrap();
                }
                says(&mounted.get(&name).await.unwrap_err(), &place);
                let one = std::slice::from_ref(&range);
                says(&mounted.get_ranges(&name, one).await.unwrap_err(), &place);
                says(&list().await.unwrap_err(), &place);
                says(&put().await.unwrap_err(), &place);
                says(&mounted.delete(&name).await.unwrap_err(), &place);
            }
            assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "written below");
            if !away.exists() {
                std::fs::remove_dir(&path).unwrap();
            }
        }
        let error = Mounted::at("/dev/null").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    }
}
