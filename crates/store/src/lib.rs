//! The chunk store: what images and snapshots are made of, and where they are kept.
//!
//! This crate may know chunks, packs, manifests and refs, how an image becomes them and how they
//! are checked, over any [`object_store::ObjectStore`]. It must not know where that is (`objects` opens
//! it), a cache, a disk, a network protocol, the wall clock or a source of
//! randomness: a [`World`] brings the last two.
//!
//! It has more than 10,000 lines because collecting garbage, verifying and repairing are the other half of its formats:
//! in a crate of their own they would need most of what is private here (`docs/notes/0014`).
//!
//! | module | concept |
//! |---|---|
//! | [`id`] | [`ChunkId`], [`PackId`], [`SegmentId`], [`ManifestId`], [`WriterId`] |
//! | [`world`] | [`Clock`] and [`Entropy`], passed in by the caller |
//! | [`settings`] | [`Settings`], the content of `store.json` |
//! | [`chunk`] | [`ChunkRef`]: where a chunk is; how it is stored and verified |
//! | `encoding` | [`Encoding`]: how a chunk's bytes are stored |
//! | [`boot_copy`] | the chunks of a boot list once more, side by side |
//! | [`boot_list`] | the chunks that a boot reads, in order |
//! | [`chunker`] | page-CDC: where an image is cut |
//! | [`gc`] | what nothing refers to any more is found and deleted |
//! | `collection` | what sessions and collections of garbage know of each other |
//! | `condemned` | lists of garbage, and what counts as absent |
//! | `heal` | reading what is not where it should be |
//! | `reading` | reading chunks: from their place, out of a stretch, or from wherever else they are |
//! | `stopwatch` | how long ago something was, also for a process whose machine sleeps |
//! | `moved` | where the chunks of a rewritten pack are now |
//! | `rewritten` | reading and writing that |
//! | [`outside`] | files that are kept outside of a store, bound to its key |
//! | `object` | the frame of the other binary objects |
//! | `object_kind` | their kinds, and how long each may be |
//! | [`offered`] | objects that another party offers to write, checked before they are |
//! | [`pack`] | immutable objects that hold chunks in image order |
//! | [`manifest`] | [`Manifest`]: what an image version or snapshot holds |
//! | `manifest_root` | its root, as it is stored |
//! | [`maps`] | roots, segments and boot lists, from whoever has them nearby |
//! | [`stats`] | how much names hold and share |
//! | [`coalesced_read`] | chunks near each other, read in one request |
//! | `weak_cache` | segments in memory, held once by all manifests |
//! | [`refs`] | [`Refs`]: the only mutable thing, names that point at manifests |
//! | `roots` | what a ref keeps in the store |
//! | [`images`] | image versions: the newest, tags, publishing, taking a removal back |
//! | [`machines`] | what the refs of virtual machines say, for whoever knows them by these alone |
//! | [`sessions`] | who is at work on a store |
//! | `session` | [`Session`], the right to write beside a collection |
//! | [`name`] | the rule for names, and [`ImageName`] |
//! | [`servers`] | which servers are at work |
//! | [`import`] | from a device or a stream to a manifest |
//! | `chunk_table` | the chunks that a store has already |
//! | `upload` | [`UploadPlan`]: how what an import stores goes up |
//! | `progress` | [`Progress`]: how far a long operation is |
//! | [`bulk_read`] | many chunks at a time: all of an image, or what is stored of a list |
//! | [`verify`] | reading everything back |
//! | [`repair`] | healing a store from other ones, and from images |
//! | `document` | JSON with a checksum: the settings and the key slots |
//! | `seal` | what an encrypted store does to the bytes that it stores |
//! | [`secret`] | [`Secret`]: a passphrase or a key file |
//! | `slots` | [`KeySlot`]: who may open an encrypted store, as it is stored |
//! | [`keys`] | [`KeySlots`]: key slots listed and changed |
//! | [`copy`](mod@copy) | image versions from one store to another |
//! | [`counters`] | [`StoreCounters`], what was read |
//! | [`testing`] | a fixed world, bare readers: for tests and fuzzers |
//!
//! The formats are described byte by byte in `docs/format.md`.

pub mod boot_copy;
pub mod boot_list;
pub mod bulk_read;
pub mod chunk;
mod chunk_table;
pub mod chunker;
pub mod coalesced_read;
mod collection;
mod condemned;
pub mod copy;
pub mod counters;
mod document;
mod encoding;
pub mod gc;
mod heal;
pub mod id;
pub mod images;
pub mod import;
pub mod keys;
pub mod machines;
pub mod manifest;
mod manifest_root;
pub mod maps;
mod moved;
pub mod name;
mod object;
mod object_kind;
pub mod offered;
pub mod outside;
pub mod pack;
mod progress;
mod reading;
pub mod refs;
pub mod repair;
mod rewritten;
mod roots;
mod seal;
pub mod secret;
mod segment;
pub mod segment_columns;
pub mod servers;
mod session;
pub mod sessions;
pub mod settings;
mod slots;
pub mod stats;
mod stopwatch;
mod store;
pub mod testing;
mod upload;
pub mod verify;
mod weak_cache;
mod wire;
pub mod world;

pub use chunk::ChunkRef;
pub use coalesced_read::CoalescedRead;
pub use counters::StoreCounters;
pub use encoding::Encoding;
pub use id::{BootListId, ChunkId, ManifestId, PackId, SegmentId, ServerId, WriterId};
pub use import::{Grain, ImportStats, Imported, KnownPiece};
pub use keys::KeySlots;
pub use manifest::{Content, Manifest, Piece};
pub use maps::{MapId, MapLookup, MapTurn};
pub use name::{ImageName, check_name};
pub use progress::Progress;
pub use refs::{
    DamagedRef, KeyedRecord, Listing, LookedUpRef, RefBody, RefKey, RefKind, RefRecord, Refs,
};
pub use secret::{Argon2Cost, Secret};
pub use session::Session;
pub use settings::Settings;
pub use slots::{KeySlot, NewKey, SlotKind};
pub use store::{OtherStore, Store};
pub use upload::{PackTail, UploadJournal, UploadPace, UploadPlan};
pub use world::{Clock, Entropy, World};
