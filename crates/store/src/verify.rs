//! Reading everything back: one manifest, or a whole store.

mod packs;
mod report;
mod scan;

use crate::chunker::{PAGE, SEGMENT};
use crate::heal;
use crate::segment::{self, Placed};
use crate::{ChunkRef, ManifestId, Progress, Store, pack};
use block::{Error, ErrorKind, Result, Span, offload};
use futures::{StreamExt, stream};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

pub use report::{Fault, FaultState, Range, StoreVerifyReport, Touched};
pub(crate) use scan::maps;
pub use scan::{VerifyOptions, store};

/// Chunks that lie near each other in a pack are read together, up to this many bytes.
const GROUP: u32 = 1 << 20;
/// Bytes between two chunks that are read and thrown away rather than asked around.
const GAP: u32 = 64 << 10;
/// Groups in work at the same time.
const CONCURRENCY: usize = 8;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ImageVerifyReport {
    /// Chunks that were read: distinct ones, and copies of one at several places.
    pub chunks: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// What is damaged or missing; empty when all is well.
    pub damaged: Vec<Damage>,
}

/// A damaged or missing object, or a damaged part of one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Damage {
    /// The parts of the image that cannot be read because of it.
    #[serde(serialize_with = "spans")]
    pub spans: Vec<Span>,
    /// The object's key: a pack's or a segment's.
    pub object: String,
    /// Where in the object, in bytes.
    pub offset: u64,
    /// What is wrong.
    pub why: String,
}

fn spans<S: serde::Serializer>(spans: &[Span], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(spans.iter().map(|s| Range { offset: s.offset(), length: s.len() }))
}

/// Reads and verifies every chunk of a manifest.
///
/// # Errors
/// Any error from the root and from a backend that fails; what is damaged or missing behind the root is
/// in the report.
pub async fn manifest(
    store: &Store,
    id: &ManifestId,
    progress: &dyn Progress,
) -> Result<ImageVerifyReport> {
    let manifest = store.manifest(id).await?;
    let mut report = ImageVerifyReport::default();
    // By place, not by id: one copy of a chunk may be damaged and another not.
    let mut seen: HashSet<u64> = HashSet::new();
    // Damaged chunks, and where the report has them.
    let mut damaged: HashMap<ChunkRef, usize> = HashMap::new();
    for index in 0..manifest.segments() {
        let start = index as u64 * SEGMENT;
        let whole = Span::between(start, (start + SEGMENT).min(manifest.size()));
        let mut pieces: Vec<Placed> = Vec::new();
        if let Err(e) = manifest.visit(index, |placed| pieces.push(placed)).await {
            let object = manifest.segment_id(index).map(|id| segment::key(&id));
            let object = object.unwrap_or_default();
            report.damaged.push(Damage { spans: vec![whole], object, offset: 0, why: found(e)? });
            progress.advance(whole.len(), 0);
            continue;
        }
        let fresh = pieces.iter().map(|p| p.at).filter(|at| seen.insert(fingerprint(at))).collect();
        let stored = check(store, fresh, &mut report, &mut damaged).await?;
        for piece in &pieces {
            if let Some(at) = damaged.get(&piece.at) {
                let start = start + u64::from(piece.start) * PAGE as u64;
                let end = (start + u64::from(piece.blocks) * PAGE as u64).min(manifest.size());
                report.damaged[*at].spans.push(Span::between(start, end));
            }
        }
        progress.advance(whole.len(), stored);
    }
    Ok(report)
}

/// What a damage is, or the error that says nothing of the data.
fn found(error: Error) -> Result<String> {
    match error.kind() {
        ErrorKind::Corrupt | ErrorKind::NotFound => Ok(error.message().to_owned()),
        _ => Err(error),
    }
}

/// Reads chunks; returns how many stored bytes were read.
async fn check(
    store: &Store,
    chunks: Vec<ChunkRef>,
    report: &mut ImageVerifyReport,
    damaged: &mut HashMap<ChunkRef, usize>,
) -> Result<u64> {
    let mut stored = 0;
    let mut groups = stream::iter(groups(chunks))
        .map(|group| check_group(store, group, ReadFrom::Anywhere))
        .buffer_unordered(CONCURRENCY);
    while let Some(outcomes) = groups.next().await {
        for (at, outcome) in outcomes? {
            report.chunks += 1;
            report.bytes += u64::from(at.len);
            stored += u64::from(at.stored);
            // What was moved is found there by readers.
            if let Err(e) = outcome
                && heal::follow(store, &at).await.is_err()
            {
                damaged.insert(at, report.damaged.len());
                let object = pack::path(&at.pack).to_string();
                let (spans, why) = (Vec::new(), found(e)?);
                report.damaged.push(Damage { spans, object, offset: at.offset.into(), why });
            }
        }
    }
    Ok(stored)
}

