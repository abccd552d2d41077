//! A machine is started: from its firmware, a parcel or a suspension, and ended early where it is to end.

use super::{
    LETS_GO, MEMORY, MOUNT_POINT, MachineDisk, MachineHost, MachineOrigin, MappedMemory,
    RunningMachine, unmount,
};
use crate::abilities::PATIENCE;
use crate::command::{self, MachineParts};
use crate::mount::MountedRam;
use crate::pending::PendingSuspension;
use crate::ram::GuestRam;
use crate::resume_set::FirstReads;
use crate::{
    MachineSpec, MemoryImage, Monitor, RunClaim, ahead, device_state, launch, memory_file,
};
use block::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use store::Session;
use tokio::sync::{Mutex, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// How much of its own time a guest has, after a resume, while it is noted what is read. What it waits for the
/// store does not count: over a thin link it may not have said anything after ten seconds.
const NOTED: Duration = Duration::from_secs(10);
/// For how long it is noted at the most.
const NOTED_AT_MOST: Duration = Duration::from_secs(900);
/// How often it is looked whether the guest waits.
const LOOKS: Duration = Duration::from_millis(20);

/// Does a part of a start, unless the machine is to end before it is done: QEMU and the store may keep it waiting for
/// very long.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when it is to end; any error from the work.
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

impl RunningMachine {
    /// Starts a machine, or goes on with a parcel or a suspension of it, and claims it in the store. When `end` becomes
    /// true meanwhile, it is ended; a suspension that it was to go on with stays.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) with QEMU's own words when it ends;
    /// [`Conflict`](ErrorKind::Conflict) when the disk is not what it was in the parcel or the suspension, and when it
    /// is to end; [`Fenced`](ErrorKind::Fenced) when another home has the machine of a suspension by now; any error from the store
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
                let path = host.directory.join(MEMORY);
                if let Err(e) = unless_ended(end, memory_file::fill(&ram, &path)).await {
                    let _ = std::fs::remove_file(&path);
                    return Err(e);
                }
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
                // Its end may have been seen by its connection first.
                let e = match e.kind() {
                    ErrorKind::Unavailable => qemu.why_it_ended(e).await,
                    _ => e,
                };
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
            turn: Arc::default(),
            tasks: parking_lot::Mutex::new(JoinSet::new()),
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
                    // What may be kept here is not what it started from.
                    _ if *end.borrow() => machine.end_start_soon().await,
                    _ => machine.end_start().await,
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
                self.tasks.get_mut().spawn(async move {
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
        self.tasks.get_mut().spawn(async move {
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
        self.tasks.get_mut().spawn(note_reads(Arc::clone(&self.ram), Arc::clone(&self.touched)));
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
