//! What a client with rights on one disk can learn and do beyond them by raw HTTP: nothing.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lab;

use bytes::Bytes;
use disk::Disks;
use futures::TryStreamExt;
use gateway::GatewayLimits;
use http_body_util::BodyExt;
use lab::{Got, Lab, Raw, empty_body, encrypted, record};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::{StoreCall, StoreFault};
use std::sync::Arc;
use std::time::Duration;
use store::testing::{self, noise};
use store::{ChunkRef, RefBody, RefKind, RefRecord, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A lab with what alice may not see, part of it in one pack with what she may.
struct Scene {
    lab: Lab,
    secret: RefRecord,
    debian: RefRecord,
    server: Disks,
}

async fn scene() -> Scene {
    scene_with(GatewayLimits::default()).await
}

async fn scene_with(limits: GatewayLimits) -> Scene {
    let lab = Lab::with(testing::settings(), limits).await;
    let shared = noise(2, 1 << 20);
    let secret = lab.image("secret:1", &[noise(1, 1 << 20), shared.clone()].concat()).await;
    let debian = lab.image("debian:1", &[shared, noise(3, 1 << 20)].concat()).await;
    let server = lab.server_disks();
    lab.create(&server, "alice", "debian:1").await;
    lab.create(&server, "bob", "secret:1").await;
    Scene { lab, secret, debian, server }
}

impl Scene {
    async fn chunks(&self, of: &RefRecord) -> Vec<ChunkRef> {
        let manifest = self.lab.store.manifest(&of.body.manifest.unwrap()).await.unwrap();
        manifest.chunks().await.unwrap()
    }

    /// Chunks in secret's pack: the ones of secret alone, and the ones that debian has, too.
    async fn split(&self) -> (Vec<ChunkRef>, Vec<ChunkRef>) {
        let debian = self.chunks(&self.debian).await;
        let (shared, own): (Vec<_>, Vec<_>) =
            self.chunks(&self.secret).await.into_iter().partition(|at| debian.contains(at));
        assert!(shared.len() > 2 && own.len() > 2, "{} and {}", shared.len(), own.len());
        (own, shared)
    }

    async fn objects(&self, prefix: &str) -> Vec<(String, Bytes)> {
        let listed: Vec<_> =
            self.lab.backend.list(Some(&Path::from(prefix))).try_collect().await.unwrap();
        let mut objects = Vec::new();
        for meta in listed {
            let got = self.lab.backend.get(&meta.location).await.unwrap();
            objects.push((meta.location.to_string(), got.bytes().await.unwrap()));
        }
        objects
    }
}

/// Checks that the answer is that of what does not exist.
async fn as_absent(raw: &Raw, got: &Got) {
    let nothing = raw.object(&format!("packs/{}", "5".repeat(64))).await;
    assert_eq!(got.status, 404);
    assert_eq!(got.body, nothing.body);
    let names = |got: &Got| got.headers.keys().map(|k| k.as_str().to_owned()).collect::<Vec<_>>();
    assert_eq!(names(got), names(&nothing));
}

#[tokio::test]
async fn objects_of_others_look_as_if_they_did_not_exist() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let mine = scene.debian.body.manifest.unwrap();
    let mut hidden = 0;
    for prefix in ["manifests", "segments", "packs"] {
        for (key, _) in scene.objects(prefix).await {
            let got = alice.object(&key).await;
            let own = key == format!("manifests/{mine}");
            if own {
                assert_eq!(got.status, 200);
            } else if got.status != 200 {
                as_absent(&alice, &got).await;
                let head =
                    alice.send("HEAD", &format!("/v1/objects/{key}"), &[], Bytes::new()).await;
                assert_eq!(head.status, 404);
                hidden += 1;
            }
        }
    }
    assert_eq!(hidden, 3, "secret's root, segment and pack");
    let secret = scene.secret.body.manifest.unwrap();
    as_absent(&alice, &alice.object(&format!("manifests/{secret}")).await).await;
    for (key, _) in scene.objects("refs").await {
        let got = alice.object(&key).await;
        let own = ["refs/disk/alice/", "refs/image/debian:1/", "refs/gc/"];
        match own.iter().any(|prefix| key.starts_with(prefix)) {
            true => assert_eq!(got.status, 200, "{key}"),
            false => as_absent(&alice, &got).await,
        }
    }
}

