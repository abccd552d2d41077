//! Reading what is not where it should be: chunks of packs that were rewritten, and objects that
//! are missing or damaged here and whole in another store.
//!
//! A chunk is looked for in its pack, then where `moved/<pack>` says, then in the other stores
//! ([`Store::add_source`]): in the pack of the same name, then by its id in their indexes. What is
//! found is verified like everything else. Nothing is written: that is what a repair is for.

use crate::chunk_table::ChunkTable;
use crate::maps::{MapId, MapLookup, MapTurn};
use crate::moved::{MAX_STEPS, Moved};
use crate::object;
use crate::object_kind::ObjectKind;
use crate::rewritten;
use crate::store::OtherStore;
use crate::{ChunkId, ChunkRef, PackId, Store};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// So long a store is waited for before whoever is nearby is asked for a map again, and at the longest between two
/// times.
const FIRST_PAUSE: Duration = Duration::from_secs(2);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

impl Store {
    /// Has maps asked of `nearby`, too, from now on, in place of whom was asked before: first, where that
    /// is expected to be quicker, and when the store cannot give one.
    pub fn ask_for_maps(&self, nearby: Arc<dyn MapLookup>) {
        *self.healing().nearby.write() = Some(nearby);
    }

    /// The object of a map, as this store has it.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound), [`Corrupt`](block::ErrorKind::Corrupt);
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) from the backend.
    pub async fn map_object(&self, id: &MapId) -> Result<Bytes> {
        let body = content(self, id.kind(), id.as_bytes()).await?;
        object::encode(self.settings(), id.kind(), id.path().as_ref(), &body)
    }
}

impl OtherStore {
    /// Learns which chunks it has, from the indexes of its packs, unless that is known.
    ///
    /// # Errors
    /// Any error from its backend.
    pub async fn learn(&self) -> Result<()> {
        self.known
            .get_or_try_init(|| ChunkTable::load(self.store.backend(), self.store.settings()))
            .await
            .map(|_| ())
    }

    /// Whether it is known to have had a chunk when that was learned.
    pub fn claims(&self, id: &ChunkId) -> bool {
        self.known.get().is_some_and(|known| known.find(id).is_some())
    }

    /// How many chunks it is known to have had.
    pub fn chunks(&self) -> u64 {
        self.known.get().map_or(0, |known| known.len() as u64)
    }

    /// Reads a chunk by its id.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when it does not have it; [`Corrupt`](ErrorKind::Corrupt) when
    /// that is damaged; else its backend's.
    pub async fn chunk(&self, at: &ChunkRef) -> Result<Bytes> {
        if let Ok(plain) = self.store.read_at(at).await {
            return Ok(plain);
        }
        if let Ok((plain, _)) = follow(&self.store, at).await {
            return Ok(plain);
        }
        let known = self
            .known
            .get_or_try_init(|| ChunkTable::load(self.store.backend(), self.store.settings()))
            .await?;
        match known.find(&at.id) {
            Some(there) if there.len == at.len => self.store.read_at(&there).await,
            _ => Err(Error::not_found(format!("chunk {} is not in {:?}", at.id, self.store))),
        }
    }
}

/// Whether an error says that the bytes are not here, so that others may be asked.
fn is_loss(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::NotFound)
}

/// Reads a chunk that is in its pack, or was moved, or is in another store. `first` reads it from its
/// pack; it is not asked when that is known to be gone.
pub(crate) async fn chunk(
    store: &Store,
    at: &ChunkRef,
    first: impl Future<Output = Result<Bytes>>,
) -> Result<Bytes> {
    let healing = store.healing();
    let rewritten = healing.rewritten(&at.pack).is_some_and(|moved| moved.find(&at.id).is_some());
    let failure = if rewritten {
        None
    } else {
        match first.await {
            Ok(plain) => return Ok(plain),
            Err(e) => Some(e),
        }
    };
    if failure.as_ref().is_none_or(is_loss) {
        match follow(store, at).await {
            Ok((plain, moved)) => {
                // The next chunk of it is not asked for in vain.
                if failure.is_none_or(|e| e.kind() == ErrorKind::NotFound) {
                    healing.remember(at.pack, &moved);
                }
                store.tally().moved();
                return Ok(plain);
            }
            Err(_) => healing.forget(&at.pack),
        }
    }
    // What was remembered may be out of date: the pack may have come back, or moved on.
    let failure = match failure {
        Some(failure) => failure,
        None => match store.read_at(at).await {
            Ok(plain) => return Ok(plain),
            Err(failure) => match follow(store, at).await {
                Ok((plain, _)) if is_loss(&failure) => {
                    store.tally().moved();
                    return Ok(plain);
                }
                _ => failure,
            },
        },
    };
    if is_loss(&failure) || failure.kind() == ErrorKind::Unavailable {
        for source in healing.sources() {
            match source.chunk(at).await {
                Ok(plain) => {
                    store.tally().healed();
                    let (pack, offset) = (at.pack, at.offset);
                    tracing::warn!(
                        object = %format_args!("packs/{pack}"), offset, chunk = %at.id,
                        source = ?source.store, error = %failure, "a chunk was read from another store"
                    );
                    return Ok(plain);
                }
                Err(error) => tracing::debug!(source = ?source.store, %error, "no help"),
            }
        }
    }
    Err(failure)
}

