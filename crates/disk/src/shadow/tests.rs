mod zero;

use super::zero::RequestWaiter;
use super::*;
use async_trait::async_trait;
use block::conformance::{self, Sequence};
use block::{
    Attempt, BLOCK, Durability, ErrorKind, Extent, Fault, Memory, ScriptedDevice, Span, ZeroMode,
};
use proptest::prelude::*;
use std::fs;
use std::path::PathBuf;

const DISK: [u8; 16] = [5; 16];

/// A shadow and its directory, which goes with it.
struct Scratch {
    shadow: Shadow,
    directory: tempfile::TempDir,
    base: Arc<dyn Device>,
}

impl std::ops::Deref for Scratch {
    type Target = Shadow;
    fn deref(&self) -> &Shadow {
        &self.shadow
    }
}

impl Scratch {
    async fn new(base: Arc<dyn Device>, size: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let shadow = Shadow::create(directory.path(), DISK, Arc::clone(&base), size).await.unwrap();
        Self { shadow, directory, base }
    }

    /// Lets go of the shadow without closing it, and opens it again.
    async fn reopen(&mut self) {
        let layers: Vec<u32> = self.stack().layers.iter().rev().map(|l| l.number).collect();
        self.shadow = Shadow::open(
            self.directory.path(),
            DISK,
            &layers,
            Arc::clone(&self.base),
            self.shadow.size(),
        )
        .await
        .unwrap();
    }
}

#[async_trait]
impl Device for Scratch {
    fn size(&self) -> u64 {
        self.shadow.size()
    }
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.shadow.try_read(span, buf)
    }
    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        self.shadow.try_write(span, data)
    }
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.shadow.read(span, buf).await
    }
    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.shadow.write(span, data, durability).await
    }
    async fn flush(&self) -> Result<()> {
        self.shadow.flush().await
    }
    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.shadow.discard(span, durability).await
    }
    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.shadow.zero(span, mode, durability).await
    }
    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.shadow.extents(span, limit).await
    }
}

fn zeroes(size: u64) -> Arc<dyn Device> {
    Arc::new(Memory::new(size))
}

fn noise(size: u64) -> Vec<u8> {
    let mut random = Sequence::new(77);
    (0..size).map(|_| random.number() as u8).collect()
}

/// A base that always has to be waited for.
fn slow(bytes: Vec<u8>) -> Arc<dyn Device> {
    Arc::new(ScriptedDevice::new(Memory::from(bytes), |_| Fault::None))
}

#[tokio::test]
async fn a_shadow_over_zeroes_keeps_the_device_contract() {
    conformance::check(|size| async move {
        Arc::new(Scratch::new(zeroes(size), size).await) as Arc<dyn Device>
    })
    .await;
}

#[tokio::test]
async fn a_shadow_over_a_shorter_base_keeps_the_device_contract() {
    conformance::check(|size| async move {
        Arc::new(Scratch::new(zeroes(size / 2 / 512 * 512), size).await) as Arc<dyn Device>
    })
    .await;
}

#[tokio::test]
async fn a_shadow_over_a_base_that_is_waited_for_keeps_the_device_contract() {
    let bytes = noise(conformance::SIZE);
    let scratch = Scratch::new(slow(bytes.clone()), conformance::SIZE).await;
    conformance::against_bytes(&scratch, bytes, 9).await;
}

#[tokio::test]
async fn the_contract_holds_while_layers_are_sealed_underneath() {
    let bytes = noise(conformance::SIZE);
    let scratch = Scratch::new(slow(bytes.clone()), conformance::SIZE).await;
    let sealing = async {
        for number in 2..30 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            let layer = scratch.new_layer(number).await.unwrap();
            scratch.seal(layer).await;
        }
    };
    tokio::join!(conformance::against_bytes(&scratch, bytes, 11), sealing);
}

#[tokio::test]
async fn zeroes_over_a_blank_base_take_no_room_and_no_log() {
    let size = 1 << 40;
    let scratch = Scratch::new(blank(size), size).await;
    scratch.discard(Span::whole(size), Durability::Buffered).await.unwrap();
    let mode = ZeroMode { may_punch: true, only_if_fast: true };
    scratch.zero(Span::whole(size), mode, Durability::Durable).await.unwrap();
    assert!(scratch.is_empty() && scratch.room() == 0);
}

