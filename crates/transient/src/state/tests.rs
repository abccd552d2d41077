use super::*;
use block::conformance::{self, SIZE, Sequence};
use block::{ErrorKind, ExtentKind, Fault, Memory, Operation, ScriptedDevice};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

fn content(size: u64, seed: u64) -> Vec<u8> {
    let mut random = Sequence::new(seed);
    let mut bytes = vec![0; size as usize];
    for _ in 0..20 {
        let span = random.span(size);
        let value = random.number() as u8;
        bytes[span.index_in(Span::whole(size))].fill(value);
    }
    bytes
}

fn fresh(size: u64) -> Arc<dyn Device> {
    Arc::new(Memory::new(size.next_multiple_of(BLOCK)))
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_keeps_the_device_contract() {
    conformance::check(async |size| {
        Arc::new(State::new(Arc::new(Memory::new(size)), fresh(size)).unwrap()) as _
    })
    .await;
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn the_base_is_untouched_until_it_gets_exactly_what_the_disk_holds(
        seed: u64, size in 1u64..SIZE, ahead: bool,
    ) {
        let bytes = content(size, seed);
        let base = Arc::new(Memory::from(bytes.clone()));
        let state = State::new(Arc::clone(&base) as _, fresh(size)).unwrap();
        run(async {
            if ahead {
                state.fetch_all(&|_| {}).await.unwrap();
                assert_eq!(state.progress(), (size, 0));
            }
            conformance::against_bytes(&state, bytes.clone(), seed).await;
            assert!(base.to_vec() == bytes);
            let mut now = vec![0; size as usize];
            state.read(Span::whole(size), &mut now).await.unwrap();
            state.write_back(&|_| {}).await.unwrap();
            assert!(base.to_vec() == now);
            assert_eq!(state.write_back(&|_| {}).await.unwrap(), 0, "once is enough");
        });
    }
}

/// A base that takes whole blocks only.
fn of_blocks(bytes: Vec<u8>) -> ScriptedDevice<Memory, impl Fn(Operation) -> Fault> {
    let limits = Limits { minimum: BLOCK as u32, preferred: BLOCK as u32, maximum: 1 << 20 };
    let plan = |operation: Operation| match operation.span() {
        Some(span) if !span.is_aligned(BLOCK) => Fault::Fail(ErrorKind::Invalid),
        _ => Fault::None,
    };
    let data = |span: Span, _: usize| {
        assert!(span.is_aligned(BLOCK), "{span:?}");
        span.pieces(BLOCK).map(|span| Extent { span, kind: ExtentKind::Data }).collect()
    };
    ScriptedDevice::new(Memory::from(bytes), plan).with_limits(limits).with_extents(data)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn a_base_of_larger_blocks_than_the_clients_is_asked_for_whole_ones(
        seed: u64, blocks in 1u64..SIZE / BLOCK, written_only: bool,
    ) {
        let size = blocks * BLOCK;
        let bytes = content(size, seed);
        let base = Arc::new(of_blocks(bytes.clone()));
        let keep = if written_only { Keep::Written } else { Keep::Used };
        let state = State::keeping(keep, Arc::clone(&base) as _, fresh(size)).unwrap();
        run(async {
            conformance::against_bytes(&state, bytes, seed).await;
            let mut random = Sequence::new(seed);
            for _ in 0..20 {
                let span = random.span(size);
                state.prefetch(span).await.unwrap();
                let extents = state.extents(span, 1).await.unwrap();
                assert_eq!(extents.first().map(|first| first.span.offset()), Some(span.offset()));
            }
            state.write_back(&|_| {}).await.unwrap();
        });
        let asked = &base.calls.log().asked;
        assert!(asked.iter().filter_map(|call| call.span()).all(|span| span.is_aligned(BLOCK)), "{asked:?}");
    }
}

#[test]
fn a_block_is_read_from_the_base_once_and_only_changed_ones_are_written_back() {
    let base = Arc::new(ScriptedDevice::noting(Memory::from(vec![5; 64 * BLOCK as usize])));
    let state = State::new(Arc::clone(&base) as _, fresh(64 * BLOCK)).unwrap();
    run(async {
        let mut buf = vec![0; 2 * BLOCK as usize];
        let span = Span::between(8 * BLOCK + 1, 10 * BLOCK);
        for _ in 0..3 {
            state.read(span, &mut buf[1..]).await.unwrap();
        }
        let first = [Operation::Read(Span::between(8 * BLOCK, 10 * BLOCK))];
        assert_eq!(base.calls.log().asked, first);
        // A whole block that is written is not read before.
        let whole = Span::between(20 * BLOCK, 21 * BLOCK);
        state.write(whole, &vec![6; BLOCK as usize], Durability::Buffered).await.unwrap();
        let part = Span::between(9 * BLOCK + 7, 9 * BLOCK + 8);
        state.write(part, &[9], Durability::Buffered).await.unwrap();
        assert_eq!(base.calls.log().asked.len(), 1);
        assert_eq!(state.write_back(&|_| {}).await.unwrap(), 2 * BLOCK);
        let expected = [
            Operation::Write(Span::between(9 * BLOCK, 10 * BLOCK)),
            Operation::Write(whole),
            Operation::Flush,
        ];
        assert_eq!(base.calls.log().asked[1..], expected);
    });
}

#[test]
fn what_could_not_be_written_back_is_tried_again() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let failing = Arc::clone(&broken);
    let plan = move |operation| match operation {
        Operation::Flush if failing.load(std::sync::atomic::Ordering::Relaxed) => {
            Fault::Fail(ErrorKind::Unavailable)
        }
        _ => Fault::None,
    };
    let base = Arc::new(ScriptedDevice::new(Memory::new(16 * BLOCK), plan));
    let state = State::new(Arc::clone(&base) as _, fresh(16 * BLOCK)).unwrap();
    run(async {
        let span = Span::between(BLOCK, 3 * BLOCK);
        state.write(span, &vec![1; span.len() as usize], Durability::Buffered).await.unwrap();
        let error = state.write_back(&|_| {}).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert_eq!(state.progress().1, span.len());
        broken.store(false, std::sync::atomic::Ordering::Relaxed);
        assert_eq!(state.write_back(&|_| {}).await.unwrap(), span.len());
    });
    assert_eq!(base.inner().to_vec()[BLOCK as usize], 1);
}

