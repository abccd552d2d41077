//! An open disk.

use crate::changes::WholeChanges;
use crate::fence::{self, Tenure};
use crate::guest_waits::GuestWaits;
use crate::health::{DiskHealth, RoomProbe, Strained, WaitKind};
use crate::lease::Lease;
use crate::maplog::Failure;
use crate::overlay::{BorrowedOverlay, Room, RoomLayer, cannot_keep};
use crate::ownership::Latest;
use crate::record::{DiskClient, DiskRecord};
use crate::rounds::PublishRounds;
use crate::shadow::{Shadow, check_size};
use crate::space::HomeSpace;
use crate::taking;
use crate::{DiskCounters, DiskInfo, Image, Loader, Mode, Resident};
use async_trait::async_trait;
use block::fs::FsPath;
use block::lock::LockFile;
use block::{
    Attempt, Device, Durability, Error, ErrorKind, Extent, Limits, Result, Sink, Span, ZeroMode,
    offload,
};
use parking_lot::Mutex;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use store::{Manifest, ManifestId, RefBody, RefKind, RefRecord, ServerId, Session, Store};
use tokio::sync::MutexGuard;

/// An open disk: a device, and what can be done to it as a whole. The process that has it open
/// holds its lock until the last handle is dropped.
pub struct Disk {
    pub(crate) directory: FsPath,
    pub(crate) store: Store,
    pub(crate) loader: Arc<Loader>,
    pub(crate) shadow: Shadow,
    /// Where the private blocks are, when not in the shadow's files.
    pub(crate) away: Option<BorrowedOverlay>,
    /// What `disk.json` says.
    record: Arc<Mutex<DiskRecord>>,
    /// What else `disk.json` may name in the store: a record was put there, and whether it would outlive a
    /// power failure is not known.
    doubtful: Arc<Mutex<Vec<ManifestId>>>,
    /// Held while the record is being replaced.
    replacing: Arc<tokio::sync::Mutex<()>>,
    /// What the shadow stands on.
    pub(crate) base: Mutex<Arc<Image>>,
    pub(crate) changing: WholeChanges,
    pub(crate) lease: Lease,
    /// Whose shadow this is.
    pub(crate) server: ServerId,
    /// The question about who holds it whose answer counts.
    pub(crate) asked: Latest,
    read: AtomicU64,
    written: AtomicU64,
    strained: Strained,
    /// What its guest waits for.
    waits: Arc<GuestWaits>,
    space: Arc<HomeSpace>,
    /// That of its record, which no change of an open disk touches: each write asks for it.
    mode: Mode,
    pub(crate) rounds: PublishRounds,
    /// Whether the store may have pins of earlier uploads of this disk.
    pub(crate) left_pins: AtomicBool,
    /// Whether the ref may still name what the record stood on before: a directory that is set back to that is not
    /// noticed as long as it does.
    pub(crate) names_before: AtomicBool,
    _lock: LockFile,
}

/// How long a store may take to say who holds a disk that opens without it, too.
const OPENING_ANSWER: Duration = Duration::from_secs(5);

/// What the disks of a home have in common.
#[derive(Clone)]
pub(crate) struct HomeSettings {
    /// How long an ephemeral disk waits for a client that was lost.
    pub(crate) linger: Duration,
    /// Whose shadow it is.
    pub(crate) server: ServerId,
    /// Where ephemeral disks keep their private blocks, when not in their files.
    pub(crate) room: Option<Arc<dyn Room>>,
    /// What the private blocks of each disk may take, bytes; 0 for any number.
    pub(crate) most_private: Arc<AtomicU64>,
    /// What they share with the rest of the home.
    pub(crate) space: Arc<HomeSpace>,
    /// Whether they open without the store.
    pub(crate) offline: Offline,
}

/// Whether a disk opens without the store, which then does not say whether another server took it: who opens it finds
/// out later, and what was written since stays here, as with a disk that is taken while it is open. One that is written
/// through never does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Offline {
    /// It waits for the store.
    Never,
    /// Where the store is away.
    Away,
    /// Where the store is away, or refuses, as when a token has expired.
    AwayOrRefusing,
}

