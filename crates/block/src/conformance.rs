//! The suite that every device and layer must pass.
//!
//! A library function and not a test, so that every crate runs the same one on its own devices.
//! It panics with the operation's number and the seed when a device breaks the contract of
//! [`Device`].

#![allow(clippy::expect_used)] // a suite speaks by panicking

use crate::{Attempt, BLOCK, Device, Durability, ErrorKind, Filling, Span, ZeroMode};
use std::future::Future;
use std::sync::Arc;

/// Size of the devices that [`check`] asks for: not a multiple of a block, to try the last one.
pub const SIZE: u64 = (1 << 20) + 512;

const OPERATIONS: u32 = 2000;

/// A small deterministic generator (SplitMix64), so that a failure repeats.
#[derive(Debug, Clone)]
pub struct Sequence(u64);

impl Sequence {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `len` bytes that do not compress.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> =
            (0..len.div_ceil(8)).flat_map(|_| self.number().to_le_bytes()).collect();
        bytes.truncate(len);
        bytes
    }

    /// The next number below `limit` (which is not 0).
    pub fn below(&mut self, limit: u64) -> u64 {
        self.number() % limit
    }

    /// A span inside `size`: of any alignment, of blocks, of one sector, or long.
    pub fn span(&mut self, size: u64) -> Span {
        let (offset, len) = match self.below(4) {
            0 => (self.below(size), self.below(3 * BLOCK)),
            1 => (self.below(size) / BLOCK * BLOCK, (1 + self.below(16)) * BLOCK),
            2 => (self.below(size) / 512 * 512, 512),
            _ => (self.below(size), self.below(size / 4)),
        };
        Span::between(offset, (offset + len).min(size))
    }
}

/// Checks a writable device against a byte vector.
///
/// `make` gives a device of the asked size that reads as zeroes.
///
/// # Panics
/// When the device breaks the contract.
pub async fn check<M, F>(make: M)
where
    M: Fn(u64) -> F,
    F: Future<Output = Arc<dyn Device>>,
{
    for seed in 1..=3 {
        let device = make(SIZE).await;
        against_bytes(&*device, vec![0; SIZE as usize], seed).await;
    }
    concurrent_writers_do_not_disturb_each_other(make(SIZE).await).await;
}

/// Checks a read-only device that must hold `expected`.
///
/// # Panics
/// When it does not, or when it accepts a write.
pub async fn check_read_only(device: &dyn Device, expected: &[u8]) {
    assert!(device.read_only(), "the device says that it can be written");
    assert_eq!(device.size(), expected.len() as u64, "size");
    let mut random = Sequence::new(1);
    for step in 0..OPERATIONS / 4 {
        let span = random.span(device.size());
        compare(device, expected, span, &format!("step {step}")).await;
    }
    extents_are_true(device, expected).await;
    let span = Span::whole(device.size().min(512));
    let data = vec![1; span.len() as usize];
    let mode = ZeroMode { may_punch: true, only_if_fast: false };
    for error in [
        device.write(span, &data, Durability::Buffered).await,
        device.discard(span, Durability::Buffered).await,
        device.zero(span, mode, Durability::Buffered).await,
    ] {
        assert_eq!(error.expect_err("a change was accepted").kind(), ErrorKind::Denied);
    }
    assert!(!matches!(device.try_write(span, &data), Ok(Attempt::Done)), "a write was accepted");
    compare(device, expected, span, "after refused writes").await;
}

