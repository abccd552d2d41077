//! Objects that another party offers to write: a gateway's clients, for example. Nothing of them is
//! believed. What comes out of here is what its key says, by its hash and by every rule of its format.
//!
//! Who may write what, and which other objects an offered one may name, is up to the caller.

mod kept;

pub use kept::KeptObjects;

use crate::collection::{CollectionState, MAX_HELD, Pin, pin};
use crate::gc;
use crate::manifest_root::{self, check_size};
use crate::moved::{self, Moved};
use crate::object;
use crate::object_kind::ObjectKind;
use crate::pack::{self, PackIndex};
use crate::rewritten;
use crate::segment::{self, Segment};
use crate::servers::Announcement;
use crate::{ChunkRef, ManifestId, PackId, SegmentId, ServerId, Settings, Store, chunker, heal};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::ObjectStore;
use std::sync::Arc;
use std::time::Duration;

/// A pack that was checked: every chunk of it is what the index says.
#[derive(Debug)]
pub struct OfferedPack {
    id: PackId,
    bytes: Bytes,
    tail: usize,
}

/// The root of a manifest, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ManifestOutline {
    /// The size of the image in bytes.
    pub size: u64,
    /// The segments in order, one for every 256 MiB; `None` for one without data.
    pub segments: Vec<Option<SegmentId>>,
}

/// A session's pin, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinContent {
    /// The newest record of garbage collection that the session had seen.
    pub sequence: u64,
    /// The manifests that are kept for it.
    pub holds: Vec<ManifestId>,
}

impl OfferedPack {
    /// Checks all of a pack: its index, and every chunk against its hash. Takes about 10 ms of
    /// processor time, and seconds for one that was made for that; see [`block::offload`].
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) naming what is wrong.
    pub fn check(settings: &Settings, id: PackId, bytes: Bytes) -> Result<Self> {
        let key = pack::path(&id);
        let key = key.as_ref();
        if bytes.len() as u64 > pack::MAX_LEN {
            return Err(crate::wire::damaged(key, "it is longer than a pack can be"));
        }
        pack::check_head(key, &bytes)?;
        let index = PackIndex::decode(settings, id, key, &bytes, bytes.len() as u64)?;
        // A chunk of 256 KiB takes some 80 bytes if it is made for it: without a bound a pack could have 100 GB.
        if index.chunks().len() > pack::FULL_CHUNKS {
            let why =
                format!("it has more than {} chunks, which no writer makes", pack::FULL_CHUNKS);
            return Err(crate::wire::damaged(key, &why));
        }
        let mut end = 0;
        for (at, checksum) in index.chunks().zip(index.checksums()) {
            end = (at.offset + at.stored) as usize;
            let stored = &bytes[at.offset as usize..end];
            if crc32c::crc32c(stored) != checksum {
                return Err(at.damaged("the checksum of its stored bytes is wrong"));
            }
            at.check(settings, stored)?;
        }
        let tail = bytes.len() - end;
        Ok(Self { id, bytes, tail })
    }

    /// Writes it, unless it is there already.
    ///
    /// # Errors
    /// Any error from the backend.
    pub async fn write(self, store: &Store) -> Result<()> {
        pack::put(store.backend(), &self.id, self.bytes, self.tail).await
    }
}

/// Opens an object whose key is the hash of its body, and checks that.
fn content(settings: &Settings, kind: ObjectKind, id: [u8; 32], bytes: Bytes) -> Result<Bytes> {
    let key = kind.key(&blake3::Hash::from_bytes(id));
    let body = object::decode(settings, kind, &key, bytes)?;
    if object::id_of(settings, kind, &body) != id {
        return Err(crate::wire::damaged(&key, "its hash is wrong"));
    }
    Ok(body)
}

/// Checks a segment; gives the chunks that it names.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) naming what is wrong.
pub fn check_segment(settings: &Settings, id: SegmentId, bytes: Bytes) -> Result<Vec<ChunkRef>> {
    let body = content(settings, ObjectKind::Segment, id.0, bytes)?;
    let segment = Segment::decode(&segment::key(&id), body, chunker::SEGMENT_PAGES as u32)?;
    Ok(segment.all().map(|placed| placed.at).collect())
}

