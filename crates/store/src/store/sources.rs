//! Where else a store's objects may be: packs that were rewritten, other stores, and whoever has maps nearby.

use super::Store;
use crate::PackId;
use crate::chunk_table::ChunkTable;
use crate::maps::MapLookup;
use crate::moved::Moved;
use block::{Error, Result};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::OnceCell;

/// Bytes of `moved` objects that are kept in memory.
const MEMORY: usize = 64 << 20;
/// What a store knows of the places that its own map does not name.
#[derive(Default)]
pub(crate) struct Healing {
    rewritten: Mutex<PackForwarding>,
    sources: Mutex<Vec<OtherStore>>,
    /// Who has maps nearby, if there is anybody.
    pub(crate) nearby: RwLock<Option<Arc<dyn MapLookup>>>,
}

/// Packs that are gone, and where their chunks are.
#[derive(Default)]
struct PackForwarding {
    packs: HashMap<PackId, Arc<Moved>>,
    memory: usize,
}

/// Another store that holds chunks under the same ids. Cheap to clone; clones share what is known of its
/// packs.
#[derive(Clone)]
pub struct OtherStore {
    pub(crate) store: Store,
    /// The chunks of its packs, learned when it is first needed.
    pub(crate) known: Arc<OnceCell<ChunkTable>>,
}

impl fmt::Debug for OtherStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OtherStore({:?})", self.store)
    }
}

impl Healing {
    pub(crate) fn rewritten(&self, pack: &PackId) -> Option<Arc<Moved>> {
        self.rewritten.lock().packs.get(pack).cloned()
    }

    pub(crate) fn remember(&self, pack: PackId, moved: &Arc<Moved>) {
        let mut held = self.rewritten.lock();
        if held.memory + moved.memory() > MEMORY {
            *held = PackForwarding::default();
        }
        if held.packs.insert(pack, Arc::clone(moved)).is_none() {
            held.memory += moved.memory();
        }
    }

    pub(crate) fn forget(&self, pack: &PackId) {
        let mut held = self.rewritten.lock();
        if let Some(moved) = held.packs.remove(pack) {
            held.memory -= moved.memory();
        }
    }

    /// The other stores.
    pub(crate) fn sources(&self) -> Vec<OtherStore> {
        self.sources.lock().clone()
    }
}

impl Store {
    /// Adds another store that is asked for what is missing or damaged in this one, after those
    /// that were added before.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the other store has another hash key: it knows the same
    /// chunks under other ids.
    pub fn add_source(&self, other: Store) -> Result<OtherStore> {
        if !self.shares_ids(&other) {
            return Err(Error::invalid(format!(
                "{other:?} has another hash key, so it cannot be asked for chunks by their ids; \
                 give a copy of the store, or heal from it with \"sojourn repair --from\""
            )));
        }
        let source = OtherStore { store: other, known: Arc::default() };
        self.healing().sources.lock().push(source.clone());
        Ok(source)
    }

    /// Whether the same chunks have the same ids in the other store.
    pub(crate) fn shares_ids(&self, other: &Store) -> bool {
        self.settings().chunk_key() == other.settings().chunk_key()
    }
}
