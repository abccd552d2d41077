//! The keeper: the process that a running machine belongs to. It owns QEMU and the machine's memory, and
//! listens for commands. It outlives the terminal; QEMU does not outlive it.

use super::disks::{self, DiskServer};
use super::folder::MachineFolder;
use super::nearby::NearbyOfHome;
use super::release;
use super::requests::{ASKS, KeeperInput, Requests, start_ended};
use super::upload::{self, UploadEnd, UploadWaiter};
use super::wire::{self, KeeperReply, KeeperRequest, RunningView, StoredView};
use ::vm::machine::{MachineHost, MachineOrigin, TRIES_AGAIN};
use ::vm::packing::{KeptReport, ParcelReport};
use ::vm::{Parcel, PendingSuspension, RunningMachine};
use block::{Error, ErrorKind, Result};
use engine::{Config, Engine, Home, StoreUse, world};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::ServerId;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, timeout, timeout_at};

/// How often a keeper that comes up is looked for.
const STEP: Duration = Duration::from_millis(10);
/// How long QEMU has to say what its machine does: shorter than who asks waits.
const SAYS: Duration = Duration::from_secs(1);
/// How long a guest has to power off when it is asked to.
const GOODBYE: Duration = Duration::from_secs(90);

/// Arguments of `sojourn vm keep`.
#[derive(Debug, clap::Args)]
pub(crate) struct VmKeepArgs {
    /// The machine's name
    name: String,
    /// The QEMU to use
    #[arg(long)]
    qemu: PathBuf,
    /// The parcel to go on with
    #[arg(long)]
    parcel: Option<String>,
    /// Go on with what was kept here when the machine was suspended
    #[arg(long, conflicts_with = "parcel")]
    pending: bool,
    /// Send what was kept here, and run nothing
    #[arg(long, conflicts_with_all = ["parcel", "pending"])]
    upload: bool,
}

/// What a keeper is started for.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeepFor<'a> {
    /// To boot the machine.
    Boot,
    /// To go on with a parcel.
    Parcel(&'a Parcel),
    /// To go on with what was kept here.
    Pending,
    /// To send what was kept here.
    Upload,
}

/// Starts a keeper, and waits until its machine runs, or what was kept goes up.
///
/// # Errors
/// The keeper's own.
pub(super) async fn spawn(
    home: &Home,
    folder: &MachineFolder,
    qemu: &Path,
    what: KeepFor<'_>,
) -> Result<KeeperReply> {
    let began = Instant::now();
    folder.make_directory()?;
    let log = folder.log();
    let said = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let mut command = disks::program(home, &log)?;
    command.args(["vm", "keep", folder.name(), "--qemu"]).arg(qemu);
    match what {
        KeepFor::Boot => {}
        KeepFor::Parcel(parcel) => drop(command.args(["--parcel", &parcel.name()])),
        KeepFor::Pending => drop(command.arg("--pending")),
        KeepFor::Upload => drop(command.arg("--upload")),
    }
    let mut child = command.spawn().map_err(|e| Error::io("cannot start a keeper", e))?;
    loop {
        match wire::call(folder, &KeeperRequest::Status).await {
            Ok(Some(KeeperReply::Status(mut status))) if status.keeper == child.id() => {
                status.started_seconds = began.elapsed().as_secs_f64();
                return Ok(KeeperReply::Status(status));
            }
            Ok(Some(KeeperReply::Uploading(view))) if view.keeper == Some(child.id()) => {
                return Ok(KeeperReply::Uploading(view));
            }
            // One that ends meanwhile goes away before it answers.
            Err(e) if e.kind() == ErrorKind::Unavailable => {}
            other => drop(other?),
        }
        if let Ok(Some(status)) = child.try_wait() {
            if status.success() {
                // All that was left was done at once.
                return Ok(KeeperReply::Stopped);
            }
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Err(Error::new(ErrorKind::of_exit_code(code), last_line(&log, said)));
        }
        sleep(STEP).await;
    }
}

