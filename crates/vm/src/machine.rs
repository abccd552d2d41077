//! A machine that runs: from its start, or from a parcel, to its end.

use crate::command::MachineParts;
use crate::launch::Launched;
use crate::mount::{self, MountedRam};
use crate::pending::PendingSuspension;
use crate::ram::{GuestRam, WRITTEN};
use crate::resume_set::FirstReads;
use crate::{GuestClock, MachineSpec, MemoryImage, Monitor, RunClaim, agent};
use block::{Result, offload};
use serde_json::Value;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, timeout};

mod host;
mod start;
mod stopped;

pub use host::{MachineDisk, MachineHost, MachineOrigin};
pub(crate) use stopped::StoppedGuest;

/// The directory of a machine in which its memory is mounted.
pub const MOUNT_POINT: &str = "ram";
/// The file in it that has its memory where that cannot be mounted.
const MEMORY: &str = "memory";
/// How long the store may take to let go of what a start held.
const LETS_GO: Duration = Duration::from_secs(2);
/// What QEMU calls a machine that it paused as a write of its disk found no room.
const NO_ROOM: &str = "io-error";
/// What QEMU calls a machine that runs.
const RUNS: &str = "running";
/// How long nothing has to come of the memory that a guest waits for until it is said to wait.
const A_WHILE: Duration = Duration::from_secs(1);
/// How long it may take to tell what of the memory is here, and for how long that is told.
const SAYS: Duration = Duration::from_secs(1);
const FRESH: Duration = Duration::from_secs(30);

/// How often a guest that waits for room for its disk should try again.
pub const TRIES_AGAIN: Duration = Duration::from_secs(1);

/// Clears away what a machine that does not run, or whose keeper was killed, left in its directory: the mount of its
/// memory or the file in its place, and what its guest wrote there.
pub fn clear(directory: &Path) {
    mount::detach(&directory.join(MOUNT_POINT));
    for file in [MEMORY, WRITTEN] {
        let _ = std::fs::remove_file(directory.join(file));
    }
}

/// Gives memory up that nobody has mapped any more. Unmounting waits for the kernel.
async fn unmount(memory: Option<MappedMemory>) {
    let work = move || {
        if let Some(MappedMemory::File(path)) = &memory {
            let _ = std::fs::remove_file(path);
        }
        drop(memory);
        Ok(())
    };
    let _ = offload(work).await;
}

/// Where the guest's memory is.
pub(crate) enum MappedMemory {
    /// Fetched as it is touched.
    Mounted(MountedRam),
    /// Fetched before the guest went on.
    File(PathBuf),
}

/// A machine that runs, or is paused.
pub struct RunningMachine {
    pub(crate) host: MachineHost,
    pub(crate) spec: MachineSpec,
    parts: MachineParts,
    qemu: Launched,
    pub(crate) monitor: Arc<Monitor>,
    pub(crate) ram: Arc<GuestRam>,
    pub(crate) memory: Option<MappedMemory>,
    /// Says in the store that it runs; none before it does.
    pub(crate) claim: Mutex<Option<RunClaim>>,
    /// The number of the last parcel that is known of.
    pub(crate) last_number: AtomicU64,
    /// Held by who has stopped the guest, until it goes on.
    turn: Arc<Mutex<()>>,
    /// What is done behind, such as to fetch memory ahead; ends with the machine.
    tasks: parking_lot::Mutex<JoinSet<()>>,
    /// What was read first, once that is known.
    pub(crate) touched: Arc<parking_lot::Mutex<FirstReads>>,
    /// What the suspension says that it came from; nothing if that was a parcel.
    pub(crate) resumed_by: FirstReads,
    /// What became of the guest's clock; nothing of one that was booted.
    clock: Arc<parking_lot::Mutex<Option<GuestClock>>>,
    /// The memory that it came from, once all of that has come to this host, behind the guest.
    came: Arc<OnceLock<Arc<MemoryImage>>>,
    /// Whether all of that was found here, and when it was looked.
    found_here: Mutex<Option<(Instant, bool)>>,
}

impl RunningMachine {
    /// The machine's description.
    pub fn spec(&self) -> &MachineSpec {
        &self.spec
    }

