//! A disk goes from one server to another, and an earlier holder is kept out.

use crate::common::{Home, Spy, bytes, golden};
use block::{Device, Durability, ErrorKind, Span, ZeroMode};
use disk::{CreateOptions, Disk, Mode, Rebase};
use std::time::Duration;
use store::{RefKind, gc, verify};

const HOUR: Duration = Duration::from_secs(3600);

async fn two() -> (Home, Home) {
    let here = Home::new().await;
    here.image("debian:1", &golden(5, 300)).await;
    here.create("web", "debian", Mode::Persistent).await.unwrap();
    let there = here.beside(77).await;
    (here, there)
}

async fn write(disk: &Disk, block: u64, value: u8) {
    let span = Span::between(block * 4096, (block + 1) * 4096);
    disk.write(span, &[value; 4096], Durability::Durable).await.unwrap();
}

/// Zeroes its first block, which takes no room.
async fn zero(disk: &Disk) {
    let mode = ZeroMode { may_punch: true, only_if_fast: false };
    disk.zero(Span::between(0, 4096), mode, Durability::Buffered).await.unwrap();
}

async fn at_work(home: &Home, lease: Duration) {
    let server = home.disks.server().await.unwrap();
    home.store.servers().announce(server, "lab-1", lease).await.unwrap();
}

#[tokio::test]
async fn a_released_disk_goes_on_elsewhere_with_every_byte() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop(disk);
    at_work(&here, HOUR).await;
    here.disks.release("web").await.unwrap();
    assert!(here.disks.list().await.unwrap().is_empty());
    assert_eq!(here.disks.elsewhere().await.unwrap()[0].holder, None);

    // Its holder is at work, but holds it no more.
    there.disks.take("web", false).await.unwrap();
    let disk = there.open("web").await;
    assert_eq!(bytes(&*disk).await, held);
    write(&disk, 9, 0x99).await;
    let held = bytes(&*disk).await;
    drop(disk);
    there.disks.release("web").await.unwrap();
    here.disks.take("web", false).await.unwrap();
    assert_eq!(bytes(&*here.open("web").await).await, held);
}

/// Opens the disk, tells its content, and closes it.
async fn content(home: &Home) -> u64 {
    let disk = home.open("web").await;
    let content = disk.content();
    disk.close().await.unwrap();
    content
}

#[tokio::test]
async fn the_content_is_another_one_exactly_when_something_else_was_put_into_its_place() {
    let (here, there) = two().await;
    here.image("debian:2", &golden(6, 300)).await;
    let mut seen = vec![content(&here).await];
    let disk = here.open("web").await;
    // What its clients do, and what is done beside them.
    write(&disk, 7, 0x77).await;
    disk.snapshot("s", &()).await.unwrap();
    write(&disk, 8, 0x88).await;
    disk.grow(disk.size() + (1 << 20)).await.unwrap();
    assert_eq!(disk.content(), seen[0]);
    let mut is_new = |content| {
        assert!(!seen.contains(&content), "{content} of {seen:?}");
        seen.push(content);
    };
    disk.rollback("s").await.unwrap();
    is_new(disk.content());
    disk.rebase(&"debian:2".parse().unwrap(), Rebase::KeepMine).await.unwrap();
    is_new(disk.content());
    disk.reset().await.unwrap();
    is_new(disk.content());
    let own = disk.content();
    // There is nothing to drop.
    disk.reset().await.unwrap();
    assert_eq!(disk.content(), own);
    disk.close().await.unwrap();
    drop(disk);
    // It outlives the process, and goes along with every byte.
    assert_eq!(content(&here).await, own);
    here.disks.release("web").await.unwrap();
    there.disks.take("web", false).await.unwrap();
    assert_eq!(content(&there).await, own);
    // Whoever takes it from a server that did not release it may have less of it.
    here.disks.take("web", true).await.unwrap();
    is_new(content(&here).await);
}

