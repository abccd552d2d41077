//! How many requests of a store behind a network it takes to load what lies together.

#![allow(clippy::unwrap_used, clippy::expect_used)] // tests speak by panicking

use block::{Device, Memory, Span};
use cache::{Cache, Config, PolicyKind};
use disk::{Image, LoadOptions, Loader};
use object_store::ObjectStore;
use object_store::memory::InMemory;
use std::sync::Arc;
use store::backend::{OpenOptions, layered};
use store::testing::{self, Faults, Unreliable};
use store::{ChunkId, Store, import};

const SIZE: u64 = 12 << 20;

struct Rig {
    counted: Unreliable,
    image: Image,
    cache: Arc<Cache>,
    content: Vec<u8>,
    chunks: Vec<ChunkId>,
}

/// An image of 12 MiB that does not compress, cold, whose map was read.
async fn rig(options: LoadOptions) -> Rig {
    let objects = Arc::new(InMemory::new());
    let made = Store::create(objects.clone(), testing::settings(), testing::world(1)).await;
    let content = testing::noise(4, SIZE as usize);
    let session = testing::session(&made.unwrap()).await;
    let done = import::from_device(&session, &Memory::from(content.clone()), &()).await.unwrap();
    let counted = Unreliable::new(objects, 1, Faults::default());
    let bare: Arc<dyn ObjectStore> = Arc::new(counted.clone());
    let opened = layered(bare, "s3://test", &OpenOptions::default(), |patient| patient);
    let store = Store::open(opened.backend, testing::world(2)).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    manifest.pieces(Span::whole(SIZE)).await.unwrap();
    let chunks = manifest.chunks().await.unwrap().iter().map(|at| at.id).collect();
    let config = Config { capacity: 64 << 20, policy: PolicyKind::Lru, seed: 1 };
    let cache = Arc::new(Cache::new(config));
    let image = Image::through(&Loader::new(store, Arc::clone(&cache), options), manifest);
    Rig { counted, image, cache, content, chunks }
}

impl Rig {
    async fn read(&self, span: Span) {
        let mut bytes = vec![0; span.len() as usize];
        self.image.read(span, &mut bytes).await.unwrap();
        assert!(bytes == self.content[span.index_in(Span::whole(SIZE))]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_boot_list_costs_a_request_for_each_run_and_not_for_each_chunk() {
    let rig = rig(LoadOptions::default()).await;
    // From the end to the beginning, every second one: none follows the one before it in the store.
    let list: Vec<_> = rig.chunks.iter().rev().step_by(2).copied().collect();
    assert!(list.len() > 50, "{} chunks are too few to tell", list.len());
    let before = rig.counted.calls();
    let brought = rig.image.bring(&list, 1 << 30).await.unwrap();
    let calls = rig.counted.calls() - before;
    assert!((SIZE / 3..SIZE * 2 / 3).contains(&brought), "{brought}");
    assert_eq!(rig.cache.stats().loads, list.len() as u64);
    // 12 MiB in requests of up to 1 MiB, the first ones of half of that.
    assert!(calls <= 24, "{calls} requests");
    rig.read(Span::whole(SIZE)).await;
}

#[tokio::test(start_paused = true)]
async fn a_boot_list_goes_no_further_than_its_budget() {
    let rig = rig(LoadOptions::default()).await;
    let brought = rig.image.bring(&rig.chunks, 2 << 20).await.unwrap();
    assert!((1 << 20..=2 << 20).contains(&brought), "{brought}");
    assert_eq!(rig.cache.stats().bytes, brought);
}

#[tokio::test(start_paused = true)]
async fn a_read_of_several_chunks_costs_one_request() {
    for most in [0, 64] {
        let rig = rig(LoadOptions { most, ahead: 0, ..LoadOptions::default() }).await;
        let before = rig.counted.calls();
        rig.read(Span::between(1 << 20, (1 << 20) + (512 << 10))).await;
        assert_eq!(rig.counted.calls() - before, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn a_boot_that_reads_along_with_its_list_costs_no_more_requests() {
    let rig = rig(LoadOptions { ahead: 0, ..LoadOptions::default() }).await;
    let before = rig.counted.calls();
    let guest = async {
        // Some places of the image that the list comes to late.
        for place in [11, 3, 7, 5] {
            rig.read(Span::between(place << 20, (place << 20) + 4096)).await;
        }
    };
    let (brought, ()) = tokio::join!(rig.image.bring(&rig.chunks, 1 << 30), guest);
    assert!(brought.unwrap() > SIZE * 3 / 4);
    let calls = rig.counted.calls() - before;
    assert!(calls <= 32, "{calls} requests");
}