/// Starts a keeper that sends what was kept, and waits for a while until it can be asked, or has ended: until then it
/// has the machine, and tells nobody what it does.
///
/// # Errors
/// Those of the system.
pub(super) async fn send_behind(home: &Home, folder: &MachineFolder) -> Result<()> {
    let mut command = disks::program(home, &folder.log())?;
    // QEMU is not needed for that.
    let qemu = ::vm::machine::default_qemu();
    command.args(["vm", "keep", folder.name(), "--qemu"]).arg(qemu).arg("--upload");
    let mut child = command.spawn().map_err(|e| Error::io("cannot start a keeper", e))?;
    let until = Instant::now() + ASKS;
    while matches!(child.try_wait(), Ok(None)) && Instant::now() < until {
        if UnixStream::connect(folder.socket()).await.is_ok() {
            break;
        }
        sleep(STEP).await;
    }
    Ok(())
}

/// The last line of a log that was written since it had `from` bytes, without the program's name.
fn last_line(log: &Path, from: u64) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    let fresh = bytes.get(from as usize..).unwrap_or_default();
    let text = String::from_utf8_lossy(fresh);
    let last = text
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or("the keeper says nothing");
    last.strip_prefix("sojourn: ").unwrap_or(last).to_owned()
}

/// What a keeper does next.
enum KeeperStep {
    /// Run the machine; who asked for that may wait.
    Run(Option<UnixStream>),
    /// Send what was kept of it; these wait until that is done.
    Upload(Vec<UploadWaiter>),
    /// End, and answer.
    End(Vec<Farewell>),
}

/// Keeps a machine until it ends: runs it, and sends what was kept of it when it was suspended.
pub(super) async fn run(args: &VmKeepArgs, home: &Home) -> Result<()> {
    // A terminal that closes ends its session, and not this. Fails for the leader of a group, which it is
    // when nobody's terminal started it.
    let _ = rustix::process::setsid();
    let folder = MachineFolder::of(home, &args.name)?;
    let lock = folder.lock()?;
    let socket = folder.socket();
    let _ = std::fs::remove_file(&socket);
    let mut requests = Requests::new(&folder)?;
    // What is kept here goes up behind all backs until it is known whether it can.
    if !args.upload {
        requests.listen()?;
    }
    let opened = match requests.unless_ended(HomeOpened::open(args, home, &folder)).await {
        Some(opened) => opened,
        None => Err(start_ended()),
    };
    let ended = match opened {
        Ok(HomeOpened { engine, parcel, id }) => {
            let log = folder.path().join("serve.log");
            match DiskServer::find(home, &engine.store, &log, &mut requests).await {
                Ok(server) => {
                    let mut keeper = Keeper {
                        qemu: args.qemu.clone(),
                        home,
                        folder: &folder,
                        id,
                        engine: &engine,
                        server: &server,
                        requests: &mut requests,
                        is_to_end: false,
                    };
                    let outcome = keeper.work(args, parcel).await;
                    let _ = std::fs::remove_file(&socket);
                    server.leave().await;
                    outcome
                }
                Err(e) => Err(e),
            }
        }
        Err(e) => Err(e),
    };
    let _ = std::fs::remove_file(&socket);
    drop(lock);
    // Whoever asked may start the machine again at once.
    requests.answer_stoppers().await;
    for Farewell { stream, reply } in ended? {
        wire::answer(stream, reply).await;
    }
    Ok(())
}

/// What a keeper needs of its home.
struct HomeOpened {
    engine: Arc<Engine>,
    parcel: Option<Parcel>,
    id: ServerId,
}

impl HomeOpened {
    async fn open(args: &VmKeepArgs, home: &Home, folder: &MachineFolder) -> Result<Self> {
        let config = Config::of(home)?;
        // As patient as a server: a guest whose memory cannot be had cannot go on.
        let engine = Engine::open(home, &config, StoreUse::Keeper).await?;
        let parcel = match &args.parcel {
            Some(name) => Some(Parcel::find(&engine.store, name).await?),
            None => None,
        };
        // Under the lock: nobody who resumes another parcel puts another description there meanwhile.
        if let Some(parcel) = &parcel {
            folder.put(&parcel.spec)?;
        }
        let id = engine.disks.server().await?;
        Ok(Self { engine, parcel, id })
    }
}

