//! The keeper: the process that a running machine belongs to. It owns QEMU and the machine's memory, and
//! listens for commands. It outlives the terminal; QEMU does not outlive it.

use super::disks::{self, DiskServer};
use super::folder::MachineFolder;
use super::wire::{self, KeeperReply, KeeperRequest, RunningView, StoredView, kind_of};
use ::vm::machine::MachineHost;
use ::vm::{Parcel, RunningMachine};
use block::{Error, Result};
use engine::{Config, Engine, Home, Use};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{Instant, sleep, timeout};

/// How often a keeper that comes up is looked for.
const STEP: Duration = Duration::from_millis(10);
/// How long a guest has to power off when it is asked to.
const GOODBYE: Duration = Duration::from_secs(90);

/// Arguments of `sojourn vm keep`.
#[derive(Debug, clap::Args)]
pub(crate) struct Keep {
    /// The machine's name
    name: String,
    /// The QEMU to use
    #[arg(long)]
    qemu: PathBuf,
    /// The parcel to go on with
    #[arg(long)]
    parcel: Option<String>,
}

/// Starts a keeper, and waits until its machine runs.
///
/// # Errors
/// The keeper's own.
pub(super) async fn spawn(
    home: &Home,
    folder: &MachineFolder,
    qemu: &Path,
    parcel: Option<&Parcel>,
) -> Result<RunningView> {
    let began = Instant::now();
    let log = folder.log();
    let said = std::fs::metadata(&log).map_or(0, |metadata| metadata.len());
    let mut command = disks::program(home, &log)?;
    command.args(["vm", "keep", folder.name(), "--qemu"]).arg(qemu);
    if let Some(parcel) = parcel {
        command.args(["--parcel", &parcel.name()]);
    }
    let mut child = command.spawn().map_err(|e| Error::io("cannot start a keeper", e))?;
    loop {
        if let Some(KeeperReply::Status(mut status)) =
            wire::call(folder, &KeeperRequest::Status).await?
            && status.keeper == child.id()
        {
            status.started_seconds = began.elapsed().as_secs_f64();
            return Ok(status);
        }
        if let Ok(Some(status)) = child.try_wait() {
            let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
            return Err(Error::new(kind_of(code), last_line(&log, said)));
        }
        sleep(STEP).await;
    }
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

/// Keeps a machine until it ends.
pub(super) async fn run(args: &Keep, home: &Home) -> Result<()> {
    // A terminal that closes ends its session, and not this. Fails for the leader of a group, which it is
    // when nobody's terminal started it.
    let _ = rustix::process::setsid();
    let folder = MachineFolder::of(home, &args.name)?;
    let lock = folder.lock()?;
    let spec = folder.spec()?;
    let socket = folder.socket();
    let _ = std::fs::remove_file(&socket);
    let config = Config::of(home)?;
    // As patient as a server: a guest whose memory cannot be had cannot go on.
    let engine = Engine::open(home, &config, Use::Server).await?;
    let parcel = match &args.parcel {
        Some(name) => Some(Parcel::find(&engine.store, name).await?),
        None => None,
    };
    let server = DiskServer::find(home, &folder.path().join("serve.log")).await?;
    let outcome = async {
        let host = MachineHost {
            qemu: args.qemu.clone(),
            directory: folder.path().to_owned(),
            nbd: server.socket()?,
            store: engine.store.clone(),
            loader: Arc::clone(engine.loader()),
        };
        let machine = RunningMachine::start(host, spec, parcel.as_ref()).await?;
        let listener = UnixListener::bind(&socket).map_err(|e| Error::io(socket.display(), e))?;
        let parcel = parcel.map(|parcel| parcel.name());
        KeptMachine { machine, server: &server, parcel }.keep(&listener).await
    }
    .await;
    let _ = std::fs::remove_file(&socket);
    server.leave().await;
    drop(lock);
    // Whoever asked may start the machine again at once.
    if let Some(Farewell { stream, reply }) = outcome? {
        wire::answer(stream, Ok(reply)).await;
    }
    Ok(())
}

/// A machine that runs.
struct KeptMachine<'a> {
    machine: RunningMachine,
    server: &'a DiskServer,
    /// The parcel that it came from.
    parcel: Option<String>,
}

