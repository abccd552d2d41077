//! The server that has a machine's disk: the one that runs in the home, or one that a keeper starts and all share.

use super::folder::MachineFolder;
use super::requests::{Requests, start_ended};
use super::sharing::{LastUse, ServerUse};
use async_trait::async_trait;
use block::program::own_program;
use block::{Error, ErrorKind, Result};
use engine::api::{DiskReply, DiskRequest};
use engine::{Config, Engine, Home, StoreUse, verbs};
use server::api::DrainRequest;
use server::background;
use server::client::ControlClient;
use std::convert::Infallible;
use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::{ManifestId, RefKind, Store};
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep, timeout};
use vm::claim::ClaimState;
use vm::machine::MachineDisk;
use vm::{Parcel, PendingSuspension};

/// How long a server has to come up.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server has to notice that a client has ended.
const GOODBYE: Duration = Duration::from_secs(5);
/// How long a server has to end that nobody uses any more.
const ENDS: Duration = Duration::from_secs(10);
/// How long a server that finds the home taken waits for the one that has it, before it is started again; and how long
/// whoever started a server that has ended may take to start it again.
const AGAIN: Duration = Duration::from_secs(3);
/// How soon it is tried again to have a server for a machine that runs.
const RETRY: Duration = Duration::from_secs(10);
/// How often it is looked whether the server of a machine that runs has ended.
const LOOKS: Duration = Duration::from_secs(1);
const STEP: Duration = Duration::from_millis(20);
/// How long a server has to say what it knows by itself: who asked for that may keep others waiting.
const SAYS: Duration = Duration::from_secs(1);

/// Carries out a disk verb, by the server of the home if one runs.
///
/// # Errors
/// Any error from the verb.
pub(super) async fn ask(home: &Home, request: DiskRequest) -> Result<DiskReply> {
    if let Some(client) = ControlClient::connect(home).await? {
        return client.disk(&request).await;
    }
    let engine = Engine::open(home, &Config::of(home)?, StoreUse::Command).await?;
    perform(&engine, request).await
}

/// The same, by `engine` where no server runs: to open the store each time costs a round trip.
///
/// # Errors
/// Any error from the verb.
async fn ask_or(home: &Home, engine: &Engine, request: DiskRequest) -> Result<DiskReply> {
    match ControlClient::connect(home).await? {
        Some(client) => client.disk(&request).await,
        None => perform(engine, request).await,
    }
}

/// Carries out a disk verb, and lets go of the disk.
async fn perform(engine: &Engine, request: DiskRequest) -> Result<DiskReply> {
    let reply = verbs::perform(engine, request).await;
    let closed = engine.open.close_all().await;
    let reply = reply?;
    closed?;
    Ok(reply)
}

/// Carries out a verb on a disk whose client has just ended: waits for a server that has not noticed yet.
///
/// # Errors
/// Any error from the verb; [`Conflict`](ErrorKind::Conflict) when the disk stays in use.
pub(super) async fn ask_once_free(home: &Home, request: DiskRequest) -> Result<DiskReply> {
    let until = Instant::now() + GOODBYE;
    loop {
        match ask(home, request.clone()).await {
            Err(e) if e.kind() == ErrorKind::Conflict && Instant::now() < until => {
                sleep(STEP).await;
            }
            other => return other,
        }
    }
}

/// Takes the disk of a machine, if it is not here already and nobody holds it; whether it was here. `claimed` is what the
/// store says of the machine; `lost` vouches that a host which fell silent is gone.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when another server holds it, or another host has the machine.
pub(super) async fn bring(
    home: &Home,
    engine: &Engine,
    disk: &str,
    (claimed, lost): (&ClaimState, bool),
) -> Result<bool> {
    let name = disk.to_owned();
    match ask_or(home, engine, DiskRequest::Show { name: name.clone() }).await {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            // Whoever says that the host is gone for good was told what is lost with it.
            let lost = claimed.must_allow_taking(&engine.store, disk, lost).await?;
            let take = DiskRequest::Take { name, force: false, lost };
            ask_or(home, engine, take).await.map(|_| false)
        }
        other => other.map(|_| true),
    }
}

