//! Maps of the home's store from sources nearby, which the piece cache keeps like what is read of the store:
//! the medium that had them may be pulled out.

use async_trait::async_trait;
use block::{Result, offload};
use bytes::Bytes;
use lookaside::media::MediaSource;
use lookaside::{ChunkSource, CostEstimate, Sources, StoreLink};
use objects::Link;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{MapId, MapLookup, MapTurn, Settings};
use tokio::sync::watch;
use tokio::task::JoinSet;

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
    media: Vec<PathBuf>,
    maps: NearbyMaps,
    opener: MediumOpener,
    /// Each medium is opened once, in a task of its own: one that hangs has one thread, however often a map is needed,
    /// and what is open is asked meanwhile.
    opening: OnceLock<OpeningMedia>,
    /// They took too long to open.
    are_late: AtomicBool,
    /// The store is far away.
    is_distant: bool,
}

/// Opens a medium. Waits for it.
type MediumOpener = Arc<dyn Fn(&Path) -> Result<Arc<dyn ChunkSource>> + Send + Sync>;

/// Media that are being opened.
struct OpeningMedia {
    /// How many are not open yet, nor given up.
    left: watch::Receiver<usize>,
    _tasks: JoinSet<()>,
}

impl MapsOnDemand {
    pub(crate) fn new(
        settings: Settings,
        media: Vec<PathBuf>,
        link: Link,
        (store_name, store_cost): (String, CostEstimate),
    ) -> Self {
        let sources = Sources::new(settings.clone(), store_name, store_cost, Vec::new());
        sources.judge_store_by(Arc::new(StoreWay(link.clone())));
        let maps = NearbyMaps::new(Arc::new(sources), link);
        let opener: MediumOpener = Arc::new(move |place| {
            let source = MediaSource::open(&settings, place)?;
            Ok(Arc::new(source) as _)
        });
        let (is_distant, are_late) = (store_cost == CostEstimate::DISTANT, AtomicBool::new(false));
        Self { media, maps, opener, opening: OnceLock::new(), are_late, is_distant }
    }

    /// Begins to open all media.
    fn begin(&self) -> OpeningMedia {
        let (left, receiver) = watch::channel(self.media.len());
        let left = Arc::new(left);
        let mut tasks = JoinSet::new();
        for place in &self.media {
            let (opener, path) = (Arc::clone(&self.opener), place.clone());
            let (sources, left) = (Arc::clone(&self.maps.sources), Arc::clone(&left));
            tasks.spawn(async move {
                let opened = path.clone();
                match offload(move || opener(&opened)).await {
                    Ok(source) => sources.add(source),
                    Err(error) => {
                        tracing::debug!(medium = %path.display(), %error, "left out");
                    }
                }
                left.send_modify(|left| *left -= 1);
            });
        }
        OpeningMedia { left: receiver, _tasks: tasks }
    }

    /// Waits for the media, for as long as is worth it.
    async fn until_open(&self, turn: MapTurn) {
        let mut left = self.opening.get_or_init(|| self.begin()).left.clone();
        // Once is enough, but for a map that the store does not give.
        if turn == MapTurn::BeforeStore && self.are_late.load(Relaxed) {
            return;
        }
        let opened = tokio::time::timeout(OPEN, left.wait_for(|left| *left == 0)).await;
        self.are_late.store(opened.is_err(), Relaxed);
    }
}

#[async_trait]
impl MapLookup for MapsOnDemand {
    async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes> {
        // A store that is here is asked first.
        if turn == MapTurn::BeforeStore && !self.is_distant {
            return None;
        }
        self.until_open(turn).await;
        self.maps.map(id, turn).await
    }
}

impl fmt::Debug for MapsOnDemand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MapsOnDemand({:?})", self.media)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::AtomicUsize;
    use std::sync::mpsc;
    use store::testing;

    #[tokio::test]
    async fn a_medium_that_hangs_is_opened_once_and_the_others_are_asked_meanwhile() {
        let id = MapId::Root(store::ManifestId([7; 32]));
        let cost = ("store".to_owned(), CostEstimate::DISTANT);
        let media = ["hangs", "is-none"].map(PathBuf::from).to_vec();
        let mut maps = MapsOnDemand::new(testing::settings(), media, Link::default(), cost);
        let (release, held) = mpsc::channel::<()>();
        let (held, tries) = (Mutex::new(held), Arc::new(AtomicUsize::new(0)));
        let counted = Arc::clone(&tries);
        maps.opener = Arc::new(move |place| {
            counted.fetch_add(1, Relaxed);
            if place == Path::new("hangs") {
                // Until the test lets go.
                let _ = held.lock().unwrap().recv();
            }
            Err(block::Error::not_found("no medium"))
        });
        for turn in [MapTurn::BeforeStore, MapTurn::AfterStore, MapTurn::BeforeStore] {
            assert!(maps.map(&id, turn).await.is_none());
        }
        let left = || *maps.opening.get().unwrap().left.borrow();
        assert_eq!((tries.load(Relaxed), left()), (2, 1));
        drop(release);
        let mut opened = maps.opening.get().unwrap().left.clone();
        opened.wait_for(|left| *left == 0).await.unwrap();
        assert!(maps.map(&id, MapTurn::AfterStore).await.is_none());
        assert_eq!((tries.load(Relaxed), maps.are_late.load(Relaxed)), (2, false));
    }
}
