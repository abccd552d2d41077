//! Deleting what was condemned long enough ago and is still unreferenced.

use super::census::ListedPin;
use super::copies;
use super::marked::{Marks, Unsure};
use super::report::WaitingGarbage;
use crate::collection::lists;
use crate::collection::{CollectionState, List};
use crate::condemned::{CondemnedKind, CondemnedName, CondemnedObject};
use crate::{ManifestId, PackId, SegmentId, Session, Store};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use objects::Amount;
use std::time::Duration;
use tokio::time::Instant;

/// Deletions at the same time.
const CONCURRENCY: usize = 16;
/// Deletions, at the most, between two looks whether the collection was taken for dead.
const BATCH: usize = 256;
/// How long such a look is believed, should the process sleep in the middle of a batch.
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
/// session is in the way. A collection that was taken for dead meanwhile deletes nothing more, but
/// for the requests that are under way.
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
        // Another collection may have been quicker, and the names given again since.
        let state = CollectionState::load(store).await?;
        if !state.open().any(|open| open.id == list.id) {
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
        // By kind: nothing is left that refers to what is gone.
        for kind in CondemnedKind::ALL {
            let names: Vec<CondemnedName> =
                freed.iter().map(|item| item.name).filter(|name| name.kind == kind).collect();
            for batch in names.chunks(BATCH) {
                let looked = Instant::now();
                session.check().await?;
                stream::iter(batch.iter().copied().map(Ok::<_, Error>))
                    .try_for_each_concurrent(CONCURRENCY, |name| async move {
                        if looked.elapsed() > BELIEVED {
                            session.check().await?;
                        }
                        objects::delete(store.backend(), &name.key()).await
                    })
                    .await?;
            }
        }
    }
    Ok(Swept { freed, unjudged, doubts })
}

/// Deletes objects by their keys.
pub(crate) async fn delete(store: &Store, keys: Vec<String>) -> Result<()> {
    stream::iter(keys)
        .map(|key| async move { objects::delete(store.backend(), &key).await })
        .buffer_unordered(CONCURRENCY)
        .try_for_each(|()| async { Ok(()) })
        .await
}
