//! The store: settings, a backend, and reading chunks.

use crate::chunk::ChunkRef;
use crate::counters::Tally;
use crate::heal::{self, Healing};
use crate::manifest::Root;
use crate::segment::Segment;
use crate::settings::Found;
use crate::settings::{self, Settings};
use crate::shared::Shared;
use crate::stretch::Stretch;
use crate::{
    Counters, Encoding, Keys, Manifest, ManifestId, NewKey, Refs, Secret, SegmentId, World,
    WriterId, chunk, document, keys, pack,
};
use block::{Error, ErrorKind, Result, offload};
use bytes::Bytes;
use object_store::ObjectStore;
use objects::Created;
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use tokio::time::Instant;

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
    tally: Tally,
    roots: Shared<ManifestId, Root>,
    segments: Shared<SegmentKey, Segment>,
    healing: Healing,
}

impl Store {
    /// Makes a store in an empty backend.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when there is one already; else the backend's.
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

    /// As [`create`](Self::create), with settings of an encrypted store, which `key` opens.
    ///
    /// # Errors
    /// As [`create`](Self::create).
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
        // A slot before the store: there is never a store that nobody can open.
        let slot = keys::create(&*backend, &world, master, key).await?;
        let made = Self::claim(Arc::clone(&backend), settings, world).await;
        if matches!(&made, Err(e) if e.kind() == ErrorKind::Conflict) {
            keys::delete(&*backend, slot).await?;
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
    /// As [`open_with`](Self::open_with).
    pub async fn open(backend: Arc<dyn ObjectStore>, world: World) -> Result<Self> {
        Self::open_with(backend, world, async || Ok(None)).await
    }

    /// Opens a store. `secret` is asked for the secret when the store turns out to be encrypted.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none,
    /// [`Denied`](ErrorKind::Denied) when the secret is needed and missing, or the wrong one,
    /// [`Unsupported`](ErrorKind::Unsupported) when its format is newer,
    /// [`Corrupt`](ErrorKind::Corrupt) when its settings are damaged; else the backend's.
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
    /// [`NotFound`](ErrorKind::NotFound) when there is no store,
    /// [`Denied`](ErrorKind::Denied) when the secret is needed and missing, or the wrong one,
    /// [`Unsupported`](ErrorKind::Unsupported) when its format is newer,
    /// [`Corrupt`](ErrorKind::Corrupt) when its settings are damaged; else the backend's.
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
                let master = match keys::unlock_kept(kept, locked.key_id(), &secret).await {
                    Some(master) => master,
                    None => {
                        let found = keys::unlock(&*backend, locked.key_id(), &secret).await?;
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
            tally: Tally::default(),
            roots: Shared::default(),
            segments: Shared::default(),
            healing: Healing::default(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What all users of the store agree on.
    pub fn settings(&self) -> &Settings {
        &self.inner.settings
    }

    /// The chunk's plain bytes: read, decompressed and verified. When its pack was rewritten, it is
    /// found where it is now; when it is missing or damaged, in the stores that were added by
    /// [`add_source`](Self::add_source).
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt), naming pack and offset, when the bytes are not the chunk's;
    /// [`NotFound`](ErrorKind::NotFound) when the pack is gone; else the backend's.
    pub async fn read_chunk(&self, at: &ChunkRef) -> Result<Bytes> {
        self.counted(at, heal::chunk(self, at, self.read_at(at))).await
    }

    /// As [`read_chunk`](Self::read_chunk), out of what `stretch` reads for several chunks. One that
    /// is not among them, or that it does not bring whole and right, is read alone.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn read_chunk_of(&self, at: &ChunkRef, stretch: &Stretch) -> Result<Bytes> {
        self.counted(at, heal::chunk(self, at, self.read_part(at, stretch))).await
    }

    /// The plain bytes of a chunk's copy: from the place that `copy` names, out of `stretch` if there is
    /// one. A copy that cannot be read is looked for nowhere, and is no failure yet: whoever asked reads
    /// the chunk in its own place.
    ///
    /// # Errors
    /// As [`read_chunk`](Self::read_chunk).
    pub async fn read_copy(&self, copy: &ChunkRef, stretch: Option<&Stretch>) -> Result<Bytes> {
        let (reading, began) = (self.inner.tally.read(), Instant::now());
        let plain = match stretch {
            Some(stretch) => self.read_part(copy, stretch).await?,
            None => self.read_at(copy).await?,
        };
        reading.took(began.elapsed());
        self.count(copy, Ok(plain))
    }

    /// Counts a chunk being read, and what came of it.
    async fn counted(
        &self,
        at: &ChunkRef,
        read: impl Future<Output = Result<Bytes>>,
    ) -> Result<Bytes> {
        let (reading, began) = (self.inner.tally.read(), Instant::now());
        let outcome = read.await;
        if outcome.is_ok() {
            reading.took(began.elapsed());
        }
        self.count(at, outcome)
    }

    /// The chunk's plain bytes from the place that `at` names, out of a stretch where that brings them.
    async fn read_part(&self, at: &ChunkRef, stretch: &Stretch) -> Result<Bytes> {
        match stretch.part(at).await {
            Some(stored) => match at.decode(self.settings(), stored?) {
                Ok(plain) => Ok(on_its_own(at, plain)),
                Err(_) => self.read_at(at).await,
            },
            None => self.read_at(at).await,
        }
    }

    /// The chunk's plain bytes from the place that `at` names, and no other.
    pub(crate) async fn read_at(&self, at: &ChunkRef) -> Result<Bytes> {
        let path = pack::path(&at.pack);
        let (offset, len) = (u64::from(at.offset), u64::from(at.stored));
        let stored = objects::get_range(self.backend(), &path, offset, len).await;
        let stored = stored.map_err(|e| match e.kind() {
            ErrorKind::NotFound => Error::not_found(format!(
                "object {path}, which holds chunks of the image, is gone from the store; heal the \
                 store with \"sojourn repair --from\", or import the image again"
            ))
            .with_source(e),
            _ => e,
        })?;
        let plain = match at.decode(self.settings(), stored) {
            // What is kept of the object on a local disk may be older than its repair.
            Err(e) if e.kind() == ErrorKind::Corrupt => {
                let hint = objects::Hint::Fresh;
                let fresh = objects::get_range_with(self.backend(), &path, offset, len, hint).await;
                at.decode(self.settings(), fresh.map_err(|_| e)?)?
            }
            other => other?,
        };
        Ok(on_its_own(at, plain))
    }

    /// Reads chunks of one pack in one request, so that whatever keeps what is read of this store has them
    /// from then on. Each is verified; none is given.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is no such pack, [`Corrupt`](ErrorKind::Corrupt) for the
    /// first chunk that is not what it should be; the backend's.
    pub async fn fetch(&self, chunks: &[ChunkRef]) -> Result<()> {
        let Some(first) = chunks.first() else { return Ok(()) };
        let ranges: Vec<_> = chunks.iter().map(stored_range).collect();
        let found = objects::get_ranges(self.backend(), &pack::path(&first.pack), &ranges).await?;
        for (at, stored) in chunks.iter().zip(found) {
            at.decode(self.settings(), stored)?;
        }
        Ok(())
    }

    /// Whether a chunk is in the piece cache of `link`, the way to this store. Nothing is read; looks into
    /// the file system.
    pub fn has_kept(&self, link: &objects::Link, at: &ChunkRef) -> bool {
        link.has_range(&pack::path(&at.pack), &stored_range(at))
    }

    /// Puts a chunk that came from elsewhere into the piece cache of `link`, the way to this store, as if it had
    /// been read there. `stored` is what was given, when that was compressed and sealed. Says whether that
    /// was possible: the bytes have to be such as the store's own are read by the same reference.
    ///
    /// # Errors
    /// [`Internal`](ErrorKind::Internal) when the compressor or cipher fails.
    pub async fn keep(
        &self,
        link: &objects::Link,
        at: &ChunkRef,
        stored: Option<(Encoding, Bytes)>,
        plain: Bytes,
    ) -> Result<bool> {
        let (settings, at) = (self.settings().clone(), *at);
        let fits = move |(encoding, bytes): &(Encoding, Bytes)| {
            *encoding == at.encoding && bytes.len() == at.stored as usize
        };
        let found = offload(move || {
            let stored = match stored.filter(&fits) {
                Some((_, bytes)) => bytes,
                None => match Some(chunk::encode(&settings, &at.id, plain)?).filter(&fits) {
                    Some((_, bytes)) => bytes,
                    None => return Ok(None),
                },
            };
            Ok(at.decode(&settings, stored.clone()).is_ok().then_some(stored))
        });
        let Some(stored) = found.await? else { return Ok(false) };
        link.keep_range(&pack::path(&at.pack), &stored_range(&at), stored).await;
        Ok(true)
    }

    /// Counts the outcome of reading a chunk.
    pub(crate) fn count<T>(&self, at: &ChunkRef, outcome: Result<T>) -> Result<T> {
        match &outcome {
            Ok(_) => self.inner.tally.chunk(at.stored.into(), at.len.into()),
            Err(_) => self.inner.tally.failure(),
        }
        outcome
    }

    /// Opens a manifest: its root is read now, unless somebody holds it, its segments when they are
    /// asked for.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt),
    /// [`Unsupported`](ErrorKind::Unsupported) for a newer format; else the backend's.
    pub async fn manifest(&self, id: &ManifestId) -> Result<Arc<Manifest>> {
        let root = self.inner.roots.get_or_load(*id, || Root::load(self, id)).await?;
        Ok(Arc::new(Manifest::new(self, id, root)))
    }

    /// Opens a manifest whose root is read anew from a store, not from memory or a medium: for whoever is
    /// about to rely on its being there.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt),
    /// [`Unsupported`](ErrorKind::Unsupported) for a newer format; else the backend's.
    pub async fn stored_manifest(&self, id: &ManifestId) -> Result<Arc<Manifest>> {
        let root = Root::load_stored(self, id).await?;
        Ok(Arc::new(Manifest::new(self, id, Arc::new(root))))
    }

    /// Who may open the store, if it is encrypted.
    pub fn keys(&self) -> Keys {
        Keys::new(self.clone())
    }

    /// The names.
    pub fn refs(&self) -> Refs {
        Refs::new(self.clone())
    }

    /// What was read since the store was opened.
    pub fn counters(&self) -> Counters {
        self.inner.tally.snapshot()
    }

    pub(crate) fn pins(&self) -> &Mutex<BTreeSet<WriterId>> {
        &self.inner.pins
    }

    pub(crate) fn backend(&self) -> &dyn ObjectStore {
        &*self.inner.backend
    }

    pub(crate) fn tally(&self) -> &Tally {
        &self.inner.tally
    }

    /// Where chunks are found that are not in their place.
    pub(crate) fn healing(&self) -> &Healing {
        &self.inner.healing
    }

    /// The segments that are in memory.
    pub(crate) fn segments(&self) -> &Shared<SegmentKey, Segment> {
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

/// What is kept must not keep more: a backend may answer with a part of a larger buffer, whose other
/// parts nobody has any more. What was decoded has a buffer of its own.
fn on_its_own(at: &ChunkRef, plain: Bytes) -> Bytes {
    match at.encoding {
        crate::Encoding::Plain => Bytes::copy_from_slice(&plain),
        _ => plain,
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

/// Where a chunk is in its pack.
fn stored_range(at: &ChunkRef) -> std::ops::Range<u64> {
    let start = u64::from(at.offset);
    start..start + u64::from(at.stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{import, testing};
    use block::Memory;
    use object_store::memory::InMemory;

    #[tokio::test]
    async fn a_chunk_that_is_stored_plain_does_not_keep_the_whole_pack_in_memory() {
        // This backend answers with parts of the object's own buffer.
        let backend: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let image = Memory::from(testing::noise(3, 1 << 20));
        let done = import::from_device(&testing::session(&store).await, &image, &()).await.unwrap();
        for at in store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap() {
            assert_eq!(at.encoding, crate::Encoding::Plain);
            assert!(store.read_chunk(&at).await.unwrap().is_unique());
        }
    }
}