impl Offline {
    /// Whether a disk opens although the store said this.
    fn allows(self, error: &Error) -> bool {
        match error.kind() {
            ErrorKind::Unavailable => self != Self::Never,
            ErrorKind::Denied => self == Self::AwayOrRefusing,
            _ => false,
        }
    }
}

impl fmt::Debug for Disk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Disk({})", self.directory.display())
    }
}

impl Disk {
    /// Opens the disk in `directory`, whose lock is held.
    pub(crate) async fn open(
        directory: FsPath,
        name: &str,
        lock: LockFile,
        loader: Arc<Loader>,
        terms: HomeSettings,
    ) -> Result<Self> {
        let store = loader.store().clone();
        let at = directory.clone();
        let record = offload(move || {
            // A process that was killed may have left names that a power failure takes back: the disk's
            // own, its record's, its layers'. Nothing is written to them, nor removed for them, before.
            at.above().sync_directory()?;
            at.sync_directory()?;
            let record = DiskRecord::load(&at)?;
            record.sweep(&at)?;
            Ok(record)
        })
        .await?;
        if record.name != name {
            return Err(Error::corrupt(format!(
                "{}: holds the disk {:?}; if 'sojourn disk keep {name} {}' was interrupted, run it again, \
                 else give the directory its name back",
                directory.display(),
                record.name,
                record.name
            )));
        }
        taking::confirm(&store, &directory, &record, terms.server).await?;
        let base = match store.manifest(&record.base).await {
            Ok(base) => base,
            Err(error) => {
                // Of a disk that another server took and gave up nobody keeps what it stood on here, nor of
                // one that was set back: then that is what is to be said.
                if let Ok(Some(found)) = store.refs().get(RefKind::Disk, name).await {
                    let tenure = Tenure { server: terms.server, epoch: record.epoch };
                    fence::check(&found, record.uuid, tenure, &directory)?;
                    fence::check_base(&found, record.base, &directory)?;
                }
                return Err(error.context(format!("disk {name:?}")));
            }
        };
        let waits = Arc::<GuestWaits>::default();
        let image = Arc::new(Image::for_guest(&loader, base, Arc::clone(&waits)));
        let base = Arc::clone(&image);
        let shadow =
            Shadow::open(directory.clone(), record.uuid.0, &record.layers, image, record.size)
                .await?;
        shadow.limit(terms.most_private);
        shadow.share(Arc::clone(&terms.space));
        let absent = record.attached.as_deref().filter(|_| record.mode == Mode::Ephemeral);
        let absent = absent.map(DiskClient::of);
        let room = terms.room.filter(|_| record.mode == Mode::Ephemeral);
        let away =
            room.map(|room| BorrowedOverlay::new(room, &shadow, absent.is_some())).transpose()?;
        let (strained, mode) = (Strained::new(loader.bound()), record.mode);
        let disk = Self {
            directory,
            store,
            loader,
            shadow,
            away,
            record: Arc::new(Mutex::new(record)),
            doubtful: Arc::default(),
            replacing: Arc::default(),
            base: Mutex::new(base),
            changing: WholeChanges::default(),
            lease: Lease::new(terms.linger, absent),
            server: terms.server,
            asked: Latest::default(),
            read: AtomicU64::new(0),
            written: AtomicU64::new(0),
            strained,
            waits,
            space: terms.space,
            mode,
            rounds: PublishRounds::default(),
            left_pins: AtomicBool::new(true),
            names_before: AtomicBool::new(false),
            _lock: lock,
        };
        disk.publish_base_at_opening(terms.offline).await?;
        Ok(disk)
    }

    /// The disk's name.
    pub fn name(&self) -> &str {
        // The directory has it, and was checked when the disk was opened.
        self.directory.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }

    /// What tells it from all other disks, also from an earlier one of its name and from what was kept of it elsewhere,
    /// wherever it is held.
    pub fn uuid(&self) -> [u8; 16] {
        self.record.lock().identity().0
    }

    /// What it holds as a whole: another number when something else was put in its place by a reset, a rollback, a
    /// rebase, or when a server went on with less than another one had of it; the same on every server else.
    pub fn content(&self) -> u64 {
        self.record.lock().content
    }