    /// Where its sockets and logs are.
    pub fn parts(&self) -> &MachineParts {
        &self.parts
    }

    /// Its memory.
    pub fn ram(&self) -> &GuestRam {
        &self.ram
    }

    /// Whether memory is fetched as it is touched.
    pub fn fetches_as_touched(&self) -> bool {
        matches!(self.memory, Some(MappedMemory::Mounted(_)))
    }

    /// Whether all of its memory is on this host: the link may be cut then, as far as that is concerned. It was fetched
    /// behind the guest, and is kept here: what only a medium has, what found no room, and what had to make room for other
    /// things since is not. False of one whose memory is not [fetched behind](MachineHost::fills_memory), and when that
    /// cannot be told soon. Every chunk is a look into the file system, and whoever lists machines asks again and again:
    /// what was found is told for a while.
    pub async fn has_memory_here(&self) -> bool {
        let Some(image) = self.came.get() else { return false };
        let mut found = self.found_here.lock().await;
        if let Some((when, is_here)) = *found
            && when.elapsed() < FRESH
        {
            return is_here;
        }
        let looked = timeout(SAYS, image.is_at_hand(&*self.host.nearby)).await;
        let is_here = matches!(looked, Ok(Ok(true)));
        *found = Some((Instant::now(), is_here));
        is_here
    }

    /// Has the clock of a guest that went on set to what `now` says, the time since 1970, if an agent runs in it. Does
    /// not wait for that.
    pub fn set_guest_clock(&mut self, now: fn() -> Duration) {
        let (clock, monitor) = (Arc::clone(&self.clock), Arc::clone(&self.monitor));
        let (has_port, socket) = (self.spec.agent, self.parts.agent());
        let machine = self.spec.name.clone();
        *clock.lock() = Some(GuestClock::Setting);
        self.tasks.get_mut().spawn(async move {
            let became = match has_port && agent::is_there(&monitor).await {
                false => GuestClock::NoAgent,
                true => match agent::set_clock(&socket, now).await {
                    Ok(()) => GuestClock::Set,
                    Err(error) => {
                        tracing::warn!(machine, %error, "the guest's clock is not set");
                        GuestClock::Failed(error.message().to_owned())
                    }
                },
            };
            *clock.lock() = Some(became);
        });
    }

    /// What became of the guest's clock; `None` of a machine that was booted.
    pub fn guest_clock(&self) -> Option<GuestClock> {
        self.clock.lock().clone()
    }

    /// QEMU's process id.
    pub fn qemu_id(&self) -> u32 {
        self.qemu.id()
    }

    /// Whether QEMU waits for pages of its memory.
    pub fn waits_for_memory(&self) -> bool {
        self.ram.demand().is_some()
    }

    /// Its state in QEMU's words, such as `running` or `paused`; `waiting for room` where a write of its disk found none,
    /// `waiting for memory` where none has come for a while of what the guest waits for.
    ///
    /// # Errors
    /// Any error from the monitor.
    pub async fn status(&self) -> Result<String> {
        let state = self.monitor.status().await?;
        Ok(match state.as_str() {
            NO_ROOM => "waiting for room".to_owned(),
            RUNS if self.ram.demand().is_silent_for(A_WHILE) => "waiting for memory".to_owned(),
            _ => state,
        })
    }

