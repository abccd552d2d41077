use super::*;
use crate::{DiskKey, Layout, Lent, Stitched};
use block::BLOCK;
use block::conformance;
use std::sync::atomic::{AtomicU64, Ordering};

const SIZE: u64 = 8 << 20;
const FLOOR: u64 = 1 << 30;

/// A live file on a host whose free space the test sets.
fn host(policy: GiveBack) -> (tempfile::TempDir, Arc<Live>, Arc<AtomicU64>) {
    let dir = tempfile::tempdir().unwrap();
    let free = Arc::new(AtomicU64::new(2 * FLOOR));
    let asked = Arc::clone(&free);
    let ask = Box::new(move |_: BorrowedFd<'_>| Ok(asked.load(Ordering::Relaxed)));
    let live = Live::with_free(dir.path(), SIZE, FLOOR, policy, ask).unwrap();
    (dir, Arc::new(live), free)
}

fn stitched(live: &Arc<Live>) -> Stitched {
    let layout = Layout::new(&[Lent { member: 0, span: Span::whole(SIZE) }], &[SIZE]).unwrap();
    let key = DiskKey::generate(|bytes| {
        bytes[0] = 1;
        Ok(())
    });
    Stitched::new(vec![Arc::clone(live) as _], layout, SIZE, Some(&key.unwrap())).unwrap()
}

/// Bytes that the file takes on its file system.
fn room(live: &Live) -> u64 {
    live.file.file().metadata().unwrap().room
}

async fn write(disk: &Stitched, offset: u64, len: u64) -> Result<()> {
    let span = Span::between(offset, offset + len);
    disk.write(span, &vec![7; len as usize], Durability::Buffered).await
}

async fn read(disk: &Stitched, offset: u64, len: u64) -> Result<Vec<u8>> {
    let mut buf = vec![0; len as usize];
    disk.read(Span::between(offset, offset + len), &mut buf).await.map(|()| buf)
}

#[tokio::test]
async fn a_disk_on_a_live_host_is_a_plain_vector_and_its_file_has_no_name() {
    let (dir, live, _) = host(GiveBack::Unwritten);
    assert!(room(&live) >= SIZE, "the room is there from the start");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    conformance::against_bytes(&stitched(&live), vec![0; SIZE as usize], 1).await;
    assert_eq!(live.keep_floor().unwrap(), GivenBack::default(), "the host has enough");
}

#[tokio::test]
async fn room_that_holds_nothing_is_given_back_first_and_only_as_much_as_needed() {
    let (_dir, live, free) = host(GiveBack::Anything);
    let disk = stitched(&live);
    write(&disk, 0, 1 << 20).await.unwrap();
    write(&disk, SIZE - BLOCK, BLOCK).await.unwrap();
    let before = room(&live);
    free.store(FLOOR - 2 * (1 << 20) - 100, Ordering::Relaxed);
    let given = live.keep_floor().unwrap();
    let expected = (2u64 << 20) + 100;
    assert_eq!(given, GivenBack { unwritten: expected.next_multiple_of(BLOCK), lost: 0 });
    assert!(room(&live) + (2 << 20) <= before);
    assert!(read(&disk, SIZE - BLOCK, BLOCK).await.unwrap().iter().all(|byte| *byte == 7));
    assert!(read(&disk, 0, 1 << 20).await.unwrap().iter().all(|byte| *byte == 7));
}

#[tokio::test]
async fn while_the_host_is_short_new_data_is_refused_and_old_data_stays() {
    let (_dir, live, free) = host(GiveBack::Unwritten);
    let disk = stitched(&live);
    write(&disk, 0, 1 << 20).await.unwrap();
    free.store(0, Ordering::Relaxed);
    let given = live.keep_floor().unwrap();
    assert_eq!(given, GivenBack { unwritten: SIZE - (1 << 20), lost: 0 });
    let error = write(&disk, 4 << 20, BLOCK).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    write(&disk, BLOCK, BLOCK).await.unwrap();
    assert!(read(&disk, 0, 1 << 20).await.unwrap().iter().all(|byte| *byte == 7));
    // The host has room again, and so has the disk.
    free.store(2 * FLOOR, Ordering::Relaxed);
    write(&disk, 4 << 20, BLOCK).await.unwrap();
    assert_eq!(live.given(), SIZE - (1 << 20) - BLOCK);
}

#[tokio::test]
async fn data_that_was_given_up_is_an_error_until_it_is_written_again() {
    let (_dir, live, free) = host(GiveBack::Anything);
    let disk = stitched(&live);
    write(&disk, 0, SIZE).await.unwrap();
    free.store(FLOOR - (1 << 20), Ordering::Relaxed);
    assert_eq!(live.keep_floor().unwrap(), GivenBack { unwritten: 0, lost: 1 << 20 });
    let lost = SIZE - (1 << 20);
    // The piece at the end is given up from its start.
    let mut errors = 0;
    for block in Span::whole(SIZE).pieces(BLOCK) {
        match read(&disk, block.offset(), BLOCK).await {
            Ok(bytes) => assert!(bytes.iter().all(|byte| *byte == 7)),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Unavailable);
                errors += BLOCK;
            }
        }
    }
    assert_eq!(errors, 1 << 20);
    free.store(2 * FLOOR, Ordering::Relaxed);
    write(&disk, 0, SIZE).await.unwrap();
    assert!(read(&disk, lost, 1 << 20).await.unwrap().iter().all(|byte| *byte == 7));
}

#[test]
fn a_host_without_enough_room_lends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let error = Live::create(dir.path(), SIZE, u64::MAX, GiveBack::Unwritten).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::NoSpace);
    assert!(Live::create(dir.path(), SIZE, 0, GiveBack::Unwritten).is_ok());
}
