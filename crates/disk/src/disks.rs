//! All disks of a home: one directory each.
//!
//! A directory whose name starts with a dot is one that is being made or removed; a crash may leave
//! it, and the next try replaces it. A disk whose directory is complete but whose ref was never made
//! was not reported as created: creating it again replaces it as long as it holds nothing private,
//! and opening it makes the ref.

use crate::disk::{body, describe, room};
use crate::layer::Layer;
use crate::lock::Lock;
use crate::maplog::{Failure, Identity};
use crate::record::{Record, Uuid};
use crate::shadow::check_size;
use crate::snapshot::{self, manifest_of};
use crate::{CreateOptions, Disk, DiskInfo, Mode, Resident};
use block::{Error, ErrorKind, Result, offload};
use cache::Cache;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use store::{ImageName, RefKind, RefRecord, Store, check_name};

/// How long an ephemeral disk waits for a client that was lost, unless told otherwise.
const LINGER: Duration = Duration::from_secs(30);

/// The disks in a directory.
pub struct Disks {
    directory: PathBuf,
    store: Store,
    cache: Arc<Cache>,
    linger: Duration,
}

impl Disks {
    /// The disks in `directory`, which is made with the first one.
    pub fn new(directory: PathBuf, store: Store, cache: Arc<Cache>) -> Self {
        Self { directory, store, cache, linger: LINGER }
    }

    /// The same, with another time that ephemeral disks wait for a lost client (30 s by default).
    #[must_use]
    pub fn with_linger(mut self, linger: Duration) -> Self {
        self.linger = linger;
        self
    }

    /// The image version that `image` means: the newest one when it has no tag.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none; those of the store.
    pub async fn resolve(&self, image: &ImageName) -> Result<RefRecord> {
        snapshot::resolve(&self.store, image).await
    }

    /// Makes a disk from an image version.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for a bad name or size,
    /// [`NotFound`](ErrorKind::NotFound) when there is no such image,
    /// [`Conflict`](ErrorKind::Conflict) when there is a disk of this name; those of the store and
    /// the file system.
    pub async fn create(
        &self,
        name: &str,
        from: &ImageName,
        options: CreateOptions,
    ) -> Result<DiskInfo> {
        check_name("disk", name)?;
        let version = self.resolve(from).await?;
        let manifest = self.store.manifest(&manifest_of(&version)?).await?;
        let size = options.size.unwrap_or(manifest.size());
        check_size(size)?;
        if size < manifest.size() {
            return Err(Error::invalid(format!(
                "a disk of {size} bytes cannot hold image {}, which has {}; give no size, or a \
                 larger one",
                version.name,
                manifest.size()
            )));
        }
        if self.store.refs().get(RefKind::Disk, name).await?.is_some() {
            return Err(taken(name));
        }
        let world = self.store.world();
        let mut uuid = Uuid([0; 16]);
        world.entropy.fill(&mut uuid.0)?;
        let record = Record {
            name: name.to_owned(),
            uuid,
            mode: options.mode,
            size,
            created: world.clock.now(),
            image: version.name.parse()?,
            origin: manifest.id(),
            base: manifest.id(),
            layers: vec![1],
            next_layer: 2,
            attached: None,
        };
        let (home, copy) = (self.directory.clone(), record.clone());
        let _lock = offload(move || build(&home, &copy)).await?;
        self.forget_snapshots(name).await?;
        if let Err(error) = self.store.refs().create(RefKind::Disk, name, body(&record)).await {
            if error.kind() == ErrorKind::Conflict {
                // Somebody else was first, with the same store.
                let (home, name) = (self.directory.clone(), name.to_owned());
                offload(move || clear(&home, &name)).await?;
            }
            return Err(error);
        }
        Ok(describe(&record, 0, Vec::new()))
    }

    /// All disks, by name, without opening them; those that cannot be read say why.
    ///
    /// # Errors
    /// Those of the store and the file system.
    pub async fn list(&self) -> Result<Vec<DiskInfo>> {
        let home = self.directory.clone();
        let found = offload(move || {
            let mut found = Vec::new();
            for name in names(&home)? {
                let directory = home.join(&name);
                let record = Record::load(&directory);
                let room = record.as_ref().map_or(0, |record| room(&directory, record));
                found.push((name, record, room));
            }
            Ok(found)
        })
        .await?;
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let mut snapshots = snapshot::list(&self.store).await?;
        let list = found.into_iter().map(|(name, record, room)| {
            let own = snapshots.remove(&name).unwrap_or_default();
            match record {
                Ok(record) => describe(&record, room, own),
                Err(error) => DiskInfo {
                    name,
                    state: Resident::Damaged,
                    error: Some(error.to_string()),
                    image: String::new(),
                    mode: Mode::Persistent,
                    size: 0,
                    created: 0,
                    private_bytes: 0,
                    snapshots: own,
                },
            }
        });
        Ok(list.collect())
    }

