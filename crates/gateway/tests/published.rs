//! What records a client may publish of its own disks: none that has the server, with its own rights, find what the
//! client may not.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lab;

use access::Rules;
use disk::{CreateOptions, DiskSource, Disks, Mode};
use lab::{Lab, Raw, record, rule};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use std::sync::Arc;
use std::time::Duration;
use store::testing::{self, noise};
use store::{ImageName, ManifestId, RefBody, RefKey, RefKind, RefRecord};

/// A lab in which alice holds her disk, from her own home.
struct Scene {
    lab: Lab,
    secret: RefRecord,
    home: tempfile::TempDir,
    disks: Disks,
    raw: Raw,
}

async fn scene() -> Scene {
    let lab = Lab::new().await;
    let secret = lab.image("secret:1", &noise(1, 1 << 20)).await;
    lab.image("debian:1", &noise(2, 1 << 20)).await;
    let server = lab.server_disks();
    lab.create(&server, "alice", "debian:1").await;
    server.release("alice").await.unwrap();
    let (home, disks) = lab.disks("alice", 2).await;
    disks.take("alice", false).await.unwrap();
    let raw = lab.raw("alice").await;
    Scene { lab, secret, home, disks, raw }
}

/// Has so much time gone by.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

const DAY_AND_HOUR: Duration = Duration::from_secs(25 * 3600);

impl Scene {
    async fn disk(&self, name: &str) -> RefRecord {
        self.lab.store.refs().get(RefKind::Disk, name).await.unwrap().unwrap()
    }

    /// The connections that were idle for so long are closed.
    async fn reconnect(&mut self) {
        self.raw = self.lab.raw("alice").await;
    }

    /// Publishes what alice's disk says, changed.
    async fn put(
        &self,
        kind: RefKind,
        name: &str,
        sequence: u64,
        change: &dyn Fn(&mut RefBody),
    ) -> u16 {
        let mut body = self.disk("alice").await.body;
        if kind == RefKind::Snapshot {
            body.labels.retain(|label, _| matches!(label.as_str(), "image" | "uuid"));
        }
        change(&mut body);
        let (key, bytes) = record(kind, name, sequence, Some(body)).await;
        self.raw.put(&key, bytes).await.status
    }

    fn name(&self, image: &str) -> impl Fn(&mut RefBody) + use<> {
        let image = image.to_owned();
        move |body| drop(body.labels.insert("image".into(), image.clone()))
    }
}

#[tokio::test]
async fn no_disk_and_no_snapshot_says_that_it_belongs_to_a_foreign_image() {
    let scene = scene().await;
    let next = scene.disk("alice").await.sequence + 1;
    // One that is there, one that may come, one that is no version, and one of hers that has another content.
    scene.lab.image("debian:2", &noise(3, 1 << 20)).await;
    for image in ["secret:1", "secret:2", "secret", "debian:2"] {
        let named = scene.name(image);
        let got = scene.put(RefKind::Snapshot, "alice@s", 1, &named).await;
        assert_eq!(got, 403, "a snapshot of {image}");
        assert!(matches!(scene.put(RefKind::Disk, "alice", next, &named).await, 400 | 403));
        let got = scene.put(RefKind::Disk, "alice-new", 1, &named).await;
        assert!(matches!(got, 400 | 403), "a new disk of {image}: {got}");
    }
    let unnamed = |body: &mut RefBody| drop(body.labels.remove("image"));
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &unnamed).await, 403);
    assert_eq!(scene.put(RefKind::Snapshot, "alice@s", 1, &unnamed).await, 403);
    assert_eq!(scene.put(RefKind::Snapshot, "alice@s", 1, &|_| {}).await, 201);
    // So whatever the server does with it, nothing of hers leads to the secret.
    let server = scene.lab.server_disks();
    let from = DiskSource::Snapshot { disk: "alice".into(), snapshot: "s".into() };
    let options = CreateOptions { size: None, mode: Mode::Persistent };
    server.create("alice-two", &from, options).await.unwrap();
    let secret = scene.secret.body.manifest.unwrap();
    assert!(!scene.disk("alice-two").await.body.roots().unwrap().contains(&secret));
}

#[tokio::test]
async fn no_record_has_a_size_that_its_content_cannot_have() {
    let scene = scene().await;
    let next = scene.disk("alice").await.sequence + 1;
    for size in [0, 512, (1 << 20) - 512, (1 << 20) + 1, u64::MAX] {
        let sized = |body: &mut RefBody| body.size = size;
        assert_eq!(scene.put(RefKind::Disk, "alice", next, &sized).await, 403, "{size}");
        assert_eq!(scene.put(RefKind::Snapshot, "alice@s", 1, &sized).await, 403, "{size}");
    }
    let grown = |body: &mut RefBody| body.size = 2 << 20;
    assert_eq!(scene.put(RefKind::Snapshot, "alice@s", 1, &grown).await, 403);
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &grown).await, 201);
}

