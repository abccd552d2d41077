//! Snapshots and versions stand in the order in which they were made, whatever the clocks of those who made them say.

use crate::common::{Home, cache, golden, put};
use disk::{Disks, Mode};
use object_store::ObjectStore;
use std::path::Path;
use std::sync::Arc;
use store::testing::{FixedClock, FixedEntropy, NOW};
use store::{Store, World, images};

/// A server whose clock stands at `now`.
async fn server(home: &Home, directory: &Path, now: u64) -> Disks {
    let shared: Arc<dyn ObjectStore> = Arc::clone(&home.backend) as _;
    let entropy = Arc::new(FixedEntropy::new(now));
    let world = World { clock: Arc::new(FixedClock::new(now)), entropy };
    let store = Store::open(shared, world).await.unwrap();
    Disks::new(directory.join("disks"), store, cache())
}

#[tokio::test]
async fn the_newest_is_the_newest_also_when_it_was_made_by_a_clock_that_is_behind() {
    let home = Home::new().await;
    home.image("golden:1", &golden(1, 8)).await;
    home.create("a", "golden", Mode::Persistent).await.unwrap();
    let dirs = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let places = [home.directory.path(), dirs[0].path(), dirs[1].path()];
    let version = "golden".parse().unwrap();
    for (number, place) in places.into_iter().enumerate() {
        let disks = server(&home, place, NOW - number as u64 * 86_400).await;
        if number > 0 {
            disks.take("a", false).await.unwrap();
        }
        let disk = disks.open("a").await.unwrap();
        for name in ["y", "x"] {
            put(&disk, number, 7).await;
            disk.snapshot(&format!("{name}{number}"), &()).await.unwrap();
        }
        let snapshots = disk.snapshots().await.unwrap();
        let names: Vec<&str> = snapshots.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["y0", "x0", "y1", "x1", "y2", "x2"][..2 * number + 2]);
        let made = disk.commit(&version, &()).await.unwrap();
        let newest = images::resolve(&home.store, &version).await.unwrap();
        assert_eq!(newest.name, made.name);
        disk.close().await.unwrap();
        drop(disk);
        // It is as the next process finds it.
        let disk = disks.open("a").await.unwrap();
        disk.rollback(&format!("y{number}")).await.unwrap();
        disk.close().await.unwrap();
        drop(disk);
        disks.release("a").await.unwrap();
    }
}
