//! Peers: agents of one LAN that answer each other's chunk ids, and read each chunk from their store once
//! for all of them.
//!
//! A peer is a [`ChunkSource`](lookaside::ChunkSource): what it gives is verified by hash, and who lies or
//! hangs rests. It shows the certificate of a client of the same authority, and asks for one; both speak HTTP/2
//! over TLS 1.3, by the pieces of crate `gateway`.
//!
//! # Who may ask, and what is answered
//!
//! Whoever has a certificate of the authority that the agent itself trusts, and knows the store's
//! [tag](wire::tag_of), which follows from the key that its ids are made with: other stores are told apart by
//! it, and without that key nothing can be asked. There is no list of ids: a chunk is asked for by its id, and who
//! knows that knows the hash of its bytes. What is given has that hash, whatever else was said of its place.
//!
//! | question | answered from |
//! |---|---|
//! | *have you this?* | the piece cache of this machine, then its block cache; never the link |
//! | *read this for all of us* | the same; else it is loaded as for a guest of its own, and kept |
//!
//! The second is asked only of the [owner](lookaside::share) of a chunk: of all who share the way to the store, the
//! one with the greatest weight for it. Weights follow from ids, so all who see the same peers choose the
//! same owner without a word, and one that is gone is replaced at once. A question goes to a greater weight each time
//! it is handed on, so that nobody waits in a circle. The owner shows at once that it is there, by the
//! headers of its answer, and has as long as a read of the store takes; then the link is asked beside it.
//! So a peer that is dead, hangs or lies costs a little time, and never a read.
//!
//! A peer that cannot read a chunk, because it has not the rights, says so, and is no owner for a while. It pays for
//! what it gives out of a budget, loads a bounded number at a time for others, and nothing for who sent it to
//! places where there is nothing such.
//!
//! What a peer has is told by a [summary](summary): 32 of the 256 bits of each id, in the order in which they came, so
//! that only what is new is sent, as soon as it is there. Whether a peer claims a chunk is answered from that.
//!
//! This crate may know chunks, sources, TLS and HTTP. It must not know a home, disks, the piece cache (that is its
//! caller's [`Shelf`]), nor how peers are found.
//!
//! | module | concept |
//! |---|---|
//! | [`wire`] | what passes between two peers: pure |
//! | [`summary`] | [`Inventory`], what is here, and [`ClaimedChunks`], what a peer says that it has |
//! | `claims` | room for what all peers say that they have |
//! | [`shelf`] | [`Shelf`], where chunks are taken from and kept |
//! | [`server`] | [`PeerServer`], which answers |
//! | [`source`] | [`PeerSource`], which asks |
//! | [`neighbours`] | [`Neighbours`], the peers that are known |
//! | [`testing`] | a peer that behaves badly, and a shelf in memory |
//!
//! The protocol is described in `docs/attach.md`, what a summary tells in `docs/security.md`.

mod claims;
pub mod neighbours;
pub mod server;
pub mod shelf;
pub mod source;
pub mod summary;
pub mod testing;
pub mod wire;

pub use neighbours::Neighbours;
pub use server::{PeerCounters, PeerServer};
pub use shelf::Shelf;
pub use source::PeerSource;
pub use summary::{ClaimedChunks, Inventory};