/// Gives up a disk that was taken for a machine which did not come to run: nothing of it is here alone.
pub(super) async fn give_back(home: &Home, folder: &MachineFolder, disk: &str) {
    let released = async {
        // Another keeper may have the machine by now.
        let _lock = folder.must_stay_down()?;
        ask_once_free(home, DiskRequest::Release { name: disk.to_owned() }).await
    };
    if let Err(error) = released.await {
        tracing::warn!(disk, %error, "the disk that was taken stays here; 'sojourn disk release' gives it up");
    }
}

/// Refuses a disk that is here and was taken from this server: what is here cannot be put back.
///
/// # Errors
/// [`Fenced`](ErrorKind::Fenced), which says what can be done with it.
pub(super) async fn must_not_be_taken(home: &Home, engine: &Engine, disk: &str) -> Result<()> {
    // Opening it finds out.
    let opened = ask_or(home, engine, DiskRequest::Mark { name: disk.to_owned(), set: false });
    match opened.await {
        Err(e) if e.kind() == ErrorKind::Fenced => Err(e),
        _ => Ok(()),
    }
}

/// Whether the disk of a machine holds what it did when a parcel was made, and is here or released.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store or the server does
/// not answer, [`Corrupt`](ErrorKind::Corrupt) when a record is damaged.
pub(super) async fn is_of(home: &Home, engine: &Engine, parcel: &Parcel) -> Result<bool> {
    let disk = &parcel.spec.disk;
    let shown = ask_or(home, engine, DiskRequest::Show { name: disk.clone() });
    let held = holds(&engine.store, disk, &parcel.disk, shown).await;
    held.map_err(|e| e.context(format!("parcel {}", parcel.name())))
}

/// Whether the disk of a machine, which is here, holds what it did when a parcel was made, and nothing that was written
/// since.
///
/// # Errors
/// Any error from the server and the disk.
pub(super) async fn holds_all(home: &Home, engine: &Engine, parcel: &Parcel) -> Result<bool> {
    let (name, manifest) = (parcel.spec.disk.clone(), parcel.disk.to_string());
    match ask_or(home, engine, DiskRequest::Holds { name, manifest }).await? {
        DiskReply::Holds(holds) => Ok(holds),
        _ => Err(Error::internal("a disk was asked for, and something else came")),
    }
}

