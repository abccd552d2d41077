//! Loads a disk until it is killed, and says on standard output what it does, so that the one that
//! kills it can check afterwards that nothing flushed was lost.
//!
//! The store is DIRECTORY/store, the disks are in DIRECTORY/disks; what is not there is made. Sectors
//! are of 512 bytes, filled with a number; sector n of the image holds n + 1.
//!
//! | line | means |
//! |---|---|
//! | `o MICROSECONDS` | the disk was opened, in so long |
//! | `w SECTOR COUNT NUMBER` | a write begins |
//! | `u SECTOR COUNT NUMBER` | that write was a durable one, and was answered |
//! | `z SECTOR COUNT` | a zeroing begins |
//! | `d SECTOR COUNT` | a discard begins |
//! | `f` | a flush was answered |
//! | `s NAME`, `S NAME` | a snapshot begins, was answered; writes go on in between |
//! | `r NAME` | the removal of a snapshot begins |

use block::conformance::Sequence;
use block::{Device, Durability, Memory, Result, Span, ZeroMode};
use cache::{Cache, Config, PolicyKind};
use disk::{CreateOptions, Disk, Disks};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Instant;
use store::{RefBody, RefKind, Store, import, testing};

/// The line after which a writer says what it does; what comes before is the test harness's.
pub(crate) const BEGIN: &str = "begin";
pub(crate) const SECTOR: u64 = 512;
/// Not a multiple of a block: the last one is short.
pub(crate) const SECTORS: u64 = 16 * 1024 + 3;
const DISK: &str = "crash";

fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // One write, so that a kill leaves whole lines or none.
    let _ = out.write_all(format!("{line}\n").as_bytes()).and_then(|()| out.flush());
}

async fn store(directory: &Path, seed: u64) -> Result<Store> {
    let place = directory.join("store");
    let fresh = !place.join("store.json").exists();
    let backend = objects::create_local(&place)?;
    if fresh {
        Store::create(backend, testing::settings(), testing::world(seed)).await
    } else {
        Store::open(backend, testing::world(seed)).await
    }
}

async fn image(store: &Store) -> Result<()> {
    if store.refs().get(RefKind::Image, "golden:1").await?.is_some() {
        return Ok(());
    }
    let bytes: Vec<u8> = (1..=SECTORS).flat_map(|n| n.to_le_bytes().repeat(64)).collect();
    let session = store.session("crash test").await?;
    let imported = import::from_device(&session, &Memory::from(bytes), &()).await?;
    let body = RefBody {
        manifest: Some(imported.manifest),
        size: imported.size,
        created: testing::NOW,
        labels: BTreeMap::new(),
    };
    let made = session.publish(RefKind::Image, "golden:1", body).await;
    session.close(made).await.map(|_| ())
}

struct Load {
    disk: Arc<Disk>,
    random: Sequence,
    number: u64,
}

impl Load {
    fn span(&mut self) -> Span {
        let len = match self.random.below(4) {
            0 => 1 + self.random.below(7),
            1 => 8,
            2 => 8 * (1 + self.random.below(16)),
            _ => 1 + self.random.below(200),
        };
        // A hot part, so that blocks change their state often.
        let room = if self.random.below(2) == 0 { 512 } else { SECTORS };
        let at = self.random.below(room);
        let at = if self.random.below(2) == 0 { at / 8 * 8 } else { at };
        Span::between(at * SECTOR, (at + len).min(SECTORS) * SECTOR)
    }

    async fn write(&mut self, durability: Durability) -> Result<()> {
        let span = self.span();
        self.number += 1;
        let (at, count) = (span.offset() / SECTOR, span.len() / SECTOR);
        let data = self.number.to_le_bytes().repeat(span.len() as usize / 8);
        say(format_args!("w {at} {count} {}", self.number));
        self.disk.write(span, &data, durability).await?;
        if durability == Durability::Durable {
            say(format_args!("u {at} {count} {}", self.number));
        }
        Ok(())
    }

    async fn step(&mut self) -> Result<()> {
        let disk = Arc::clone(&self.disk);
        match self.random.below(40) {
            0..24 => self.write(Durability::Buffered).await,
            24..26 => self.write(Durability::Durable).await,
            26..31 => {
                let span = self.span();
                let mode = ZeroMode { may_punch: self.random.below(2) == 0, only_if_fast: false };
                say(format_args!("z {} {}", span.offset() / SECTOR, span.len() / SECTOR));
                disk.zero(span, mode, Durability::Buffered).await
            }
            31..35 => {
                let span = self.span();
                say(format_args!("d {} {}", span.offset() / SECTOR, span.len() / SECTOR));
                disk.discard(span, Durability::Buffered).await
            }
            _ => {
                disk.flush().await?;
                say(format_args!("f"));
                Ok(())
            }
        }
    }

    /// Takes a snapshot while writes go on.
    async fn snapshot(&mut self, name: &str) -> Result<()> {
        let disk = Arc::clone(&self.disk);
        say(format_args!("s {name}"));
        let writes = async {
            for _ in 0..10 {
                self.write(Durability::Buffered).await?;
                tokio::task::yield_now().await;
            }
            Ok(())
        };
        let (made, written) = tokio::join!(disk.snapshot(name, &()), writes);
        made?;
        say(format_args!("S {name}"));
        written
    }
}

async fn run(directory: &Path, seed: u64) -> Result<()> {
    let store = store(directory, seed).await?;
    image(&store).await?;
    let cache = Arc::new(Cache::new(Config { capacity: 16 << 20, policy: PolicyKind::FMPQ, seed }));
    let disks = Disks::new(directory.join("disks"), store, cache);
    if disks.list().await?.is_empty() {
        disks.create(DISK, &"golden".parse()?, CreateOptions::default()).await?;
    }
    let started = Instant::now();
    let disk = disks.open(DISK).await?;
    say(format_args!("o {}", started.elapsed().as_micros()));
    let mut snapshots: VecDeque<String> =
        disk.snapshots().await?.into_iter().map(|snapshot| snapshot.name).collect();
    let mut load = Load { disk, random: Sequence::new(seed), number: seed << 32 };
    for round in 0u64.. {
        for _ in 0..load.random.below(120) {
            load.step().await?;
        }
        let name = format!("s{seed}-{round}");
        load.snapshot(&name).await?;
        snapshots.push_back(name);
        if snapshots.len() > 2
            && let Some(old) = snapshots.pop_front()
        {
            say(format_args!("r {old}"));
            load.disk.remove_snapshot(&old).await?;
        }
    }
    Ok(())
}

/// Says where a process of its own works, and with what seed: `SEED DIRECTORY`.
const WORK: &str = "CRASH_WRITER";

/// Starts this very program as a writer. It says [`BEGIN`] first.
pub(crate) fn spawn(directory: &Path, seed: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "writer::works_until_it_is_killed", "--ignored", "--nocapture"])
        .env(WORK, format!("{seed} {}", directory.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "the other tests run it in processes of its own"]
async fn works_until_it_is_killed() {
    let Ok(work) = std::env::var(WORK) else { return };
    let (seed, directory) = work.split_once(' ').unwrap();
    say(format_args!("{BEGIN}"));
    if let Err(error) = run(Path::new(directory), seed.parse().unwrap()).await {
        say(format_args!("error {error:?}"));
        std::process::exit(1);
    }
}
