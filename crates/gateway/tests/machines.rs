//! What clients may do with machines: those on a disk that they hold, under names that are theirs.

#![allow(clippy::unwrap_used, reason = "a failed step is a failed test")]

mod lab;

use async_trait::async_trait;
use block::Span;
use disk::Disks;
use lab::{Lab, Raw, record};
use std::time::Duration;
use store::testing::noise;
use store::{ManifestId, RefBody, RefKind, RefRecord};
use vm::save::{self, MachineTail, MemorySource, SavedMemory};
use vm::{Accelerator, MachineSpec};

/// Memory of which one extent is not zero.
struct Little;

#[async_trait]
impl MemorySource for Little {
    fn size(&self) -> u64 {
        32 << 20
    }

    fn changed(&self, extent: u64) -> bool {
        extent == 3
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> block::Result<()> {
        buf.fill((span.offset() >> 12) as u8);
        Ok(())
    }
}

/// A lab in which alice holds her disk, from her own home, and the server one of bob's.
struct Scene {
    lab: Lab,
    secret: ManifestId,
    own: ManifestId,
    /// Memory of a machine of alice's, which she has brought.
    memory: SavedMemory,
    /// Alice's own server, and the lab's.
    here: String,
    server: String,
    disks: Disks,
    _home: tempfile::TempDir,
    raw: Raw,
}

async fn scene() -> Scene {
    let lab = Lab::new().await;
    lab.image("secret:1", &noise(1, 1 << 20)).await;
    lab.image("debian:1", &noise(2, 1 << 20)).await;
    let server = lab.server_disks();
    lab.create(&server, "alice", "debian:1").await;
    lab.create(&server, "bob", "secret:1").await;
    server.release("alice").await.unwrap();
    let (home, disks) = lab.disks("alice", 2).await;
    disks.take("alice", false).await.unwrap();
    let raw = lab.raw("alice").await;
    let held = async |disk: &str| {
        let found = lab.store.refs().get(RefKind::Disk, disk).await.unwrap().unwrap();
        (found.body.labels["holder"].clone(), found.body.manifest.unwrap())
    };
    let ((here, own), (server, secret)) = (held("alice").await, held("bob").await);
    let session = lab.open("alice", 3).await.session("memory").await.unwrap();
    let tail = MachineTail { state: b"devices", ..MachineTail::default() };
    let memory = save::memory(&session, None, &Little, tail, None, &()).await;
    let memory = session.close(memory).await.unwrap();
    Scene { lab, secret, own, memory, here, server, disks, _home: home, raw }
}

impl Scene {
    fn body(&self, labels: &[(&str, &str)]) -> RefBody {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let labels = labels.collect();
        RefBody { manifest: Some(self.own), size: 1 << 20, created: 1, labels }
    }

    fn spec(name: &str, disk: &str) -> MachineSpec {
        MachineSpec::new(name, disk, 32 << 20, 1, Accelerator::Tcg, [7; 16])
    }

    /// The parcel of a machine.
    fn parcel_of(&self, spec: &MachineSpec, number: u64) -> RefBody {
        let layout = serde_json::to_string(&self.memory.layout).unwrap();
        let mut body = self.body(&[
            ("machine", &spec.encode().unwrap()),
            ("layout", &layout),
            ("snapshot", &format!("vm-{}-{number}", spec.name)),
            ("also", &self.own.to_string()),
        ]);
        (body.manifest, body.size) = (Some(self.memory.imported.manifest), spec.memory);
        body
    }

    fn parcel(&self, disk: &str) -> RefBody {
        self.parcel_of(&Self::spec("alice-vm", disk), 1)
    }

    fn claim(&self, disk: &str, server: &str) -> RefBody {
        let uuid = Self::spec("alice-vm", disk).uuid;
        self.body(&[("uuid", &uuid), ("server", server), ("disk", disk)])
    }

    async fn put(&self, kind: RefKind, name: &str, sequence: u64, body: Option<RefBody>) -> u16 {
        let (key, bytes) = record(kind, name, sequence, body).await;
        self.raw.put(&key, bytes).await.status
    }

    async fn found(&self, kind: RefKind, name: &str) -> Option<RefRecord> {
        self.lab.store.refs().get(kind, name).await.unwrap()
    }
}

#[tokio::test]
async fn who_holds_a_disk_publishes_its_machine_and_nobody_else_sees_that() {
    let scene = scene().await;
    let claim = scene.claim("alice", &scene.here);
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 1, Some(claim.clone())).await, 201);
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@1", 1, Some(scene.parcel("alice"))).await, 201);
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 2, Some(claim)).await, 201);
    let parcel = scene.found(RefKind::Parcel, "alice-vm@1").await.unwrap();
    let key = format!("refs/parcel/alice-vm@1/{:020}", parcel.sequence);
    assert_eq!(scene.raw.object(&key).await.status, 200);
    let listed = scene.raw.get("/v1/list/refs/parcel").await;
    assert!(String::from_utf8_lossy(&listed.body).contains(&key));
    for other in ["bob", "reader"] {
        let other = scene.lab.raw(other).await;
        assert_eq!(other.object(&key).await.status, 404);
        for of in ["parcel", "machine", "parcel/alice-vm@1", "machine/alice-vm"] {
            let got = other.get(&format!("/v1/list/refs/{of}")).await;
            assert_eq!((got.status, &got.body[..]), (200, b"[]\n".as_slice()), "{of}");
        }
    }
}

