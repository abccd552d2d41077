//! A process that goes on while the device below it does not answer: the root file system, and with it
//! this program's own code and the swap space, may be on the device that it keeps.

use block::{Error, Result};
use rustix::mm::{MlockAllFlags, mlockall};

/// Spared by the kernel when memory runs out.
const NEVER_KILLED: &str = "-1000";

/// Keeps all memory of this process resident, its code too, and the process alive when memory runs
/// out.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) without the right to lock so much memory.
pub fn stay() -> Result<()> {
    // What is mapped later is locked as it is touched: a map of a sparse file must not be filled.
    let later = MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    mlockall(MlockAllFlags::CURRENT)
        .and_then(|()| mlockall(later))
        .map_err(|e| Error::io("keeping this process in memory", e.into()))?;
    std::fs::write("/proc/self/oom_score_adj", NEVER_KILLED)
        .map_err(|e| Error::io("sparing this process when memory runs out", e))
}
