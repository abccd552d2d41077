//! A disk's directory that was put back as it was before, or that there are two of: what was published since keeps its
//! name, and both states can be had.

use crate::common::{Home, Spy, bytes, golden, put, same};
use block::{Device, Durability, ErrorKind, Span};
use disk::{Disk, Mode};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{RefKind, RefRecord, UploadPlan, gc, verify};
use tempfile::TempDir;
use tokio::time::timeout;

const MINUTE: Duration = Duration::from_secs(60);

async fn home(mode: Mode) -> Home {
    let here = Home::new().await;
    here.image("debian:1", &golden(5, 300)).await;
    here.create("web", "debian", mode).await.unwrap();
    here
}

fn place(home: &Home) -> PathBuf {
    home.directory.path().join("disks/web")
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    }
}

/// The files of the disk's directory as they are now.
fn backup(home: &Home) -> TempDir {
    let kept = tempfile::tempdir().unwrap();
    copy(&place(home), kept.path());
    kept
}

/// Puts them back, into the same directory.
fn put_back(home: &Home, backup: &TempDir) {
    for entry in std::fs::read_dir(place(home)).unwrap().map(Result::unwrap) {
        std::fs::remove_file(entry.path()).unwrap();
    }
    copy(backup.path(), &place(home));
}

async fn found(home: &Home) -> RefRecord {
    home.store.refs().get(RefKind::Disk, "web").await.unwrap().unwrap()
}

async fn close(disk: Arc<Disk>) {
    disk.close().await.unwrap();
}

/// Writes block 3, closes the disk and keeps its directory, writes and publishes block 4, and puts the directory back.
/// What the disk held before and after.
async fn set_back(home: &Home, is_first: bool) -> (Vec<u8>, Vec<u8>) {
    let publish = async |disk: &Disk| disk.write_back(UploadPlan::default(), &()).await.unwrap();
    let disk = home.open("web").await;
    if !is_first {
        put(&disk, 3, 7).await;
        publish(&disk).await;
    }
    let before = bytes(&*disk).await;
    close(disk).await;
    let kept = backup(home);
    let disk = home.open("web").await;
    put(&disk, 4, 8).await;
    publish(&disk).await;
    let after = bytes(&*disk).await;
    close(disk).await;
    put_back(home, &kept);
    (before, after)
}

async fn is_refused(home: &Home) {
    let before = found(home).await;
    let refused = home.disks.open("web").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.message().contains("'sojourn disk keep web NEW'"), "{refused}");
    assert_eq!(found(home).await, before);
}

async fn collect(home: &Home, grace: Duration) {
    let options = gc::GcOptions { grace, stale: Duration::ZERO, ..gc::GcOptions::default() };
    gc::collect(&home.store, &options, &()).await.unwrap();
}

async fn store_is_whole(home: &Home) {
    let report = verify::store(&home.store, &verify::VerifyOptions::default(), &()).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
}

#[tokio::test]
async fn a_directory_that_was_set_back_is_refused_and_both_states_are_kept() {
    for (mode, is_first) in [
        (Mode::WriteThrough, false),
        (Mode::WriteThrough, true),
        (Mode::Persistent, false),
        (Mode::Persistent, true),
    ] {
        let here = home(mode).await;
        let (before, after) = set_back(&here, is_first).await;
        is_refused(&here).await;
        assert_eq!(here.disks.recover("web", None).await.unwrap_err().kind(), ErrorKind::Conflict);
        // What the directory stands on has no name any more, and is condemned.
        collect(&here, 24 * 60 * MINUTE).await;
        is_refused(&here).await;
        here.disks.keep("web", "old").await.unwrap();
        here.disks.take("web", true).await.unwrap();
        collect(&here, Duration::ZERO).await;
        same(&bytes(&*here.open("old").await).await, &before);
        same(&bytes(&*here.open("web").await).await, &after);
        store_is_whole(&here).await;
    }
}

#[tokio::test]
async fn a_directory_that_was_set_back_is_removed_alone() {
    let mut here = home(Mode::WriteThrough).await;
    let (_, after) = set_back(&here, false).await;
    for _ in 0..2 {
        collect(&here, Duration::ZERO).await;
    }
    here.again().await;
    // What it stands on is gone, and that is not what is said.
    is_refused(&here).await;
    let gone = here.disks.keep("web", "old").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
    assert!(here.disks.is_here_only("web").await.unwrap());
    here.disks.remove("web").await.unwrap();
    here.disks.take("web", true).await.unwrap();
    same(&bytes(&*here.open("web").await).await, &after);
    store_is_whole(&here).await;
}

