//! Kills a writer at random moments, hundreds of times, and checks that every flushed byte is there.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stdout)] // a test
#![allow(clippy::disallowed_methods)] // it waits for and measures real processes

mod writer;

use block::conformance::Sequence;
use block::{Device, Span};
use cache::{Cache, Config, PolicyKind};
use disk::{Disks, Image};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use store::{RefKind, Store, testing};
use writer::{BEGIN, SECTOR, SECTORS};

const KILLS: u64 = 250; // in each of two tests, which run side by side

/// What a sector may hold.
type Values = Vec<u64>;

/// What is known of the disk, sector by sector.
struct Oracle {
    /// Now, as a reader would see it; more than one value after a discard.
    now: Vec<Values>,
    /// On stable storage.
    durable: Vec<Values>,
    /// Written since then.
    since: Vec<Values>,
    /// What finished snapshots hold.
    snapshots: BTreeMap<String, Vec<Values>>,
    /// A snapshot that has begun: what it may hold so far.
    begun: Option<Vec<Values>>,
    flushes: u64,
}

impl Oracle {
    fn new(contents: &[u64]) -> Self {
        let values: Vec<Values> = contents.iter().map(|value| vec![*value]).collect();
        Self {
            durable: values.clone(),
            since: vec![Vec::new(); contents.len()],
            now: values,
            snapshots: BTreeMap::new(),
            begun: None,
            flushes: 0,
        }
    }

    fn change(&mut self, at: usize, count: usize, value: u64, surely: bool) {
        for sector in at..at + count {
            if surely {
                self.now[sector].clear();
            }
            self.now[sector].push(value);
            self.since[sector].push(value);
            if let Some(begun) = &mut self.begun {
                begun[sector].push(value);
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let number = |i: usize| words[i].parse::<u64>().unwrap();
        let place = || (number(1) as usize, number(2) as usize);
        match words[0] {
            "w" => self.change(place().0, place().1, number(3), true),
            "z" => self.change(place().0, place().1, 0, true),
            "d" => self.change(place().0, place().1, 0, false),
            "u" => {
                for sector in place().0..place().0 + place().1 {
                    self.durable[sector] = vec![number(3)];
                    self.since[sector].clear();
                }
            }
            "f" => {
                self.flushes += 1;
                self.durable.clone_from(&self.now);
                self.since.iter_mut().for_each(Vec::clear);
            }
            "s" => self.begun = Some(self.now.clone()),
            "S" => {
                let begun = self.begun.take().unwrap();
                self.snapshots.insert(words[1].to_owned(), begun);
            }
            "r" => {
                self.snapshots.remove(words[1]);
            }
            "o" => {}
            _ => panic!("the writer says: {line}"),
        }
    }

    /// The disk was opened after a crash and holds `found`.
    fn crashed(&mut self, found: &[u64], seed: u64) {
        self.begun = None;
        assert_eq!(found.len(), self.now.len());
        for (sector, value) in found.iter().enumerate() {
            let (durable, since) = (&self.durable[sector], &self.since[sector]);
            assert!(
                durable.contains(value) || since.contains(value),
                "seed {seed}: sector {sector} holds {value:#x}; flushed {durable:x?}, since {since:x?}"
            );
            self.now[sector] = vec![*value];
            self.since[sector].push(*value);
        }
    }
}

async fn contents(device: &dyn Device) -> Vec<u64> {
    let mut bytes = vec![0; device.size() as usize];
    device.read(Span::whole(device.size()), &mut bytes).await.unwrap();
    bytes
        .chunks(SECTOR as usize)
        .map(|sector| {
            let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
            let value = word(&sector[..8]);
            assert!(sector.chunks(8).all(|w| word(w) == value), "a torn sector");
            value
        })
        .collect()
}

fn cache() -> Arc<Cache> {
    Arc::new(Cache::new(Config { capacity: 32 << 20, policy: PolicyKind::Lru, seed: 0 }))
}

async fn snapshot(store: &Store, name: &str) -> Option<Vec<u64>> {
    let name = format!("crash@{name}");
    let found = store.refs().get(RefKind::Snapshot, &name).await.unwrap()?;
    let manifest = store.manifest(&found.body.manifest.unwrap()).await.unwrap();
    Some(contents(&Image::new(store.clone(), manifest, cache())).await)
}

/// Opens what a killed writer left. Returns `None` when it did not get as far as making a disk.
async fn check(directory: &Path, oracle: &mut Oracle, seed: u64) -> Option<Duration> {
    let backend = objects::local(directory.join("store")).ok()?;
    let store = Store::open(backend, testing::world(seed ^ 0x5eed)).await.ok()?;
    let disks = Disks::new(directory.join("disks"), store.clone(), cache());
    if disks.list().await.unwrap().is_empty() {
        return None;
    }
    let started = Instant::now();
    let disk = disks.open("crash").await.unwrap();
    let took = started.elapsed();
    let found = contents(&*disk).await;
    oracle.crashed(&found, seed);
    if let Some((name, expected)) = oracle.snapshots.iter().last() {
        let held = snapshot(&store, name).await.expect("a finished snapshot is gone");
        for (sector, value) in held.iter().enumerate() {
            assert!(
                expected[sector].contains(value),
                "seed {seed}: snapshot {name}, sector {sector} holds {value:#x}"
            );
        }
    }
    Some(took)
}

fn lives(first: u64) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    // What the image holds is what the first life begins with.
    let mut oracle = Oracle::new(&(1..=SECTORS).collect::<Vec<u64>>());
    let mut random = Sequence::new(first);
    let (mut slowest, mut operations, mut opened) = (Duration::ZERO, 0u64, 0);
    let mut slowness = 1.0f64;
    for seed in first..first + KILLS {
        let mut child = writer::spawn(directory.path(), seed);
        let lines = BufReader::new(child.stdout.take().unwrap());
        let heard = std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let said = lines.lines().map_while(Result::ok);
                said.skip_while(|line| !line.ends_with(BEGIN)).skip(1).collect::<Vec<_>>()
            });
            let life = if seed == first { 1000 } else { 40 + random.below(160) };
            std::thread::sleep(Duration::from_millis(life).mul_f64(slowness));
            child.kill().unwrap();
            child.wait().unwrap();
            reader.join().unwrap()
        });
        operations += heard.len() as u64;
        let worked = heard.first().is_some_and(|line| line.starts_with("o "));
        opened += u64::from(worked);
        // On a busy machine lives grow, until some four in five writers get to work.
        slowness = (slowness * if worked { 0.95 } else { 1.25 }).clamp(1.0, 60.0);
        heard.iter().for_each(|line| oracle.hear(line));
        if let Some(took) = runtime.block_on(check(directory.path(), &mut oracle, seed)) {
            slowest = slowest.max(took);
        }
    }
    println!(
        "seeds {first}..{}: {operations} lines, {} flushes, {opened} openings by the writer, \
         slowest opening here {slowest:?}",
        first + KILLS,
        oracle.flushes
    );
    // A writer that never gets to work would make this an empty promise.
    assert!(opened > KILLS / 2 && oracle.flushes > KILLS, "the writer hardly ran");
}

#[test]
fn no_flushed_byte_is_lost_in_250_kills() {
    lives(1000);
}

#[test]
fn no_flushed_byte_is_lost_in_250_other_kills() {
    lives(5000);
}
