use super::*;
use crate::save::MemorySource;
use proptest::prelude::*;

const SIZE: u64 = 1 << 20;

fn page(n: u64) -> Span {
    Span::between(n * PAGE, (n + 1) * PAGE)
}

async fn first_byte(source: &dyn MemorySource, n: u64) -> u8 {
    let mut buf = vec![0; PAGE as usize];
    source.read(page(n), &mut buf).await.unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]));
    buf[0]
}

#[tokio::test]
async fn a_checkpoint_is_of_one_moment_while_the_guest_writes_on() {
    let dir = tempfile::tempdir().unwrap();
    let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
    let fill = |byte| vec![byte; PAGE as usize];
    ram.write(page(1), &fill(1)).unwrap();
    let frozen = ram.freeze().unwrap();
    ram.write(page(1), &fill(2)).unwrap();
    ram.write(page(2), &fill(3)).unwrap();
    assert_eq!((first_byte(&frozen, 1).await, first_byte(&frozen, 2).await), (1, 0));
    assert!(ram.freeze().is_err(), "one at a time");
    drop(frozen);
    let again = ram.freeze().unwrap();
    assert!(again.changed(0), "what came to nothing is part of the next parcel");
    assert_eq!((first_byte(&again, 1).await, first_byte(&again, 2).await), (2, 3));
}

#[tokio::test]
async fn the_pages_of_a_suspension_are_closed_once_all_are_copied_and_no_checkpoint_needs_them() {
    let dir = tempfile::tempdir().unwrap();
    let pages = {
        let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
        ram.write(page(1), &[7; PAGE as usize]).unwrap();
        let frozen = ram.freeze().unwrap();
        let (local, changed) = frozen.pages();
        EarlierPages { file: Arc::clone(&ram.local), local, changed: changed.clone() }
    };
    let file = Arc::clone(&pages.file);
    let ram = GuestRam::after(dir.path(), SIZE, None, Some(pages)).unwrap();
    let frozen = ram.freeze().unwrap();
    ram.take_over().await.unwrap();
    assert_eq!((first_byte(&frozen, 1).await, Arc::strong_count(&file)), (7, 2));
    drop(frozen);
    assert_eq!(Arc::strong_count(&file), 1);
    let frozen = ram.freeze().unwrap();
    assert_eq!(first_byte(&frozen, 1).await, 7);
    let mut buf = vec![0; PAGE as usize];
    ram.read(page(1), &mut buf).await.unwrap();
    assert_eq!(buf, vec![7; PAGE as usize]);
}

/// Memory on a disk that is full.
fn on_a_full_disk(dir: &Path) -> Arc<GuestRam> {
    let full = Arc::new(File::options().read(true).write(true).open("/dev/full").unwrap());
    let aside = Arc::new(File::create(dir.join("aside")).unwrap());
    Arc::new(GuestRam::over(SIZE, None, (full, aside), None))
}