#[tokio::test]
async fn no_machine_is_published_under_a_foreign_name_of_a_foreign_disk_or_with_foreign_memory() {
    let scene = scene().await;
    let (own, secret) = (scene.parcel("alice"), scene.secret);
    let changed = |change: &dyn Fn(&mut RefBody)| {
        let mut body = own.clone();
        change(&mut body);
        body
    };
    let label = |name: &'static str, value: String| {
        changed(&|body| drop(body.labels.insert(name.into(), value.clone())))
    };
    let named = |name: &str| scene.parcel_of(&Scene::spec(name, "alice"), 1);
    let foreign = [
        ("bob@1", named("bob")),
        ("nobody@1", named("nobody")),
        ("alice-vm@1", scene.parcel("bob")),
        ("alice-vm@1", scene.parcel("alice-none")),
        ("alice-vm@1", changed(&|body| body.manifest = Some(secret))),
        ("alice-vm@1", changed(&|body| body.manifest = None)),
        ("alice-vm@1", changed(&|body| drop(body.labels.remove("also")))),
        ("alice-vm@1", label("also", secret.to_string())),
        ("alice-vm@1", label("origin", secret.to_string())),
        // What the server could not read, or would take for something else.
        ("alice-vm@1", named("alice-other")),
        ("alice-vm@01", own.clone()),
        ("alice-vm@one", own.clone()),
        ("alice-vm@2", own.clone()),
        ("alice-vm@1", label("snapshot", "keep".to_owned())),
        ("alice-vm@1", label("machine", "{\"version\":1,\"disk\":\"alice\"}".to_owned())),
        ("alice-vm@1", label("layout", "{}".to_owned())),
        ("alice-vm@1", label("more", "x".repeat(17 << 10))),
        // Less memory than there is.
        ("alice-vm@1", changed(&|body| body.manifest = Some(scene.own))),
    ];
    for (name, body) in foreign {
        assert_eq!(scene.put(RefKind::Parcel, name, 1, Some(body.clone())).await, 403, "{body:?}");
    }
    let claims = [
        ("bob", scene.claim("alice", &scene.here)),
        ("alice-vm", scene.claim("bob", &scene.here)),
        ("alice-vm", scene.claim("alice", &scene.server)),
        ("alice-vm", scene.claim("alice", "none")),
        ("alice-vm", scene.body(&[("server", &scene.here), ("disk", "alice")])),
        ("alice-vm", scene.body(&[("uuid", "1"), ("server", &scene.here), ("disk", "alice")])),
    ];
    for (name, body) in claims {
        assert_eq!(scene.put(RefKind::Machine, name, 1, Some(body.clone())).await, 403, "{body:?}");
    }
    assert!(scene.lab.store.refs().list(RefKind::Parcel).await.unwrap().records.is_empty());
    assert!(scene.lab.store.refs().list(RefKind::Machine).await.unwrap().records.is_empty());
}

#[tokio::test]
async fn a_machine_of_another_disk_is_not_shown_by_its_name_and_nobody_takes_that() {
    let scene = scene().await;
    // Made at the server, of whoever's disk.
    let mut body = scene.parcel("bob");
    body.manifest = Some(scene.secret);
    scene.lab.store.refs().create(RefKind::Parcel, "alice-vm@1", body).await.unwrap();
    for row in ["parcel/alice-vm@1/00000000000000000001", "parcel/alice-vm@1"] {
        assert_eq!(scene.raw.object(&format!("refs/{row}")).await.status, 404);
        let listed = scene.raw.get(&format!("/v1/list/refs/{row}")).await;
        assert!(!String::from_utf8_lossy(&listed.body).contains("alice-vm"), "{listed:?}");
    }
    assert_eq!(scene.raw.get("/v1/list/refs/parcel").await.body, "[]\n");
    let got = scene.raw.object(&format!("manifests/{}", scene.secret)).await;
    assert_eq!(got.status, 404);
    // The gateway knows the names of a second ago.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let over = Some(scene.claim("alice", &scene.here));
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 1, over.clone()).await, 403);
    let next = Some(scene.parcel_of(&Scene::spec("alice-vm", "alice"), 2));
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@2", 1, next).await, 403);
    // A claim is.
    let claim = scene.claim("bob", &scene.server);
    scene.lab.store.refs().create(RefKind::Machine, "alice-vm", claim).await.unwrap();
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 2, over).await, 403);
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 2, None).await, 403);
}

