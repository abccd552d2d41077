//! A home's disks and images as exports: every disk by its name, writable; every image version
//! `name:tag`, and `name` for the newest, read-only. Looked up for every client, so that disks and
//! images come and go while the server runs.

use super::process::ClientProcesses;
use access::Refusals;
use async_trait::async_trait;
use block::{ByteSize, Device, Error, ErrorKind, Result};
use disk::{Attachment, Mode, PassedAttachment};
use engine::Engine;
use engine::boots::Boots;
use engine::boots::storms::{BootingGuest, WatchedBoot};
use engine::open::DiskHandle;
use nbd::server::PassedUse;
use nbd::{ExportSummary, Exports, Peer, Purpose, Session, SessionEnding};
use std::sync::Arc;
use std::time::Duration;
use store::{ImageName, images};
use tokio::time::Instant;

/// How long a client waits for a disk that another one has.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits for a disk that is being changed: on busy storage a reset takes seconds.
const CHANGE: Duration = Duration::from_secs(20);
/// How often it tries.
const PAUSE: Duration = Duration::from_millis(20);

/// How much of a name that a client made up is logged, in characters.
const SHOWN: usize = 80;

/// The exports of a home.
pub(crate) struct HomeExports {
    engine: Arc<Engine>,
    /// What the empty name means.
    default: Option<String>,
    boots: Arc<Boots>,
    refusals: Refusals,
    processes: ClientProcesses,
}

impl HomeExports {
    /// The exports of `engine`'s home; a client that names none gets `default`.
    pub(crate) fn new(engine: Arc<Engine>, default: Option<String>, boots: Arc<Boots>) -> Self {
        let (refusals, processes) = (Refusals::default(), ClientProcesses::default());
        Self { engine, default, boots, refusals, processes }
    }

    async fn disk(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let held = self.hold(name, purpose).await?;
        let attachment = match purpose {
            Purpose::Use => Some(attach(&held, peer, self.process(&held, peer).await).await?),
            // The connection itself says that it is the client's: its process may have ended before.
            Purpose::Resume => Some(attach(&held, peer, None).await?),
            Purpose::Info | Purpose::Look => None,
        };
        let info = held.info();
        // A guest that another process served until now boots no more.
        let boot = match (purpose, held.disk().pristine_base()) {
            (Purpose::Use, Some(image)) => {
                let (client, version) = (peer.identity.clone(), info.image.to_string());
                let guest = BootingGuest { disk: name.to_owned(), client, image: version };
                self.boots.begin(guest, image)
            }
            _ => None,
        };
        let away = if held.is_away() { ", private blocks borrowed" } else { "" };
        let description = format!("disk on {}, {}{away}", info.image, info.mode);
        let device: Arc<dyn Device> = Arc::clone(held.disk()) as _;
        Ok(Box::new(DiskSession {
            device,
            name: name.to_owned(),
            description,
            origin: info.image.to_string(),
            uuid: held.disk().uuid(),
            content: held.disk().content(),
            is_written_through: info.mode == Mode::WriteThrough,
            attachment,
            _boot: boot,
            _held: held,
        }))
    }

    /// What tells a client from an earlier one of the same identity: the process by whose number it is known; of a disk
    /// that forgets, also the run of a machine's system.
    async fn process(&self, held: &DiskHandle, peer: &Peer) -> Option<String> {
        match peer.run {
            Some(run) if held.disk().mode() == Mode::Ephemeral => {
                Some(format!("{:032x}", u128::from_be_bytes(run)))
            }
            _ => self.processes.of(peer).await,
        }
    }

    /// Opens a disk. One that is written through is taken for a client that comes to use it, or whose kernel is looked
    /// for there, when the server that had it is gone.
    async fn hold(&self, name: &str, purpose: Purpose) -> Result<DiskHandle> {
        let held = self.engine.open.hold(name).await;
        match &held {
            Err(e)
                if matches!(purpose, Purpose::Use | Purpose::Look)
                    && matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Fenced)
                    && self.engine.disks.take_over(name).await? =>
            {
                tracing::info!(disk = name, "taken over from a server that is gone");
                self.engine.open.hold(name).await
            }
            _ => held,
        }
    }

    async fn image(&self, name: &str) -> Result<Box<dyn Session>> {
        let record = images::resolve(&self.engine.store, &name.parse::<ImageName>()?).await?;
        let image = self.engine.image(&record).await?;
        let manifest = image.manifest().id().to_string();
        let device: Arc<dyn Device> = image as _;
        Ok(Box::new(ImageSession {
            device,
            manifest,
            description: format!("image {}, read-only", record.name),
            name: record.name,
        }))
    }
}

