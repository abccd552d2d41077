//! Like Linux' BFQ (budget fair queueing): every client has turns of the same number of sectors, of at
//! most 125 ms. No priorities, no groups.

use super::fair::{Fair, Seeks, TurnLimits};
use super::{Parameters, Scheduler, SchedulerKind};
use block::Result;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "bfq",
    about: "like Linux' BFQ: clients in turns of 1,024 sectors, waits 8 ms for the next request",
    make,
};

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    let idle = parameters.time("idle", 8.0)?;
    let slice = parameters.time("slice", 125.0)?;
    let budget = parameters.number("budget", 1024.0, 1.0, 1e9)? as u64;
    let seeky_idle = parameters.time("seeky-idle", 1e9)?;
    // BFQQ_SEEKY of Linux 6.1: more than 19 of the last 32 requests were far.
    let seeky = |seeks: &Seeks| seeks.far.count_ones() > 19;
    Ok(Box::new(Fair::new(TurnLimits { idle, slice, budget, seeky_idle, seeky })))
}
