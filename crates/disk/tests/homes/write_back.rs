//! What is written goes to the store in the background: it can be given up at any instant and goes on
//! without sending anything twice, and only whoever holds the disk publishes.

use crate::common::{Home, bytes, golden, kind, put, same};
use async_trait::async_trait;
use block::conformance::Sequence;
use block::{BLOCK, Device, Durability, ErrorKind, Span};
use disk::{Disk, Mode, Rebase};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::Poll;
use std::time::Duration;
use store::{UploadPace, UploadPlan};

/// Counts what is sent, and stops for ever after so many objects.
struct Line {
    left: AtomicU64,
    sent: AtomicU64,
}

impl Line {
    fn cut_after(objects: u64) -> Arc<Self> {
        Arc::new(Self { left: AtomicU64::new(objects), sent: AtomicU64::new(0) })
    }

    fn plan(self: &Arc<Self>) -> UploadPlan {
        let pace = Some(Arc::clone(self) as _);
        UploadPlan { pack_bytes: 64 << 10, at_once: 1, pace, ..UploadPlan::default() }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }
}

#[async_trait]
impl UploadPace for Line {
    async fn admit(&self, bytes: u64) {
        let left = |left: u64| left.checked_sub(1);
        if self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err() {
            std::future::pending::<()>().await;
        }
        self.sent.fetch_add(bytes, Ordering::Relaxed);
    }

    fn uploaded(&self, _: u64) {}
}

/// A disk of 64 MiB of which 4 MiB are written, with bytes that do not compress.
async fn home() -> (Home, Arc<Disk>) {
    let home = Home::new().await;
    home.image("golden:1", &golden(1, 1 << 14)).await;
    home.create("alice", "golden:1", Mode::Persistent).await.unwrap();
    let disk = home.open("alice").await;
    let mut dice = Sequence::new(7);
    for number in 0..64 {
        let data: Vec<u8> = (0..8192).flat_map(|_| dice.number().to_le_bytes()).collect();
        let span = Span::within(number * (1 << 20), data.len() as u64, disk.size()).unwrap();
        disk.write(span, &data, Durability::Buffered).await.unwrap();
    }
    disk.flush().await.unwrap();
    (home, disk)
}

async fn whole() -> u64 {
    let (_home, disk) = home().await;
    let line = Line::cut_after(u64::MAX);
    assert!(disk.write_back(line.plan(), &()).await.unwrap());
    line.sent()
}

async fn cut(disk: &Disk, line: &Arc<Line>) {
    let gave_up =
        tokio::time::timeout(Duration::from_secs(3600), disk.write_back(line.plan(), &()));
    gave_up.await.unwrap_err();
}

#[tokio::test(start_paused = true)]
async fn an_upload_that_is_interrupted_again_and_again_sends_no_chunk_twice() {
    let whole = whole().await;
    let (mut home, mut disk) = home().await;
    let expected = bytes(&*disk).await;
    let mut sent = 0;
    for objects in [1, 9, 3, 17, 2] {
        let line = Line::cut_after(objects);
        cut(&disk, &line).await;
        sent += line.sent();
        drop(disk);
        home.again().await;
        disk = home.open("alice").await;
    }
    let behind = disk.behind().unwrap();
    assert!(behind.bytes >= 4 << 20, "{behind:?}");
    let line = Line::cut_after(u64::MAX);
    assert!(disk.write_back(line.plan(), &()).await.unwrap());
    sent += line.sent();
    assert!(sent <= whole + whole / 50, "{sent} bytes were sent for {whole}");
    assert_eq!(disk.behind(), None);
    let mut pins = store::sessions::list(&home.store).await.unwrap();
    pins.retain(|pin| pin.what.as_ref().is_some_and(|what| what.contains("write-back")));
    assert_eq!(pins, [], "nobody is at work any more");
    same(&bytes(&*disk).await, &expected);
    assert!(!disk.write_back(line.plan(), &()).await.unwrap(), "there is nothing to do");
    let other = home.beside(9).await;
    other.disks.take("alice", true).await.unwrap();
    same(&bytes(&*other.open("alice").await).await, &expected);
}

