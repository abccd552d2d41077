//! How much names hold, and how much of it they share.
//!
//! Memory: some 40 bytes for each chunk that is in use.

use crate::gc::census::{self, Named};
use crate::gc::mark::{read_root, read_segment};
use crate::{ManifestId, PackId, Progress, RefKind, Store, chunker, pack};
use block::{Error, Result};
use futures::{StreamExt, stream};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// Segments that are read at the same time.
const CONCURRENCY: usize = 8;

/// Bytes of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Data {
    /// Distinct chunks.
    pub chunks: u64,
    /// Their plain bytes.
    pub bytes: u64,
    /// Their bytes in the store, compressed.
    pub stored_bytes: u64,
}

impl Data {
    fn add(&mut self, chunk: &Chunk) {
        self.chunks += 1;
        self.bytes += u64::from(chunk.len);
        self.stored_bytes += u64::from(chunk.stored);
    }
}

/// What a name holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NameUsage {
    /// Image, disk or snapshot.
    pub kind: RefKind,
    /// Its name.
    pub name: String,
    /// Its size as a guest sees it, in bytes.
    pub size: u64,
    /// What is stored of it.
    pub data: Data,
    /// The part of it that nothing else holds: so much goes with it.
    pub own: Data,
}

/// What a store holds.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct StoreStats {
    /// By kind, then name. A name without content yet is not among them.
    pub holdings: Vec<NameUsage>,
    /// Sizes of all of them together, as guests see them.
    pub logical_bytes: u64,
    /// What they hold together, each chunk once.
    pub data: Data,
    /// Chunks that boot copies have once more.
    pub boot_copies: Data,
    /// Bytes of all packs.
    pub pack_bytes: u64,
    /// Bytes of maps and everything else.
    pub other_bytes: u64,
    /// Bytes in packs that nothing refers to; what is left of them goes with `sojourn gc`.
    pub garbage_bytes: u64,
    /// What could not be read, and is missing in these figures.
    pub damaged: Vec<String>,
}

/// A chunk that is in use, at its place.
struct Chunk {
    len: u32,
    stored: u32,
    /// The last holding that was seen to hold it.
    seen: u32,
    /// The first one; [`SHARED`] when there are more.
    owner: u32,
}

const SHARED: u32 = u32::MAX;

#[derive(Default)]
struct PackTotals {
    packs: HashMap<PackId, u32>,
    chunks: HashMap<(u32, u32), Chunk>,
}

/// Counts everything.
///
/// # Errors
/// Any error from the backend; what is damaged is in the result.
pub async fn collect(store: &Store, progress: &dyn Progress) -> Result<StoreStats> {
    let mut stats = StoreStats::default();
    let census = census::take(store).await?;
    stats.damaged.extend(census.doubts.iter().map(|error| error.message().to_owned()));
    // Disks that were never written to hold what their image does.
    let mut alike: HashMap<ManifestId, Vec<usize>> = HashMap::new();
    let mut copies: BTreeSet<ManifestId> = BTreeSet::new();
    for Named { kind, record, .. } in census.names.into_iter().filter(|named| named.current) {
        match record.body.boot_copy() {
            Ok(copy) => copies.extend(copy),
            Err(error) => {
                stats.damaged.push(format!("{kind} {}: {}", record.name, error.message()))
            }
        }
        let Some(manifest) = record.body.manifest else { continue };
        alike.entry(manifest).or_default().push(stats.holdings.len());
        stats.logical_bytes += record.body.size;
        let (data, own) = (Data::default(), Data::default());
        stats.holdings.push(NameUsage {
            kind,
            name: record.name,
            size: record.body.size,
            data,
            own,
        });
    }
    let mut tally = PackTotals::default();
    let mut manifests: Vec<(ManifestId, Vec<usize>)> = alike.into_iter().collect();
    manifests.sort_by_key(|(_, holdings)| holdings.first().copied());
    for (number, (manifest, holdings)) in manifests.iter().enumerate() {
        let seen = u32::try_from(number + 1).unwrap_or(SHARED);
        let mut data = Data::default();
        if let Err(error) =
            tally.manifest(store, *manifest, seen, holdings.len() > 1, &mut data, progress).await
        {
            stats.damaged.push(damage(error)?);
        }
        holdings.iter().for_each(|at| stats.holdings[*at].data = data);
    }
    for chunk in tally.chunks.values() {
        stats.data.add(chunk);
        if chunk.owner != SHARED
            && let Some((_, holdings)) = manifests.get(chunk.owner as usize - 1)
            && let [only] = holdings.as_slice()
        {
            stats.holdings[*only].own.add(chunk);
        }
    }
    for copy in copies {
        let mut own = Data::default();
        if let Err(error) = tally.manifest(store, copy, SHARED, true, &mut own, progress).await {
            stats.damaged.push(damage(error)?);
        }
    }
    let mut all = Data::default();
    tally.chunks.values().for_each(|chunk| all.add(chunk));
    // What an image has there as well is no copy.
    stats.boot_copies = Data {
        chunks: all.chunks - stats.data.chunks,
        bytes: all.bytes - stats.data.bytes,
        stored_bytes: all.stored_bytes - stats.data.stored_bytes,
    };
    stats.holdings.sort_by(|a, b| (a.kind, &a.name).cmp(&(b.kind, &b.name)));
    for meta in objects::list(store.backend(), "").await? {
        if meta.location.as_ref().starts_with(pack::PREFIX) {
            stats.pack_bytes += meta.size;
        } else {
            stats.other_bytes += meta.size;
        }
    }
    stats.garbage_bytes =
        stats.pack_bytes.saturating_sub(all.stored_bytes + all.chunks * pack::OVERHEAD);
    Ok(stats)
}

