//! All disks of a home: one directory each.
//!
//! A directory whose name starts with a dot is one that is being made or removed (`home`); a crash may
//! leave it, and the next try, or the next start of a server, clears it away. A disk whose directory
//! is complete but whose ref was never made was not reported as created: creating it again replaces
//! it as long as it holds nothing private, and opening it makes the ref.

use crate::disk::{HomeSettings, Offline, OwnBlocks, describe};
use crate::fence::{self, CONTENT, DISK_IDENTITY, LAST_SNAPSHOT, Tenure, UUID};
use crate::home;
use crate::layer::ShadowLayer;
use crate::lock;
use crate::maplog::{Failure, Identity};
use crate::record::{DiskRecord, MOST_LEFT, Uuid};
use crate::snapshot;
use crate::space::HomeSpace;
use crate::{Disk, DiskInfo, LoadOptions, Loader, Mode, Resident, Room, SnapshotInfo};
use block::fs::{FileType, FsPath};
use block::lock::LockFile;
use block::{Error, ErrorKind, Result, offload};
use cache::Cache;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{ImageName, RefKind, RefRecord, ServerId, Session, Store, check_name, images};
use tokio::sync::OnceCell;

/// How long an ephemeral disk waits for a client that was lost, unless told otherwise.
const LINGER: Duration = Duration::from_secs(30);

/// The disks in a directory.
pub struct Disks {
    pub(crate) directory: FsPath,
    pub(crate) store: Store,
    pub(crate) loader: Arc<Loader>,
    linger: Duration,
    room: Option<Arc<dyn Room>>,
    most_private: Arc<AtomicU64>,
    space: Arc<HomeSpace>,
    server: OnceCell<ServerId>,
    offline: Offline,
}

/// How many bytes of a disk are private, of which `home` has the directory. It is not open in this process, and the store is
/// not asked.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is none, [`Corrupt`](ErrorKind::Corrupt) when its record is damaged;
/// any error from the file system.
pub async fn private_bytes(home: impl Into<FsPath>, name: &str) -> Result<u64> {
    check_name("disk", name)?;
    let directory = home.into().join(name);
    offload(move || {
        let record = DiskRecord::load(&directory)?;
        Ok(OwnBlocks::of_closed(&directory, &record).room)
    })
    .await
}

impl Disks {
    /// The disks in `directory`, which is made with the first one.
    pub fn new(directory: impl Into<FsPath>, store: Store, cache: Arc<Cache>) -> Self {
        Self::through(directory, Loader::new(store, cache, LoadOptions::default()))
    }

    /// The same, with chunks that come through `loader`.
    pub fn through(directory: impl Into<FsPath>, loader: Arc<Loader>) -> Self {
        let directory = directory.into();
        let store = loader.store().clone();
        let (room, most_private) = (None, Arc::default());
        let (space, server) = (Arc::new(HomeSpace::new(&directory)), OnceCell::new());
        let (linger, offline) = (LINGER, Offline::Never);
        Self { directory, store, loader, linger, room, most_private, space, server, offline }
    }

    /// Limits what the private blocks of each disk may take in the home, its snapshots'
    /// included: writes beyond it fail for want of space. 0 is no limit. Holds at once, for open
    /// disks too.
    pub fn limit_private_bytes(&self, most: u64) {
        self.most_private.store(most, Ordering::Relaxed);
    }

    /// Makes sure that some room is kept in the file system of the home for what must be written when
    /// there is none: maps, and the records of disks. Costs nothing while it is kept; a server asks for
    /// it again and again, because what was spent is taken back when there is room.
    pub async fn keep_room(&self) {
        if self.space.is_kept() {
            return;
        }
        let space = Arc::clone(&self.space);
        // Where there is none to keep, it is tried again.
        let _ = offload(move || space.keep()).await;
    }

    /// The same, with another time that ephemeral disks wait for a lost client (30 s by default).
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// The same, with ephemeral disks that keep their private blocks in `room`.
    #[must_use]
    pub fn with_room(mut self, room: Arc<dyn Room>) -> Self {
        self.room = Some(room);
        self
    }

    /// The same, with disks that open also while the store is away, as far as what they stand on is kept
    /// here. Whether another server took one meanwhile shows when the store is back.
    #[must_use]
    pub fn opening_offline(mut self) -> Self {
        self.offline = Offline::Away;
        self
    }

    /// The id of the server whose disks these are. It is made when it is first asked for.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) for a copy of a home; any error from the file system and from the source
    /// of randomness.
    pub async fn server(&self) -> Result<ServerId> {
        let entropy = || Arc::clone(&self.store.world().entropy);
        self.server.get_or_try_init(|| fence::identify(&self.directory, entropy())).await.copied()
    }

