//! Like Linux' CFQ (completely fair queueing): every client has turns of the same time. No
//! priorities, no groups.

use super::fair::{Fair, Seeks, TurnLimits};
use super::{Parameters, Scheduler, SchedulerKind};
use block::Result;

pub(super) const KIND: SchedulerKind = SchedulerKind {
    name: "cfq",
    about: "like Linux' CFQ: clients in turns of 100 ms, waits 8 ms for the next request",
    make,
};

fn make(parameters: &mut Parameters) -> Result<Box<dyn Scheduler>> {
    let idle = parameters.time("idle", 8.0)?;
    let slice = parameters.time("slice", 100.0)?;
    let budget = u64::MAX;
    let seeky_idle = parameters.time("seeky-idle", 1e9)?;
    // CIC_SEEKY of Linux 2.6.30: the mean distance is more than 8 * 1024 sectors.
    let seeky = |seeks: &Seeks| seeks.mean > 8192.0;
    Ok(Box::new(Fair::new(TurnLimits { idle, slice, budget, seeky_idle, seeky })))
}