#[tokio::test(start_paused = true)]
async fn an_upload_makes_way_for_a_mark_and_for_who_drops_what_it_brings() {
    let (home, disk) = home().await;
    let published = home.beside(9).await;
    let line = Line::cut_after(3);
    let makes_way = async || {
        tokio::select! {
            _ = disk.write_back(line.plan(), &()) => panic!("the line is cut"),
            () = disk.until_waited_for() => {}
        }
    };
    let mark_later = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        disk.set_mark().await
    };
    let ((), marked) = tokio::join!(makes_way(), mark_later);
    marked.unwrap();
    assert!(disk.behind().is_some(), "nothing was published");
    let drop_later = async {
        tokio::time::sleep(Duration::from_secs(600)).await;
        disk.discard_unpublished().await
    };
    let ((), discarded) = tokio::join!(makes_way(), drop_later);
    discarded.unwrap();
    assert_eq!(disk.behind(), None);
    same(&bytes(&*disk).await, &golden(1, 1 << 14));
    disk.close().await.unwrap();
    published.disks.take("alice", true).await.unwrap();
    same(&bytes(&*published.open("alice").await).await, &golden(1, 1 << 14));
}

/// Has the one thread that waits for the file system wait for the sender.
fn keep_file_system_busy() -> mpsc::Sender<()> {
    let (let_go, waits) = mpsc::channel::<()>();
    drop(tokio::task::spawn_blocking(move || waits.recv()));
    let_go
}

/// Polls `work` so many times, the last time with a file system that does nothing; then it is dropped. Whether it
/// was done before, and what has the file system go on.
async fn given_up_after(polls: u32, work: impl Future<Output = ()>) -> (bool, mpsc::Sender<()>) {
    let (mut work, mut polled) = (std::pin::pin!(work), 0);
    let mut busy = None;
    let is_done = std::future::poll_fn(|context| {
        polled += 1;
        if polled == polls {
            busy = Some(keep_file_system_busy());
        }
        match work.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending if polled == polls => Poll::Ready(false),
            Poll::Pending => Poll::Pending,
        }
    })
    .await;
    (is_done, busy.unwrap_or_else(keep_file_system_busy))
}

/// Has an upload be given up at each of its steps, of a disk of `golden:1` whose block 3 was written, and `next` done
/// behind it; what the disk holds then is there when it is opened again. A file system that takes its time goes on with
/// what nobody waits for any more.
fn behind_each_upload_that_is_given_up(newer: &[u8], next: impl AsyncFn(&Disk)) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let mut home = Home::new().await;
        home.image("golden:1", &golden(1, 64)).await;
        home.image("golden:2", newer).await;
        for polls in 1.. {
            let name = format!("disk-{polls}");
            home.create(&name, "golden:1", Mode::Persistent).await.unwrap();
            let disk = home.open(&name).await;
            put(&disk, 3, 7).await;
            disk.flush().await.unwrap();
            let line = Line::cut_after(u64::MAX);
            let upload = async { drop(disk.write_back(line.plan(), &()).await) };
            let (is_done, busy) = given_up_after(polls, upload).await;
            let go_on = async {
                for _ in 0..8 {
                    tokio::task::yield_now().await;
                }
                drop(busy);
            };
            tokio::join!(next(&disk), go_on);
            let expected = bytes(&*disk).await;
            disk.close().await.unwrap();
            drop(disk);
            home.again().await;
            same(&bytes(&*home.open(&name).await).await, &expected);
            if is_done {
                assert!(polls > 8, "it was given up after {polls} polls at the most");
                break;
            }
        }
    });
}

