//! Reading everything back.

use crate::chunker::{PAGE, SEGMENT};
use crate::segment::{self, Placed};
use crate::{ChunkId, ChunkRef, ManifestId, Progress, Store, backend, pack};
use block::{Error, ErrorKind, Result, Span, offload};
use futures::{StreamExt, stream};
use serde::Serialize;
use std::collections::{HashMap, HashSet};

/// Chunks that lie near each other in a pack are read together, up to this many bytes.
const GROUP: u32 = 1 << 20;
/// Bytes between two chunks that are read and thrown away rather than asked around.
const GAP: u32 = 64 << 10;
/// Groups in work at the same time.
const CONCURRENCY: usize = 8;

/// What a verification found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct VerifyReport {
    /// Distinct chunks that were read.
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

#[derive(Serialize)]
struct Range {
    offset: u64,
    length: u64,
}

fn spans<S: serde::Serializer>(spans: &[Span], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(spans.iter().map(|s| Range { offset: s.offset(), length: s.len() }))
}

/// Reads and verifies every chunk of a manifest.
///
/// # Errors
/// Those of the root, and of a backend that fails; what is damaged or missing behind the root is
/// in the report.
pub async fn manifest(
    store: &Store,
    id: &ManifestId,
    progress: &dyn Progress,
) -> Result<VerifyReport> {
    let manifest = store.manifest(id).await?;
    let mut report = VerifyReport::default();
    let mut seen: HashSet<ChunkId> = HashSet::new();
    // Damaged chunks, and where the report has them.
    let mut damaged: HashMap<ChunkId, usize> = HashMap::new();
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
        let fresh = pieces.iter().map(|p| p.at).filter(|at| seen.insert(at.id)).collect();
        let stored = check(store, fresh, &mut report, &mut damaged).await?;
        for piece in &pieces {
            if let Some(at) = damaged.get(&piece.at.id) {
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
    report: &mut VerifyReport,
    damaged: &mut HashMap<ChunkId, usize>,
) -> Result<u64> {
    let mut stored = 0;
    let mut groups = stream::iter(groups(chunks))
        .map(|group| check_group(store, group))
        .buffer_unordered(CONCURRENCY);
    while let Some(outcomes) = groups.next().await {
        for (at, outcome) in outcomes? {
            report.chunks += 1;
            report.bytes += u64::from(at.len);
            stored += u64::from(at.stored);
            if let Err(e) = outcome {
                damaged.insert(at.id, report.damaged.len());
                let object = pack::path(&at.pack).to_string();
                let (spans, why) = (Vec::new(), found(e)?);
                report.damaged.push(Damage { spans, object, offset: at.offset.into(), why });
            }
        }
    }
    Ok(stored)
}

/// Chunks in the order of a pack, joined to reads of a good length.
fn groups(mut chunks: Vec<ChunkRef>) -> Vec<Vec<ChunkRef>> {
    chunks.sort_unstable_by_key(|at| (at.pack, at.offset));
    let mut groups: Vec<Vec<ChunkRef>> = Vec::new();
    for at in chunks {
        if let Some(group) = groups.last_mut()
            && let (Some(first), Some(last)) = (group.first(), group.last())
            && last.pack == at.pack
            && at.offset.saturating_sub(last.offset + last.stored) <= GAP
            && at.offset + at.stored - first.offset <= GROUP
        {
            group.push(at);
        } else {
            groups.push(vec![at]);
        }
    }
    groups
}

async fn check_group(store: &Store, group: Vec<ChunkRef>) -> Result<Vec<(ChunkRef, Result<()>)>> {
    let (Some(first), Some(last)) = (group.first().copied(), group.last()) else {
        return Ok(Vec::new());
    };
    let len = u64::from(last.offset + last.stored - first.offset);
    let path = pack::path(&first.pack);
    let bytes = match backend::get_range(store.backend(), &path, first.offset.into(), len).await {
        Ok(bytes) => bytes,
        Err(_) => {
            // Each by itself: some may be there.
            let mut outcomes = Vec::with_capacity(group.len());
            for at in group {
                let outcome = store.read_chunk(&at).await.map(|_| ());
                outcomes.push((at, outcome));
            }
            return Ok(outcomes);
        }
    };
    let store = store.clone();
    offload(move || {
        let decode = |at: ChunkRef| {
            let start = (at.offset - first.offset) as usize;
            let stored = bytes.slice(start..start + at.stored as usize);
            (at, store.count(&at, at.decode(store.settings(), stored)).map(|_| ()))
        };
        Ok(group.into_iter().map(decode).collect())
    })
    .await
}