/// What is damaged, or the error that says nothing of the data.
fn damage(error: Error) -> Result<String> {
    use block::ErrorKind::{Corrupt, NotFound, Unsupported};
    match error.kind() {
        Corrupt | NotFound | Unsupported => Ok(error.message().to_owned()),
        _ => Err(error),
    }
}

impl PackTotals {
    /// Counts a manifest's chunks.
    async fn manifest(
        &mut self,
        store: &Store,
        id: ManifestId,
        seen: u32,
        shared: bool,
        data: &mut Data,
        progress: &dyn Progress,
    ) -> Result<()> {
        let segments = read_root(store, id).await?;
        let mut reads =
            stream::iter(segments).map(|id| read_segment(store, id)).buffered(CONCURRENCY);
        let mut first = Ok(());
        while let Some(read) = reads.next().await {
            progress.advance(chunker::SEGMENT, 0);
            let segment = match read {
                Ok(segment) => segment,
                Err(error) => {
                    first = first.and(Err(error));
                    continue;
                }
            };
            for placed in segment.all() {
                let at = placed.at;
                let next = self.packs.len() as u32;
                let pack = *self.packs.entry(at.pack).or_insert(next);
                let owner = if shared { SHARED } else { seen };
                let chunk = self.chunks.entry((pack, at.offset)).or_insert(Chunk {
                    len: at.len,
                    stored: at.stored,
                    seen: 0,
                    owner,
                });
                if chunk.seen == seen {
                    continue;
                }
                chunk.seen = seen;
                if chunk.owner != owner {
                    chunk.owner = SHARED;
                }
                data.add(chunk);
            }
        }
        first
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{RefBody, import, testing};
    use block::Memory;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    async fn publish(store: &Store, kind: RefKind, name: &str, bytes: Vec<u8>) {
        let session = testing::session(store).await;
        let done = import::from_device(&session, &Memory::from(bytes), &()).await.unwrap();
        let body = RefBody {
            manifest: Some(done.manifest),
            size: done.size,
            created: 0,
            labels: Default::default(),
        };
        let made = session.publish(kind, name, body).await;
        session.close(made).await.unwrap();
    }

    /// Pieces of noise, each a chunk of four pages and a page of zeroes.
    fn image(seeds: &[u64]) -> Vec<u8> {
        let piece = |seed: &u64| [testing::noise(*seed, 16384), vec![0; 4096]].concat();
        seeds.iter().flat_map(piece).collect()
    }

    #[tokio::test]
    async fn what_is_shared_is_counted_once_and_what_is_not_by_its_owner() {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        publish(&store, RefKind::Image, "a:1", image(&[1, 2, 3])).await;
        publish(&store, RefKind::Image, "a:2", image(&[2, 3, 4, 4])).await;
        publish(&store, RefKind::Disk, "d", image(&[2, 3, 4, 4])).await;
        publish(&store, RefKind::Snapshot, "d@s", image(&[7])).await;
        let stats = collect(&store, &()).await.unwrap();
        let chunks =
            |count: u64| Data { chunks: count, bytes: count * 16384, stored_bytes: count * 16384 };
        let found: Vec<_> =
            stats.holdings.iter().map(|h| (h.name.as_str(), h.data, h.own)).collect();
        assert_eq!(
            found,
            [
                ("a:1", chunks(3), chunks(1)),
                ("a:2", chunks(3), chunks(0)),
                ("d", chunks(3), chunks(0)),
                ("d@s", chunks(1), chunks(1)),
            ]
        );
        assert_eq!(stats.data, chunks(5));
        assert_eq!(stats.logical_bytes, (3 + 4 + 4 + 1) * 20480);
        assert!(stats.pack_bytes > 5 * 16384 && stats.other_bytes > 0);
        assert!(stats.garbage_bytes < 300, "heads and trailers: {}", stats.garbage_bytes);
        let found = store.refs().get(RefKind::Image, "a:1").await.unwrap().unwrap();
        store.refs().remove(RefKind::Image, "a:1", found.sequence).await.unwrap();
        let stats = collect(&store, &()).await.unwrap();
        assert_eq!(stats.data, chunks(4));
        assert!(stats.garbage_bytes >= 16384);
        assert!(stats.damaged.is_empty());
    }
}
