//! What every round over the store begins with: all that could be garbage is listed, dead sessions are
//! buried, and it is known who else is at work.

use super::census::{self, Census, ListedPin};
use super::marked::Packs;
use super::report::GcOptions;
use super::sweep;
use crate::collection::{pin, seconds};
use crate::condemned::{CondemnedKind, CondemnedName, CondemnedObject};
use crate::id::CondemnedId;
use crate::object_kind::ObjectKind;
use crate::{PackId, Progress, Session, Store};
use block::Result;
use object_store::ObjectMeta;
use std::collections::BTreeMap;

/// What a collection calls itself.
pub(crate) const WHAT: &str = "garbage collection";

/// A collection, or a mending of its lists, at work: in a session of its own.
pub(super) struct Round<'a> {
    pub(super) store: &'a Store,
    pub(super) session: &'a Session,
    pub(super) options: &'a GcOptions,
    pub(super) progress: &'a dyn Progress,
}

/// Everything that could be garbage.
#[derive(Default)]
pub(super) struct GarbageCandidates {
    pub(super) objects: Vec<(CondemnedName, ObjectMeta)>,
    pub(super) packs: Packs,
    /// The lists of condemned objects.
    pub(super) lists: BTreeMap<CondemnedId, ObjectMeta>,
}

impl Round<'_> {
    /// The date of the collection's own pin: the store's present time.
    pub(super) async fn now(&self) -> Result<u64> {
        let own = self.session.pin_key().await;
        Ok(seconds(&objects::head(self.store.backend(), &own).await?))
    }

    /// Deletes the pins of sessions that died; returns them.
    pub(super) async fn bury(&self, now: u64) -> Result<Vec<ObjectMeta>> {
        let stale = self.options.stale.as_secs();
        let mut dead = pin::list(self.store).await?;
        // Asked for after the listing: it may show a pin that the collection has renewed meanwhile.
        let own = self.session.pin_keys().await;
        dead.retain(|meta| !pin::is_among(&own, meta) && census::silent(meta, now) >= stale);
        if !self.options.dry_run {
            let keys = dead.iter().map(|meta| meta.location.to_string()).collect();
            sweep::delete(self.store, keys).await?;
        }
        Ok(dead)
    }

    /// Lists everything that could be garbage, but for what says where chunks are now.
    pub(super) async fn list(&self) -> Result<GarbageCandidates> {
        let mut listed = GarbageCandidates::default();
        for kind in CondemnedKind::ALL.into_iter().filter(|kind| *kind != CondemnedKind::Moved) {
            for meta in objects::list(self.store.backend(), kind.prefix()).await? {
                // Anything else in there is not ours to delete.
                let Some(id) = id_in(&meta) else { continue };
                if kind == CondemnedKind::Pack {
                    listed.packs.listed.insert(PackId(id), meta.size);
                }
                listed.objects.push((CondemnedName { kind, id }, meta));
            }
        }
        Ok(listed)
    }

    /// Lists what says where chunks are now. After the pins: whoever wrote one later has a pin, and
    /// that holds back what could be deleted without knowing of it.
    pub(super) async fn list_moved(&self, listed: &mut GarbageCandidates) -> Result<()> {
        for meta in objects::list(self.store.backend(), CondemnedKind::Moved.prefix()).await? {
            let Some(id) = id_in(&meta) else { continue };
            listed.packs.rewritten.insert(PackId(id));
            listed.objects.push((CondemnedName { kind: CondemnedKind::Moved, id }, meta));
        }
        Ok(())
    }

    /// The lists of condemned objects. After the record: then those that it names and that are not
    /// there are gone.
    pub(super) async fn lists(&self) -> Result<BTreeMap<CondemnedId, ObjectMeta>> {
        let listed = objects::list(self.store.backend(), ObjectKind::Condemned.prefix()).await?;
        Ok(listed.into_iter().filter_map(|meta| Some((CondemnedId(id_in(&meta)?), meta))).collect())
    }
}

/// The sessions that are at work, but for the collection's own, whose pins are `own`: those that it
/// has after the census.
pub(super) fn others<'c>(
    census: &'c Census,
    own: &[String],
    dead: &[ObjectMeta],
) -> Vec<&'c ListedPin> {
    let gone = |seen: &ListedPin| dead.iter().any(|meta| meta.location == seen.meta.location);
    let pins = census.pins.iter();
    pins.filter(|seen| !pin::is_among(own, &seen.meta) && !gone(seen)).collect()
}

/// An object as a list of condemned ones names it.
pub(super) fn item(name: CondemnedName, meta: &ObjectMeta) -> CondemnedObject {
    CondemnedObject { name, size: u32::try_from(meta.size).unwrap_or(u32::MAX) }
}

/// The id that an object is called by.
pub(super) fn id_in(meta: &ObjectMeta) -> Option<[u8; 32]> {
    let name = meta.location.as_ref().rsplit_once('/')?.1;
    crate::id::parse_hex("id", name).ok()
}
