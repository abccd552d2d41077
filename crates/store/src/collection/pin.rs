//! Pins: `pins/<writer id>`, one for each session that writes to the store now.
//!
//! The body is a JSON document: `sequence`, the newest record of garbage collection that the session
//! had seen when it began; `age`, for how many seconds it had been going on when the pin was written;
//! `what` it does; `holds`, manifests that are kept for it. A pin is never changed: a session writes
//! another one, and deletes all of them at its end.

use crate::object;
use crate::object_kind::ObjectKind;
use crate::wire::damaged;
use crate::{ManifestId, Store, WriterId};
use block::{Error, ErrorKind, Result};
use object_store::ObjectMeta;
use serde::{Deserialize, Serialize};

/// Manifests that one session can hold.
pub(crate) const MAX_HELD: usize = 32;
/// The longest text of what a session does, in bytes.
pub(crate) const MAX_WHAT: usize = 128;
/// The longest that a session goes on, in seconds, as a server takes it from others: a year.
pub(crate) const MAX_AGE: u64 = 366 * 86_400;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Pin {
    pub(crate) sequence: u64,
    pub(crate) age: u64,
    pub(crate) what: String,
    pub(crate) holds: Vec<ManifestId>,
}

impl Pin {
    /// Writes it under a new name, which is returned.
    pub(crate) async fn write(&self, store: &Store) -> Result<WriterId> {
        let mut id = [0; 16];
        store.world().entropy.fill(&mut id)?;
        let key = key(&WriterId(id));
        let body = serde_json::to_vec(self)
            .map_err(|e| Error::internal("a pin cannot be written").with_source(e))?;
        let bytes = object::encode(store.settings(), ObjectKind::Pin, &key, &body)?;
        store.pins().lock().insert(WriterId(id));
        // The name is random, so that nobody else has it.
        objects::put_over(store.backend(), &key, bytes).await?;
        Ok(WriterId(id))
    }

    /// Reads the pin of a key that a listing showed.
    pub(crate) async fn read(store: &Store, key: &str) -> Result<Self> {
        let (backend, settings) = (store.backend(), store.settings());
        let body = object::read(backend, settings, ObjectKind::Pin, key).await?;
        Self::decode(key, &body)
    }

    /// Reads the body of a pin.
    pub(crate) fn decode(key: &str, body: &[u8]) -> Result<Self> {
        serde_json::from_slice(body).map_err(|e| damaged(key, &format!("not its format: {e}")))
    }
}

/// The key of a pin.
pub(crate) fn key(id: &WriterId) -> String {
    ObjectKind::Pin.key(id)
}

/// Whether a pin is still there.
pub(crate) async fn exists(store: &Store, id: &WriterId) -> Result<bool> {
    match objects::head(store.backend(), &key(id)).await {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

/// Deletes a pin; it may be gone already.
pub(crate) async fn delete(store: &Store, id: &WriterId) -> Result<()> {
    objects::delete(store.backend(), &key(id)).await?;
    store.pins().lock().remove(id);
    Ok(())
}

/// Whether a pin has one of these keys.
pub(crate) fn is_among(keys: &[String], pin: &ObjectMeta) -> bool {
    keys.iter().any(|key| key == pin.location.as_ref())
}

/// All pins that a listing shows.
pub(crate) async fn list(store: &Store) -> Result<Vec<ObjectMeta>> {
    objects::list(store.backend(), ObjectKind::Pin.prefix()).await
}
