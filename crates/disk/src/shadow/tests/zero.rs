//! Room that is given back and reserved, and what is left of requests that were given up.

use super::*;
use crate::shadow::zero::fresh_runs;
use block::fs::simulated::{Machine, Nature};
use block::offload;
use futures::FutureExt;
use futures::future::join_all;
use std::pin::{Pin, pin};
use std::sync::mpsc;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const NO_HOLE: ZeroMode = ZeroMode { may_punch: false, only_if_fast: false };
const HOLE: ZeroMode = ZeroMode { may_punch: true, only_if_fast: false };

fn blocks(from: u64, to: u64) -> Span {
    Span::between(from * BLOCK, to * BLOCK)
}

async fn reserve(scratch: &Scratch, span: Span) -> Result<(), ErrorKind> {
    scratch.zero(span, NO_HOLE, Durability::Buffered).await.map_err(|e| e.kind())
}

async fn write(scratch: &Scratch, span: Span) -> Result<(), ErrorKind> {
    let data = vec![9; span.len() as usize];
    scratch.write(span, &data, Durability::Buffered).await.map_err(|e| e.kind())
}

async fn holds(scratch: &Scratch, span: Span, byte: u8) -> bool {
    let mut buf = vec![!byte; span.len() as usize];
    scratch.read(span, &mut buf).await.unwrap();
    buf.iter().all(|b| *b == byte)
}

fn fresh_of(scratch: &Scratch, span: Span) -> Vec<std::ops::Range<u64>> {
    fresh_runs(&scratch.stack().top().map, crate::stack::blocks_of(span))
}

fn private(scratch: &Scratch) -> u64 {
    scratch.stack().private()
}

#[tokio::test]
async fn room_is_reserved_within_the_limit_and_counts() {
    for base in [blank(MIB), slow(noise(MIB))] {
        let scratch = Scratch::new(base, MIB).await;
        scratch.shadow.limit(Arc::new(AtomicU64::new(8 * BLOCK)));
        reserve(&scratch, blocks(0, 5)).await.unwrap();
        assert_eq!(private(&scratch), 5);
        for from in 5..200 {
            assert_eq!(reserve(&scratch, blocks(from, from + 9)).await, Err(ErrorKind::NoSpace));
        }
        assert_eq!(write(&scratch, blocks(100, 104)).await, Err(ErrorKind::NoSpace));
        scratch.flush().await.unwrap();
        assert!(scratch.room() <= 8 * BLOCK, "{}", scratch.room());
        // What was reserved can be written, whoever took the rest.
        write(&scratch, blocks(100, 103)).await.unwrap();
        write(&scratch, blocks(0, 5)).await.unwrap();
        reserve(&scratch, blocks(0, 5)).await.unwrap();
        assert!(holds(&scratch, blocks(0, 5), 0).await);
    }
}

#[tokio::test]
async fn reservations_that_come_together_stay_within_the_limit() {
    let scratch = Scratch::new(blank(64 * MIB), 64 * MIB).await;
    scratch.shadow.limit(Arc::new(AtomicU64::new(4 * MIB)));
    let all = Span::whole(64 * MIB).pieces(MIB).map(|piece| reserve(&scratch, piece));
    let done = join_all(all).await.into_iter().filter(|result| result.is_ok()).count();
    assert_eq!((done, private(&scratch) * BLOCK), (4, 4 * MIB));
}

#[tokio::test]
async fn a_reservation_waits_for_another_that_may_take_what_is_left() {
    let scratch = Scratch::new(blank(MIB), MIB).await;
    let (release, held) = mpsc::channel::<()>();
    let (taken, is_taken) = mpsc::channel();
    let inner = Arc::clone(&scratch.inner);
    let mut other = pin!(offload(move || {
        let _alone = inner.limit.reserving();
        let _ = taken.send(());
        let _ = held.recv();
        Ok(())
    }));
    assert!(other.as_mut().now_or_never().is_none());
    is_taken.recv().unwrap();
    for asked in [false, true] {
        let mut waiting = pin!(reserve(&scratch, blocks(0, 1)));
        let soon = Duration::from_millis(50);
        assert!(tokio::time::timeout(soon, waiting.as_mut()).await.is_err(), "{asked}");
        let _ = scratch.inner.reserves.set(true);
    }
    drop(release);
    other.await.unwrap();
}