/// Attaches a disk. One client often follows another at once (a guest that reboots, two commands
/// of a script), before the server has seen the first one's goodbye: so a busy disk is tried again
/// for a moment, and the reset that follows an ephemeral one's last client is waited for, or follows only now.
async fn attach(held: &DiskHandle, peer: &Peer, process: Option<String>) -> Result<Attachment> {
    let until_free = || tokio::time::timeout(CHANGE, held.disk().until_free());
    // Whoever is refused in the end is told why.
    let _ = until_free().await;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let attached = held.disk().attach_process(&peer.identity, process.as_deref()).await;
        match attached {
            Err(e) if e.kind() == ErrorKind::Conflict && Instant::now() < deadline => {
                tokio::time::sleep(PAUSE).await;
                let _ = until_free().await;
            }
            other => return other,
        }
    }
}

#[async_trait]
impl Exports for HomeExports {
    async fn list(&self, _peer: &Peer) -> Result<Vec<ExportSummary>> {
        let mut list = Vec::new();
        for disk in self.engine.disks.list().await? {
            let description = match &disk.error {
                Some(error) => format!("damaged: {error}"),
                None => format!("disk on {}, {}, {}", disk.image, disk.mode, ByteSize(disk.size)),
            };
            list.push(ExportSummary { name: disk.name, description });
        }
        list.sort_by(|a, b| a.name.cmp(&b.name));
        for record in images::list(&self.engine.store).await?.records {
            let description = format!("image, read-only, {}", ByteSize(record.body.size));
            list.push(ExportSummary { name: record.name, description });
        }
        Ok(list)
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let name = match (name, &self.default) {
            ("", Some(default)) => default.as_str(),
            ("", None) => {
                return Err(Error::not_found(
                    "no default export; name a disk or an image, such as nbd://HOST/NAME",
                ));
            }
            (name, _) => name,
        };
        let opened = self.look_up(name, peer, purpose).await;
        if let Err(e) = &opened
            && e.kind() != ErrorKind::NotFound
            && self.refusals.note(peer)
        {
            // Few clients show the text that they are sent.
            let export: String = name.chars().take(SHOWN).collect();
            tracing::warn!(%peer, export, error = e.message(), "refused");
        }
        opened
    }
}

impl HomeExports {
    async fn look_up(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        if name.contains(':') {
            return self.image(name).await;
        }
        match self.disk(name, peer, purpose).await {
            Err(e) if e.kind() == ErrorKind::NotFound => match self.image(name).await {
                Err(no_image) if no_image.kind() == ErrorKind::NotFound => {
                    Err(Error::not_found(format!("no disk or image {name}: {}", e.message())))
                }
                other => other,
            },
            other => other,
        }
    }
}

/// A client's use of a disk.
struct DiskSession {
    device: Arc<dyn Device>,
    name: String,
    description: String,
    origin: String,
    uuid: [u8; 16],
    content: u64,
    is_written_through: bool,
    attachment: Option<Attachment>,
    /// Its guest boots, until it is over.
    _boot: Option<WatchedBoot>,
    _held: DiskHandle,
}

#[async_trait]
impl Session for DiskSession {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Option<&str> {
        Some(&self.description)
    }

    fn origin(&self) -> Option<&str> {
        Some(&self.origin)
    }

    fn identity(&self) -> String {
        format!("disk {:032x}", u128::from_be_bytes(self.uuid))
    }

    fn content(&self) -> Option<String> {
        Some(format!("{} {}", self.identity(), self.content))
    }

    fn goes_on_elsewhere(&self) -> bool {
        self.is_written_through
    }

    async fn close(mut self: Box<Self>, ending: SessionEnding) {
        let Some(attachment) = self.attachment.take() else { return };
        let how = match ending {
            SessionEnding::Clean => disk::Ending::Clean,
            SessionEnding::Lost => disk::Ending::Lost,
        };
        if let Err(e) = attachment.detach(how).await {
            tracing::error!(export = self.name, error = e.message(), "cannot reset the disk");
        }
    }

    async fn pass(mut self: Box<Self>) -> Option<Box<dyn PassedUse>> {
        let attachment = self.attachment.take()?.pass();
        let Self { _held, .. } = *self;
        Some(Box::new(PassedDisk { attachment, _held }))
    }
}

/// A disk that waits for a client on its way. It stays open meanwhile.
struct PassedDisk {
    attachment: PassedAttachment,
    _held: DiskHandle,
}

impl PassedUse for PassedDisk {
    fn hand_over(self: Box<Self>) {
        self.attachment.hand_over();
    }
}

/// A client's use of an image version.
struct ImageSession {
    device: Arc<dyn Device>,
    name: String,
    manifest: String,
    description: String,
}

#[async_trait]
impl Session for ImageSession {
    fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    fn name(&self) -> &str {
        &self.name
    }

    fn description(&self) -> Option<&str> {
        Some(&self.description)
    }

    fn origin(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn identity(&self) -> String {
        format!("image {} {}", self.name, self.manifest)
    }

    fn content(&self) -> Option<String> {
        Some(format!("image {}", self.manifest))
    }

    async fn close(self: Box<Self>, _ending: SessionEnding) {}
}