    /// Opens a disk for this process alone.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none,
    /// [`Conflict`](ErrorKind::Conflict) when another opener has it,
    /// [`Corrupt`](ErrorKind::Corrupt) when its files do not hold what was acknowledged; those of
    /// the store and the file system.
    pub async fn open(&self, name: &str) -> Result<Arc<Disk>> {
        check_name("disk", name)?;
        let directory = self.directory.join(name);
        let (at, own) = (directory.clone(), name.to_owned());
        let lock = offload(move || lock_existing(&at, &own)).await?;
        let (store, cache) = (self.store.clone(), Arc::clone(&self.cache));
        Disk::open(directory, name, lock, store, cache, self.linger).await.map(Arc::new)
    }

    /// Removes a disk with its snapshots. Images stay, also those committed from it.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none,
    /// [`Conflict`](ErrorKind::Conflict) while it is in use; those of the store and the file system.
    pub async fn remove(&self, name: &str) -> Result<()> {
        check_name("disk", name)?;
        let (directory, own) = (self.directory.join(name), name.to_owned());
        let lock = match offload(move || lock_existing(&directory, &own)).await {
            Ok(lock) => Some(lock),
            // Its directory was lost; the name is left.
            Err(error) if error.kind() == ErrorKind::NotFound => {
                if self.store.refs().get(RefKind::Disk, name).await?.is_none() {
                    return Err(error);
                }
                None
            }
            Err(error) => return Err(error),
        };
        self.forget_snapshots(name).await?;
        let refs = self.store.refs();
        if let Some(found) = refs.get(RefKind::Disk, name).await? {
            refs.remove(RefKind::Disk, name, found.sequence).await?;
        }
        if lock.is_some() {
            let (home, name) = (self.directory.clone(), name.to_owned());
            offload(move || clear(&home, &name)).await?;
        }
        Ok(())
    }

    /// Removes the names of all snapshots of a disk.
    async fn forget_snapshots(&self, disk: &str) -> Result<()> {
        let refs = self.store.refs();
        let listing = refs.list(RefKind::Snapshot).await?;
        let of_disk = |name: &str| name.split_once('@').is_some_and(|(of, _)| of == disk);
        if let Some(bad) = listing.damaged.into_iter().find(|bad| of_disk(&bad.name)) {
            return Err(bad.error.context(format!("snapshot {}", bad.name)));
        }
        for found in listing.records {
            if of_disk(&found.name) {
                refs.remove(RefKind::Snapshot, &found.name, found.sequence).await?;
            }
        }
        Ok(())
    }
}

fn taken(name: &str) -> Error {
    Error::conflict(format!("disk {name:?} exists already; choose another name, or remove it"))
}

/// The names of the disks in a home, sorted. Other things in it are passed over.
fn names(home: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(home) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io(home.display(), error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(home.display(), e))?;
        if let Some(name) = entry.file_name().to_str()
            && check_name("disk", name).is_ok()
            && entry.path().is_dir()
        {
            names.push(name.to_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Takes the lock of a disk that exists.
fn lock_existing(directory: &Path, name: &str) -> Result<Lock> {
    if !directory.is_dir() {
        return Err(Error::not_found(format!(
            "there is no disk {name:?}; see 'sojourn disk list'"
        )));
    }
    Lock::take(directory, name)
}

/// Makes the directory of a new disk, complete or not at all, and keeps its lock.
fn build(home: &Path, record: &Record) -> Result<Lock> {
    let failed = |path: &Path, e| Error::io(path.display(), e);
    fs::create_dir_all(home).map_err(|e| failed(home, e))?;
    let place = home.join(&record.name);
    if place.exists() {
        let _lock = Lock::take(&place, &record.name)?;
        let left = Record::load(&place)?;
        if room(&place, &left) > 0 {
            return Err(taken(&record.name).context(format!(
                "{} holds private blocks of a disk that the store does not know",
                place.display()
            )));
        }
        clear(home, &record.name)?;
    }
    let fresh = home.join(format!(".new-{}", record.name));
    fs::create_dir_all(&fresh).map_err(|e| failed(&fresh, e))?;
    let lock = Lock::take(&fresh, &record.name)?;
    Layer::create(&fresh, Identity { disk: record.uuid.0, layer: 1 })?;
    record.save(&fresh).map_err(|failure| match failure {
        Failure::Retry(error) | Failure::Lost(error) => error,
    })?;
    fs::rename(&fresh, &place).map_err(|e| failed(&place, e))?;
    block::file::sync_directory(home)?;
    Ok(lock)
}

/// Removes the directory of a disk whose lock is held: at once for everybody else.
fn clear(home: &Path, name: &str) -> Result<()> {
    let (place, gone) = (home.join(name), home.join(format!(".gone-{name}")));
    let failed = |e| Error::io(gone.display(), e);
    if gone.exists() {
        fs::remove_dir_all(&gone).map_err(failed)?;
    }
    fs::rename(&place, &gone).map_err(failed)?;
    block::file::sync_directory(home)?;
    fs::remove_dir_all(&gone).map_err(failed)
}
