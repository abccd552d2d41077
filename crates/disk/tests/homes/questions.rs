//! The store is asked who holds an open disk, and answers late.

use crate::common::{Home, bytes, golden};
use block::{Device, Durability, ErrorKind, Result, Span};
use disk::{Disk, Mode};
use futures::StreamExt;
use object_store::{ObjectStore, ObjectStoreExt};
use std::time::Duration;
use store::{RefKind, gc};

async fn two() -> (Home, Home) {
    let here = Home::new().await;
    here.image("debian:1", &golden(5, 300)).await;
    here.create("web", "debian", Mode::Persistent).await.unwrap();
    let there = here.beside(77).await;
    (here, there)
}

/// Removes what nothing refers to. Sessions that made the images of these tests were left open.
async fn collect(home: &Home) {
    let (grace, stale) = (Duration::ZERO, Duration::ZERO);
    let options = gc::GcOptions { grace, stale, ..gc::GcOptions::default() };
    gc::collect(&home.store, &options, &()).await.unwrap();
}

async fn write(disk: &Disk) -> Result<()> {
    disk.write(Span::between(0, 4096), &[7; 4096], Durability::Durable).await
}

#[tokio::test]
async fn the_answer_to_the_last_question_fences_a_disk_that_was_taken() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    disk.judge(disk.question().ask().await).unwrap();
    write(&disk).await.unwrap();
    let question = disk.question();
    there.disks.take("web", true).await.unwrap();
    assert_eq!(disk.judge(question.ask().await).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(write(&disk).await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn an_answer_of_before_the_disk_was_taken_is_followed_by_one_that_fences_it() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    let late = disk.question().ask().await;
    there.disks.take("web", true).await.unwrap();
    disk.judge(late).unwrap();
    assert_eq!(disk.judge(disk.question().ask().await).unwrap_err().kind(), ErrorKind::Fenced);
    assert_eq!(write(&disk).await.unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn an_answer_changes_nothing_when_it_was_asked_anew_meanwhile() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    let first = disk.question();
    there.disks.take("web", true).await.unwrap();
    let first = first.ask().await;
    let second = disk.question();
    disk.judge(first).unwrap();
    write(&disk).await.unwrap();
    assert_eq!(disk.judge(second.ask().await).unwrap_err().kind(), ErrorKind::Fenced);
}

#[tokio::test]
async fn a_question_keeps_no_disk_open_and_its_answer_changes_nothing_after_a_reopening() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    let question = disk.question();
    disk.close().await.unwrap();
    drop(disk);
    // The lock of the first one is free, or this fails.
    let again = here.open("web").await;
    there.disks.take("web", true).await.unwrap();
    again.judge(question.ask().await).unwrap();
    write(&again).await.unwrap();
    let question = again.question();
    let answer = question.ask().await;
    again.close().await.unwrap();
    again.judge(answer).unwrap();
}

#[tokio::test]
async fn a_store_that_cannot_say_who_holds_a_disk_fences_nobody() {
    let (here, _there) = two().await;
    let disk = here.open("web").await;
    let records: Vec<_> = here.backend.list(Some(&"refs/disk/web".into())).collect().await;
    assert!(!records.is_empty());
    for record in records {
        here.backend.put(&record.unwrap().location, "noise".into()).await.unwrap();
    }
    let unknown = disk.judge(disk.question().ask().await).unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::Corrupt);
    write(&disk).await.unwrap();
}

#[tokio::test]
async fn the_store_is_told_again_of_a_disk_in_use_that_was_held_for_lost() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk).await.unwrap();
    disk.snapshot("monday", &()).await.unwrap();
    // Nobody has heard of this server.
    there.disks.remove_lost("web").await.unwrap();
    assert!(!disk.judge(disk.question().ask().await).unwrap());
    disk.tell_store().await.unwrap();
    assert!(disk.judge(disk.question().ask().await).unwrap());
    collect(&here).await;
    write(&disk).await.unwrap();
    let held = bytes(&*disk).await;
    disk.close().await.unwrap();
    drop(disk);
    assert_eq!(bytes(&*here.open("web").await).await, held);
}

#[tokio::test]
async fn a_disk_whose_base_was_collected_or_whose_name_is_anothers_is_not_written() {
    for is_taken in [false, true] {
        let (here, there) = two().await;
        let disk = here.open("web").await;
        write(&disk).await.unwrap();
        disk.snapshot("monday", &()).await.unwrap();
        there.disks.remove_lost("web").await.unwrap();
        if is_taken {
            there.create("web", "debian", Mode::Persistent).await.unwrap();
            let wrong = disk.judge(disk.question().ask().await).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Conflict);
        } else {
            collect(&there).await;
            assert!(!disk.judge(disk.question().ask().await).unwrap());
            assert_eq!(disk.tell_store().await.unwrap_err().kind(), ErrorKind::Fenced);
        }
        write(&disk).await.unwrap_err();
    }
}

#[tokio::test]
async fn a_disk_whose_base_was_collected_is_not_opened_and_keeps_no_collection_up() {
    let (here, there) = two().await;
    let disk = here.open("web").await;
    write(&disk).await.unwrap();
    disk.snapshot("monday", &()).await.unwrap();
    disk.close().await.unwrap();
    drop(disk);
    there.disks.remove_lost("web").await.unwrap();
    collect(&there).await;
    here.disks.open("web").await.unwrap_err();
    assert_eq!(here.store.refs().get(RefKind::Disk, "web").await.unwrap(), None);
}