    /// Whether its private blocks outlive its client.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// What the disk is.
    pub fn info(&self) -> DiskInfo {
        let own = OwnBlocks { room: self.room(), none: self.shadow.is_empty() };
        describe(&self.record.lock(), own)
    }

    /// What its guest did since it was opened.
    pub fn counters(&self) -> DiskCounters {
        DiskCounters {
            read: self.read.load(Ordering::Relaxed),
            written: self.written.load(Ordering::Relaxed),
            private: self.room(),
        }
    }

    /// Whether it was short of room or slow since this was asked last.
    pub fn strain(&self) -> DiskHealth {
        self.strained.look()
    }

    /// Finds out whether it has room again.
    pub fn room_probe(&self) -> RoomProbe {
        let in_files = self.away.is_none();
        RoomProbe {
            at_limit: in_files && self.shadow.is_at_limit(),
            directory: in_files.then(|| self.directory.clone()),
            space: Arc::clone(&self.space),
        }
    }

    /// Whether its private blocks lie in borrowed [`Room`]: they end with this process.
    pub fn is_away(&self) -> bool {
        self.away.is_some()
    }

    /// Whether a step failed of which nobody knows how far it came: until it is opened again the disk
    /// takes no writes.
    pub fn has_failed(&self) -> bool {
        self.shadow.has_failed()
    }

    /// Room that the private blocks take, in bytes.
    fn room(&self) -> u64 {
        self.shadow.room() + self.away.as_ref().map_or(0, BorrowedOverlay::bytes)
    }

    /// Refuses what needs private blocks that can be kept.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when they lie in borrowed room.
    pub(crate) fn check_keeps(&self, what: &str) -> Result<()> {
        match &self.away {
            Some(_) => Err(cannot_keep(self.name(), what)),
            None => Ok(()),
        }
    }

    /// Forgets what lies in borrowed room, and shows what the files hold now. Nobody is attached.
    pub(crate) fn renew(&self) -> Result<()> {
        self.away.as_ref().map_or(Ok(()), |away| away.renew(&self.shadow))
    }

    /// Flushes, and leaves the files so that the next opening is quick and any loss is noticed.
    /// The lock goes with the last handle.
    ///
    /// # Errors
    /// Any error from [`Device::flush`].
    pub async fn close(&self) -> Result<()> {
        self.asked.forget();
        // What an earlier client left goes up behind the next opening; an upload would keep the lock.
        self.rounds.close().await;
        // What was given up may still be replacing the record, which the next opening reads.
        drop(self.replacing.lock().await);
        self.shadow.close().await
    }

    /// Makes the disk larger; what is new reads as zeroes. Allowed while it is in use, unless its
    /// private blocks lie in borrowed room.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a size below the present one, not in sectors, or beyond
    /// 256 TiB; any error from the file system.
    pub async fn grow(&self, size: u64) -> Result<()> {
        let _excluded = match &self.away {
            Some(_) => Some(self.lease.exclude(self.name(), "growth")?),
            None => None,
        };
        let _changing = self.begin_change().await;
        check_size(size)?;
        let now = self.shadow.size();
        if size < now {
            return Err(Error::invalid(format!(
                "disk {:?} has {now} bytes and cannot shrink to {size}",
                self.name()
            )));
        }
        if size == now {
            return Ok(());
        }
        // Before it grows, so that one that another server took does not.
        self.shadow.check()?;
        self.announce(None, |record| record.size = size).await?;
        self.change(|record| record.size = size).await?;
        self.shadow.set_size(size);
        self.publish_base_or_warn().await;
        self.renew()
    }