/// A base that says of itself that it holds nothing.
fn blank(size: u64) -> Arc<dyn Device> {
    Arc::new(Frozen {
        stack: Arc::new(Stack { generation: 0, layers: Vec::new(), base: zeroes(0) }),
        from: 0,
        size,
    })
}

#[tokio::test]
async fn discarding_private_blocks_gives_their_room_back() {
    let scratch = Scratch::new(zeroes(64 << 20), 64 << 20).await;
    let span = Span::whole(32 << 20);
    scratch.write(span, &vec![3; 32 << 20], Durability::Durable).await.unwrap();
    assert!(scratch.room() >= 32 << 20);
    scratch.discard(span, Durability::Durable).await.unwrap();
    assert!(scratch.room() < 1 << 20, "{}", scratch.room());
}

#[tokio::test]
async fn a_sealed_layer_does_not_change_any_more() {
    let scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    scratch.write(Span::whole(8192), &[1; 8192], Durability::Buffered).await.unwrap();
    scratch.seal(scratch.new_layer(2).await.unwrap()).await;
    let view = scratch.sealed();
    scratch.write(Span::between(100, 200), &[2; 100], Durability::Buffered).await.unwrap();
    scratch.discard(Span::between(4096, 8192), Durability::Durable).await.unwrap();
    let (mut old, mut new) = (vec![0; 8192], vec![0; 8192]);
    view.read(Span::whole(8192), &mut old).await.unwrap();
    scratch.read(Span::whole(8192), &mut new).await.unwrap();
    assert!(old.iter().all(|byte| *byte == 1));
    assert!(new[..100].iter().chain(&new[200..4096]).all(|byte| *byte == 1));
    assert!(new[100..200].iter().all(|byte| *byte == 2) && new[4096..].iter().all(|b| *b == 0));
    assert_eq!(view.stack.changed(1, 1 << 20), [Span::whole(8192)]);
}

#[tokio::test]
async fn flushes_that_come_together_share_a_round() {
    let scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    let mut writes = Vec::new();
    for i in 0..50u64 {
        let shadow = &scratch.shadow;
        writes.push(async move {
            let span = Span::between(i * 8192, i * 8192 + 4096);
            shadow.write(span, &[7; 4096], Durability::Durable).await.unwrap();
        });
    }
    futures::future::join_all(writes).await;
    // One record a round: 50 rounds would be 50 records.
    let map = fs::metadata(scratch.directory.path().join("0001.map")).unwrap().len();
    assert!(map < 4096 + 20 * 56, "the log has {map} bytes");
}

#[tokio::test]
async fn a_closed_shadow_opens_as_it_was() {
    let mut scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    for i in 0..100u64 {
        let span = Span::between(i * 8192, i * 8192 + 700);
        scratch.write(span, &[i as u8 + 1; 700], Durability::Buffered).await.unwrap();
        scratch.flush().await.unwrap();
    }
    scratch.shadow.close().await.unwrap();
    let map = fs::metadata(scratch.directory.path().join("0001.map")).unwrap().len();
    assert!(map < 4096 + 32 + 16 + 8 * 8 + 1, "the log was not checkpointed: {map}");
    scratch.reopen().await;
    for i in 0..100u64 {
        let mut buf = [0; 8192];
        scratch.read(Span::between(i * 8192, (i + 1) * 8192), &mut buf).await.unwrap();
        assert!(buf[..700].iter().all(|b| *b == i as u8 + 1) && buf[700..].iter().all(|b| *b == 0));
    }
}

