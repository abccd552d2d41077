//! A store that takes sessions for dead when it is least convenient.

use crate::RefKind;
use crate::object_kind::ObjectKind;
use futures::FutureExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use objects::testing::{ScriptedStore, StoreCall, StoreFault};
use std::sync::Arc;

/// A backend in memory that removes all pins when the record `sequence` of a name is about to be written, as a collection
/// does while a writer sleeps.
///
/// # Panics
/// The backend does, when its memory cannot be changed.
#[allow(clippy::expect_used)] // nothing in memory fails or waits
pub fn burying(kind: RefKind, name: &str, sequence: u64) -> ScriptedStore {
    let inner: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
    let (pins, record) = (Arc::clone(&inner), format!("refs/{kind}/{name}/{sequence:020}"));
    ScriptedStore::new(inner, move |call| {
        if matches!(call, StoreCall::Put(path) if path.as_ref() == record) {
            let bury = async {
                for meta in objects::list(&*pins, ObjectKind::Pin.prefix()).await? {
                    objects::delete(&*pins, meta.location.as_ref()).await?;
                }
                Ok::<_, block::Error>(())
            };
            bury.now_or_never().expect("a ready answer").expect("no failure");
        }
        StoreFault::None
    })
}