/// Checks the root of a manifest.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) naming what is wrong.
pub fn check_manifest(
    settings: &Settings,
    id: ManifestId,
    bytes: Bytes,
) -> Result<ManifestOutline> {
    let body = content(settings, ObjectKind::Root, id.0, bytes)?;
    let (size, segments) = manifest_root::decode(&manifest_root::key(&id), &body)?;
    Ok(ManifestOutline { size, segments })
}

/// Checks a session's pin under its key: that it is one that a session which is no collection could have, but for
/// [what it has seen](check_pin_sequence).
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) naming what is wrong.
pub fn check_pin(settings: &Settings, key: &str, bytes: Bytes) -> Result<PinContent> {
    let body = object::decode(settings, ObjectKind::Pin, key, bytes)?;
    let Pin { sequence, age, what, holds } = Pin::decode(key, &body)?;
    let wrong = |why: &str| Err(crate::wire::damaged(key, why));
    if holds.len() > MAX_HELD {
        return wrong("it holds too many manifests");
    }
    if age > pin::MAX_AGE {
        return wrong("no session lasts so long");
    }
    // It is shown to whoever waits for the session's end.
    if what.len() > pin::MAX_WHAT || what.chars().any(char::is_control) {
        return wrong("what it says of its session is too long, or has control characters");
    }
    if what == gc::WHAT {
        return wrong("a collection does not go through another's hands");
    }
    Ok(PinContent { sequence, holds })
}

/// Checks that a pin has seen no later record of garbage collection than there is: while one is there that says so, that
/// record passes for lost, and nobody collects.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) then; any error from the backend.
pub async fn check_pin_sequence(store: &Store, key: &str, pin: &PinContent) -> Result<()> {
    if pin.sequence > CollectionState::newest(store).await? {
        let why = "it has seen a record of garbage collection that there is not";
        return Err(crate::wire::damaged(key, why));
    }
    Ok(())
}

/// Writes an object whose key is the hash of its body and that was checked, unless it is there
/// already as it ought to be.
///
/// # Errors
/// Any error from the backend.
pub async fn write_content(store: &Store, key: &str, bytes: Bytes) -> Result<()> {
    let compare = bytes.len();
    objects::put_content(store.backend(), key, bytes, compare).await
}

impl Store {
    /// The store's objects as they are: for who passes them on, and checks what others bring.
    pub fn object_store(&self) -> Arc<dyn ObjectStore> {
        self.shared_backend()
    }

    /// The chunks in the index of a pack.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt);
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn pack_chunks(&self, id: &PackId) -> Result<Vec<ChunkRef>> {
        let meta = objects::head(self.backend(), pack::path(id).as_ref()).await?;
        let index = PackIndex::load(self.backend(), self.settings(), &meta).await?;
        Ok(index.chunks().collect())
    }

    /// The chunks that a segment names.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt);
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn segment_chunks(&self, id: &SegmentId) -> Result<Vec<ChunkRef>> {
        let body = heal::content(self, ObjectKind::Segment, &id.0).await?;
        let segment = Segment::decode(&segment::key(id), body, chunker::SEGMENT_PAGES as u32)?;
        Ok(segment.all().map(|placed| placed.at).collect())
    }

    /// Checks that the last segment of an outline ends where the image does; the others are full.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when it does not; any error from reading it.
    pub async fn check_end(&self, outline: &ManifestOutline) -> Result<()> {
        check_size(outline.size)?;
        let Some(Some(last)) = outline.segments.last() else { return Ok(()) };
        let blocks = segment::blocks_of(outline.size, outline.segments.len() as u64 - 1)?;
        let body = heal::content(self, ObjectKind::Segment, &last.0).await?;
        Segment::decode(&segment::key(last), body, blocks).map(drop)
    }

