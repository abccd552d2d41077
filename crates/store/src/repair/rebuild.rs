//! Writing a bad pack again as it was.
//!
//! The id of a pack is the hash of its index, and the index has the checksum of what is stored of each
//! chunk. So it comes out as the same pack only with the very bytes that it had. Those of a chunk that
//! is lost may be elsewhere, since a chunk can be in several packs; else it is encoded once more, which
//! gives the same bytes unless another compressor did it then: compressing depends on nothing but its
//! version and level, and sealing is deterministic.

use super::finder::Finder;
use super::{BadPack, BadPackChunk, by_other_ways};
use crate::pack::{self, Builder, Finished};
use crate::{ChunkRef, Settings, Store, boot_copy, chunk};
use block::Result;
use bytes::Bytes;
use std::cell::Cell;

/// Salts that are tried: a pack has one only if there was a condemned pack of its name.
const SALTS: usize = 8;

/// The pack of a plan as it was; `None` when not all of it can be had, or not as it was stored.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store's
/// backend cannot be read: that says nothing of the chunks.
pub(super) async fn as_it_was(
    store: &Store,
    plan: &BadPack,
    finder: &Finder<'_>,
) -> Result<Option<Finished>> {
    if !is_gapless(plan) {
        return Ok(None);
    }
    // Before the others are read and encoded in vain.
    for at in plan.lost().filter(|at| !finder.has(&at.id)) {
        if by_other_ways(store, &at).await.is_none() {
            return Ok(None);
        }
    }
    let mut forms = Vec::with_capacity(plan.parts.len());
    for part in &plan.parts {
        let found = forms_of(store, part, finder).await?;
        if found.is_empty() {
            return Ok(None);
        }
        forms.push(found);
    }
    let settings = store.settings();
    // Without an index nobody can tell which of two forms a chunk had: all of them as they were found,
    // or all of them as they are encoded now.
    let first = build(settings, plan, forms.iter().filter_map(|forms| forms.first()))?;
    if first.is_some() || forms.iter().all(|forms| forms.len() == 1) {
        return Ok(first);
    }
    build(settings, plan, forms.iter().filter_map(|forms| forms.last()))
}

/// Whether the chunks that are known of a pack lie one behind the other: else some are not known.
fn is_gapless(plan: &BadPack) -> bool {
    let end = |part: &BadPackChunk| u64::from(part.at.offset) + u64::from(part.at.stored);
    plan.parts.windows(2).all(|pair| end(&pair[0]) == u64::from(pair[1].at.offset))
        && plan.parts.last().is_some_and(|last| end(last) <= pack::MAX_LEN)
}

/// What may have been stored of a chunk, each of it verified: as it was found, then as it is encoded
/// now.
async fn forms_of(store: &Store, part: &BadPackChunk, finder: &Finder<'_>) -> Result<Vec<Bytes>> {
    let (at, settings) = (&part.at, store.settings());
    let is_known = |stored: &Bytes| part.checksum == Some(crc32c::crc32c(stored));
    if let Some(stored) = &part.stored
        && (part.checksum.is_none() || is_known(stored))
    {
        return Ok(vec![stored.clone()]);
    }
    let mut forms = Vec::new();
    let mut plain = None;
    // Bytes that changed may give the chunk all the same.
    let own = part.stored.iter().map(|stored| (at.encoding, stored.clone()));
    for (encoding, stored) in own.chain(finder.stored(&at.id, at.len).await?) {
        let found = ChunkRef { encoding, stored: stored.len() as u32, ..*at };
        let Ok(decoded) = found.decode(settings, stored.clone()) else { continue };
        plain.get_or_insert(decoded);
        if found == *at {
            if is_known(&stored) {
                return Ok(vec![stored]);
            }
            forms.push(stored);
        }
    }
    if plain.is_none() {
        plain = finder.content(&at.id, at.len).await;
    }
    if plain.is_none() {
        plain = by_other_ways(store, at).await;
    }
    if let Some(plain) = plain {
        // The pack may be a boot copy's.
        for level in [settings.compression_level(), boot_copy::level(settings)] {
            let (encoding, stored) = chunk::encode_at(settings, level, &at.id, plain.clone())?;
            if encoding == at.encoding && stored.len() == at.stored as usize {
                forms.push(stored);
            }
        }
    }
    forms.retain(|stored| part.checksum.is_none() || is_known(stored));
    forms.dedup();
    Ok(forms)
}

