//! A store through the gateway is the store: images, disks, sessions, encrypted or not.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lab;

use block::{Device, Durability, Span};
use bytes::Bytes;
use futures::TryStreamExt;
use gateway::GatewayLimits;
use lab::{Lab, read_all};
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::{OpenStoreOptions, Patience};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use store::segment_columns;
use store::testing::{self, noise};
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

async fn clear_and_encrypted() -> [Lab; 2] {
    let limits = GatewayLimits::default();
    [Lab::new().await, Lab::with(testing::encrypted_settings(), limits).await]
}

fn image() -> Vec<u8> {
    let mut image = noise(1, 3 << 20);
    // Holes, and what compresses.
    image[1 << 20..(1 << 20) + 500_000].fill(0);
    image[2 << 20..(2 << 20) + 500_000].fill(7);
    image
}

#[tokio::test]
async fn an_image_reads_through_the_gateway_as_it_does_at_the_server() {
    for lab in clear_and_encrypted().await {
        let bytes = image();
        lab.image("debian:1", &bytes).await;
        let store = lab.open("alice", 2).await;
        assert_eq!(lab.read_image(&store, "debian:1").await.unwrap(), bytes);
    }
}

#[tokio::test]
async fn who_takes_a_segment_by_column_gets_it_shorter_and_a_sealed_one_as_it_is() {
    for lab in clear_and_encrypted().await {
        let record = lab.image("debian:1", &noise(2, 8 << 20)).await;
        let manifest = record.body.manifest.unwrap();
        let segment = lab.store.manifest_segments(&manifest).await.unwrap()[0];
        let raw = lab.raw("alice").await;
        let path = format!("/v1/objects/segments/{segment}");
        let plain = raw.get(&path).await;
        assert_eq!(plain.headers.get("content-encoding"), None);
        let asked = [("accept-encoding", segment_columns::CODING)];
        let sent = raw.send("GET", &path, &asked, Bytes::new()).await;
        assert_eq!(sent.status, 200);
        if lab.store.settings().is_encrypted() {
            assert_eq!(sent.body, plain.body);
            continue;
        }
        assert_eq!(sent.headers["content-encoding"], segment_columns::CODING);
        assert!(sent.body.len() * 10 < plain.body.len() * 7, "{}", sent.body.len());
        assert_eq!(segment_columns::unpack(&sent.body).unwrap(), plain.body);
        // Ranges are those of the object.
        let part = raw.send("GET", &path, &[asked[0], ("range", "bytes=0-7")], Bytes::new()).await;
        assert_eq!((part.status, &part.body[..]), (206, &b"SOJSEGM\n"[..]));
    }
}

#[tokio::test]
async fn every_object_that_may_be_read_is_the_one_of_the_backend_in_whole_and_in_ranges() {
    for lab in clear_and_encrypted().await {
        lab.image("debian:1", &image()).await;
        let gateway = lab.object_store("alice");
        let all: Vec<_> = lab.backend.list(None).try_collect().await.unwrap();
        let mut read = 0;
        for meta in all {
            if meta.location.as_ref().starts_with("pins/") {
                continue;
            }
            let here = lab.backend.get(&meta.location).await.unwrap().bytes().await.unwrap();
            let there = gateway.get(&meta.location).await.unwrap();
            assert_eq!((there.meta.size, &there.meta.location), (meta.size, &meta.location));
            let (a, b) = (there.meta.last_modified, meta.last_modified);
            assert_eq!(a.timestamp_millis(), b.timestamp_millis());
            assert_eq!(there.bytes().await.unwrap(), here, "{}", meta.location);
            assert_eq!(gateway.head(&meta.location).await.unwrap().size, meta.size);
            let size = meta.size;
            let ranges = [0..1, size / 3..size / 2 + 1, size - 1..size, 0..size, 5..5];
            let parts = gateway.get_ranges(&meta.location, &ranges).await.unwrap();
            for (range, part) in ranges.iter().zip(parts) {
                assert_eq!(part, here.slice(range.start as usize..range.end as usize));
                if !range.is_empty() {
                    assert_eq!(
                        gateway.get_range(&meta.location, range.clone()).await.unwrap(),
                        part
                    );
                }
            }
            read += 1;
        }
        assert!(read >= 5, "settings, a pack, a segment, a root and a name: {read}");
    }
}

