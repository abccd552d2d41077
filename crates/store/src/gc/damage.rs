//! Replacing lists of condemned objects that are damaged, and the record of them.
//!
//! Nobody can tell what such a list names, so no session can begin: it might rely on something that
//! is about to be deleted. In its place come lists of all that no name refers to and that is on no
//! other list that waits. What the old one named and what is still there is on one of them: while a
//! list is in the record, whatever is on it is not taken into use. What the old one named and what is
//! gone may be written again under the same id, and then a collection that is still at its deletions
//! must not hit it: so nobody else may be at work, and a collection that was taken for dead deletes
//! nothing more, but for the requests that are under way.
//!
//! Of a damaged record nobody knows which lists it had. So all lists that are there count as swept, that is
//! as absent for writers, and the new record also has lists of all that no name refers to.
//!
//! Nothing is deleted here: the sweep of the new lists judges each object anew.

use super::census;
use super::mark;
use super::report::{GcOptions, amount_of};
use super::round::{Round, WHAT, item, others};
use super::sweep;
use crate::collection::lists;
use crate::collection::{CollectionState, Contents, List};
use crate::condemned::{self, CondemnedObject, MAX_OBJECTS};
use crate::id::CondemnedId;
use crate::{Progress, Store};
use block::{Error, Result};
use objects::Amount;

/// What a damaged record is called.
const RECORD: &str = "refs/gc/store";

/// Replaces the lists that are damaged, or missing before they were swept, and the record of them if it is damaged;
/// returns their keys. Also forgets swept lists that are damaged.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when others write to the store, whom it names; the
/// store's.
pub(crate) async fn replace_lists(
    store: &Store,
    options: &GcOptions,
    progress: &dyn Progress,
) -> Result<Vec<String>> {
    let session = store.session_despite_damage(WHAT).await?;
    let outcome = Round { store, session: &session, options, progress }.replace_lists().await;
    session.close(outcome).await
}

impl Round<'_> {
    async fn replace_lists(&self) -> Result<Vec<String>> {
        let store = self.store;
        let now = self.now().await?;
        // In the same order as for a collection.
        let mut listed = self.list().await?;
        let (state, bad_record) = CollectionState::load_despite_damage(store).await?;
        let Contents { absent, damaged, .. } = state.contents(store).await?;
        listed.packs.absent = absent;
        let dead = self.bury(now).await?;
        let census = census::take(store).await?;
        self.list_moved(&mut listed).await?;
        let lists: Vec<String> = damaged.iter().map(|(id, _)| condemned::key(&id.0)).collect();
        let (damaged_lists, mut keys) = (lists.clone(), lists);
        keys.extend(bad_record.as_ref().map(|_| RECORD.to_owned()));
        let Some(first) = keys.first() else { return Ok(keys) };
        let own = self.session.pin_keys().await;
        let at_work: Vec<String> =
            others(&census, &own, &dead).iter().map(|seen| seen.what()).collect();
        if !at_work.is_empty() {
            return Err(Error::conflict(format!(
                "{first} is damaged or missing, and is replaced only while nothing else is at work on the \
                 store: let it end, or if it died wait for --stale, then run `sojourn gc` again; \
                 at work: {}",
                at_work.join(", ")
            )));
        }
        let marks = mark::mark(store, &census, &listed.packs, self.progress).await?;
        let (_, mut lists) = state.forget(now);
        lists.retain(|list| !damaged.iter().any(|(id, _)| *id == list.id));
        let kept = CollectionState { sequence: state.sequence, lists };
        let condemned = kept.condemned(store).await?;
        // Also what cannot be judged: whether it may go is for the sweep to say.
        let unmarked: Vec<CondemnedObject> = listed
            .objects
            .iter()
            .filter(|(name, _)| {
                !condemned.has(name.kind, name.id)
                    && sweep::is_unmarked(&marks, name.kind, &name.id)
            })
            .map(|(name, meta)| item(*name, meta))
            .collect();
        let mut lists = kept.lists;
        for items in unmarked.chunks(MAX_OBJECTS) {
            let Amount { objects, bytes } = amount_of(items);
            let id = CondemnedId(lists::write(store, items.to_vec()).await?);
            let sequence = state.sequence + 1;
            lists.push(List { id, sequence, objects, bytes, swept: None });
        }
        self.session.check().await?;
        match &bad_record {
            None => state.replace(store, lists).await?,
            Some(_) => state.replace_damaged(store, lists).await?,
        };
        for error in damaged.iter().map(|(_, error)| error).chain(&bad_record) {
            tracing::warn!(%error, "a list of garbage was replaced");
        }
        sweep::delete(store, damaged_lists).await?;
        Ok(keys)
    }
}