#[tokio::test]
async fn a_disk_is_not_taken_from_a_server_at_work_unless_forced() {
    let (here, there) = two().await;
    at_work(&here, HOUR).await;
    let refused = there.disks.take("web", false).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("lab-1") && refused.message().contains("--force"));
    assert!(there.disks.list().await.unwrap().is_empty());
    assert!(there.disks.elsewhere().await.unwrap()[0].alive);
    there.disks.take("web", true).await.unwrap();
    there.open("web").await;
}

#[tokio::test]
async fn a_disk_is_taken_when_the_lease_of_its_server_ran_out() {
    let (here, there) = two().await;
    at_work(&here, Duration::ZERO).await;
    there.disks.take("web", false).await.unwrap();
    there.open("web").await;
    let again = there.disks.take("web", true).await.unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict);
}

#[tokio::test]
async fn an_earlier_holder_can_publish_nothing_and_write_nothing_more() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    let published = bytes(&*disk).await;
    write(&disk, 8, 0x88).await;
    there.disks.take("web", true).await.unwrap();

    // It may be in the middle of anything.
    for outcome in [
        disk.snapshot("late", &()).await.map(|_| ()),
        disk.commit(&"debian:2".parse().unwrap(), &()).await.map(|_| ()),
        disk.rollback("before").await,
        disk.reset().await,
        disk.confirm().await,
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Fenced);
    }
    let span = Span::between(0, 4096);
    assert!(disk.write(span, &[1; 4096], Durability::Buffered).await.is_err());
    let refs = there.store.refs();
    assert!(refs.get(RefKind::Image, "debian:2").await.unwrap().is_none());
    assert!(refs.get(RefKind::Snapshot, "web@late").await.unwrap().is_none());
    drop(disk);
    assert_eq!(here.disks.open("web").await.unwrap_err().kind(), ErrorKind::Fenced);

    // The other one goes on from the snapshot.
    let taken = there.open("web").await;
    assert_eq!(bytes(&*taken).await, published);
    taken.snapshot("after", &()).await.unwrap();
    taken.rollback("before").await.unwrap();
    assert_eq!(bytes(&*taken).await, published);
}

/// Removes what nothing refers to, if there is anything. Sessions that made the images of these tests were left open.
async fn collect_any(home: &Home) -> gc::GcReport {
    let (grace, stale) = (Duration::ZERO, Duration::ZERO);
    let options = gc::GcOptions { grace, stale, ..gc::GcOptions::default() };
    gc::collect(&home.store, &options, &()).await.unwrap()
}

/// The same, where there is something.
async fn collect(home: &Home) {
    let report = collect_any(home).await;
    assert!(report.freed.objects > 0, "{report:?}");
}

/// Has the snapshot `before` made of `web`, writes more to it, and closes it; what it holds.
async fn write_and_close(home: &Home) -> Vec<u8> {
    let disk = home.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    write(&disk, 8, 0x88).await;
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    held
}

/// The snapshots of `web` that the store has.
async fn snapshots(home: &Home) -> Vec<String> {
    let listing = home.store.refs().list(RefKind::Snapshot).await.unwrap();
    listing.records.into_iter().map(|found| found.name).collect()
}

#[tokio::test]
async fn an_earlier_holder_removes_no_snapshot() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    disk.snapshot("before", &()).await.unwrap();
    there.disks.take("web", true).await.unwrap();
    let refused = disk.remove_snapshot("before").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    assert!(disk.write(Span::between(0, 4096), &[1; 4096], Durability::Buffered).await.is_err());
    assert_eq!(snapshots(&here).await, ["web@before"]);

    // Nor of a disk that only has the same name.
    there.disks.remove("web").await.unwrap();
    let another = here.beside(78).await;
    another.create("web", "debian", Mode::Persistent).await.unwrap();
    another.open("web").await.snapshot("before", &()).await.unwrap();
    disk.remove_snapshot("before").await.unwrap_err();
    drop(disk);
    here.disks.remove("web").await.unwrap();
    assert_eq!(snapshots(&here).await, ["web@before"]);
    another.open("web").await.remove_snapshot("before").await.unwrap();
}