#[tokio::test]
async fn a_disk_whose_image_is_gone_is_snapshot_copied_rolled_back_and_rebased() {
    let scene = scene().await;
    let disk = scene.disks.open("alice").await.unwrap();
    disk.snapshot("before", &()).await.unwrap();
    scene.lab.store.refs().remove(RefKind::Image, "debian:1", 1).await.unwrap();
    let bytes = noise(9, 8192);
    let at = block::Span::whole(bytes.len() as u64);
    block::Device::write(&*disk, at, &bytes, block::Durability::Durable).await.unwrap();
    disk.snapshot("after", &()).await.unwrap();
    disk.rollback("before").await.unwrap();
    let options = CreateOptions { size: None, mode: Mode::Persistent };
    let from = DiskSource::Snapshot { disk: "alice".into(), snapshot: "after".into() };
    scene.disks.create("alice-two", &from, options).await.unwrap();
    scene.lab.image("debian:2", &noise(3, 2 << 20)).await;
    // The gateway lists the store once a second. (Time has to pass for that: the connections are real.)
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let onto: ImageName = "debian".parse().unwrap();
    disk.rebase(&onto, disk::Rebase::Refuse).await.unwrap();
    let now = scene.disk("alice").await;
    assert_eq!((now.body.labels["image"].as_str(), now.body.size), ("debian:2", 2 << 20));
    // A change that fails here is taken back, although the version has gone meanwhile.
    let earlier = scene.disk("alice-two").await.body.labels["image"].clone();
    let before = RefKey { kind: RefKind::Disk, row: "alice".into(), sequence: now.sequence - 2 };
    let before = scene.lab.store.refs().keyed(&before).await.unwrap();
    let body = before.body().unwrap().clone();
    assert_eq!(body.labels["image"], earlier);
    let (key, bytes) = record(RefKind::Disk, "alice", now.sequence + 1, Some(body)).await;
    assert_eq!(scene.raw.put(&key, bytes).await.status, 201);
    disk.close().await.unwrap();
    drop(scene.home);
}

#[tokio::test]
async fn a_server_that_never_announced_itself_keeps_its_disks() {
    let lab = Lab::new().await;
    lab.image("debian:1", &noise(2, 1 << 20)).await;
    let server = lab.server_disks();
    lab.create(&server, "alice", "debian:1").await;
    let id = server.server().await.unwrap();
    assert_eq!(lab.store.servers().seen(&id).await.unwrap(), None);
    let refs = lab.store.refs();
    let found = refs.get(RefKind::Disk, "alice").await.unwrap().unwrap();
    let raw = lab.raw("alice").await;
    let put = async |epoch: u64, holder: &str| {
        let mut body = found.body.clone();
        body.labels.insert("epoch".into(), epoch.to_string());
        body.labels.insert("holder".into(), holder.to_owned());
        let (key, bytes) = record(RefKind::Disk, "alice", found.sequence + 1, Some(body)).await;
        raw.put(&key, bytes).await.status
    };
    let epoch: u64 = found.body.labels["epoch"].parse().unwrap();
    // In its name: neither goes on with the disk, nor takes it, nor makes the id hers before.
    let before = refs.get(RefKind::Disk, "alice").await.unwrap();
    assert_eq!(put(epoch, &id.to_string()).await, 403);
    assert_eq!(put(epoch + 1, &id.to_string()).await, 403);
    let (key, bytes) = testing::server_object(&testing::settings(), &id, "laptop").unwrap();
    assert_eq!(raw.put(&key, bytes).await.status, 403);
    assert_eq!(refs.get(RefKind::Disk, "alice").await.unwrap(), before);
    assert_eq!(lab.store.servers().seen(&id).await.unwrap(), None, "it is as it was");
    // Nor an id whose announcement is damaged.
    let other = store::ServerId([7; 16]);
    let (key, bytes) = testing::server_object(&testing::settings(), &other, "lab").unwrap();
    let noise = bytes.slice(..bytes.len() - 1);
    lab.backend.put(&Path::from(key), noise.into()).await.unwrap();
    assert_eq!(put(epoch + 1, &other.to_string()).await, 403);
    // As another server she may, since it is not at work.
    assert_eq!(put(epoch + 1, &store::ServerId([8; 16]).to_string()).await, 201);
}

