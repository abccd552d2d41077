//! A backend whose clock stands still until it is set.

use crate::layer::{object_layer, ranges_by_get};
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream::BoxStream;
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{
    GetOptions, GetResult, ObjectMeta, ObjectStore, PutOptions, PutPayload, PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

/// Objects in memory, each written at the time that the store's clock had then.
#[derive(Debug, Clone, Default)]
pub struct Clocked {
    inner: Arc<InMemory>,
    shared: Arc<Mutex<ClockedState>>,
}

#[derive(Debug, Default)]
struct ClockedState {
    now: u64,
    written: HashMap<Path, u64>,
    gets: u64,
}

impl Clocked {
    /// An empty backend whose clock says `now`, in Unix seconds.
    pub fn new(now: u64) -> Self {
        let made = Self::default();
        made.shared.lock().now = now;
        made
    }

    /// Lets time pass.
    pub fn advance(&self, seconds: u64) {
        self.shared.lock().now += seconds;
    }

    /// How many times an object, or a part of one, was asked for.
    pub fn gets(&self) -> u64 {
        self.shared.lock().gets
    }

    fn date(shared: &Mutex<ClockedState>, mut meta: ObjectMeta) -> ObjectMeta {
        let shared = shared.lock();
        let written = shared.written.get(&meta.location).copied().unwrap_or(shared.now);
        meta.last_modified = (UNIX_EPOCH + Duration::from_secs(written)).into();
        meta
    }
}

impl fmt::Display for Clocked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "clocked({})", self.inner)
    }
}

object_layer!(Clocked);

#[async_trait]
impl crate::layer::ObjectLayer for Clocked {
    type Below = InMemory;

    fn below(&self) -> &Self::Below {
        &self.inner
    }

    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let result = self.inner.put_opts(location, payload, opts).await?;
        let mut shared = self.shared.lock();
        let now = shared.now;
        shared.written.insert(location.clone(), now);
        Ok(result)
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.shared.lock().gets += 1;
        let mut found = self.inner.get_opts(location, options).await?;
        found.meta = Self::date(&self.shared, found.meta);
        Ok(found)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let shared = Arc::clone(&self.shared);
        let listed = self.inner.list(prefix);
        listed.map(move |meta| meta.map(|meta| Self::date(&shared, meta))).boxed()
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        ranges_by_get(self, location, ranges).await
    }
}