#[tokio::test]
async fn a_log_that_grows_is_checkpointed() {
    let size = 8 << 30;
    let scratch = Scratch::new(blank(size), size).await;
    let mut largest = 0;
    let request = Arc::new(());
    let wanted = RequestWaiter::by(&request);
    for round in 0..8u64 {
        for i in 0..12_000u64 {
            // Every group far from its neighbours: the costliest log. Changing states alternate.
            let span = Span::between(i * 5 * 131_072, i * 5 * 131_072 + 4096);
            if round % 2 == 0 {
                assert_eq!(scratch.try_write(span, &[1; 4096]).unwrap(), Attempt::Done);
            } else {
                scratch.inner.mark_zero(span, false, &wanted).unwrap();
            }
        }
        scratch.flush().await.unwrap();
        let map = fs::metadata(scratch.directory.path().join("0001.map")).unwrap().len();
        largest = largest.max(map);
    }
    assert!(largest < 2 << 20, "the log grew to {largest} bytes");
}

#[tokio::test]
async fn after_a_failed_step_no_layer_is_cleared_that_the_record_may_name() {
    let scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    let layer = scratch.new_layer(2).await.unwrap();
    scratch.poison().set(&Error::unavailable("no disk"));
    drop(layer);
    let files = ["0002.data", "0002.map"].map(|name| scratch.directory.path().join(name));
    assert!(files.iter().all(|file| file.exists()));
    let refused = scratch.new_layer(2).await.err().unwrap();
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    assert!(files.iter().all(|file| file.exists()));
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_promised_any_more() {
    let scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    let span = Span::whole(4096);
    scratch.write(span, &[1; 4096], Durability::Durable).await.unwrap();
    scratch.poison().set(&Error::unavailable("no disk"));
    let mode = ZeroMode { may_punch: true, only_if_fast: false };
    for result in [
        scratch.flush().await,
        scratch.write(span, &[2; 4096], Durability::Buffered).await,
        scratch.try_write(span, &[2; 4096]).map(|_| ()),
        scratch.discard(span, Durability::Buffered).await,
        scratch.zero(span, mode, Durability::Buffered).await,
        scratch.shadow.close().await,
    ] {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("no disk") && error.message().contains("open it again"));
    }
    let mut buf = [0; 4096];
    scratch.read(span, &mut buf).await.unwrap();
    assert_eq!(buf, [1; 4096]);
}

#[tokio::test]
async fn files_of_another_disk_and_missing_files_are_refused() {
    let scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    let at = scratch.directory.path();
    let open = |disk, layers: &'static [u32]| Shadow::open(at, disk, layers, zeroes(1), 1 << 20);
    let kind = |result: Result<Shadow>| result.err().unwrap().kind();
    assert_eq!(kind(open([6; 16], &[1]).await), ErrorKind::Corrupt);
    assert_eq!(kind(open(DISK, &[2]).await), ErrorKind::Corrupt);
    assert_eq!(kind(open(DISK, &[]).await), ErrorKind::Corrupt);
    for size in [0, 100, u64::MAX / 512 * 512] {
        assert_eq!(kind(Shadow::create(at, DISK, zeroes(1), size).await), ErrorKind::Invalid);
    }
}

const SECTOR: u64 = 512;
const SECTORS: u64 = 513; // the last block is short

#[derive(Debug, Clone)]
enum Step {
    Write {
        at: u64,
        len: u64,
        durable: bool,
    },
    Zero {
        at: u64,
        len: u64,
        punch: bool,
    },
    Discard {
        at: u64,
        len: u64,
    },
    Flush,
    Seal,
    /// The process is killed.
    Kill,
    /// Power fails: what was not synced is there or not, page by page.
    PowerCut(u64),
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let at = || 0..SECTORS;
    let len = || prop_oneof![1..8u64, Just(8), 8..80u64];
    prop_oneof![
        8 => (at(), len(), prop::bool::weighted(0.1))
            .prop_map(|(at, len, durable)| Step::Write { at, len, durable }),
        2 => (at(), len(), any::<bool>()).prop_map(|(at, len, punch)| Step::Zero { at, len, punch }),
        2 => (at(), len()).prop_map(|(at, len)| Step::Discard { at, len }),
        2 => Just(Step::Flush),
        1 => Just(Step::Seal),
        2 => Just(Step::Kill),
        1 => any::<u64>().prop_map(Step::PowerCut),
        1 => Just(Step::Close),
    ]
}

