//! What is reachable from the names.

use super::census::{Census, Named};
use super::lost;
use super::marked::{Marks, Packs, RewrittenPack, Unsure};
use crate::boot_list;
use crate::chunker::{SEGMENT, SEGMENT_PAGES};
use crate::manifest_root;
use crate::moved::{self, Moved};
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::{self, Segment};
use crate::{ChunkId, ManifestId, PackId, Progress, SegmentId, Store, rewritten};
use block::{Error, Result};
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Roots and segments that are read at the same time.
const CONCURRENCY: usize = 8;

/// Marks what a census leads to.
pub(crate) async fn mark(
    store: &Store,
    census: &Census,
    packs: &Packs,
    progress: &dyn Progress,
) -> Result<Marks> {
    let mut marks = Marks::default();
    for error in &census.doubts {
        let error = Error::new(error.kind(), error.message().to_owned());
        marks.note_unreadable(Unsure::Everything, error)?;
    }
    // A name for each manifest, to tell people whose it is.
    let mut names: HashMap<ManifestId, String> = HashMap::new();
    for Named { kind, record, .. } in &census.names {
        match record.body.roots() {
            Ok(roots) => {
                for id in roots {
                    names.entry(id).or_insert_with(|| format!("{kind} {}", record.name));
                }
            }
            Err(e) => {
                let error = e.context(format!("{kind} {}", record.name));
                marks.note_unreadable(Unsure::Everything, error)?;
            }
        }
        if let Some(list) = record.body.labels.get(boot_list::LABEL) {
            match crate::id::parse_hex("boot list", list) {
                Ok(id) => drop(marks.boot_lists.insert(id)),
                Err(e) => marks.note_unreadable(Unsure::Everything, e)?,
            }
        }
    }
    for seen in &census.pins {
        let Some(pin) = &seen.pin else { continue };
        for id in &pin.holds {
            names.entry(*id).or_insert_with(|| pin.what.clone());
        }
    }
    marks.manifests.extend(names.keys());
    roots(store, &mut marks, &names).await?;
    segments(store, &mut marks, packs, progress).await?;
    follow(store, &mut marks, packs).await?;
    marks.sort();
    Ok(marks)
}

/// Reads the roots; notes their segments.
async fn roots(
    store: &Store,
    marks: &mut Marks,
    names: &HashMap<ManifestId, String>,
) -> Result<()> {
    // In an order that does not depend on chance: a simulation takes the same course again.
    let mut ids: Vec<ManifestId> = names.keys().copied().collect();
    ids.sort_unstable();
    let mut reads = stream::iter(ids)
        .map(|id| async move { (id, read_root(store, id).await) })
        .buffer_unordered(CONCURRENCY);
    while let Some((id, read)) = reads.next().await {
        match read {
            Ok(segments) => marks.segments.extend(segments),
            Err(e) => {
                let error = match names.get(&id) {
                    Some(name) => e.context(name),
                    None => e,
                };
                marks.note_unreadable(Unsure::Segments, error)?;
            }
        }
    }
    Ok(())
}

/// The segments of a manifest.
pub(crate) async fn read_root(store: &Store, id: ManifestId) -> Result<Vec<SegmentId>> {
    let (backend, settings) = (store.backend(), store.settings());
    let body = object::read_content(backend, settings, ObjectKind::Root, &id.0).await?;
    let (_, ids) = manifest_root::decode(&manifest_root::key(&id), &body)?;
    Ok(ids.into_iter().flatten().collect())
}

/// Reads the segments; notes their chunks.
async fn segments(
    store: &Store,
    marks: &mut Marks,
    packs: &Packs,
    progress: &dyn Progress,
) -> Result<()> {
    let mut ids: Vec<SegmentId> = marks.segments.iter().copied().collect();
    ids.sort_unstable();
    let mut reads =
        stream::iter(ids).map(|id| read_segment(store, id)).buffer_unordered(CONCURRENCY);
    while let Some(read) = reads.next().await {
        match read {
            Ok(segment) => segment.all().for_each(|placed| {
                marks.refer(&placed.at, packs);
            }),
            Err(e) => marks.note_unreadable(Unsure::Packs, e)?,
        }
        progress.advance(SEGMENT, 0);
    }
    Ok(())
}

/// A segment, of whatever image.
pub(crate) async fn read_segment(store: &Store, id: SegmentId) -> Result<Segment> {
    let (backend, settings) = (store.backend(), store.settings());
    let body = object::read_content(backend, settings, ObjectKind::Segment, &id.0).await?;
    Segment::decode(&segment::key(&id), body, SEGMENT_PAGES as u32)
}

/// Follows chunks of packs that were rewritten to where they are now.
async fn follow(store: &Store, marks: &mut Marks, packs: &Packs) -> Result<()> {
    let mut known: HashMap<PackId, Moved> = HashMap::new();
    let mut work: Vec<PackId> = marks.chunks.keys().copied().collect();
    work.sort_unstable();
    let mut asked: HashSet<PackId> = HashSet::new();
    while let Some(pack) = work.pop() {
        if asked.insert(pack) {
            match rewritten::load(store, &pack).await {
                Ok(object) => known.extend(object.map(|object| (pack, object))),
                Err(e) => marks.note_unreadable(Unsure::Packs, e)?,
            }
        }
        let Some(object) = known.get(&pack) else { continue };
        let mut chunks: Vec<ChunkId> =
            marks.chunks.get(&pack).into_iter().flatten().copied().collect();
        chunks.sort_unstable();
        for at in chunks.iter().filter_map(|id| object.find(id)) {
            // A pack that was rewritten again leads on.
            if marks.refer(&at, packs) && !work.contains(&at.pack) {
                work.push(at.pack);
            }
        }
    }
    let lost = lost(marks, packs, &known);
    if !lost.is_empty() {
        lost::find(store, marks, packs, &lost).await?;
    }
    for (pack, chunks) in &marks.chunks {
        let mut found = RewrittenPack::default();
        for id in chunks {
            let mut place = known.get(pack).and_then(|object| object.find(id));
            for _ in 1..moved::MAX_STEPS {
                place = match place {
                    Some(at) if !packs.stays(&at.pack) => {
                        known.get(&at.pack).and_then(|object| object.find(id))
                    }
                    other => other,
                };
            }
            match place {
                Some(at) if packs.stays(&at.pack) && at.pack != *pack => {
                    found.targets.insert(at.pack);
                }
                _ => found.left += 1,
            }
        }
        marks.rewritten.insert(*pack, found);
    }
    Ok(())
}

/// The chunks of packs that are gone, and of which no map says where they are.
fn lost(
    marks: &Marks,
    packs: &Packs,
    known: &HashMap<PackId, Moved>,
) -> BTreeMap<PackId, Vec<ChunkId>> {
    let mut lost: BTreeMap<PackId, Vec<ChunkId>> = BTreeMap::new();
    for (pack, chunks) in &marks.chunks {
        for id in chunks {
            let (mut here, mut steps) = (*pack, 0);
            while !packs.listed.contains_key(&here)
                && steps < moved::MAX_STEPS
                && let Some(next) = known.get(&here).and_then(|object| object.find(id))
            {
                (here, steps) = (next.pack, steps + 1);
            }
            if !packs.listed.contains_key(&here) {
                lost.entry(*pack).or_default().push(*id);
            }
        }
    }
    lost
}
