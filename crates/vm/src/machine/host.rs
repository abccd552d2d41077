//! Where a machine runs, what it starts from, and who serves its disk.

use crate::pending::PendingSuspension;
use crate::{NearbyChunks, Parcel};
use async_trait::async_trait;
use block::Result;
use disk::Loader;
use std::path::PathBuf;
use std::sync::Arc;
use store::{ManifestId, ServerId, Store};

/// A machine's disk, by whoever serves it.
#[async_trait]
pub trait MachineDisk: Send + Sync {
    /// Whether the disk holds what a manifest says, and nothing that was written since.
    ///
    /// # Errors
    /// Any error from the server and the store.
    async fn holds(&self, disk: &str, contents: &ManifestId) -> Result<bool>;

    /// Marks what the disk holds now, to be recognised by the mark. Needs no store.
    ///
    /// # Errors
    /// Any error from the server.
    async fn set_mark(&self, disk: &str) -> Result<String>;

    /// The mark of what the disk holds; `None` when it was written since one was set.
    ///
    /// # Errors
    /// Any error from the server.
    async fn mark(&self, disk: &str) -> Result<Option<String>>;

    /// Freezes what the disk holds now: all that was answered, nothing that is written later.
    ///
    /// # Errors
    /// Any error from the server.
    async fn snapshot(&self, disk: &str, snapshot: &str) -> Result<()>;

    /// Removes a snapshot.
    ///
    /// # Errors
    /// Any error from the server.
    async fn remove_snapshot(&self, disk: &str, snapshot: &str) -> Result<()>;
}

/// Where a machine runs, and what from.
#[derive(Clone)]
pub struct MachineHost {
    /// The program.
    pub qemu: PathBuf,
    /// The machine's own directory: sockets, logs, memory.
    pub directory: PathBuf,
    /// The NBD socket of the server that has its disk.
    pub nbd: PathBuf,
    /// The server that has its disk.
    pub server: ServerId,
    /// The store.
    pub store: Store,
    /// Through which its memory is read.
    pub loader: Arc<Loader>,
    /// What can be read without a network.
    pub nearby: Arc<dyn NearbyChunks>,
    /// Whether what a guest has not touched of its memory is fetched behind it, into what is kept of the store on this
    /// host.
    pub fills_memory: bool,
}

/// What a machine starts from.
#[derive(Debug, Clone, Copy)]
pub enum MachineOrigin<'a> {
    /// Its firmware boots it.
    Boot,
    /// A parcel.
    Parcel(&'a Parcel),
    /// A suspension that is on this host only.
    Pending(&'a PendingSuspension),
}

impl MachineOrigin<'_> {
    /// The number of the parcel that it is, or is to be; 0 for none.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::Boot => 0,
            Self::Parcel(parcel) => parcel.number,
            Self::Pending(pending) => pending.number,
        }
    }
}
