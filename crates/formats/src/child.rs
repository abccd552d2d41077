//! A program of others that is waited for, and does not outlive this process.

#![allow(unsafe_code)] // one call of `pre_exec`, see `arm`

use block::{Result, offload};
use rustix::process::Signal;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a program says of its errors is kept up to here, in bytes.
const MOST_KEPT: u64 = 64 << 10;

/// How a program ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    /// The beginning of what it wrote to its standard error.
    pub(crate) errors: Vec<u8>,
}

/// Runs a program to its end. It is killed when this is dropped before that, and when this process ends.
///
/// # Errors
/// The outer one is that of the runtime, the inner one that of starting it.
pub(crate) async fn run(mut command: Command) -> Result<io::Result<Ended>> {
    command.stderr(Stdio::piped());
    arm(&mut command);
    let stage = Stage::default();
    let _killed = KilledOnDrop(stage.clone());
    // The thread that starts it waits for it: the kernel sends the signal of `arm` when that ends.
    offload(move || Ok(stage.run(&mut command))).await
}

/// How far a program is.
#[derive(Default, Clone)]
struct Stage(Arc<Mutex<StageOfChild>>);

#[derive(Default)]
enum StageOfChild {
    #[default]
    NotStarted,
    Running(Child),
    Over,
}

impl Stage {
    fn lock(&self) -> MutexGuard<'_, StageOfChild> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, command: &mut Command) -> io::Result<Ended> {
        let pipe = {
            let mut stage = self.lock();
            if matches!(*stage, StageOfChild::Over) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let mut child = command.spawn()?;
            let pipe = child.stderr.take();
            *stage = StageOfChild::Running(child);
            pipe
        };
        let mut errors = Vec::new();
        if let Some(mut pipe) = pipe {
            (&mut pipe).take(MOST_KEPT).read_to_end(&mut errors)?;
            io::copy(&mut pipe, &mut io::sink())?;
        }
        // It has closed its standard error, and ends.
        let stage = std::mem::replace(&mut *self.lock(), StageOfChild::Over);
        let StageOfChild::Running(mut child) = stage else {
            return Err(io::ErrorKind::Interrupted.into());
        };
        Ok(Ended { status: child.wait()?, errors })
    }
}

struct KilledOnDrop(Stage);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let mut stage = self.0.lock();
        match &mut *stage {
            // The thread that waits for it reaps it.
            StageOfChild::Running(child) => {
                let _ = child.kill();
            }
            StageOfChild::NotStarted => *stage = StageOfChild::Over,
            StageOfChild::Over => {}
        }
    }
}

/// Has the kernel kill the child when the thread that starts it ends.
fn arm(command: &mut Command) {
    let parent = rustix::process::getpid();
    let die = move || -> io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have ended before that.
        match rustix::process::getppid() == Some(parent) {
            true => Ok(()),
            false => Err(io::Error::from_raw_os_error(rustix::io::Errno::SRCH.raw_os_error())),
        }
    };
    // SAFETY: the closure runs in the child between fork and exec, where only what is async-signal-safe
    // may be called. It is two system calls (`prctl`, `getppid`), and neither allocates nor takes a lock.
    unsafe { command.pre_exec(die) };
}