/// The keeper of a machine.
pub(super) struct Keeper<'a> {
    qemu: PathBuf,
    pub(super) home: &'a Home,
    pub(super) folder: &'a MachineFolder,
    pub(super) id: ServerId,
    pub(super) engine: &'a Arc<Engine>,
    pub(super) server: &'a DiskServer,
    pub(super) requests: &'a mut Requests,
    /// A signal or a command had a start end.
    is_to_end: bool,
}

/// Who waits for a machine's end, and what is answered then.
pub(super) struct Farewell {
    pub(super) stream: UnixStream,
    pub(super) reply: Result<KeeperReply>,
}

/// What came of making a parcel.
enum Packing {
    Parcel(ParcelReport),
    Kept(KeptReport),
    Failed(Error),
    /// It was given up: the machine is to end. Who asked for that may wait.
    Ended(Option<UnixStream>),
}

/// What came of waiting until a guest has powered off.
enum PoweringOff {
    /// It has, or it is to be ended as if the power failed; who asked for that waits.
    Ended(Option<UnixStream>),
    /// The keeper is to end.
    ToEnd,
    Failed(Error),
}

impl Keeper<'_> {
    /// Does one thing after the other; says whom to answer at the end.
    async fn work(&mut self, args: &VmKeepArgs, parcel: Option<Parcel>) -> Result<Vec<Farewell>> {
        let mut step =
            if args.upload { KeeperStep::Upload(Vec::new()) } else { KeeperStep::Run(None) };
        let mut is_pending = args.pending;
        loop {
            step = match step {
                KeeperStep::Run(asked) => {
                    let pending = match is_pending {
                        true => Some(self.pending()?),
                        false => None,
                    };
                    let server = self.server;
                    tokio::select! {
                        next = self.run(parcel.as_ref(), pending.as_ref(), asked) => next?,
                        never = server.keep_up() => match never {},
                    }
                }
                KeeperStep::Upload(waiting) => match upload::run(self, waiting).await? {
                    UploadEnd::Resume(stream, qemu) => {
                        self.qemu = qemu;
                        KeeperStep::Run(Some(stream))
                    }
                    UploadEnd::End(farewells) => KeeperStep::End(farewells),
                },
                KeeperStep::End(farewells) => return Ok(farewells),
            };
            is_pending = true;
        }
    }

    /// Runs the machine to its end; says what is next.
    async fn run(
        &mut self,
        parcel: Option<&Parcel>,
        pending: Option<&PendingSuspension>,
        asked: Option<UnixStream>,
    ) -> Result<KeeperStep> {
        match (self.start(parcel, pending).await, asked) {
            (Ok(mut machine), asked) => {
                let name = pending.map(PendingSuspension::parcel);
                let name = name.or_else(|| parcel.map(Parcel::name));
                if name.is_some() {
                    machine.set_guest_clock(world::since_1970);
                }
                KeptMachine { machine, parcel: name }.keep(self, asked).await
            }
            (Err(e), None) => Err(e),
            // What was kept is there still.
            (Err(e), Some(asked)) => {
                wire::answer(asked, Err(e)).await;
                Ok(match self.is_to_end {
                    true => KeeperStep::End(Vec::new()),
                    false => KeeperStep::Upload(Vec::new()),
                })
            }
        }
    }

    /// What was kept of the machine.
    pub(super) fn pending(&self) -> Result<PendingSuspension> {
        self.folder.pending()?.ok_or_else(|| {
            Error::not_found(format!("nothing is kept here of machine {:?}", self.folder.name()))
        })
    }

    /// Starts the machine. A signal or a command ends that, too: QEMU may wait very long for memory or the store.
    async fn start(
        &mut self,
        parcel: Option<&Parcel>,
        pending: Option<&PendingSuspension>,
    ) -> Result<RunningMachine> {
        let host = MachineHost {
            qemu: self.qemu.clone(),
            directory: self.folder.path().to_owned(),
            nbd: self.server.socket()?,
            server: self.id,
            store: self.engine.store.clone(),
            loader: Arc::clone(self.engine.loader()),
            nearby: Arc::new(NearbyOfHome(Arc::clone(self.engine))),
        };
        let (origin, spec) = match (pending, parcel) {
            (Some(pending), _) => (MachineOrigin::Pending(pending), pending.machine.clone()),
            (None, Some(parcel)) => (MachineOrigin::Parcel(parcel), parcel.spec.clone()),
            (None, None) => (MachineOrigin::Boot, self.folder.spec()?),
        };
        let (tell, end) = watch::channel(false);
        let started = RunningMachine::start(host, spec, origin, self.server, end);
        let mut started = std::pin::pin!(started);
        if let Some(started) = self.requests.unless_ended(&mut started).await {
            return started;
        }
        self.is_to_end = true;
        tell.send_replace(true);
        // It may have come up at the same moment.
        started.await?.give_up(self.server).await;
        Err(start_ended())
    }
}