/// A shadow beside a model that knows, sector by sector, what a crash may leave.
struct Run {
    scratch: Scratch,
    /// What each sector holds now: a number that fills it.
    now: Vec<u64>,
    /// What it may hold after a crash: what it held at the last flush, and since.
    possible: Vec<Vec<u64>>,
    /// The files as they were when the last flush was answered.
    stable: Vec<(PathBuf, Vec<u8>)>,
    next: u64,
}

fn span_of(at: u64, len: u64) -> Span {
    Span::between(at * SECTOR, (at + len).min(SECTORS) * SECTOR)
}

impl Run {
    async fn new() -> Self {
        let size = SECTORS * SECTOR;
        // Sector n of the base is filled with the number n + 1.
        let bytes: Vec<u8> = (1..=SECTORS).flat_map(|n| n.to_le_bytes().repeat(64)).collect();
        let now: Vec<u64> = (1..=SECTORS).collect();
        let scratch = Scratch::new(slow(bytes), size).await;
        let possible = now.iter().map(|value| vec![*value]).collect();
        let mut run = Self { scratch, now, possible, stable: Vec::new(), next: 10_000 };
        run.stable = run.files();
        run
    }

    fn files(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let entries = fs::read_dir(self.scratch.directory.path()).unwrap();
        entries.map(|e| e.unwrap().path()).map(|p| (p.clone(), fs::read(&p).unwrap())).collect()
    }

    fn set(&mut self, span: Span, value: u64) {
        for sector in span.offset() / SECTOR..span.end() / SECTOR {
            self.now[sector as usize] = value;
            self.possible[sector as usize].push(value);
        }
    }

    fn flushed(&mut self) {
        self.possible = self.now.iter().map(|value| vec![*value]).collect();
        self.stable = self.files();
    }

    async fn contents(&self) -> Vec<u64> {
        let mut bytes = vec![0; (SECTORS * SECTOR) as usize];
        self.scratch.read(Span::whole(SECTORS * SECTOR), &mut bytes).await.unwrap();
        bytes
            .chunks(SECTOR as usize)
            .map(|sector| {
                let value = u64::from_le_bytes(sector[..8].try_into().unwrap());
                assert!(sector.chunks(8).all(|w| w == value.to_le_bytes()), "a torn sector");
                value
            })
            .collect()
    }

    async fn crashed(&mut self) {
        self.scratch.reopen().await;
        for (sector, value) in self.contents().await.into_iter().enumerate() {
            assert!(
                self.possible[sector].contains(&value),
                "sector {sector} holds {value}, not one of {:?}",
                self.possible[sector]
            );
            self.now[sector] = value;
            // The next crash may still undo what this one happened to keep.
            self.possible[sector].push(value);
        }
    }

    /// Puts every page of the data files, and the end of the map files, into the state of the last
    /// flush or the present one, as it happens.
    fn cut_power(&self, seed: u64) {
        let mut random = Sequence::new(seed);
        for (path, now) in self.files() {
            if path.extension().is_some_and(|e| e == "recent") {
                // They may be there, and stand on a page cache that is gone.
                let mut gone = now.clone();
                if gone.len() < 4096 {
                    continue;
                }
                gone[32..64].fill(random.number() as u8);
                let checksum = crc32c::crc32c(&gone[..124]);
                gone[124..128].copy_from_slice(&checksum.to_le_bytes());
                fs::write(&path, gone).unwrap();
                continue;
            }
            let old = self.stable.iter().find(|(p, _)| *p == path).map(|(_, bytes)| bytes);
            let Some(old) = old else { continue };
            let mut mixed = now.clone();
            let is_map = path.extension().is_some_and(|e| e == "map");
            if is_map && (old.len() < 512 || old[..512] != now[..512]) {
                continue;
            }
            mixed.resize(now.len().max(old.len()), 0);
            for (i, page) in mixed.chunks_mut(512).enumerate() {
                // What was flushed is durable; of what came later, any part may be.
                if random.below(2) == 0 {
                    for (j, byte) in page.iter_mut().enumerate() {
                        *byte = old.get(i * 512 + j).copied().unwrap_or(0);
                    }
                }
            }
            if is_map && mixed.len() > old.len() {
                mixed.truncate(
                    old.len() + random.below((mixed.len() - old.len()) as u64 + 1) as usize,
                );
            }
            fs::write(&path, mixed).unwrap();
        }
    }