/// Whether this home has a disk.
///
/// # Errors
/// Any error from the server or the store.
pub(super) async fn is_here(home: &Home, engine: &Engine, disk: &str) -> Result<bool> {
    match ask_or(home, engine, DiskRequest::Show { name: disk.to_owned() }).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Whether a disk holds what a manifest says, and is here or released; `shown` is what shows it.
async fn holds(
    store: &Store,
    disk: &str,
    contents: &ManifestId,
    shown: impl Future<Output = Result<DiskReply>>,
) -> Result<bool> {
    let refs = store.refs();
    let (found, shown) = tokio::join!(refs.get(RefKind::Disk, disk), shown);
    let Some(found) = found? else {
        return Err(Error::not_found(format!("its disk {disk:?} is gone from the store")));
    };
    if found.body.manifest != Some(*contents) {
        return Ok(false);
    }
    match shown {
        Ok(DiskReply::Disk(view)) => Ok(view.private_bytes == 0),
        Ok(_) => Err(Error::internal("a disk was asked for, and something else came")),
        // Whoever has it says so when it is taken.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// The server that has the disk of a machine; keepers share it.
pub(super) struct DiskServer {
    home: Home,
    /// What a server says that is started.
    log: PathBuf,
    using: ServerUse,
    /// The server that was started last.
    own: Mutex<Option<Child>>,
}

impl DiskServer {
    /// The server of the home; one is started if none runs, and ends with the last machine. While it comes up,
    /// `opening` is done.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when it does not come up, with the path of its log;
    /// [`Conflict`](ErrorKind::Conflict) when the keeper is asked to end before it has; any error from `opening`.
    pub(super) async fn find<T>(
        home: &Home,
        log: &Path,
        requests: &mut Requests,
        opening: impl Future<Output = Result<T>>,
    ) -> Result<(Self, T)> {
        let using = ServerUse::begin(home, Instant::now() + PATIENCE);
        let using = requests.unless_ended(using).await;
        let using = using.unwrap_or_else(|| Err(start_ended()))?;
        let mut own = None;
        let coming = async {
            if ControlClient::connect(home).await?.is_none() {
                own = Some(spawn(home, log, &using)?);
            }
            let opened = opening.await?;
            come_up(home, log, &using, &mut own, Instant::now() + PATIENCE).await?;
            Ok(opened)
        };
        let coming = requests.unless_ended(coming).await;
        match coming.unwrap_or_else(|| Err(start_ended())) {
            Ok(opened) => {
                let (home, log) = (home.clone(), log.to_owned());
                Ok((Self { home, log, using, own: Mutex::new(own) }, opened))
            }
            Err(e) => {
                // One that others use by now is ended by the last of them.
                if let Some(mut own) = own
                    && let Some(_last) = using.end()
                {
                    let _ = own.kill();
                }
                Err(e)
            }
        }
    }

    /// Has a server come up whenever the home's has ended, be it that it crashed: a machine that runs waits for its
    /// disk until then. Does not end.
    pub(super) async fn keep_up(&self) -> Infallible {
        loop {
            if let Err(error) = self.replace_once_ended().await {
                tracing::warn!(%error, "the machine has no server for its disk; it is tried again");
                sleep(RETRY).await;
            }
        }
    }

    /// Waits until the server of the home has ended, and has one come up.
    async fn replace_once_ended(&self) -> Result<()> {
        if let Some(client) = ControlClient::connect(&self.home).await? {
            let process = client.process()?;
            drop(client);
            has_ended(process, LOOKS).await?;
            // Who started it, such as systemd, may start it again, and one that handed over has a successor.
            sleep(AGAIN).await;
            if ControlClient::connect(&self.home).await?.is_some() {
                return Ok(());
            }
            tracing::warn!("the server of the machine's disk has ended; another one is started");
        }
        let mut own = self.own.lock().await;
        // The one before has ended, or is about to come up.
        if let Some(child) = own.as_mut()
            && !matches!(child.try_wait(), Ok(None))
        {
            *own = None;
        }
        come_up(&self.home, &self.log, &self.using, &mut own, Instant::now() + PATIENCE).await
    }

    /// Its NBD socket.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) when the configuration gives it none in the file system.
    pub(super) fn socket(&self) -> Result<PathBuf> {
        let config = Config::of(&self.home)?;
        let path = config
            .serve
            .nbd
            .iter()
            .find_map(|place| place.address.strip_prefix("unix:").map(PathBuf::from));
        let path = path.ok_or_else(|| {
            Error::unsupported(format!(
                "a machine reaches its disk by a unix socket: give serve.nbd in {} a place such as \"unix:nbd.sock\"",
                self.home.config().display()
            ))
        })?;
        Ok(self.home.resolve(&path))
    }

    /// Gives a disk up, so that another host can take it. Its client has gone, or is about to.
    ///
    /// # Errors
    /// Any error from the verb.
    pub(super) async fn release(&self, disk: &str) -> Result<()> {
        ask_once_free(&self.home, DiskRequest::Release { name: disk.to_owned() }).await.map(drop)
    }

    /// Leaves the server. The last machine's keeper has it end, if a keeper started it and no other client uses it.
    pub(super) async fn leave(self) {
        let Self { home, using, own, .. } = self;
        let Some(last) = using.end() else { return };
        // One that hangs keeps nobody waiting.
        let process = match timeout(GOODBYE * 2, drain(&home, &last)).await {
            Ok(Ok(Some(process))) => process,
            Ok(Ok(None)) => {
                // One that was to replace another one, and has not come up.
                if let Some(mut own) = own.into_inner()
                    && matches!(ControlClient::connect(&home).await, Ok(None))
                {
                    let _ = own.kill().and_then(|()| own.wait());
                }
                return;
            }
            Ok(Err(error)) => {
                tracing::warn!(%error, "the server that was started for machines stays");
                return;
            }
            Err(_) => {
                tracing::warn!("the server that was started for machines does not answer");
                return;
            }
        };
        // Until then it has the home: whoever starts another one next would be refused.
        let _ = timeout(ENDS, has_ended(process, STEP)).await;
        last.forget_ended();
    }
}

/// Has the server of a home end, if a keeper started it, and once it has noticed that its clients have ended; its process
/// then. One that others use stays as it is: it would serve them on, and take no machine that comes.
///
/// # Errors
/// Any error from the server.
async fn drain(home: &Home, last: &LastUse) -> Result<Option<OwnedFd>> {
    let until = Instant::now() + GOODBYE;
    loop {
        let Some(client) = ControlClient::connect(home).await? else { return Ok(None) };
        let status = client.status().await?;
        if !last.started(status.pid) {
            return Ok(None);
        }
        let initiators = status.iscsi.map_or(0, |iscsi| iscsi.connections);
        let fetching = status.gateway.map_or(0, |gateway| gateway.counters.connections);
        if status.connections + initiators + fetching + status.errands == 0 {
            break;
        }
        // An errand may wait for this keeper.
        if status.errands > 0 || Instant::now() > until {
            tracing::info!("others use the server that was started for machines: it stays");
            return Ok(None);
        }
        sleep(STEP).await;
    }
    let Some(client) = ControlClient::connect(home).await? else { return Ok(None) };
    let process = client.process()?;
    client.drain(&DrainRequest { seconds: None, to_successor: false }).await?;
    Ok(Some(process))
}

/// Waits until a process has ended; looks every `step`.
async fn has_ended(process: OwnedFd, step: Duration) -> Result<()> {
    let again = || process.try_clone().map_err(|e| Error::io("waiting for the server", e));
    // No thread waits for it: a keeper that ends would wait for the thread.
    while !background::ended(again()?, Some(Duration::ZERO)).await? {
        sleep(step).await;
    }
    Ok(())
}

/// The mark of a disk, or a new one.
async fn ask_mark(home: &Home, disk: &str, set: bool) -> Result<Option<String>> {
    match ask(home, DiskRequest::Mark { name: disk.to_owned(), set }).await? {
        DiskReply::Mark(mark) => Ok(mark),
        _ => Err(Error::internal("the mark of a disk was asked for, and something else came")),
    }
}

/// Whether a disk holds what it did when a machine was suspended here.
///
/// # Errors
/// Any error from the server, but for a disk that is not here: that one does not.
pub(super) async fn is_as_suspended(home: &Home, pending: &PendingSuspension) -> Result<bool> {
    match ask_mark(home, &pending.machine.disk, false).await {
        Ok(mark) => Ok(mark.as_ref() == Some(&pending.disk_mark)),
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => Ok(false),
        Err(e) => Err(e),
    }
}

/// The suspension of a machine that is not in the store yet, if the machine can still go on from it.
///
/// # Errors
/// Any error from the file system and the server.
pub(super) async fn pending(
    home: &Home,
    folder: &MachineFolder,
) -> Result<Option<PendingSuspension>> {
    let Some(pending) = folder.pending()? else { return Ok(None) };
    Ok(is_as_suspended(home, &pending).await?.then_some(pending))
}

/// Refuses what would leave behind a suspension that is not in the store yet.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when there is one that the machine can go on from.
pub(super) async fn must_not_be_pending(home: &Home, folder: &MachineFolder) -> Result<()> {
    let Some(pending) = pending(home, folder).await? else { return Ok(()) };
    let (name, parcel) = (folder.name(), pending.parcel());
    Err(Error::conflict(format!(
        "machine {name:?} was suspended here as {parcel}, which is not in the store yet: wait for that ('sojourn vm \
         suspend --wait {name}'), or drop it ('sojourn vm discard {name}')"
    )))
}

/// Bytes of a disk that the store does not have; 0 when that cannot be told soon. The store is not asked.
pub(super) async fn private_bytes(home: &Home, disk: &str) -> u64 {
    let known = async {
        let Some(client) = ControlClient::connect(home).await? else {
            return ::disk::private_bytes(home.disks(), disk).await;
        };
        match client.disk(&DiskRequest::PrivateBytes { name: disk.to_owned() }).await? {
            DiskReply::PrivateBytes(bytes) => Ok(bytes),
            _ => Err(Error::internal("a disk was asked for, and something else came")),
        }
    };
    timeout(SAYS, known).await.map_or(0, |known| known.unwrap_or(0))
}

#[async_trait]
impl MachineDisk for DiskServer {
    async fn holds(&self, disk: &str, contents: &ManifestId) -> Result<bool> {
        let (name, manifest) = (disk.to_owned(), contents.to_string());
        // QEMU uses the disk: the server knows what it holds, and asks nobody.
        match ask(&self.home, DiskRequest::Holds { name, manifest }).await {
            Ok(DiskReply::Holds(holds)) => Ok(holds),
            Ok(_) => Err(Error::internal("a disk was asked for, and something else came")),
            Err(e) => Err(e),
        }
    }

    async fn set_mark(&self, disk: &str) -> Result<String> {
        let mark = ask_mark(&self.home, disk, true).await?;
        mark.ok_or_else(|| Error::internal("a mark was set, and there is none"))
    }

    async fn mark(&self, disk: &str) -> Result<Option<String>> {
        ask_mark(&self.home, disk, false).await
    }

    async fn snapshot(&self, disk: &str, snapshot: &str) -> Result<()> {
        let (name, snapshot) = (disk.to_owned(), snapshot.to_owned());
        ask(&self.home, DiskRequest::Snapshot { name, snapshot }).await.map(drop)
    }

    async fn remove_snapshot(&self, disk: &str, snapshot: &str) -> Result<()> {
        let (name, snapshot) = (disk.to_owned(), snapshot.to_owned());
        ask(&self.home, DiskRequest::RemoveSnapshot { name, snapshot }).await.map(drop)
    }
}

/// This program, on a home, in a group of its own: it outlives the terminal.
///
/// # Errors
/// Any error from the system.
pub(super) fn program(home: &Home, log: &Path) -> Result<Command> {
    let failed = |e| Error::io(log.display(), e);
    let file = OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
    let mut command = Command::new(own_program()?);
    command.arg("--home").arg(home.dir());
    if let Some(key_file) = home.key_file() {
        command.arg("--key-file").arg(key_file);
    }
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    Ok(command)
}

/// Waits until the server of a home answers. Starts one if none runs: that is `own` then.
async fn come_up(
    home: &Home,
    log: &Path,
    using: &ServerUse,
    own: &mut Option<Child>,
    until: Instant,
) -> Result<()> {
    let late = || {
        Error::unavailable(format!(
            "a server for the machine's disk does not come up; see {}",
            log.display()
        ))
    };
    let mut again = Instant::now();
    while ControlClient::connect(home).await?.is_none() {
        match own.as_mut().map(Child::try_wait) {
            None if Instant::now() >= again => {
                *own = Some(spawn(home, log, using)?);
            }
            None | Some(Ok(None)) => {}
            // Another one has the home, and comes up: that of a machine which starts at the same time. If not, it was
            // about to end.
            Some(Ok(Some(status)))
                if status.code() == Some(ErrorKind::Conflict.exit_code().into()) =>
            {
                (*own, again) = (None, Instant::now() + AGAIN);
            }
            Some(_) => return Err(late()),
        }
        if Instant::now() > until {
            return Err(late());
        }
        sleep(STEP).await;
    }
    Ok(())
}

/// Starts a server, and notes it: a keeper that is killed leaves nobody behind.
fn spawn(home: &Home, log: &Path, using: &ServerUse) -> Result<Child> {
    let started = program(home, log)?.args(["serve", "--for-machines"]).spawn();
    let mut child = started.map_err(|e| Error::io("cannot start a server", e))?;
    if let Err(e) = using.note_started(child.id()) {
        // Nobody would end it.
        let _ = child.kill().and_then(|()| child.wait());
        return Err(e);
    }
    Ok(child)
}
