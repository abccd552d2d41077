//! A home in a temporary directory, over a store in memory.

use async_trait::async_trait;
use block::conformance::Sequence;
use block::{BLOCK, Device, Durability, Error, ErrorKind, Extent, Memory, Result, Span, ZeroMode};
use bytes::Bytes;
use cache::{Cache, Config, PolicyKind};
use disk::{CreateOptions, Disk, DiskInfo, Disks, Image, Mode, Room, RoomLayer};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, PutOptions, PutPayload, PutResult,
    Result as BackendResult,
};
use objects::layer::{object_layer, ranges_by_get};
use objects::testing::Failing;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use store::testing;
use store::{RefBody, RefKind, Store, import};

pub(crate) struct Home {
    pub(crate) directory: tempfile::TempDir,
    /// Lets every write through until a test says otherwise.
    pub(crate) backend: Arc<Failing>,
    pub(crate) store: Store,
    pub(crate) disks: Disks,
    seed: u64,
}

pub(crate) fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(Config { capacity: 8 << 20, policy: PolicyKind::Lru, seed: 1 }))
}

impl Home {
    pub(crate) async fn new() -> Self {
        let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let backend = Arc::new(Failing::new(inner, u64::MAX));
        let shared: Arc<dyn ObjectStore> = Arc::clone(&backend) as _;
        let store = Store::create(shared, testing::settings(), testing::world(1)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let disks = Disks::new(directory.path().join("disks"), store.clone(), cache());
        Self { directory, backend, store, disks, seed: 1 }
    }

    /// Another process on the same files and the same store.
    pub(crate) async fn again(&mut self) {
        self.seed += 1;
        let shared: Arc<dyn ObjectStore> = Arc::clone(&self.backend) as _;
        self.store = Store::open(shared, testing::world(self.seed)).await.unwrap();
        self.disks = Disks::new(self.directory.path().join("disks"), self.store.clone(), cache());
    }

    /// Another server on the same store.
    pub(crate) async fn beside(&self, seed: u64) -> Self {
        let backend = Arc::clone(&self.backend);
        let shared: Arc<dyn ObjectStore> = Arc::clone(&backend) as _;
        let store = Store::open(shared, testing::world(seed)).await.unwrap();
        let directory = tempfile::tempdir().unwrap();
        let disks = Disks::new(directory.path().join("disks"), store.clone(), cache());
        Self { directory, backend, store, disks, seed }
    }

    /// The disks of this home as another process sees them, which reaches the store through `spy`.
    pub(crate) async fn watched(&self, spy: &Spy, seed: u64) -> Disks {
        let shared: Arc<dyn ObjectStore> = Arc::new(spy.clone());
        let store = Store::open(shared, testing::world(seed)).await.unwrap();
        Disks::new(self.directory.path().join("disks"), store, cache())
    }

    pub(crate) fn linger(&mut self, linger: Duration) {
        let place = self.directory.path().join("disks");
        self.disks = Disks::new(place, self.store.clone(), cache()).with_linger(linger);
    }

    /// Another process on the same files, with borrowed room.
    pub(crate) async fn with_room(&mut self, linger: Duration) {
        self.again().await;
        let place = self.directory.path().join("disks");
        let disks = Disks::new(place, self.store.clone(), cache());
        self.disks = disks.with_linger(linger).with_room(Arc::new(Borrowed));
    }

    /// Imports `bytes` as the image version `name`.
    pub(crate) async fn image(&self, name: &str, bytes: &[u8]) {
        let imported = import::from_device(
            &testing::session(&self.store).await,
            &Memory::from(bytes.to_vec()),
            &(),
        )
        .await
        .unwrap();
        let body = RefBody {
            manifest: Some(imported.manifest),
            size: imported.size,
            created: testing::NOW,
            labels: BTreeMap::new(),
        };
        self.store.refs().create(RefKind::Image, name, body).await.unwrap();
    }

    pub(crate) async fn create(&self, name: &str, from: &str, mode: Mode) -> Result<DiskInfo> {
        let options = CreateOptions { size: None, mode };
        self.disks.create(name, &from.parse().unwrap(), options).await
    }

    pub(crate) async fn open(&self, name: &str) -> Arc<Disk> {
        self.disks.open(name).await.unwrap()
    }

    /// All bytes of an image version.
    pub(crate) async fn image_bytes(&self, name: &str) -> Vec<u8> {
        let found = self.store.refs().get(RefKind::Image, name).await.unwrap().unwrap();
        let manifest = self.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
        bytes(&Image::new(self.store.clone(), manifest, cache())).await
    }
}

/// All bytes of a device.
pub(crate) async fn bytes(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await.unwrap();
    bytes
}

/// An image with data and holes, of a size that is not a multiple of a block.
pub(crate) fn golden(seed: u64, blocks: u64) -> Vec<u8> {
    let mut random = Sequence::new(seed);
    let mut bytes = Vec::new();
    for _ in 0..blocks {
        let value = if random.below(4) == 0 { 0 } else { random.below(255) + 1 };
        bytes.extend((0..4096u64).map(|i| if value == 0 { 0 } else { (value ^ (i >> 8)) as u8 }));
    }
    bytes.resize(bytes.len() + 512, 3);
    bytes
}

/// What is done before something below a prefix is read.
type PrefixHook = (&'static str, BoxFuture<'static, ()>);

/// A backend that notes what is asked for, and does something before it lists snapshots.
#[derive(Clone)]
pub(crate) struct Spy {
    inner: Arc<dyn ObjectStore>,
    asked: Arc<Mutex<Vec<String>>>,
    before_snapshots: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    before_reading: Arc<Mutex<Option<PrefixHook>>>,
    refused: Arc<Mutex<Option<&'static str>>>,
    away: Arc<Mutex<Option<&'static str>>>,
    slow: Arc<Mutex<Option<SlowWrites>>>,
}

/// What is written below a prefix takes long.
struct SlowWrites {
    prefix: &'static str,
    each: Duration,
    /// How many there were.
    count: usize,
}

impl Spy {
    pub(crate) fn on(home: &Home) -> Self {
        let inner = Arc::clone(&home.backend) as _;
        let (asked, before_snapshots, before_reading, refused, away, slow) = Default::default();
        Self { inner, asked, before_snapshots, before_reading, refused, away, slow }
    }