#[tokio::test]
async fn a_disk_of_a_server_at_work_is_not_lost() {
    let (here, there) = two().await;
    at_work(&here, HOUR).await;
    let refused = there.disks.remove_lost("web").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("take --force web"), "{refused}");
    here.open("web").await.snapshot("monday", &()).await.unwrap();
    assert_eq!(snapshots(&here).await, ["web@monday"]);
    // It says goodbye, or is silent for longer than its lease.
    at_work(&here, Duration::ZERO).await;
    there.disks.remove_lost("web").await.unwrap();
    assert!(snapshots(&here).await.is_empty());
}

#[tokio::test]
async fn a_snapshot_of_another_disk_of_this_name_is_not_removed() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    // Somebody vouched that its directory was lost.
    there.disks.remove_lost("web").await.unwrap();
    there.create("web", "debian", Mode::Persistent).await.unwrap();
    there.open("web").await.snapshot("s", &()).await.unwrap();
    assert_eq!(disk.remove_snapshot("s").await.unwrap_err().kind(), ErrorKind::Conflict);
    assert_eq!(snapshots(&here).await, ["web@s"]);
}

#[tokio::test]
async fn a_removal_that_a_taking_overtakes_leaves_the_snapshots_to_the_new_holder() {
    for damaged in [false, true] {
        let (here, there) = two().await;
        here.open("web").await.snapshot("before", &()).await.unwrap();
        if damaged {
            std::fs::write(here.directory.path().join("disks/web/disk.json"), "{}").unwrap();
        }
        let spy = Spy::on(&here);
        let late = here.watched(&spy, 90).await;
        let there = std::sync::Arc::new(there);
        let taker = std::sync::Arc::clone(&there);
        spy.before_snapshots(async move {
            taker.disks.take("web", true).await.unwrap();
            taker.open("web").await.snapshot("after", &()).await.unwrap();
        });
        let overtaken = late.remove("web").await.unwrap_err();
        assert_eq!(overtaken.kind(), ErrorKind::Conflict, "damaged: {damaged}");
        assert_eq!(snapshots(&here).await, ["web@after", "web@before"]);
        there.open("web").await.rollback("before").await.unwrap();
        // Now it knows, and gives up what is here.
        late.remove("web").await.unwrap();
        assert!(here.disks.list().await.unwrap().is_empty());
        assert_eq!(snapshots(&here).await, ["web@after", "web@before"]);
    }
}