/// A machine that runs.
struct KeptMachine {
    machine: RunningMachine,
    /// The parcel that it came from, or that was made of it last.
    parcel: Option<String>,
}

impl KeptMachine {
    /// Serves commands until the machine ends.
    async fn keep(
        mut self,
        keeper: &mut Keeper<'_>,
        asked: Option<UnixStream>,
    ) -> Result<KeeperStep> {
        keeper.requests.listen()?;
        // Whatever was said of an earlier suspension: it is not what is kept next.
        keeper.folder.note_not_sent(None)?;
        keeper.folder.note_unreleased(None)?;
        if let Some(stream) = asked {
            wire::answer(stream, self.status(None).await.map(KeeperReply::Status)).await;
        }
        let mut looks = interval(TRIES_AGAIN);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let tries_again = self.machine.try_again_without_room(&mut looks);
            let asked = tokio::select! {
                how = self.machine.ended() => {
                    tracing::warn!(how, "the machine has ended");
                    KeeperInput::ToEnd
                }
                asked = keeper.requests.next() => asked?,
                never = tries_again => match never {},
            };
            match asked {
                KeeperInput::ToEnd => {
                    self.machine.give_up(keeper.server).await;
                    return Ok(KeeperStep::End(Vec::new()));
                }
                KeeperInput::Nothing => {}
                KeeperInput::Command(stream, request) => {
                    if let Some(step) = self.serve(keeper, stream, request).await? {
                        return Ok(step);
                    }
                }
            }
        }
    }

    /// Serves one command; `Some` when the machine does not run any more.
    async fn serve(
        &mut self,
        keeper: &mut Keeper<'_>,
        stream: UnixStream,
        request: Result<KeeperRequest>,
    ) -> Result<Option<KeeperStep>> {
        let reply = match request {
            Err(e) => Err(e),
            Ok(KeeperRequest::Status) => self.status(None).await.map(KeeperReply::Status),
            Ok(KeeperRequest::Resume { .. }) => Err(Error::conflict(format!(
                "machine {:?} runs already; see 'sojourn vm show {}'",
                self.machine.spec().name,
                self.machine.spec().name
            ))),
            Ok(KeeperRequest::Checkpoint) => match self.pack(keeper, true).await? {
                Packing::Parcel(report) => {
                    self.parcel = Some(report.parcel.name());
                    Ok(KeeperReply::Stored(StoredView::new(&report, false)))
                }
                Packing::Ended(by) => {
                    return Ok(Some(self.end_early(keeper.server, stream, by).await));
                }
                Packing::Failed(e) => Err(e),
                Packing::Kept(_) => Err(Error::internal("a checkpoint was kept")),
            },
            Ok(KeeperRequest::Suspend { wait }) => match self.pack(keeper, false).await? {
                Packing::Kept(kept) => {
                    // All is safe: nobody waits for QEMU's end.
                    let waiting = upload::kept(keeper, stream, &kept, wait).await;
                    self.machine.park().await;
                    return Ok(Some(KeeperStep::Upload(waiting)));
                }
                Packing::Parcel(report) => {
                    let reply = Ok(KeeperReply::Stored(self.part(keeper, &report).await));
                    return Ok(Some(KeeperStep::End(vec![Farewell { stream, reply }])));
                }
                Packing::Ended(by) => {
                    return Ok(Some(self.end_early(keeper.server, stream, by).await));
                }
                Packing::Failed(e) => Err(e),
            },
            Ok(KeeperRequest::Stop { force }) => {
                let off = match force {
                    true => PoweringOff::Ended(None),
                    false => self.power_off(keeper).await?,
                };
                match off {
                    PoweringOff::Ended(by) => {
                        self.machine.end().await;
                        let stopped = |stream| Farewell { stream, reply: Ok(KeeperReply::Stopped) };
                        let streams = by.into_iter().chain([stream]);
                        return Ok(Some(KeeperStep::End(streams.map(stopped).collect())));
                    }
                    PoweringOff::ToEnd => {
                        self.machine.give_up(keeper.server).await;
                        let reply = Ok(KeeperReply::Stopped);
                        return Ok(Some(KeeperStep::End(vec![Farewell { stream, reply }])));
                    }
                    PoweringOff::Failed(e) => Err(e),
                }
            }
        };
        wire::answer(stream, reply).await;
        Ok(None)
    }

    /// Makes a parcel, or keeps what becomes one. Meanwhile others are told so, and the machine can be ended: a
    /// disk that is full, or a store that is away, may keep a parcel waiting for ever.
    async fn pack(&self, keeper: &mut Keeper<'_>, run_on: bool) -> Result<Packing> {
        let (machine, server) = (&self.machine, keeper.server);
        let packing = async {
            if run_on {
                return machine
                    .checkpoint(server, &())
                    .await
                    .map_or_else(Packing::Failed, Packing::Parcel);
            }
            match machine.suspend_here(server).await {
                Ok(kept) => Packing::Kept(kept),
                // A disk that cannot wait, such as an ephemeral one.
                Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Conflict) => {
                    tracing::info!(why = e.message(), "the suspension goes to the store at once");
                    let stored = machine.freeze_and_store(server, &()).await;
                    stored.map_or_else(Packing::Failed, Packing::Parcel)
                }
                Err(e) => Packing::Failed(e),
            }
        };
        let mut packing = std::pin::pin!(packing);
        loop {
            let asked = tokio::select! {
                done = &mut packing => return Ok(done),
                asked = keeper.requests.next() => asked?,
            };
            let (stream, request) = match asked {
                KeeperInput::ToEnd => return Ok(Packing::Ended(None)),
                KeeperInput::Nothing => continue,
                KeeperInput::Command(stream, request) => (stream, request),
            };
            let (name, doing) =
                (&machine.spec().name, if run_on { "storing" } else { "suspending" });
            let reply = match request {
                Err(e) => Err(e),
                Ok(KeeperRequest::Status) => {
                    self.status(Some(doing)).await.map(KeeperReply::Status)
                }
                Ok(KeeperRequest::Stop { force: true }) => return Ok(Packing::Ended(Some(stream))),
                Ok(_) => Err(Error::conflict(format!(
                    "a parcel of machine {name:?} is being made; wait for it, or end the machine with 'sojourn vm \
                     stop --force {name}'"
                ))),
            };
            wire::answer(stream, reply).await;
        }
    }

    /// Ends a machine of which a parcel was being made.
    async fn end_early(
        &mut self,
        server: &DiskServer,
        stream: UnixStream,
        by: Option<UnixStream>,
    ) -> KeeperStep {
        match by {
            Some(_) => self.machine.end().await,
            None => self.machine.give_up(server).await,
        }
        let why = "the machine was ended while a parcel of it was made; there is none";
        wire::answer(stream, Err(Error::conflict(why))).await;
        let stopped = |stream| Farewell { stream, reply: Ok(KeeperReply::Stopped) };
        KeeperStep::End(by.map(stopped).into_iter().collect())
    }

    /// Ends a machine whose parcel is made, and releases its disk.
    async fn part(&mut self, keeper: &Keeper<'_>, report: &ParcelReport) -> StoredView {
        if let Err(error) = keeper.folder.note_unreleased(Some(&report.parcel.name())) {
            tracing::warn!(%error, "a keeper that is killed now leaves the disk unreleased");
        }
        self.machine.end().await;
        let released = release::release_disk(keeper, &self.machine.spec().disk).await;
        StoredView::new(report, released)
    }

    /// Has the guest power off. Meanwhile others are told so, and the machine can be ended.
    async fn power_off(&mut self, keeper: &mut Keeper<'_>) -> Result<PoweringOff> {
        let until = Instant::now() + GOODBYE;
        {
            let mut asking = std::pin::pin!(timeout_at(until, self.machine.power_off()));
            loop {
                let asked = tokio::select! {
                    heard = &mut asking => match heard {
                        Ok(Err(e)) => return Ok(PoweringOff::Failed(e)),
                        // Too late, which is said below, or it was heard.
                        _ => break,
                    },
                    asked = keeper.requests.next() => asked?,
                };
                if let Some(off) = self.while_powering_off(asked).await {
                    return Ok(off);
                }
            }
        }
        loop {
            let asked = tokio::select! {
                ended = timeout_at(until, self.machine.ended()) => return Ok(match ended {
                    Ok(_) => PoweringOff::Ended(None),
                    Err(_) => PoweringOff::Failed(Error::unavailable(format!(
                        "the guest does not power off within {} s; 'sojourn vm stop --force' ends it as if the power \
                         failed",
                        GOODBYE.as_secs()
                    ))),
                }),
                asked = keeper.requests.next() => asked?,
            };
            if let Some(off) = self.while_powering_off(asked).await {
                return Ok(off);
            }
        }
    }

    /// Serves a command while the guest powers off; `Some` when it is waited for no more.
    async fn while_powering_off(&self, asked: KeeperInput) -> Option<PoweringOff> {
        let (stream, request) = match asked {
            KeeperInput::ToEnd => return Some(PoweringOff::ToEnd),
            KeeperInput::Nothing => return None,
            KeeperInput::Command(stream, request) => (stream, request),
        };
        let name = &self.machine.spec().name;
        let reply = match request {
            Err(e) => Err(e),
            Ok(KeeperRequest::Status) => {
                self.status(Some("stopping")).await.map(KeeperReply::Status)
            }
            Ok(KeeperRequest::Stop { force: true }) => {
                return Some(PoweringOff::Ended(Some(stream)));
            }
            Ok(_) => Err(Error::conflict(format!(
                "machine {name:?} is to power off; wait for it, or end it with 'sojourn vm stop --force {name}'"
            ))),
        };
        wire::answer(stream, reply).await;
        None
    }

    /// What is said of the machine; `doing` is what keeps it from anything else now.
    async fn status(&self, doing: Option<&str>) -> Result<RunningView> {
        let (spec, parts) = (self.machine.spec(), self.machine.parts());
        Ok(RunningView {
            name: spec.name.clone(),
            state: match doing {
                Some(doing) => doing.to_owned(),
                None => {
                    let machine = &self.machine;
                    state_soon(machine.status(), || machine.waits_for_memory()).await?
                }
            },
            parcel: self.parcel.clone(),
            accelerator: spec.accelerator.to_string(),
            keeper: std::process::id(),
            qemu: self.machine.qemu_id(),
            console: parts.console().display().to_string(),
            screen: spec.screen.then(|| parts.screen().display().to_string()),
            memory_on_demand: self.machine.fetches_as_touched(),
            memory_written: self.machine.ram().written(),
            clock: self.machine.guest_clock(),
            started_seconds: 0.0,
        })
    }
}

/// The state of a machine as QEMU says it, or why it does not say it soon: whoever asks waits for that, and the keeper
/// hears nothing else meanwhile.
///
/// # Errors
/// QEMU's own.
async fn state_soon(
    says: impl Future<Output = Result<String>>,
    waits: impl FnOnce() -> bool,
) -> Result<String> {
    match timeout(SAYS, says).await {
        Ok(state) => state,
        Err(_) => Ok(if waits() { "waiting for memory" } else { "silent" }.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::{pending, ready};

    #[tokio::test(start_paused = true)]
    async fn who_asks_for_the_state_of_a_machine_that_waits_for_memory_is_told_so_before_long() {
        let began = Instant::now();
        assert_eq!(state_soon(pending(), || true).await.unwrap(), "waiting for memory");
        assert_eq!(state_soon(pending(), || false).await.unwrap(), "silent");
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "who lists machines waits for two seconds"
        );
        let running = ready(Ok("running".to_owned()));
        assert_eq!(state_soon(running, || true).await.unwrap(), "running");
    }
}