/// An image in which every byte is another one.
fn newer() -> Vec<u8> {
    golden(1, 64).iter().map(|byte| byte ^ 0x55).collect()
}

#[test]
fn an_upload_that_is_given_up_at_any_instant_leaves_a_disk_that_opens() {
    behind_each_upload_that_is_given_up(&newer(), async |disk| {
        disk.set_mark().await.unwrap();
        put(disk, 5, 9).await;
        disk.flush().await.unwrap();
    });
}

#[test]
fn a_rebase_behind_an_upload_that_is_given_up_at_any_instant_keeps_what_was_flushed() {
    let mut expected = newer();
    expected[3 * BLOCK as usize..4 * BLOCK as usize].fill(7);
    behind_each_upload_that_is_given_up(&newer(), async |disk| {
        disk.rebase(&"golden:2".parse().unwrap(), Rebase::KeepMine).await.unwrap();
        same(&bytes(disk).await, &expected);
    });
}

#[tokio::test(start_paused = true)]
async fn uploads_that_fail_again_and_again_leave_room_for_states_that_are_kept_here() {
    let (home, disk) = home().await;
    for block in 0..10 {
        put(&disk, block, 5).await;
        cut(&disk, &Line::cut_after(0)).await;
    }
    for block in 10..30 {
        put(&disk, block, 6).await;
        disk.set_mark().await.unwrap();
    }
    let expected = bytes(&*disk).await;
    let line = Line::cut_after(u64::MAX);
    disk.write_back(line.plan(), &()).await.unwrap();
    assert_eq!(disk.behind(), None);
    let other = home.beside(9).await;
    other.disks.take("alice", true).await.unwrap();
    same(&bytes(&*other.open("alice").await).await, &expected);
}

#[tokio::test(start_paused = true)]
async fn what_is_written_meanwhile_is_behind_and_goes_up_the_next_time() {
    let (home, disk) = home().await;
    let line = Line::cut_after(5);
    cut(&disk, &line).await;
    put(&disk, 3, 9).await;
    let expected = bytes(&*disk).await;
    let line = Line::cut_after(u64::MAX);
    disk.write_back(line.plan(), &()).await.unwrap();
    assert_eq!(disk.behind(), None);
    put(&disk, 4, 8).await;
    assert_eq!(disk.behind().unwrap().bytes, BLOCK);
    let other = home.beside(9).await;
    other.disks.take("alice", true).await.unwrap();
    same(&bytes(&*other.open("alice").await).await, &expected);
}

#[tokio::test(start_paused = true)]
async fn a_holder_that_lost_the_disk_during_an_upload_publishes_nothing_and_keeps_its_state() {
    let (home, disk) = home().await;
    let golden = golden(1, 1 << 14);
    let expected = bytes(&*disk).await;
    let line = Line::cut_after(5);
    cut(&disk, &line).await;
    let other = home.beside(9).await;
    other.disks.take("alice", true).await.unwrap();
    let line = Line::cut_after(u64::MAX);
    assert_eq!(kind(disk.write_back(line.plan(), &()).await), ErrorKind::Fenced);
    assert_eq!(line.sent(), 0, "nothing was sent for nobody");
    same(&bytes(&*other.open("alice").await).await, &golden);
    drop(disk);
    home.disks.keep("alice", "alice-here").await.unwrap();
    same(&bytes(&*home.open("alice-here").await).await, &expected);
}

#[tokio::test]
async fn what_was_not_published_can_be_dropped_and_what_was_stays() {
    let (_home, disk) = home().await;
    let line = Line::cut_after(u64::MAX);
    assert!(disk.write_back(line.plan(), &()).await.unwrap());
    let before = bytes(&*disk).await;
    put(&disk, 5, 7).await;
    disk.flush().await.unwrap();
    assert!(bytes(&*disk).await != before);
    disk.discard_unpublished().await.unwrap();
    assert_eq!(disk.behind(), None);
    same(&bytes(&*disk).await, &before);
}