#[tokio::test]
async fn of_a_shared_pack_only_the_chunks_of_what_may_be_read_are_given() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let (own, shared) = scene.split().await;
    let pack = format!("packs/{}", shared[0].pack);
    let span = |at: &ChunkRef| (u64::from(at.offset), u64::from(at.offset + at.stored));
    for at in &shared {
        let (start, end) = span(at);
        assert_eq!(alice.range(&pack, start, end).await.status, 206);
    }
    for at in &own {
        let (start, end) = span(at);
        for (start, end) in [(start, end), (start, start + 1), (end - 1, end)] {
            as_absent(&alice, &alice.range(&pack, start, end).await).await;
        }
    }
    let (start, end) = (span(&shared[0]).0, span(shared.last().unwrap()).1);
    assert_eq!(alice.range(&pack, start, end).await.status, 206, "they lie side by side");
    let size = scene.lab.backend.head(&Path::from(pack.as_str())).await.unwrap().size;
    for (start, end) in [(start - 1, end), (start, end + 1), (0, 16), (size - 32, size), (0, size)]
    {
        as_absent(&alice, &alice.range(&pack, start, end).await).await;
    }
    // The same by batches, where each part is judged by itself.
    let line = |at: &ChunkRef| format!("{pack} {} {}\n", at.offset, at.stored);
    let body = format!("{}{}", line(&own[0]), line(&shared[0]));
    let got = alice.send("POST", "/v1/ranges", &[], body.into()).await;
    assert_eq!(got.status, 200);
    assert_eq!(got.body[..4], u32::MAX.to_le_bytes());
    assert_eq!(got.body[4..8], shared[0].stored.to_le_bytes());
    assert_eq!(got.body.len(), 8 + shared[0].stored as usize);
    // And bob, who may read all of it, gets it whole.
    let bob = scene.lab.raw("bob").await;
    assert_eq!(bob.object(&pack).await.body.len() as u64, size);
}

#[tokio::test]
async fn a_rewritten_pack_leads_a_client_to_its_own_chunks_alone() {
    let scene = scene().await;
    let (_, shared) = scene.split().await;
    // The disks and the image that keep the others go, and a collection rewrites the pack.
    scene.server.remove("bob").await.unwrap();
    scene.lab.store.refs().remove(RefKind::Image, "secret:1", 1).await.unwrap();
    let options = store::gc::GcOptions {
        grace: Duration::ZERO,
        stale: Duration::ZERO,
        rewrite_below: 0.99,
        ..store::gc::GcOptions::default()
    };
    for _ in 0..3 {
        store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    }
    let moved = format!("moved/{}", shared[0].pack);
    let there = scene.lab.store.moved_chunks(&shared[0].pack).await.unwrap();
    assert!(there.is_some(), "the pack was rewritten");
    let alice = scene.lab.raw("alice").await;
    assert_eq!(alice.object(&moved).await.status, 200);
    let bob = scene.lab.raw("bob").await;
    as_absent(&bob, &bob.object(&moved).await).await;
    let store = scene.lab.open("alice", 5).await;
    let expected = [noise(2, 1 << 20), noise(3, 1 << 20)].concat();
    assert_eq!(scene.lab.read_image(&store, "debian:1").await.unwrap(), expected);
}

#[tokio::test]
async fn a_map_names_no_foreign_chunk_of_a_rewritten_pack() {
    let scene = scene().await;
    let (own, shared) = scene.split().await;
    // Of the secret that is left, the pack has some of what it has of alice's.
    let left = scene.lab.image("secret:2", &noise(1, 1 << 20)).await;
    scene.server.remove("bob").await.unwrap();
    scene.lab.store.refs().remove(RefKind::Image, "secret:1", 1).await.unwrap();
    let foreign = scene.chunks(&left).await;
    let foreign = own.iter().find(|at| foreign.iter().any(|other| other.id == at.id)).unwrap();
    // What else is in the pack goes, so that it is rewritten.
    let options = store::gc::GcOptions {
        grace: Duration::ZERO,
        stale: Duration::ZERO,
        rewrite_below: 1.0,
        ..store::gc::GcOptions::default()
    };
    for _ in 0..3 {
        store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    }
    let moved = scene.lab.store.moved_chunks(&shared[0].pack).await.unwrap().unwrap();
    assert!(moved.iter().any(|at| at.id == foreign.id), "it was moved with the rest");
    let gone = scene.lab.store.pack_chunks(&shared[0].pack).await.unwrap_err();
    assert_eq!(gone.kind(), block::ErrorKind::NotFound);
    let alice = scene.lab.raw("alice").await;
    let settings = testing::settings();
    // At a place in the pack that was that of a chunk of hers.
    let forged = ChunkRef { pack: shared[0].pack, offset: shared[0].offset, ..*foreign };
    let (key, bytes) = testing::segment_object(&settings, &[forged]).unwrap();
    assert_eq!(alice.put(&key, bytes).await.status, 403);
    let (key, bytes) = testing::segment_object(&settings, &shared[..1]).unwrap();
    assert_eq!(alice.put(&key, bytes).await.status, 201, "her own may be named where it was");
}

