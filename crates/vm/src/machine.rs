//! A machine that runs: from its start, or from a parcel, to its end.

use crate::abilities::PATIENCE;
use crate::command::{self, MachineParts};
use crate::image::MAX_STATE;
use crate::launch::{self, Launched};
use crate::mount::{self, MountedRam};
use crate::ram::GuestRam;
use crate::save::{self, MachineTail};
use crate::{EXTENT, MachineSpec, Monitor, Parcel, plain, resume_set};
use async_trait::async_trait;
use block::{Error, ErrorKind, Result, Span, offload};
use disk::Loader;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{Progress, RefKind, Store};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

/// The directory of a machine in which its memory is mounted.
pub const MOUNT_POINT: &str = "ram";
/// How often QEMU is asked how far it is.
const STEP: Duration = Duration::from_millis(5);
/// How long QEMU has to write or read the state of its devices.
const STATE_PATIENCE: Duration = Duration::from_secs(300);
/// Extents of a resume set that are fetched at the same time.
const AHEAD: usize = 32;
/// For how long after a resume it is noted what is read.
const NOTED: Duration = Duration::from_secs(10);

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

/// Snapshots of a machine's disk, by whoever serves it.
#[async_trait]
pub trait SnapshotDisk: Send + Sync {
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
#[derive(Debug, Clone)]
pub struct MachineHost {
    /// The program.
    pub qemu: PathBuf,
    /// The machine's own directory: sockets, logs, memory.
    pub directory: PathBuf,
    /// The NBD socket of the server that has its disk.
    pub nbd: PathBuf,
    /// The store.
    pub store: Store,
    /// Through which its memory is read.
    pub loader: Arc<Loader>,
}

/// What making a parcel came to.
#[derive(Debug, Clone, PartialEq)]
pub struct ParcelReport {
    /// The parcel.
    pub parcel: Parcel,
    /// For how long the guest stood still, in seconds; of a suspend, until all was stored.
    pub paused: f64,
    /// Until the parcel was in the store, in seconds.
    pub stored: f64,
    /// Bytes of chunks that the memory added to the store.
    pub memory_bytes: u64,
    /// Extents of memory that changed.
    pub changed: u64,
    /// Extents of these that were stored in full.
    pub full: u64,
}

/// Where the guest's memory is.
enum MappedMemory {
    /// Fetched as it is touched.
    Mounted(MountedRam),
    /// Fetched before the guest went on.
    File(PathBuf),
}

/// A machine that runs, or is paused.
pub struct RunningMachine {
    host: MachineHost,
    spec: MachineSpec,
    parts: MachineParts,
    qemu: Launched,
    monitor: Monitor,
    ram: Arc<GuestRam>,
    memory: Option<MappedMemory>,
    /// Fetches ahead; ends with the machine.
    _ahead: JoinSet<()>,
    /// Which extents were read first, once that is known.
    touched: Arc<parking_lot::Mutex<Vec<u32>>>,
}

impl RunningMachine {
    /// Starts a machine, or goes on with a parcel of it.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) with QEMU's own words when it ends; those of the store and
    /// the file system.
    pub async fn start(
        host: MachineHost,
        spec: MachineSpec,
        parcel: Option<&Parcel>,
    ) -> Result<Self> {
        spec.check()?;
        let base = match parcel {
            Some(parcel) => Some(parcel.image(&host.store, &host.loader).await?),
            None => None,
        };
        let ram = GuestRam::new(&host.directory, spec.memory, base.clone())?;
        let (mount, at) = (Arc::clone(&ram), host.directory.join(MOUNT_POINT));
        let mut ahead = JoinSet::new();
        let touched = Arc::default();
        if let Some(base) = base.clone() {
            // The oldest parcel has none, and one that is damaged only makes the resume slow.
            let set = base.resume_set().await.unwrap_or_default();
            ahead.spawn(async move { fetch_ahead(&base, &set).await });
            ahead.spawn(note_reads(Arc::clone(&ram), Arc::clone(&touched)));
        }
        let memory = match MountedRam::new(&at, mount) {
            Ok(mounted) => MappedMemory::Mounted(mounted),
            Err(e) if e.kind() == ErrorKind::Unsupported => {
                tracing::warn!(error = %e, "all memory is fetched before the guest goes on");
                let path = host.directory.join("memory");
                plain::fill(&ram, &path).await?;
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
        for socket in [parts.monitor(), parts.console(), parts.screen()] {
            let _ = std::fs::remove_file(socket);
        }
        let arguments = command::arguments(&spec, &parts, parcel.is_some());
        let mut qemu = launch::qemu(&host.qemu, &arguments, &parts.log())?;
        let socket = parts.monitor();
        let connected = tokio::select! {
            monitor = Monitor::connect(&socket, PATIENCE) => monitor,
            ended = qemu.ended() => Err(ended),
        };
        let monitor = match connected {
            Ok(monitor) => monitor,
            Err(e) => {
                qemu.kill();
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
            monitor,
            ram,
            memory: Some(memory),
            _ahead: ahead,
            touched,
        };
        match machine.go(base).await {
            Ok(()) => Ok(machine),
            Err(e) => {
                let e = match e.kind() {
                    ErrorKind::Unavailable => machine.qemu.why_it_ended(e).await,
                    _ => e,
                };
                machine.end().await;
                Err(e)
            }
        }
    }

    /// Lets the guest run: from its start, or as a parcel says.
    async fn go(&mut self, base: Option<Arc<crate::MemoryImage>>) -> Result<()> {
        if let Some(base) = base {
            let state = base.state().await?;
            self.load(&state).await?;
        }
        self.run().await
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

    /// QEMU's process id.
    pub fn qemu_id(&self) -> u32 {
        self.qemu.id()
    }

    /// Its state in QEMU's words, such as `running` or `paused`.
    ///
    /// # Errors
    /// Those of the monitor.
    pub async fn status(&self) -> Result<String> {
        self.monitor.status().await
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

    /// Ends QEMU in an orderly way; what the guest has in its memory is lost.
    pub async fn end(&mut self) {
        self.ram.give_up();
        // It may be gone before it answers.
        let _ = timeout(PATIENCE, self.monitor.execute("quit", Value::Null)).await;
        if timeout(PATIENCE, self.qemu.wait()).await.is_err() {
            self.qemu.kill();
            self.qemu.wait().await;
        }
        unmount(self.memory.take()).await;
    }

    /// Makes a parcel of the machine as it is now, and lets it run on.
    ///
    /// # Errors
    /// Those of the disk's server, the store and QEMU; the machine runs on then, too.
    pub async fn checkpoint(
        &self,
        disk: &dyn SnapshotDisk,
        progress: &dyn Progress,
    ) -> Result<ParcelReport> {
        self.pack(disk, progress, true).await
    }

    /// Makes a parcel of the machine, and ends it.
    ///
    /// # Errors
    /// As [`checkpoint`](Self::checkpoint); the machine runs on then.
    pub async fn suspend(
        &mut self,
        disk: &dyn SnapshotDisk,
        progress: &dyn Progress,
    ) -> Result<ParcelReport> {
        let report = self.pack(disk, progress, false).await?;
        self.end().await;
        Ok(report)
    }

    /// Makes a parcel. The guest stands still until its memory is frozen and its disk is stored, and goes on
    /// then if it is to run on.
    async fn pack(
        &self,
        disk: &dyn SnapshotDisk,
        progress: &dyn Progress,
        run_on: bool,
    ) -> Result<ParcelReport> {
        let store = &self.host.store;
        let name = &self.spec.name;
        let began = Instant::now();
        let session = store.session(&format!("parcel of machine {name}")).await?;
        let outcome = self.pack_in(&session, disk, progress, run_on, began).await;
        let outcome = session.close(outcome).await;
        if outcome.is_err()
            && let Err(error) = self.run().await
        {
            tracing::error!(machine = name, %error, "the guest stays paused");
        }
        outcome
    }

    async fn pack_in(
        &self,
        session: &store::Session,
        disk: &dyn SnapshotDisk,
        progress: &dyn Progress,
        run_on: bool,
        began: Instant,
    ) -> Result<ParcelReport> {
        let (store, spec) = (&self.host.store, &self.spec);
        let before = Parcel::newest(store, &spec.name).await?;
        if let Some(before) = before.as_ref().filter(|before| before.spec.uuid != spec.uuid) {
            return Err(Error::conflict(format!(
                "parcel {} is of another machine that has the same name; remove one of the two",
                before.name()
            )));
        }
        let number = before.map_or(1, |before| before.number + 1);
        let snapshot = Parcel::snapshot_name(&spec.name, number);
        let full = format!("{}@{snapshot}", spec.disk);
        // A try that was killed may have left its snapshot; no parcel names it.
        if store.refs().get(RefKind::Snapshot, &full).await?.is_some() {
            disk.remove_snapshot(&spec.disk, &snapshot).await?;
        }
        self.monitor.execute("stop", Value::Null).await?;
        let stopped = Instant::now();
        let state = self.save_state().await?;
        self.collect().await?;
        let frozen = self.ram.freeze()?;
        disk.snapshot(&spec.disk, &snapshot).await?;
        let found = session.hold(RefKind::Snapshot, &full).await?;
        let contents = found.and_then(|found| found.body.manifest).ok_or_else(|| {
            Error::conflict(format!(
                "snapshot {full} was removed while machine {:?} was saved",
                spec.name
            ))
        })?;
        if run_on {
            self.run().await?;
        }
        let mut paused = stopped.elapsed().as_secs_f64();
        let base = frozen.base().cloned();
        let set = resume_set::encode(&self.first_reads(base.as_deref()).await);
        let tail = MachineTail { state: &state, resume_set: &set };
        let saved = save::memory(session, base.as_deref(), &frozen, tail, progress).await?;
        let parcel = Parcel::publish(session, spec, number, &saved, contents).await?;
        frozen.stored(parcel.image(store, &self.host.loader).await?);
        if !run_on {
            paused = stopped.elapsed().as_secs_f64();
        }
        Ok(ParcelReport {
            parcel,
            paused,
            stored: began.elapsed().as_secs_f64(),
            memory_bytes: saved.imported.stats.stored_bytes,
            changed: saved.changed,
            full: saved.full,
        })
    }

    /// Which extents the next resume should have fetched ahead: those that the last one read first, or those
    /// that the one before it did if this machine did not come from a parcel.
    async fn first_reads(&self, base: Option<&crate::MemoryImage>) -> Vec<u32> {
        let seen = self.touched.lock().clone();
        match base {
            _ if !seen.is_empty() => seen,
            Some(base) => base.resume_set().await.unwrap_or_default(),
            None => Vec::new(),
        }
    }

    /// Has all that the guest changed in its memory in our hands. The guest is stopped.
    async fn collect(&self) -> Result<()> {
        match &self.memory {
            Some(MappedMemory::Mounted(mounted)) => mount::write_back(&mounted.file()).await,
            Some(MappedMemory::File(path)) => plain::collect(&self.ram, path).await,
            None => Err(Error::conflict("the machine has ended")),
        }
    }

    async fn run(&self) -> Result<()> {
        self.monitor.execute("cont", Value::Null).await.map(drop)
    }

    /// Memory is a file that both sides have, and no part of the state.
    async fn leave_memory_out(&self) -> Result<()> {
        let capability =
            json!({"capabilities": [{"capability": "x-ignore-shared", "state": true}]});
        self.monitor.execute("migrate-set-capabilities", capability).await.map(drop)
    }

    /// The state of the devices. The guest is stopped.
    async fn save_state(&self) -> Result<Vec<u8>> {
        let path = self.host.directory.join("state.sock");
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(|e| Error::io(path.display(), e))?;
        self.leave_memory_out().await?;
        let no_limit = json!({"max-bandwidth": 1u64 << 40});
        self.monitor.execute("migrate-set-parameters", no_limit).await?;
        self.monitor.execute("migrate", json!({"uri": format!("unix:{}", path.display())})).await?;
        let receive = async {
            let (stream, _) = listener.accept().await.map_err(lost_state)?;
            let mut state = Vec::new();
            stream.take(MAX_STATE + 1).read_to_end(&mut state).await.map_err(lost_state)?;
            Ok(state)
        };
        let state =
            timeout(STATE_PATIENCE, async { tokio::try_join!(receive, self.migrated()) }).await;
        let _ = std::fs::remove_file(&path);
        let (state, ()) = state
            .map_err(|_| Error::unavailable("QEMU does not finish the state of its devices"))??;
        if state.len() as u64 > MAX_STATE {
            return Err(Error::unsupported(
                "the state of the machine's devices is too long; a device of it is not meant to be suspended",
            ));
        }
        Ok(state)
    }

    async fn migrated(&self) -> Result<()> {
        loop {
            let answer = self.monitor.execute("query-migrate", Value::Null).await?;
            match answer["status"].as_str() {
                Some("completed") => return Ok(()),
                Some("failed" | "cancelled") => {
                    let why =
                        answer["error-desc"].as_str().unwrap_or("it does not say why").to_owned();
                    return Err(Error::unsupported(format!(
                        "QEMU cannot save the state of its devices: {why}"
                    )));
                }
                _ => sleep(STEP).await,
            }
        }
    }

    /// Gives QEMU the state of its devices.
    async fn load(&mut self, state: &[u8]) -> Result<()> {
        let path = self.host.directory.join("state.sock");
        let _ = std::fs::remove_file(&path);
        self.leave_memory_out().await?;
        self.monitor
            .execute("migrate-incoming", json!({"uri": format!("unix:{}", path.display())}))
            .await?;
        let monitor = &self.monitor;
        let loaded = async {
            let mut stream = UnixStream::connect(&path).await.map_err(lost_state)?;
            stream.write_all(state).await.map_err(lost_state)?;
            stream.shutdown().await.map_err(lost_state)?;
            while monitor.status().await? == "inmigrate" {
                sleep(STEP).await;
            }
            Ok(())
        };
        let outcome = tokio::select! {
            loaded = timeout(STATE_PATIENCE, loaded) => {
                loaded.unwrap_or_else(|_| Err(Error::unavailable("QEMU does not take the state of its devices")))
            }
            ended = self.qemu.ended() => Err(ended),
        };
        let _ = std::fs::remove_file(&path);
        match outcome {
            // When it refuses a state it says why and ends.
            Err(e) if e.kind() == ErrorKind::Unavailable => {
                let _ = timeout(Duration::from_secs(1), self.qemu.wait()).await;
                Err(e.context(format!(
                    "QEMU does not go on with the machine: {}",
                    self.qemu.last_words()
                )))
            }
            other => other,
        }
    }
}

fn lost_state(e: std::io::Error) -> Error {
    Error::unavailable(format!("the state of the machine's devices was cut off: {e}"))
}

/// Fetches a resume set, in its order, some extents at a time.
async fn fetch_ahead(base: &Arc<crate::MemoryImage>, set: &[u32]) {
    let mut running = JoinSet::new();
    for extent in set {
        if running.len() >= AHEAD {
            running.join_next().await;
        }
        let start = u64::from(*extent) * EXTENT;
        let span = Span::between(start, (start + EXTENT).min(base.layout().memory));
        let base = Arc::clone(base);
        running.spawn(async move {
            let mut buf = vec![0; span.len() as usize];
            // What cannot be had now is fetched when the guest asks for it.
            let _ = base.read(span, &mut buf).await;
        });
    }
    while running.join_next().await.is_some() {}
}

/// Notes for a while what a machine reads of the parcel that it came from.
async fn note_reads(ram: Arc<GuestRam>, touched: Arc<parking_lot::Mutex<Vec<u32>>>) {
    sleep(NOTED).await;
    *touched.lock() = ram.stop_noting();
}

/// The program that is used unless another is named.
pub fn default_qemu() -> &'static Path {
    Path::new("qemu-system-x86_64")
}