#[tokio::test]
async fn no_pin_is_taken_that_keeps_everybody_from_collecting() {
    let lab = Lab::new().await;
    lab.image("debian:1", &noise(2, 1 << 20)).await;
    let options = store::gc::GcOptions { stale: Duration::ZERO, ..Default::default() };
    store::gc::collect(&lab.store, &options, &()).await.unwrap();
    let raw = lab.raw("alice").await;
    let year = 366 * 86_400;
    let long = "x".repeat(129);
    let refused = [
        (u64::MAX, 0, "upload"),
        (1000, 0, "upload"),
        (0, u64::MAX, "upload"),
        (0, year + 1, "upload"),
        (0, 0, "up\u{1b}[2Jload"),
        (0, 0, "garbage collection"),
        (0, 0, &long),
    ];
    for (number, (sequence, age, what)) in (1..).zip(refused) {
        let id = store::WriterId([number; 16]);
        let (key, bytes) =
            testing::pin_object(&testing::settings(), id, (sequence, age), what).unwrap();
        assert_eq!(raw.put(&key, bytes).await.status, 400, "{sequence} {age} {what:?}");
    }
    let id = store::WriterId([99; 16]);
    let (key, bytes) = testing::pin_object(&testing::settings(), id, (0, year), "upload").unwrap();
    assert_eq!(raw.put(&key, bytes).await.status, 201);
    store::gc::collect(&lab.store, &options, &()).await.unwrap();
}

#[tokio::test]
async fn no_name_leads_to_what_was_collected_or_is_about_to_be() {
    let scene = scene().await;
    let secret = scene.secret.body.manifest.unwrap();
    let segment = scene.lab.store.manifest_segments(&secret).await.unwrap()[0];
    let pack = scene.lab.store.segment_chunks(&segment).await.unwrap()[0].pack;
    let keys =
        [format!("packs/{pack}"), format!("segments/{segment}"), format!("manifests/{secret}")];
    for key in &keys {
        let bytes = scene.lab.backend.get(&Path::from(key.as_str())).await.unwrap();
        let got = scene.raw.put(key, bytes.bytes().await.unwrap()).await;
        assert_eq!(got.status, 201, "{key}");
    }
    // Nobody else keeps it any more, and she has no session.
    scene.lab.store.refs().remove(RefKind::Image, "secret:1", 1).await.unwrap();
    let next = scene.disk("alice").await.sequence + 1;
    let holds = |body: &mut RefBody| body.manifest = Some(secret);
    let pack = Path::from(keys[0].as_str());
    let content = scene.lab.backend.get(&pack).await.unwrap().bytes().await.unwrap();
    scene.lab.backend.delete(&pack).await.unwrap();
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &holds).await, 403, "its pack is gone");
    assert_eq!(scene.raw.put(&keys[0], content).await.status, 201);
    // A collection condemns it between the check and the writing, or before.
    let options = store::gc::GcOptions { stale: Duration::ZERO, ..Default::default() };
    let report = store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    assert!(report.found.objects >= 3, "{report:?}");
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &holds).await, 403, "it is condemned");
    // A session that began before keeps it from being deleted.
    let id = store::WriterId([5; 16]);
    let (pin, bytes) = testing::pin_object(&testing::settings(), id, (0, 0), "upload").unwrap();
    assert_eq!(scene.raw.put(&pin, bytes).await.status, 201);
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &holds).await, 201);
    let now = scene.lab.store.refs().get(RefKind::Disk, "alice").await.unwrap().unwrap();
    let mut back = now.body.clone();
    back.manifest = back.labels["origin"].parse().ok();
    scene.lab.store.refs().update(RefKind::Disk, "alice", now.sequence, back).await.unwrap();
    assert_eq!(scene.raw.delete(&pin).await.status, 204);
    let options = store::gc::GcOptions { grace: Duration::ZERO, ..options };
    let report = store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    assert_eq!(report.doubts, Vec::<String>::new(), "garbage is collected");
    assert!(report.freed.objects >= 3, "{report:?}");
}