/// A way to the gateway on which every connection breaks when it has brought so many bytes; gives its port, and
/// counts what it brought.
async fn breaking(to: SocketAddr, after: u64, tasks: &mut JoinSet<()>) -> (u16, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (port, brought) = (listener.local_addr().unwrap().port(), Arc::new(AtomicU64::new(0)));
    let counted = Arc::clone(&brought);
    tasks.spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            let server = TcpStream::connect(to).await.unwrap();
            let ((mut asks, mut is_told), (server, mut to_server)) =
                (client.into_split(), server.into_split());
            let mut answers = server.take(after);
            tokio::select! {
                _ = tokio::io::copy(&mut asks, &mut to_server) => {}
                copied = tokio::io::copy(&mut answers, &mut is_told) => {
                    counted.fetch_add(copied.unwrap_or(0), Relaxed);
                }
            }
        }
    });
    (port, brought)
}

#[tokio::test]
async fn a_batch_over_a_link_that_breaks_every_mebibyte_comes_bit_by_bit() {
    let lab = Lab::new().await;
    lab.image("debian:1", &noise(5, 6 << 20)).await;
    let mut tasks = JoinSet::new();
    let (port, brought) = breaking(lab.address, 1 << 20, &mut tasks).await;
    let options = OpenStoreOptions {
        patience: Patience::lasting(Duration::from_secs(20)),
        ..OpenStoreOptions::default()
    };
    let bare = Arc::new(lab.object_store_at("alice", port));
    let opened = objects::exact(bare, "gateway+https://test", &options);
    let packs: Vec<_> = lab.backend.list(Some(&Path::from("packs"))).try_collect().await.unwrap();
    let pack = packs.iter().max_by_key(|meta| meta.size).unwrap();
    assert!(pack.size > 5 << 20);
    let whole = lab.backend.get(&pack.location).await.unwrap().bytes().await.unwrap();
    let starts = (0..pack.size).step_by(64 << 10);
    let ranges: Vec<_> = starts.map(|at| at..pack.size.min(at + (64 << 10))).collect();
    let parts = opened.backend.get_ranges(&pack.location, &ranges).await.unwrap();
    assert_eq!(parts.concat(), whole);
    let brought = brought.load(Relaxed);
    // What was on its way when the link broke, and only that, comes again.
    assert!(brought < pack.size * 2, "{brought} for {}", pack.size);
}

#[tokio::test]
async fn a_range_that_goes_beyond_the_end_gives_what_there_is() {
    let lab = Lab::new().await;
    lab.image("debian:1", &image()).await;
    let raw = lab.raw("alice").await;
    let whole = raw.object("store.json").await.body;
    let (size, last) = (whole.len() as u64, &whole[whole.len() - 4..]);
    let got = raw.range("store.json", size - 4, size + 100).await;
    assert_eq!((got.status, &got.body[..]), (206, last));
    assert_eq!(got.headers["content-range"], format!("bytes {}-{}/*", size - 4, size - 1));
    assert_eq!(raw.range("store.json", size, size + 1).await.status, 400);
    let body = format!("store.json {} 100\nstore.json {size} 1\n", size - 4);
    let got = raw.send("POST", "/v1/ranges", &[], body.into()).await;
    assert_eq!(got.body, [&4u32.to_le_bytes()[..], last, &u32::MAX.to_le_bytes()].concat());
}

