//! Loading: what a list names comes into the cache ahead of the guest, from a boot copy or from the image.

use super::list;
use crate::Engine;
use block::Result;
use disk::Image;
use parking_lot::Mutex;
use std::time::Duration;
use store::RefRecord;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// An image whose list was loaded is left alone for this long.
const REST: Duration = Duration::from_secs(30);

/// A list that is loaded before somebody asks for it; given up with this.
pub(super) struct Loading(Mutex<JoinSet<bool>>);

impl Loading {
    /// Loads in a task.
    pub(super) fn start(load: impl Future<Output = Result<()>> + Send + 'static) -> Self {
        let mut task = JoinSet::new();
        task.spawn(async move {
            let loaded = load.await;
            if let Err(error) = &loaded {
                tracing::debug!(error = error.message(), "a boot list is not loaded ahead");
            }
            loaded.is_ok()
        });
        Self(Mutex::new(task))
    }

    /// Whether it has not ended.
    pub(super) fn goes_on(&self) -> bool {
        self.0.lock().try_join_next().is_none()
    }

    /// Waits for its end; whether all was loaded.
    pub(super) async fn end(self) -> bool {
        self.0.into_inner().join_next().await.is_some_and(|done| done.unwrap_or(false))
    }
}

/// Loads the newest list of these versions of an image into the cache, and leaves the image alone for a
/// while then; nothing when there is no list.
pub(super) async fn bring(
    engine: &Engine,
    image: &Image,
    versions: &[RefRecord],
    copies: bool,
) -> Result<()> {
    let budget = engine.cache.stats().capacity / 2;
    for record in versions {
        if record.body.boot_list().is_ok_and(|list| list.is_none()) {
            continue;
        }
        if copies && copied(engine, image, record, budget).await {
            tokio::time::sleep(REST).await;
            return Ok(());
        }
        // When many clients come at once, each read of a slow store waits behind all of theirs.
        let (found, _map) =
            tokio::join!(list::of(&engine.store, record), store::boot_list::map(image.manifest()));
        // One that cannot be read is as good as none.
        match found {
            Ok(Some(list)) => {
                let began = Instant::now();
                let bytes = image.bring(&list, budget).await?;
                let seconds = began.elapsed().as_secs_f64();
                tracing::debug!(image = record.name, bytes, seconds, "boot list loaded");
                tokio::time::sleep(REST).await;
                return Ok(());
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(error = error.message(), "a boot list is not used"),
        }
    }
    Ok(())
}

/// Loads the boot copy of a version; whether that was all there is to load.
async fn copied(engine: &Engine, image: &Image, record: &RefRecord, budget: u64) -> bool {
    // A label that makes no sense is told of by a verification.
    let Ok(Some(id)) = record.body.boot_copy() else { return false };
    let began = Instant::now();
    let load = async {
        let copy = engine.store.manifest(&id).await?;
        image.bring_copy(&copy, budget).await
    };
    // The guests are about to need the beginning of the image's own map.
    let (brought, _map) = tokio::join!(load, store::boot_list::map(image.manifest()));
    match brought {
        Ok(brought) => {
            let (bytes, seconds) = (brought.bytes, began.elapsed().as_secs_f64());
            tracing::debug!(image = record.name, bytes, seconds, "boot copy loaded");
            brought.whole
        }
        Err(error) => {
            tracing::warn!(error = error.message(), "a boot copy is not used");
            false
        }
    }
}