/// Reads chunks where they ought to be, and says how that went.
pub(crate) async fn read(
    store: &Store,
    chunks: Vec<ChunkRef>,
) -> Result<Vec<(ChunkRef, Result<()>)>> {
    read_from(store, chunks, ReadFrom::Anywhere).await
}

/// Does what [`read`] does, of the store itself and not of what is kept of it on a local disk: for whoever is about to
/// delete what else has these chunks.
pub(crate) async fn read_fresh(
    store: &Store,
    chunks: Vec<ChunkRef>,
) -> Result<Vec<(ChunkRef, Result<()>)>> {
    read_from(store, chunks, ReadFrom::Store).await
}

/// Where chunks are read from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadFrom {
    /// The store, or what is kept of it on a local disk.
    Anywhere,
    /// The store itself.
    Store,
}

async fn read_from(
    store: &Store,
    chunks: Vec<ChunkRef>,
    from: ReadFrom,
) -> Result<Vec<(ChunkRef, Result<()>)>> {
    let mut outcomes = Vec::with_capacity(chunks.len());
    let mut groups = stream::iter(groups(chunks))
        .map(|group| check_group(store, group, from))
        .buffer_unordered(CONCURRENCY);
    while let Some(checked) = groups.next().await {
        outcomes.extend(checked?);
    }
    Ok(outcomes)
}

/// A chunk at its place, in a number: the ids are keyed hashes.
pub(crate) fn fingerprint(at: &ChunkRef) -> u64 {
    let word = |bytes: &[u8; 32]| bytes.iter().take(8).fold(0, |n, b| n << 8 | u64::from(*b));
    let place = u64::from(at.offset) << 32 | u64::from(at.stored);
    let form = u64::from(at.len) << 8 | at.encoding as u64;
    [word(at.pack.as_bytes()), place, form]
        .into_iter()
        .fold(word(at.id.as_bytes()), |hash, next| {
            (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        })
}

/// Chunks of a pack that are read together.
pub(crate) struct Group {
    pub(crate) chunks: Vec<ChunkRef>,
    pub(crate) start: u32,
    /// The end of the chunk that reaches farthest: a manifest may say that chunks overlap.
    pub(crate) end: u32,
}

/// Chunks in the order of a pack, joined to reads of a good length.
pub(crate) fn groups(mut chunks: Vec<ChunkRef>) -> Vec<Group> {
    chunks.sort_unstable_by_key(|at| (at.pack, at.offset));
    let mut groups: Vec<Group> = Vec::new();
    for at in chunks {
        let end = at.offset + at.stored;
        if let Some(group) = groups.last_mut()
            && group.chunks.last().is_some_and(|last| last.pack == at.pack)
            && at.offset.saturating_sub(group.end) <= GAP
            && end - group.start <= GROUP
        {
            group.end = group.end.max(end);
            group.chunks.push(at);
        } else {
            groups.push(Group { chunks: vec![at], start: at.offset, end });
        }
    }
    groups
}

async fn check_group(
    store: &Store,
    group: Group,
    from: ReadFrom,
) -> Result<Vec<(ChunkRef, Result<()>)>> {
    let Group { chunks, start, end } = group;
    let Some(pack) = chunks.first().map(|at| at.pack) else { return Ok(Vec::new()) };
    let path = pack::path(&pack);
    let len = u64::from(end - start);
    let read = match from {
        ReadFrom::Anywhere => objects::get_range(store.backend(), &path, start.into(), len).await,
        ReadFrom::Store => {
            let fresh = objects::Hint::Fresh;
            objects::get_range_with(store.backend(), &path, start.into(), len, fresh).await
        }
    };
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(_) => {
            // Each by itself: some may be there.
            let mut outcomes = Vec::with_capacity(chunks.len());
            for at in chunks {
                let outcome = match from {
                    ReadFrom::Anywhere => store.read_at(&at).await,
                    ReadFrom::Store => store.read_fresh_at(&at).await,
                };
                outcomes.push((at, outcome.map(|_| ())));
            }
            return Ok(outcomes);
        }
    };
    let store = store.clone();
    offload(move || {
        let decode = |at: ChunkRef| {
            let from = (at.offset - start) as usize;
            let stored = &bytes[from..from + at.stored as usize];
            (at, store.count(&at, at.check(store.settings(), stored)))
        };
        Ok(chunks.into_iter().map(decode).collect())
    })
    .await
}

#[cfg(test)]
mod manifest_tests;
#[cfg(test)]
mod tests;