    async fn step(&mut self, step: Step) {
        let durability = Durability::Buffered;
        match step {
            Step::Write { at, len, durable } => {
                let span = span_of(at, len);
                self.next += 1;
                let data = self.next.to_le_bytes().repeat(span.len() as usize / 8);
                let durability = if durable { Durability::Durable } else { durability };
                self.scratch.write(span, &data, durability).await.unwrap();
                self.set(span, self.next);
                if durable {
                    // The shadow flushes all of it, so the files may be compared with these.
                    self.flushed();
                }
            }
            Step::Zero { at, len, punch } => {
                let span = span_of(at, len);
                let mode = ZeroMode { may_punch: punch, only_if_fast: false };
                self.scratch.zero(span, mode, durability).await.unwrap();
                self.set(span, 0);
            }
            Step::Discard { at, len } => {
                let span = span_of(at, len);
                self.scratch.discard(span, durability).await.unwrap();
                let now = self.contents().await;
                for sector in span.offset() / SECTOR..span.end() / SECTOR {
                    let sector = sector as usize;
                    assert!(now[sector] == 0 || now[sector] == self.now[sector]);
                    self.now[sector] = now[sector];
                    self.possible[sector].push(0);
                }
            }
            Step::Flush => {
                self.scratch.flush().await.unwrap();
                self.flushed();
            }
            Step::Close => {
                self.scratch.shadow.close().await.unwrap();
                self.flushed();
            }
            Step::Seal => {
                let number = self.scratch.stack().layers.len() as u32 + 1;
                let layer = self.scratch.new_layer(number).await.unwrap();
                self.scratch.seal(layer).await;
                // New files are durable before they are used.
                for (path, bytes) in self.files() {
                    if !self.stable.iter().any(|(p, _)| *p == path) {
                        self.stable.push((path, bytes));
                    }
                }
            }
            Step::Kill => {
                let before = self.now.clone();
                self.crashed().await;
                assert_eq!(self.now, before, "a kill takes nothing that was answered");
            }
            Step::PowerCut(seed) => {
                self.cut_power(seed);
                self.crashed().await;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, max_shrink_iters: 2000, ..ProptestConfig::default() })]

    #[test]
    fn a_kill_loses_nothing_that_was_answered_and_a_power_cut_nothing_that_was_flushed(steps in prop::collection::vec(step(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut run = Run::new().await;
            for step in steps {
                run.step(step).await;
                assert_eq!(run.contents().await, run.now);
            }
        });
    }
}

#[tokio::test]
async fn beyond_its_limit_a_shadow_takes_overwrites_and_no_new_blocks() {
    let mut scratch = Scratch::new(Arc::new(Memory::new(1 << 20)), 1 << 20).await;
    let most = Arc::new(AtomicU64::new(8 * BLOCK));
    scratch.shadow.limit(Arc::clone(&most));
    let write = async |scratch: &Scratch, offset: u64, len: usize| {
        let span = Span::between(offset, offset + len as u64);
        scratch.write(span, &vec![9; len], Durability::Buffered).await.map_err(|e| e.kind())
    };
    write(&scratch, 0, 7 * BLOCK as usize).await.unwrap();
    assert_eq!(write(&scratch, 7 * BLOCK, 2 * BLOCK as usize).await, Err(ErrorKind::NoSpace));
    write(&scratch, 100 * BLOCK + 5, 10).await.unwrap();
    assert_eq!(write(&scratch, 101 * BLOCK + 5, 10).await, Err(ErrorKind::NoSpace));
    write(&scratch, 6 * BLOCK, BLOCK as usize).await.unwrap();
    write(&scratch, 100 * BLOCK, 10).await.unwrap();
    scratch.flush().await.unwrap();
    scratch.discard(Span::between(0, BLOCK), Durability::Buffered).await.unwrap();
    write(&scratch, 50 * BLOCK, BLOCK as usize).await.unwrap();
    most.store(0, Ordering::Relaxed);
    write(&scratch, 200 * BLOCK, BLOCK as usize).await.unwrap();
    scratch.close().await.unwrap();
    scratch.reopen().await;
    scratch.shadow.limit(Arc::new(AtomicU64::new(9 * BLOCK)));
    assert_eq!(write(&scratch, 210 * BLOCK, 1).await, Err(ErrorKind::NoSpace));
    write(&scratch, 200 * BLOCK, 1).await.unwrap();
}

