//! How many requests of a store behind a network it takes to load what lies together.

use block::{Device, Memory, Span};
use cache::{Cache, Config, PolicyKind};
use disk::{Image, LoadOptions, Loader};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::{FaultRates, Unreliable};
use objects::{OpenStoreOptions, layered};
use std::sync::Arc;
use store::testing;
use store::{ChunkId, ChunkRef, Manifest, Store, boot_copy, boot_list, import};

const SIZE: u64 = 12 << 20;

struct Rig {
    objects: Arc<InMemory>,
    store: Store,
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
    let counted = Unreliable::new(objects.clone(), 1, FaultRates::default());
    let bare: Arc<dyn ObjectStore> = Arc::new(counted.clone());
    let opened = layered(bare, "s3://test", &OpenStoreOptions::default(), |patient| patient);
    let store = Store::open(opened.backend, testing::world(2)).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    manifest.pieces(Span::whole(SIZE)).await.unwrap();
    let chunks = manifest.chunks().await.unwrap().iter().map(|at| at.id).collect();
    let config = Config { capacity: 64 << 20, policy: PolicyKind::Lru, seed: 1 };
    let cache = Arc::new(Cache::new(config));
    let image = Image::through(&Loader::new(store.clone(), Arc::clone(&cache), options), manifest);
    Rig { objects, store, counted, image, cache, content, chunks }
}

impl Rig {
    /// A list with every tenth chunk, from the end to the beginning, and its boot copy, of which nothing
    /// is in memory.
    async fn copied(&self) -> (Vec<ChunkId>, Vec<ChunkRef>, Arc<Manifest>) {
        let list: Vec<_> = self.chunks.iter().rev().step_by(10).copied().collect();
        let session = testing::session(&self.store).await;
        let located = boot_list::locate(self.image.manifest(), &list).await.unwrap();
        let id = boot_copy::write(&session, &located).await.unwrap().expect("it is worth one");
        session.close(Ok(())).await.unwrap();
        let copy = self.store.manifest(&id).await.unwrap();
        (list, boot_copy::chunks(&copy).await.unwrap(), copy)
    }

    /// Reads the first block of each of these chunks.
    async fn read_chunks(&self, list: &[ChunkId]) {
        for located in boot_list::locate(self.image.manifest(), list).await.unwrap() {
            self.read(Span::between(located.span.offset(), located.span.offset() + 4096)).await;
        }
    }

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

#[tokio::test(start_paused = true)]
async fn a_boot_copy_costs_some_long_requests_and_serves_the_guests_as_well() {
    let rig = rig(LoadOptions { ahead: 0, ..LoadOptions::default() }).await;
    let (list, copies, copy) = rig.copied().await;
    let bytes: u64 = copies.iter().map(|at| u64::from(at.len)).sum();
    let before = rig.counted.calls();
    let guest = async {
        // Not in the order of the list.
        rig.read_chunks(&list[list.len() / 2..]).await;
    };
    let (brought, ()) = tokio::join!(rig.image.bring_copy(&copy, 1 << 30), guest);
    let brought = brought.unwrap();
    assert!(brought.whole && brought.bytes == bytes, "{brought:?} of {bytes}");
    rig.read_chunks(&list).await;
    let calls = rig.counted.calls() - before;
    // The copy's segment, and 1.2 MB in runs of half a MiB: one for each chunk would make it 13.
    assert!(list.len() >= 12 && calls <= 6, "{calls} requests for {} chunks", list.len());
    assert_eq!(rig.cache.stats().loads, list.len() as u64);
    assert!(rig.image.bring_copy(&copy, bytes / 2).await.unwrap().whole, "as far as it may");
}

#[tokio::test(start_paused = true)]
async fn a_boot_copy_that_is_damaged_or_gone_fails_no_guest() {
    for gone in [false, true] {
        for options in
            [LoadOptions::default(), LoadOptions { share: false, ..LoadOptions::default() }]
        {
            let rig = rig(options).await;
            let (list, copies, copy) = rig.copied().await;
            let path = Path::from(format!("packs/{}", copies[0].pack));
            if gone {
                rig.objects.delete(&path).await.unwrap();
            } else {
                let bytes = rig.objects.get(&path).await.unwrap().bytes().await.unwrap();
                let mut bytes = bytes.to_vec();
                copies.iter().step_by(2).for_each(|at| bytes[at.offset as usize + 9] ^= 1);
                rig.objects.put(&path, bytes.into()).await.unwrap();
            }
            let (brought, ()) =
                tokio::join!(rig.image.bring_copy(&copy, 1 << 30), rig.read_chunks(&list));
            assert!(!brought.unwrap().whole, "the list has to be read as well");
            assert_eq!(rig.store.counters().chunk_failures, 0);
            rig.image.bring(&list, 1 << 30).await.unwrap();
            let before = rig.counted.calls();
            rig.read_chunks(&list).await;
            assert_eq!(rig.counted.calls(), before, "all are there");
        }
    }
}