#[tokio::test]
async fn names_of_others_are_in_no_listing() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    for (prefix, own) in [("refs/disk", "alice"), ("refs/image", "debian"), ("refs/snapshot", "")] {
        let got = alice.get(&format!("/v1/list/{prefix}")).await;
        let text = String::from_utf8(got.body.to_vec()).unwrap();
        assert!(got.status == 200 && text.contains(own), "{text}");
        assert!(!text.contains("secret") && !text.contains("bob"), "{text}");
    }
    for name in ["disk/bob", "image/secret:1", "disk/nobody", "snapshot/bob@one"] {
        let got = alice.get(&format!("/v1/list/refs/{name}")).await;
        assert_eq!((got.status, &got.body[..]), (200, b"[]\n".as_slice()));
    }
    assert_eq!(alice.get("/v1/list/packs").await.body, "[]\n");
    for prefix in ["", "refs", "pins", "servers", "manifests", "segments", "condemned", "../x"] {
        as_absent(&alice, &alice.get(&format!("/v1/list/{prefix}")).await).await;
    }
}

#[tokio::test]
async fn a_listing_shows_the_newest_records_of_each_name_however_many_there_are() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let refs = scene.lab.store.refs();
    let mut last = refs.get(RefKind::Disk, "alice").await.unwrap().unwrap();
    for _ in 0..30 {
        last = refs.update(RefKind::Disk, "alice", last.sequence, last.body).await.unwrap();
    }
    let newest: Vec<_> = (last.sequence - 7..=last.sequence)
        .map(|number| format!("refs/disk/alice/{number:020}"))
        .collect();
    for prefix in ["refs/disk", "refs/disk/alice"] {
        let got = alice.get(&format!("/v1/list/{prefix}")).await;
        let listed: Vec<gateway::wire::ListedObject> = serde_json::from_slice(&got.body).unwrap();
        let keys: Vec<_> = listed.into_iter().map(|object| object.key).collect();
        assert_eq!(keys, newest);
    }
    // And a client needs no more of them.
    scene.server.release("alice").await.unwrap();
    let (_home, disks) = scene.lab.disks("alice", 4).await;
    disks.take("alice", false).await.unwrap();
    disks.release("alice").await.unwrap();
}

#[tokio::test]
async fn a_map_of_foreign_chunks_is_refused_until_its_writer_has_brought_them() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let secret = scene.secret.body.manifest.unwrap();
    let objects = scene.objects("").await;
    let of = |wanted: String| objects.iter().find(|(key, _)| *key == wanted).cloned().unwrap();
    let (root, root_bytes) = &of(format!("manifests/{secret}"));
    let segment = scene.lab.store.manifest_segments(&secret).await.unwrap()[0];
    let (segment, segment_bytes) = &of(format!("segments/{segment}"));
    // Word for word what is in the store, and yet not hers to name.
    assert_eq!(alice.put(segment, segment_bytes.clone()).await.status, 403);
    assert_eq!(alice.put(root, root_bytes.clone()).await.status, 403);
    as_absent(&alice, &alice.object(segment).await).await;
    as_absent(&alice, &alice.object(root).await).await;
    // Who has the content has it, and may say so.
    let (pack, pack_bytes) = of(format!("packs/{}", scene.chunks(&scene.secret).await[0].pack));
    assert_eq!(alice.put(&pack, pack_bytes).await.status, 201);
    assert_eq!(alice.put(segment, segment_bytes.clone()).await.status, 201);
    assert_eq!(alice.put(root, root_bytes.clone()).await.status, 201);
    assert_eq!(alice.object(segment).await.body, *segment_bytes);
}

