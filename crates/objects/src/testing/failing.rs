//! A backend that fills up.

use crate::layer::object_layer;
use async_trait::async_trait;
use object_store::path::Path;
use object_store::{ObjectStore, PutOptions, PutPayload, PutResult, Result};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A backend whose writes begin to fail after a number of them, as when a disk fills up or a
/// process is killed: a failed write leaves nothing.
#[derive(Debug)]
pub struct Failing {
    inner: Arc<dyn ObjectStore>,
    puts: AtomicU64,
    allowed: AtomicU64,
}

impl Failing {
    /// Puts itself in front of `inner`; `allowed` writes go through.
    pub fn new(inner: Arc<dyn ObjectStore>, allowed: u64) -> Self {
        Self { inner, puts: AtomicU64::new(0), allowed: AtomicU64::new(allowed) }
    }

    /// Writes tried so far.
    pub fn puts(&self) -> u64 {
        self.puts.load(Ordering::Relaxed)
    }

    /// From now on `more` writes go through.
    pub fn allow(&self, more: u64) {
        self.allowed.store(self.puts().saturating_add(more), Ordering::Relaxed);
    }
}

impl fmt::Display for Failing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "failing({})", self.inner)
    }
}

object_layer!(Failing);

#[async_trait]
impl crate::layer::ObjectLayer for Failing {
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
        if self.puts.fetch_add(1, Ordering::Relaxed) >= self.allowed.load(Ordering::Relaxed) {
            let source = std::io::Error::from(std::io::ErrorKind::StorageFull);
            return Err(object_store::Error::Generic { store: "failing", source: source.into() });
        }
        self.inner.put_opts(location, payload, opts).await
    }

    async fn get_ranges(
        &self,
        location: &Path,
        ranges: &[std::ops::Range<u64>],
    ) -> Result<Vec<bytes::Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }
}
