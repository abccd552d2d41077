//! The load of a simulated disk, as it was asked for.

use crate::commands::trace::Reading;
use block::{ByteSize, Error, Result};
use clap::ValueEnum;
use schedule::load as loads;
use schedule::load::buffered::BufferedLoad;
use schedule::load::layout::{self, Layout};
use schedule::load::random::{AccessPattern, Accesses, Closed, OpenLoad};
use schedule::load::replay::{Replay, ReplaySelection};
use schedule::load::surge::{Habits, Surge};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Sectors of the disk for each file of the seed's layout: a million on the seed's disk.
const SECTORS_PER_FILE: u64 = 143;

/// Layouts that are kept for the next scheduler: 25 MB each with a million files.
const KEPT_LAYOUTS: usize = 16;

/// What asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LoadKind {
    /// Processes that read files with O_DIRECT (the seed's, after SURGE)
    Surge,
    /// The same through a page cache with read-ahead
    Buffered,
    /// Clients that access any place
    Random,
    /// Clients that each go on behind their last access
    Sequential,
    /// Accesses to any place at a rate
    Open,
}

/// The load.
#[derive(Debug, Clone, clap::Args)]
pub(super) struct DiskLoadArgs {
    /// A trace to replay at its own times, instead of a load that is made
    #[arg(value_name = "TRACE", conflicts_with = "load")]
    trace: Option<PathBuf>,
    /// What asks
    #[arg(long, value_enum, default_value_t = LoadKind::Surge)]
    load: LoadKind,
    /// Processes or clients
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Files of surge and buffered [default: one for each 73 KB of the disk, at most a million]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(layout::MOST)))]
    files: Option<u32>,
    /// Seed of where the files of surge and buffered lie, for all runs [default: each run's own, so that
    /// intervals cover it]
    #[arg(long, value_name = "N")]
    layout: Option<u64>,
    /// Memory of the page cache of buffered
    #[arg(long, value_name = "SIZE", default_value = "65M")]
    memory: ByteSize,
    /// Mean time to think of random and sequential clients, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 1.0)]
    think: f64,
    /// Bytes of an access of random, sequential and open
    #[arg(long, value_name = "SIZE", default_value = "4K")]
    size: ByteSize,
    /// The part of accesses of random, sequential and open that are reads, 0 to 1
    #[arg(long, value_name = "PART", default_value_t = 1.0)]
    reads: f64,
    /// Accesses per second of open, or of a trace without times
    #[arg(long, value_name = "N")]
    rate: Option<f64>,
    /// Only the requests of the trace to this disk
    #[arg(long, value_name = "NAME", requires = "trace")]
    disk: Option<String>,
    /// How many times faster than recorded the trace arrives
    #[arg(long, value_name = "TIMES", default_value_t = 1.0, requires = "trace")]
    speed: f64,
    #[command(flatten)]
    reading: Reading,
}

/// What all runs on one disk share.
pub(super) enum SharedWorkload {
    Files(FileLayouts),
    Sectors(u64),
}

/// Where the files of one disk lie, by the seed that this is drawn from.
pub(super) struct FileLayouts {
    sectors: u64,
    files: u32,
    drawn: RefCell<BTreeMap<u64, Arc<Layout>>>,
}

impl FileLayouts {
    /// The layout of a seed. The first few are kept, as every scheduler is run with the same seeds.
    fn of(&self, seed: u64) -> Result<Arc<Layout>> {
        let mut drawn = self.drawn.borrow_mut();
        if let Some(layout) = drawn.get(&seed) {
            return Ok(Arc::clone(layout));
        }
        let layout = Arc::new(Layout::new(self.sectors, self.files, seed)?);
        if drawn.len() < KEPT_LAYOUTS {
            drawn.insert(seed, Arc::clone(&layout));
        }
        Ok(layout)
    }
}

/// A number above 0 that is one.
fn positive(name: &str, value: f64) -> Result<f64> {
    match value.is_finite() && (1e-6..=1e9).contains(&value) {
        true => Ok(value),
        false => Err(Error::invalid(format!("{name} is {value}; give a number above 0"))),
    }
}

/// The error with the trace's name, which what reads the trace has given it already.
fn named(path: &Path, error: Error) -> Error {
    let name = path.display().to_string();
    if error.message().starts_with(&name) { error } else { error.context(name) }
}

impl DiskLoadArgs {
    /// The load in a line.
    pub(super) fn describe(&self) -> String {
        if let Some(trace) = &self.trace {
            return format!("{}, {} times as fast as recorded", trace.display(), self.speed);
        }
        let clients = self.clients;
        let percent = self.reads * 100.0;
        match self.load {
            LoadKind::Surge => {
                format!("surge: {clients} processes read files with O_DIRECT{}", self.places())
            }
            LoadKind::Buffered => format!(
                "buffered: {clients} processes read files through {} of page cache{}",
                self.memory,
                self.places()
            ),
            LoadKind::Random | LoadKind::Sequential => format!(
                "{} clients, {} accesses of {}, {percent} % reads, {} ms to think",
                clients,
                if self.load == LoadKind::Random { "random" } else { "sequential" },
                self.size,
                self.think
            ),
            LoadKind::Open => format!(
                "open: {} accesses of {} per second, {percent} % reads",
                self.rate.unwrap_or_default(),
                self.size
            ),
        }
    }

