//! What the disks of one image share: the memory of its chunks, and the work of loading them.

#![allow(clippy::unwrap_used, clippy::expect_used)] // tests speak by panicking

mod common;

use block::{Attempt, Device, Sink, Span};
use bytes::Bytes;
use common::{Home, bytes, cache, golden};
use disk::Image;
use std::sync::Arc;
use tokio::task::JoinSet;

const CLIENTS: usize = 50;

/// Keeps what was shared, and refuses to have bytes copied.
#[derive(Default)]
struct Pieces(Vec<Bytes>);

impl Sink for Pieces {
    fn room(&mut self, len: usize) -> &mut [u8] {
        panic!("{len} bytes of a cached chunk were to be copied")
    }

    fn share(&mut self, bytes: Bytes) {
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
