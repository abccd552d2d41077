//! What HTTP and TLS add to the chunks of a boot.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lab;

use block::{Device, Span};
use disk::{Image, LoadOptions, Loader};
use lab::Lab;
use object_store::ObjectStore;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use store::Store;
use store::testing::{self, noise};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// Passes bytes on, and counts them.
async fn pass(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    count: Arc<AtomicU64>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(len) = from.read(&mut buffer).await {
        if len == 0 || to.write_all(&buffer[..len]).await.is_err() {
            break;
        }
        count.fetch_add(len as u64, SeqCst);
    }
}

/// A proxy to the gateway; gives its port and the bytes that pass, both ways together.
async fn proxy(lab: &Lab) -> (u16, Arc<AtomicU64>, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (count, to) = (Arc::new(AtomicU64::new(0)), lab.address);
    let counted = Arc::clone(&count);
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        let mut passing = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(to).await.unwrap();
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            passing.spawn(pass(from_client, to_server, Arc::clone(&counted)));
            passing.spawn(pass(from_server, to_client, Arc::clone(&counted)));
        }
    });
    (port, count, tasks)
}

#[tokio::test]
async fn a_boot_takes_three_percent_more_on_the_wire_than_its_chunks_at_the_most() {
    let lab = Lab::new().await;
    let image = noise(1, 24 << 20);
    lab.image("debian:1", &image).await;
    let (port, passed, _proxy) = proxy(&lab).await;
    let bare: Arc<dyn ObjectStore> = Arc::new(lab.object_store_at("alice", port));
    let patient = objects::patient(bare, objects::Patience::COMMAND);
    let store = Store::open(patient, testing::world(2)).await.unwrap();
    let found = store.refs().get(store::RefKind::Image, "debian:1").await.unwrap().unwrap();
    let manifest = store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    let options = LoadOptions { most: 16, ahead: 0, ..LoadOptions::default() };
    let cache = cache::Cache::new(cache::Config {
        capacity: 64 << 20,
        policy: cache::PolicyKind::Lru,
        seed: 1,
    });
    let loader = Arc::new(Loader::new(store.clone(), Arc::new(cache), options));
    let device = Image::through(&loader, manifest);
    // Reads as a boot makes them: short, here and there, each chunk once.
    let step = 96 << 10;
    let mut offsets: Vec<u64> = (0..image.len() as u64 / step).map(|n| n * step).collect();
    offsets.reverse();
    let mut buffer = vec![0; 16 << 10];
    for offset in offsets {
        device
            .read(Span::between(offset, offset + buffer.len() as u64), &mut buffer)
            .await
            .unwrap();
        assert_eq!(buffer, image[offset as usize..offset as usize + buffer.len()]);
    }
    let (chunks, passed) = (store.counters().stored_bytes_read, passed.load(SeqCst));
    let share = passed as f64 / chunks as f64;
    println!("{chunks} bytes of chunks, {passed} on the wire: {share:.4}");
    assert!(chunks > 8 << 20 && share <= 1.03, "{passed} for {chunks}: {share}");
}