#[tokio::test]
async fn a_disk_that_lost_a_snapshot_to_its_removal_is_not_taken_and_the_removal_is_finished() {
    for allowed in 0.. {
        let (here, there) = two().await;
        let disk = here.open("web").await;
        disk.snapshot("one", &()).await.unwrap();
        disk.snapshot("two", &()).await.unwrap();
        drop(disk);
        here.backend.allow(allowed);
        let removed = here.disks.remove("web").await;
        here.backend.allow(u64::MAX);
        if removed.is_ok() {
            assert!(allowed > 2, "each name that goes is a write");
            return;
        }
        let begun = allowed > 0;
        assert_eq!(snapshots(&here).await.len() as u64, 2 - allowed.saturating_sub(1).min(2));
        if begun {
            let refused = there.disks.take("web", true).await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict);
            assert!(refused.message().contains("--lost"), "{refused}");
            assert!(there.disks.list().await.unwrap().is_empty());
        }
        match allowed {
            // Whoever has lost its directory for good, finishes anywhere.
            2 => there.disks.remove_lost("web").await.unwrap(),
            // It may be used after all, and then it may be taken.
            3 => {
                write(&*here.open("web").await, 7, 0x77).await;
                there.disks.take("web", true).await.unwrap();
                there.disks.remove("web").await.unwrap();
            }
            _ => {}
        }
        here.disks.remove("web").await.unwrap();
        assert!(snapshots(&here).await.is_empty());
        assert!(here.store.refs().list(RefKind::Disk).await.unwrap().is_empty());
        assert!(here.disks.list().await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn a_creation_removes_what_earlier_disks_left_and_nothing_of_who_takes_the_new_one() {
    let (here, there) = two().await;
    here.open("web").await.snapshot("old", &()).await.unwrap();
    let refs = here.store.refs();
    let found = refs.get(RefKind::Disk, "web").await.unwrap().unwrap();
    refs.remove(RefKind::Disk, "web", found.sequence).await.unwrap();
    let spy = Spy::on(&there);
    let creator = there.watched(&spy, 90).await;
    let taker = here.beside(78).await;
    spy.before_snapshots(async move {
        taker.disks.take("web", true).await.unwrap();
        taker.open("web").await.snapshot("new", &()).await.unwrap();
    });
    creator.create("web", &"debian".parse().unwrap(), CreateOptions::default()).await.unwrap();
    assert_eq!(snapshots(&here).await, ["web@new"]);
}

#[tokio::test]
async fn what_an_earlier_holder_had_written_is_kept_under_another_name() {
    let (here, there) = two().await;
    let held = write_and_close(&here).await;
    let own = here.disks.keep("web", "mine").await.unwrap_err();
    assert_eq!(own.kind(), ErrorKind::Conflict, "nobody took it");

    there.disks.take("web", true).await.unwrap();
    let left = here.store.refs().get(RefKind::Disk, "web").await.unwrap().unwrap();
    let base = left.body.manifest.unwrap();
    // What it stands on is kept in the store, whatever becomes of the taken disk.
    let taken = there.open("web").await;
    write(&taken, 1, 1).await;
    taken.snapshot("more", &()).await.unwrap();
    let now = here.store.refs().get(RefKind::Disk, "web").await.unwrap().unwrap();
    assert_ne!(now.body.manifest.unwrap(), base);
    assert!(now.body.roots().unwrap().contains(&base));

    here.disks.keep("web", "mine").await.unwrap();
    let again = here.disks.keep("web", "mine").await.unwrap();
    assert_eq!(again.name, "mine", "repeated, it says that it is done");
    let another = here.disks.keep("web", "other").await.unwrap_err();
    assert_eq!(another.kind(), ErrorKind::NotFound);
    let kept = here.open("mine").await;
    assert_eq!(bytes(&*kept).await, held);
    kept.snapshot("saved", &()).await.unwrap();
    assert_eq!(here.disks.list().await.unwrap().len(), 1);
}

#[tokio::test]
async fn what_a_keep_that_was_interrupted_was_saving_is_not_given_up_as_damaged() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    here.disks.keep("web", "mine").await.unwrap();
    // As a kill leaves it between the record and the directory's new name.
    let home = here.directory.path().join("disks");
    std::fs::rename(home.join("mine"), home.join("web")).unwrap();
    there.disks.remove("web").await.unwrap();
    let refused = here.disks.recover("web", None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("disk keep web mine"), "{refused}");
    here.disks.keep("web", "mine").await.unwrap();
    assert_eq!(bytes(&*here.open("mine").await).await, held);
}

#[tokio::test]
async fn giving_up_what_an_earlier_holder_had_leaves_the_taken_disk_alone() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    disk.snapshot("before", &()).await.unwrap();
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    here.disks.remove("web").await.unwrap();
    assert!(here.disks.list().await.unwrap().is_empty());
    let taken = there.open("web").await;
    assert_eq!(taken.snapshots().await.unwrap().len(), 1);
    taken.rollback("before").await.unwrap();
}