#[tokio::test]
async fn errors_have_the_kinds_that_a_store_expects() {
    use object_store::Error;
    let lab = Lab::new().await;
    lab.image("debian:1", &image()).await;
    let gateway = lab.object_store("alice");
    let gone = Path::from(format!("packs/{}", "0".repeat(64)));
    assert!(matches!(gateway.get(&gone).await, Err(Error::NotFound { .. })));
    assert!(matches!(gateway.head(&gone).await, Err(Error::NotFound { .. })));
    assert!(matches!(gateway.get_ranges(&gone, &[0..1, 2..3]).await, Err(Error::NotFound { .. })));
    let settings = Path::from("store.json");
    let put = gateway.put(&settings, "mine".into()).await;
    assert!(matches!(put, Err(Error::PermissionDenied { .. })), "{put:?}");
    assert!(matches!(gateway.delete(&settings).await, Err(Error::PermissionDenied { .. })));
    let end = gateway.get_range(&settings, 1 << 20..2 << 20).await.unwrap_err();
    assert!(matches!(end, Error::Generic { .. }), "{end:?}");
    // Nobody there: the store can be asked again later.
    let nobody = lab.object_store_at("alice", 1);
    let error = nobody.get(&settings).await.unwrap_err();
    let io = std::error::Error::source(&error).and_then(|e| e.downcast_ref::<std::io::Error>());
    assert_eq!(io.map(std::io::Error::kind), Some(std::io::ErrorKind::ConnectionRefused));
}

#[tokio::test]
async fn a_disk_is_taken_written_snapshot_and_given_back_through_the_gateway() {
    for lab in clear_and_encrypted().await {
        let mut bytes = image();
        lab.image("debian:1", &bytes).await;
        let server = lab.server_disks();
        lab.create(&server, "alice", "debian:1").await;
        server.release("alice").await.unwrap();

        let (_home, disks) = lab.disks("alice", 2).await;
        disks.take("alice", false).await.unwrap();
        let disk = disks.open("alice").await.unwrap();
        let written = noise(9, 300_000usize.next_multiple_of(4096));
        let at = 1 << 20;
        disk.write(Span::between(at, at + written.len() as u64), &written, Durability::Durable)
            .await
            .unwrap();
        bytes[at as usize..at as usize + written.len()].copy_from_slice(&written);
        assert_eq!(read_all(&*disk).await.unwrap(), bytes);
        disk.snapshot("one", &()).await.unwrap();
        disk.write(Span::whole(4096), &[3; 4096], Durability::Durable).await.unwrap();
        bytes[..4096].fill(3);
        assert_eq!(disk.snapshots().await.unwrap().len(), 1);
        disk.close().await.unwrap();
        drop(disk);
        disks.release("alice").await.unwrap();

        server.take("alice", false).await.unwrap();
        let back = server.open("alice").await.unwrap();
        assert_eq!(read_all(&*back).await.unwrap(), bytes);
        assert_eq!(back.snapshots().await.unwrap().len(), 1);
        let report =
            store::verify::store(&lab.store, &store::verify::VerifyOptions::default(), &()).await;
        assert!(report.unwrap().faults.is_empty(), "what a client wrote is whole");
    }
}

#[tokio::test]
async fn a_client_goes_on_when_the_server_is_killed_in_the_middle_of_a_snapshot() {
    let mut lab = Lab::new().await;
    lab.image("debian:1", &image()).await;
    let server = lab.server_disks();
    lab.create(&server, "alice", "debian:1").await;
    server.release("alice").await.unwrap();
    let (_home, disks) = lab.disks("alice", 2).await;
    disks.take("alice", false).await.unwrap();
    let disk = disks.open("alice").await.unwrap();
    for round in 0..4u64 {
        let written = noise(20 + round, 2 << 20);
        disk.write(Span::whole(written.len() as u64), &written, Durability::Durable).await.unwrap();
        let name = format!("s{round}");
        let snapshot = disk.snapshot(&name, &());
        tokio::pin!(snapshot);
        let before = lab.gateway.counters().written;
        // Somewhere between the pin, the packs, the segments, the root and the name.
        let until = before + round;
        let done = loop {
            tokio::select! {
                done = &mut snapshot => break Some(done),
                () = tokio::time::sleep(std::time::Duration::from_millis(1)) => {
                    if lab.gateway.counters().written > until {
                        break None;
                    }
                }
            }
        };
        lab.kill_and_restart().await;
        match done {
            Some(done) => done.map(drop).unwrap(),
            None => snapshot.await.map(drop).unwrap(),
        }
    }
    assert_eq!(disk.snapshots().await.unwrap().len(), 4);
}