    /// The keys that were read, and the prefixes that were listed.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.asked.lock().clone()
    }

    /// The next listing of snapshots begins when this has been done.
    pub(crate) fn before_snapshots(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.before_snapshots.lock() = Some(Box::pin(what));
    }

    /// The next reading of something below a prefix begins when this has been done.
    pub(crate) fn before_reading(
        &self,
        prefix: &'static str,
        what: impl Future<Output = ()> + Send + 'static,
    ) {
        *self.before_reading.lock() = Some((prefix, Box::pin(what)));
    }

    /// Whether nothing below a prefix can be written from now on.
    pub(crate) fn refuse_writes(&self, prefix: &'static str, refused: bool) {
        *self.refused.lock() = refused.then_some(prefix);
    }

    /// How long each writing of something below a prefix takes from now on.
    pub(crate) fn slow_writes(&self, prefix: &'static str, each: Duration) {
        *self.slow.lock() = Some(SlowWrites { prefix, each, count: 0 });
    }

    /// How many slow writings there were.
    pub(crate) fn slowed(&self) -> usize {
        self.slow.lock().as_ref().map_or(0, |slow| slow.count)
    }

    /// Whether nothing is known of what is below a prefix from now on.
    pub(crate) fn is_away(&self, prefix: &'static str, is_away: bool) {
        *self.away.lock() = is_away.then_some(prefix);
    }

    fn must_be_there(&self, path: Option<&Path>) -> BackendResult<()> {
        let away = *self.away.lock();
        match away {
            Some(prefix) if path.is_some_and(|path| path.as_ref().starts_with(prefix)) => {
                Err(object_store::Error::Generic { store: "spy", source: "it is away".into() })
            }
            _ => Ok(()),
        }
    }

    fn note(&self, path: &Path) {
        self.asked.lock().push(path.to_string());
    }
}

impl fmt::Debug for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Spy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spy({})", self.inner)
    }
}

object_layer!(Spy);

