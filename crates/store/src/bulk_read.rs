//! Reading many chunks at a time: all of an image, or what is stored of a list; pack by pack in long reads,
//! verified on all cores.

use crate::chunker::{PAGE, SEGMENT};
use crate::verify::{Group, groups};
use crate::{ChunkRef, Encoding, Manifest, Progress, Store, chunk, pack};
use block::{Result, Span, offload};
use bytes::Bytes;
use futures::{StreamExt, stream};
use std::collections::HashMap;

/// Groups of chunks in work at the same time, each of about 1 MiB in its pack.
const CONCURRENCY: usize = 4;

/// Calls `each` with every part of an image that is not a hole, and its bytes. The parts come in
/// about the order of the image; together they are all of it, each byte once. `progress` hears of
/// the whole image, holes included.
///
/// # Errors
/// Any error from `each`; that of a chunk that cannot be had, with its offset in the image.
pub async fn image(
    store: &Store,
    manifest: &Manifest,
    progress: &dyn Progress,
    mut each: impl AsyncFnMut(Span, Bytes) -> Result<()>,
) -> Result<()> {
    for index in 0..manifest.segments() {
        let origin = index as u64 * SEGMENT;
        let whole = Span::between(origin, (origin + SEGMENT).min(manifest.size()));
        // A chunk may be shown at several places.
        let mut places: HashMap<ChunkRef, Vec<(Span, usize)>> = HashMap::new();
        manifest
            .visit(index, |placed| {
                let start = origin + u64::from(placed.start) * PAGE as u64;
                let end = (start + u64::from(placed.blocks) * PAGE as u64).min(whole.end());
                let skip = placed.skip as usize * PAGE;
                places.entry(placed.at).or_default().push((Span::between(start, end), skip));
            })
            .await?;
        let mut reads = stream::iter(groups(places.keys().copied().collect()))
            .map(|group| group_of(store, group))
            .buffered(CONCURRENCY);
        let mut done = 0;
        while let Some(group) = reads.next().await {
            for (at, found) in group? {
                let shown = places.get(&at).map(Vec::as_slice).unwrap_or_default();
                let chunk = match found {
                    Ok(chunk) => store.count(&at, Ok(chunk))?,
                    // Where it is elsewhere, it is found.
                    Err(_) => store.read_chunk(&at).await.map_err(|e| {
                        let offset = shown.first().map_or(origin, |(span, _)| span.offset());
                        e.context(format_args!("reading at offset {offset}"))
                    })?,
                };
                for (span, skip) in shown {
                    each(*span, chunk.slice(*skip..*skip + span.len() as usize)).await?;
                    done += span.len();
                    progress.advance(span.len(), 0);
                }
            }
        }
        progress.advance(whole.len() - done, 0);
    }
    Ok(())
}

/// What is stored of chunks, as the store has it, each verified: in no order. One whose bytes are not in
/// their place is found where it is, and encoded anew.
///
/// # Errors
/// That of the first chunk that cannot be had.
pub async fn stored(
    store: &Store,
    chunks: Vec<ChunkRef>,
) -> Result<Vec<(ChunkRef, Encoding, Bytes)>> {
    let mut all = Vec::with_capacity(chunks.len());
    let mut reads = stream::iter(groups(chunks))
        .map(|group| stored_group(store, group))
        .buffer_unordered(CONCURRENCY);
    while let Some(group) = reads.next().await {
        for (at, found) in group? {
            let (encoding, bytes) = match found {
                Some(bytes) => (at.encoding, bytes),
                None => {
                    let plain = store.read_chunk(&at).await?;
                    chunk::encode(store.settings(), &at.id, plain)?
                }
            };
            all.push((at, encoding, bytes));
        }
    }
    Ok(all)
}

