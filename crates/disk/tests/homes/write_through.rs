//! Disks that are written through: what was answered is on whichever server goes on with them.

use crate::common::{Home, Spy, bytes, golden, put, same};
use block::{Device, ErrorKind};
use disk::{Disk, Disks, Mode, Rebase};
use std::sync::Arc;
use std::time::Duration;
use store::RefKind;
use tokio::time::{sleep, timeout};

const HOUR: Duration = Duration::from_secs(3600);

async fn two() -> (Home, Home, Arc<Disk>) {
    let here = Home::new().await;
    here.image("debian:1", &golden(5, 300)).await;
    here.create("web", "debian", Mode::WriteThrough).await.unwrap();
    let there = here.beside(77).await;
    let disk = here.open("web").await;
    (here, there, disk)
}

async fn at_work(home: &Home, lease: Duration) {
    let server = home.disks.server().await.unwrap();
    home.store.servers().announce(server, "lab-1", lease).await.unwrap();
}

async fn sequence(home: &Home) -> u64 {
    home.store.refs().get(RefKind::Disk, "web").await.unwrap().unwrap().sequence
}

#[tokio::test(start_paused = true)]
async fn what_was_answered_goes_on_elsewhere_once_the_lease_of_its_server_ran_out() {
    let (here, there, disk) = two().await;
    at_work(&here, HOUR).await;
    let one = sequence(&here).await;
    put(&disk, 3, 7).await;
    let rounds = sequence(&here).await - one;
    // However long it is: whoever would cut it is told not to.
    assert!(disk.is_written_through());
    let writes = (0..64).map(|block| put(&disk, block, 9));
    futures::future::join_all(writes).await;
    assert!(sequence(&here).await - one <= 4 * rounds, "writes that wait go up together");
    let (held, content) = (bytes(&*disk).await, disk.content());
    // As a server that is killed: nothing is closed or flushed.
    let refused = there.disks.take_over("web").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    at_work(&here, Duration::ZERO).await;
    assert!(there.disks.take_over("web").await.unwrap());
    let taken = there.open("web").await;
    same(&bytes(&*taken).await, &held);
    assert_eq!(taken.content(), content, "for its client it is the same");

    // The one before answers no write any more, and has nothing of its own when it is to have the disk again.
    let late = disk.write(block::Span::between(0, 4096), &[1; 4096], Default::default()).await;
    assert_eq!(late.unwrap_err().kind(), ErrorKind::Fenced);
    drop(disk);
    put(&taken, 5, 11).await;
    let held = bytes(&*taken).await;
    drop(taken);
    assert!(here.disks.take_over("web").await.unwrap());
    same(&bytes(&*here.open("web").await).await, &held);
}