#[tokio::test(start_paused = true)]
async fn a_guest_waits_for_room_and_what_could_not_be_kept_is_never_shown_or_stored() {
    let dir = tempfile::tempdir().unwrap();
    let ram = on_a_full_disk(dir.path());
    let data = vec![7; PAGE as usize];
    let waits = ram.write_when_there_is_room(page(3), &data);
    let mut waits = std::pin::pin!(waits);
    assert!(timeout(Duration::from_secs(600), &mut waits).await.is_err(), "it waits");
    ram.give_up();
    assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::NoSpace);
    let mut buf = vec![0; PAGE as usize];
    assert_eq!(ram.try_read(page(3), &mut buf).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(ram.read(page(3), &mut buf).await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert!(ram.try_read(page(2), &mut buf).unwrap());
    assert_eq!(ram.freeze().err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
}

#[tokio::test]
async fn memory_is_never_said_to_be_kept_once_a_sync_of_it_has_failed() {
    let dir = tempfile::tempdir().unwrap();
    let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
    ram.write(page(0), &[1; PAGE as usize]).unwrap();
    ram.sync().await.unwrap();
    drop(ram.freeze().unwrap());
    let failing = |_: &File| Err(std::io::Error::from_raw_os_error(5));
    assert_eq!(ram.sync_by(failing).await.unwrap_err().kind(), ErrorKind::Unavailable);
    // The kernel tells of it once.
    assert_eq!(ram.sync().await.unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(ram.freeze().err().unwrap().kind(), ErrorKind::Corrupt);
}

#[tokio::test(start_paused = true)]
async fn a_read_that_waits_for_the_store_ends_when_qemu_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
    let waits = ram.unless_killed(std::future::pending());
    let mut waits = std::pin::pin!(waits);
    assert!(timeout(Duration::from_secs(600), &mut waits).await.is_err(), "it waits");
    ram.give_up();
    assert!(timeout(Duration::from_secs(5), &mut waits).await.is_err(), "QEMU ends by itself");
    ram.end_reads();
    assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_page_that_cannot_be_had_is_asked_for_again_until_qemu_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
    let (away, refused) = (Error::unavailable("it is away"), Error::denied("a token has expired"));
    let (began, mut waits) = (tokio::time::Instant::now(), None);
    for _ in 0..250 {
        assert!(ram.is_asked_again(&away, &(0..1), &mut waits).await);
        assert!(ram.is_asked_again(&refused, &(0..1), &mut waits).await);
    }
    assert!(began.elapsed() > Duration::from_secs(600), "not all the time");
    assert!(ram.demand.is_silent_for(Duration::from_secs(600)), "nothing came meanwhile");
    let damaged = Error::corrupt("a damaged chunk");
    assert!(!ram.is_asked_again(&damaged, &(0..1), &mut waits).await);
    let (extents, mut waits) = (0..1, None);
    let asked = ram.is_asked_again(&away, &extents, &mut waits);
    let killed = async { ram.end_reads() };
    assert!(!tokio::join!(asked, killed).0);
}

#[tokio::test(start_paused = true)]
async fn memory_that_this_machine_lost_is_not_waited_for_like_a_links() {
    let dir = tempfile::tempdir().unwrap();
    let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
    let unreadable = File::create(dir.path().join("written only")).unwrap();
    let lost = read_padded(&unreadable, 0, &mut [0; 16]).unwrap_err();
    assert_eq!(lost.kind(), ErrorKind::Corrupt, "{lost}");
    assert!(!ram.is_asked_again(&lost, &(0..1), &mut None).await);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn frozen_memory_does_not_change(
        earlier in proptest::collection::vec((0u64..64, 1u8..), 0..40),
        before in proptest::collection::vec((0u64..64, 1u8..), 0..40),
        after in proptest::collection::vec((0u64..64, 1u8..), 0..40),
        takes_over in 0..3,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let dir = tempfile::tempdir().unwrap();
            let mut model = [0u8; 64];
            let pages = {
                let ram = GuestRam::new(dir.path(), SIZE, None).unwrap();
                for (n, byte) in earlier {
                    ram.write(page(n), &vec![byte; PAGE as usize]).unwrap();
                    model[n as usize] = byte;
                }
                let frozen = ram.freeze().unwrap();
                let (local, changed) = frozen.pages();
                EarlierPages { file: Arc::clone(&ram.local), local, changed: changed.clone() }
            };
            let ram = GuestRam::after(dir.path(), SIZE, None, Some(pages)).unwrap();
            if takes_over == 1 {
                ram.take_over().await.unwrap();
            }
            for (n, byte) in before {
                ram.write(page(n), &vec![byte; PAGE as usize]).unwrap();
                model[n as usize] = byte;
            }
            let frozen = ram.freeze().unwrap();
            let mut then = model;
            for (n, byte) in after {
                ram.write(page(n), &vec![byte; PAGE as usize]).unwrap();
                then[n as usize] = byte;
            }
            if takes_over == 2 {
                ram.take_over().await.unwrap();
            }
            for n in 0..64 {
                assert_eq!(first_byte(&frozen, n).await, model[n as usize]);
                assert_eq!(frozen.changed(n / 16), model[n as usize / 16 * 16..][..16] != [0; 16]);
                let mut buf = vec![0; PAGE as usize];
                ram.read(page(n), &mut buf).await.unwrap();
                assert!(buf.iter().all(|byte| *byte == then[n as usize]));
            }
        });
    }
}