#[tokio::test]
async fn of_two_servers_that_take_a_disk_one_gets_it() {
    let (here, there) = two().await;
    let third = here.beside(78).await;
    let (a, b) = tokio::join!(there.disks.take("web", true), third.disks.take("web", true));
    // Both may succeed, one after the other: then the first is kept out.
    let opened = [there.disks.open("web").await, third.disks.open("web").await];
    assert!(a.is_ok() || b.is_ok());
    assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1);
    assert_eq!(here.disks.open("web").await.unwrap_err().kind(), ErrorKind::Fenced);
}

/// The second one found the disk released, and writes its ref after the first one did.
#[tokio::test]
async fn of_two_processes_of_a_home_that_take_a_disk_the_slower_one_leaves_it_to_the_other() {
    let (here, there) = two().await;
    here.disks.release("web").await.unwrap();
    for is_zeroed in [false, true] {
        let spy = Spy::on(&there);
        let slow = there.watched(&spy, 79).await;
        let quick = there.watched(&Spy::on(&there), 80).await;
        spy.before_reading("manifests", async move {
            quick.take("web", false).await.unwrap();
            if is_zeroed {
                let disk = quick.open("web").await.unwrap();
                zero(&disk).await;
            }
        });
        let refused = slow.take("web", false).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        let disk = there.open("web").await;
        assert_eq!(disk.behind().is_some(), is_zeroed);
        drop(disk);
        there.disks.release("web").await.unwrap();
    }
}

#[tokio::test]
async fn a_lost_directory_is_taken_again_by_its_own_server() {
    let (here, _) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    let published = bytes(&*disk).await;
    drop(disk);
    std::fs::remove_dir_all(here.directory.path().join("disks/web")).unwrap();
    let refused = here.disks.take("web", false).await.unwrap_err();
    assert!(refused.message().contains("--force"), "{refused}");
    here.disks.take("web", true).await.unwrap();
    assert_eq!(bytes(&*here.open("web").await).await, published);
}

#[tokio::test]
async fn a_take_that_came_to_nothing_leaves_no_right_to_a_disk_that_others_then_had() {
    let (here, there) = two().await;
    let third = here.beside(78).await;
    here.backend.allow(0);
    there.disks.take("web", true).await.unwrap_err();
    here.backend.allow(u64::MAX);
    assert_eq!(there.disks.open("web").await.unwrap_err().kind(), ErrorKind::Fenced);

    third.disks.take("web", true).await.unwrap();
    let disk = third.open("web").await;
    write(&disk, 7, 0x77).await;
    let held = bytes(&*disk).await;
    drop(disk);
    third.disks.release("web").await.unwrap();

    // The directory has the epoch of the one that released it, and what was there before.
    assert_eq!(there.disks.open("web").await.unwrap_err().kind(), ErrorKind::Fenced);
    there.disks.take("web", false).await.unwrap();
    assert_eq!(bytes(&*there.open("web").await).await, held);
}