#[tokio::test(start_paused = true)]
async fn no_other_disk_is_taken_over() {
    let (here, there, _disk) = two().await;
    here.create("mail", "debian", Mode::Persistent).await.unwrap();
    assert!(!there.disks.take_over("mail").await.unwrap());
    assert!(!there.disks.take_over("none").await.unwrap());
    assert!(there.disks.list().await.unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_is_answered_when_a_store_that_was_away_has_it() {
    let (here, there, disk) = two().await;
    here.backend.allow(0);
    let mut write = std::pin::pin!(put(&disk, 3, 7));
    assert!(timeout(HOUR, &mut write).await.is_err(), "nobody has it but this server");
    let comes_back = async {
        sleep(HOUR).await;
        here.backend.allow(u64::MAX);
    };
    tokio::join!(write, comes_back);
    let held = bytes(&*disk).await;
    assert!(there.disks.take_over("web").await.unwrap());
    same(&bytes(&*there.open("web").await).await, &held);
}

#[tokio::test(start_paused = true)]
async fn a_round_looks_up_nothing_and_a_ref_that_others_wrote_is_written_all_the_same() {
    let (here, there, disk) = two().await;
    drop(disk);
    let spy = Spy::on(&here);
    let disk = here.watched(&spy, 90).await.open("web").await.unwrap();
    put(&disk, 3, 7).await;
    let asked = || spy.asked().iter().filter(|key| key.starts_with("refs/disk")).count();
    let before = asked();
    put(&disk, 4, 8).await;
    assert_eq!(asked(), before);
    // A take that came to nothing, say.
    let refs = there.store.refs();
    let found = refs.get(RefKind::Disk, "web").await.unwrap().unwrap();
    refs.update(RefKind::Disk, "web", found.sequence, found.body).await.unwrap();
    put(&disk, 5, 9).await;
    let held = bytes(&*disk).await;
    assert!(there.disks.take_over("web").await.unwrap());
    same(&bytes(&*there.open("web").await).await, &held);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_done_to_it_after_which_this_server_alone_had_something() {
    let (here, there, disk) = two().await;
    here.image("debian:2", &golden(6, 300)).await;
    put(&disk, 3, 7).await;
    let rebased = disk.rebase(&"debian:2".parse().unwrap(), Rebase::Refuse).await.unwrap_err();
    assert_eq!(rebased.kind(), ErrorKind::Unsupported);
    let guest = disk.attach("guest").await.unwrap();
    let to = "debian:3".parse().unwrap();
    assert_eq!(disk.commit(&to, &()).await.unwrap_err().kind(), ErrorKind::Conflict);
    drop(guest);
    disk.commit(&to, &()).await.unwrap();
    put(&disk, 4, 8).await;
    disk.close().await.unwrap();
    drop(disk);
    assert!(there.disks.take_over("web").await.unwrap());
    // What a disk is kept as that was taken by force is not taken over.
    here.disks.keep("web", "saved").await.unwrap();
    assert!(!there.disks.take_over("saved").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_is_given_up_leaves_no_other_waiting() {
    let (here, _, disk) = two().await;
    here.backend.allow(0);
    assert!(timeout(HOUR, put(&disk, 3, 7)).await.is_err());
    here.backend.allow(u64::MAX);
    put(&disk, 4, 8).await;
    assert_eq!(disk.behind(), None);
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_client_wrote_and_was_not_answered_is_in_the_store_before_the_next_one_reads_it()
 {
    let (here, there, disk) = two().await;
    here.backend.allow(0);
    assert!(timeout(HOUR, put(&disk, 3, 7)).await.is_err());
    here.backend.allow(u64::MAX);
    drop(disk);
    let disk = here.open("web").await;
    let _guest = disk.attach("guest").await.unwrap();
    let held = bytes(&*disk).await;
    assert!(there.disks.take_over("web").await.unwrap());
    same(&bytes(&*there.open("web").await).await, &held);
}

/// The disks of a home in which a lost client left something that was not answered.
async fn left_by_a_lost_client() -> (Home, Spy, Disks) {
    let (here, _, disk) = two().await;
    here.backend.allow(0);
    assert!(timeout(HOUR, put(&disk, 3, 7)).await.is_err());
    here.backend.allow(u64::MAX);
    drop(disk);
    let spy = Spy::on(&here);
    let disks = here.watched(&spy, 90).await;
    (here, spy, disks)
}

#[tokio::test(start_paused = true)]
async fn what_a_lost_client_wrote_goes_up_however_long_that_takes_and_clients_are_told_so() {
    let (_here, spy, disks) = left_by_a_lost_client().await;
    let disk = disks.open("web").await.unwrap();
    spy.slow_writes("packs", Duration::from_secs(17));
    for _ in 0..3 {
        let refused = disk.attach("guest").await.err().unwrap();
        assert_eq!(refused.kind(), ErrorKind::Unavailable);
        assert!(refused.message().contains("on its way to the store"), "{refused}");
    }
    drop(disk.attach("guest").await.unwrap());
    assert_eq!(spy.slowed(), 1, "it was sent once");
}

#[tokio::test(start_paused = true)]
async fn a_client_is_refused_while_the_store_does_not_say_who_has_the_disk() {
    let (here, there, disk) = two().await;
    drop(disk);
    let spy = Spy::on(&here);
    let disks = here.watched(&spy, 90).await;
    let disk = disks.open("web").await.unwrap();
    spy.is_away("refs", true);
    assert_eq!(disk.attach("guest").await.unwrap_err().kind(), ErrorKind::Unavailable);
    spy.is_away("refs", false);
    drop(disk.attach("guest").await.unwrap());
    assert!(there.disks.take_over("web").await.unwrap());
    assert_eq!(disk.attach("guest").await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_written_through_opens_with_the_store_alone() {
    let (here, _there, disk) = two().await;
    drop(disk);
    let spy = Spy::on(&here);
    let disks = here.watched(&spy, 90).await;
    spy.is_away("refs", true);
    assert_eq!(disks.open_offline("web").await.unwrap_err().kind(), ErrorKind::Unavailable);
    spy.is_away("refs", false);
    drop(disks.open_offline("web").await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_disk_that_is_closed_while_something_goes_up_lets_go_of_its_directory() {
    let (_here, spy, disks) = left_by_a_lost_client().await;
    let disk = disks.open("web").await.unwrap();
    spy.slow_writes("packs", HOUR);
    assert_eq!(disk.attach("guest").await.unwrap_err().kind(), ErrorKind::Unavailable);
    disk.close().await.unwrap();
    drop(disk);
    disks.open("web").await.unwrap();
}