#[tokio::test]
async fn reserved_room_is_there_after_a_kill() {
    // The last block is short.
    let size = 3 * MIB + 512;
    for base in [blank(size), slow(noise(size))] {
        let mut scratch = Scratch::new(base, size).await;
        let span = Span::between(BLOCK, size);
        reserve(&scratch, span).await.unwrap();
        scratch.flush().await.unwrap();
        scratch.reopen().await;
        scratch.shadow.limit(Arc::new(AtomicU64::new(span.len())));
        assert!(holds(&scratch, span, 0).await && scratch.room() >= span.len());
        write(&scratch, span).await.unwrap();
        assert!(holds(&scratch, span, 9).await);
    }
}

#[tokio::test]
async fn discarding_reserved_blocks_gives_their_room_back() {
    let span = Span::between(MIB, 33 * MIB);
    for base in [blank(64 * MIB), slow(noise(64 * MIB))] {
        let scratch = Scratch::new(base, 64 * MIB).await;
        reserve(&scratch, span).await.unwrap();
        assert!(scratch.room() >= span.len());
        scratch.discard(span, Durability::Durable).await.unwrap();
        assert!(scratch.room() < MIB && private(&scratch) == 0, "{}", scratch.room());
        assert!(holds(&scratch, span, 0).await);
    }
}

#[tokio::test]
async fn a_discard_gives_back_the_room_of_blocks_that_are_zero_already() {
    let span = Span::whole(8 * MIB);
    let request = Arc::new(());
    let wanted = RequestWaiter::by(&request);
    for mode in [None, Some(HOLE)] {
        let scratch = Scratch::new(slow(noise(16 * MIB)), 16 * MIB).await;
        write(&scratch, span).await.unwrap();
        scratch.flush().await.unwrap();
        // As one leaves them that is given up before it punches.
        scratch.inner.mark_zero(span, false, &wanted).unwrap();
        assert!(scratch.room() >= span.len());
        match mode {
            None => scratch.discard(span, Durability::Durable).await.unwrap(),
            Some(mode) => scratch.zero(span, mode, Durability::Durable).await.unwrap(),
        }
        assert!(scratch.room() < MIB, "{}", scratch.room());
    }
}

#[tokio::test]
async fn a_discard_gives_back_room_of_blocks_that_the_layer_says_nothing_of() {
    let scratch = Scratch::new(blank(16 * MIB), 16 * MIB).await;
    // As a reservation leaves it that was killed before it counted.
    let stack = scratch.stack();
    stack.top().write(0, &vec![0; 8 * MIB as usize]).unwrap();
    assert!(scratch.room() >= 8 * MIB);
    scratch.discard(Span::whole(8 * MIB), Durability::Durable).await.unwrap();
    assert!(scratch.room() < MIB && scratch.is_empty(), "{}", scratch.room());
}

#[tokio::test]
async fn where_room_cannot_be_reserved_zeroes_are_written_or_it_is_said() {
    let scratch = Scratch::new(blank(MIB), MIB).await;
    scratch.inner.reserves.set(false).unwrap();
    let fast = ZeroMode { only_if_fast: true, ..NO_HOLE };
    let refused = scratch.zero(blocks(0, 4), fast, Durability::Buffered).await.unwrap_err();
    assert_eq!((refused.kind(), private(&scratch)), (ErrorKind::Unsupported, 0));
    reserve(&scratch, blocks(0, 4)).await.unwrap();
    assert_eq!(private(&scratch), 4);
}

/// The only thread that may wait waits while this lives, and for all that was given to it before.
struct Busy {
    _release: mpsc::Sender<()>,
    _work: Pin<Box<dyn Future<Output = Result<()>>>>,
}

impl Busy {
    fn new() -> Self {
        let (release, held) = mpsc::channel();
        let mut work = Box::pin(offload(move || {
            let _ = held.recv();
            Ok(())
        }));
        // From here on it is under way.
        assert!(work.as_mut().now_or_never().is_none());
        Self { _release: release, _work: work }
    }
}

fn with_one_waiting_thread(test: impl Future<Output = ()>) {
    with_waiting_threads(1, test);
}

fn with_waiting_threads(threads: usize, test: impl Future<Output = ()>) {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(threads).build().unwrap().block_on(test);
}