    /// Has the guest go on, and its write be done again, when QEMU has paused it as its disk found no room; looks at
    /// each tick of `looks`, such as every [`TRIES_AGAIN`]. Does not end; drop it while the machine is to stand still.
    pub fn try_again_without_room<'a>(
        &self,
        looks: &'a mut Interval,
    ) -> impl Future<Output = Infallible> + use<'a> {
        let (monitor, machine) = (Arc::clone(&self.monitor), self.spec.name.clone());
        async move {
            let mut told = false;
            loop {
                looks.tick().await;
                let waits = matches!(monitor.status().await, Ok(state) if state == NO_ROOM);
                if waits && !told {
                    tracing::warn!(machine, "the guest waits for room for its disk");
                }
                told = waits;
                if waits && let Err(error) = monitor.execute("cont", Value::Null).await {
                    tracing::warn!(machine, %error, "the guest cannot try again");
                }
            }
        }
    }

    /// Waits until QEMU has ended by itself, as when the guest powers off; says how.
    pub async fn ended(&mut self) -> String {
        self.qemu.wait().await
    }

    /// Asks the guest to power off, as its power button does.
    ///
    /// # Errors
    /// Any error from the monitor.
    pub async fn power_off(&self) -> Result<()> {
        self.monitor.execute("system_powerdown", Value::Null).await.map(drop)
    }

    /// Ends QEMU in an orderly way, and the claim; what the guest has in its memory is lost, and so is what was kept
    /// here of an earlier suspension.
    pub async fn end(&mut self) {
        self.end_qemu().await;
        self.let_go().await;
    }

    /// Ends QEMU and the claim of a start that failed. A suspension that is kept here stays.
    async fn end_start(&mut self) {
        self.end_qemu().await;
        self.end_claim().await;
    }

    /// The same for a start that was ended: the store may be what it waited for. A claim that stays is replaced by the
    /// next start here.
    async fn end_start_soon(&mut self) {
        self.end_qemu().await;
        if timeout(LETS_GO, self.end_claim()).await.is_err() {
            let machine = &self.spec.name;
            tracing::warn!(
                machine,
                "the store may say until the next start that the machine runs here"
            );
        }
    }

    async fn let_go(&mut self) {
        let directory = self.host.directory.clone();
        let machine = &self.spec.name;
        if let Err(error) = offload(move || PendingSuspension::forget(&directory)).await {
            tracing::warn!(machine, %error, "an earlier suspension stays here");
        }
        self.end_claim().await;
    }

    async fn end_claim(&mut self) {
        let machine = &self.spec.name;
        let Some(claim) = self.claim.get_mut().take() else { return };
        if let Err(error) = claim.end(&self.host.store).await {
            tracing::warn!(machine, %error, "the store says until the next start that the machine runs here");
        }
    }

    /// Ends a machine that nobody asked to stop: the host goes down, the guest powers off, or QEMU ends in a way of
    /// its own. A suspension that is kept here, and its claim, stay where the disk was not written since: the
    /// machine goes on from it.
    pub async fn give_up(&mut self, disk: &dyn MachineDisk) {
        self.end_qemu().await;
        let kept = PendingSuspension::find(&self.host.directory);
        let goes_on = match kept {
            Ok(None) => false,
            Ok(Some(kept)) => match disk.mark(&self.spec.disk).await {
                Ok(mark) => mark.as_ref() == Some(&kept.disk_mark),
                // Whoever starts it next looks again.
                Err(_) => true,
            },
            Err(_) => true,
        };
        if goes_on {
            self.claim.get_mut().take();
        } else {
            self.let_go().await;
        }
    }

    /// Ends QEMU alone: what was kept of the machine, and its claim, are still needed.
    pub async fn park(&mut self) {
        self.claim.get_mut().take();
        self.end_qemu().await;
    }

    async fn end_qemu(&mut self) {
        self.ram.give_up();
        // Nothing is fetched for a guest that ends.
        self.tasks.get_mut().abort_all();
        let ask = self.monitor.execute("quit", Value::Null);
        self.qemu.end(ask, || self.ram.end_reads()).await;
        unmount(self.memory.take()).await;
        let directory = self.host.directory.clone();
        let cleared = offload(move || {
            clear(&directory);
            Ok(())
        });
        let _ = cleared.await;
    }

    /// Lets the guest run.
    pub(crate) async fn run(&self) -> Result<()> {
        self.monitor.execute("cont", Value::Null).await.map(drop)
    }
}

/// The program that is used unless another is named.
pub fn default_qemu() -> &'static Path {
    Path::new("qemu-system-x86_64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_killed_keeper_left_of_the_memory_of_its_machine_is_cleared_away() {
        let dir = tempfile::tempdir().unwrap();
        for file in [MEMORY, WRITTEN, "machine.json"] {
            std::fs::write(dir.path().join(file), "left").unwrap();
        }
        clear(dir.path());
        let left = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(left.collect::<Vec<_>>(), ["machine.json"]);
    }
}
