//! Looking, before packs are deleted, whether one of them has the only copy of a chunk that is of use.
//!
//! Marks say that each chunk which something refers to is in a pack that stays. Whether it can be read
//! there they do not say: that pack may be damaged. So what is in use and also in a pack that goes is
//! read where it stays: what maps name in the pack itself, where `moved` objects lead readers from there;
//! of what maps name elsewhere, any copy that they name.

use super::marked::{Marks, ReferencedChunk};
use crate::moved::{MAX_STEPS, Moved};
use crate::pack::{self, PackIndex};
use crate::{ChunkRef, Encoding, PackId, Store, heal, rewritten, verify};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use std::collections::{HashMap, HashSet};

/// Chunks of packs that go, looked at together.
const BATCH: usize = 1 << 18;
/// Indexes that are read at the same time.
const CONCURRENCY: usize = 16;

/// The packs that are about to be deleted, and what leads on from them.
struct Leaving {
    packs: HashSet<PackId>,
    moved: HashMap<PackId, Moved>,
}

/// Which of the packs, which are about to be deleted and have so many bytes, must stay, and why.
///
/// # Errors
/// The backend's, when they say nothing of a pack.
pub(super) async fn only(
    store: &Store,
    marks: &Marks,
    packs: &[(PackId, u32)],
) -> Result<HashMap<PackId, Error>> {
    let ids: HashSet<PackId> = packs.iter().map(|(pack, _)| *pack).collect();
    let leaving = Leaving { moved: moved_out_of(store, marks, &ids).await?, packs: ids };
    let mut only = HashMap::new();
    let mut batch: Vec<ChunkRef> = Vec::new();
    let mut loads = stream::iter(packs.to_vec())
        .map(|(pack, size)| async move { chunks(store, pack, size).await })
        .buffered(CONCURRENCY);
    while let Some(chunks) = loads.next().await {
        batch.extend(chunks?);
        if batch.len() >= BATCH {
            only_in(store, marks, &leaving, &std::mem::take(&mut batch), &mut only).await?;
        }
    }
    only_in(store, marks, &leaving, &batch, &mut only).await?;
    Ok(only)
}

/// The `moved` objects that lead readers from packs on, step by step. One that cannot be read leads nowhere.
async fn moved_out_of(
    store: &Store,
    marks: &Marks,
    packs: &HashSet<PackId>,
) -> Result<HashMap<PackId, Moved>> {
    let mut known: HashMap<PackId, Moved> = HashMap::new();
    let mut asked: HashSet<PackId> = HashSet::new();
    let mut work: Vec<PackId> = packs.iter().copied().collect();
    for _ in 0..MAX_STEPS {
        work.retain(|pack| marks.rewritten.contains_key(pack) && asked.insert(*pack));
        let mut loads = stream::iter(std::mem::take(&mut work))
            .map(|pack| async move { (pack, rewritten::load(store, &pack).await) })
            .buffer_unordered(CONCURRENCY);
        while let Some((pack, load)) = loads.next().await {
            match load {
                Ok(None) => {}
                Ok(Some(moved)) => {
                    work.extend(moved.chunks().map(|at| at.pack));
                    known.insert(pack, moved);
                }
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::Unsupported) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(known)
}

/// What a pack of `size` bytes has; nothing when nobody can tell any more.
async fn chunks(store: &Store, pack: PackId, size: u32) -> Result<Vec<ChunkRef>> {
    let meta = ObjectMeta {
        location: pack::path(&pack),
        last_modified: Default::default(),
        size: size.into(),
        e_tag: None,
        version: None,
    };
    match PackIndex::load(store.backend(), store.settings(), &meta).await {
        Ok(index) => Ok(index.chunks().collect()),
        Err(e) => match e.kind() {
            ErrorKind::NotFound | ErrorKind::Corrupt | ErrorKind::Unsupported => Ok(Vec::new()),
            _ => Err(e),
        },
    }
}

/// Does what [`only`] does, for these chunks.
async fn only_in(
    store: &Store,
    marks: &Marks,
    leaving: &Leaving,
    chunks: &[ChunkRef],
    only: &mut HashMap<PackId, Error>,
) -> Result<()> {
    if chunks.is_empty() {
        return Ok(());
    }
    let mut used: HashMap<[u8; 8], Vec<ReferencedChunk>> = HashMap::new();
    let wanted: HashSet<[u8; 8]> = chunks.iter().map(|at| at.id.short()).collect();
    for (id, kept) in marks.places().filter(|(id, _)| wanted.contains(id)) {
        let stays = used.entry(id).or_default();
        if !leaving.packs.contains(&kept.pack) {
            stays.push(kept);
        }
    }
    let sealed = store.settings().is_encrypted();
    let elsewhere = |at: &ChunkRef, kept: &ReferencedChunk| {
        let ReferencedChunk { pack, offset, stored } = *kept;
        ChunkRef { pack, offset, stored, encoding: Encoding::of(stored, at.len, sealed), ..*at }
    };
    // Where a chunk that is in use has to be sound, in one place at the least; none when nothing uses it.
    let stays = |at: &ChunkRef| -> Option<Vec<ChunkRef>> {
        if marks.chunk(at) {
            let steps = heal::target(&leaving.moved, at).into_iter();
            return Some(steps.filter(|step| !leaving.packs.contains(&step.pack)).collect());
        }
        let kept = used.get(&at.id.short())?;
        Some(kept.iter().map(|kept| elsewhere(at, kept)).collect())
    };
    let in_use: Vec<(&ChunkRef, Vec<ChunkRef>)> =
        chunks.iter().filter_map(|at| Some((at, stays(at)?))).collect();
    let places: HashSet<ChunkRef> = in_use.iter().flat_map(|(_, stays)| stays).copied().collect();
    let mut places: Vec<ChunkRef> = places.into_iter().collect();
    // In an order that does not depend on chance: a simulation takes the same course again.
    places.sort_unstable_by_key(|at| (at.pack, at.offset));
    let mut sound: HashSet<ChunkRef> = HashSet::new();
    for (at, outcome) in verify::read_fresh(store, places).await? {
        if outcome.is_ok() {
            sound.insert(at);
        }
    }
    for (at, stays) in in_use {
        let is_last =
            !stays.iter().any(|place| sound.contains(place)) && !only.contains_key(&at.pack);
        if is_last && store.read_fresh_at(at).await.is_ok() {
            let bad: Vec<String> =
                stays.iter().map(|place| pack::path(&place.pack).to_string()).collect();
            let why = Error::corrupt(format!(
                "object {} is kept, as it has the only sound copy that maps lead to of chunk {}, which is in \
                 use and cannot be read in {}; heal the store with \"sojourn repair\"",
                pack::path(&at.pack),
                at.id,
                if bad.is_empty() { "any other pack".to_owned() } else { bad.join(", ") }
            ));
            only.insert(at.pack, why);
        }
    }
    Ok(())
}
