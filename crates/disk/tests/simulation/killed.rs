//! One step of a disk's life, whose process is killed at each of its calls. The next one goes on with what
//! it finds: what it answers as durable is there after a power cut, although nobody knows whether what it
//! found was.

use crate::guest;
use crate::lies::{self, Manners};
use crate::life::{HOMES, Wrong, say};
use crate::model::{self, SECTOR};
use block::fs::FileSystem;
use block::fs::simulated::{Machine, Nature};
use block::{Device, Durability, Memory, Result, Span};
use cache::{Cache, Config, PolicyKind};
use disk::{CreateOptions, Disk, Disks, Mode};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::testing::{self, NOW};
use store::{RefBody, RefKind, Store, import};

const IMAGE: &str = "image:1";
const DISK: &str = "disk";
const KEPT: &str = "kept";
/// Sectors of the disk, in whole blocks; the last block is never written.
const SECTORS: usize = 8 * 8;
/// Runs that are killed after the same change of a name: what a power cut leaves differs.
const RUNS: u64 = 16;

/// When the process is killed.
#[derive(Debug, Clone, Copy)]
enum Kill {
    /// After so many calls.
    Calls(u64),
    /// Once it has changed so many names, before it can sync them.
    Names(u64),
}

/// What is being done when the process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// A new layer, a new record, and later another one without the old layer.
    Snapshot,
    /// A new layer, and a record that names it alone.
    Reset,
    /// The directory of a disk gets its name once it is complete.
    Create,
    /// The same, on the server that takes it.
    Take,
    /// The directory of a disk gets another name.
    Keep,
}

impl Step {
    pub(crate) const ALL: [Self; 5] =
        [Self::Snapshot, Self::Reset, Self::Create, Self::Take, Self::Keep];

    /// The server and the name that the disk has after it.
    fn leads_to(self) -> (usize, &'static str) {
        match self {
            Self::Snapshot | Self::Reset | Self::Create => (0, DISK),
            Self::Take => (1, DISK),
            Self::Keep => (0, KEPT),
        }
    }

    async fn take(self, servers: &[Disks]) -> Result<()> {
        match self {
            Self::Snapshot => servers[0].open(DISK).await?.snapshot("one", &()).await.map(drop),
            Self::Reset => servers[0].open(DISK).await?.reset().await,
            Self::Create => create(servers).await,
            Self::Take => servers[1].take(DISK, true).await.map(drop),
            Self::Keep => servers[0].keep(DISK, KEPT).await.map(drop),
        }
    }

    /// Opens the disk that it leads to, after another try if need be.
    async fn finish(self, servers: &[Disks]) -> Result<Arc<Disk>> {
        let (server, name) = self.leads_to();
        if let Ok(disk) = servers[server].open(name).await {
            return Ok(disk);
        }
        self.take(servers).await?;
        servers[server].open(name).await
    }
}

async fn create(servers: &[Disks]) -> Result<()> {
    let options = CreateOptions { size: None, mode: Mode::Persistent };
    servers[0].create(DISK, &IMAGE.parse()?, options).await.map(drop)
}

/// The servers in a process that starts now.
async fn servers(fs: &Arc<dyn FileSystem>, process: u64) -> Result<Vec<Disks>> {
    let mut servers = Vec::new();
    for (home, number) in HOMES.into_iter().zip(0..) {
        let world = testing::world(process * 10 + number);
        let store = Store::open(objects::local(lies::at(fs, "/store"))?, world).await?;
        let config = Config { capacity: 1 << 20, policy: PolicyKind::Lru, seed: 1 };
        let disks = Disks::new(lies::at(fs, home), store, Arc::new(Cache::new(config)));
        disks.sweep().await;
        servers.push(disks);
    }
    Ok(servers)
}

async fn make_store(machine: &Machine) -> Result<()> {
    let path = lies::at(&lies::start(machine, Manners::GOOD), "/store");
    let store =
        Store::create(objects::create_local(path)?, testing::settings(), testing::world(1)).await?;
    let content: Vec<u64> = (0..SECTORS as u64).map(|sector| sector / 8).collect();
    let device = Memory::from(model::to_bytes(&content));
    let session = testing::session(&store).await;
    let done = import::from_device(&session, &device, &()).await?;
    let (manifest, size) = (Some(done.manifest), done.size);
    let body = RefBody { manifest, size, created: NOW, labels: BTreeMap::new() };
    let made = session.publish(RefKind::Image, IMAGE, body).await;
    session.close(made).await.map(drop)
}

