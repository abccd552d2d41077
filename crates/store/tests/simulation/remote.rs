//! The store as one actor reaches it: slow, and gone for good once the actor crashes.

use async_trait::async_trait;
use block::conformance::Sequence;
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, GetResult, GetResultPayload, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};
use objects::layer::{object_layer, ranges_by_get};
use objects::testing::Clocked;
use parking_lot::Mutex;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;

/// What an actor is kept from seeing: each is a mistake that a simulation has to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lie {
    /// Nothing.
    None,
    /// Collections see no pins.
    NoPins,
    /// Collections see the names of their last time.
    OldNames,
    /// Importers see nothing that was condemned.
    NothingCondemned,
}

/// Time, and the course that everything takes.
#[derive(Clone)]
pub(crate) struct Nature {
    pub(crate) backend: Clocked,
    begun: Instant,
    seconds: Arc<AtomicU64>,
    course: Arc<AtomicU64>,
    /// Whether the course is printed.
    told: bool,
}

impl Nature {
    pub(crate) fn new(backend: Clocked) -> Self {
        let told = std::env::var_os("SIMULATION_TOLD").is_some();
        let begun = Instant::now();
        Self { backend, begun, seconds: Arc::default(), course: Arc::default(), told }
    }

    /// Sets the store's clock to the simulated time.
    pub(crate) fn tick(&self) {
        let now = self.begun.elapsed().as_secs();
        let before = self.seconds.swap(now, Ordering::Relaxed);
        self.backend.advance(now - before);
    }

    pub(crate) fn now(&self) -> u64 {
        self.begun.elapsed().as_secs()
    }

