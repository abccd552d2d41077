//! A machine that runs: from its start, or from a parcel, to its end.

use crate::abilities::PATIENCE;
use crate::command::{self, MachineParts};
use crate::launch::{self, Launched};
use crate::mount::{self, MountedRam};
use crate::pending::PendingSuspension;
use crate::ram::{GuestRam, WRITTEN};
use crate::resume_set::FirstReads;
use crate::{
    GuestClock, MachineSpec, MemoryImage, Monitor, NearbyChunks, Parcel, RunClaim, agent, ahead,
    device_state, memory_file,
};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result, offload};
use disk::Loader;
use serde_json::Value;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use store::{ManifestId, ServerId, Session, Store};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, sleep, timeout};

/// The directory of a machine in which its memory is mounted.
pub const MOUNT_POINT: &str = "ram";
/// How much of its own time a guest has, after a resume, while it is noted what is read. What it waits for the
/// store does not count: over a thin link it may not have said anything after ten seconds.
const NOTED: Duration = Duration::from_secs(10);
/// For how long it is noted at the most.
const NOTED_AT_MOST: Duration = Duration::from_secs(900);
/// How long the store may take to let go of what a start that was ended held.
const LETS_GO: Duration = Duration::from_secs(2);
/// How often it is looked whether the guest waits.
const LOOKS: Duration = Duration::from_millis(20);
/// What QEMU calls a machine that it paused as a write of its disk found no room.
const NO_ROOM: &str = "io-error";
/// How often a guest that waits for room for its disk should try again.
pub const TRIES_AGAIN: Duration = Duration::from_secs(1);

