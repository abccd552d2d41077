//! Looking, before packs are deleted, whether one of them has the only sound copy of a chunk.
//!
//! Marks say that each chunk which something refers to is in a pack that stays. Whether it can be read
//! there they do not say: that pack may be damaged. So what is in use and also in a pack that goes is
//! read where it stays: above all what was moved out of packs that were rewritten.

use super::marked::{Marks, ReferencedChunk};
use crate::pack::{self, PackIndex};
use crate::{ChunkRef, Encoding, PackId, Store, verify};
use block::{Error, ErrorKind, Result};
use futures::{StreamExt, stream};
use object_store::ObjectMeta;
use std::collections::{HashMap, HashSet};

/// Chunks of packs that go, looked at together.
const BATCH: usize = 1 << 18;
/// Indexes that are read at the same time.
const CONCURRENCY: usize = 16;

/// Which of the packs, which are about to be deleted and have so many bytes, must stay, and why.
///
/// # Errors
/// The backend's, when they say nothing of a pack.
pub(super) async fn only(
    store: &Store,
    marks: &Marks,
    packs: &[(PackId, u32)],
) -> Result<HashMap<PackId, Error>> {
    let going: HashSet<PackId> = packs.iter().map(|(pack, _)| *pack).collect();
    let mut only = HashMap::new();
    let mut batch: Vec<ChunkRef> = Vec::new();
    let mut loads = stream::iter(packs.to_vec())
        .map(|(pack, size)| async move { chunks(store, pack, size).await })
        .buffered(CONCURRENCY);
    while let Some(chunks) = loads.next().await {
        batch.extend(chunks?);
        if batch.len() >= BATCH {
            only_in(store, marks, &going, &std::mem::take(&mut batch), &mut only).await?;
        }
    }
    only_in(store, marks, &going, &batch, &mut only).await?;
    Ok(only)
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
    going: &HashSet<PackId>,
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
        if !going.contains(&kept.pack) {
            stays.push(kept);
        }
    }
    let sealed = store.settings().is_encrypted();
    let elsewhere = |at: &ChunkRef, kept: &ReferencedChunk| {
        let ReferencedChunk { pack, offset, stored } = *kept;
        ChunkRef { pack, offset, stored, encoding: Encoding::of(stored, at.len, sealed), ..*at }
    };
    let mut places: HashSet<ChunkRef> = HashSet::new();
    for at in chunks {
        let kept = used.get(&at.id.short()).into_iter().flatten();
        places.extend(kept.map(|kept| elsewhere(at, kept)));
    }
    let mut sound = HashSet::new();
    let mut places: Vec<ChunkRef> = places.into_iter().collect();
    // In an order that does not depend on chance: a simulation takes the same course again.
    places.sort_unstable_by_key(|at| (at.pack, at.offset));
    for (at, outcome) in verify::read(store, places).await? {
        if outcome.is_ok() {
            sound.insert(at.id);
        }
    }
    for at in chunks {
        let Some(kept) = used.get(&at.id.short()) else { continue };
        let is_last = !sound.contains(&at.id) && !only.contains_key(&at.pack);
        if is_last && store.read_at(at).await.is_ok() {
            let bad = kept.iter().map(|kept| pack::path(&kept.pack).to_string());
            let bad: Vec<String> = bad.collect();
            let why = Error::corrupt(format!(
                "object {} is kept, as it has the only sound copy of chunk {}, which is in use and cannot \
                 be read in {}; heal the store with \"sojourn repair\"",
                pack::path(&at.pack),
                at.id,
                if bad.is_empty() { "any other pack".to_owned() } else { bad.join(", ") }
            ));
            only.insert(at.pack, why);
        }
    }
    Ok(())
}
