//! Which cores a server runs on and which its clients: on one machine a client's thread that waits for
//! a core would pass for a server that is slow, and the clients' own work is not the server's.

use anyhow::Result;
use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_setaffinity};
use std::process::{Command, Stdio};

/// The machine's cores, in two parts.
pub(crate) struct Cores {
    all: CpuSet,
    server: CpuSet,
    clients: CpuSet,
}

impl Cores {
    /// Half of the cores that this process may use for each; `None` when there is only one.
    pub(crate) fn split() -> Result<Option<Self>> {
        let all = sched_getaffinity(None)?;
        let usable: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect();
        let (server, clients) = usable.split_at(usable.len() / 2);
        if server.is_empty() {
            return Ok(None);
        }
        let set = |cores: &[usize]| {
            let mut set = CpuSet::new();
            cores.iter().for_each(|&core| set.set(core));
            set
        };
        Ok(Some(Self { all, server: set(server), clients: set(clients) }))
    }

    /// Makes what `start` starts run on the server's cores, and this thread and those that it starts
    /// later on the clients', until this is dropped.
    pub(crate) fn serve<T>(&self, start: impl FnOnce() -> Result<T>) -> Result<T> {
        sched_setaffinity(None, &self.server)?;
        let started = start();
        sched_setaffinity(None, &self.clients)?;
        started
    }
}

impl Drop for Cores {
    fn drop(&mut self) {
        // It was so before.
        let _ = sched_setaffinity(None, &self.all);
    }
}

/// Lets this thread run as soon as it has something to do, as a client on a machine of its own does,
/// or no longer; whether that was allowed.
pub(crate) fn run_at_once(at_once: bool) -> bool {
    let thread = gettid().as_raw_nonzero().to_string();
    let class: &[&str] =
        if at_once { &["--fifo", "--pid", "1"] } else { &["--other", "--pid", "0"] };
    let mut command = Command::new("chrt");
    command
        .args(class)
        .arg(thread)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}
