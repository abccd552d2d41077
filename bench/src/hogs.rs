//! Programs that compute all the time beside the servers: what else a busy machine does. Each is a process
//! of its own with the priority of everybody, so that the scheduler weighs it like a server.

use anyhow::{Context, Result};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The argument that makes this program one of them.
pub(crate) const COMMAND: &str = "hog";

/// Running hogs; dropping this ends them.
#[derive(Debug)]
pub(crate) struct Hogs(Vec<Child>);

impl Hogs {
    /// Starts `count` of them.
    ///
    /// # Errors
    /// Any error from starting a process; those that were started have ended then.
    pub(crate) fn start(count: usize) -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut hogs = Self(Vec::with_capacity(count));
        for _ in 0..count {
            let mut command = Command::new(&program);
            command.arg(COMMAND).stdin(Stdio::piped()).stdout(Stdio::null());
            hogs.0.push(command.spawn().context("cannot start a competing process")?);
        }
        Ok(hogs)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        for hog in &mut self.0 {
            // One that has ended needs neither.
            let _ = hog.kill();
            let _ = hog.wait();
        }
    }
}

/// Computes until whoever started this ends: then its end of the standard input is closed.
pub(crate) fn compute() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let stdin = std::io::stdin();
    let mut value = 1u64;
    loop {
        let until = Instant::now() + Duration::from_millis(50);
        while Instant::now() < until {
            for _ in 0..1000 {
                value =
                    std::hint::black_box(value.wrapping_mul(6364136223846793005).rotate_left(17));
            }
        }
        let mut polled = [PollFd::new(&stdin, PollFlags::empty())];
        let seen = poll(&mut polled, Some(&Timespec::default()));
        if seen.is_err() || polled[0].revents().contains(PollFlags::HUP) {
            return;
        }
    }
}
