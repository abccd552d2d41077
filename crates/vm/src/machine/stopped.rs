//! A guest is stopped, and goes on.
//!
//! QEMU stops a guest only when none of its processors waits for memory, which may lie behind a link that is cut. It is
//! not waited for then: the guest goes on as soon as QEMU has stopped it, and who wanted it stopped is told why not.

use super::RunningMachine;
use crate::Monitor;
use block::{Error, ErrorKind, Result};
use serde_json::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, sleep, timeout};

/// How long nothing may come of the memory that QEMU waits for, in which it cannot stop the guest: longer than a page
/// takes over 100 Kb/s.
const COMES_WITHIN: Duration = Duration::from_secs(20);
/// How long is waited, after a failure, until the guest has gone on.
const GOES_ON_WITHIN: Duration = Duration::from_secs(1);
/// How often QEMU is told to let the guest go on while it still writes the state of the devices.
const TRIES: u32 = 100;
const STEP: Duration = Duration::from_millis(50);

/// A guest that stands still, until somebody has it [go on](Self::go_on).
pub(crate) struct StoppedGuest<'a> {
    machine: &'a RunningMachine,
    /// Nobody else stops it or has it go on meanwhile.
    turn: OwnedMutexGuard<()>,
    /// Since when it stands still.
    pub(crate) since: Instant,
}

impl RunningMachine {
    /// Stops the guest.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when QEMU cannot stop it, as memory that it waits for does not come; any
    /// error from the monitor. The guest goes on then.
    pub(crate) async fn stop_guest(&self) -> Result<StoppedGuest<'_>> {
        let turn = async { Ok(Arc::clone(&self.turn).lock_owned().await) };
        let turn = self.while_memory_comes(turn).await?;
        let stopped = self.while_memory_comes(self.monitor.execute("stop", Value::Null)).await;
        let guest = StoppedGuest { machine: self, turn, since: Instant::now() };
        match stopped {
            Ok(_) => Ok(guest),
            Err(e) => {
                guest.go_on_after_failure().await;
                Err(match e.kind() {
                    // Nothing that it waits for is known of here: it may be for its disk.
                    ErrorKind::Unavailable if !self.waits_for_memory() => e.context(format!(
                        "{}; its disk may wait for the store",
                        self.not_stopped()
                    )),
                    _ => e,
                })
            }
        }
    }

    /// Does a part of what needs the guest stopped, unless QEMU waits for memory that does not come.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when that is so; any error from the work.
    async fn while_memory_comes<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::select! {
            done = work => done,
            () = self.ram.demand().until_silent_for(COMES_WITHIN) => {
                let name = &self.spec.name;
                Err(Error::unavailable(format!(
                    "{}: nothing has come for {} s of the memory that it waits for in the store; mend the link to the \
                     store and try again, or end the machine with 'sojourn vm stop --force {name}', which loses what \
                     it did since its last parcel",
                    self.not_stopped(),
                    COMES_WITHIN.as_secs()
                )))
            }
        }
    }

    fn not_stopped(&self) -> String {
        format!("machine {:?} cannot be stopped now, and runs on as it was", self.spec.name)
    }
}

impl StoppedGuest<'_> {
    /// Does a part of what the guest was stopped for, unless QEMU waits for memory that does not come.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when that is so; any error from the work.
    pub(crate) async fn do_while_memory_comes<T>(
        &self,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.machine.while_memory_comes(work).await
    }

    /// Has the guest go on as soon as QEMU can do that, whether or not the returned future is waited for.
    ///
    /// # Errors
    /// Any error from the monitor; the guest stays as it is then.
    pub(crate) fn go_on(self) -> impl Future<Output = Result<()>> {
        let (tell, hear) = oneshot::channel();
        let (monitor, turn) = (Arc::clone(&self.machine.monitor), self.turn);
        let name = self.machine.spec.name.clone();
        self.machine.tasks.lock().spawn(async move {
            let outcome = let_go_on(&monitor).await;
            if let Err(error) = &outcome {
                tracing::error!(machine = name, %error, "the guest stays paused");
            }
            drop(turn);
            let _ = tell.send(outcome);
        });
        async { hear.await.unwrap_or_else(|_| Err(Error::conflict("the machine has ended"))) }
    }

    /// The same where something failed that is told: waits only for a moment.
    pub(crate) async fn go_on_after_failure(self) {
        let _ = timeout(GOES_ON_WITHIN, self.go_on()).await;
    }
}

/// Has a guest go on that was stopped, or is about to be: QEMU does one thing after the other.
async fn let_go_on(monitor: &Monitor) -> Result<()> {
    // What is left of a state that was being saved would stop the guest once more.
    let _ = monitor.execute("migrate_cancel", Value::Null).await;
    let mut tries = 0;
    loop {
        match monitor.execute("cont", Value::Null).await {
            // It refuses for as long as it ends with that.
            Err(e) if e.kind() == ErrorKind::Internal && tries < TRIES => {
                tries += 1;
                sleep(STEP).await;
            }
            other => return other.map(drop),
        }
    }
}
