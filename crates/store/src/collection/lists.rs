//! Writing and reading lists of garbage.

use crate::Store;
use crate::condemned::{CondemnedObject, decode, encode, key};
use crate::object;
use crate::object_kind::ObjectKind;
use block::Result;

/// Writes a list; returns its id.
pub(crate) async fn write(store: &Store, mut items: Vec<CondemnedObject>) -> Result<[u8; 32]> {
    items.sort_unstable();
    items.dedup_by_key(|item| item.name);
    let mut random = [0; 16];
    store.world().entropy.fill(&mut random)?;
    let body = encode(random, &items);
    object::write_content(store.backend(), store.settings(), ObjectKind::Condemned, &body).await
}

/// Reads a list.
pub(crate) async fn read(store: &Store, id: &[u8; 32]) -> Result<Vec<CondemnedObject>> {
    let (backend, settings) = (store.backend(), store.settings());
    let body = object::read_content(backend, settings, ObjectKind::Condemned, id).await?;
    decode(&key(id), body)
}
