//! The store: settings, a backend, and what is known of both in memory.

use crate::counters::LiveStoreCounters;
use crate::manifest_root::Root;
use crate::segment::Segment;
use crate::settings::{self, Found, Settings};
use crate::slots::{self, NewKey};
use crate::weak_cache::WeakCache;
use crate::{ManifestId, Secret, SegmentId, StoreCounters, World, WriterId, document};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::ObjectStore;
use objects::Created;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

mod place;
mod sources;

pub(crate) use place::on_its_own;
use sources::Healing;
pub use sources::OtherStore;

/// An open store. Cheap to clone; clones share the counters, and the roots and segments of manifests that
/// are in memory.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

/// Which segment, and how many blocks it may describe: an image that was grown may end behind where
/// another one's last segment ends.
type SegmentKey = (SegmentId, u32);

struct Inner {
    backend: Arc<dyn ObjectStore>,
    settings: Settings,
    world: World,
    /// The pins of the sessions that were begun here and have not ended.
    pins: Mutex<BTreeSet<WriterId>>,
    tally: LiveStoreCounters,
    roots: WeakCache<ManifestId, Root>,
    segments: WeakCache<SegmentKey, Segment>,
    healing: Healing,
}

impl Store {
    /// Makes a store in an empty backend.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when there is one already; [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied) or [`NoSpace`](ErrorKind::NoSpace) from the backend.
    pub async fn create(
        backend: Arc<dyn ObjectStore>,
        settings: Settings,
        world: World,
    ) -> Result<Self> {
        if settings.is_encrypted() {
            return Err(Error::invalid("an encrypted store needs a key that opens it"));
        }
        Self::claim(backend, settings, world).await
    }

    /// Makes a store as [`create`](Self::create) does, an encrypted one, which `key` opens.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when there is one already; [`Unavailable`](ErrorKind::Unavailable),
    /// [`Denied`](ErrorKind::Denied) or [`NoSpace`](ErrorKind::NoSpace) from the backend.
    pub async fn create_encrypted(
        backend: Arc<dyn ObjectStore>,
        settings: Settings,
        world: World,
        key: &NewKey<'_>,
    ) -> Result<Self> {
        let Some(master) = settings.master() else {
            return Err(Error::invalid("settings of a store in clear take no key"));
        };
        if objects::head(&*backend, settings::KEY).await.is_ok() {
            return Err(taken(&*backend));
        }
        let key_id = slots::key_id_of(master);
        // A slot before the store: there is never a store that nobody can open.
        let slot = slots::create(&*backend, &world, master, key).await?;
        let made = Self::claim(Arc::clone(&backend), settings, world).await;
        if matches!(&made, Err(e) if e.kind() == ErrorKind::Conflict)
            && is_anothers(&*backend, &key_id).await
        {
            slots::delete(&*backend, slot).await?;
        }
        made
    }

    /// Writes the settings, which only one of several makers can.
    async fn claim(
        backend: Arc<dyn ObjectStore>,
        settings: Settings,
        world: World,
    ) -> Result<Self> {
        let bytes = Bytes::from(settings.encode()?);
        match objects::put_new(&*backend, settings::KEY, bytes).await? {
            Created::Ours => Ok(Self::new(backend, settings, world)),
            Created::Theirs => Err(taken(&*backend)),
        }
    }

    /// Opens a store that is not encrypted.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none, [`Denied`](ErrorKind::Denied) when the secret is
    /// needed and missing, or the wrong one, [`Unsupported`](ErrorKind::Unsupported) when its format is
    /// newer, [`Corrupt`](ErrorKind::Corrupt) when its settings are damaged;
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn open(backend: Arc<dyn ObjectStore>, world: World) -> Result<Self> {
        Self::open_with(backend, world, async || Ok(None)).await
    }

    /// Opens a store. `secret` is asked for the secret when the store turns out to be encrypted.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none, [`Denied`](ErrorKind::Denied) when the secret is
    /// needed and missing, or the wrong one, [`Unsupported`](ErrorKind::Unsupported) when its format is
    /// newer, [`Corrupt`](ErrorKind::Corrupt) when its settings are damaged;
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn open_with(
        backend: Arc<dyn ObjectStore>,
        world: World,
        secret: impl AsyncFnOnce() -> Result<Option<Secret>>,
    ) -> Result<Self> {
        Ok(Self::open_with_slots(backend, world, secret, None).await?.0)
    }

