//! The server that has a machine's disk: the one that runs in the home, or one that a keeper starts.

use async_trait::async_trait;
use block::{Error, ErrorKind, Result};
use engine::api::{DiskReply, DiskRequest};
use engine::{Config, Engine, Home, Use, verbs};
use server::api::DrainRequest;
use server::client::Client;
use std::fs::OpenOptions;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use store::{RefKind, Store};
use tokio::time::{Instant, sleep};
use vm::Parcel;
use vm::machine::SnapshotDisk;

/// How long a server has to come up, and to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a server has to notice that a client has ended.
const GOODBYE: Duration = Duration::from_secs(5);
const STEP: Duration = Duration::from_millis(20);

/// Carries out a disk verb, by the server of the home if one runs.
///
/// # Errors
/// Those of the verb.
pub(super) async fn ask(home: &Home, request: DiskRequest) -> Result<DiskReply> {
    if let Some(client) = Client::connect(home).await? {
        return client.disk(&request).await;
    }
    let engine = Engine::open(home, &Config::of(home)?, Use::Command).await?;
    let reply = verbs::perform(&engine, request).await;
    let closed = engine.open.close_all().await;
    let reply = reply?;
    closed?;
    Ok(reply)
}

/// Carries out a verb on a disk whose client has just ended: waits for a server that has not noticed yet.
///
/// # Errors
/// Those of the verb; [`Conflict`](ErrorKind::Conflict) when the disk stays in use.
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

/// Takes a disk, if it is not here already and nobody holds it.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when another server holds it.
pub(super) async fn bring(home: &Home, disk: &str) -> Result<()> {
    match ask(home, DiskRequest::Show { name: disk.to_owned() }).await {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            ask(home, DiskRequest::Take { name: disk.to_owned(), force: false }).await.map(drop)
        }
        other => other.map(drop),
    }
}

/// Whether the disk of a machine holds what it did when a parcel was made, and is here or released.
///
/// # Errors
/// Those of the store and the server.
pub(super) async fn is_of(home: &Home, store: &Store, parcel: &Parcel) -> Result<bool> {
    let disk = &parcel.spec.disk;
    let Some(found) = store.refs().get(RefKind::Disk, disk).await? else {
        return Err(Error::not_found(format!(
            "disk {disk:?} of parcel {} is gone from the store; the snapshot {disk}@{} may still be there",
            parcel.name(),
            parcel.snapshot
        )));
    };
    if found.body.manifest != Some(parcel.disk) {
        return Ok(false);
    }
    match ask(home, DiskRequest::Show { name: disk.clone() }).await {
        Ok(DiskReply::Disk(view)) => Ok(view.private_bytes == 0),
        Ok(_) => Err(Error::internal("a disk was asked for, and something else came")),
        // Whoever has it says so when it is taken.
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// The server that has the disk of a running machine.
pub(super) struct DiskServer {
    home: Home,
    /// The one that was started for this machine.
    own: Option<Child>,
}

impl DiskServer {
    /// The server of the home; one is started if none runs, and ends with the machine.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when it does not come up, with the path of its log.
    pub(super) async fn find(home: &Home, log: &Path) -> Result<Self> {
        if Client::connect(home).await?.is_some() {
            return Ok(Self { home: home.clone(), own: None });
        }
        let mut server = Self { home: home.clone(), own: Some(spawn(home, log)?) };
        let until = Instant::now() + PATIENCE;
        while Client::connect(home).await?.is_none() {
            let ended =
                server.own.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || Instant::now() > until {
                return Err(Error::unavailable(format!(
                    "a server for the machine's disk does not come up; see {}",
                    log.display()
                )));
            }
            sleep(STEP).await;
        }
        Ok(server)
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
    /// Those of the verb.
    pub(super) async fn release(&self, disk: &str) -> Result<()> {
        ask_once_free(&self.home, DiskRequest::Release { name: disk.to_owned() }).await.map(drop)
    }

    /// Has the server end, if it was started for this machine: once nobody uses it any more.
    pub(super) async fn leave(mut self) {
        let Some(mut own) = self.own.take() else { return };
        if let Ok(Some(client)) = Client::connect(&self.home).await {
            let drained = client.drain(&DrainRequest { seconds: None, to_successor: false }).await;
            if let Err(error) = drained {
                tracing::warn!(%error, "the server that was started for the machine stays");
            }
        }
        // Others may have machines on it: then it ends after theirs.
        let until = Instant::now() + Duration::from_secs(10);
        while matches!(own.try_wait(), Ok(None)) && Instant::now() < until {
            sleep(STEP).await;
        }
    }
}

#[async_trait]
impl SnapshotDisk for DiskServer {
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
/// Those of the system.
pub(super) fn program(home: &Home, log: &Path) -> Result<Command> {
    let failed = |e| Error::io(log.display(), e);
    let file = OpenOptions::new().create(true).append(true).open(log).map_err(failed)?;
    let exe = std::env::current_exe().map_err(|e| Error::io("the path of this program", e))?;
    let mut command = Command::new(exe);
    command.arg("--home").arg(home.dir());
    if let Some(key_file) = home.key_file() {
        command.arg("--key-file").arg(key_file);
    }
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
    Ok(command)
}

fn spawn(home: &Home, log: &Path) -> Result<Child> {
    program(home, log)?.arg("serve").spawn().map_err(|e| Error::io("cannot start a server", e))
}