#[tokio::test]
async fn what_was_brought_and_collected_is_named_only_when_it_was_brought_again() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let secret = scene.secret.body.manifest.unwrap();
    let objects = scene.objects("").await;
    let of = |wanted: String| objects.iter().find(|(key, _)| *key == wanted).cloned().unwrap();
    let (root, root_bytes) = of(format!("manifests/{secret}"));
    let segment = scene.lab.store.manifest_segments(&secret).await.unwrap()[0];
    let (segment, segment_bytes) = of(format!("segments/{segment}"));
    let (pack, pack_bytes) = of(format!("packs/{}", scene.chunks(&scene.secret).await[0].pack));
    let current = scene.lab.store.refs().get(RefKind::Disk, "alice").await.unwrap().unwrap();
    let mut body = current.body.clone();
    body.manifest = Some(secret);
    let epoch: u64 = body.labels["epoch"].parse().unwrap();
    body.labels.insert("holder".into(), store::ServerId([7; 16]).to_string());
    body.labels.insert("epoch".into(), (epoch + 1).to_string());
    let (name, name_bytes) = record(RefKind::Disk, "alice", current.sequence + 1, Some(body)).await;
    assert_eq!(alice.put(&pack, pack_bytes).await.status, 201);
    let steps = [(&segment, &segment_bytes), (&root, &root_bytes), (&name, &name_bytes)];
    for (at, (key, bytes)) in steps.iter().enumerate() {
        // A collection takes what no name leads to.
        for (gone, content) in &steps[..at] {
            scene.lab.backend.delete(&Path::from(gone.as_str())).await.unwrap();
            let got = alice.put(key, (*bytes).clone()).await;
            assert_eq!(got.status, 403, "{key} without {gone}");
            assert!(String::from_utf8_lossy(&got.body).contains("bring it first"));
            assert_eq!(alice.put(gone, (*content).clone()).await.status, 201, "{gone}");
        }
        assert_eq!(alice.put(key, (*bytes).clone()).await.status, 201, "{key}");
    }
}

#[tokio::test]
async fn no_name_is_published_that_leads_to_what_is_foreign() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let current = scene.lab.store.refs().get(RefKind::Disk, "alice").await.unwrap().unwrap();
    let next = current.sequence + 1;
    let secret = scene.secret.body.manifest.unwrap();
    // As if alice's own server held it, so that nothing else is in the way.
    let own = store::ServerId([7; 16]);
    let mut body = current.body.clone();
    let epoch: u64 = body.labels["epoch"].parse().unwrap();
    body.labels.insert("holder".into(), own.to_string());
    body.labels.insert("epoch".into(), (epoch + 1).to_string());
    let put = async |name: &str, body: Option<RefBody>, sequence: u64| {
        let (key, bytes) = record(RefKind::Disk, name, sequence, body).await;
        alice.put(&key, bytes).await.status
    };
    let changed = |change: &dyn Fn(&mut RefBody)| {
        let mut body = body.clone();
        change(&mut body);
        Some(body)
    };
    assert_eq!(put("alice", changed(&|b| b.manifest = Some(secret)), next).await, 403);
    for label in ["origin", "also"] {
        let foreign = changed(&|b| drop(b.labels.insert(label.into(), secret.to_string())));
        assert_eq!(put("alice", foreign, next).await, 403, "{label}");
    }
    let boot = changed(&|b| drop(b.labels.insert("boot_copy".into(), secret.to_string())));
    assert_eq!(put("alice", boot, next).await, 403);
    assert_eq!(put("bob", Some(body.clone()), 2).await, 403, "another's disk");
    assert_eq!(put("nobody", Some(body.clone()), 1).await, 403, "a new one beyond the rules");
    assert_eq!(put("alice", None, next).await, 403, "a removal");
    let (key, bytes) = record(RefKind::Image, "debian:2", 1, Some(empty_body(None))).await;
    assert_eq!(alice.put(&key, bytes).await.status, 403, "images are no client's");
    let (key, bytes) = record(RefKind::Snapshot, "alice@one", 1, Some(body.clone())).await;
    assert_eq!(alice.put(&key, bytes).await.status, 403, "the disk is not held by her server");
    // Epochs and holders.
    for (epoch_then, holder) in [(epoch, own), (epoch + 2, own), (0, own)] {
        let foreign = changed(&|b| {
            b.labels.insert("epoch".into(), epoch_then.to_string());
            b.labels.insert("holder".into(), holder.to_string());
        });
        assert_eq!(put("alice", foreign, next).await, 403, "epoch {epoch_then}");
    }
    // The row.
    assert_eq!(put("alice", Some(body.clone()), next + 1).await, 409, "a gap");
    assert_eq!(put("alice", Some(body.clone()), current.sequence).await, 409, "what is there");
    let found = scene.lab.store.refs().get(RefKind::Disk, "alice").await.unwrap().unwrap();
    assert_eq!(found, current, "nothing was written");
    // And one that is in order is taken.
    assert_eq!(put("alice", Some(body.clone()), next).await, 201);
}