    /// The same, with the key slots of an encrypted store as they were `kept` earlier: with these it is
    /// opened while it is away, if its settings are kept, too. Gives the slots when they were read from the
    /// store, because none were kept or the secret opens none of those: they hold the key wrapped, as the
    /// store does, and are to be kept.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is no store, [`Denied`](ErrorKind::Denied) when the
    /// secret is needed and missing, or the wrong one, [`Unsupported`](ErrorKind::Unsupported) when its
    /// format is newer, [`Corrupt`](ErrorKind::Corrupt) when its settings are damaged;
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn open_with_slots(
        backend: Arc<dyn ObjectStore>,
        world: World,
        secret: impl AsyncFnOnce() -> Result<Option<Secret>>,
        kept: Option<&[u8]>,
    ) -> Result<(Self, Option<Vec<u8>>)> {
        let found = objects::get(&*backend, settings::KEY, document::MAX_LEN).await;
        let bytes = found.map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                Error::not_found("there is no store; make one with `sojourn init`").with_source(e)
            }
            _ => e,
        })?;
        let mut read = None;
        let settings = match Settings::decode(&bytes)? {
            Found::Open(settings) => *settings,
            Found::Locked(locked) => {
                let secret = secret().await?.ok_or_else(|| {
                    Error::denied(
                        "the store is encrypted; give its key file (--key-file, SOJOURN_KEY_FILE, \
                         or key_file in sojourn.toml) or its passphrase (SOJOURN_PASSPHRASE, or on \
                         a terminal)",
                    )
                })?;
                let master = match slots::unlock_kept(kept, locked.key_id(), &secret).await {
                    Some(master) => master,
                    None => {
                        let found = slots::unlock(&*backend, locked.key_id(), &secret).await?;
                        read = Some(found.1);
                        found.0
                    }
                };
                locked.unlock(master)
            }
        };
        Ok((Self::new(backend, settings, world), read))
    }

    fn new(backend: Arc<dyn ObjectStore>, settings: Settings, world: World) -> Self {
        let inner = Inner {
            backend,
            settings,
            world,
            pins: Mutex::default(),
            tally: LiveStoreCounters::default(),
            roots: WeakCache::default(),
            segments: WeakCache::default(),
            healing: Healing::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What all users of the store agree on.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// What was read since the store was opened.
    pub fn counters(&self) -> StoreCounters {
        self.inner.tally.snapshot()
    }

    pub(crate) fn pins(&self) -> &Mutex<BTreeSet<WriterId>> {
        &self.inner.pins
    }

    pub(crate) fn backend(&self) -> &dyn ObjectStore {
        &*self.inner.backend
    }

    pub(crate) fn tally(&self) -> &LiveStoreCounters {
        &self.inner.tally
    }

    /// Where chunks are found that are not in their place.
    pub(crate) fn healing(&self) -> &Healing {
        &self.inner.healing
    }

    /// The roots of manifests that are in memory.
    pub(crate) fn roots(&self) -> &WeakCache<ManifestId, Root> {
        &self.inner.roots
    }

    /// The segments that are in memory.
    pub(crate) fn segments(&self) -> &WeakCache<SegmentKey, Segment> {
        &self.inner.segments
    }

    pub(crate) fn shared_backend(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.inner.backend)
    }

    /// The clock and the entropy that the store was opened with.
    pub fn world(&self) -> &World {
        &self.inner.world
    }
}

/// Whether it can be read that the store in a backend is not the one of this master key.
async fn is_anothers(backend: &dyn ObjectStore, key_id: &[u8; 16]) -> bool {
    let Ok(bytes) = objects::get(backend, settings::KEY, document::MAX_LEN).await else {
        return false;
    };
    match Settings::decode(&bytes) {
        Ok(Found::Open(_)) => true,
        Ok(Found::Locked(locked)) => locked.key_id() != *key_id,
        Err(_) => false,
    }
}

/// The error of a place that has a store.
fn taken(backend: &dyn ObjectStore) -> Error {
    Error::conflict(format!(
        "{backend} has a store already ({}); use it, or choose another place",
        settings::KEY
    ))
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Store({})", self.inner.backend)
    }
}
