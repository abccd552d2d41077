//! Maps of the home's store from sources nearby, which the piece cache keeps like what is read of the store:
//! the medium that had them may be pulled out.

use async_trait::async_trait;
use block::offload;
use bytes::Bytes;
use lookaside::media::MediaSource;
use lookaside::{ChunkSource, CostEstimate, Sources, StoreLink};
use objects::Link;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;
use store::{MapId, MapLookup, MapTurn, Settings};
use tokio::sync::OnceCell;

/// How long a command waits for its media before it asks the store.
const OPEN: Duration = Duration::from_secs(2);

/// Sources, and the way to the store.
pub(crate) struct NearbyMaps {
    sources: Arc<Sources>,
    link: Link,
}

impl NearbyMaps {
    pub(crate) fn new(sources: Arc<Sources>, link: Link) -> Self {
        Self { sources, link }
    }
}

/// What reads over the way to the store take.
pub(crate) struct StoreWay(pub(crate) Link);

impl StoreLink for StoreWay {
    fn expected(&self, bytes: u64) -> Option<(Duration, bool)> {
        self.0.expected(bytes).map(|expected| (expected.time, expected.is_sure))
    }
}

impl fmt::Debug for StoreWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreWay")
    }
}

#[async_trait]
impl MapLookup for NearbyMaps {
    async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes> {
        let path = id.path();
        // What is kept is read through the store.
        if turn == MapTurn::BeforeStore && self.link.has_object(&path) {
            return None;
        }
        let object = self.sources.map(id, turn).await?;
        self.link.keep_object(&path, object.clone()).await;
        Some(object)
    }
}

impl fmt::Debug for NearbyMaps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NearbyMaps({:?})", self.sources)
    }
}

/// The media of a home, for a command: they are opened when it needs a map, as most need none.
pub(crate) struct MapsOnDemand {
    settings: Settings,
    media: Vec<PathBuf>,
    link: Link,
    /// The store's name, and what a request to it takes before any was measured.
    store: (String, CostEstimate),
    opened: OnceCell<NearbyMaps>,
    /// They took too long to open.
    are_late: AtomicBool,
}

impl MapsOnDemand {
    pub(crate) fn new(
        settings: Settings,
        media: Vec<PathBuf>,
        link: Link,
        store: (String, CostEstimate),
    ) -> Self {
        let (opened, are_late) = (OnceCell::new(), AtomicBool::new(false));
        Self { settings, media, link, store, opened, are_late }
    }

    async fn open(&self) -> NearbyMaps {
        let mut list: Vec<Arc<dyn ChunkSource>> = Vec::new();
        for place in &self.media {
            let (settings, path) = (self.settings.clone(), place.clone());
            match offload(move || MediaSource::open(&settings, &path)).await {
                Ok(source) => list.push(Arc::new(source)),
                Err(error) => tracing::debug!(medium = %place.display(), %error, "left out"),
            }
        }
        let (name, cost) = &self.store;
        let sources = Sources::new(self.settings.clone(), name, *cost, list);
        sources.judge_store_by(Arc::new(StoreWay(self.link.clone())));
        NearbyMaps::new(Arc::new(sources), self.link.clone())
    }
}

#[async_trait]
impl MapLookup for MapsOnDemand {
    async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes> {
        // A store that is here is asked first.
        let is_asked = turn == MapTurn::AfterStore
            || (self.store.1 == CostEstimate::DISTANT && !self.are_late.load(Relaxed));
        if !is_asked {
            return None;
        }
        match tokio::time::timeout(OPEN, self.opened.get_or_init(|| self.open())).await {
            Ok(maps) => maps.map(id, turn).await,
            Err(_) => {
                self.are_late.store(true, Relaxed);
                None
            }
        }
    }
}

impl fmt::Debug for MapsOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapsOnDemand({:?})", self.media)
    }
}
