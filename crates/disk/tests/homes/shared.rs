//! What the disks of one image share: the memory of its chunks, and the work of loading them.

use crate::common::{Home, bytes, cache, golden};
use block::{Attempt, Device, Sink, Span};
use bytes::Bytes;
use cache::{Cache, Config, PolicyKind};
use disk::{Image, LoadOptions, Loader};
use std::sync::Arc;
use std::time::Duration;
use store::Manifest;
use tokio::task::JoinSet;

const CLIENTS: usize = 50;

/// Keeps what was shared, and refuses to have bytes copied.
#[derive(Default)]
struct Pieces(Vec<Bytes>);

impl Sink for Pieces {
    fn room(&mut self, len: usize) -> &mut [u8] {
        panic!("{len} bytes of a cached chunk were to be copied")
    }

    fn share(&mut self, bytes: Bytes, _whole: usize) {
        self.0.push(bytes);
    }
}

async fn images(home: &Home, count: usize) -> (Vec<Arc<Image>>, Arc<cache::Cache>, u64) {
    let found = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    let manifest = home.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let chunks = manifest.chunks().await.unwrap().len() as u64;
    let cache = cache();
    let image =
        |_| Arc::new(Image::new(home.store.clone(), Arc::clone(&manifest), Arc::clone(&cache)));
    ((0..count).map(image).collect(), cache, chunks)
}

#[tokio::test]
async fn cached_reads_are_answered_out_of_one_memory() {
    let home = Home::new().await;
    let content = golden(5, 40);
    home.image("golden:1", &content).await;
    let (images, ..) = images(&home, 2).await;
    bytes(&*images[0]).await;
    let block = (0..40u64)
        .find(|block| content[*block as usize * 4096..][..4096].iter().any(|byte| *byte != 0))
        .unwrap();
    let span = Span::between(block * 4096 + 100, block * 4096 + 3000);
    let [one, two] = [0, 1].map(|index: usize| {
        let mut pieces = Pieces::default();
        assert_eq!(images[index].try_read_to(span, &mut pieces).unwrap(), Attempt::Done);
        assert_eq!(pieces.0.len(), 1);
        pieces.0.remove(0)
    });
    assert_eq!(one.as_ptr(), two.as_ptr());
    assert!(one == content[span.index_in(Span::whole(content.len() as u64))]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_storm_of_first_reads_loads_each_chunk_once() {
    let home = Home::new().await;
    let content = golden(6, 300);
    home.image("golden:1", &content).await;
    let (images, cache, chunks) = images(&home, CLIENTS).await;
    assert!(chunks > 2, "{chunks} chunks are too few to tell");
    let mut clients = JoinSet::new();
    for image in images {
        clients.spawn(async move { bytes(&*image).await });
    }
    assert!(clients.join_all().await.into_iter().all(|read| read == content));
    let stats = cache.stats();
    assert_eq!(stats.loads, chunks, "{stats:?}");
    assert!(stats.hits + stats.misses >= chunks * CLIENTS as u64);
}

/// An image of its own line over a cache of 64 MiB, and how many chunks its first `bytes` show.
async fn loaded(home: &Home, options: LoadOptions, bytes: u64) -> (Image, Arc<Cache>, u64) {
    let found = home.disks.resolve(&"golden".parse().unwrap()).await.unwrap();
    let manifest = home.store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let config = Config { capacity: 64 << 20, policy: PolicyKind::Lru, seed: 1 };
    let cache = Arc::new(Cache::new(config));
    let chunks = chunks_in(&manifest, bytes).await;
    let loader = Loader::new(home.store.clone(), Arc::clone(&cache), options);
    (Image::through(&loader, manifest), cache, chunks)
}

async fn chunks_in(manifest: &Manifest, bytes: u64) -> u64 {
    let pieces = manifest.pieces(Span::whole(bytes)).await.unwrap();
    pieces.iter().filter(|piece| matches!(piece.content, store::Content::Chunk { .. })).count()
        as u64
}

async fn read_in_order(image: &Image, content: &[u8], reads: u64) {
    for step in 0..reads {
        let span = Span::between(step << 16, (step + 1) << 16);
        let mut buf = vec![0; 1 << 16];
        image.read(span, &mut buf).await.unwrap();
        assert!(buf == content[span.index_in(Span::whole(content.len() as u64))]);
    }
}

#[tokio::test]
async fn a_guest_that_reads_in_order_finds_what_comes_next_in_memory() {
    let home = Home::new().await;
    let content = golden(7, 2000);
    home.image("golden:1", &content).await;
    let far = 448 << 10;
    let (image, cache, chunks) = loaded(&home, LoadOptions::default(), far).await;
    read_in_order(&image, &content, 3).await;
    // 192 KiB were read, and the second window ends 256 KiB behind them.
    for _ in 0..10_000 {
        if cache.stats().loads >= chunks {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(cache.stats().loads >= chunks, "{:?} of {chunks}", cache.stats());
    let next = image.try_read(Span::between(192 << 10, 196 << 10), &mut [0; 4096]).unwrap();
    assert_eq!(next, Attempt::Done);
}

#[tokio::test]
async fn nothing_is_read_ahead_when_that_is_off() {
    let home = Home::new().await;
    let content = golden(7, 2000);
    home.image("golden:1", &content).await;
    let off = LoadOptions { ahead: 0, ..LoadOptions::default() };
    let (image, cache, chunks) = loaded(&home, off, 512 << 10).await;
    read_in_order(&image, &content, 8).await;
    assert_eq!(cache.stats().loads, chunks);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_that_share_no_loads_get_the_same_bytes() {
    let home = Home::new().await;
    let content = golden(8, 100);
    home.image("golden:1", &content).await;
    for most in [0, 1, 64] {
        let options = LoadOptions { most, share: false, ahead: 0, ..LoadOptions::default() };
        let (image, cache, _) = loaded(&home, options, 4096).await;
        let image = Arc::new(image);
        let mut readers = JoinSet::new();
        for _ in 0..20 {
            let image = Arc::clone(&image);
            readers.spawn(async move { bytes(&*image).await });
        }
        assert!(readers.join_all().await.into_iter().all(|read| read == content));
        assert!(cache.stats().bytes > 0, "and they are kept");
    }
}