#[tokio::test]
async fn a_record_is_never_written_over_one_that_it_was_not_checked_against() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let refs = scene.lab.store.refs();
    let current = refs.get(RefKind::Disk, "alice").await.unwrap().unwrap();
    let own = store::ServerId([7; 16]);
    let mut body = current.body.clone();
    let epoch: u64 = body.labels["epoch"].parse().unwrap();
    body.labels.insert("holder".into(), own.to_string());
    body.labels.insert("epoch".into(), (epoch + 1).to_string());
    // Whether it follows is judged while its server is looked up; another record comes meanwhile.
    let holder = Path::from(format!("servers/{own}"));
    for ahead in [2, 1] {
        let looks_up = StoreCall::Get(holder.clone());
        scene.lab.script(move |call| match *call == looks_up {
            true => StoreFault::Hold,
            false => StoreFault::None,
        });
        let now = refs.get(RefKind::Disk, "alice").await.unwrap().unwrap();
        let (key, bytes) =
            record(RefKind::Disk, "alice", now.sequence + ahead, Some(body.clone())).await;
        let put = alice.put(&key, bytes);
        tokio::pin!(put);
        let held = scene.lab.scripted.calls.until(|log| log.held == 1);
        let early = tokio::select! {
            got = &mut put => Some(got),
            () = held => None,
        };
        let fenced = refs.update(RefKind::Disk, "alice", now.sequence, now.body).await.unwrap();
        scene.lab.script(|_| StoreFault::None);
        let got = match early {
            Some(got) => got,
            None => {
                scene.lab.scripted.calls.release(1);
                put.await
            }
        };
        assert_eq!(got.status, 409, "{ahead} ahead");
        assert_eq!(refs.get(RefKind::Disk, "alice").await.unwrap(), Some(fenced));
    }
}

#[tokio::test]
async fn a_holder_that_is_at_work_keeps_its_disk_and_its_announcement() {
    let scene = scene().await;
    let here = scene.server.server().await.unwrap();
    let servers = scene.lab.store.servers();
    servers.announce(here, "lab-server", Duration::from_secs(600)).await.unwrap();
    // Alice's server, announced through the gateway, is known as hers.
    let store = scene.lab.open("alice", 3).await;
    let hers = store::ServerId([9; 16]);
    store.servers().announce(hers, "laptop", Duration::from_secs(60)).await.unwrap();
    let seen = servers.seen(&hers).await.unwrap().unwrap();
    assert_eq!((seen.host.as_str(), seen.is_alive()), ("cert:alice (laptop)", true));
    let good_bye = store.servers().announce(here, "lab-server", Duration::ZERO).await;
    assert_eq!(good_bye.unwrap_err().kind(), block::ErrorKind::Denied);
    assert!(servers.seen(&here).await.unwrap().unwrap().is_alive());
    let (_home, disks) = scene.lab.disks("alice", 4).await;
    let taken = disks.take("alice", true).await.unwrap_err();
    assert_eq!(taken.kind(), block::ErrorKind::Denied, "{taken}");
    assert!(taken.message().contains("lab-server"), "{taken}");
    servers.announce(here, "lab-server", Duration::ZERO).await.unwrap();
    disks.take("alice", true).await.unwrap();
}

