//! Reads of a directory in turn: each holds a thread while the disk works, and hundreds of clients that
//! come at once are not to have hundreds of threads.
//!
//! On a disk with one arm reads of ranges, that is of chunks, go in the order that suits [it](super::arm).
//! What the page cache has does not wait for the disk.
//!
//! A read that hangs, on a network file system, gives its turn back after a while, and keeps its thread: the
//! others are not to hang with it. So does one that nobody waits for any more. How many threads hang is bounded by
//! the [directory](super::directory).

use super::arm::{ArmQueue, DiskReadOrder};
use super::backend_reads::BackendReadMeter;
use super::directory::Directory;
use super::layer::object_layer;
use async_trait::async_trait;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryFutureExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, ListResult, ObjectMeta, ObjectStore, Result,
};
use std::fmt;
use std::ops::Range;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;

/// Reads at the same time: as many as a server asks for by itself.
const READS: usize = 64;
/// Listings at the same time. They have turns of their own, so that who reads what is listed waits for
/// no listing.
const LISTINGS: usize = 16;
/// A read of a whole object that is no longer keeps its turn to the last byte.
const SHORT: u64 = 1 << 20;
/// A turn lasts no longer.
const LATE: Duration = Duration::from_secs(3);

/// A directory that has few readers at the same time; others wait, the first come first.
#[derive(Debug)]
pub(crate) struct Turns {
    inner: Directory,
    reads: Semaphore,
    listings: Arc<Semaphore>,
    arm: Option<Arc<ArmQueue>>,
    meter: Arc<BackendReadMeter>,
}

impl Turns {
    /// Reads go in the order in which they come.
    pub(crate) fn new(inner: Directory) -> Self {
        let (reads, listings) = (Semaphore::new(READS), Semaphore::new(LISTINGS));
        Self { inner, reads, listings: Arc::new(listings), arm: None, meter: Arc::default() }
    }

    /// The same, with reads of ranges in this order.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the order is by a profile that describes no disk.
    pub(crate) fn ordered(self, order: &DiskReadOrder) -> block::Result<Self> {
        let arm = ArmQueue::of(self.inner.root(), order)?;
        Ok(Self { arm, ..self })
    }

    /// The directory itself.
    pub(crate) fn directory(&self) -> &Directory {
        &self.inner
    }

    /// What it reads.
    pub(crate) fn meter(&self) -> Arc<BackendReadMeter> {
        Arc::clone(&self.meter)
    }

    /// Ranges of an object, in the order of the disk's arm.
    async fn in_order(
        &self,
        arm: &Arc<ArmQueue>,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Bytes>> {
        let placed = match self.inner.read_or_place(location, ranges).await? {
            Ok(parts) => return Ok(parts),
            Err(placed) => placed,
        };
        let turn = arm.turn(placed.position, placed.span()).await;
        let mut read = pin!(placed.read());
        match tokio::time::timeout(LATE, &mut read).await {
            Ok(done) => done,
            Err(_) => {
                drop(turn);
                read.await
            }
        }
    }

    /// A whole listing in its turn: who asks for one wants all of it.
    fn listing(
        &self,
        listing: BoxStream<'static, Result<ObjectMeta>>,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        let turns = Arc::clone(&self.listings);
        let all = async move { in_turn(&turns, listing.try_collect::<Vec<_>>()).await };
        all.map_ok(|all| stream::iter(all).map(Ok)).try_flatten_stream().boxed()
    }
}

/// Works in a turn, which ends early when the work is [`LATE`].
async fn in_turn<T>(turns: &Semaphore, work: impl Future<Output = Result<T>>) -> Result<T> {
    // Nobody closes them.
    let closed =
        |e: tokio::sync::AcquireError| Error::Generic { store: "directory", source: e.into() };
    let turn = turns.acquire().await.map_err(closed)?;
    let mut work = pin!(work);
    match tokio::time::timeout(LATE, &mut work).await {
        Ok(done) => done,
        Err(_) => {
            drop(turn);
            work.await
        }
    }
}

impl fmt::Display for Turns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.inner, f)
    }
}

object_layer!(Turns);