/// Runs random operations on `device`, which must hold `model` at the start, and compares.
///
/// # Panics
/// When the device and the model differ.
pub async fn against_bytes(device: &dyn Device, mut model: Vec<u8>, seed: u64) {
    assert_eq!(device.size(), model.len() as u64, "size");
    let limits = device.limits();
    assert!(limits.minimum.is_power_of_two() && limits.preferred.is_power_of_two());
    assert!(limits.minimum <= limits.preferred && limits.preferred <= limits.maximum);
    let mut random = Sequence::new(seed);
    for step in 0..OPERATIONS {
        let at = format!("seed {seed}, step {step}");
        let span = random.span(model.len() as u64);
        let place = span.index_in(Span::whole(model.len() as u64));
        let durability =
            if random.below(16) == 0 { Durability::Durable } else { Durability::Buffered };
        match random.below(16) {
            0..=5 => compare(device, &model, span, &at).await,
            6..=10 => {
                let tag = random.number().to_le_bytes();
                let data: Vec<u8> = tag.iter().copied().cycle().take(span.len() as usize).collect();
                let tried = durability == Durability::Buffered
                    && device.try_write(span, &data).unwrap_or_else(|e| panic!("{at}: {e:?}"))
                        == Attempt::Done;
                if !tried {
                    device
                        .write(span, &data, durability)
                        .await
                        .unwrap_or_else(|e| panic!("{at}: write {span:?}: {e:?}"));
                }
                model[place].copy_from_slice(&data);
            }
            11..=12 => {
                let mode = ZeroMode {
                    may_punch: random.below(2) == 0,
                    only_if_fast: random.below(4) == 0,
                };
                match device.zero(span, mode, durability).await {
                    Ok(()) => model[place].fill(0),
                    Err(e) if mode.only_if_fast && e.kind() == ErrorKind::Unsupported => {}
                    Err(e) => panic!("{at}: zero {span:?}: {e:?}"),
                }
            }
            13 => {
                device
                    .discard(span, durability)
                    .await
                    .unwrap_or_else(|e| panic!("{at}: discard {span:?}: {e:?}"));
                let mut now = vec![0; span.len() as usize];
                device.read(span, &mut now).await.unwrap_or_else(|e| panic!("{at}: {e:?}"));
                for (old, new) in model[place].iter_mut().zip(now) {
                    assert!(new == *old || new == 0, "{at}: discard made up bytes");
                    *old = new;
                }
            }
            14 => device.flush().await.unwrap_or_else(|e| panic!("{at}: flush: {e:?}")),
            _ => device.prefetch(span).await.unwrap_or_else(|e| panic!("{at}: prefetch: {e:?}")),
        }
    }
    compare(device, &model, Span::whole(model.len() as u64), "at the end").await;
    extents_are_true(device, &model).await;
}

async fn compare(device: &dyn Device, model: &[u8], span: Span, at: &str) {
    let expected = &model[span.index_in(Span::whole(model.len() as u64))];
    let mut buf = vec![0xa5; expected.len()];
    device.read(span, &mut buf).await.unwrap_or_else(|e| panic!("{at}: read {span:?}: {e:?}"));
    if let Some(i) = (0..buf.len()).find(|i| buf[*i] != expected[*i]) {
        panic!("{at}: byte {} is {:#x}, not {:#x}", span.offset() + i as u64, buf[i], expected[i]);
    }
    buf.fill(0xa5);
    let attempt = device.try_read(span, &mut buf).unwrap_or_else(|e| panic!("{at}: {e:?}"));
    assert!(attempt == Attempt::WouldWait || buf == expected, "{at}: the fast path differs");
    buf.fill(0xa5);
    let attempt = device
        .try_read_to(span, &mut Filling::new(&mut buf))
        .unwrap_or_else(|e| panic!("{at}: {e:?}"));
    assert!(attempt == Attempt::WouldWait || buf == expected, "{at}: the shared bytes differ");
}

async fn extents_are_true(device: &dyn Device, model: &[u8]) {
    let size = model.len() as u64;
    for limit in [1, 3, usize::MAX] {
        let mut at = 0;
        while at < size {
            let asked = Span::between(at, size);
            let list = device.extents(asked, limit).await.expect("extents");
            assert!(!list.is_empty() && list.len() <= limit, "limit {limit}");
            for extent in list {
                assert_eq!(extent.span.offset(), at, "extents leave a gap");
                assert!(!extent.span.is_empty() && extent.span.end() <= size);
                let bytes = &model[extent.span.index_in(Span::whole(size))];
                assert!(
                    !extent.kind.reads_zero() || bytes.iter().all(|b| *b == 0),
                    "extent {extent:?} hides data"
                );
                at = extent.span.end();
            }
        }
    }
}

/// Tasks write to interleaved pieces, some smaller than a block: nobody's bytes may get lost.
async fn concurrent_writers_do_not_disturb_each_other(device: Arc<dyn Device>) {
    const PIECE: u64 = 1536; // shares blocks with its neighbours
    const WRITERS: u64 = 4;
    let pieces = device.size() / PIECE;
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let device = Arc::clone(&device);
        tasks.spawn(async move {
            for piece in (writer..pieces).step_by(WRITERS as usize) {
                let span = Span::between(piece * PIECE, (piece + 1) * PIECE);
                let data = vec![(piece % 251) as u8 + 1; PIECE as usize];
                device.write(span, &data, Durability::Buffered).await.expect("write");
                tokio::task::yield_now().await;
            }
        });
    }
    while let Some(done) = tasks.join_next().await {
        done.expect("a writer panicked");
    }
    for piece in 0..pieces {
        let span = Span::between(piece * PIECE, (piece + 1) * PIECE);
        let mut buf = vec![0; PIECE as usize];
        device.read(span, &mut buf).await.expect("read");
        assert!(buf.iter().all(|b| *b == (piece % 251) as u8 + 1), "piece {piece} was disturbed");
    }
}