#[tokio::test]
async fn a_disk_that_may_not_have_been_taken_does_not_open_while_the_store_is_away() {
    let (here, there) = two().await;
    let spy = Spy::on(&there);
    let offline = there.watched(&spy, 79).await.opening_offline();
    spy.refuse_writes("refs", true);
    assert_eq!(offline.take("web", true).await.unwrap_err().kind(), ErrorKind::Unavailable);
    spy.is_away("refs", true);
    assert_eq!(offline.open("web").await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(offline.settle_take("web").await.unwrap_err().kind(), ErrorKind::Unavailable);
    spy.is_away("refs", false);
    spy.refuse_writes("refs", false);
    offline.settle_take("web").await.unwrap();
    assert!(offline.list().await.unwrap().is_empty(), "nobody took it");
    drop(here.open("web").await);

    // What was taken opens, also where that came to be known only later.
    offline.take("web", true).await.unwrap();
    let mark = there.directory.path().join("disks/web/taking");
    std::fs::write(&mark, "").unwrap();
    drop(offline.open("web").await.unwrap());
    assert!(!mark.exists());
    spy.is_away("refs", true);
    drop(offline.open("web").await.unwrap());
}

#[tokio::test]
async fn who_goes_on_with_what_was_left_opens_a_disk_while_the_store_is_away() {
    let (here, there) = two().await;
    let held = bytes(&*here.open("web").await).await;
    let spy = Spy::on(&here);
    let disks = here.watched(&spy, 79).await;
    spy.is_away("refs", true);
    assert_eq!(disks.open("web").await.unwrap_err().kind(), ErrorKind::Unavailable);
    let disk = disks.open_offline("web").await.unwrap();
    assert_eq!(bytes(&*disk).await, held);
    drop(disk);
    // Where the store does say it, who lost the disk is told so.
    spy.is_away("refs", false);
    there.disks.take("web", true).await.unwrap();
    assert_eq!(disks.open_offline("web").await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn what_is_here_of_a_lost_disk_goes_when_nothing_was_written_to_it() {
    let (here, there) = two().await;
    assert!(!here.disks.drop_lost("web").await.unwrap(), "nobody took it");
    there.disks.take("web", true).await.unwrap();
    let disk = there.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.close().await.unwrap();
    drop(disk);
    here.disks.take("web", true).await.unwrap_err();
    assert!(here.disks.drop_lost("web").await.unwrap());
    here.disks.take("web", true).await.unwrap();
    assert!(!there.disks.drop_lost("web").await.unwrap(), "it has what nobody else has");
    assert_eq!(there.disks.keep("web", "saved").await.unwrap().name, "saved");
}

#[tokio::test]
async fn zeroes_that_were_answered_and_not_flushed_are_not_dropped_with_a_lost_disk() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    zero(&disk).await;
    // As a process that is killed.
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    assert!(!here.disks.drop_lost("web").await.unwrap());
    here.disks.keep("web", "saved").await.unwrap();
    let mut found = [1; 4096];
    here.open("saved").await.read(Span::between(0, 4096), &mut found).await.unwrap();
    assert_eq!(found, [0; 4096]);
}

#[tokio::test]
async fn whoever_released_a_disk_goes_on_with_it_when_its_directory_is_still_there() {
    let (here, _) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop(disk);
    let (place, kept) = (here.directory.path().join("disks/web"), tempfile::tempdir().unwrap());
    let copy = |from: &std::path::Path, to: &std::path::Path| {
        for entry in std::fs::read_dir(from).unwrap().map(Result::unwrap) {
            std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
        }
    };
    copy(&place, kept.path());
    here.disks.release("web").await.unwrap();
    std::fs::create_dir(&place).unwrap();
    copy(kept.path(), &place);
    assert_eq!(bytes(&*here.open("web").await).await, held);
    assert!(here.disks.elsewhere().await.unwrap().is_empty(), "it is held again");
}

#[tokio::test]
async fn what_any_earlier_holder_may_stand_on_is_kept_until_the_disk_is_released() {
    let (here, there) = two().await;
    let third = here.beside(78).await;
    let found = async || here.store.refs().get(RefKind::Disk, "web").await.unwrap().unwrap();
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    let first = found().await.body.manifest.unwrap();

    there.disks.take("web", true).await.unwrap();
    let disk = there.open("web").await;
    write(&disk, 8, 0x88).await;
    disk.snapshot("between", &()).await.unwrap();
    let second = found().await.body.manifest.unwrap();

    third.disks.take("web", true).await.unwrap();
    let disk = third.open("web").await;
    write(&disk, 9, 0x99).await;
    disk.snapshot("after", &()).await.unwrap();
    drop(disk);
    let roots = found().await.body.roots().unwrap();
    assert!(roots.contains(&first) && roots.contains(&second), "{roots:?}");

    third.disks.release("web").await.unwrap();
    let roots = found().await.body.roots().unwrap();
    assert!(!roots.contains(&first) && !roots.contains(&second), "{roots:?}");
}

#[tokio::test]
async fn what_an_earlier_holder_may_stand_on_is_kept_when_the_record_of_the_disk_is_lost() {
    let (here, there) = two().await;
    let held = write_and_close(&here).await;
    there.disks.take("web", true).await.unwrap();
    let disk = there.open("web").await;
    write(&disk, 9, 0x99).await;
    disk.snapshot("after", &()).await.unwrap();
    disk.close().await.unwrap();
    drop(disk);

    std::fs::write(there.directory.path().join("disks/web/disk.json"), "rubbish").unwrap();
    there.disks.recover("web", None).await.unwrap();
    let disk = there.open("web").await;
    disk.remove_snapshot("before").await.unwrap();
    collect_any(&there).await;
    here.disks.keep("web", "mine").await.unwrap();
    assert_eq!(bytes(&*here.open("mine").await).await, held);
}

#[tokio::test]
async fn a_rollback_that_fails_here_is_not_what_another_server_goes_on_with() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    disk.snapshot("first", &()).await.unwrap();
    write(&disk, 7, 0x77).await;
    disk.snapshot("second", &()).await.unwrap();
    let held = bytes(&*disk).await;
    // The record cannot be replaced.
    let blocked = here.directory.path().join("disks/web/disk.json.new");
    std::fs::create_dir(&blocked).unwrap();
    disk.rollback("first").await.unwrap_err();
    assert_eq!(bytes(&*disk).await, held);
    there.disks.take("web", true).await.unwrap();
    assert_eq!(bytes(&*there.open("web").await).await, held);
}

#[tokio::test]
async fn a_recovery_gives_nothing_up_of_a_disk_that_another_server_took() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    let refused = here.disks.recover("web", None).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced);
    here.disks.keep("web", "mine").await.unwrap();
    assert_eq!(bytes(&*here.open("mine").await).await, held);
}