#[async_trait]
impl super::layer::ObjectLayer for Turns {
    type Below = Directory;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let work = async {
            let head = options.head;
            let read = self.meter.begin();
            let answer = self.inner.get_opts(location, options).await?;
            if head || answer.range.end - answer.range.start > SHORT {
                return Ok(answer);
            }
            let (meta, range) = (answer.meta.clone(), answer.range.clone());
            let (attributes, extensions) = (answer.attributes.clone(), answer.extensions.clone());
            let body = answer.bytes().await?;
            read.succeeded();
            let payload = GetResultPayload::Stream(stream::iter([Ok(body)]).boxed());
            Ok(GetResult { payload, meta, range, attributes, extensions })
        };
        in_turn(&self.reads, work).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let read = self.meter.begin();
        let parts = match &self.arm {
            Some(arm) => in_turn(&self.reads, self.in_order(arm, location, ranges)).await?,
            None => in_turn(&self.reads, self.inner.get_ranges(location, ranges)).await?,
        };
        read.succeeded();
        Ok(parts)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.listing(self.inner.list(prefix))
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        in_turn(&self.listings, self.inner.list_with_delimiter(prefix)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::THREADS;
    use crate::patient::{Patience, Patient};
    use block::conformance::Sequence;
    use futures::TryStreamExt;
    use futures::future::{join_all, try_join_all};
    use object_store::ObjectStoreExt;
    use std::fs;
    use std::path::PathBuf;

    /// Threads of a runtime whose threads have this name; those that wait for work are among them.
    fn threads(name: &str) -> usize {
        let named = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm")).ok();
        let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
        tasks.filter_map(named).filter(|comm| comm.trim() == name).count()
    }

    /// A pipe in `dir`: whoever opens it waits until somebody writes to it.
    fn hanging(dir: &std::path::Path) -> (PathBuf, Path) {
        let pipe = dir.join("hangs");
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        (pipe, Path::from("hangs"))
    }

    /// Lets those go who wait for a pipe.
    fn let_go(runtime: tokio::runtime::Runtime, pipe: &std::path::Path) {
        let writer = fs::OpenOptions::new().read(true).write(true).open(pipe).unwrap();
        runtime.shutdown_timeout(Duration::from_secs(10));
        drop(writer);
    }

    #[tokio::test]
    async fn each_of_many_readers_gets_what_it_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Directory::new(dir.path().into()).unwrap());
        let (path, bytes) = (Path::from("a"), Sequence::new(1).bytes(100_000));
        let ranges: Vec<_> = (0..1000).map(|at| at * 100..at * 100 + 100).collect();
        turns.put(&path, bytes.clone().into()).await.unwrap();
        let reads = ranges.iter().map(|range| turns.get_ranges(&path, std::slice::from_ref(range)));
        assert_eq!(try_join_all(reads).await.unwrap().concat().concat(), bytes);
        let whole = || async { turns.get(&path).await.unwrap().bytes().await.unwrap() };
        let all = join_all((0..1000).map(|_| whole())).await;
        assert!(all.iter().all(|found| *found == bytes));
        let listings = (0..1000).map(|_| turns.list(None).try_collect::<Vec<_>>());
        assert!(try_join_all(listings).await.unwrap().iter().all(|found| found.len() == 1));
    }

    #[test]
    fn only_as_many_reads_take_a_thread_as_there_are_turns() {
        // The clock stands: no turn ends.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .thread_name("turns-test")
            .enable_all()
            .start_paused(true)
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Directory::new(dir.path().into()).unwrap());
        let (pipe, hanging) = hanging(dir.path());
        let pending = runtime.block_on(async {
            let one = 0..1;
            let reads = (0..500).map(|_| turns.get_ranges(&hanging, std::slice::from_ref(&one)));
            futures::poll!(pin!(join_all(reads))).is_pending()
        });
        // A thread has its name a little later.
        for _ in 0..60_000 {
            if threads("turns-test") >= READS {
                break;
            }
            std::thread::yield_now();
        }
        let threads = threads("turns-test");
        let_go(runtime, &pipe);
        assert_eq!((pending, threads), (true, READS));
    }

    #[test]
    fn reads_that_hang_keep_nobody_from_reading_what_answers() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Directory::new(dir.path().into()).unwrap());
        let (pipe, hanging) = hanging(dir.path());
        runtime.block_on(async {
            turns.put(&Path::from("answers"), "it does".into()).await.unwrap();
            let hang =
                (0..=READS).map(|_| turns.get_ranges(&hanging, std::slice::from_ref(&(0..1))));
            let found = async { turns.get(&Path::from("answers")).await.unwrap().bytes().await };
            tokio::select! {
                biased;
                _ = join_all(hang) => panic!("they hang"),
                found = found => assert_eq!(found.unwrap(), "it does"),
            }
        });
        let_go(runtime, &pipe);
    }

    #[test]
    fn attempts_at_what_hangs_leave_threads_to_the_rest_of_the_process() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .max_blocking_threads(THREADS + 2)
            .enable_all()
            .build()
            .unwrap();
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Directory::new(dir.path().into()).unwrap());
        let (pipe, hanging) = hanging(dir.path());
        let read = Duration::from_millis(200);
        let patience = Patience { give_up: Duration::from_secs(2), read, write: read };
        let patient = Patient::new(Arc::new(turns), patience);
        let flushed = runtime.block_on(async {
            let get = || async { patient.get(&hanging).await.map(drop) };
            // Each tries again several times, and leaves a read behind each time.
            for read in join_all((0..READS).map(|_| get())).await {
                read.unwrap_err();
            }
            tokio::time::timeout(Duration::from_secs(60), block::offload(|| Ok(()))).await
        });
        let_go(runtime, &pipe);
        assert!(flushed.is_ok(), "no thread is left for what has nothing to do with the directory");
    }

    #[tokio::test]
    async fn a_listing_that_goes_on_keeps_nobody_from_reading_what_it_shows() {
        let dir = tempfile::tempdir().unwrap();
        let turns = Turns::new(Directory::new(dir.path().into()).unwrap());
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
