//! Deleting what was condemned long enough ago and is still unreferenced.

use super::census::ListedPin;
use super::copies;
use super::marked::{Marks, Unsure};
use super::report::WaitingGarbage;
use crate::collection::lists;
use crate::collection::{CollectionState, List};
use crate::condemned::{CondemnedKind, CondemnedName, CondemnedObject};
use crate::stopwatch::Stopwatch;
use crate::{ManifestId, PackId, SegmentId, Session, Store};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use objects::Amount;
use std::time::Duration;

/// Deletions at the same time.
const CONCURRENCY: usize = 16;
/// Deletions, at the most, between two looks whether the collection was taken for dead, or another one swept the list.
const BATCH: usize = 256;
/// How long such a look is believed, should the machine sleep in the middle of a batch.
const BELIEVED: Duration = Duration::from_secs(60);

/// Whether nothing that marks know of refers to an object.
pub(crate) fn is_unmarked(marks: &Marks, kind: CondemnedKind, id: &[u8; 32]) -> bool {
    match kind {
        CondemnedKind::Manifest => !marks.manifests.contains(&ManifestId(*id)),
        CondemnedKind::Segment => !marks.segments.contains(&SegmentId(*id)),
        CondemnedKind::BootList => !marks.boot_lists.contains(id),
        CondemnedKind::Pack => !marks.needs(&PackId(*id)),
        CondemnedKind::Moved => !marks.pack(&PackId(*id)),
    }
}

/// Whether marks know of all that may refer to objects of a kind.
fn is_judged(marks: &Marks, kind: CondemnedKind) -> bool {
    let unsure = marks.unsure();
    match kind {
        CondemnedKind::Manifest | CondemnedKind::BootList => unsure < Some(Unsure::Everything),
        CondemnedKind::Segment => unsure < Some(Unsure::Segments),
        CondemnedKind::Pack | CondemnedKind::Moved => unsure < Some(Unsure::Packs),
    }
}

/// Whether an object may be deleted, as far as marks tell.
pub(crate) fn is_garbage(marks: &Marks, kind: CondemnedKind, id: &[u8; 32]) -> bool {
    is_judged(marks, kind) && is_unmarked(marks, kind, id)
}

/// What became of the objects of a list, but for those that are in use again.
#[derive(Debug, Default)]
pub(crate) struct Swept {
    /// Deleted.
    pub(crate) freed: Vec<CondemnedObject>,
    /// Not deleted, because something that may refer to them cannot be read, or because they have the
    /// only sound copy of a chunk.
    pub(crate) unjudged: Vec<CondemnedObject>,
    /// Why packs with only sound copies are kept.
    pub(crate) doubts: Vec<Error>,
}

/// Why a list cannot be swept yet; `None` when it can. `age` is how many seconds ago it was written.
pub(crate) fn obstacle(
    list: &List,
    age: u64,
    grace: u64,
    sessions: &[&ListedPin],
) -> Option<WaitingGarbage> {
    let seconds = grace.saturating_sub(age);
    let in_the_way = sessions.iter().filter(|seen| seen.sequence() < list.sequence);
    let sessions: Vec<String> = in_the_way.map(|seen| seen.what()).collect();
    let garbage = Amount { objects: list.objects, bytes: list.bytes };
    (seconds > 0 || !sessions.is_empty()).then_some(WaitingGarbage { garbage, seconds, sessions })
}

/// Deletes the objects of a list that are still garbage. Marks were made after it was seen that no
/// session is in the way. A collection that was taken for dead meanwhile deletes nothing more, nor does one
/// that was slower than another at this list, but for the requests that are under way.
pub(crate) async fn sweep(
    session: &Session,
    list: &List,
    marks: &Marks,
    dry: bool,
) -> Result<Swept> {
    let store = session.store();
    let items = match lists::read(store, list.id.as_bytes()).await {
        Err(e) if e.kind() == ErrorKind::NotFound => Vec::new(),
        other => other?,
    };
    let unmarked =
        items.into_iter().filter(|item| is_unmarked(marks, item.name.kind, &item.name.id));
    let (mut freed, mut unjudged): (Vec<CondemnedObject>, Vec<CondemnedObject>) =
        unmarked.partition(|item| is_judged(marks, item.name.kind));
    let mut doubts = Vec::new();
    if !dry {
        if !is_open(store, list).await? {
            return Ok(Swept::default());
        }
        let is_pack = |item: &&CondemnedObject| item.name.kind == CondemnedKind::Pack;
        let packs: Vec<(PackId, u32)> =
            freed.iter().filter(is_pack).map(|item| (PackId(item.name.id), item.size)).collect();
        let mut only = copies::only(store, marks, &packs).await?;
        freed.retain(|item| {
            let why = match item.name.kind {
                CondemnedKind::Pack => only.remove(&PackId(item.name.id)),
                _ => None,
            };
            unjudged.extend(why.is_some().then_some(*item));
            let goes = why.is_none();
            doubts.extend(why);
            goes
        });
        // It may have taken hours to read them.
        if !delete_while_open(session, list, &freed).await? {
            return Ok(Swept::default());
        }
    }
    Ok(Swept { freed, unjudged, doubts })
}

/// Whether a list is still to be swept: another collection may have been quicker, and the names given again since.
async fn is_open(store: &Store, list: &List) -> Result<bool> {
    Ok(CollectionState::load(store).await?.open().any(|open| open.id == list.id))
}

/// Deletes objects of a list as long as it is to be swept; says whether it was until the end.
async fn delete_while_open(
    session: &Session,
    list: &List,
    items: &[CondemnedObject],
) -> Result<bool> {
    let store = session.store();
    // By kind: nothing is left that refers to what is gone.
    for kind in CondemnedKind::ALL {
        let mut names: Vec<CondemnedName> =
            items.iter().map(|item| item.name).filter(|name| name.kind == kind).collect();
        while !names.is_empty() {
            let since = Stopwatch::start(store);
            session.check().await?;
            if !is_open(store, list).await? {
                return Ok(false);
            }
            let rest = names.split_off(names.len().min(BATCH));
            names = delete_soon(store, names, since).await?;
            names.extend(rest);
        }
    }
    Ok(true)
}

/// Deletes objects as long as a look is believed, which was begun with `since`; gives back the others.
async fn delete_soon(
    store: &Store,
    names: Vec<CondemnedName>,
    since: Stopwatch,
) -> Result<Vec<CondemnedName>> {
    stream::iter(names)
        .map(|name| async move {
            if since.is_past(BELIEVED, store) {
                return Ok(Some(name));
            }
            objects::delete(store.backend(), &name.key()).await.map(|()| None)
        })
        .buffer_unordered(CONCURRENCY)
        .try_filter_map(|late| async move { Ok(late) })
        .try_collect()
        .await
}

/// Deletes objects by their keys.
pub(crate) async fn delete(store: &Store, keys: Vec<String>) -> Result<()> {
    stream::iter(keys)
        .map(|key| async move { objects::delete(store.backend(), &key).await })
        .buffer_unordered(CONCURRENCY)
        .try_for_each(|()| async { Ok(()) })
        .await
}
