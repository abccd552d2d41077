//! What a source nearby does to the reads of an image whose store is far away.

use block::{Device, Memory, Span};
use bytes::Bytes;
use cache::{Cache, Config, PolicyKind};
use disk::{Image, LoadOptions, Loader};
use lookaside::testing::{Fake, Manner};
use lookaside::{ChunkSource, CostEstimate, Sources};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use objects::testing::{FaultRates, Unreliable};
use std::sync::Arc;
use store::testing;
use store::{Manifest, Store, import};

const SIZE: u64 = 4 << 20;

struct Lab {
    counted: Unreliable,
    store: Store,
    manifest: Arc<Manifest>,
    content: Vec<u8>,
    chunks: Vec<Bytes>,
}

async fn lab() -> Lab {
    let objects = Arc::new(InMemory::new());
    let made = Store::create(objects.clone(), testing::settings(), testing::world(1)).await;
    let content = testing::noise(4, SIZE as usize);
    let session = testing::session(&made.unwrap()).await;
    let done = import::from_device(&session, &Memory::from(content.clone()), &()).await.unwrap();
    let counted = Unreliable::new(objects, 1, FaultRates::default());
    let bare: Arc<dyn ObjectStore> = Arc::new(counted.clone());
    let store = Store::open(bare, testing::world(2)).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    manifest.pieces(Span::whole(SIZE)).await.unwrap();
    let mut chunks = Vec::new();
    for at in manifest.chunks().await.unwrap() {
        chunks.push(store.read_chunk(&at).await.unwrap());
    }
    Lab { counted, store, manifest, content, chunks }
}

impl Lab {
    fn image(&self, sources: Option<Arc<Sources>>) -> Image {
        let config = Config { capacity: 64 << 20, policy: PolicyKind::Lru, seed: 1 };
        let cache = Arc::new(Cache::new(config));
        let options = LoadOptions::default();
        let loader = Loader::with_sources(self.store.clone(), cache, options, sources);
        Image::through(&loader, Arc::clone(&self.manifest))
    }

    fn sources(&self, manner: Manner, chunks: &[Bytes]) -> Arc<Sources> {
        let fake = Fake::new("fake", self.store.settings(), chunks, manner);
        let list: Vec<Arc<dyn ChunkSource>> = vec![Arc::new(fake)];
        let settings = self.store.settings().clone();
        Arc::new(Sources::new(settings, "store", CostEstimate::DISTANT, list))
    }

    /// Reads all of the image and checks it; returns the calls of the backend.
    async fn read(&self, image: &Image) -> u64 {
        let before = self.counted.calls();
        let mut bytes = vec![0; SIZE as usize];
        image.read(Span::whole(SIZE), &mut bytes).await.unwrap();
        assert!(bytes == self.content);
        self.counted.calls() - before
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_source_has_is_not_asked_of_the_store() {
    let lab = lab().await;
    let sources = lab.sources(Manner::Honest, &lab.chunks);
    assert_eq!(lab.read(&lab.image(Some(Arc::clone(&sources)))).await, 0);
    let report = sources.report();
    assert_eq!((report[0].had, report[1].asked), (lab.chunks.len() as u64, 0));
    assert_eq!(report[0].plain_bytes, SIZE);
    // Of half of it the rest comes from the store, in long requests.
    let half = lab.sources(Manner::Honest, &lab.chunks[..lab.chunks.len() / 2]);
    let calls = lab.read(&lab.image(Some(Arc::clone(&half)))).await;
    assert!((1..=8).contains(&calls), "{calls}");
    assert_eq!(half.report()[0].had, (lab.chunks.len() / 2) as u64);
    // The boot list, too.
    let (image, list): (_, Vec<_>) = (
        lab.image(Some(lab.sources(Manner::Honest, &lab.chunks))),
        lab.manifest.chunks().await.unwrap().iter().map(|at| at.id).collect(),
    );
    let before = lab.counted.calls();
    assert_eq!(image.bring(&list, 1 << 30).await.unwrap(), SIZE);
    assert_eq!(lab.counted.calls(), before);
}

#[tokio::test(start_paused = true)]
async fn a_bad_source_changes_nothing_but_its_own_counters() {
    let lab = lab().await;
    for manner in [Manner::Lying, Manner::Truncating, Manner::Hanging, Manner::Dying(3)] {
        let sources = lab.sources(manner, &lab.chunks);
        assert!(lab.read(&lab.image(Some(Arc::clone(&sources)))).await > 0);
        let report = &sources.report()[0];
        assert!(report.wrong + report.failed + report.late > 0, "{manner:?}: {report:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn with_all_of_it_nearby_the_store_may_be_cut_off() {
    let lab = lab().await;
    lab.counted.set_down(true);
    for estimate in [CostEstimate::DISTANT, CostEstimate::DIRECTORY] {
        let fake = Fake::new("fake", lab.store.settings(), &lab.chunks, Manner::Honest);
        let list: Vec<Arc<dyn ChunkSource>> = vec![Arc::new(fake)];
        let sources = Sources::new(lab.store.settings().clone(), "store", estimate, list);
        lab.read(&lab.image(Some(Arc::new(sources)))).await;
    }
}