    /// Which files are read, for the line.
    fn places(&self) -> String {
        match self.layout {
            Some(seed) => format!(", all of layout {seed}"),
            None => ", of another layout in each run".to_owned(),
        }
    }

    /// What all runs on a disk of so many sectors share.
    pub(super) fn prepare(&self, sectors: u64) -> Result<SharedWorkload> {
        let files =
            matches!(self.load, LoadKind::Surge | LoadKind::Buffered) && self.trace.is_none();
        if !files {
            return Ok(SharedWorkload::Sectors(sectors));
        }
        let fit = (sectors / SECTORS_PER_FILE).clamp(1, u64::from(layout::MOST)) as u32;
        Ok(SharedWorkload::Files(FileLayouts {
            sectors,
            files: self.files.unwrap_or(fit),
            drawn: RefCell::default(),
        }))
    }

    /// The load of one run.
    pub(super) fn start(
        &self,
        prepared: &SharedWorkload,
        seed: u64,
    ) -> Result<Box<dyn loads::Load>> {
        if self.trace.is_some() {
            return self.replay();
        }
        let sectors = match prepared {
            SharedWorkload::Files(layouts) => {
                return Ok(self.files_read(layouts.of(self.layout.unwrap_or(seed))?, seed));
            }
            SharedWorkload::Sectors(sectors) => *sectors,
        };
        let accesses = self.accesses(sectors)?;
        if self.load == LoadKind::Open {
            let rate = self
                .rate
                .ok_or_else(|| Error::invalid("--load open needs --rate: accesses per second"))?;
            return Ok(Box::new(OpenLoad::new(accesses, positive("--rate", rate)?, seed)));
        }
        if !(0.0..=1e9).contains(&self.think) {
            return Err(Error::invalid(format!("--think is {}; give 0 or more", self.think)));
        }
        Ok(Box::new(Closed::new(accesses, self.clients, self.think, seed)))
    }

    fn files_read(&self, layout: Arc<Layout>, seed: u64) -> Box<dyn loads::Load> {
        let habits = Habits { processes: self.clients, ..Habits::default() };
        match self.load {
            LoadKind::Buffered => {
                let pages = (self.memory.0 / 4096).min(1 << 28) as usize;
                Box::new(BufferedLoad::new(layout, habits, pages, seed))
            }
            _ => Box::new(Surge::new(layout, habits, seed)),
        }
    }

    fn accesses(&self, disk: u64) -> Result<Accesses> {
        let sectors = self.size.0 / schedule::SECTOR;
        if !self.size.0.is_multiple_of(schedule::SECTOR) || !(1..=1 << 16).contains(&sectors) {
            return Err(Error::invalid(format!(
                "accesses of {}; give a multiple of 512 bytes up to 32M",
                self.size
            )));
        }
        if !(0.0..=1.0).contains(&self.reads) {
            return Err(Error::invalid(format!("--reads is {}; give 0 to 1", self.reads)));
        }
        let places = match self.load {
            LoadKind::Sequential => AccessPattern::Sequential,
            _ => AccessPattern::Uniform,
        };
        Ok(Accesses { places, sectors: sectors as u32, reads: self.reads, disk })
    }

    fn replay(&self) -> Result<Box<dyn loads::Load>> {
        let path = self.trace.clone().unwrap_or_default();
        if path.as_os_str() == "-" {
            return Err(Error::invalid("a trace is read once for each run; give a file"));
        }
        let speed = positive("--speed", self.speed)?;
        let rate = self.rate.map(|rate| positive("--rate", rate)).transpose()?;
        let disk = self.disk.as_deref().map(|name| self.disk_number(name)).transpose()?;
        let source = self.reading.open(&path)?;
        let replay = Replay::new(source, ReplaySelection { disk, speed, rate })
            .map_err(|e| named(&path, e))?;
        Ok(Box::new(replay))
    }

    /// The number of a disk of the trace: some formats name it only far inside.
    fn disk_number(&self, name: &str) -> Result<u32> {
        let path = self.trace.clone().unwrap_or_default();
        let mut source = self.reading.open(&path)?;
        let mut batch = Vec::new();
        loop {
            let disks = &source.header().disks;
            if let Some(number) = disks.iter().position(|disk| disk.name == name) {
                return Ok(number as u32);
            }
            if !source.read(&mut batch)? {
                let names: Vec<_> =
                    source.header().disks.iter().take(8).map(|d| d.name.clone()).collect();
                return Err(Error::not_found(format!(
                    "{}: no disk {name:?}; there are {}",
                    path.display(),
                    names.join(", ")
                )));
            }
        }
    }
}