#[tokio::test]
async fn machines_do_not_take_what_was_kept_of_a_disk_for_that_disk() {
    let (here, there) = two().await;
    let taken = here.open("web").await.uuid();
    there.disks.take("web", true).await.unwrap();
    here.disks.keep("web", "mine").await.unwrap();
    let kept = here.open("mine").await.uuid();
    assert_ne!(kept, taken);
    assert_eq!(there.open("web").await.uuid(), taken);
    // It is known by the same everywhere, and what is kept of it by another one.
    there.disks.take("mine", true).await.unwrap();
    assert_eq!(there.open("mine").await.uuid(), kept);
    here.disks.keep("mine", "again").await.unwrap();
    let again = here.open("again").await.uuid();
    assert!(again != kept && again != taken);
}

#[tokio::test]
async fn removing_a_damaged_disk_leaves_the_one_alone_that_another_server_took() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    let held = bytes(&*disk).await;
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    std::fs::write(here.directory.path().join("disks/web/disk.json"), "{}").unwrap();
    here.disks.remove("web").await.unwrap();
    assert!(here.disks.list().await.unwrap().is_empty());
    assert!(here.store.refs().get(RefKind::Disk, "web").await.unwrap().is_some());
    let taken = there.open("web").await;
    assert_eq!(bytes(&*taken).await, held);
    assert_eq!(taken.snapshots().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_disk_whose_ref_is_damaged_hides_no_other() {
    let (here, there) = two().await;
    here.create("mail", "debian", Mode::Persistent).await.unwrap();
    let refs = here.store.refs();
    let found = refs.get(RefKind::Disk, "mail").await.unwrap().unwrap();
    let mut body = found.body;
    body.labels.remove("epoch");
    refs.update(RefKind::Disk, "mail", found.sequence, body).await.unwrap();
    let listed = there.disks.elsewhere().await.unwrap();
    let told: Vec<_> = listed.iter().map(|d| (d.name.as_str(), d.error.is_some())).collect();
    assert_eq!(told, [("mail", true), ("web", false)]);
}

#[tokio::test]
async fn a_disk_that_another_server_took_does_not_grow() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    there.disks.take("web", true).await.unwrap();
    let size = disk.size();
    let refused = disk.grow(size + (1 << 20)).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Fenced, "{refused}");
    assert_eq!(disk.size(), size);
    assert_eq!(here.disks.list().await.unwrap()[0].size, size);
}