/// The whole content.
async fn all(device: &dyn Device) -> Vec<u8> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await.unwrap();
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    #[test]
    fn what_a_failed_write_left_is_old_or_new_and_goes_back_as_it_reads(
        seed: u64, size in 1u64..SIZE, written_only: bool,
    ) {
        let tear = Arc::new(AtomicU64::new(u64::MAX));
        let next = Arc::clone(&tear);
        let plan = move |operation| match operation {
            Operation::Write(_) => match next.swap(u64::MAX, Ordering::Relaxed) {
                u64::MAX => Fault::None,
                at => Fault::Tear(at),
            },
            _ => Fault::None,
        };
        let mut known = content(size, seed);
        let base = Arc::new(Memory::from(known.clone()));
        let place = ScriptedDevice::new(Memory::new(size.next_multiple_of(BLOCK)), plan);
        let keep = if written_only { Keep::Written } else { Keep::Used };
        let state = State::keeping(keep, Arc::clone(&base) as _, Arc::new(place)).unwrap();
        let mut random = Sequence::new(seed);
        run(async {
            for _ in 0..30 {
                let (span, value) = (random.span(size), random.below(3) as u8);
                if random.below(2) == 0 {
                    tear.store(random.below(span.len() + 1), Ordering::Relaxed);
                }
                let data = vec![value; span.len() as usize];
                let written = state.write(span, &data, Durability::Buffered).await;
                tear.store(u64::MAX, Ordering::Relaxed);
                match random.below(4) {
                    0 => drop(state.write_back(&|_| {}).await.unwrap()),
                    1 => state.fetch_all(&|_| {}).await.unwrap(),
                    2 => state.read(span, &mut vec![0; span.len() as usize]).await.unwrap(),
                    _ => {}
                }
                let now = all(&state).await;
                for (at, found) in now.iter().enumerate() {
                    let is_in = (span.offset()..span.end()).contains(&(at as u64));
                    let is_old = *found == known[at] && (!is_in || written.is_err());
                    let is_new = *found == value && is_in;
                    assert!(is_old || is_new, "byte {at} is {found} after {span:?}");
                }
                known = now;
            }
            state.write_back(&|_| {}).await.unwrap();
            assert!(base.to_vec() == known);
        });
    }
}

#[test]
fn a_base_that_fails_is_an_error_and_not_zeroes() {
    let plan = |operation| match operation {
        Operation::Read(_) => Fault::Fail(ErrorKind::Unavailable),
        _ => Fault::None,
    };
    let base = Arc::new(ScriptedDevice::new(Memory::new(4 * BLOCK), plan));
    let state = State::new(base, fresh(4 * BLOCK)).unwrap();
    let read = run(state.read(Span::whole(512), &mut [0; 512]));
    assert_eq!(read.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(state.progress(), (0, 0));
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let error = State::new(Arc::new(Memory::new(BLOCK + 1)), Arc::new(Memory::new(BLOCK)));
    assert_eq!(error.err().unwrap().kind(), ErrorKind::NoSpace);
}
