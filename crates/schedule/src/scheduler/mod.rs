//! Disk schedulers. They have no clock and do no I/O: whoever drives one tells it what arrives and
//! what was done, and asks what comes next.
//!
//! A new scheduler is one file here and one line in [`ALL`].

mod bfq;
mod cats;
mod cfq;
mod clook;
mod cscan;
mod deadline;
mod fcfs;
mod hit_clook;
mod hit_satf;
mod look;
mod parameters;
mod satf;
mod scan;
mod sorted;
mod sstf;
mod table;

pub use parameters::Parameters;

use crate::model::{Model, disk::Travel};
use crate::{DiskRequest, Nanos, SegmentCache};
use block::{Error, Result};
use std::fmt::Debug;

/// What a scheduler may know when it decides.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// Now.
    pub now: Nanos,
    /// When the disk is expected to begin what is given to it now.
    pub start: Nanos,
    /// Where the head will be then.
    pub head: u64,
    /// What the cache on board is believed to hold then.
    pub shadow: &'a SegmentCache,
    /// What the disk is believed to be like.
    pub model: &'a dyn Model,
}

/// What the disk is to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decision {
    /// This request, which the scheduler no longer has.
    Go(DiskRequest, Travel),
    /// Nothing before this moment, unless something arrives.
    Wait(Nanos),
    /// Nothing until something arrives or is done.
    Idle,
}

/// Decides the order of requests.
pub trait Scheduler: Debug + Send {
    /// A request arrived.
    fn add(&mut self, request: DiskRequest, view: &View<'_>);

    /// What comes next. The driver asks again whenever something has arrived, was done, or the
    /// moment of a [`Wait`](Decision::Wait) has come.
    fn next(&mut self, view: &View<'_>) -> Decision;

    /// A request that was handed out is done.
    fn done(&mut self, request: &DiskRequest, view: &View<'_>) {
        let _ = (request, view);
    }

    /// How many requests wait in it.
    fn waiting(&self) -> usize;

    /// What it counted of its own rules: names and numbers.
    fn counters(&self) -> Vec<(&'static str, u64)> {
        Vec::new()
    }
}

/// A scheduler that can be asked for by name.
#[derive(Clone, Copy, Debug)]
pub struct SchedulerKind {
    /// Its name.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    make: fn(&mut Parameters) -> Result<Box<dyn Scheduler>>,
}

/// All schedulers.
pub const ALL: [SchedulerKind; 15] = [
    fcfs::KIND,
    sstf::KIND,
    scan::KIND,
    cscan::KIND,
    look::KIND,
    clook::KIND,
    deadline::KIND,
    cfq::KIND,
    bfq::KIND,
    table::KIND,
    cats::KIND,
    cats::PLAIN,
    hit_clook::KIND,
    satf::KIND,
    hit_satf::KIND,
];

/// Makes the scheduler that `text` asks for: a name, or a name with parameters as in
/// `cats:read-delay=500:hold=7`.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the name, a parameter or its value is not known.
pub fn make(text: &str) -> Result<Box<dyn Scheduler>> {
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let kind = ALL.iter().find(|kind| kind.name == name).ok_or_else(|| {
        let names: Vec<_> = ALL.iter().map(|kind| kind.name).collect();
        Error::invalid(format!("{name:?} is no scheduler; there are {}", names.join(", ")))
    })?;
    let mut parameters = Parameters::parse(name, rest)?;
    let scheduler = (kind.make)(&mut parameters)?;
    parameters.finish()?;
    Ok(scheduler)
}
