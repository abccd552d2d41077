//! A life: processes that begin and end, and what goes wrong with them.

use crate::lies::{self, Manners};
use crate::model::{Content, Disk as Known, Model, There};
use block::conformance::Sequence;
use block::fs::FileSystem;
use block::fs::simulated::{FaultRates, Machine, Nature};
use block::{Error, Result};
use cache::{Cache, Config, PolicyKind};
use disk::{Attachment, Disk, Disks};
use std::collections::BTreeMap;
use std::sync::Arc;
use store::testing::{self, FixedClock, FixedEntropy, NOW};
use store::{Store, World};

/// Processes that a life has.
const PROCESSES: u64 = 7;
/// Steps that one takes at most.
const STEPS: u64 = 50;
pub(crate) const HOUR: u64 = 3600;
/// The homes of the servers of the store.
pub(crate) const HOMES: [&str; 2] = ["/home/disks", "/other/disks"];

/// One run.
pub(crate) struct Life {
    pub(crate) machine: Machine,
    dice: Sequence,
    pub(crate) model: Model,
    /// What disks held that were open when their process was killed: all of it was answered. Empty once the
    /// power went.
    pub(crate) answered: BTreeMap<At, Vec<u64>>,
    clock: Arc<FixedClock>,
    now: u64,
    /// The last number of anything.
    tag: u64,
    /// Calls may fail in this process.
    pub(crate) faulty: bool,
    /// There is little room, or none.
    short: bool,
    /// What processes find.
    pub(crate) manners: Manners,
    told: bool,
}

/// An open disk.
pub(crate) struct Open {
    pub(crate) disk: Arc<Disk>,
    /// What it holds now.
    pub(crate) now: Vec<u64>,
    /// The client of an ephemeral one.
    pub(crate) guest: Option<Attachment>,
}

/// What a server has.
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) disks: Disks,
    pub(crate) open: BTreeMap<String, Open>,
}

/// The servers of a store.
pub(crate) struct Home(pub(crate) Vec<Server>);

impl Home {
    pub(crate) fn store(&self) -> &Store {
        &self.0[0].store
    }

    pub(crate) fn is_open(&self, name: &str) -> bool {
        self.0.iter().any(|server| server.open.contains_key(name))
    }
}

/// A disk that is open, by server and name.
pub(crate) type At = (usize, String);
pub(crate) type Wrong = String;

impl Life {
    pub(crate) fn new(seed: u64, manners: Manners) -> Self {
        let mut dice = Sequence::new(seed);
        let nature = Nature::ALL[dice.below(3) as usize];
        let exchanges = manners.exchanges || nature == Nature::None;
        let manners = Manners { exchanges, ..manners };
        let told = std::env::var_os("SIMULATION_TOLD").is_some();
        let machine = Machine::new(nature, dice.number());
        if told {
            println!("{nature:?}");
        }
        let clock = Arc::new(FixedClock::new(NOW));
        let (model, now, tag, faulty, short) = (Model::default(), NOW, 0, false, false);
        let answered = BTreeMap::new();
        Self { machine, dice, model, answered, clock, now, tag, faulty, short, manners, told }
    }

    pub(crate) fn tell(&self, what: impl FnOnce() -> String) {
        if self.told {
            println!("{:>6} {}", self.machine.calls(), what());
        }
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.dice.below(bound)
    }

    pub(crate) fn fresh(&mut self) -> u64 {
        self.tag += 1;
        self.tag
    }

    /// One of some things; none when there are none.
    pub(crate) fn any_of<T>(&mut self, all: Vec<T>) -> Option<T> {
        let at = self.below(all.len().max(1) as u64) as usize;
        all.into_iter().nth(at)
    }

    fn world(&mut self) -> World {
        let entropy = Arc::new(FixedEntropy::new(self.dice.number()));
        World { clock: Arc::clone(&self.clock) as _, entropy }
    }

    pub(crate) fn known(&mut self, name: &str) -> &mut Known {
        self.model.disks.get_mut(name).unwrap()
    }

    /// The content of the image that a disk is of.
    pub(crate) fn image_of(&self, disk: &Disk) -> Content {
        Arc::clone(&self.model.images[&disk.info().image].1)
    }

    /// Any image that is sure to be there.
    pub(crate) fn any_image(&mut self) -> Option<(String, Content)> {
        let sure = self.model.images.iter().filter(|(_, (there, _))| *there == There::Yes);
        let sure = sure.map(|(name, (_, content))| (name.clone(), Arc::clone(content))).collect();
        self.any_of(sure)
    }

    /// Any disk that is open.
    pub(crate) fn any_open(&mut self, home: &Home) -> Option<(At, Arc<Disk>)> {
        let all = home.0.iter().enumerate().flat_map(|(server, own)| {
            let open = own.open.iter();
            open.map(move |(name, open)| ((server, name.clone()), Arc::clone(&open.disk)))
        });
        self.any_of(all.collect())
    }

    /// Lives; gives the course that it took, or what went wrong.
    pub(crate) async fn run(mut self) -> Result<u64, Wrong> {
        self.machine.set_now(self.now);
        let store = lies::at(&lies::start(&self.machine, Manners::GOOD), "/store");
        let made = objects::create_local(store);
        let world = self.world();
        let made = Store::create(made.map_err(say)?, testing::settings(), world).await;
        made.map_err(say)?;
        for process in 0..PROCESSES {
            self.process(process == 0).await?;
            self.now += self.dice.below(3) * HOUR;
            self.clock.set(self.now);
            self.machine.set_now(self.now);
            if self.below(2) == 0 || self.machine.has_ended() {
                self.tell(|| "the power goes".into());
                self.lose_power();
            }
            if self.below(3) == 0 {
                self.check().await?;
            }
        }
        self.lose_power();
        self.check().await?;
        Ok(self.machine.course())
    }

