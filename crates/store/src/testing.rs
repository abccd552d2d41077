//! A fixed world and the bare readers of the formats, for the tests and fuzzers of
//! this and other crates.

use crate::collection::Pin;
use crate::manifest_root;
use crate::moved::Moved;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::Segment;
use crate::slots;
use crate::{
    Clock, Entropy, Session, Settings, Store, World, boot_list, chunker, pack, refs, servers, wire,
};
use block::Result;
use block::conformance::Sequence;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod burying;
mod held;
mod made;
pub use burying::burying;
pub use held::held_chunks;
pub use made::{pin_object, segment_object, server_object};

/// The time of a [`FixedClock`] that [`world`] makes: 2026-01-01.
pub const NOW: u64 = 1_767_225_600;

/// A clock that stands still until it is set.
#[derive(Debug)]
pub struct FixedClock(AtomicU64);

impl FixedClock {
    /// A clock that says `now`, in Unix seconds.
    pub fn new(now: u64) -> Self {
        Self(AtomicU64::new(now))
    }

    /// Sets it.
    pub fn set(&self, now: u64) {
        self.0.store(now, Ordering::Relaxed);
    }
}

impl Clock for FixedClock {
    fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Bytes that repeat from run to run.
#[derive(Debug)]
pub struct FixedEntropy(Mutex<Sequence>);

impl FixedEntropy {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(Mutex::new(Sequence::new(seed)))
    }
}

impl Entropy for FixedEntropy {
    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        let mut sequence = self.0.lock();
        for part in buf.chunks_mut(8) {
            part.copy_from_slice(&sequence.number().to_le_bytes()[..part.len()]);
        }
        Ok(())
    }
}

/// A world whose clock stands at [`NOW`] and whose entropy is the sequence of `seed`.
pub fn world(seed: u64) -> World {
    World { clock: Arc::new(FixedClock::new(NOW)), entropy: Arc::new(FixedEntropy::new(seed)) }
}

/// Settings whose hash key is always the same.
#[allow(clippy::expect_used)] // the entropy above cannot fail
pub fn settings() -> Settings {
    Settings::generate(&FixedEntropy::new(1)).expect("fixed entropy")
}

/// The right to write to a store.
///
/// # Panics
/// When the backend fails.
#[allow(clippy::expect_used)]
pub async fn session(store: &Store) -> Session {
    store.session("test").await.expect("a session")
}

/// Settings of an encrypted store whose master key is always the same.
#[allow(clippy::expect_used)] // the entropy above cannot fail
pub fn encrypted_settings() -> Settings {
    Settings::generate_encrypted(&FixedEntropy::new(1)).expect("fixed entropy")
}

/// `len` bytes that do not compress, the same for the same seed.
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    Sequence::new(seed).bytes(len)
}

/// A kind of object that a store reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ObjectFormat {
    /// `store.json`.
    Settings,
    /// A pack, of which index and trailer are read.
    Pack,
    /// A segment of a manifest.
    Segment,
    /// The root of a manifest.
    Root,
    /// A ref's record.
    Ref,
    /// The key slots of an encrypted store.
    Keys,
    /// A boot list.
    BootList,
    /// Where the chunks of a rewritten pack are.
    Moved,
    /// A list of condemned objects.
    Condemned,
    /// A session's pin.
    Pin,
    /// A server's lease.
    Server,
}

impl ObjectFormat {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Settings,
        Self::Pack,
        Self::Segment,
        Self::Root,
        Self::Ref,
        Self::Keys,
        Self::BootList,
        Self::Moved,
        Self::Condemned,
        Self::Pin,
        Self::Server,
    ];

    /// The magic of the objects that have a frame.
    pub const fn magic(self) -> Option<[u8; 8]> {
        match self.framed() {
            Some(kind) => Some(kind.magic()),
            None => None,
        }
    }

    const fn framed(self) -> Option<ObjectKind> {
        match self {
            Self::Segment => Some(ObjectKind::Segment),
            Self::Root => Some(ObjectKind::Root),
            Self::BootList => Some(ObjectKind::BootList),
            Self::Moved => Some(ObjectKind::Moved),
            Self::Condemned => Some(ObjectKind::Condemned),
            Self::Pin => Some(ObjectKind::Pin),
            Self::Server => Some(ObjectKind::Server),
            Self::Settings | Self::Pack | Self::Ref | Self::Keys => None,
        }
    }
}

/// Reads an object as if its name were the hash of its content: for fuzzers, which are to get past
/// the hash and at the rules behind it.
///
/// # Errors
/// That of the format's reader.
///
/// # Panics
/// When what was read contradicts itself.
pub fn decode(format: ObjectFormat, bytes: &[u8]) -> Result<()> {
    let body = |kind| object::decode(&settings(), kind, "object", bytes.to_vec().into());
    match format {
        ObjectFormat::Settings => Settings::decode(bytes).map(|_| ()),
        ObjectFormat::Pack => pack::PackIndex::decode_unnamed(&settings(), bytes).map(|_| ()),
        ObjectFormat::Segment => {
            let blocks = chunker::SEGMENT_PAGES as u32;
            let segment = Segment::decode("segment", body(ObjectKind::Segment)?, blocks)?;
            segment.all().for_each(drop);
            Ok(())
        }
        ObjectFormat::Root => manifest_root::decode("root", &body(ObjectKind::Root)?).map(|_| ()),
        ObjectFormat::BootList => {
            boot_list::decode("list", &body(ObjectKind::BootList)?).map(|_| ())
        }
        ObjectFormat::Moved => {
            let moved = Moved::decode("moved", body(ObjectKind::Moved)?)?;
            assert!(moved.chunks().all(|at| moved.find(&at.id) == Some(at)), "it finds its chunks");
            Ok(())
        }
        ObjectFormat::Condemned => {
            crate::condemned::decode("list", body(ObjectKind::Condemned)?).map(|_| ())
        }
        ObjectFormat::Pin => Pin::decode("pin", &body(ObjectKind::Pin)?).map(|_| ()),
        ObjectFormat::Server => servers::check("server", &body(ObjectKind::Server)?),
        ObjectFormat::Keys => slots::check_bytes("keys", bytes),
        ObjectFormat::Ref => refs::check(&settings(), "ref", bytes),
    }
}

/// Puts the right checksum into an object that was changed, where the format has one in binary.
pub fn seal(format: ObjectFormat, bytes: &mut [u8]) {
    if format == ObjectFormat::Pack {
        pack::seal(bytes);
    } else if format.framed().is_some()
        && let Some((head, body)) = bytes.split_at_mut_checked(wire::FRAME)
    {
        head[12..16].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    }
}
