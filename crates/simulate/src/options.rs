//! How a trace becomes references: blocks, sharing, clients' caches.

use crate::chunks::Chunks;
use cache::PolicyKind;
use serde::{Deserialize, Serialize};

/// Which blocks are one and the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// What our server shares, as far as the trace tells what disks were made from: disks of one image
    /// share its blocks. What a disk has written is its own, and reads of it do not come to the cache,
    /// unless writes are cached too. A disk of which the trace does not tell is the same one for every
    /// client.
    #[default]
    Base,
    /// A disk is the same disk for every client.
    Disk,
    /// All disks began as one image: a block is the same for all, until a client writes it; from
    /// then on the client has its own (the shared and private blocks of TransCom, section 5.1).
    Image,
    /// Every client has its own blocks from the beginning.
    Private,
}

/// How a trace becomes references.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReferenceOptions {
    /// Bytes of a block: a power of two from 512 to 16 MiB.
    pub block: u32,
    /// Chunks are cached instead of blocks: a read is one reference to each that it touches. Excludes
    /// `writes`, `per` and `client`.
    pub chunks: Option<Chunks>,
    /// Whether writes reach the server's cache. Without, they only fill the clients' caches and make
    /// blocks private.
    pub writes: bool,
    /// Which blocks are the same.
    pub sharing: Sharing,
    /// Bytes of a request that count as one reference: a power of two from 512 to the block. Without,
    /// each block that a request touches is one reference, however much of it is asked for; then hit
    /// ratios of different blocks are of different things.
    pub per: Option<u32>,
    /// A cache of each client in front of the server's: policy and blocks. All of them together may
    /// take 4 GiB of memory.
    pub client: Option<(PolicyKind, u32)>,
    /// Keeps one of so many blocks, chosen by hash; 1 keeps all. See [`Curve`](crate::Curve).
    pub one_in: u32,
}

impl Default for ReferenceOptions {
    fn default() -> Self {
        Self {
            block: 4096,
            chunks: None,
            writes: false,
            sharing: Sharing::Base,
            per: None,
            client: None,
            one_in: 1,
        }
    }
}
