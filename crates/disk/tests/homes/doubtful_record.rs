//! A disk's record that was put in its place and whose directory could not be synced: after a power failure it
//! may be the old one or the new one.

use crate::common::{Home, bytes, cache, golden};
use block::fs::FsPath;
use block::fs::simulated::{FaultRates, Machine, Nature};
use disk::{CreateOptions, Disks, Rebase};
use std::sync::Arc;
use store::{ManifestId, RefKind};

/// What the store keeps for a disk.
async fn kept(home: &Home, disk: &str) -> Vec<ManifestId> {
    home.store.refs().get(RefKind::Disk, disk).await.unwrap().unwrap().body.roots().unwrap()
}

async fn manifest(home: &Home, image: &str) -> ManifestId {
    home.store.refs().get(RefKind::Image, image).await.unwrap().unwrap().body.manifest.unwrap()
}

/// Found by the simulation: `SIMULATION_SEED=1795712396013535`.
#[tokio::test]
async fn what_either_record_of_a_failed_rebase_names_stays_in_the_store() {
    let _inline = block::offload::Inline::on_this_thread();
    let home = Home::new().await;
    let (old, new) = (golden(1, 8), golden(2, 8));
    home.image("golden:1", &old).await;
    home.image("golden:2", &new).await;
    let machine = Machine::new(Nature::None, 1);
    let disks = || {
        let place = FsPath::on(Arc::new(machine.start()), "/disks");
        Disks::new(place, home.store.clone(), cache())
    };
    let before = disks();
    before.create("a", &"golden:1".parse().unwrap(), CreateOptions::default()).await.unwrap();
    let disk = before.open("a").await.unwrap();
    machine.set_faults(FaultRates { sync_directory: 1000, ..FaultRates::default() });
    disk.rebase(&"golden:2".parse().unwrap(), Rebase::Refuse).await.unwrap_err();
    let both = [manifest(&home, "golden:1").await, manifest(&home, "golden:2").await];
    for manifest in both {
        assert!(kept(&home, "a").await.contains(&manifest));
    }
    // Nothing that comes later drops one of them.
    disk.snapshot("s", &()).await.unwrap_err();
    disk.close().await.unwrap_err();
    drop((disk, before));
    for manifest in both {
        assert!(kept(&home, "a").await.contains(&manifest));
    }
    machine.set_faults(FaultRates::default());
    machine.kill();
    let found = bytes(&*disks().open("a").await.unwrap()).await;
    assert!(found == new, "the record that is there counts");
}