    /// The segments that a manifest names; one that is named twice comes twice.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound), [`Corrupt`](ErrorKind::Corrupt);
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn manifest_segments(&self, id: &ManifestId) -> Result<Vec<SegmentId>> {
        let manifest = self.manifest(id).await?;
        Ok((0..manifest.segments()).filter_map(|index| manifest.segment_id(index)).collect())
    }

    /// Where the chunks of a pack are that was rewritten; `None` when it was not.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt); [`Unavailable`](ErrorKind::Unavailable) or
    /// [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn moved_chunks(&self, pack: &PackId) -> Result<Option<Vec<ChunkRef>>> {
        Ok(rewritten::load(self, pack).await?.map(|moved| moved.chunks().collect()))
    }
}

/// The object that says where some chunks of a rewritten pack are now: true, though not all that the
/// store knows.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) when there are too many.
pub fn encode_moved(settings: &Settings, pack: &PackId, chunks: Vec<ChunkRef>) -> Result<Bytes> {
    object::encode(settings, ObjectKind::Moved, &moved::key(pack), &Moved::encode(chunks))
}

/// Whose a server's id is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerOwner {
    /// That of whom it was asked for.
    This,
    /// Another one's, or a damaged object keeps it from being told.
    Other,
    /// Nobody announced it. It may be of a server that never did.
    Unknown,
}

/// Whether a server's id belongs to `owner`.
///
/// # Errors
/// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
pub async fn server_owner(store: &Store, owner: &str, server: &ServerId) -> Result<ServerOwner> {
    match store.servers().said(server).await {
        Ok(Some(said)) if said.host.starts_with(&format!("{owner} (")) => Ok(ServerOwner::This),
        Ok(Some(_)) => Ok(ServerOwner::Other),
        Ok(None) => Ok(ServerOwner::Unknown),
        Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {
            Ok(ServerOwner::Other)
        }
        Err(e) => Err(e),
    }
}

/// Announces a server, not at work yet, at the request of `owner`, whose it is from now on. Nobody has announced it,
/// and nothing names it.
///
/// # Errors
/// Any error from the backend.
pub async fn claim_server(store: &Store, owner: &str, server: &ServerId) -> Result<()> {
    store.servers().announce(*server, &owned_host(owner, "not at work"), Duration::ZERO).await
}

/// Checks that an object announces `server`.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt).
pub fn check_announcement(store: &Store, server: &ServerId, bytes: Bytes) -> Result<()> {
    announcement(store, server, bytes).map(drop)
}

fn announcement(store: &Store, server: &ServerId, bytes: Bytes) -> Result<Announcement> {
    let key = ObjectKind::Server.key(server);
    let body = object::decode(store.settings(), ObjectKind::Server, &key, bytes)?;
    let said = Announcement::decode(&key, &body)?;
    match said.server == *server {
        true => Ok(said),
        false => Err(crate::wire::damaged(&key, "it is of another server")),
    }
}

/// Announces a server of `owner` at its request. Its word on the host is not taken: that becomes
/// `<owner> (<host>)`.
///
/// # Errors
/// [`Corrupt`](ErrorKind::Corrupt) for what is not an announcement of `server`; [`Denied`](ErrorKind::Denied)
/// when the id is not this owner's; [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied)
/// from the backend.
pub async fn announce_for(
    store: &Store,
    owner: &str,
    server: &ServerId,
    bytes: Bytes,
) -> Result<()> {
    let said = announcement(store, server, bytes)?;
    if server_owner(store, owner, server).await? != ServerOwner::This {
        return Err(Error::denied(format!("server {server} is not this client's")));
    }
    let host = owned_host(owner, &said.host);
    store.servers().announce(*server, &host, Duration::from_secs(said.seconds)).await
}