#[test]
fn zeroes_and_discards_of_one_disk_leave_threads_to_others_and_let_a_layer_be_sealed() {
    with_waiting_threads(4, async {
        for (mode, asked) in [(NO_HOLE, false), (NO_HOLE, true), (HOLE, false)] {
            let scratch = Scratch::new(blank(MIB), MIB).await;
            if asked {
                reserve(&scratch, blocks(9, 10)).await.unwrap();
            }
            let layer = scratch.new_layer(2).await.unwrap();
            let (release, held) = mpsc::channel::<()>();
            let (taken, is_taken) = mpsc::channel();
            let inner = Arc::clone(&scratch.inner);
            let mut other = pin!(offload(move || {
                // What all of them wait for.
                let _alone = (!mode.may_punch).then(|| inner.limit.reserving());
                let _region = mode.may_punch.then(|| inner.region(0).write());
                let _ = taken.send(());
                let _ = held.recv();
                Ok(())
            }));
            assert!(other.as_mut().now_or_never().is_none());
            is_taken.recv().unwrap();
            let zero = |at| scratch.zero(blocks(at, at + 1), mode, Durability::Buffered);
            let mut zeroes = pin!(join_all((0..8).map(zero)));
            let soon = Duration::from_millis(50);
            assert!(tokio::time::timeout(soon, zeroes.as_mut()).await.is_err(), "{mode:?}");
            let patience = Duration::from_secs(60);
            let free = tokio::time::timeout(patience, offload(|| Ok(()))).await;
            free.unwrap_or_else(|_| panic!("every thread waits: {mode:?}, {asked}")).unwrap();
            drop(release);
            other.await.unwrap();
            // In the middle of those that wait for their turn.
            let (zeroed, ()) = tokio::join!(zeroes, scratch.seal(layer));
            zeroed.into_iter().for_each(|result| result.unwrap());
            assert!(holds(&scratch, blocks(0, 8), 0).await);
        }
    });
}

#[test]
fn what_is_left_of_a_request_that_was_given_up_zeroes_nothing() {
    with_one_waiting_thread(async {
        for (mode, asked) in [(NO_HOLE, false), (NO_HOLE, true), (HOLE, false)] {
            let scratch = Scratch::new(blank(MIB), MIB).await;
            if asked {
                reserve(&scratch, blocks(9, 10)).await.unwrap();
            }
            let busy = Busy::new();
            {
                let zero = pin!(scratch.zero(blocks(0, 2), mode, Durability::Buffered));
                assert!(futures::poll!(zero).is_pending());
            }
            let data = [7; 2 * BLOCK as usize];
            assert_eq!(scratch.try_write(blocks(0, 2), &data).unwrap(), Attempt::Done);
            drop(busy);
            // It has its turn behind what is left.
            scratch.flush().await.unwrap();
            assert!(holds(&scratch, blocks(0, 2), 7).await, "{mode:?}, {asked}");
        }
    });
}

#[test]
fn no_layer_is_sealed_while_room_is_reserved() {
    with_one_waiting_thread(async {
        let scratch = Scratch::new(blank(MIB), MIB).await;
        write(&scratch, blocks(0, 1)).await.unwrap();
        let layer = scratch.new_layer(2).await.unwrap();
        let busy = Busy::new();
        let mut zero = pin!(scratch.zero(blocks(0, 1), NO_HOLE, Durability::Buffered));
        let mut seal = pin!(scratch.seal(layer));
        assert!(futures::poll!(zero.as_mut()).is_pending());
        assert!(futures::poll!(seal.as_mut()).is_pending(), "a layer that may still change");
        drop(busy);
        tokio::join!(seal, zero).1.unwrap();
        assert!(holds(&scratch, blocks(0, 1), 0).await);
    });
}

#[tokio::test]
async fn closing_waits_for_what_is_being_zeroed() {
    for failed in [false, true] {
        let scratch = Scratch::new(blank(MIB), MIB).await;
        if failed {
            scratch.poison().set(&Error::unavailable("no disk"));
        }
        let zeroing = Arc::clone(&scratch.inner.zeroing).read_owned().await;
        let mut close = pin!(scratch.shadow.close());
        let soon = Duration::from_millis(50);
        assert!(tokio::time::timeout(soon, close.as_mut()).await.is_err(), "{failed}");
        drop(zeroing);
        assert_eq!(close.await.is_err(), failed);
    }
}

#[tokio::test]
async fn a_layer_is_not_made_while_another_is_sealed() {
    let scratch = Scratch::new(blank(MIB), MIB).await;
    let sealing = Arc::clone(&scratch.inner.zeroing).write_owned().await;
    let mut layer = pin!(scratch.new_layer(2));
    let soon = Duration::from_millis(50);
    assert!(tokio::time::timeout(soon, layer.as_mut()).await.is_err());
    let files = || fs::read_dir(scratch.directory.path()).unwrap().count();
    let before = files();
    drop(sealing);
    layer.await.unwrap();
    assert_eq!(files(), before + 2, "data and map");
}

#[test]
fn nothing_is_sealed_nor_closed_while_a_layer_is_made_that_nobody_waits_for() {
    with_one_waiting_thread(async {
        let scratch = Scratch::new(blank(MIB), MIB).await;
        let busy = Busy::new();
        {
            let layer = pin!(scratch.new_layer(2));
            assert!(futures::poll!(layer).is_pending());
        }
        assert!(scratch.inner.zeroing.try_write().is_err());
        drop(busy);
        scratch.until_zeroed().await;
        assert!(scratch.directory.path().join("0002.map").exists());
    });
}

