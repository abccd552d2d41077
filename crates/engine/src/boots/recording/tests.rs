use super::*;
use block::{Device, Memory, Span};
use store::{Store, import, testing};

/// Reads of an image of noise, at these places, each followed by a pause; at most so many
/// chunks are recorded.
async fn recorded(reads: &[(u64, u64)], pause: Duration, most: usize) -> (bool, usize) {
    let dir = tempfile::tempdir().unwrap();
    let backend = objects::create_local(dir.path()).unwrap();
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let session = testing::session(&store).await;
    let bytes = Memory::from(testing::noise(3, 4 << 20));
    let done = import::from_device(&session, &bytes, &()).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let config = cache::Config { capacity: 8 << 20, policy: cache::PolicyKind::Lru, seed: 1 };
    let image = Image::new(store, manifest, Arc::new(cache::Cache::new(config)));
    let touches = image.record(most).unwrap().unwrap();
    assert!(image.record(most).unwrap().is_none(), "one at a time");
    let guest = async {
        for (offset, len) in reads {
            let mut buffer = vec![0; *len as usize];
            image.read(Span::between(*offset, offset + len), &mut buffer).await.unwrap();
            tokio::time::sleep(pause).await;
        }
    };
    let (whole, ()) = tokio::join!(watch(&touches), guest);
    (whole, touches.count())
}

#[tokio::test(start_paused = true)]
async fn a_boot_ends_when_nothing_new_is_read() {
    let reads: Vec<_> = (0..20).map(|i| (i * 200_000 / 4096 * 4096, 8192)).collect();
    let (whole, count) = recorded(&reads, Duration::from_secs(2), 64).await;
    assert!(whole && count >= FEWEST, "{count}");
    let (whole, _) = recorded(&reads[..3], Duration::from_secs(2), 64).await;
    assert!(!whole, "too little for a list");
}

#[tokio::test(start_paused = true)]
async fn what_reads_everything_is_not_a_boot() {
    let reads: Vec<_> = (0..4).map(|i| (i << 20, 1 << 20)).collect();
    let (whole, _) = recorded(&reads, Duration::from_secs(1), 16).await;
    assert!(!whole);
}
