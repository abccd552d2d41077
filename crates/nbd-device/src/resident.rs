//! A process that goes on while the device below it does not answer: the root file system, and with it
//! this program's own code and the swap space, may be on the device that it keeps.

use block::{Error, Result};
use rustix::mm::{MlockAllFlags, mlockall};

/// Spared by the kernel when memory runs out.
const NEVER_KILLED: &str = "-1000";

/// Has the threads that this one will start, and itself, ask for memory without waiting for file systems and devices to
/// write: one of them is this process's own device. To be called before there are others.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) without the right to it.
pub fn wait_for_no_device() -> Result<()> {
    match rustix::process::configure_io_flusher_behavior(true) {
        // Linux before 5.6 does not know it.
        Ok(()) | Err(rustix::io::Errno::INVAL) => Ok(()),
        Err(e) => Err(Error::io("asking for memory beside the device", e.into())),
    }
}

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
