//! Rewriting packs that are mostly garbage: what is in use goes into new packs, and `moved` objects
//! lead there. The old packs are condemned then.

use super::marked::Marks;
use crate::pack::{self, Builder, Finished, PackIndex};
use crate::rewritten;
use crate::{ChunkRef, PackId, Progress, Session, Store};
use block::{ErrorKind, Result, offload};
use object_store::ObjectMeta;
use std::collections::HashMap;

/// Chunks that one collection moves at the most: it remembers them.
const MAX_CHUNKS: usize = 1 << 19;
/// Chunks that lie near each other are read together, up to this many bytes.
const GROUP: u32 = 1 << 20;
/// Bytes between two chunks that are read and thrown away rather than asked around.
const GAP: u32 = 64 << 10;

/// What was rewritten.
#[derive(Debug, Default)]
pub(crate) struct RewriteResult {
    /// The old packs, of which nothing is needed any more.
    pub(crate) packs: Vec<PackId>,
    /// Bytes that were kept, index entries included.
    pub(crate) kept: u64,
}

/// An old pack, and where its chunks are now.
struct Old {
    pack: PackId,
    chunks: Vec<ChunkRef>,
    /// How many of the chunks, from the first on, are in finished packs.
    placed: usize,
}

/// Rewrites these packs. One that cannot be read, or of which a chunk is damaged, stays as it is.
pub(crate) async fn rewrite(
    session: &Session,
    packs: &[ObjectMeta],
    marks: &Marks,
    progress: &dyn Progress,
) -> Result<RewriteResult> {
    let store = session.store();
    let mut done = RewriteResult::default();
    let mut builder = Builder::new();
    let mut waiting: Vec<Old> = Vec::new();
    let mut moves: HashMap<PackId, Vec<ChunkRef>> = HashMap::new();
    let mut moved = 0;
    for meta in packs {
        if moved >= MAX_CHUNKS {
            break;
        }
        let read = live_chunks(store, meta, marks).await;
        let (pack, chunks) = match read {
            Ok(read) => read,
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::Corrupt | ErrorKind::NotFound | ErrorKind::Unsupported
                ) =>
            {
                tracing::warn!(pack = %meta.location, error = %e, "a pack is not rewritten");
                continue;
            }
            Err(e) => return Err(e),
        };
        moved += chunks.len();
        progress.advance(meta.size, 0);
        waiting.push(Old { pack, chunks: Vec::new(), placed: 0 });
        for (at, stored) in chunks {
            if builder.is_full() {
                let full = std::mem::take(&mut builder);
                finish(session, full, &mut waiting, 1, &mut moves).await?;
            }
            let offset = builder.add(at.id, at.len, at.encoding, &stored);
            done.kept += stored.len() as u64 + pack::OVERHEAD;
            if let Some(old) = waiting.last_mut() {
                old.chunks.push(ChunkRef { offset, ..at });
            }
        }
    }
    if !builder.is_empty() {
        finish(session, builder, &mut waiting, 0, &mut moves).await?;
    }
    done.packs.extend(moves.keys());
    session.check().await?;
    redirect(store, marks, &moves).await?;
    Ok(done)
}

/// The chunks of a pack that something refers to, as they are stored, verified.
async fn live_chunks(
    store: &Store,
    meta: &ObjectMeta,
    marks: &Marks,
) -> Result<(PackId, Vec<(ChunkRef, bytes::Bytes)>)> {
    let index = PackIndex::load(store.backend(), store.settings(), meta).await?;
    let live: Vec<ChunkRef> = index.chunks().filter(|at| marks.chunk(at)).collect();
    let mut chunks = Vec::with_capacity(live.len());
    let mut rest = live.as_slice();
    while let Some(first) = rest.first() {
        let mut end = first.offset + first.stored;
        let mut count = 1;
        while let Some(next) = rest.get(count) {
            let until = next.offset + next.stored;
            if next.offset - end > GAP || until - first.offset > GROUP {
                break;
            }
            end = until;
            count += 1;
        }
        let (start, len) = (first.offset, u64::from(end - first.offset));
        let path = &meta.location;
        let bytes = objects::get_range(store.backend(), path, start.into(), len).await?;
        let (group, store) = (rest[..count].to_vec(), store.clone());
        let verified = offload(move || {
            group
                .into_iter()
                .map(|at| {
                    let from = (at.offset - start) as usize;
                    let stored = bytes.slice(from..from + at.stored as usize);
                    at.decode(store.settings(), stored.clone())?;
                    Ok((at, stored))
                })
                .collect::<Result<Vec<_>>>()
        });
        chunks.extend(verified.await?);
        rest = &rest[count..];
    }
    Ok((index.id, chunks))
}

/// Writes a new pack, and says of the old packs that are in new ones altogether where they are: of
/// all but the last `unfinished` ones.
async fn finish(
    session: &Session,
    builder: Builder,
    waiting: &mut Vec<Old>,
    unfinished: usize,
    moves: &mut HashMap<PackId, Vec<ChunkRef>>,
) -> Result<()> {
    let store = session.store();
    let Finished { id, bytes, tail } =
        builder.finish(store.settings(), |id| session.absent().pack(id))?;
    pack::put(store.backend(), &id, bytes, tail).await?;
    for old in waiting.iter_mut() {
        old.chunks[old.placed..].iter_mut().for_each(|at| at.pack = id);
        old.placed = old.chunks.len();
    }
    let finished = waiting.len() - unfinished;
    // A collection that was taken for dead may have lost the new packs: nothing leads there.
    session.check().await?;
    for old in waiting.drain(..finished) {
        save(store, &old.pack, &old.chunks).await?;
        moves.entry(old.pack).or_default().extend(old.chunks);
    }
    Ok(())
}

/// Says where chunks of a pack are now, and what was known of others before.
async fn save(store: &Store, pack: &PackId, chunks: &[ChunkRef]) -> Result<()> {
    let before = match rewritten::load(store, pack).await {
        Ok(before) => before,
        Err(e) if e.kind() == ErrorKind::Corrupt => None,
        Err(e) => return Err(e),
    };
    let before = before.iter().flat_map(|before| before.chunks());
    rewritten::save(store, pack, chunks.iter().copied().chain(before)).await
}

/// Lets what leads to packs that are rewritten now lead to the new ones.
async fn redirect(
    store: &Store,
    marks: &Marks,
    moves: &HashMap<PackId, Vec<ChunkRef>>,
) -> Result<()> {
    for (pack, rewritten) in &marks.rewritten {
        let targets: Vec<&PackId> =
            rewritten.targets.iter().filter(|target| moves.contains_key(target)).collect();
        if targets.is_empty() {
            continue;
        }
        let Some(before) = rewritten::load(store, pack).await? else { continue };
        let fresh: HashMap<_, _> =
            targets.iter().flat_map(|target| &moves[target]).map(|at| (at.id, *at)).collect();
        let chunks: Vec<ChunkRef> = before
            .chunks()
            .map(|at| match fresh.get(&at.id) {
                Some(now) if moves.contains_key(&at.pack) => *now,
                _ => at,
            })
            .collect();
        rewritten::save(store, pack, chunks).await?;
    }
    Ok(())
}
