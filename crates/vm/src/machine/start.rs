//! A machine is started: from its firmware, a parcel or a suspension, and ended early where it is to end.

use super::{
    LETS_GO, MEMORY, MOUNT_POINT, MachineDisk, MachineHost, MachineOrigin, MappedMemory,
    RunningMachine, unmount,
};
use crate::abilities::PATIENCE;
use crate::command::{self, MachineParts};
use crate::disk_use::DiskUse;
use crate::mount::MountedRam;
use crate::pending::PendingSuspension;
use crate::ram::GuestRam;
use crate::resume_set::FirstReads;
use crate::{
    MachineSpec, MemoryImage, Monitor, RunClaim, ahead, console_log, device_state, launch,
    memory_file,
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

/// Ends the session of a start that failed. Until that is done the keeper hears nobody: the store may be away, and a pin
/// that stays there expires.
async fn close(session: Session) {
    let _ = timeout(LETS_GO, session.close(Ok(()))).await;
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
                // Its disk is opened by this although the store is away. QEMU, which has it next, would wait for that.
                if disk.mark(&spec.disk).await?.as_ref() != Some(&pending.disk_mark) {
                    return Err(pending.disk_was_written());
                }
                let claim = RunClaim::of_suspension(&host.store, &spec, host.server).await?;
                Ok((claim, pending.base(&host.store, &host.loader).await?))
            };
            let (claim, base) = unless_ended(&mut end, kept).await?;
            let from = (origin, base.clone(), Some(claim));
            let machine = Self::come_up(host, spec, from, &mut end).await?;
            return machine.go_on(None, (origin, base), (disk, &mut end)).await;
        }
        // What the parcel leads to stays until the claim keeps it, which looks whether there is that parcel still. The
        // session takes some round trips to the store, beside which QEMU comes up.
        let what = format!("start of machine {}", spec.name);
        let holds = match origin {
            MachineOrigin::Parcel(parcel) => vec![parcel.memory, parcel.disk],
            _ => Vec::new(),
        };
        let (store, mut end_of_session) = (host.store.clone(), end.clone());
        let session = store.session_holding(&what, &holds);
        let coming = async {
            let base = match origin {
                MachineOrigin::Parcel(parcel) => {
                    let image = parcel.image(&host.store, &host.loader);
                    Some(unless_ended(&mut end, image).await?)
                }
                _ => None,
            };
            let from = (origin, base.clone(), None);
            Ok((Self::come_up(host, spec, from, &mut end).await?, base))
        };
        let (session, coming) = tokio::join!(unless_ended(&mut end_of_session, session), coming);
        let (session, started) = match (session, coming) {
            (Ok(session), Ok((machine, base))) => {
                let (from, with) = ((origin, base), (disk, &mut end));
                let started = machine.go_on(Some(&session), from, with).await;
                (session, started)
            }
            (Ok(session), Err(e)) => (session, Err(e)),
            (Err(e), Ok((mut machine, _))) => {
                machine.end_start().await;
                return Err(e);
            }
            (Err(e), Err(_)) => return Err(e),
        };
        match started {
            // Beside the guest: a resume has the link full of its memory at this moment.
            Ok(mut machine) => {
                machine.tasks.get_mut().spawn(async move { drop(session.close(Ok(())).await) });
                Ok(machine)
            }
            Err(e) => {
                close(session).await;
                Err(e)
            }
        }
    }

    /// Has QEMU come up with the memory of the machine, and wait for the state of its devices, or to be let run.
    async fn come_up(
        host: MachineHost,
        spec: MachineSpec,
        (origin, base, claim): (MachineOrigin<'_>, Option<Arc<MemoryImage>>, Option<RunClaim>),
        end: &mut watch::Receiver<bool>,
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
        let mut tasks = JoinSet::new();
        tasks.spawn(console_log::keep_short(parts.console_log()));
        Ok(Self {
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
            tasks: parking_lot::Mutex::new(tasks),
            touched: Arc::default(),
            resumed_by: first.unwrap_or_default(),
            clock: Arc::default(),
            came: Arc::default(),
            found_here: Mutex::default(),
        })
    }

    /// Lets the guest run, or ends QEMU.
    async fn go_on(
        mut self,
        session: Option<&Session>,
        (origin, base): (MachineOrigin<'_>, Option<Arc<MemoryImage>>),
        (disk, end): (&dyn MachineDisk, &mut watch::Receiver<bool>),
    ) -> Result<Self> {
        let notes = base.is_some() && self.fetches_as_touched();
        let Err(e) = self.go(session, (origin, base), disk, end).await else {
            if notes {
                let noting = note_reads(Arc::clone(&self.ram), Arc::clone(&self.touched));
                self.tasks.get_mut().spawn(noting);
            }
            return Ok(self);
        };
        let e = match e.kind() {
            ErrorKind::Unavailable => self.qemu.why_it_ended(e).await,
            _ => e,
        };
        match origin {
            MachineOrigin::Pending(_) => self.park().await,
            // What may be kept here is not what it started from.
            _ if *end.borrow() => self.end_start_soon().await,
            _ => self.end_start().await,
        }
        Err(e)
    }

    /// Lets the guest run, from its start or from where it was.
    async fn go(
        &mut self,
        session: Option<&Session>,
        (origin, base): (MachineOrigin<'_>, Option<Arc<MemoryImage>>),
        disk: &dyn MachineDisk,
        end: &mut watch::Receiver<bool>,
    ) -> Result<()> {
        let directory = self.host.directory.clone();
        let ahead = base.clone().filter(|_| self.fetches_as_touched()).map(|base| {
            let set = match origin {
                MachineOrigin::Pending(_) => Some(self.resumed_by.extents.clone()),
                _ => None,
            };
            let rest = self.host.fills_memory.then(|| ahead::RestOfMemory {
                disk: DiskUse::of(Arc::clone(&self.monitor)),
                came: Arc::clone(&self.came),
            });
            ahead::fetch_memory(base, set, Arc::clone(self.ram.demand()), rest)
        });
        // QEMU has the disk by now, and nobody else: what it holds cannot change before the guest runs.
        let holds = async {
            match origin {
                MachineOrigin::Parcel(parcel) => disk.holds(&self.spec.disk, &parcel.disk).await,
                _ => Ok(true),
            }
        };
        let load = async {
            let state = match (origin, &base) {
                (MachineOrigin::Pending(pending), _) => pending.state(&directory)?,
                // Both lie side by side.
                (_, Some(base)) => tokio::try_join!(base.state(), base.list_of_copies())?.0,
                (_, None) => return Ok(()),
            };
            // Not before, so that the state does not wait behind that. QEMU reads some of it to take the state.
            if let Some(ahead) = ahead {
                self.tasks.get_mut().spawn(ahead);
            }
            device_state::load(&self.monitor, &mut self.qemu, &directory, &state).await
        };
        let claim = async {
            let Some(session) = session else { return Ok(None) };
            let parcel = match origin {
                MachineOrigin::Parcel(parcel) => Some(parcel),
                _ => None,
            };
            RunClaim::make(session, &self.spec, self.host.server, parcel).await.map(Some)
        };
        if session.is_some() {
            // Where a part fails nobody knows whether it was made: it is given up again, if it is there.
            *self.claim.get_mut() = Some(RunClaim::sought(&self.spec, self.host.server));
        }
        // Round trips to the store beside the work of QEMU.
        let (holds, (), claim) = {
            let (mut claiming, mut is_answered) = (std::pin::pin!(claim), false);
            let claim = async {
                let claim = claiming.as_mut().await;
                is_answered = true;
                claim
            };
            let parts = unless_ended(end, async { tokio::try_join!(holds, load, claim) }).await;
            if parts.is_err() && !is_answered {
                // One that came to be after it was given up would say that the machine runs.
                let _ = timeout(LETS_GO, claiming).await;
            }
            parts?
        };
        if claim.is_some() {
            *self.claim.get_mut() = claim;
        }
        match origin {
            MachineOrigin::Boot => {}
            MachineOrigin::Parcel(parcel) if !holds => return Err(parcel.disk_was_written()),
            MachineOrigin::Parcel(_) => {}
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
            }
        }
        unless_ended(end, self.run()).await
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
    use crate::parcel::tests::session_that_stays;

    #[tokio::test(start_paused = true)]
    async fn a_machine_that_has_started_is_kept_at_once_though_the_store_does_not_let_go_of_the_start()
     {
        let session = session_that_stays().await;
        let closing = timeout(Duration::from_secs(10), close(session)).await;
        assert!(closing.is_ok(), "the keeper waits for the store");
    }

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
