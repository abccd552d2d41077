use super::*;
use futures::FutureExt;
use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use tokio::task::JoinSet;

/// A ring of one queue with room for `depth`; nothing where the kernel has none.
fn start(depth: u32) -> Option<(Ring, RingDriver)> {
    match Ring::with_depth(1, depth) {
        Ok(started) => Some(started),
        Err(error) => {
            eprintln!("not tested: {error}");
            None
        }
    }
}

fn driven(driver: RingDriver) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    tasks.spawn(driver.run());
    tasks
}

/// Something whose read stays in flight until something is written.
fn pipe() -> (ReadTarget, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (Arc::new(OwnedFd::from(reader)), writer)
}

async fn read(ring: &Ring, target: &ReadTarget) -> Option<Vec<u8>> {
    let (mut bytes, result) = ring.read(Arc::clone(target), 0, vec![0; 8], 0).await?;
    bytes.truncate(result.unwrap());
    Some(bytes)
}

#[tokio::test]
async fn an_operation_that_nobody_waits_for_keeps_its_room_until_it_has_ended() {
    let Some((ring, driver)) = start(1) else { return };
    let _driver = driven(driver);
    let (first, mut to_first) = pipe();
    assert!(read(&ring, &first).now_or_never().is_none());

    let (second, mut to_second) = pipe();
    to_second.write_all(b"two").unwrap();
    for _ in 0..10 {
        assert_eq!(read(&ring, &second).await, None, "it is to be done in another way");
        tokio::task::yield_now().await;
    }
    to_first.write_all(b"one").unwrap();
    let two = loop {
        match read(&ring, &second).await {
            Some(two) => break two,
            None => tokio::task::yield_now().await,
        }
    };
    assert_eq!(two, b"two");
    // What nobody waited for was read.
    to_first.write_all(b"three").unwrap();
    assert_eq!(read(&ring, &first).await.unwrap(), b"three");
}

#[tokio::test]
async fn more_than_there_is_room_for_are_done_in_another_way() {
    let Some((ring, driver)) = start(2) else { return };
    let _driver = driven(driver);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"12345678", 0).unwrap();
    let target: ReadTarget = Arc::new(file);
    let reads = (0..100).map(|_| read(&ring, &target));
    let read = futures::future::join_all(reads).await;
    assert!(read.iter().flatten().count() >= 2);
    assert!(read.iter().flatten().all(|bytes| bytes == b"12345678"));
}

#[tokio::test]
async fn without_its_driver_a_ring_tells_everybody_to_do_it_in_another_way() {
    let Some((ring, driver)) = start(2) else { return };
    let driver = driven(driver);
    let (quiet, _writer) = pipe();
    let mut flying = Box::pin(read(&ring, &quiet));
    assert!((&mut flying).now_or_never().is_none());
    drop(driver);
    assert_eq!(flying.await, None);
    assert!(!ring.is_open());
    let target: ReadTarget = Arc::new(tempfile::tempfile().unwrap());
    assert_eq!(read(&ring, &target).await, None);
}

#[tokio::test]
async fn memory_outlives_a_ring_that_ends_before_its_operations() {
    let Some((ring, driver)) = start(2) else { return };
    let (target, mut writer) = pipe();
    assert!(read(&ring, &target).now_or_never().is_none());
    drop((ring, driver));
    // Nobody may be reading any more: what counts is that nothing falls.
    writer.write_all(b"late").unwrap();
}

#[tokio::test]
async fn an_operation_outlives_the_thread_that_submitted_it() {
    let Some((ring, driver)) = start(2) else { return };
    let _driver = driven(driver);
    let (target, mut writer) = pipe();
    let mut flying = Box::pin(read(&ring, &target));
    std::thread::scope(|scope| {
        scope.spawn(|| assert!((&mut flying).now_or_never().is_none()));
    });
    writer.write_all(b"still").unwrap();
    // The kernel may also give it up: then it is done in another way.
    assert!(matches!(flying.await.as_deref(), Some(b"still") | None));
}

#[test]
fn every_task_of_many_threads_gets_its_own_bytes() {
    const BLOCKS: u64 = 256;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build();
    runtime.unwrap().block_on(async {
        let Ok((ring, driver)) = Ring::with_depth(3, 8) else { return };
        let _driver = driven(driver);
        let file = tempfile::tempfile().unwrap();
        for block in 0..BLOCKS {
            file.write_all_at(&block.to_le_bytes().repeat(512), block * 4096).unwrap();
        }
        let file: Arc<File> = Arc::new(file);
        let mut tasks = JoinSet::new();
        for task in 0..32 {
            let (ring, file) = (ring.clone(), Arc::clone(&file));
            tasks.spawn(async move {
                for step in 0..100 {
                    let block = (task * 37 + step * 11) % BLOCKS;
                    let target = Arc::clone(&file) as ReadTarget;
                    if step % 10 == 0 {
                        let again = Arc::clone(&target);
                        let _ = ring.read(again, 0, vec![0; 4096], 0).now_or_never();
                    }
                    let (bytes, len) = loop {
                        let again = Arc::clone(&target);
                        match ring.read(again, block * 4096, vec![0; 4096], 0).await {
                            Some(read) => break read,
                            None => tokio::task::yield_now().await,
                        }
                    };
                    assert_eq!(len.unwrap(), 4096);
                    assert!(bytes.chunks(8).all(|word| word == block.to_le_bytes()));
                }
            });
        }
        while let Some(done) = tasks.join_next().await {
            done.unwrap();
        }
    });
}

#[tokio::test]
async fn a_part_is_read_behind_what_is_there() {
    let Some((ring, driver)) = start(2) else { return };
    let _driver = driven(driver);
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(b"abcdef", 0).unwrap();
    let target: ReadTarget = Arc::new(file);
    let (bytes, len) = ring.read(target, 2, b"........".to_vec(), 3).await.unwrap();
    assert_eq!((bytes.as_slice(), len.unwrap()), (b"...cdef.".as_slice(), 4));
}

#[tokio::test]
async fn a_ring_that_the_kernel_refuses_is_an_error() {
    let error = Ring::with_depth(1, 1 << 30).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("io_uring"), "{error}");
}