#[tokio::test]
async fn what_was_refused_counts_until_there_was_room_for_it() {
    let scratch = Scratch::new(Arc::new(Memory::new(1 << 20)), 1 << 20).await;
    scratch.shadow.limit(Arc::new(AtomicU64::new(8 * BLOCK)));
    let write = async |from: u64, to: u64| {
        let span = Span::between(from * BLOCK, to * BLOCK);
        let data = vec![9; span.len() as usize];
        scratch.write(span, &data, Durability::Buffered).await.map_err(|e| e.kind())
    };
    write(0, 7).await.unwrap();
    assert!(!scratch.shadow.is_at_limit(), "one more fits");
    assert_eq!(write(7, 9).await, Err(ErrorKind::NoSpace));
    assert!(scratch.shadow.is_at_limit(), "two more do not");
    scratch.discard(Span::between(0, BLOCK), Durability::Buffered).await.unwrap();
    assert!(!scratch.shadow.is_at_limit());
    write(7, 8).await.unwrap();
    assert!(!scratch.shadow.is_at_limit(), "that refusal is over");
    write(8, 9).await.unwrap();
    assert!(scratch.shadow.is_at_limit());
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_kill_at_any_time_and_is_flushed_with_the_rest() {
    let mut scratch = Scratch::new(zeroes(64 << 20), 64 << 20).await;
    let block = |i: u64| Span::between(i * 40 * BLOCK, (i * 40 + 1) * BLOCK);
    let notes = scratch.directory.path().join("0001.recent");
    for round in 1..4u8 {
        for i in 0..100 {
            let data = [round; BLOCK as usize];
            let at = block(u64::from(round) * 100 + i);
            scratch.write(at, &data, Durability::Buffered).await.unwrap();
            if i == 50 && round != 2 {
                scratch.flush().await.unwrap();
            }
        }
        let gone = block(u64::from(round) * 100 + 7);
        scratch.discard(gone, Durability::Buffered).await.unwrap();
        assert!(notes.exists());
        scratch.reopen().await;
        for i in 100..u64::from(round) * 100 + 100 {
            let mut buf = [0xff; BLOCK as usize];
            scratch.read(block(i), &mut buf).await.unwrap();
            let expected = if i % 100 == 7 { 0 } else { i / 100 };
            assert_eq!(u64::from(buf[0]), expected, "round {round}, block {i}");
        }
    }
    scratch.shadow.close().await.unwrap();
    assert!(!notes.exists());
    scratch.reopen().await;
    assert_eq!(scratch.stack().private(), 297);
}

#[tokio::test]
async fn writers_of_one_group_note_what_all_of_them_wrote() {
    let mut scratch = Scratch::new(zeroes(1 << 20), 1 << 20).await;
    let inner = &scratch.inner;
    std::thread::scope(|threads| {
        for thread in 0..8 {
            threads.spawn(move || {
                for i in 0..32 {
                    let at = (i * 8 + thread) * BLOCK;
                    inner.put_whole(Span::between(at, at + BLOCK), &[7; BLOCK as usize]).unwrap();
                }
            });
        }
    });
    scratch.reopen().await;
    assert_eq!(scratch.stack().private(), 256);
}

#[tokio::test]
async fn long_notes_are_given_up_when_a_flush_has_all_of_them() {
    let scratch = Scratch::new(blank(1 << 40), 1 << 40).await;
    let notes = scratch.directory.path().join("0001.recent");
    let request = Arc::new(());
    let wanted = RequestWaiter::by(&request);
    for (round, groups) in [10_000, 80_000].into_iter().enumerate() {
        for i in 0..groups {
            let at = (i << 1 | round as u64) * 131_072;
            scratch.inner.mark_zero(Span::between(at, at + BLOCK), false, &wanted).unwrap();
        }
        scratch.flush().await.unwrap();
        assert_eq!(notes.exists(), round == 0);
    }
}