/// Who waits for the machine's end, and what is answered then.
struct Farewell {
    stream: UnixStream,
    reply: KeeperReply,
}

impl KeptMachine<'_> {
    /// Serves commands until the machine ends.
    async fn keep(mut self, listener: &UnixListener) -> Result<Option<Farewell>> {
        let failed = |e| Error::io("signals", e);
        let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
        loop {
            tokio::select! {
                how = self.machine.ended() => {
                    tracing::warn!(how, "the machine has ended");
                    self.machine.end().await;
                    return Ok(None);
                }
                _ = terminate.recv() => {
                    self.machine.end().await;
                    return Ok(None);
                }
                accepted = listener.accept() => {
                    let (stream, _) = accepted.map_err(|e| Error::io("the keeper's socket", e))?;
                    if let Some(farewell) = self.serve(stream).await {
                        return Ok(Some(farewell));
                    }
                }
            }
        }
    }

    /// Serves one command; `Some` when the machine has ended by it.
    async fn serve(&mut self, mut stream: UnixStream) -> Option<Farewell> {
        let request = timeout(Duration::from_secs(5), wire::receive(&mut stream)).await.ok()?;
        let reply = match request {
            Err(e) => Err(e),
            Ok(KeeperRequest::Status) => self.status().await.map(KeeperReply::Status),
            Ok(KeeperRequest::Checkpoint) => {
                let made = self.machine.checkpoint(self.server, &()).await;
                made.map(|report| KeeperReply::Stored(StoredView::new(&report, false)))
            }
            Ok(KeeperRequest::Suspend) => match self.suspend().await {
                Ok(view) => return Some(Farewell { stream, reply: KeeperReply::Stored(view) }),
                Err(e) => Err(e),
            },
            Ok(KeeperRequest::Stop { force }) => match self.stop(force).await {
                Ok(()) => return Some(Farewell { stream, reply: KeeperReply::Stopped }),
                Err(e) => Err(e),
            },
        };
        wire::answer(stream, reply).await;
        None
    }

    async fn suspend(&mut self) -> Result<StoredView> {
        let report = self.machine.suspend(self.server, &()).await?;
        let disk = &self.machine.spec().disk;
        let released = self.server.release(disk).await;
        if let Err(error) = &released {
            tracing::warn!(disk, %error, "the disk is not released; 'sojourn disk release' does it");
        }
        Ok(StoredView::new(&report, released.is_ok()))
    }

    async fn stop(&mut self, force: bool) -> Result<()> {
        if !force {
            self.machine.power_off().await?;
            if timeout(GOODBYE, self.machine.ended()).await.is_err() {
                return Err(Error::unavailable(format!(
                    "the guest does not power off within {} s; 'sojourn vm stop --force' ends it as if the power failed",
                    GOODBYE.as_secs()
                )));
            }
        }
        self.machine.end().await;
        Ok(())
    }

    async fn status(&self) -> Result<RunningView> {
        let (spec, parts) = (self.machine.spec(), self.machine.parts());
        Ok(RunningView {
            name: spec.name.clone(),
            state: self.machine.status().await?,
            parcel: self.parcel.clone(),
            accelerator: spec.accelerator.to_string(),
            keeper: std::process::id(),
            qemu: self.machine.qemu_id(),
            console: parts.console().display().to_string(),
            screen: spec.screen.then(|| parts.screen().display().to_string()),
            memory_on_demand: self.machine.fetches_as_touched(),
            memory_written: self.machine.ram().written(),
            started_seconds: 0.0,
        })
    }
}