/// The stored bytes of chunks that lie together: of those that are sound.
async fn stored_group(store: &Store, group: Group) -> Result<Vec<(ChunkRef, Option<Bytes>)>> {
    let Group { chunks, start, end } = group;
    let Some(pack) = chunks.first().map(|at| at.pack) else { return Ok(Vec::new()) };
    let (path, len) = (pack::path(&pack), u64::from(end - start));
    let Ok(bytes) = objects::get_range(store.backend(), &path, start.into(), len).await else {
        return Ok(chunks.into_iter().map(|at| (at, None)).collect());
    };
    let store = store.clone();
    offload(move || {
        let part = |at: ChunkRef| {
            let from = (at.offset - start) as usize;
            let stored = bytes.slice(from..from + at.stored as usize);
            (at, at.check(store.settings(), &stored).is_ok().then_some(stored))
        };
        Ok(chunks.into_iter().map(part).collect())
    })
    .await
}

/// Reads chunks that lie together. Those that are not there as they should be have an error each.
async fn group_of(store: &Store, group: Group) -> Result<Vec<(ChunkRef, Result<Bytes>)>> {
    let Group { chunks, start, end } = group;
    let Some(pack) = chunks.first().map(|at| at.pack) else { return Ok(Vec::new()) };
    let path = pack::path(&pack);
    let len = u64::from(end - start);
    let bytes = match objects::get_range(store.backend(), &path, start.into(), len).await {
        Ok(bytes) => bytes,
        Err(_) => {
            // Each by itself: some may be there.
            let mut outcomes = Vec::with_capacity(chunks.len());
            for at in chunks {
                let outcome = store.read_at(&at).await;
                outcomes.push((at, outcome));
            }
            return Ok(outcomes);
        }
    };
    let store = store.clone();
    offload(move || {
        let decode = |at: ChunkRef| {
            let from = (at.offset - start) as usize;
            let stored = bytes.slice(from..from + at.stored as usize);
            (at, at.decode(store.settings(), stored))
        };
        Ok(chunks.into_iter().map(decode).collect())
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{import, testing};
    use block::{ErrorKind, Memory};
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    struct Sum(AtomicU64);

    impl Progress for Sum {
        fn advance(&self, scanned: u64, _: u64) {
            self.0.fetch_add(scanned, Ordering::Relaxed);
        }
    }

    /// Noise, a hole, the noise again, and an end inside a block.
    fn content() -> Vec<u8> {
        let noise = testing::noise(5, 700 << 10);
        let mut bytes = noise.clone();
        bytes.resize(2 << 20, 0);
        bytes.extend_from_slice(&noise);
        bytes.extend((0..4096 + 512).map(|i| i as u8 | 1));
        bytes
    }

    #[tokio::test]
    async fn every_byte_comes_once_and_damage_names_its_offset() {
        let backend = Arc::new(InMemory::new());
        let shared = Arc::clone(&backend) as Arc<dyn ObjectStore>;
        let store = Store::create(shared, testing::settings(), testing::world(1)).await.unwrap();
        let bytes = content();
        let session = testing::session(&store).await;
        let done = import::from_device(&session, &Memory::from(bytes.clone()), &()).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        let (sum, mut found) = (Sum(AtomicU64::new(0)), vec![0; bytes.len()]);
        let mut written = 0;
        let put = async |span: Span, data: Bytes| {
            assert_eq!(data.len() as u64, span.len());
            found[span.offset() as usize..span.end() as usize].copy_from_slice(&data);
            written += span.len();
            Ok(())
        };
        image(&store, &manifest, &sum, put).await.unwrap();
        assert!(found == bytes);
        assert_eq!(sum.0.into_inner(), bytes.len() as u64);
        assert_eq!(written, 2 * (700 << 10) + 4096 + 512, "holes are not given");

        let at = manifest.chunks().await.unwrap()[0];
        let path = pack::path(&at.pack);
        let mut pack = backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        pack[at.offset as usize + 5] ^= 1;
        backend.put(&path, pack.into()).await.unwrap();
        let error = image(&store, &manifest, &(), async |_, _| Ok(())).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.message().starts_with("reading at offset 0: "), "{error}");
    }
}
