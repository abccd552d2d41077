//! The keeper: the process that a running machine belongs to. It owns QEMU and the machine's memory, and
//! listens for commands. It outlives the terminal; QEMU does not outlive it.

use self::machine::KeptMachine;
use self::upload::{UploadEnd, UploadWaiter};
use super::disks::DiskServer;
use super::folder::MachineFolder;
use super::nearby::NearbyOfHome;
use super::requests::{Requests, start_ended};
use super::wire::{self, KeeperReply};
use ::vm::machine::{MachineHost, MachineOrigin};
use ::vm::{Parcel, PendingSuspension, RunningMachine};
use block::lock::LockFile;
use block::{Error, ErrorKind, Result};
use engine::{Config, Engine, Home, StoreUse, world};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use store::ServerId;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

mod machine;
mod release;
mod spawn;
mod upload;

pub(super) use spawn::{KeepFor, MemoryFill, send_behind, spawn};

/// How long a keeper tries to have its machine, and how often.
const TAKES: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);

/// Arguments of `sojourn vm keep`.
#[derive(Debug, clap::Args)]
pub(crate) struct VmKeepArgs {
    /// The machine's name
    name: String,
    /// The QEMU to use
    #[arg(long)]
    qemu: PathBuf,
    /// The parcel to go on with, as whoever looked for it just now read it
    #[arg(long, value_name = "JSON")]
    parcel: Option<String>,
    /// Go on with what was kept here when the machine was suspended
    #[arg(long, conflicts_with = "parcel")]
    pending: bool,
    /// Send what was kept here, and run nothing
    #[arg(long, conflicts_with_all = ["parcel", "pending"])]
    upload: bool,
    /// Fetch nothing of the memory but what is touched
    #[arg(long)]
    no_fill: bool,
}

impl VmKeepArgs {
    /// Refuses to boot a machine, or to go on with a parcel of it, that was suspended here: whoever asked for that looked
    /// before this had the machine, and somebody may have suspended it since.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict), with the suspension.
    fn must_leave_nothing_behind(&self, folder: &MachineFolder) -> Result<()> {
        if self.pending || self.upload {
            return Ok(());
        }
        match folder.pending()? {
            None => Ok(()),
            Some(pending) => Err(Error::conflict(format!(
                "machine {:?} was suspended here as {} just now; look at it ('sojourn vm show {}') and try again",
                self.name,
                pending.parcel(),
                self.name
            ))),
        }
    }
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
    let lock = take(&folder).await?;
    args.must_leave_nothing_behind(&folder)?;
    let socket = folder.socket();
    let _ = std::fs::remove_file(&socket);
    let mut requests = Requests::new(&folder)?;
    // What is kept here goes up behind all backs until it is known whether it can.
    if !args.upload {
        requests.listen()?;
    }
    let log = folder.path().join("serve.log");
    let opening = HomeOpened::open(args, home);
    let ended = match DiskServer::find(home, &log, &mut requests, opening).await {
        Ok((server, HomeOpened { engine, parcel, id })) => {
            let mut keeper = Keeper {
                qemu: args.qemu.clone(),
                fill: MemoryFill::unless(args.no_fill),
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

/// Takes the machine for this keeper. The one before may be about to end, and who only looks whether the machine runs
/// has it for a moment.
async fn take(folder: &MachineFolder) -> Result<LockFile> {
    let until = Instant::now() + TAKES;
    loop {
        match folder.lock() {
            Err(e) if e.kind() == ErrorKind::Conflict && Instant::now() < until => {
                sleep(STEP).await;
            }
            other => return other,
        }
    }
}

/// What a keeper needs of its home.
struct HomeOpened {
    engine: Arc<Engine>,
    parcel: Option<Parcel>,
    id: ServerId,
}

impl HomeOpened {
    async fn open(args: &VmKeepArgs, home: &Home) -> Result<Self> {
        let config = Config::of(home)?;
        // As patient as a server: a guest whose memory cannot be had cannot go on.
        let engine = Engine::open(home, &config, StoreUse::Keeper).await?;
        // Whether it is still there is looked at before the machine runs.
        let parcel: Option<Parcel> = match &args.parcel {
            Some(read) => Some(serde_json::from_str(read).map_err(|e| {
                Error::invalid("the parcel to go on with cannot be read").with_source(e)
            })?),
            None => None,
        };
        let id = engine.disks.server().await?;
        Ok(Self { engine, parcel, id })
    }
}

/// The keeper of a machine.
pub(super) struct Keeper<'a> {
    qemu: PathBuf,
    fill: MemoryFill,
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
                    UploadEnd::Resume { asked, qemu, fill } => {
                        (self.qemu, self.fill) = (qemu, fill);
                        KeeperStep::Run(Some(asked))
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
        // There may be no room for that: then nothing has run, and nothing was written to the disk.
        let described = match (pending, parcel) {
            (None, Some(parcel)) => Some(self.folder.write(&parcel.spec)?),
            _ => None,
        };
        match (self.start(parcel, pending).await, asked) {
            (Ok(mut machine), asked) => {
                // Under the lock: nobody who resumes another parcel puts another description there meanwhile. Now that
                // it goes on: a parcel that is gone leaves what the machine was.
                if let Some(described) = described
                    && let Err(e) = self.folder.put_written(described)
                {
                    machine.give_up(self.server).await;
                    return Err(e);
                }
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
        let (origin, spec) = match (pending, parcel) {
            (Some(pending), _) => (MachineOrigin::Pending(pending), pending.machine.clone()),
            (None, Some(parcel)) => {
                // Under the lock: nobody describes another machine here meanwhile.
                self.folder.must_be_of(parcel)?;
                (MachineOrigin::Parcel(parcel), parcel.spec.clone())
            }
            (None, None) => (MachineOrigin::Boot, self.folder.spec()?),
        };
        let is_kept = engine::keeps_what_it_reads(&Config::of(self.home)?, spec.memory);
        let host = MachineHost {
            qemu: self.qemu.clone(),
            directory: self.folder.path().to_owned(),
            nbd: self.server.socket()?,
            server: self.id,
            store: self.engine.store.clone(),
            loader: Arc::clone(self.engine.loader()),
            nearby: Arc::new(NearbyOfHome(Arc::clone(self.engine))),
            fills_memory: is_kept && self.fill == MemoryFill::Behind,
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