/// No host has a name with a space in it, so that nobody is taken for an owner by chance.
fn owned_host(owner: &str, host: &str) -> String {
    let plain: String = host.chars().filter(|c| !c.is_control()).take(128).collect();
    format!("{owner} ({plain})")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoding, chunk, testing};
    use object_store::memory::InMemory;
    use std::time::Duration;

    async fn store(settings: Settings) -> Store {
        let backend: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        match settings.is_encrypted() {
            false => Store::create(backend, settings, testing::world(1)).await.unwrap(),
            true => {
                let secret = crate::Secret::key_file(vec![1; 32]).unwrap();
                let cost = crate::Argon2Cost::TRIVIAL;
                let key = crate::NewKey { name: "test", secret: &secret, cost };
                let made = Store::create_encrypted(backend, settings, testing::world(1), &key);
                made.await.unwrap()
            }
        }
    }

    #[tokio::test]
    async fn a_pack_with_any_flipped_bit_is_refused_though_its_index_has_the_right_hash() {
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let store = store(settings.clone()).await;
            let mut builder = pack::Builder::new();
            for seed in 0..3u64 {
                let plain = Bytes::from(testing::noise(seed, 8192));
                let id = chunk::id_of(&settings, &plain);
                let (encoding, stored) = chunk::encode(&settings, &id, plain).unwrap();
                assert!(!matches!(encoding, Encoding::Zstd | Encoding::SealedZstd));
                builder.add(id, 8192, encoding, &stored);
            }
            let done = builder.finish(&settings, |_| false).unwrap();
            OfferedPack::check(&settings, done.id, done.bytes.clone())
                .unwrap()
                .write(&store)
                .await
                .unwrap();
            assert_eq!(store.pack_chunks(&done.id).await.unwrap().len(), 3);
            for at in (0..done.bytes.len()).step_by(97) {
                let mut bad = done.bytes.to_vec();
                bad[at] ^= 4;
                let checked = OfferedPack::check(&settings, done.id, bad.into());
                assert!(checked.is_err(), "byte {at}");
            }
        }
    }

    #[test]
    fn a_pack_has_no_more_chunks_than_any_writer_makes() {
        let settings = testing::settings();
        let plain = Bytes::from(vec![7; 4096]);
        let id = chunk::id_of(&settings, &plain);
        let (encoding, stored) = chunk::encode(&settings, &id, plain).unwrap();
        for (chunks, is_taken) in [(pack::FULL_CHUNKS, true), (pack::FULL_CHUNKS + 1, false)] {
            let mut builder = pack::Builder::new();
            for _ in 0..chunks {
                builder.add(id, 4096, encoding, &stored);
            }
            let done = builder.finish(&settings, |_| false).unwrap();
            let checked = OfferedPack::check(&settings, done.id, done.bytes);
            assert_eq!(checked.is_ok(), is_taken, "{chunks}");
        }
    }

    #[tokio::test]
    async fn a_server_belongs_to_who_announced_it_first() {
        let store = store(testing::settings()).await;
        let (here, other) = (ServerId([1; 16]), ServerId([2; 16]));
        let owner = async |name: &str, server: &ServerId| {
            server_owner(&store, &format!("cert:{name}"), server).await.unwrap()
        };
        store.servers().announce(here, "lab", Duration::from_secs(60)).await.unwrap();
        assert_eq!(owner("alice", &here).await, ServerOwner::Other);
        assert_eq!(owner("alice", &other).await, ServerOwner::Unknown);
        claim_server(&store, "cert:alice", &other).await.unwrap();
        assert_eq!(owner("alice", &other).await, ServerOwner::This);
        assert_eq!(owner("ali", &other).await, ServerOwner::Other);
        assert_eq!(owner("bob", &other).await, ServerOwner::Other);
        let key = ObjectKind::Server.key(&other);
        let said = store.object_store();
        let bytes = objects::get(&*said, &key, 4096).await.unwrap();
        announce_for(&store, "cert:alice", &other, bytes.clone()).await.unwrap();
        let error = announce_for(&store, "cert:bob", &other, bytes.clone()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied);
        let error = announce_for(&store, "cert:alice", &here, bytes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "it is of another server");
        // One whose object is damaged is nobody's to take.
        let noise = Bytes::from_static(b"noise");
        objects::put_over(store.backend(), &ObjectKind::Server.key(&here), noise).await.unwrap();
        assert_eq!(owner("alice", &here).await, ServerOwner::Other);
    }
}
