//! Ephemeral disks: whose they are, when they are reset, and what borrowed room keeps of them.

use crate::common::{Borrowed, Home, bytes, home, kind, put, same};
use block::{Device, ErrorKind};
use disk::{Disk, Ending, Mode};
use std::sync::Arc;
use std::time::Duration;

async fn ephemeral(home: &Home) -> Arc<Disk> {
    home.create("e", "golden", Mode::Ephemeral).await.unwrap();
    home.open("e").await
}

#[tokio::test]
async fn an_ephemeral_disk_is_reset_when_its_last_client_leaves() {
    let (home, image) = home().await;
    let disk = ephemeral(&home).await;
    let (first, second) = (disk.attach("vm").await.unwrap(), disk.attach("vm").await.unwrap());
    put(&disk, 1, 1).await;
    first.detach(Ending::Clean).await.unwrap();
    assert_ne!(bytes(&*disk).await, image);
    second.detach(Ending::Clean).await.unwrap();
    same(&bytes(&*disk).await, &image);
    disk.attach("other").await.unwrap();
}

#[tokio::test]
async fn an_ephemeral_disk_waits_for_a_lost_client_and_no_longer() {
    let (mut home, image) = home().await;
    home.linger(Duration::from_millis(300));
    let disk = ephemeral(&home).await;
    let life = async {
        put(&disk, 1, 1).await;
        drop(disk.attach("vm").await.unwrap());
        assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
        let again = disk.attach("vm").await.unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_ne!(bytes(&*disk).await, image, "reset under its client");
        again.detach(Ending::Lost).await.unwrap();
        while disk.holder().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        same(&bytes(&*disk).await, &image);
        disk.attach("other").await.unwrap();
    };
    tokio::select! {
        () = life => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
}

#[tokio::test]
async fn an_ephemeral_disk_waits_without_end_while_its_client_is_on_its_way() {
    let (mut home, image) = home().await;
    home.linger(Duration::from_millis(50));
    let disk = ephemeral(&home).await;
    let long = || tokio::time::sleep(Duration::from_millis(300));
    let life = async {
        let (first, second) = (disk.attach("vm").await.unwrap(), disk.attach("vm").await.unwrap());
        put(&disk, 1, 1).await;
        let written = bytes(&*disk).await;
        let first = first.pass();
        second.detach(Ending::Clean).await.unwrap();
        long().await;
        same(&bytes(&*disk).await, &written);
        assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
        assert_eq!(kind(disk.reset().await), ErrorKind::Conflict);
        // No other process took it: it goes on here.
        let back = disk.attach("vm").await.unwrap();
        drop(first);
        long().await;
        same(&bytes(&*disk).await, &written);
        // One that does not come back is lost, as others are.
        drop(back.pass());
        while disk.holder().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        same(&bytes(&*disk).await, &image);
        // One that another process has is not lost here, and nobody else's.
        let gone = disk.attach("vm").await.unwrap();
        put(&disk, 1, 1).await;
        gone.pass().hand_over();
        long().await;
        same(&bytes(&*disk).await, &written);
        assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
    };
    tokio::select! {
        () = life => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
}

#[tokio::test]
async fn a_persistent_disk_is_free_again_when_its_client_does_not_come_back() {
    let (home, _) = home().await;
    home.create("p", "golden", Mode::Persistent).await.unwrap();
    let disk = home.open("p").await;
    let passed = disk.attach("vm").await.unwrap().pass();
    assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
    drop(passed);
    drop(disk.attach("other").await.unwrap());
}

#[tokio::test]
async fn an_ephemeral_disk_of_a_killed_server_waits_for_its_client_too() {
    let (mut home, image) = home().await;
    let disk = ephemeral(&home).await;
    let attachment = disk.attach("vm").await.unwrap();
    put(&disk, 1, 1).await;
    disk.flush().await.unwrap();
    let kept = bytes(&*disk).await;
    // The process is gone before it could say that the client was lost.
    std::mem::forget(attachment);
    let place = home.directory.path().join("disks").join("e");
    let copy = home.directory.path().join("copy");
    std::fs::create_dir_all(&copy).unwrap();
    for entry in std::fs::read_dir(&place).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), copy.join(entry.file_name())).unwrap();
    }
    std::fs::rename(&place, home.directory.path().join("old")).unwrap();
    std::fs::rename(&copy, &place).unwrap();
    home.again().await;
    home.linger(Duration::from_millis(100));
    let disk = home.open("e").await;
    assert_eq!(disk.holder().as_deref(), Some("vm"));
    assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
    same(&bytes(&*disk).await, &kept);
    let reset = async {
        while disk.holder().is_some() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        () = reset => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
    same(&bytes(&*disk).await, &image);
}