    /// Takes note of what happens.
    pub(crate) fn note(&self, what: &str, key: &str) {
        if self.told {
            println!("{:9.3} {what} {key}", self.begun.elapsed().as_secs_f64());
        }
        let mut course = self.course.load(Ordering::Relaxed);
        for byte in what.bytes().chain(key.bytes()) {
            course = (course ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        let now = self.begun.elapsed().as_millis() as u64;
        self.course.store((course ^ now).wrapping_mul(0x0100_0000_01b3), Ordering::Relaxed);
    }

    pub(crate) fn course(&self) -> u64 {
        self.course.load(Ordering::Relaxed)
    }
}

/// What one actor sees. Not a double but the simulation's world: every call takes its time of the dice, moves the
/// clock, and may be the last of an actor.
#[derive(Clone)]
pub(crate) struct Remote {
    inner: Arc<dyn ObjectStore>,
    nature: Nature,
    dice: Arc<Mutex<Sequence>>,
    /// Requests until the actor crashes.
    left: Arc<AtomicI64>,
    crash: Arc<Notify>,
    /// Whether requests take so long that whole days pass.
    slow: bool,
    lie: Lie,
    /// Names that are younger are not seen, when lied to; in simulated seconds.
    horizon: u64,
}

impl Remote {
    pub(crate) fn new(inner: Arc<dyn ObjectStore>, nature: &Nature, seed: u64) -> Self {
        Self {
            inner,
            nature: nature.clone(),
            dice: Arc::new(Mutex::new(Sequence::new(seed))),
            left: Arc::new(AtomicI64::new(i64::MAX)),
            crash: Arc::default(),
            slow: false,
            lie: Lie::None,
            horizon: u64::MAX,
        }
    }

    pub(crate) fn crashing_after(self, requests: i64) -> Self {
        self.left.store(requests, Ordering::Relaxed);
        self
    }

    pub(crate) fn slow(self, slow: bool) -> Self {
        Self { slow, ..self }
    }

    pub(crate) fn lied_to(self, lie: Lie, horizon: u64) -> Self {
        Self { lie, horizon, ..self }
    }

    /// Returns when the actor crashes.
    pub(crate) async fn crashed(&self) {
        self.crash.notified().await;
    }

    /// The way there; `what` is noted when it is reached.
    async fn go(&self, what: &str, key: &str) {
        let (pause, last) = {
            let mut dice = self.dice.lock();
            let pause = match dice.below(100) {
                0..=79 => Duration::from_millis(dice.below(40)),
                80..=97 => Duration::from_millis(dice.below(5000)),
                _ if self.slow => Duration::from_secs(dice.below(30 * 3600)),
                _ => Duration::from_secs(dice.below(120)),
            };
            (pause, dice.below(2) == 0)
        };
        let left = self.left.fetch_sub(1, Ordering::Relaxed);
        if left < 0 || (left == 0 && last) {
            self.end().await;
        }
        tokio::time::sleep(pause).await;
        self.nature.tick();
        self.nature.note(what, key);
    }

    /// The way back.
    async fn come(&self) {
        if self.left.load(Ordering::Relaxed) < 0 {
            self.end().await;
        }
    }

    /// The actor ends here.
    async fn end(&self) {
        self.crash.notify_one();
        std::future::pending::<()>().await;
    }

    fn sees(&self, meta: &ObjectMeta) -> bool {
        let key = meta.location.as_ref();
        match self.lie {
            Lie::NoPins => !key.starts_with("pins/"),
            Lie::OldNames => {
                let born = meta.last_modified.timestamp() as u64 - store::testing::NOW;
                !(key.starts_with("refs/image/") || key.starts_with("refs/snapshot/"))
                    || born <= self.horizon
            }
            _ => true,
        }
    }
}

impl fmt::Display for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}

/// A record of garbage collection whose lists are all swept: whoever reads it minds none that is gone.
async fn as_swept(found: GetResult) -> Result<GetResult> {
    let (meta, range) = (found.meta.clone(), found.range.clone());
    let (attributes, extensions) = (found.attributes.clone(), found.extensions.clone());
    let mut bytes = found.bytes().await?;
    let text = String::from_utf8_lossy(&bytes);
    let (header, json) = text.split_once('\n').unwrap_or_default();
    let swept = json.replace(r#"\"swept\":null"#, r#"\"swept\":1   "#);
    let sum = |json: &str| format!("{:08x}", crc32c::crc32c(json.as_bytes()));
    // Not where only the length was asked for.
    if header.contains(&sum(json)) {
        bytes = format!("{}\n{swept}", header.replace(&sum(json), &sum(&swept))).into();
    }
    let payload = GetResultPayload::Stream(stream::once(async { Ok(bytes) }).boxed());
    Ok(GetResult { payload, meta, range, attributes, extensions })
}

object_layer!(Remote);

#[async_trait]
impl objects::layer::ObjectLayer for Remote {
    type Below = dyn ObjectStore;

    fn below(&self) -> &Self::Below {
        &*self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        self.go("put", location.as_ref()).await;
        let result = self.inner.put_opts(location, payload, opts).await;
        self.come().await;
        result
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotSupported { source: "not simulated".into() })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.go("get", location.as_ref()).await;
        let result = self.inner.get_opts(location, options).await;
        self.come().await;
        if self.lie != Lie::NothingCondemned {
            return result;
        }
        match location.as_ref() {
            key if key.starts_with("condemned/") => {
                Err(Error::NotFound { path: key.to_owned(), source: "hidden".into() })
            }
            key if key.starts_with("refs/gc/") => as_swept(result?).await,
            _ => result,
        }
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        ranges_by_get(self, location, ranges).await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let this = self.clone();
        let one = move |location: Result<Path>| {
            let this = this.clone();
            async move {
                let location = location?;
                this.go("delete", location.as_ref()).await;
                let mut done = this.inner.delete_stream(stream::iter([Ok(location)]).boxed());
                let outcome = done.next().await;
                this.come().await;
                outcome.unwrap_or_else(|| Err(Error::NotSupported { source: "nothing".into() }))
            }
        };
        locations.then(one).boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let (this, prefix) = (self.clone(), prefix.cloned());
        let listing = async move {
            this.go("list", prefix.as_ref().map_or("", |prefix| prefix.as_ref())).await;
            let found: Vec<Result<ObjectMeta>> = this.inner.list(prefix.as_ref()).collect().await;
            this.come().await;
            let seen = found
                .into_iter()
                .filter(|meta| meta.as_ref().map_or(true, |meta| this.sees(meta)))
                .collect::<Vec<_>>();
            Ok::<_, Error>(stream::iter(seen))
        };
        stream::once(listing).try_flatten().boxed()
    }
}