#[tokio::test]
async fn a_copied_home_does_not_write_the_disks_of_the_first_one() {
    let (here, copy) = two().await;
    let disk = here.open("web").await;
    write(&disk, 3, 0x33).await;
    drop(disk);
    let (from, to) = (here.directory.path().join("disks"), copy.directory.path().join("disks"));
    for (from, to) in [(from.clone(), to.clone()), (from.join("web"), to.join("web"))] {
        std::fs::create_dir_all(&to).unwrap();
        for entry in std::fs::read_dir(&from).unwrap().map(Result::unwrap) {
            if entry.path().is_file() {
                std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
            }
        }
    }
    let refused = copy.disks.open("web").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict);
    assert!(refused.message().contains("copy"), "{refused}");
    here.open("web").await;
    // The first one is gone, somebody vouches.
    std::fs::remove_file(to.join(".server-place")).unwrap();
    assert_eq!(bytes(&*copy.open("web").await).await, bytes(&*here.open("web").await).await);
}

#[tokio::test]
async fn what_is_left_of_a_taken_disk_is_told_as_that_when_nobody_keeps_what_it_stood_on() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.snapshot("before", &()).await.unwrap();
    drop(disk);
    there.disks.take("web", true).await.unwrap();
    let disk = there.open("web").await;
    disk.remove_snapshot("before").await.unwrap();
    disk.reset().await.unwrap();
    drop(disk);
    there.disks.release("web").await.unwrap();
    collect(&there).await;
    let error = here.disks.open("web").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Fenced, "{error}");
    here.disks.remove("web").await.unwrap();
    here.disks.take("web", false).await.unwrap();
    here.open("web").await;
}

#[tokio::test]
async fn a_taking_that_failed_says_that_it_can_be_repeated_and_it_can() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk, 7, 0x77).await;
    disk.close().await.unwrap();
    drop(disk);
    here.disks.release("web").await.unwrap();
    // The directory is made; the store does not take the record of it.
    let spy = Spy::on(&there);
    let disks = there.watched(&spy, 78).await;
    spy.refuse_writes("refs/disk/web", true);
    let error = disks.take("web", false).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.message().contains("take it again ('sojourn disk take web')"), "{error}");
    spy.refuse_writes("refs/disk/web", false);
    disks.take("web", false).await.unwrap();
    let mut found = [0; 4096];
    let disk = disks.open("web").await.unwrap();
    disk.read(Span::between(7 * 4096, 8 * 4096), &mut found).await.unwrap();
    assert_eq!(found, [0x77; 4096]);
}

#[tokio::test]
async fn a_disk_that_is_kept_stands_on_nothing_that_is_gone() {
    let (here, there) = two().await;
    here.image("debian:2", &golden(6, 300)).await;
    let held = write_and_close(&here).await;
    // Whoever takes it moves it to another version, and the first one is removed.
    there.disks.take("web", true).await.unwrap();
    let disk = there.open("web").await;
    disk.rebase(&"debian:2".parse().unwrap(), Rebase::KeepMine).await.unwrap();
    drop(disk);
    there.disks.release("web").await.unwrap();
    let refs = there.store.refs();
    let image = refs.get(RefKind::Image, "debian:1").await.unwrap().unwrap();
    refs.remove(RefKind::Image, "debian:1", image.sequence).await.unwrap();
    collect(&there).await;

    here.disks.keep("web", "saved").await.unwrap();
    let disk = here.open("saved").await;
    assert_eq!(bytes(&*disk).await, held);
    let report = verify::store(&here.store, &verify::VerifyOptions::default(), &()).await.unwrap();
    assert!(report.is_clean(), "{:?}", report.faults);
    disk.commit(&"saved:1".parse().unwrap(), &()).await.unwrap();
    assert_eq!(bytes(&*disk).await, held);
}