#[tokio::test]
async fn what_is_not_what_its_key_says_is_refused() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    for prefix in ["packs", "segments", "manifests"] {
        let (key, bytes) = scene.objects(prefix).await.into_iter().next().unwrap();
        for at in [0, 8, 17, bytes.len() / 2, bytes.len() - 1] {
            let mut bad = bytes.to_vec();
            bad[at] ^= 1;
            let got = alice.put(&key, bad).await;
            assert!(matches!(got.status, 400 | 501), "{key} byte {at}: {got:?}");
        }
        for bad in [Vec::new(), bytes[..bytes.len() - 1].to_vec(), [&bytes[..], b"x"].concat()] {
            assert_eq!(alice.put(&key, bad).await.status, 400);
        }
        let other = format!("{prefix}/{}", "a".repeat(64));
        assert_eq!(alice.put(&other, bytes).await.status, 400, "under another name");
    }
    for (key, body) in [
        (format!("pins/{}", "a".repeat(32)), "noise"),
        (format!("servers/{}", "a".repeat(32)), "noise"),
        ("servers/clock".to_owned(), "noise"),
        (format!("refs/disk/alice/{:020}", 9), "noise"),
    ] {
        assert_eq!(alice.put(&key, body).await.status, 400, "{key}");
    }
    assert_eq!(alice.put(&format!("refs/disk/alice/{:020}", 9), vec![0; 70_000]).await.status, 400);
}

#[tokio::test]
async fn nothing_can_be_deleted_or_overwritten_and_a_reader_writes_nothing() {
    let scene = scene().await;
    let before = scene.objects("").await;
    for client in ["alice", "reader"] {
        let raw = scene.lab.raw(client).await;
        for (key, bytes) in &before {
            if !key.starts_with("pins/") {
                assert!(matches!(raw.delete(key).await.status, 403 | 404), "{key}");
            }
            let writes = ["packs/", "segments/", "manifests/", "servers/clock"];
            if client == "reader" || !writes.iter().any(|prefix| key.starts_with(prefix)) {
                let other = [&bytes[..], b" "].concat();
                let status = raw.put(key, other).await.status;
                assert!(matches!(status, 400 | 403 | 404 | 409), "{client} {key}: {status}");
            }
        }
        for method in ["POST", "PATCH", "OPTIONS", "TRACE"] {
            let got = raw.send(method, "/v1/objects/store.json", &[], Bytes::new()).await;
            assert_eq!(got.status, 405, "{method}");
        }
    }
    assert_eq!(scene.objects("").await, before);
}

#[tokio::test]
async fn a_pin_holds_only_what_its_writer_may_read_and_is_deleted_by_who_knows_it() {
    let scene = scene().await;
    let store = scene.lab.open("alice", 3).await;
    let session = store.session("a test").await.unwrap();
    session.hold(RefKind::Disk, "alice").await.unwrap();
    assert!(session.hold(RefKind::Disk, "bob").await.unwrap().is_none(), "it is not there for her");
    let pins = scene.objects("pins").await;
    assert!(!pins.is_empty());
    session.close(Ok(())).await.unwrap();
    let left = scene.objects("pins").await;
    assert!(left.len() < pins.len(), "{left:?}");
    // A foreign manifest in a pin would keep it from being collected.
    let scratch: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let other = Store::create(Arc::clone(&scratch), testing::settings(), testing::world(8));
    let other = other.await.unwrap();
    other.refs().create(RefKind::Disk, "x", scene.secret.body.clone()).await.unwrap();
    let foreign = other.session("mine").await.unwrap();
    foreign.hold(RefKind::Disk, "x").await.unwrap();
    let listed: Vec<_> =
        scratch.list(Some(&Path::from("pins"))).try_collect::<Vec<_>>().await.unwrap();
    let alice = scene.lab.raw("alice").await;
    let mut statuses = Vec::new();
    for meta in listed {
        let bytes = scratch.get(&meta.location).await.unwrap().bytes().await.unwrap();
        statuses.push(alice.put(meta.location.as_ref(), bytes).await.status);
    }
    statuses.sort_unstable();
    assert_eq!(statuses, [201, 403], "the one before it held anything, and the one that does");
}

#[tokio::test]
async fn paths_and_ranges_that_mean_nothing_are_absent_or_refused() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    for path in [
        "/",
        "/v2/",
        "/v1",
        "/v1/objects/",
        "/v1/objects/../store.json",
        "/v1/objects/%2e%2e/sojourn.toml",
        "/v1/objects/refs/disk/al%69ce/00000000000000000001",
        "/v1/objects/listing",
        "/v1/ranges/x",
        &format!("/v1/objects/packs/{}", "0".repeat(4000)),
    ] {
        as_absent(&alice, &alice.get(path).await).await;
    }
    for range in ["bytes=9-1", "bytes=-5", "bytes=0-1,2-3", "x", "bytes=0-99999999999999999999"] {
        let headers = [("range", range)];
        let got = alice.send("GET", "/v1/objects/store.json", &headers, Bytes::new()).await;
        assert_eq!(got.status, 400, "{range}");
    }
    for body in ["", "x", "store.json 0 1 2", "packs/x 0 1"] {
        assert_eq!(alice.send("POST", "/v1/ranges", &[], body.into()).await.status, 400);
    }
    let about = alice.get("/v1/").await;
    assert!(String::from_utf8_lossy(&about.body).contains("\"client\":\"alice\""));
}