    fn lose_power(&mut self) {
        self.machine.lose_power();
        self.answered.clear();
    }

    /// A process that does this and that, until it is closed or killed.
    async fn process(&mut self, first: bool) -> Result<(), Wrong> {
        let fs = lies::start(&self.machine, self.manners);
        let odds = |dice: &mut Sequence, most: u64| match dice.below(4) {
            0 => most,
            _ => 0,
        };
        let faults = match first {
            true => FaultRates::default(),
            false => FaultRates {
                no_space: odds(&mut self.dice, 20),
                sync_file: odds(&mut self.dice, 15),
                sync_directory: odds(&mut self.dice, 15),
            },
        };
        self.machine.set_faults(faults);
        self.faulty = faults != FaultRates::default();
        if !first && self.below(2) == 0 {
            let calls = self.below(800);
            self.machine.kill_after(calls);
            self.faulty = true;
        }
        self.tell(|| format!("a process starts, {faults:?}"));
        let lived = self.live(&fs).await;
        self.machine.kill();
        self.machine.set_faults(FaultRates::default());
        self.machine.set_room(u64::MAX);
        self.short = false;
        lived
    }

    pub(crate) async fn home(&mut self, fs: &Arc<dyn FileSystem>) -> Result<Home> {
        let mut home = Home(Vec::new());
        for own in HOMES {
            let world = self.world();
            let store = Store::open(objects::local(lies::at(fs, "/store"))?, world).await?;
            let config = Config { capacity: 1 << 20, policy: PolicyKind::Lru, seed: 1 };
            let cache = Arc::new(Cache::new(config));
            let disks = Disks::new(lies::at(fs, own), store.clone(), cache);
            disks.sweep().await;
            home.0.push(Server { store, disks, open: BTreeMap::new() });
        }
        Ok(home)
    }

    async fn live(&mut self, fs: &Arc<dyn FileSystem>) -> Result<(), Wrong> {
        let mut home = match self.home(fs).await {
            Ok(home) => home,
            Err(e) => return self.may_fail("opening the store", &e),
        };
        for _ in 0..self.below(STEPS) + 4 {
            if self.machine.is_dead() {
                self.tell(|| "killed".into());
                return Ok(());
            }
            self.change_room();
            self.step(&mut home).await?;
            self.note_answered(&home);
        }
        if self.below(2) == 0 {
            while let Some((at, _)) = self.any_open(&home) {
                self.close(&mut home, &at).await?;
            }
            self.note_answered(&home);
        }
        Ok(())
    }

    /// What the process would leave, were it killed now.
    fn note_answered(&mut self, home: &Home) {
        let open = home.0.iter().enumerate().flat_map(|(server, own)| {
            let sound = own.open.iter().filter(|(_, open)| !open.disk.has_failed());
            sound.map(move |(name, open)| ((server, name.clone()), open.now.clone()))
        });
        self.answered = open.collect();
    }

    /// Room ends in the middle of what comes, and comes back.
    fn change_room(&mut self) {
        let odds = if self.short { 6 } else { 60 };
        if self.below(odds) > 0 {
            return;
        }
        self.short = !self.short;
        if self.short {
            let left = self.below(60) * block::BLOCK;
            self.tell(|| format!("{left} bytes of room are left"));
            self.machine.set_room(self.machine.used() + left);
        } else {
            self.tell(|| "there is room again".into());
            self.machine.set_room(u64::MAX);
        }
    }

    /// Whether what fails may.
    pub(crate) fn is_troubled(&self) -> bool {
        self.faulty || self.short
    }

    /// Refuses an error that nothing explains.
    pub(crate) fn may_fail(&self, what: &str, error: &Error) -> Result<(), Wrong> {
        self.tell(|| format!("{what}: {error}"));
        match self.is_troubled() {
            true => Ok(()),
            false => Err(format!("{what}, without a fault: {error}")),
        }
    }

    async fn step(&mut self, home: &mut Home) -> Result<(), Wrong> {
        match self.below(118) {
            0..8 => self.import(home).await,
            8..14 => self.create(home).await,
            14..26 => self.open_any(home).await,
            26..52 => self.write(home).await,
            52..66 => self.flush(home).await,
            66..70 => self.clear(home).await,
            70..76 => self.snapshot(home).await,
            76..79 => self.rollback(home).await,
            79..82 => self.commit(home).await,
            82..84 => self.reset(home).await,
            84..87 => self.grow(home).await,
            87..90 => self.rebase(home).await,
            90..92 => self.leave(home).await,
            92..94 => self.wait_for_guests(home).await,
            94..97 => self.release(home).await,
            97..99 => self.take(home).await,
            99..101 => self.keep(home).await,
            101..103 => self.remove_disk(home).await,
            103..105 => self.remove_image(home).await,
            105..108 => self.collect(home).await,
            108 => self.repair(home).await,
            109..115 => self.write_back(home).await,
            _ => self.close_any(home).await,
        }
    }
}

pub(crate) fn say(error: Error) -> Wrong {
    error.to_string()
}