/// The pack with these bytes for its chunks, if it is the one.
fn build<'b>(
    settings: &Settings,
    plan: &BadPack,
    stored: impl Iterator<Item = &'b Bytes>,
) -> Result<Option<Finished>> {
    let mut builder = Builder::new();
    for (BadPackChunk { at, .. }, stored) in plan.parts.iter().zip(stored) {
        if builder.add(at.id, at.len, at.encoding, stored) != at.offset {
            return Ok(None);
        }
    }
    let tried = Cell::new(0);
    let another = |id: &_| *id != plan.pack && tried.replace(tried.get() + 1) < SALTS;
    let finished = builder.finish(settings, another)?;
    Ok((finished.id == plan.pack).then_some(finished))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PackId;
    use crate::condemned::Absent;
    use crate::repair::finder::LostChunks;
    use crate::testing::{self, noise};
    use object_store::memory::InMemory;
    use std::collections::{HashMap, HashSet};
    use std::sync::Arc;

    async fn rebuilt(store: &Store, pack: PackId, parts: Vec<BadPackChunk>) -> Option<Finished> {
        let (wanted, none) = (LostChunks::default(), HashSet::new());
        let found =
            Finder::search(store, &[], wanted, HashMap::new(), (&none, &Absent::default()), &())
                .await;
        let plan =
            BadPack { pack, there: false, is_layout_known: true, is_partly_known: false, parts };
        as_it_was(store, &plan, &found.unwrap()).await.unwrap()
    }

    #[tokio::test]
    async fn a_pack_comes_out_as_it_was_with_its_salt_and_not_without_a_chunk() {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let settings = store.settings();
        for salt in 0..4 {
            let mut builder = Builder::new();
            let mut chunks = Vec::new();
            for seed in 0..3 {
                let plain = Bytes::from(noise(seed, 8192));
                let (id, len) = (chunk::id_of(settings, &plain), 8192);
                let (encoding, stored) = chunk::encode(settings, &id, plain).unwrap();
                let offset = builder.add(id, len, encoding, &stored);
                let pack = PackId([0; 32]);
                let at = ChunkRef { id, len, pack, offset, stored: stored.len() as u32, encoding };
                chunks.push((at, stored));
            }
            let left = Cell::new(salt);
            let taken = |_: &_| left.replace(left.get().max(1) - 1) > 0;
            let made = builder.finish(settings, taken).unwrap();
            let part = |(at, stored): &(ChunkRef, Bytes)| BadPackChunk {
                at: ChunkRef { pack: made.id, ..*at },
                stored: Some(stored.clone()),
                checksum: None,
            };
            let all: Vec<BadPackChunk> = chunks.iter().map(part).collect();
            let again = rebuilt(&store, made.id, all).await.unwrap();
            assert_eq!((again.id, again.bytes), (made.id, made.bytes), "salt {salt}");
            for missing in 0..3 {
                let mut some = chunks.clone();
                some.remove(missing);
                let some = some.iter().map(part).collect();
                assert!(rebuilt(&store, made.id, some).await.is_none(), "without {missing}");
            }
            let mut lost: Vec<BadPackChunk> = chunks.iter().map(part).collect();
            lost[1].stored = None;
            assert!(rebuilt(&store, made.id, lost).await.is_none(), "nobody has it");
        }
        assert!(rebuilt(&store, PackId([1; 32]), Vec::new()).await.is_none());
    }
}
