//! The kinds of framed objects: their magic, the prefix of their keys, and how long they may be.

use crate::chunker::{SEGMENT, SEGMENT_PAGES};

/// The largest image, in bytes: 256 TiB.
pub(crate) const MAX_IMAGE: u64 = 256 << 40;
/// The longest body of a root, in bytes: a header, and 32 for each segment of the largest image.
const MAX_ROOT: u64 = 16 + MAX_IMAGE / SEGMENT * 32;
/// The longest body of a segment, in bytes: a header, and for each of its pages the id of a pack and an entry.
const MAX_SEGMENT: u64 = 16 + SEGMENT_PAGES * (32 + 56);

/// The kinds of framed objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum ObjectKind {
    /// The root of a manifest.
    Root,
    /// 256 MiB of a manifest.
    Segment,
    /// Chunks in the order in which a boot first touches them.
    BootList,
    /// Where the chunks of a pack that was rewritten are now.
    Moved,
    /// Objects that a collection found unreferenced.
    Condemned,
    /// A session that writes to the store now.
    Pin,
    /// A server that is at work.
    Server,
}

impl ObjectKind {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::Root,
        Self::Segment,
        Self::BootList,
        Self::Moved,
        Self::Condemned,
        Self::Pin,
        Self::Server,
    ];

    /// The first bytes of an object.
    pub(crate) const fn magic(self) -> [u8; 8] {
        match self {
            Self::Root => *b"SOJROOT\n",
            Self::Segment => *b"SOJSEGM\n",
            Self::BootList => *b"SOJBOOT\n",
            Self::Moved => *b"SOJMOVE\n",
            Self::Condemned => *b"SOJCOND\n",
            Self::Pin => *b"SOJPINS\n",
            Self::Server => *b"SOJSERV\n",
        }
    }

    /// The first part of a key.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Root => "manifests",
            Self::Segment => "segments",
            Self::BootList => "bootlists",
            Self::Moved => "moved",
            Self::Condemned => "condemned",
            Self::Pin => "pins",
            Self::Server => "servers",
        }
    }

    /// The context from which the key of the ids is derived.
    pub(crate) const fn id_context(self) -> &'static str {
        match self {
            Self::Root => "sojourn 2026-11-21 manifest id v1",
            Self::Segment => "sojourn 2026-11-21 segment id v1",
            Self::BootList => "sojourn 2026-11-21 boot list id v1",
            Self::Moved => "sojourn 2026-11-21 moved id v1",
            Self::Condemned => "sojourn 2026-11-21 condemned id v1",
            Self::Pin => "sojourn 2026-11-21 pin id v1",
            Self::Server => "sojourn 2026-11-21 server id v1",
        }
    }

    /// The longest body that is written or read, in bytes.
    pub(crate) const fn max_body(self) -> u64 {
        match self {
            Self::Root => MAX_ROOT,
            Self::Segment => MAX_SEGMENT,
            Self::BootList => 32 << 20,
            Self::Moved => 64 << 20,
            Self::Condemned => 64 << 20,
            Self::Pin | Self::Server => 4 << 10,
        }
    }

    /// The key of the object that is called `id`, an id's hexadecimal digits.
    pub(crate) fn key(self, id: &impl std::fmt::Display) -> String {
        format!("{}/{id}", self.prefix())
    }
}