    /// Waits until nobody else changes the disk as a whole; nobody does until what it returns is dropped. What an earlier
    /// one that was given up still wrote has ended by then: the record says what its file does.
    pub(crate) async fn begin_change(&self) -> MutexGuard<'_, ()> {
        let turn = self.changing.begin().await;
        drop(self.replacing.lock().await);
        turn
    }

    /// A copy of the record.
    pub(crate) fn record(&self) -> DiskRecord {
        self.record.lock().clone()
    }

    /// Replaces the record, first on stable storage.
    ///
    /// # Errors
    /// Any error from the file system; then the record is as before, or the disk refuses to be written
    /// until it is opened again.
    pub(crate) async fn change(&self, change: impl FnOnce(&mut DiskRecord)) -> Result<()> {
        let alone = Arc::clone(&self.replacing).lock_owned().await;
        let mut record = self.record();
        change(&mut record);
        if record == *self.record.lock() {
            return Ok(());
        }
        let (directory, shown) = (self.directory.clone(), Arc::clone(&self.record));
        // All of it is done in there, because the caller may be cancelled: the file and the copy in
        // memory stay the same, and the next replacement waits for this one.
        let (poison, space) = (self.shadow.poison(), Arc::clone(&self.space));
        let doubtful = Arc::clone(&self.doubtful);
        offload(move || {
            let _alone = alone;
            let mut saved = record.save(&directory);
            if let Err(Failure::Retry(error)) = &saved
                && error.kind() == ErrorKind::NoSpace
                && space.give_up()
            {
                saved = record.save(&directory);
            }
            match saved {
                Ok(()) => {
                    *shown.lock() = record;
                    Ok(())
                }
                Err(Failure::Retry(error)) => Err(error),
                Err(Failure::Lost(error)) => {
                    doubtful.lock().extend([record.base, record.origin]);
                    poison.set(&error);
                    Err(error)
                }
            }
        })
        .await
    }

    /// The image version that the disk stands on, if it stands on that and not on a snapshot of its
    /// own.
    pub fn pristine_base(&self) -> Option<Arc<Image>> {
        let origin = self.record().origin;
        let base = Arc::clone(&self.base.lock());
        (base.manifest().id() == origin).then_some(base)
    }

    /// Notes who uses an ephemeral disk, for its next opening.
    pub(crate) async fn note_client(&self, client: &str, process: Option<String>) -> Result<()> {
        let client = DiskClient { name: client.to_owned(), process };
        self.change(|record| record.attached = Some(client.to_string())).await
    }

    /// Opens a manifest and the device that shows it.
    pub(crate) async fn image(&self, id: &ManifestId) -> Result<(Arc<Manifest>, Arc<Image>)> {
        let manifest = self.store.manifest(id).await?;
        let waits = Arc::clone(&self.waits);
        let image = Image::for_guest(&self.loader, Arc::clone(&manifest), waits);
        Ok((manifest, Arc::new(image)))
    }

    /// Makes the disk's ref say what the record says, so that the base is kept in the store. This is
    /// made up for at the next opening if it fails.
    ///
    /// # Errors
    /// [`Fenced`](block::ErrorKind::Fenced) when another server took the disk, and
    /// [`Conflict`](block::ErrorKind::Conflict) when the store has a state of it that did not come of this directory: it
    /// is not written here any more then; any error from the store.
    pub(crate) async fn publish_base(&self) -> Result<()> {
        self.publish(&self.record(), &[]).await.map(drop)
    }

    /// The same when the disk is opened; the store is not waited for where that may be `offline`.
    async fn publish_base_at_opening(&self, offline: Offline) -> Result<()> {
        if offline == Offline::Never || self.mode == Mode::WriteThrough {
            return self.publish_first().await;
        }
        let published = tokio::time::timeout(OPENING_ANSWER, self.publish_first()).await;
        match published.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer"))) {
            Err(error) if offline.allows(&error) => {
                tracing::warn!(disk = self.name(), %error, "opened without the store");
                Ok(())
            }
            other => other,
        }
    }

    /// The same for who opens the disk. A ref that is made, as there was none, is taken back when a collection has deleted
    /// what it names: none would delete anything any more as long as it is there.
    ///
    /// # Errors
    /// Any error from [`publish_base`](Self::publish_base); [`Fenced`](block::ErrorKind::Fenced) when what the disk stands
    /// on is gone.
    async fn publish_first(&self) -> Result<()> {
        let Some(made) = self.publish(&self.record(), &[]).await? else { return Ok(()) };
        let found = self.find_base().await;
        if found.as_ref().is_err_and(|e| e.kind() == ErrorKind::Fenced) {
            self.store.refs().remove(RefKind::Disk, self.name(), made.sequence).await?;
        }
        found
    }

    pub(crate) async fn publish_base_or_warn(&self) {
        if let Err(error) = self.publish_base().await {
            tracing::warn!(disk = self.name(), %error, "cannot update the disk's ref now");
        }
    }

    /// Makes the disk's ref say what the record will say after `change`, and keep what it says now:
    /// whichever of the two a crash leaves is in the store, and who lost the disk to another server
    /// gets no further. The ref is as it was when the session turns out to be taken for dead: then
    /// what it stored may be gone. No session is needed for what the ref names already.
    ///
    /// # Errors
    /// Any error from [`publish_base`](Self::publish_base) and [`Session::check`].
    pub(crate) async fn announce(
        &self,
        session: Option<&Session>,
        change: impl FnOnce(&mut DiskRecord),
    ) -> Result<()> {
        let now = self.record();
        let mut next = now.clone();
        change(&mut next);
        if next == now {
            return self.confirm_base().await;
        }
        if let Some(session) = session {
            session.check().await?;
        }
        // An origin that stays is kept anyway, and is what a directory that was set back may stand on.
        let origin = Some(now.origin).filter(|origin| *origin != next.origin);
        let also: Vec<ManifestId> = [now.base].into_iter().chain(origin).collect();
        self.publish(&next, &also).await?;
        if let Some(session) = session
            && let Err(error) = session.check().await
        {
            self.publish_base_or_warn().await;
            return Err(error);
        }
        Ok(())
    }

    /// What the disk's ref is to say for a record, and to keep beside what that names.
    pub(crate) fn ref_body(&self, record: &DiskRecord, also: &[ManifestId]) -> RefBody {
        let mut kept = self.doubtful.lock().clone();
        kept.extend(also);
        fence::body(record, self.server, &kept)
    }

    /// One caller at a time: who opens the disk, or changes it as a whole. The ref, if there was none.
    async fn publish(&self, record: &DiskRecord, also: &[ManifestId]) -> Result<Option<RefRecord>> {
        self.names_before.fetch_or(!also.is_empty(), Ordering::Relaxed);
        let made = self.write_ref(record, also).await?;
        self.names_before.store(!also.is_empty(), Ordering::Relaxed);
        Ok(made)
    }

    async fn write_ref(
        &self,
        record: &DiskRecord,
        also: &[ManifestId],
    ) -> Result<Option<RefRecord>> {
        let refs = self.store.refs();
        let body = self.ref_body(record, also);
        if self.publish_in_round(&body).await? {
            return Ok(None);
        }
        let name = &record.name;
        loop {
            let outcome = match refs.get(RefKind::Disk, name).await? {
                None => refs.create(RefKind::Disk, name, body.clone()).await.map(Some),
                Some(found) => {
                    self.check_holder(&found)?;
                    if found.body == body {
                        return Ok(None);
                    }
                    self.check_base(&found)?;
                    let updated = refs.update(RefKind::Disk, name, found.sequence, body.clone());
                    updated.await.map(|_| None)
                }
            };
            match outcome {
                // Somebody was quicker: who it was shows in what he wrote.
                Err(error) if error.kind() == ErrorKind::Conflict => {}
                other => return other,
            }
        }
    }
}

