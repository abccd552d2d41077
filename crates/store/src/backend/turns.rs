//! Reads of a directory in turn: each holds a thread while the disk works, and a disk has no use for
//! more of them at the same time than it can have in its queue.

use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult, MultipartUpload,
    ObjectMeta, ObjectStore, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions,
    Result,
};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::{AcquireError, Semaphore};

/// Reads at the same time: the depth of a SATA disk's queue.
const READS: usize = 32;
/// Listings at the same time. They have turns of their own, so that whoever reads what a listing
/// shows, while it goes on, waits for no other listing.
const LISTINGS: usize = 16;
/// A read of a whole object that is no longer keeps its turn to the last byte.
const SHORT: u64 = 1 << 20;

/// A directory that has few readers at the same time; others wait, the first come first.
#[derive(Debug)]
pub(crate) struct Turns {
    inner: LocalFileSystem,
    reads: Semaphore,
    listings: Arc<Semaphore>,
}

impl Turns {
    pub(crate) fn new(inner: LocalFileSystem) -> Self {
        let (reads, listings) = (Semaphore::new(READS), Semaphore::new(LISTINGS));
        Self { inner, reads, listings: Arc::new(listings) }
    }

    /// A listing from its turn on, which lasts as long as the listing.
    fn in_turn(
        &self,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let turn = Arc::clone(&self.listings).acquire_owned();
        let listing = turn.map(|turn| match turn {
            Ok(turn) => listing.inspect(move |_| _ = &turn).boxed(),
            Err(e) => stream::iter([Err(closed(e))]).boxed(),
        });
        listing.flatten_stream().boxed()
    }
}

/// Nobody closes the turns.
fn closed(error: AcquireError) -> Error {
    Error::Generic { store: "directory", source: error.into() }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

#[async_trait]
impl ObjectStore for Turns {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.inner.put_opts(location, payload, opts).await
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        self.inner.put_multipart_opts(location, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let _turn = self.reads.acquire().await.map_err(closed)?;
        let head = options.head;
        let answer = self.inner.get_opts(location, options).await?;
        if head || answer.range.end - answer.range.start > SHORT {
            return Ok(answer);
        }
        let (meta, range) = (answer.meta.clone(), answer.range.clone());
        let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
        let body = answer.bytes().await?;
        let payload = GetResultPayload::Stream(stream::iter([Ok(body)]).boxed());
        Ok(GetResult { payload, meta, range, attributes, extensions })
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let _turn = self.reads.acquire().await.map_err(closed)?;
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.inner.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.in_turn(self.inner.list(prefix))
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.in_turn(self.inner.list_with_offset(prefix, offset))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let _turn = self.listings.acquire().await.map_err(closed)?;
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::TryStreamExt;
    use futures::future::{join_all, try_join_all};
    use object_store::ObjectStoreExt;
    use std::fs;

    /// Threads of a runtime whose threads have this name; those that wait for work are among them.
    fn threads(name: &str) -> usize {
        let named = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter_map(named).filter(|comm| comm.trim() == name).count()
    }

    #[test]
    fn many_readers_take_few_threads_and_each_gets_what_it_asked_for() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("turns-test")
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
        let (path, bytes) = (Path::from("a"), crate::testing::noise(1, 100_000));
        let ranges: Vec<_> = (0..1000).map(|at| at * 100..at * 100 + 100).collect();
        runtime.block_on(async {
            turns.put(&path, bytes.clone().into()).await.unwrap();
            let reads =
                ranges.iter().map(|range| turns.get_ranges(&path, std::slice::from_ref(range)));
            assert_eq!(try_join_all(reads).await.unwrap().concat().concat(), bytes);
            let whole = || async { turns.get(&path).await.unwrap().bytes().await.unwrap() };
            let all = join_all((0..1000).map(|_| whole())).await;
            assert!(all.iter().all(|found| *found == bytes));
            let listings = (0..1000).map(|_| turns.list(None).try_collect::<Vec<_>>());
            assert!(try_join_all(listings).await.unwrap().iter().all(|found| found.len() == 1));
        });
        let threads = threads("turns-test");
        assert!((2..=READS + LISTINGS + 2).contains(&threads), "{threads}");
    }

    #[tokio::test]
    async fn a_listing_that_goes_on_keeps_nobody_from_reading_what_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(LocalFileSystem::new_with_prefix(dir.path()).unwrap());
        for name in ["a", "b"] {
            turns.put(&Path::from(name), "x".into()).await.unwrap();
        }
        let read = |meta: ObjectMeta| async { turns.get(&{ meta }.location).await?.bytes().await };
        let listings =
            (0..3 * LISTINGS).map(|_| turns.list(None).and_then(read).try_collect::<Vec<_>>());
        let all = try_join_all(listings).await.unwrap();
        assert!(all.iter().all(|found| found.len() == 2));
    }
}
