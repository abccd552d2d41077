//! A disk against a byte vector, over everything that can be done to it.

use crate::common::{Home, bytes, golden};
use block::{Device, Durability, Span, ZeroMode};
use disk::{Disk, Mode};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

#[derive(Debug, Clone)]
enum Step {
    Write(f64, u64, bool),
    Zero(f64, u64, bool),
    Discard(f64, u64),
    Flush,
    Snapshot(u8),
    Rollback(u8),
    RemoveSnapshot(u8),
    Commit,
    Reset,
    Grow(u64),
    /// Closed and opened by another process.
    Reopen,
    /// Let go of without closing, as when the process is killed.
    Kill,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0.0..1.0f64;
    let len = || prop_oneof![1..5000u64, Just(4096), Just(16384), 1..200_000u64];
    prop_oneof![
        10 => (at(), len(), prop::bool::weighted(0.1)).prop_map(|(a, l, d)| Step::Write(a, l, d)),
        3 => (at(), len(), any::<bool>()).prop_map(|(a, l, p)| Step::Zero(a, l, p)),
        2 => (at(), len()).prop_map(|(a, l)| Step::Discard(a, l)),
        2 => Just(Step::Flush),
        2 => (0..4u8).prop_map(Step::Snapshot),
        2 => (0..4u8).prop_map(Step::Rollback),
        1 => (0..4u8).prop_map(Step::RemoveSnapshot),
        1 => Just(Step::Commit),
        1 => Just(Step::Reset),
        1 => (1..200u64).prop_map(|sectors| Step::Grow(sectors * 512)),
        2 => Just(Step::Reopen),
        2 => Just(Step::Kill),
    ]
}

struct Run {
    home: Home,
    disk: Option<Arc<Disk>>,
    image: Vec<u8>,
    now: Vec<u8>,
    flushed: Vec<u8>,
    /// What was written since the last flush, and with what byte.
    since: Vec<(Range<usize>, u8)>,
    snapshots: BTreeMap<u8, Vec<u8>>,
    commits: u32,
    tag: u8,
}

impl Run {
    async fn new() -> Self {
        let home = Home::new().await;
        let image = golden(5, 150);
        home.image("golden:1", &image).await;
        home.create("d", "golden", Mode::Persistent).await.unwrap();
        let disk = home.open("d").await;
        Self {
            home,
            disk: Some(disk),
            now: image.clone(),
            flushed: image.clone(),
            image,
            since: Vec::new(),
            snapshots: BTreeMap::new(),
            commits: 0,
            tag: 0,
        }
    }

    fn disk(&self) -> Arc<Disk> {
        Arc::clone(self.disk.as_ref().unwrap())
    }

    fn span(&self, at: f64, len: u64) -> Span {
        let size = self.now.len() as u64;
        let start = (at * size as f64) as u64;
        // Half of them on block boundaries.
        let start = if len.is_multiple_of(4096) { start / 4096 * 4096 } else { start };
        Span::between(start, (start + len).min(size))
    }

    fn changed(&mut self, span: Span, value: u8) {
        let range = span.offset() as usize..span.end() as usize;
        self.now[range.clone()].fill(value);
        self.since.push((range, value));
    }

    fn flushed(&mut self) {
        self.flushed.clone_from(&self.now);
        self.since.clear();
    }

    /// The disk is another one: all that it holds is durable.
    fn becomes(&mut self, bytes: Vec<u8>) {
        self.now = bytes;
        self.flushed();
    }

    async fn reopen(&mut self) {
        self.disk = None;
        self.home.again().await;
        self.disk = Some(self.home.open("d").await);
    }

    async fn write(&mut self, span: Span, durable: bool) {
        self.tag = self.tag % 250 + 1;
        let data = vec![self.tag; span.len() as usize];
        let durability = if durable { Durability::Durable } else { Durability::Buffered };
        self.disk().write(span, &data, durability).await.unwrap();
        self.changed(span, self.tag);
        if durable {
            // This one alone, but nothing else may be worse off.
            self.flushed[span.offset() as usize..span.end() as usize].fill(self.tag);
            let (start, end) = (span.offset() as usize, span.end() as usize);
            for (range, _) in &mut self.since {
                if range.start >= start && range.end <= end {
                    *range = 0..0;
                }
            }
        }
    }