#[tokio::test]
async fn what_was_set_back_and_opened_without_the_store_publishes_nothing() {
    let here = home(Mode::Persistent).await;
    let (before, _) = set_back(&here, false).await;
    let ref_before = found(&here).await;
    let spy = Spy::on(&here);
    let disks = here.watched(&spy, 90).await;
    spy.is_away("refs", true);
    let disk = disks.open_offline("web").await.unwrap();
    same(&bytes(&*disk).await, &before);
    put(&disk, 5, 9).await;
    spy.is_away("refs", false);
    let refused = disk.write_back(UploadPlan::default(), &()).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(disk.has_failed());
    assert_eq!(found(&here).await, ref_before);
    let held = bytes(&*disk).await;
    disk.close().await.unwrap_err();
    drop(disk);
    here.disks.keep("web", "old").await.unwrap();
    same(&bytes(&*here.open("old").await).await, &held);
}

#[tokio::test(start_paused = true)]
async fn of_two_copies_of_a_home_one_answers_writes() {
    let here = home(Mode::WriteThrough).await;
    let disk = here.open("web").await;
    put(&disk, 3, 7).await;
    close(disk).await;
    let there = here.beside(77).await;
    let other = there.directory.path().join("disks");
    std::fs::create_dir_all(other.join("web")).unwrap();
    copy(&place(&here), &other.join("web"));
    // Somebody vouched that the first one is gone.
    std::fs::copy(here.directory.path().join("disks/.server"), other.join(".server")).unwrap();
    let (first, second) = (here.open("web").await, there.open("web").await);
    put(&first, 4, 8).await;
    let held = found(&here).await;
    let block = Span::between(5 * 4096, 6 * 4096);
    let refused = second.write(block, &[9; 4096], Durability::Buffered).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(second.has_failed());
    assert_eq!(found(&here).await, held);
    put(&first, 6, 10).await;
    let held = bytes(&*first).await;
    close(first).await;
    same(&bytes(&*here.open("web").await).await, &held);
}

/// Writes once to a disk whose server is killed after so many writes to the store, and whose record was replaced by then
/// unless `is_early`. Whether it was answered.
async fn killed_while_it_publishes(home: &Home, writes: u64, is_early: bool) -> bool {
    let disk = home.open("web").await;
    let before = bytes(&*disk).await;
    close(disk).await;
    let kept = backup(home);
    let disk = home.open("web").await;
    home.backend.allow(writes);
    let answered = timeout(MINUTE, put(&disk, 4, writes as u8 + 1)).await.is_ok();
    home.backend.allow(u64::MAX);
    let now = bytes(&*disk).await;
    drop(disk);
    if is_early {
        put_back(home, &kept);
    }
    if answered && is_early {
        is_refused(home).await;
        return true;
    }
    same(&bytes(&*home.open("web").await).await, if is_early { &before } else { &now });
    answered
}

#[tokio::test(start_paused = true)]
async fn a_disk_opens_wherever_its_server_was_killed_while_it_published() {
    for is_early in [false, true] {
        // The first publication is that over the image version.
        for is_first in [false, true] {
            let mut writes = 0;
            loop {
                let here = home(Mode::WriteThrough).await;
                if !is_first {
                    let disk = here.open("web").await;
                    put(&disk, 3, 7).await;
                    close(disk).await;
                }
                if killed_while_it_publishes(&here, writes, is_early).await {
                    break;
                }
                writes += 1;
            }
            assert!(writes > 4, "{writes}");
        }
    }
}

#[tokio::test]
async fn a_record_that_was_put_back_alone_takes_no_newer_layer_away() {
    let home = home(Mode::Persistent).await;
    let kept = backup(&home);
    let disk = home.open("web").await;
    put(&disk, 3, 7).await;
    disk.write_back(UploadPlan::default(), &()).await.unwrap();
    put(&disk, 4, 8).await;
    let held = bytes(&*disk).await;
    close(disk).await;

    let newest = backup(&home);
    let record = place(&home).join("disk.json");
    std::fs::copy(kept.path().join("disk.json"), &record).unwrap();
    let error = home.disks.open("web").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.message().contains("is older than"), "{error}");
    std::fs::copy(newest.path().join("disk.json"), &record).unwrap();
    same(&bytes(&*home.open("web").await).await, &held);
}