/// Reads a chunk of a pack that was rewritten. Also gives what is known of the pack.
pub(crate) async fn follow(store: &Store, at: &ChunkRef) -> Result<(Bytes, Arc<Moved>)> {
    let mut first = None;
    let mut here = *at;
    for _ in 0..MAX_STEPS {
        let held = store.healing().rewritten(&here.pack);
        let moved = match held {
            Some(moved) => moved,
            None => match rewritten::load(store, &here.pack).await? {
                Some(moved) => Arc::new(moved),
                None => break,
            },
        };
        let Some(next) = moved.find(&at.id).filter(|next| next.len == at.len) else { break };
        let first = Arc::clone(first.get_or_insert(moved));
        match store.read_at(&next).await {
            Ok(plain) => return Ok((plain, first)),
            Err(e) if is_loss(&e) => here = next,
            Err(e) => return Err(e),
        }
    }
    Err(Error::not_found(format!("chunk {} is in no pack that the store knows", at.id)))
}

/// Where a chunk of a pack is that was rewritten, going by the objects that say so.
pub(crate) fn target(moved: &HashMap<PackId, Moved>, at: &ChunkRef) -> Vec<ChunkRef> {
    let mut steps = Vec::new();
    let mut here = *at;
    while steps.len() < MAX_STEPS
        && let Some(next) = moved.get(&here.pack).and_then(|moved| moved.find(&at.id))
        && next.len == at.len
    {
        steps.push(next);
        here = next;
    }
    steps
}

/// Reads the body of an object whose key is the hash of it: nearby where that is quicker, here, or wherever
/// else it is. Whoever is nearby is asked again while this store gives no answer; the first right one counts.
pub(crate) async fn content(store: &Store, kind: ObjectKind, id: &[u8; 32]) -> Result<Bytes> {
    if let Some(body) = nearby(store, kind, id, MapTurn::BeforeStore).await {
        return Ok(body);
    }
    let own = tokio::select! {
        biased;
        own = own_content(store, kind, id) => own,
        body = nearby_at_last(store, kind, id) => return Ok(body),
    };
    let failure = match own {
        Ok(body) => return Ok(body),
        Err(e) => e,
    };
    if !may_be_elsewhere(&failure) {
        return Err(failure);
    }
    // Before the other stores, which may be away, too, and take long to say so.
    if let Some(body) = nearby(store, kind, id, MapTurn::AfterStore).await {
        store.tally().healed();
        tracing::warn!(error = %failure, "an object was read from a source nearby");
        return Ok(body);
    }
    others_content(store, kind, id, failure).await
}

/// The body of a map, from whoever is nearby and gives it while the store is waited for; never ends while nobody
/// does.
async fn nearby_at_last(store: &Store, kind: ObjectKind, id: &[u8; 32]) -> Bytes {
    let mut pause = FIRST_PAUSE;
    loop {
        tokio::time::sleep(pause).await;
        if let Some(body) = nearby(store, kind, id, MapTurn::AfterStore).await {
            tracing::debug!("a source nearby gave a map that the store had not given yet");
            return body;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// The body of a map that is nearby, verified.
async fn nearby(store: &Store, kind: ObjectKind, id: &[u8; 32], turn: MapTurn) -> Option<Bytes> {
    let id = MapId::of(kind, id)?;
    let lookup = store.healing().nearby.read().clone()?;
    let object = lookup.map(&id, turn).await?;
    id.verify(store.settings(), object).ok()
}

/// Whether an error lets others be asked for the object.
fn may_be_elsewhere(error: &Error) -> bool {
    is_loss(error) || error.kind() == ErrorKind::Unavailable
}

/// Reads the body of an object whose key is the hash of it, here, and from another store when it is lost. What
/// only a source nearby has is in no store, nor is what is only kept of it on a local disk.
pub(crate) async fn stored_content(
    store: &Store,
    kind: ObjectKind,
    id: &[u8; 32],
) -> Result<Bytes> {
    match inspected_content(store, kind, id).await {
        Err(e) if may_be_elsewhere(&e) => others_content(store, kind, id, e).await,
        own => own,
    }
}

/// Reads the body of an object from another store, as this one gave `failure`.
async fn others_content(
    store: &Store,
    kind: ObjectKind,
    id: &[u8; 32],
    failure: Error,
) -> Result<Bytes> {
    for source in store.healing().sources() {
        if let Ok(body) = inspected_content(&source.store, kind, id).await {
            store.tally().healed();
            tracing::warn!(
                source = ?source.store, error = %failure, "an object was read from another store"
            );
            return Ok(body);
        }
    }
    Err(failure)
}

/// Reads the body of an object whose key is the hash of it, from this store alone or what is kept of it.
async fn own_content(store: &Store, kind: ObjectKind, id: &[u8; 32]) -> Result<Bytes> {
    object::read_content(store.backend(), store.settings(), kind, id).await
}

/// The same from the store itself, for whoever wants to know what is in it.
pub(crate) async fn inspected_content(
    store: &Store,
    kind: ObjectKind,
    id: &[u8; 32],
) -> Result<Bytes> {
    object::read_fresh_content(store.backend(), store.settings(), kind, id).await
}

#[cfg(test)]
mod tests;
