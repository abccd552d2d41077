use super::*;
use crate::State;
use block::conformance;
use block::{ErrorKind, Fault, Memory, Operation, ScriptedDevice};
use proptest::prelude::*;
use std::sync::atomic::AtomicBool;

fn pool(cells: u64) -> Arc<Pool> {
    Pool::new(Arc::new(Memory::new(cells * CELL + 512))).unwrap()
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn byte(device: &dyn Device, at: u64) -> u8 {
    let mut buf = [9];
    device.read(Span::between(at, at + 1), &mut buf).await.unwrap();
    buf[0]
}

async fn put(device: &dyn Device, at: u64, value: u8) -> Result<()> {
    device.write(Span::between(at, at + 1), &[value], Durability::Buffered).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_in_a_pool_keeps_the_device_contract() {
    let shared = pool(64);
    conformance::check(async |size| Arc::new(shared.device(size).unwrap()) as _).await;
    assert_eq!(shared.used(), 0, "all of them are gone");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shadow_in_a_pool_keeps_the_device_contract() {
    let shared = pool(64);
    conformance::check(async |size| {
        let place = Arc::new(shared.device(size).unwrap());
        Arc::new(State::shadow(Arc::new(Memory::new(size)), place).unwrap()) as _
    })
    .await;
}

#[test]
fn room_is_taken_by_writing_only_and_given_back_at_the_end() {
    run(async {
        let pool = pool(4);
        let device = pool.device(10 * CELL).unwrap();
        assert_eq!(byte(&device, 5 * CELL).await, 0);
        let mode = ZeroMode { may_punch: false, only_if_fast: false };
        device.zero(Span::whole(10 * CELL), mode, Durability::Buffered).await.unwrap();
        assert_eq!((pool.used(), device.room()), (0, 0));
        for part in [7, 2, 9, 0] {
            put(&device, part * CELL + 3, part as u8 + 1).await.unwrap();
        }
        assert_eq!((pool.used(), device.room()), (4 * CELL, 4 * CELL));
        let error = put(&device, CELL, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        put(&device, 9 * CELL, 1).await.unwrap();
        for part in 0..10 {
            let expected = if [7, 2, 9, 0].contains(&part) { part as u8 + 1 } else { 0 };
            assert_eq!(byte(&device, part * CELL + 3).await, expected);
        }
        drop(device);
        assert_eq!(pool.used(), 0);
    });
}

#[test]
fn who_comes_later_sees_nothing_of_who_was_there_before() {
    run(async {
        let pool = pool(2);
        let device = pool.device(2 * CELL).unwrap();
        let all = Span::whole(2 * CELL);
        device.write(all, &vec![0x55; 2 << 20], Durability::Buffered).await.unwrap();
        drop(device);
        let device = pool.device(2 * CELL).unwrap();
        put(&device, 0, 1).await.unwrap();
        put(&device, CELL, 1).await.unwrap();
        let mut now = vec![1; 2 << 20];
        device.read(all, &mut now).await.unwrap();
        assert_eq!(now.iter().filter(|byte| **byte != 0).count(), 2);
    });
}

#[test]
fn a_cell_that_cannot_be_zeroed_is_not_used() {
    let broken = Arc::new(AtomicBool::new(true));
    let failing = Arc::clone(&broken);
    let plan = move |operation| match operation {
        Operation::Zero(_) if failing.load(Ordering::Relaxed) => {
            Fault::Fail(ErrorKind::Unavailable)
        }
        _ => Fault::None,
    };
    run(async {
        let pool = Pool::new(Arc::new(ScriptedDevice::new(Memory::new(CELL), plan))).unwrap();
        put(&pool.device(CELL).unwrap(), 0, 7).await.unwrap();
        let device = pool.device(CELL).unwrap();
        assert_eq!(put(&device, 1, 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
        assert_eq!((pool.used(), byte(&device, 0).await), (0, 0));
        broken.store(false, Ordering::Relaxed);
        put(&device, 1, 1).await.unwrap();
        assert_eq!(byte(&device, 0).await, 0);
    });
}

#[test]
fn sizes_that_cannot_be_are_refused() {
    assert_eq!(
        Pool::new(Arc::new(Memory::new(CELL - 1))).err().unwrap().kind(),
        ErrorKind::Invalid
    );
    let error = pool(1).device(LARGEST + 1).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3))]
    #[test]
    fn a_shadow_is_its_base_with_what_was_written_and_the_base_is_untouched(
        seed: u64, size in 1u64..4 * CELL,
    ) {
        let bytes: Vec<u8> = (0..size).map(|i| (i / 4096 % 5 * 50) as u8).collect();
        let base = Arc::new(Memory::from(bytes.clone()));
        let place = Arc::new(pool(5).device(size).unwrap());
        let state = State::shadow(Arc::clone(&base) as _, place).unwrap();
        run(conformance::against_bytes(&state, bytes.clone(), seed));
        prop_assert!(base.to_vec() == bytes);
    }

    #[test]
    fn devices_of_a_pool_do_not_meet(seed: u64) {
        let pool = pool(16);
        let devices: Vec<_> = (0..3).map(|_| pool.device(5 * CELL - 512).unwrap()).collect();
        run(async {
            for (i, device) in devices.iter().enumerate() {
                let bytes = vec![0; 5 * (1 << 20) - 512];
                conformance::against_bytes(device, bytes, seed ^ i as u64).await;
                // Whatever the others did before it: only its own first byte says who it is.
                put(device, 0, i as u8 + 1).await.unwrap();
            }
            for (i, device) in devices.iter().enumerate() {
                assert_eq!(byte(device, 0).await, i as u8 + 1);
            }
        });
        prop_assert!(pool.used() <= 15 * CELL);
    }
}