#[tokio::test]
async fn rules_that_change_take_rights_away_at_once() {
    let scene = scene().await;
    let alice = scene.lab.raw("alice").await;
    let root = format!("manifests/{}", scene.debian.body.manifest.unwrap());
    assert_eq!(alice.object(&root).await.status, 200);
    scene.lab.rules.store(Arc::new(access::Rules::new(Vec::new(), true).unwrap()));
    as_absent(&alice, &alice.object(&root).await).await;
    assert_eq!(alice.get("/v1/list/refs/image").await.body, "[]\n");
}

#[tokio::test]
async fn headers_without_end_and_bodies_without_progress_cost_only_their_sender() {
    let limits = GatewayLimits { patience: Duration::from_secs(5), ..GatewayLimits::default() };
    let scene = scene_with(limits).await;
    let hostile = scene.lab.raw("alice").await;
    let huge = "x".repeat(64 << 10);
    let got = hostile.try_send("GET", "/v1/", &[("x-huge", &huge)], Bytes::new()).await;
    assert!(got.is_err() || got.unwrap().status >= 400);
    // A body that says it comes, and does not.
    let stalled = scene.lab.raw("alice").await;
    let length = [("content-length", "1000")];
    let key = format!("/v1/objects/packs/{}", "a".repeat(64));
    let got = stalled.try_send("PUT", &key, &length, Bytes::new()).await;
    assert!(got.is_err() || got.unwrap().status == 400, "it is shorter than it says");
    let got = scene.lab.raw("alice").await;
    let long = [("content-length", "1099511627776")];
    let got = got.try_send("PUT", &key, &long, Bytes::new()).await;
    assert!(got.is_err() || got.unwrap().status == 400, "a terabyte is refused by its header");
    assert_eq!(scene.lab.raw("bob").await.get("/v1/").await.status, 200);
}

#[tokio::test]
async fn clients_that_say_nothing_or_half_a_word_keep_nobody_out() {
    let limits = GatewayLimits {
        patience: Duration::from_secs(5),
        idle: Duration::from_secs(5),
        ..GatewayLimits::default()
    };
    let scene = scene_with(limits).await;
    let mut silent = Vec::new();
    for _ in 0..64 {
        silent.push(TcpStream::connect(scene.lab.address).await.unwrap());
    }
    let mut half = encrypted(&scene.lab, "alice").await;
    half.write_all(b"PRI * HTTP/2.0\r\n").await.unwrap();
    assert_eq!(scene.lab.raw("bob").await.get("/v1/").await.status, 200);
    // Both are closed, by and by.
    let mut rest = Vec::new();
    let closed = tokio::time::timeout(Duration::from_secs(60), half.read_to_end(&mut rest)).await;
    assert!(closed.is_ok(), "half a preface is not waited for for ever");
    let mut buffer = [0; 1];
    for mut stream in silent {
        let closed = tokio::time::timeout(Duration::from_secs(60), stream.read(&mut buffer)).await;
        assert!(matches!(closed, Ok(Ok(0) | Err(_))));
    }
}