#[tokio::test]
async fn no_name_leads_back_to_what_one_led_to_long_ago() {
    let mut scene = scene().await;
    let secret = scene.secret.body.manifest.unwrap();
    let segment = scene.lab.store.manifest_segments(&secret).await.unwrap()[0];
    let pack = scene.lab.store.segment_chunks(&segment).await.unwrap()[0].pack;
    let root = format!("manifests/{secret}");
    for key in [format!("packs/{pack}"), format!("segments/{segment}"), root.clone()] {
        let bytes = scene.lab.backend.get(&Path::from(key.as_str())).await.unwrap();
        let got = scene.raw.put(&key, bytes.bytes().await.unwrap()).await;
        assert_eq!(got.status, 201, "{key}");
    }
    // Her disk has it, and then something else.
    let next = scene.disk("alice").await.sequence + 1;
    let before = scene.disk("alice").await.body.manifest;
    let holds = |body: &mut RefBody| body.manifest = Some(secret);
    assert_eq!(scene.put(RefKind::Disk, "alice", next, &holds).await, 201);
    scene.lab.store.refs().remove(RefKind::Image, "secret:1", 1).await.unwrap();
    pass(Duration::from_secs(11)).await;
    assert_eq!(scene.raw.object(&root).await.status, 200);
    let held = |body: &mut RefBody| body.manifest = before;
    assert_eq!(scene.put(RefKind::Disk, "alice", next + 1, &held).await, 201);
    let options = store::gc::GcOptions {
        stale: Duration::ZERO,
        grace: Duration::ZERO,
        ..store::gc::GcOptions::default()
    };
    for _ in 0..2 {
        store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    }
    assert!(scene.lab.backend.head(&Path::from(root.as_str())).await.is_err(), "it was swept");
    pass(DAY_AND_HOUR).await;
    scene.reconnect().await;
    for label in [RefBody::ORIGIN, RefBody::ALSO] {
        let leads = |body: &mut RefBody| drop(body.labels.insert(label.into(), secret.to_string()));
        assert_eq!(scene.put(RefKind::Disk, "alice", next + 2, &leads).await, 403, "{label}");
    }
    assert_eq!(scene.raw.object(&root).await.status, 404);
    let report = store::gc::collect(&scene.lab.store, &options, &()).await.unwrap();
    assert_eq!(report.doubts, Vec::<String>::new(), "garbage is collected");
}

#[tokio::test]
async fn who_was_idle_reads_nothing_that_was_removed_meanwhile() {
    let lab = Lab::new().await;
    let image = lab.image("debian:1", &noise(2, 1 << 20)).await;
    let root = format!("manifests/{}", image.body.manifest.unwrap());
    assert_eq!(lab.raw("reader").await.object(&root).await.status, 200);
    lab.store.refs().remove(RefKind::Image, "debian:1", 1).await.unwrap();
    pass(DAY_AND_HOUR).await;
    assert_eq!(lab.raw("reader").await.object(&root).await.status, 404);
}

#[tokio::test]
async fn a_reader_has_what_a_busy_disk_had_ten_minutes_ago_and_then_no_longer() {
    let scene = scene().await;
    let lab = &scene.lab;
    let rules = vec![rule("reader", &[], &["alice"])];
    lab.rules.store(Arc::new(Rules::new(rules, true).unwrap()));
    let reader = lab.raw("reader").await;
    let read = async |id: &ManifestId| reader.object(&format!("manifests/{id}")).await.status;
    let mut disk = scene.disk("alice").await;
    pass(Duration::from_secs(11)).await; // names are looked up by then
    // It is written back every five seconds for eleven minutes; who reads it opened it half a minute ago.
    let mut manifests = Vec::new();
    for step in 0..132 {
        let image = lab.image(&format!("content:{step}"), &noise(100 + step, 4096)).await;
        manifests.extend(image.body.manifest);
        let body = RefBody { manifest: image.body.manifest, ..disk.body.clone() };
        let refs = lab.store.refs();
        disk = refs.update(RefKind::Disk, "alice", disk.sequence, body).await.unwrap();
        pass(Duration::from_secs(5)).await;
        let opened = manifests.iter().rev().step_by(6).take(2);
        for (number, id) in opened.enumerate() {
            assert_eq!(read(id).await, 200, "{step}, {number}");
        }
    }
    // Then it rests: what it had before goes, with all that only that led to.
    let (last, before) = (&manifests[131], &manifests[130]);
    let segment = lab.store.manifest_segments(before).await.unwrap()[0];
    let at = lab.store.segment_chunks(&segment).await.unwrap()[0];
    let found = async || {
        let (start, pack) = (u64::from(at.offset), format!("packs/{}", at.pack));
        let map = reader.object(&format!("segments/{segment}")).await.status;
        [
            read(before).await,
            map,
            reader.range(&pack, start, start + u64::from(at.stored)).await.status,
        ]
    };
    // Chunks go later, since all maps are read anew for that.
    for minute in 1..24 {
        pass(Duration::from_secs(60)).await;
        assert_eq!(read(last).await, 200, "{minute}");
        match minute {
            ..10 => assert_eq!(found().await, [200, 200, 206], "{minute}"),
            10 => {}
            11.. => assert_eq!(found().await[..2], [404; 2], "{minute}"),
        }
    }
    assert_eq!(found().await, [404; 3]);
}