#[tokio::test]
async fn what_a_process_left_is_not_given_to_another_one_that_has_its_number() {
    let (mut home, image) = home().await;
    let disk = ephemeral(&home).await;
    let attachment = disk.attach_process("pid:7", Some("b00f/1")).await.unwrap();
    put(&disk, 1, 1).await;
    assert_eq!(kind(disk.attach_process("pid:7", Some("b00f/2")).await), ErrorKind::Conflict);
    let written = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop((attachment, disk));
    home.again().await;
    let disk = home.open("e").await;
    assert_eq!(disk.holder().as_deref(), Some("pid:7"));
    let life = async {
        // The process itself has its disk back, also where nobody can tell that it is the same one.
        for process in [Some("b00f/1"), None] {
            drop(disk.attach_process("pid:7", process).await.unwrap());
            same(&bytes(&*disk).await, &written);
        }
        // As after a restart of the machine. Nobody waits for the one before it, and so not for half a minute.
        assert_eq!(kind(disk.attach_process("pid:7", Some("c0de/1")).await), ErrorKind::Conflict);
        let other = loop {
            match disk.attach_process("pid:7", Some("c0de/1")).await {
                Ok(attachment) => break attachment,
                Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        };
        same(&bytes(&*disk).await, &image);
        drop(other);
    };
    let life = async { tokio::time::timeout(Duration::from_secs(20), life).await.unwrap() };
    tokio::select! {
        () = life => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
}

#[tokio::test]
async fn borrowed_room_keeps_what_an_ephemeral_disk_writes_and_its_files_nothing() {
    let (mut home, image) = home().await;
    home.create("e", "golden", Mode::Ephemeral).await.unwrap();
    home.create("p", "golden", Mode::Persistent).await.unwrap();
    home.with_room(Duration::from_secs(30)).await;
    let (disk, persistent) = (home.open("e").await, home.open("p").await);
    assert!(disk.is_away() && !persistent.is_away());
    put(&persistent, 1, 1).await;
    assert!(persistent.info().private_bytes > 0 && persistent.snapshot("s", &()).await.is_ok());
    let attachment = disk.attach("vm").await.unwrap();
    put(&disk, 1, 1).await;
    disk.flush().await.unwrap();
    let written = bytes(&*disk).await;
    assert_ne!(written, image);
    assert!(disk.info().private_bytes > 0);
    let file = home.directory.path().join("disks/e/0001.data");
    assert_eq!(std::fs::metadata(file).unwrap().len(), 0, "nothing is written to the home");
    // What is to be kept cannot be made of it.
    assert_eq!(kind(disk.snapshot("s", &()).await), ErrorKind::Denied);
    assert_eq!(kind(disk.commit(&"golden".parse().unwrap(), &()).await), ErrorKind::Denied);
    assert_eq!(kind(disk.grow(disk.size() + 4096).await), ErrorKind::Conflict);
    assert_eq!(bytes(&*disk).await, written);
    attachment.detach(Ending::Clean).await.unwrap();
    same(&bytes(&*disk).await, &image);
    assert_eq!(disk.info().private_bytes, 0);
    // Its size is that of the disk, whenever it changes.
    disk.grow(disk.size() + 4096).await.unwrap();
    assert_eq!(bytes(&*disk).await.len(), image.len() + 4096);
    // One that does not fit cannot be used, and says so.
    assert_eq!(kind(disk.grow(2 * Borrowed::LARGEST).await), ErrorKind::Unsupported);
    assert_eq!(kind(disk.attach("vm").await), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_client_whose_writes_are_gone_with_borrowed_room_is_told() {
    let (mut home, image) = home().await;
    home.create("e", "golden", Mode::Ephemeral).await.unwrap();
    home.with_room(Duration::from_secs(30)).await;
    let disk = home.open("e").await;
    let attachment = disk.attach("vm").await.unwrap();
    put(&disk, 1, 1).await;
    // A client that is cut off for a moment finds all of it.
    attachment.detach(Ending::Lost).await.unwrap();
    let written = bytes(&*disk).await;
    let attachment = disk.attach("vm").await.unwrap();
    assert!(bytes(&*disk).await == written && written != image);
    // The server is stopped under it.
    disk.close().await.unwrap();
    drop((attachment, disk));
    home.with_room(Duration::from_millis(100)).await;
    let disk = home.open("e").await;
    let error = disk.attach("vm").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("is gone"), "{error}");
    let reset = async {
        while disk.holder().is_some() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::select! {
        () = reset => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
    disk.attach("vm").await.unwrap();
    same(&bytes(&*disk).await, &image);
}

/// A client leaves, and whoever saw it off goes away after so many steps; then another one comes.
async fn cut_off_after(steps: usize) -> block::Result<()> {
    let (mut home, image) = home().await;
    home.linger(Duration::from_millis(50));
    let disk = ephemeral(&home).await;
    let attachment = disk.attach("vm").await.unwrap();
    put(&disk, 1, 1).await;
    {
        let mut leaving = std::pin::pin!(attachment.detach(Ending::Clean));
        for _ in 0..steps {
            if futures::poll!(&mut leaving).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let over = async {
        while disk.holder().is_some() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        () = over => {}
        () = disk.expire() => unreachable!("it never returns"),
    }
    let disk = if disk.has_failed() {
        // What is on it is not another client's.
        assert_eq!(kind(disk.attach("other").await), ErrorKind::Unavailable);
        disk.close().await.unwrap_err();
        drop(disk);
        home.again().await;
        home.linger(Duration::ZERO);
        let disk = home.open("e").await;
        disk.reset().await.unwrap();
        disk
    } else {
        disk
    };
    same(&bytes(&*disk).await, &image);
    disk.until_free().await;
    disk.attach("other").await.map(drop)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ephemeral_disk_whose_reset_was_cut_off_is_free_in_the_end() {
    let mut runs = tokio::task::JoinSet::new();
    for steps in 0..40 {
        runs.spawn(cut_off_after(steps));
    }
    while let Some(run) = runs.join_next().await {
        run.unwrap().unwrap();
    }
}

#[tokio::test]
async fn who_waits_until_a_disk_is_free_comes_after_its_reset() {
    let (home, image) = home().await;
    let disk = ephemeral(&home).await;
    let attachment = disk.attach("vm").await.unwrap();
    put(&disk, 1, 1).await;
    let mut leaving = std::pin::pin!(attachment.detach(Ending::Clean));
    assert!(futures::poll!(&mut leaving).is_pending());
    assert_eq!(kind(disk.attach("other").await), ErrorKind::Conflict);
    let next = async {
        disk.until_free().await;
        disk.attach("other").await.unwrap()
    };
    let (left, next) = tokio::join!(leaving, next);
    left.unwrap();
    same(&bytes(&*disk).await, &image);
    drop(next);
}