/// What a disk has of its own over its base.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OwnBlocks {
    /// Room that it takes, in bytes.
    pub(crate) room: u64,
    /// There is none: blocks of zeroes take no room.
    pub(crate) none: bool,
}

impl OwnBlocks {
    pub(crate) const NONE: Self = Self { room: 0, none: true };

    /// What a closed disk has of its own.
    pub(crate) fn of_closed(directory: &FsPath, record: &DiskRecord) -> Self {
        let paths = record.layers.iter().map(|layer| crate::layer::paths(directory, *layer));
        let mut own = Self::NONE;
        for (data, map) in paths {
            own.room += data.metadata().map_or(0, |found| found.room);
            own.none &= map.metadata().is_ok_and(|found| found.len <= crate::maplog::BLANK);
        }
        own.none &= own.room == 0;
        own
    }
}

/// What is told of the disk of a record.
pub(crate) fn describe(record: &DiskRecord, own: OwnBlocks) -> DiskInfo {
    DiskInfo {
        name: record.name.clone(),
        state: Resident::Known,
        error: None,
        image: record.image.to_string(),
        mode: record.mode,
        size: record.size,
        created: record.created,
        private_bytes: own.room,
        unchanged: own.none && own.room == 0 && record.base == record.origin,
        over_origin: (record.base == record.origin).then_some(record.origin),
    }
}