    /// The image version that `image` means: the newest one when it has no tag.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none; any error from the store.
    pub async fn resolve(&self, image: &ImageName) -> Result<RefRecord> {
        images::resolve(&self.store, image).await
    }

    /// The names of all disks, sorted, without looking at them.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub async fn names(&self) -> Result<Vec<String>> {
        let home = self.directory.clone();
        offload(move || names(&home)).await
    }

    /// All disks, by name, without opening them; those that cannot be read say why.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub async fn list(&self) -> Result<Vec<DiskInfo>> {
        let home = self.directory.clone();
        let found = offload(move || {
            let mut found = Vec::new();
            for name in names(&home)? {
                let directory = home.join(&name);
                let record = DiskRecord::load(&directory);
                let own = record
                    .as_ref()
                    .map_or(OwnBlocks::NONE, |record| OwnBlocks::of_closed(&directory, record));
                found.push((name, record, own));
            }
            Ok(found)
        })
        .await?;
        let list = found.into_iter().map(|(name, record, own)| match record {
            // An interrupted `keep` leaves another name in the record.
            Ok(record) => DiskInfo { name, ..describe(&record, own) },
            Err(error) => DiskInfo {
                name,
                state: Resident::Damaged,
                error: Some(error.to_string()),
                image: String::new(),
                mode: Mode::Persistent,
                size: 0,
                created: 0,
                private_bytes: 0,
                unchanged: false,
                over_origin: None,
            },
        });
        Ok(list.collect())
    }

    /// The snapshots that the store has, by the name of the disk, which may be of another home; of
    /// each disk the damaged ones first, then the oldest. With `only` that disk's alone: the refs of
    /// others are not read.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// listed.
    pub async fn snapshots(
        &self,
        only: Option<&str>,
    ) -> Result<HashMap<String, Vec<SnapshotInfo>>> {
        snapshot::list(&self.store, only).await
    }

    /// Whether another process has a disk of this home open, at this moment.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied) or [`Unavailable`](ErrorKind::Unavailable) when the home cannot be read.
    pub async fn is_any_open_elsewhere(&self) -> Result<bool> {
        let home = self.directory.clone();
        offload(move || {
            let is_open = |name: &String| {
                let lock = lock::take(&home.join(name), name);
                lock.is_err_and(|e| e.kind() == ErrorKind::Conflict)
            };
            Ok(names(&home)?.iter().any(is_open))
        })
        .await
    }

    /// Removes what a crash left of disks that were being made or removed in this home: for when a
    /// server starts. Others may be at work there: while one makes or removes a disk, nothing is done.
    /// What cannot be removed is named in the log.
    pub async fn sweep(&self) {
        home::sweep(&self.directory).await;
    }

    /// Opens a disk for this process alone.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none,
    /// [`Conflict`](ErrorKind::Conflict) when another opener has it,
    /// [`Corrupt`](ErrorKind::Corrupt) when its files do not hold what was acknowledged; any error from
    /// the store and the file system.
    pub async fn open(&self, name: &str) -> Result<Arc<Disk>> {
        self.open_as(name, self.offline).await
    }

    /// The same for who goes on with what the disk held when it was left here: a store that is away for seconds, or
    /// refuses, is done without, but for a disk that is written through. Whether another server took the disk is found
    /// out later then.
    ///
    /// # Errors
    /// Any error from [`open`](Self::open).
    pub async fn open_offline(&self, name: &str) -> Result<Arc<Disk>> {
        self.open_as(name, Offline::AwayOrRefusing).await
    }

    async fn open_as(&self, name: &str, offline: Offline) -> Result<Arc<Disk>> {
        check_name("disk", name)?;
        let directory = self.directory.join(name);
        let (at, own) = (directory.clone(), name.to_owned());
        let lock = offload(move || lock_existing(&at, &own)).await?;
        let loader = Arc::clone(&self.loader);
        let server = self.server().await?;
        let (room, most_private) = (self.room.clone(), Arc::clone(&self.most_private));
        let (space, linger) = (Arc::clone(&self.space), self.linger);
        let terms = HomeSettings { linger, server, room, most_private, space, offline };
        Disk::open(directory, name, lock, loader, terms).await.map(Arc::new)
    }

    /// Makes a disk that cannot be opened, because its private blocks or its record are damaged,
    /// that of its image version again, or of a snapshot: its private blocks are given up. It keeps
    /// its snapshots.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is no such disk or snapshot,
    /// [`Conflict`](ErrorKind::Conflict) while it is in use, and when the store has a state of it that did not come of
    /// this directory; [`Fenced`](ErrorKind::Fenced) when another server took it; any error from the store and the file
    /// system. Nothing was given up then.
    pub async fn recover(&self, name: &str, snapshot: Option<&str>) -> Result<()> {
        check_name("disk", name)?;
        let session = self.store.session(&format!("recovery of disk {name}")).await?;
        let outcome = self.recover_in(&session, name, snapshot).await;
        session.close(outcome).await
    }

    async fn recover_in(
        &self,
        session: &Session,
        name: &str,
        snapshot: Option<&str>,
    ) -> Result<()> {
        let (directory, own) = (self.directory.join(name), name.to_owned());
        let at = directory.clone();
        let (lock, record) = offload(move || {
            let lock = lock_existing(&at, &own)?;
            let record = match DiskRecord::load(&at) {
                Err(error) if error.kind() == ErrorKind::Corrupt => None,
                other => Some(other?),
            };
            Ok((lock, record))
        })
        .await?;
        if let Some(record) = record.as_ref().filter(|record| record.name != name) {
            return Err(Error::conflict(format!(
                "what is here of disk {name:?} was to become disk {:?}; repeat 'sojourn disk keep {name} {}'",
                record.name, record.name
            )));
        }
        let found = self.store.refs().get(RefKind::Disk, name).await?;
        let mut record = match (record, &found) {
            (Some(record), _) => record,
            (None, Some(found)) => {
                // Some of it may be kept for a server from which the disk was taken, and nobody tells any more which.
                let mut left = found.body.roots()?;
                left.truncate(MOST_LEFT);
                DiskRecord { left, ..from_ref(found)? }
            }
            (None, None) => {
                return Err(Error::corrupt(format!(
                    "disk {name:?}: its disk.json is damaged and the store does not know it; remove it"
                )));
            }
        };
        let stood_on = record.base;
        match snapshot {
            Some(snapshot) => {
                let past = snapshot::find(session, name, snapshot, record.uuid).await?;
                record.base = past.manifest;
                record.size = past.size;
                if let Some((image, origin)) = past.image {
                    (record.image, record.origin) = (image, origin);
                }
                self.store.stored_manifest(&record.base).await?;
            }
            None => {
                record.base = record.origin;
                let image = self.store.stored_manifest(&record.base).await?;
                record.size = record.size.max(image.size());
            }
        }
        record.attached = None;
        // Who has the disk as a device must not go on with something else below it.
        record.renew_content();
        if let Some(found) = found {
            // As in `Disk::announce`: kept in the store before the disk stands on it, and nothing is
            // given up of a disk that another server has.
            let server = self.server().await?;
            fence::check(&found, record.uuid, Tenure { server, epoch: record.epoch }, &directory)?;
            fence::check_base(&found, stood_on, &directory)?;
            session.check().await?;
            let body = fence::body(&record, server, &found.body.roots()?);
            self.store.refs().update(RefKind::Disk, name, found.sequence, body).await?;
        }
        let space = Arc::clone(&self.space);
        offload(move || {
            let _lock = lock;
            let layer = record.next_layer.max(highest_layer(&directory)?.saturating_add(1));
            space.spend(|| {
                ShadowLayer::create(&directory, Identity { disk: record.uuid.0, layer })
            })?;
            record.layers = vec![layer];
            record.next_layer = layer.saturating_add(1);
            space.spend(|| saved(record.save(&directory)))
        })
        .await
    }
}