/// Clears away what a machine that does not run, or whose keeper was killed, left in its directory: the mount of its
/// memory, and what its guest wrote there.
pub fn clear(directory: &Path) {
    mount::detach(&directory.join(MOUNT_POINT));
    let _ = std::fs::remove_file(directory.join(WRITTEN));
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

/// Does a part of a start, unless the machine is to end before it is done: QEMU and the store may keep it waiting for
/// very long.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when it is to end; those of the work.
async fn unless_ended<T>(
    end: &mut watch::Receiver<bool>,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    let asked = async {
        // Who does not say any more that it is to end has it go on.
        if end.wait_for(|end| *end).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        done = work => done,
        () = asked => Err(Error::conflict("the machine was ended while it started")),
    }
}

/// A machine's disk, by whoever serves it.
#[async_trait]
pub trait MachineDisk: Send + Sync {
    /// Whether the disk holds what a manifest says, and nothing that was written since.
    ///
    /// # Errors
    /// Those of the server and the store.
    async fn holds(&self, disk: &str, contents: &ManifestId) -> Result<bool>;

    /// Marks what the disk holds now, to be recognised by the mark. Needs no store.
    ///
    /// # Errors
    /// Those of the server.
    async fn set_mark(&self, disk: &str) -> Result<String>;

    /// The mark of what the disk holds; `None` when it was written since one was set.
    ///
    /// # Errors
    /// Those of the server.
    async fn mark(&self, disk: &str) -> Result<Option<String>>;

    /// Freezes what the disk holds now: all that was answered, nothing that is written later.
    ///
    /// # Errors
    /// Those of the server.
    async fn snapshot(&self, disk: &str, snapshot: &str) -> Result<()>;

    /// Removes a snapshot.
    ///
    /// # Errors
    /// Those of the server.
    async fn remove_snapshot(&self, disk: &str, snapshot: &str) -> Result<()>;
}

/// Where a machine runs, and what from.
#[derive(Clone)]
pub struct MachineHost {
    /// The program.
    pub qemu: PathBuf,
    /// The machine's own directory: sockets, logs, memory.
    pub directory: PathBuf,
    /// The NBD socket of the server that has its disk.
    pub nbd: PathBuf,
    /// The server that has its disk.
    pub server: ServerId,
    /// The store.
    pub store: Store,
    /// Through which its memory is read.
    pub loader: Arc<Loader>,
    /// What can be read without a network.
    pub nearby: Arc<dyn NearbyChunks>,
}

/// What a machine starts from.
#[derive(Debug, Clone, Copy)]
pub enum MachineOrigin<'a> {
    /// Its firmware boots it.
    Boot,
    /// A parcel.
    Parcel(&'a Parcel),
    /// A suspension that is on this host only.
    Pending(&'a PendingSuspension),
}

impl MachineOrigin<'_> {
    /// The number of the parcel that it is, or is to be; 0 for none.
    fn number(&self) -> u64 {
        match self {
            Self::Boot => 0,
            Self::Parcel(parcel) => parcel.number,
            Self::Pending(pending) => pending.number,
        }
    }
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
    /// Fetches ahead; ends with the machine.
    ahead: JoinSet<()>,
    /// What was read first, once that is known.
    pub(crate) touched: Arc<parking_lot::Mutex<FirstReads>>,
    /// What the suspension says that it came from; nothing if that was a parcel.
    pub(crate) resumed_by: FirstReads,
    /// What became of the guest's clock; nothing of one that was booted.
    clock: Arc<parking_lot::Mutex<Option<GuestClock>>>,
}

impl RunningMachine {
    /// Starts a machine, or goes on with a parcel or a suspension of it, and claims it in the store. When `end` becomes
    /// true meanwhile, it is ended; a suspension that it was to go on with stays.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) with QEMU's own words when it ends;
    /// [`Conflict`](ErrorKind::Conflict) when the disk is not what it was in the parcel or the suspension, and when it
    /// is to end; [`Fenced`](ErrorKind::Fenced) when another home has the machine of a suspension by now; those of the store
    /// and the file system.
    pub async fn start(
        host: MachineHost,
        spec: MachineSpec,
        origin: MachineOrigin<'_>,
        disk: &dyn MachineDisk,
        mut end: watch::Receiver<bool>,
    ) -> Result<Self> {
        spec.check()?;
        // A suspension has its claim, and goes on although the store may be away.
        if let MachineOrigin::Pending(pending) = origin {
            let kept = async {
                let claim = RunClaim::of_suspension(&host.store, &spec, host.server).await?;
                Ok((claim, pending.base(&host.store, &host.loader).await?))
            };
            let (claim, base) = unless_ended(&mut end, kept).await?;
            let from = (origin, base, Some(claim));
            return Self::start_with(None, host, spec, from, (disk, &mut end)).await;
        }
        // What the parcel leads to stays until the claim keeps it, which looks whether there is that parcel still.
        let what = format!("start of machine {}", spec.name);
        let holds = match origin {
            MachineOrigin::Parcel(parcel) => vec![parcel.memory, parcel.disk],
            _ => Vec::new(),
        };
        let session = host.store.session_holding(&what, &holds);
        let session = unless_ended(&mut end, session).await?;
        let started = async {
            let base = match origin {
                MachineOrigin::Parcel(parcel) => {
                    let image = parcel.image(&host.store, &host.loader);
                    Some(unless_ended(&mut end, image).await?)
                }
                _ => None,
            };
            let (from, with) = ((origin, base, None), (disk, &mut end));
            Self::start_with(Some(&session), host, spec, from, with).await
        };
        let started = started.await;
        if *end.borrow() {
            // The store may be what it waited for; a pin that stays there expires.
            let _ = timeout(LETS_GO, session.close(Ok(()))).await;
            return started;
        }
        session.close(started).await
    }

    async fn start_with(
        session: Option<&Session>,
        host: MachineHost,
        spec: MachineSpec,
        (origin, base, claim): (MachineOrigin<'_>, Option<Arc<MemoryImage>>, Option<RunClaim>),
        (disk, end): (&dyn MachineDisk, &mut watch::Receiver<bool>),
    ) -> Result<Self> {
        let (earlier, first) = match origin {
            MachineOrigin::Pending(pending) => {
                let first = pending.first_reads(&host.directory)?;
                (Some(pending.earlier(&host.directory)?), Some(first))
            }
            _ => (None, None),
        };
        let ram = GuestRam::after(&host.directory, spec.memory, base.clone(), earlier)?;
        let (mount, at) = (Arc::clone(&ram), host.directory.join(MOUNT_POINT));
        let memory = match MountedRam::new(&at, mount) {
            Ok(mounted) => MappedMemory::Mounted(mounted),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                tracing::warn!(error = %e, "all memory is fetched before the guest goes on");
                let path = host.directory.join("memory");
                unless_ended(end, memory_file::fill(&ram, &path)).await?;
                MappedMemory::File(path)
            }
            Err(e) => return Err(e),
        };
        let file = match &memory {
            MappedMemory::Mounted(mounted) => mounted.file(),
            MappedMemory::File(path) => path.clone(),
        };
        let parts =
            MachineParts { directory: host.directory.clone(), memory: file, nbd: host.nbd.clone() };
        for socket in [parts.monitor(), parts.console(), parts.screen(), parts.agent()] {
            let _ = std::fs::remove_file(socket);
        }
        let arguments = command::arguments(&spec, &parts, !matches!(origin, MachineOrigin::Boot));
        let mut qemu = launch::qemu(&host.qemu, &arguments, &parts.log())?;
        let socket = parts.monitor();
        let connected = async {
            tokio::select! {
                monitor = Monitor::connect(&socket, PATIENCE, Some(Arc::clone(ram.demand()))) => monitor,
                ended = qemu.ended() => Err(ended),
            }
        };
        let connected = unless_ended(end, connected).await;
        let monitor = match connected {
            Ok(monitor) => monitor,
            Err(e) => {
                qemu.kill();
                ram.end_reads();
                qemu.wait().await;
                unmount(Some(memory)).await;
                return Err(e);
            }
        };
        let mut machine = Self {
            host,
            spec,
            parts,
            qemu,
            monitor: Arc::new(monitor),
            ram,
            memory: Some(memory),
            claim: Mutex::new(claim),
            last_number: AtomicU64::new(origin.number()),
            ahead: JoinSet::new(),
            touched: Arc::default(),
            resumed_by: first.clone().unwrap_or_default(),
            clock: Arc::default(),
        };
        match machine.go(session, (origin, base.as_deref()), disk, end).await {
            Ok(()) => {
                machine.look_ahead(base, first.map(|first| first.extents));
                Ok(machine)
            }
            Err(e) => {
                let e = match e.kind() {
                    ErrorKind::Unavailable => machine.qemu.why_it_ended(e).await,
                    _ => e,
                };
                match origin {
                    MachineOrigin::Pending(_) => machine.park().await,
                    _ if *end.borrow() => machine.end_soon().await,
                    _ => machine.end().await,
                }
                Err(e)
            }
        }
    }

    /// Lets the guest run, from its start or from where it was.
    async fn go(
        &mut self,
        session: Option<&Session>,
        (origin, base): (MachineOrigin<'_>, Option<&MemoryImage>),
        disk: &dyn MachineDisk,
        end: &mut watch::Receiver<bool>,
    ) -> Result<()> {
        let directory = self.host.directory.clone();
        // QEMU has the disk by now, and nobody else: what it holds cannot change before the guest runs.
        let holds = async {
            match origin {
                MachineOrigin::Parcel(parcel) => disk.holds(&self.spec.disk, &parcel.disk).await,
                _ => Ok(true),
            }
        };
        let load = async {
            let state = match (origin, base) {
                (MachineOrigin::Pending(pending), _) => pending.state(&directory)?,
                // Both lie side by side.
                (_, Some(base)) => tokio::try_join!(base.state(), base.list_of_copies())?.0,
                (_, None) => return Ok(()),
            };
            device_state::load(&self.monitor, &mut self.qemu, &directory, &state).await
        };
        // A round trip to the store beside the work of QEMU.
        let (holds, ()) = unless_ended(end, async { tokio::try_join!(holds, load) }).await?;
        let parcel = match origin {
            MachineOrigin::Boot => None,
            MachineOrigin::Parcel(parcel) => {
                if !holds {
                    return Err(parcel.disk_was_written());
                }
                Some(parcel)
            }
            MachineOrigin::Pending(pending) => {
                let mark = unless_ended(end, disk.mark(&self.spec.disk)).await?;
                if mark.as_ref() != Some(&pending.disk_mark) {
                    return Err(pending.disk_was_written());
                }
                PendingSuspension::note_resumed(&directory).await?;
                let ram = Arc::clone(&self.ram);
                self.ahead.spawn(async move {
                    // What is not copied now is when the machine is suspended.
                    let _ = ram.take_over().await;
                });
                None
            }
        };
        if let Some(session) = session {
            // Where this is ended nobody knows whether it was made: it is given up again, if it is there.
            *self.claim.get_mut() = Some(RunClaim::sought(&self.spec, self.host.server));
            let claim = RunClaim::make(session, &self.spec, self.host.server, parcel);
            let claimed = unless_ended(end, claim).await;
            if claimed.is_err() && !*end.borrow() {
                *self.claim.get_mut() = None;
            }
            *self.claim.get_mut() = Some(claimed?);
        }
        unless_ended(end, self.run()).await
    }

    /// Has what the last resume read fetched ahead, and notes what this one reads, where memory is fetched as it is
    /// touched. Not before the guest runs: it does not wait behind that for the state of its devices. `set` is the resume
    /// set; that of the base if there is none. Where the base has copies of pages, they take the place of a set.
    fn look_ahead(&mut self, base: Option<Arc<MemoryImage>>, set: Option<Vec<u32>>) {
        let Some(base) = base.filter(|_| self.fetches_as_touched()) else { return };
        let ram = Arc::clone(&self.ram);
        self.ahead.spawn(async move {
            let copied = base.list_of_copies().await.unwrap_or_default();
            if !copied.is_empty() {
                ahead::fetch_copies(&base, copied, ram.demand()).await;
                return ahead::fetch_beside(Arc::clone(&base), ram.demand()).await;
            }
            let set = match set {
                Some(set) => set,
                // The oldest parcel has none, and one that is damaged only makes the resume slow.
                None => base.resume_set().await.unwrap_or_default(),
            };
            match set.is_empty() {
                true => ahead::fetch_beside(base, ram.demand()).await,
                false => ahead::fetch(base, &set, ram.demand()).await,
            }
        });
        self.ahead.spawn(note_reads(Arc::clone(&self.ram), Arc::clone(&self.touched)));
    }

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

    /// Has the clock of a guest that went on set to what `now` says, the time since 1970, if an agent runs in it. Does
    /// not wait for that.
    pub fn set_guest_clock(&mut self, now: fn() -> Duration) {
        let (clock, monitor) = (Arc::clone(&self.clock), Arc::clone(&self.monitor));
        let (has_port, socket) = (self.spec.agent, self.parts.agent());
        let machine = self.spec.name.clone();
        *clock.lock() = Some(GuestClock::Setting);
        self.ahead.spawn(async move {
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

    /// Its state in QEMU's words, such as `running` or `paused`; `waiting for room` where a write of its disk found none.
    ///
    /// # Errors
    /// Those of the monitor.
    pub async fn status(&self) -> Result<String> {
        let state = self.monitor.status().await?;
        Ok(if state == NO_ROOM { "waiting for room".to_owned() } else { state })
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
    /// Those of the monitor.
    pub async fn power_off(&self) -> Result<()> {
        self.monitor.execute("system_powerdown", Value::Null).await.map(drop)
    }

    /// Ends QEMU in an orderly way, and the claim; what the guest has in its memory is lost, and so is what was kept
    /// here of an earlier suspension.
    pub async fn end(&mut self) {
        self.end_qemu().await;
        self.let_go().await;
    }

    /// The same for a start that was ended: the store may be what it waited for. A claim that stays is replaced by the
    /// next start here.
    async fn end_soon(&mut self) {
        self.end_qemu().await;
        if timeout(LETS_GO, self.let_go()).await.is_err() {
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
        self.ahead.abort_all();
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

/// Notes for a while what a machine reads of the parcel that it came from.
async fn note_reads(ram: Arc<GuestRam>, touched: Arc<parking_lot::Mutex<FirstReads>>) {
    let until = Instant::now() + NOTED_AT_MOST;
    let mut own = Duration::ZERO;
    while own < NOTED && Instant::now() < until {
        sleep(LOOKS).await;
        if !ram.demand().is_some() {
            own += LOOKS;
        }
    }
    *touched.lock() = ram.stop_noting();
}

/// The program that is used unless another is named.
pub fn default_qemu() -> &'static Path {
    Path::new("qemu-system-x86_64")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_start_that_waits_ends_when_it_is_to_end_and_not_when_nobody_says_so_any_more() {
        let (tell, mut end) = watch::channel(false);
        let waits = unless_ended(&mut end, std::future::pending::<Result<()>>());
        let mut waits = std::pin::pin!(waits);
        assert!(timeout(Duration::from_secs(600), &mut waits).await.is_err(), "it waits");
        tell.send_replace(true);
        assert_eq!(waits.await.unwrap_err().kind(), ErrorKind::Conflict);
        let (tell, mut end) = watch::channel(false);
        drop(tell);
        let done = async {
            sleep(LETS_GO).await;
            Ok(7)
        };
        assert_eq!(unless_ended(&mut end, done).await.unwrap(), 7);
    }
}