/// What takes a client's requests.
enum RequestTarget<'a> {
    Files(&'a Shadow),
    Away(Arc<RoomLayer>),
}

impl RequestTarget<'_> {
    fn device(&self) -> &dyn Device {
        match self {
            Self::Files(shadow) => *shadow,
            Self::Away(kept) => &*kept.device,
        }
    }
}

impl Disk {
    fn layer(&self) -> RequestTarget<'_> {
        match &self.away {
            Some(away) => RequestTarget::Away(Arc::clone(&away.front())),
            None => RequestTarget::Files(&self.shadow),
        }
    }
}

#[async_trait]
impl Device for Disk {
    fn size(&self) -> u64 {
        self.shadow.size()
    }

    fn limits(&self) -> Limits {
        match &self.away {
            Some(away) => away.front().device.limits(),
            None => self.shadow.limits(),
        }
    }

    fn is_written_through(&self) -> bool {
        self.is_write_through()
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let attempt = match &self.away {
            Some(away) => away.front().device.try_read(span, buf)?,
            None => self.shadow.try_read(span, buf)?,
        };
        if attempt == Attempt::Done {
            self.read.fetch_add(span.len(), Ordering::Relaxed);
        }
        Ok(attempt)
    }

    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        let attempt = match &self.away {
            Some(away) => away.front().device.try_read_to(span, sink)?,
            None => self.shadow.try_read_to(span, sink)?,
        };
        if attempt == Attempt::Done {
            self.read.fetch_add(span.len(), Ordering::Relaxed);
        }
        Ok(attempt)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        if self.is_write_through() {
            return Ok(Attempt::WouldWait);
        }
        let timed = self.strained.begin_write();
        let attempt = match &self.away {
            Some(away) => away.front().device.try_write(span, data),
            None => self.shadow.try_write(span, data),
        };
        let attempt = attempt.inspect_err(|error| self.strained.failed(error))?;
        if attempt == Attempt::Done {
            self.written.fetch_add(span.len(), Ordering::Relaxed);
        } else {
            timed.would_wait();
        }
        Ok(attempt)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let _waits = (self.strained.begin(WaitKind::Read), self.waits.request());
        self.layer().device().read(span, buf).await?;
        self.read.fetch_add(span.len(), Ordering::Relaxed);
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        let _waits = (self.strained.begin(WaitKind::of(durability)), self.waits.request());
        let written = self.layer().device().write(span, data, durability).await;
        written.inspect_err(|error| self.strained.failed(error))?;
        self.written.fetch_add(span.len(), Ordering::Relaxed);
        self.written_through().await
    }

    async fn flush(&self) -> Result<()> {
        let _waits = (self.strained.begin(WaitKind::Flush), self.waits.request());
        let flushed = self.layer().device().flush().await;
        flushed.inspect_err(|error| self.strained.failed(error))
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        let _waits = (self.strained.begin(WaitKind::of(durability)), self.waits.request());
        let discarded = self.layer().device().discard(span, durability).await;
        discarded.inspect_err(|error| self.strained.failed(error))?;
        self.written_through().await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        let _waits = (self.strained.begin(WaitKind::of(durability)), self.waits.request());
        let zeroed = self.layer().device().zero(span, mode, durability).await;
        zeroed.inspect_err(|error| self.strained.failed(error))?;
        self.written_through().await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.layer().device().extents(span, limit).await
    }

    async fn prefetch(&self, span: Span) -> Result<()> {
        self.layer().device().prefetch(span).await
    }
}