#[tokio::test]
async fn of_a_name_that_was_another_disks_machine_nothing_but_its_removal_is_shown() {
    let scene = scene().await;
    let refs = scene.lab.store.refs();
    let names = [
        (
            RefKind::Machine,
            "alice-vm",
            scene.claim("bob", &scene.server),
            scene.claim("alice", &scene.here),
        ),
        (RefKind::Parcel, "alice-vm@1", scene.parcel("bob"), scene.parcel("alice")),
    ];
    for (kind, name, foreign, own) in names {
        // Run and removed at the server, then hers.
        refs.create(kind, name, foreign.clone()).await.unwrap();
        refs.update(kind, name, 1, foreign).await.unwrap();
        refs.remove(kind, name, 2).await.unwrap();
        let key = |sequence: u64| format!("refs/{kind}/{name}/{sequence:020}");
        let shown = async || {
            let listed = scene.raw.get(&format!("/v1/list/refs/{kind}/{name}")).await;
            let all = scene.raw.get(&format!("/v1/list/refs/{kind}")).await;
            let mut shown = Vec::new();
            for sequence in 1..=4 {
                let got = scene.raw.object(&key(sequence)).await.status;
                let part = scene.raw.range(&key(sequence), 0, 16).await.status;
                let in_list = String::from_utf8_lossy(&listed.body).contains(&key(sequence));
                assert_eq!((got == 200, part == 206), (in_list, in_list), "{kind} {sequence}");
                if in_list {
                    shown.push(sequence);
                }
            }
            let newest = String::from_utf8_lossy(&all.body).into_owned();
            assert!(newest.contains(&key(*shown.last().unwrap())), "{newest}");
            assert_eq!(newest.matches(name).count(), 1, "{newest}");
            shown
        };
        assert_eq!(shown().await, [3], "{kind}");
        refs.create(kind, name, own.clone()).await.unwrap();
        assert_eq!(shown().await, [3, 4], "{kind}");
    }
}

#[tokio::test]
async fn who_lost_the_disk_publishes_nothing_of_its_machine_any_more() {
    let scene = scene().await;
    let claim = scene.claim("alice", &scene.here);
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 1, Some(claim.clone())).await, 201);
    scene.lab.server_disks().take("alice", true).await.unwrap();
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 2, Some(claim)).await, 403);
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@1", 1, Some(scene.parcel("alice"))).await, 403);
    // But that it runs it no longer.
    assert_eq!(scene.put(RefKind::Machine, "alice-vm", 2, None).await, 201);
    assert_eq!(scene.found(RefKind::Machine, "alice-vm").await, None);
}

#[tokio::test]
async fn of_a_machine_only_what_never_became_a_parcel_is_removed() {
    let scene = scene().await;
    let disk = scene.disks.open("alice").await.unwrap();
    for name in ["keep", "vm-alice-vm-1", "vm-alice-vm-2"] {
        disk.snapshot(name, &()).await.unwrap();
    }
    let parcel = Some(scene.parcel("alice"));
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@1", 1, parcel.clone()).await, 201);
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@1", 2, parcel).await, 403, "never another");
    assert_eq!(scene.put(RefKind::Parcel, "alice-vm@1", 2, None).await, 403);
    // What a parcel left that was removed at the server is.
    disk.snapshot("vm-alice-vm-3", &()).await.unwrap();
    let refs = scene.lab.store.refs();
    refs.create(RefKind::Parcel, "alice-vm@3", scene.parcel("alice")).await.unwrap();
    refs.remove(RefKind::Parcel, "alice-vm@3", 1).await.unwrap();
    for (name, status) in
        [("keep", 403), ("vm-alice-vm-1", 403), ("vm-alice-vm-2", 201), ("vm-alice-vm-3", 201)]
    {
        let name = format!("alice@{name}");
        assert_eq!(scene.put(RefKind::Snapshot, &name, 2, None).await, status, "{name}");
        assert_eq!(scene.found(RefKind::Snapshot, &name).await.is_none(), status == 201, "{name}");
    }
    disk.close().await.unwrap();
}

#[tokio::test]
async fn a_disk_has_so_many_claims_of_clients_and_no_more() {
    let scene = scene().await;
    let claim = || scene.claim("alice", &scene.here);
    for number in 1..=8 {
        let name = format!("alice-{number}");
        scene.lab.store.refs().create(RefKind::Machine, &name, claim()).await.unwrap();
    }
    // The gateway knows the names of a second ago.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    assert_eq!(scene.put(RefKind::Machine, "alice-9", 1, Some(claim())).await, 403);
    assert_eq!(scene.put(RefKind::Machine, "alice-8", 2, Some(claim())).await, 201, "it is there");
}