#[tokio::test]
async fn zeroes_whose_room_ends_on_the_way_take_none() {
    let base = noise(8 * MIB);
    for pieces in [1, 4] {
        let machine = Machine::new(Nature::Journal, pieces);
        let home = FsPath::on(Arc::new(machine.start()), "/");
        let shadow = Shadow::create(home, DISK, slow(base.clone()), 8 * MIB).await.unwrap();
        // Piece by piece, as where room cannot be reserved.
        let _ = shadow.inner.reserves.set(false);
        for own in [Span::between(2 * MIB, 3 * MIB), Span::between(7 * MIB, 8 * MIB)] {
            shadow.write(own, &[9; MIB as usize], Durability::Buffered).await.unwrap();
        }
        shadow.flush().await.unwrap();
        let before = (shadow.stack().private(), shadow.room());
        // Nobody can say before that it ends: not the limit, nor the file system.
        machine.set_room(machine.used() + pieces * MIB + MIB / 2);
        let failed = shadow.zero(Span::whole(7 * MIB), NO_HOLE, Durability::Buffered).await;
        let failed = failed.unwrap_err();
        assert_eq!(failed.kind(), ErrorKind::NoSpace, "{failed}");
        assert_eq!((shadow.stack().private(), shadow.room()), before, "{pieces}");
        // What was to be zero is, or is as it was; the rest is as it was.
        let mut found = vec![0; 8 * MIB as usize];
        shadow.read(Span::whole(8 * MIB), &mut found).await.unwrap();
        let (span, rest) = found.split_at(7 * MIB as usize);
        let own = 2 * MIB as usize..3 * MIB as usize;
        let was = |at| if own.contains(&at) { 9 } else { base[at] };
        assert!(span.iter().enumerate().all(|(at, byte)| *byte == 0 || *byte == was(at)));
        assert!(span.contains(&0) && rest.iter().all(|byte| *byte == 9));
        // There is room for as much as there was.
        let half = Span::between(0, pieces * MIB / 2);
        shadow.zero(half, NO_HOLE, Durability::Durable).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_request_that_was_given_up_took_is_not_taken_from_who_writes_it_now() {
    let scratch = Scratch::new(blank(MIB), MIB).await;
    let fresh = fresh_of(&scratch, blocks(0, 4));
    reserve(&scratch, blocks(0, 4)).await.unwrap();
    let request = Arc::new(());
    let wanted = RequestWaiter::by(&request);
    drop(request);
    write(&scratch, blocks(0, 4)).await.unwrap();
    let undone = scratch.inner.undo_filling(&fresh, &wanted);
    assert_eq!(undone.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(holds(&scratch, blocks(0, 4), 9).await);
}

#[tokio::test]
async fn zeroes_that_find_no_room_for_all_of_them_take_none() {
    for written in [false, true] {
        let mut scratch = Scratch::new(slow(noise(64 * MIB)), 64 * MIB).await;
        if written {
            // As of a file system that cannot reserve room.
            let _ = scratch.inner.reserves.set(false);
        }
        scratch.shadow.limit(Arc::new(AtomicU64::new(16 * MIB)));
        write(&scratch, Span::between(3 * MIB, 4 * MIB)).await.unwrap();
        let (private_before, room) = (private(&scratch), scratch.room());
        assert_eq!(reserve(&scratch, Span::whole(60 * MIB)).await, Err(ErrorKind::NoSpace));
        assert_eq!((private(&scratch), scratch.room()), (private_before, room), "{written}");
        assert!(holds(&scratch, Span::between(3 * MIB, 4 * MIB), 9).await);
        // One that fails in the middle is undone; what was private before stays so.
        let fresh = fresh_of(&scratch, Span::whole(8 * MIB));
        reserve(&scratch, Span::whole(8 * MIB)).await.unwrap();
        let request = Arc::new(());
        scratch.inner.undo_filling(&fresh, &RequestWaiter::by(&request)).unwrap();
        scratch.flush().await.unwrap();
        assert_eq!(private(&scratch), private_before, "{written}");
        // A file system keeps blocks of its own for a file that was in many pieces.
        assert!(scratch.room() <= room + MIB / 16, "{written}: {} of {room}", scratch.room());
        scratch.reopen().await;
        assert!(holds(&scratch, Span::whole(8 * MIB), 0).await);
        reserve(&scratch, Span::whole(15 * MIB)).await.unwrap();
    }
}