#[async_trait]
impl objects::layer::ObjectLayer for Spy {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> BackendResult<PutResult> {
        let refused = *self.refused.lock();
        if refused.is_some_and(|prefix| location.as_ref().starts_with(prefix)) {
            let source = "the spy refuses it".into();
            return Err(object_store::Error::Generic { store: "spy", source });
        }
        let slow = self.slow.lock().as_mut().and_then(|slow| {
            slow.count += usize::from(location.as_ref().starts_with(slow.prefix));
            location.as_ref().starts_with(slow.prefix).then_some(slow.each)
        });
        if let Some(each) = slow {
            tokio::time::sleep(each).await;
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> BackendResult<GetResult> {
        self.note(location);
        self.must_be_there(Some(location))?;
        let is_below = |prefix| location.as_ref().starts_with(prefix);
        let before = self.before_reading.lock().take_if(|(prefix, _)| is_below(*prefix));
        if let Some((_, before)) = before {
            before.await;
        }
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> BackendResult<Vec<Bytes>> {
        ranges_by_get(self, location, ranges).await
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, BackendResult<ObjectMeta>> {
        prefix.inspect(|prefix| self.note(prefix));
        if let Err(away) = self.must_be_there(prefix) {
            return stream::once(std::future::ready(Err(away))).boxed();
        }
        let of_snapshots = prefix.is_some_and(|prefix| prefix.as_ref() == "refs/snapshot");
        let before = self.before_snapshots.lock().take_if(|_| of_snapshots);
        let (inner, prefix) = (Arc::clone(&self.inner), prefix.cloned());
        let listing = async move {
            if let Some(before) = before {
                before.await;
            }
            inner.list(prefix.as_ref())
        };
        stream::once(listing).flatten().boxed()
    }
}

/// Room for private blocks in memory.
pub(crate) struct Borrowed;

impl Borrowed {
    pub(crate) const LARGEST: u64 = 64 << 20;
}

impl Room for Borrowed {
    fn over(&self, base: Arc<dyn Device>) -> Result<RoomLayer> {
        if base.size() > Self::LARGEST {
            return Err(Error::unsupported("too large for this room"));
        }
        let device = Arc::new(Over { base, blocks: Mutex::default() });
        let counted = Arc::clone(&device);
        let bytes = Box::new(move || counted.blocks.lock().len() as u64 * BLOCK);
        let looked_at = Arc::clone(&device);
        let held = Box::new(move |span: Span| {
            let (first, _) = span.split_at((span.offset() / BLOCK + 1) * BLOCK);
            (first, looked_at.blocks.lock().contains_key(&(span.offset() / BLOCK)))
        });
        Ok(RoomLayer { device, bytes, held })
    }
}

/// Blocks over a base.
struct Over {
    base: Arc<dyn Device>,
    blocks: Mutex<BTreeMap<u64, Vec<u8>>>,
}

#[async_trait]
impl Device for Over {
    fn size(&self) -> u64 {
        self.base.size()
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.base.read(span, buf).await?;
        for piece in span.pieces(BLOCK) {
            if let Some(block) = self.blocks.lock().get(&(piece.offset() / BLOCK)) {
                let at = (piece.offset() % BLOCK) as usize;
                buf[piece.index_in(span)].copy_from_slice(&block[at..at + piece.len() as usize]);
            }
        }
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], _: Durability) -> Result<()> {
        for piece in span.pieces(BLOCK) {
            let whole = piece.align_outward(BLOCK).split_at(self.size()).0;
            let mut block = vec![0; whole.len() as usize];
            self.read(whole, &mut block).await?;
            block[piece.index_in(whole)].copy_from_slice(&data[piece.index_in(span)]);
            self.blocks.lock().insert(whole.offset() / BLOCK, block);
        }
        Ok(())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Ok(())
    }

    async fn zero(&self, span: Span, _: ZeroMode, durability: Durability) -> Result<()> {
        self.write(span, &vec![0; span.len() as usize], durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.base.extents(span, limit).await
    }
}

/// The length of a block, in bytes.
pub(crate) const LENGTH: usize = BLOCK as usize;

/// A home with an image of 40 blocks, and what that holds.
pub(crate) async fn home() -> (Home, Vec<u8>) {
    let home = Home::new().await;
    let image = golden(1, 40);
    home.image("golden:1", &image).await;
    (home, image)
}

/// Fills a block.
pub(crate) async fn put(disk: &Disk, block: usize, value: u8) {
    let span = Span::between((block * LENGTH) as u64, ((block + 1) * LENGTH) as u64);
    disk.write(span, &[value; LENGTH], Durability::Buffered).await.unwrap();
}

/// Compares without printing a whole disk.
#[track_caller]
pub(crate) fn same(found: &[u8], expected: &[u8]) {
    assert_eq!(found.len(), expected.len(), "sizes");
    if let Some(i) = (0..found.len()).find(|i| found[*i] != expected[*i]) {
        panic!("byte {i} is {}, not {}", found[i], expected[i]);
    }
}

/// What kind of error it is.
pub(crate) fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().unwrap().kind()
}