/// Writes a tag over some blocks; they are flushed, or not.
async fn write(disk: &Disk, blocks: std::ops::Range<usize>, tag: u64, flush: bool) -> Result<()> {
    let at = |block: usize| (block * model::BLOCK * SECTOR) as u64;
    let bytes = model::to_bytes(&vec![tag; blocks.len() * model::BLOCK]);
    let span = Span::between(at(blocks.start), at(blocks.end));
    disk.write(span, &bytes, Durability::Buffered).await?;
    if flush { disk.flush().await } else { Ok(()) }
}

/// The disk as it is before the step.
async fn prepare(step: Step, servers: &[Disks]) -> Result<()> {
    if step == Step::Create {
        return Ok(());
    }
    create(servers).await?;
    let disk = servers[0].open(DISK).await?;
    write(&disk, 0..2, 1001, true).await?;
    write(&disk, 1..3, 1002, false).await?;
    if step == Step::Keep {
        drop(disk);
        servers[1].take(DISK, true).await?;
    }
    Ok(())
}

/// Takes a step that is killed after some calls; says whether it was, or what went wrong.
async fn run(
    step: Step,
    nature: Nature,
    kill: Kill,
    seed: u64,
    manners: Manners,
) -> Result<bool, Wrong> {
    let machine = Machine::new(nature, seed);
    machine.set_now(NOW);
    make_store(&machine).await.map_err(say)?;
    let mut process = 3;
    let mut start = async || {
        process += 1;
        servers(&lies::start(&machine, manners), process).await.map_err(say)
    };
    let before = start().await?;
    prepare(step, &before).await.map_err(say)?;
    drop(before);
    let dying = match kill {
        Kill::Calls(_) => lies::start(&machine, manners),
        Kill::Names(names) => lies::start_dying(&machine, manners, names),
    };
    let killed = servers(&dying, 2).await.map_err(say)?;
    if let Kill::Calls(calls) = kill {
        machine.kill_after(calls);
    }
    let outcome = step.take(&killed).await;
    let is_dead = machine.is_dead();
    if let Err(error) = outcome
        && !is_dead
    {
        return Err(format!("without a fault: {error}"));
    }
    drop(killed);

    let next = start().await?;
    let disk = step.finish(&next).await.map_err(|e| format!("going on: {e}"))?;
    write(&disk, 2..5, 1003, true).await.map_err(say)?;
    let flushed = guest::content(&disk).await.map_err(say)?;
    machine.lose_power();
    drop((disk, next));

    let last = start().await?;
    let (server, name) = step.leads_to();
    let disk = last[server].open(name).await.map_err(|e| format!("after the power cut: {e}"))?;
    match guest::content(&disk).await.map_err(say)? == flushed {
        true => Ok(is_dead),
        false => Err("what was flushed is lost".into()),
    }
}

/// Has a step killed after each of its calls, and again and again after each change of a name; gives the
/// runs that end badly.
pub(crate) fn everywhere(step: Step, nature: Nature, manners: Manners) -> Vec<String> {
    let mut bad = Vec::new();
    // Whether any was killed.
    let mut runs = |kill, seeds: std::ops::Range<u64>| {
        let mut any = false;
        for seed in seeds {
            match crate::simulated(run(step, nature, kill, seed, manners)) {
                Ok(is_dead) => any |= is_dead,
                Err(wrong) => {
                    any = true;
                    bad.push(format!("{step:?}, {nature:?}, {kill:?}, seed {seed}: {wrong}"));
                }
            }
        }
        any
    };
    // More than any step has: one that fails whatever happens ends, too.
    let (calls, names) = (0..1000, 1..40);
    let calls = calls.take_while(|calls| runs(Kill::Calls(*calls), *calls..calls + 1)).count();
    let names = names.take_while(|names| runs(Kill::Names(*names), 0..RUNS)).count();
    let count = bad.len();
    println!("{step:?}, {nature:?}, {manners:?}: {calls} calls, {names} names, {count} bad");
    bad
}