pub(crate) fn taken(name: &str) -> Error {
    Error::conflict(format!("disk {name:?} exists already; choose another name, or remove it"))
}

/// The names of the disks in a home, sorted. Other things in it are passed over.
fn names(home: &FsPath) -> Result<Vec<String>> {
    let entries = match home.read_dir() {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(home.error(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        if let Some(name) = entry.name.to_str()
            && check_name("disk", name).is_ok()
            && (entry.kind == FileType::Directory || home.join(name).is_dir())
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Takes the lock of a disk that exists.
pub(crate) fn lock_existing(directory: &FsPath, name: &str) -> Result<LockFile> {
    must_be_there(directory, name)?;
    lock::take(directory, name)
}

/// Refuses a disk that does not exist.
pub(crate) fn must_be_there(directory: &FsPath, name: &str) -> Result<()> {
    match directory.is_dir() {
        true => Ok(()),
        false => {
            Err(Error::not_found(format!("there is no disk {name:?}; see 'sojourn disk list'")))
        }
    }
}

/// Makes the directory of a new disk, complete or not at all, and keeps its lock.
/// One that is there already is replaced when it has no private blocks and `replaces` says so. `furnish` puts what
/// else belongs into it.
pub(crate) fn build(
    home: &FsPath,
    record: &DiskRecord,
    replaces: impl Fn(&DiskRecord) -> bool,
    furnish: impl FnOnce(&FsPath) -> Result<()>,
) -> Result<LockFile> {
    home::make(home)?;
    let _at_work = home::at_work(home)?;
    let place = home.join(&record.name);
    if place.exists() {
        let _lock = lock::take(&place, &record.name)?;
        let left = DiskRecord::load(&place)?;
        if !is_blank(&place, &left) || !replaces(&left) {
            return Err(taken(&record.name).context(format!(
                "{} is of a disk that has, or had, private blocks",
                place.display()
            )));
        }
        clear(home, &record.name)?;
    }
    let fresh = home::new(home, &record.name);
    fresh.create_dir_all().map_err(|e| fresh.error(e))?;
    let lock = lock::take(&fresh, &record.name)?;
    // What an interrupted try left.
    ShadowLayer::clear(&fresh, 1)?;
    ShadowLayer::create(&fresh, Identity { disk: record.uuid.0, layer: 1 })?;
    furnish(&fresh)?;
    saved(record.save(&fresh))?;
    fresh.rename(&place).map_err(|e| place.error(e))?;
    home.sync_directory()?;
    Ok(lock)
}

/// Whether a closed disk has nothing of its own, be it only zeroes, or what a process that was killed had not flushed.
/// Waits for the disk.
pub(crate) fn is_blank(directory: &FsPath, record: &DiskRecord) -> bool {
    let is_empty = |layer: &u32| {
        let identity = Identity { disk: record.uuid.0, layer: *layer };
        ShadowLayer::look(directory, identity, record.size)
            .is_ok_and(|map| map.groups().next().is_none())
    };
    OwnBlocks::of_closed(directory, record).room == 0 && record.layers.iter().all(is_empty)
}

/// The outcome of a step that nobody else depends on.
pub(crate) fn saved(outcome: Result<(), Failure>) -> Result<()> {
    outcome.map_err(|failure| match failure {
        Failure::Retry(error) | Failure::Lost(error) => error,
    })
}

/// The record of a disk as its ref tells it; without layers.
pub(crate) fn from_ref(found: &RefRecord) -> Result<DiskRecord> {
    let label = |key: &str| {
        let value = found.body.labels.get(key).cloned();
        value.ok_or_else(|| Error::corrupt(format!("the ref of disk {} has no {key}", found.name)))
    };
    let read = |text: String| Uuid::try_from(text).map_err(Error::corrupt);
    let uuid = read(label(UUID)?)?;
    let identity = found.body.labels.get(DISK_IDENTITY).cloned().map(read);
    Ok(DiskRecord {
        name: found.name.clone(),
        uuid,
        mode: label("mode")?.parse()?,
        size: found.body.size,
        created: found.body.created,
        image: label("image")?.parse()?,
        origin: label("origin")?.parse()?,
        base: images::manifest_of(found)?,
        layers: Vec::new(),
        next_layer: 1,
        attached: None,
        epoch: fence::held(found)?.epoch,
        left: Vec::new(),
        published: None,
        // Of an older program: its own record has no number either.
        content: found.body.labels.get(CONTENT).and_then(|number| number.parse().ok()).unwrap_or(0),
        identity: identity.transpose()?,
        last_snapshot: found.body.labels.get(LAST_SNAPSHOT).and_then(|at| at.parse().ok()),
    })
}

/// The highest number that a layer's file in `directory` has; 0 when there is none.
fn highest_layer(directory: &FsPath) -> Result<u32> {
    let mut highest = 0;
    for entry in directory.read_dir().map_err(|e| directory.error(e))? {
        let number = entry.name.to_str().and_then(|name| name.split_once('.')?.0.parse().ok());
        highest = highest.max(number.unwrap_or(0));
    }
    Ok(highest)
}

/// Removes the directory of a disk whose lock is held: at once for everybody else.
pub(crate) fn clear(home: &FsPath, name: &str) -> Result<()> {
    let _at_work = home::at_work(home)?;
    let (place, gone) = (home.join(name), home::gone(home, name));
    home::remove_all(&gone)?;
    place.rename(&gone).map_err(|e| gone.error(e))?;
    home.sync_directory()?;
    home::remove_all(&gone)
}