#[tokio::test]
async fn who_does_not_take_its_answers_is_closed_and_holds_up_nobody() {
    let limits = GatewayLimits {
        patience: Duration::from_secs(5),
        bytes: 8 << 20,
        ..GatewayLimits::default()
    };
    let scene = scene_with(limits).await;
    let (_, shared) = scene.split().await;
    let pack = format!("packs/{}", shared[0].pack);
    let (start, end) = (shared[0].offset, shared.last().map(|at| at.offset + at.stored).unwrap());
    let greedy = scene.lab.raw("alice").await;
    let length = end - start;
    let body = format!("{pack} {start} {length}\n").repeat(4);
    let mut held = Vec::new();
    for _ in 0..4 {
        let request = greedy.begin("POST", "/v1/ranges", Bytes::from(body.clone()));
        let wait =
            if held.is_empty() { Duration::from_secs(30) } else { Duration::from_millis(500) };
        if let Ok(Ok(response)) = tokio::time::timeout(wait, request).await {
            held.push(response);
        }
    }
    assert!(!held.is_empty());
    let bob = scene.lab.raw("bob").await;
    assert_eq!(bob.object(&pack).await.status, 200);
    let ended = async {
        while scene.lab.gateway.counters().connections > 1 {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ended).await.expect("it is closed");
    for response in held {
        let _ = response.into_body().collect().await;
    }
}

#[tokio::test]
async fn who_stops_taking_an_answer_while_its_rights_are_looked_up_holds_up_nobody() {
    let limits = GatewayLimits { patience: Duration::from_secs(60), ..GatewayLimits::default() };
    let scene = scene_with(limits).await;
    let (own, shared) = scene.split().await;
    let pack = format!("packs/{}", shared[0].pack);
    let (start, end) = (shared[0].offset, shared.last().map(|at| at.offset + at.stored).unwrap());
    let hers = format!("{pack} {start} {}\n", end - start);
    let foreign = format!("{pack} {} {}\n", own[0].offset, own[0].stored);
    let greedy = scene.lab.narrow("alice").await;
    assert_eq!(greedy.range(&pack, start.into(), end.into()).await.status, 206);
    // Her rights are old enough then to be looked up again for what she may not read. (Time has to pass for that, and
    // the clock cannot be paused: the connections are real.)
    tokio::time::sleep(Duration::from_millis(1200)).await;
    scene.lab.slow_down();
    let is_list = |call: &StoreCall| matches!(call, StoreCall::List(_));
    let before = scene.lab.scripted.calls.log().count(is_list);
    let body = Bytes::from(hers + &foreign);
    let answer = greedy.begin("POST", "/v1/ranges", body).await.unwrap();
    // The second part looks them up, with a lock that all clients share; the first one fills what she lets the
    // server send meanwhile.
    scene.lab.scripted.calls.until(|log| log.count(is_list) > before).await;
    let bob = scene.lab.raw("bob").await;
    let got = tokio::time::timeout(Duration::from_secs(30), bob.object(&pack)).await;
    assert_eq!(got.expect("bob is not held up").status, 200);
    drop(answer);
}

#[tokio::test]
async fn a_client_has_so_many_connections_and_requests_and_no_more() {
    let limits = GatewayLimits { connections: 2, rate: 1, ..GatewayLimits::default() };
    let scene = scene_with(limits).await;
    let first = scene.lab.raw("alice").await;
    assert_eq!(first.get("/v1/").await.status, 200);
    let second = scene.lab.raw("alice").await;
    assert_eq!(second.get("/v1/").await.status, 200);
    let third = scene.lab.raw("alice").await;
    assert_eq!(third.get("/v1/").await.status, 200);
    let ended = async {
        while first.try_send("GET", "/v1/", &[], Bytes::new()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), ended).await.expect("the oldest left");
    let mut refused = false;
    for _ in 0..40 {
        refused |= third.get("/v1/").await.status == 503;
    }
    assert!(refused, "ten requests at once at one a second");
    assert_eq!(scene.lab.raw("bob").await.get("/v1/").await.status, 200);
}

#[tokio::test]
async fn without_a_certificate_or_http_2_nothing_is_answered() {
    let scene = scene().await;
    // The server's authority, and no certificate of ours.
    let bare = tempfile::tempdir().unwrap();
    let from = scene.lab.dir.path().join("tls/clients/alice/ca-cert.pem");
    std::fs::copy(from, bare.path().join("ca-cert.pem")).unwrap();
    let url = format!("gateway+https://localhost:{}", scene.lab.address.port());
    let config = access::client_config(bare.path()).unwrap();
    let anonymous = gateway::GatewayStore::new(url.parse().unwrap(), &config).unwrap();
    assert!(anonymous.get(&Path::from("store.json")).await.is_err());
    // HTTP/1.1 over TLS.
    let config = scene.lab.config("alice");
    let stream = TcpStream::connect(scene.lab.address).await.unwrap();
    let name = tokio_rustls::rustls::pki_types::ServerName::try_from("localhost").unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let mut stream = connector.connect(name, stream).await.unwrap();
    let _ = stream.write_all(b"GET /v1/ HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}