    async fn discard(&mut self, span: Span) {
        let disk = self.disk();
        disk.discard(span, Durability::Buffered).await.unwrap();
        let found = bytes(&*disk).await;
        let range = span.offset() as usize..span.end() as usize;
        for (new, old) in found[range.clone()].iter().zip(&self.now[range]) {
            assert!(*new == 0 || new == old, "discard made up bytes");
        }
        self.now = found;
        self.since.push((span.offset() as usize..span.end() as usize, 0));
    }

    /// After a crash each byte is as it was when it was last flushed, or as it was written since.
    async fn what_was_flushed_is_there(&mut self) {
        let found = bytes(&*self.disk()).await;
        assert_eq!(found.len(), self.now.len());
        for (i, byte) in found.iter().enumerate() {
            let possible = *byte == self.flushed[i]
                || self.since.iter().any(|(r, value)| r.contains(&i) && value == byte);
            assert!(possible, "byte {i} holds {byte} after a crash");
        }
        self.now = found;
    }

    async fn step(&mut self, step: Step) {
        let disk = self.disk();
        let buffered = Durability::Buffered;
        match step {
            Step::Write(at, len, durable) => self.write(self.span(at, len), durable).await,
            Step::Zero(at, len, may_punch) => {
                let span = self.span(at, len);
                let mode = ZeroMode { may_punch, only_if_fast: false };
                disk.zero(span, mode, buffered).await.unwrap();
                self.changed(span, 0);
            }
            Step::Discard(at, len) => self.discard(self.span(at, len)).await,
            Step::Flush => {
                disk.flush().await.unwrap();
                self.flushed();
            }
            Step::Snapshot(name) => {
                let made = disk.snapshot(&format!("s{name}"), &()).await;
                if self.snapshots.contains_key(&name) {
                    assert_eq!(made.unwrap_err().kind(), block::ErrorKind::Conflict);
                } else {
                    assert_eq!(made.unwrap().size, self.now.len() as u64);
                    self.snapshots.insert(name, self.now.clone());
                }
            }
            Step::Rollback(name) => {
                let result = disk.rollback(&format!("s{name}")).await;
                match self.snapshots.get(&name) {
                    Some(bytes) => {
                        result.unwrap();
                        self.becomes(bytes.clone());
                    }
                    None => assert_eq!(result.unwrap_err().kind(), block::ErrorKind::NotFound),
                }
            }
            Step::RemoveSnapshot(name) => {
                let result = disk.remove_snapshot(&format!("s{name}")).await;
                assert_eq!(result.is_ok(), self.snapshots.remove(&name).is_some());
            }
            Step::Commit => {
                self.commits += 1;
                let made = disk.commit(&"made".parse().unwrap(), &()).await.unwrap();
                assert_eq!(made.name, format!("made:{}", self.commits));
                assert_eq!(self.home.image_bytes(&made.name).await, self.now);
                // The same as an import of the whole.
                let whole = block::Memory::from(self.now.clone());
                let session = store::testing::session(&self.home.store).await;
                let import = store::import::from_device(&session, &whole, &());
                assert_eq!(Some(import.await.unwrap().manifest), made.body.manifest);
            }
            Step::Reset => {
                disk.reset().await.unwrap();
                let mut bytes = self.image.clone();
                bytes.resize(self.now.len().max(bytes.len()), 0);
                self.becomes(bytes);
            }
            Step::Grow(more) => {
                let size = self.now.len() + more as usize;
                disk.grow(size as u64).await.unwrap();
                self.now.resize(size, 0);
                self.flushed.resize(size, 0);
            }
            Step::Reopen => {
                disk.close().await.unwrap();
                self.flushed();
                drop(disk);
                self.reopen().await;
            }
            Step::Kill => {
                drop(disk);
                self.reopen().await;
                self.what_was_flushed_is_there().await;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, max_shrink_iters: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_disk_is_a_byte_vector_with_a_history(steps in prop::collection::vec(step(), 1..30)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new().await;
            for step in steps {
                run.step(step).await;
                assert_eq!(run.disk().size(), run.now.len() as u64);
                let found = bytes(&*run.disk()).await;
                if let Some(i) = (0..found.len()).find(|i| found[*i] != run.now[*i]) {
                    panic!("byte {i} is {}, not {}", found[i], run.now[i]);
                }
            }
            let snapshots = run.disk().snapshots().await.unwrap();
            assert_eq!(snapshots.len(), run.snapshots.len());
        });
    }
}
