//! Chunks of one pack that lie near each other, read in one request: a disk moves its arm once for
//! all of them, and a bucket counts one request.

use crate::{ChunkRef, PackId, Store, pack};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// A read that failed sooner than this, because the store could not be reached, was not tried again and
/// again as one of a single chunk is: perhaps one bad place is to blame, that of another chunk.
const TRIED: Duration = Duration::from_secs(1);

/// What came of a read, and the time that it took.
type Read = (Result<Vec<Bytes>>, Duration);

/// Some chunks that are read together, for all who want one of them.
///
/// Nothing is asked of the store before somebody waits for a chunk of it. Whoever waits drives the
/// read; it ends when all of them go away.
pub struct CoalescedRead {
    pack: PackId,
    /// Offset and length of each chunk in the pack, in order.
    places: Vec<(u32, u32)>,
    read: Shared<BoxFuture<'static, Arc<Read>>>,
}

impl Store {
    /// The `chunks` that lie in the same pack as the first, to be read together. How much that
    /// is, and how far apart they lie, is up to the caller.
    pub fn stretch(&self, chunks: &[ChunkRef]) -> CoalescedRead {
        let pack = chunks.first().map_or(PackId([0; 32]), |at| at.pack);
        let inside = chunks.iter().filter(|at| at.pack == pack);
        let mut places: Vec<_> = inside.map(|at| (at.offset, at.stored)).collect();
        places.sort_unstable();
        places.dedup();
        let range =
            |(offset, len): &(u32, u32)| u64::from(*offset)..u64::from(*offset) + u64::from(*len);
        let ranges: Vec<_> = places.iter().map(range).collect();
        let (backend, path) = (self.shared_backend(), pack::path(&pack));
        let read = async move {
            let began = Instant::now();
            let parts = objects::get_ranges(&*backend, &path, &ranges).await;
            Arc::new((parts, began.elapsed()))
        };
        CoalescedRead { pack, places, read: read.boxed().shared() }
    }
}

impl CoalescedRead {
    /// What the pack holds for a chunk; `None` when the chunk has to be read alone.
    pub(crate) async fn part(&self, at: &ChunkRef) -> Option<Result<Bytes>> {
        let place = (at.pack == self.pack).then_some((at.offset, at.stored))?;
        let index = self.places.binary_search(&place).ok()?;
        let read = self.read.clone().await;
        match &read.0 {
            Ok(parts) => {
                parts.get(index).filter(|part| part.len() == at.stored as usize).cloned().map(Ok)
            }
            // It was tried for as long as anything is.
            Err(e) if e.kind() == ErrorKind::Unavailable && read.1 >= TRIED => {
                Some(Err(Error::unavailable(e.message())))
            }
            // One that reaches beyond the pack takes nobody with it, and moved ones are found alone.
            Err(_) => None,
        }
    }
}

impl fmt::Debug for CoalescedRead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Stretch({} chunks of packs/{})", self.places.len(), self.pack)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use crate::{import, rewritten};
    use block::Memory;
    use futures::future::join_all;
    use object_store::memory::InMemory;
    use object_store::{ObjectStore, ObjectStoreExt};
    use objects::testing::{FaultRates, Unreliable};
    use objects::{OpenStoreOptions, layered};

    struct Lab {
        objects: Arc<InMemory>,
        counted: Unreliable,
        store: Store,
        chunks: Vec<ChunkRef>,
    }

    /// A store behind a network, with an image in one pack.
    async fn lab() -> Lab {
        let objects = Arc::new(InMemory::new());
        let made = Store::create(objects.clone(), testing::settings(), testing::world(1)).await;
        let image = Memory::from(testing::noise(9, 1 << 20));
        let session = testing::session(&made.unwrap()).await;
        let done = import::from_device(&session, &image, &()).await.unwrap();
        let counted = Unreliable::new(objects.clone(), 1, FaultRates::default());
        let bare: Arc<dyn ObjectStore> = Arc::new(counted.clone());
        let opened = layered(bare, "s3://test", &OpenStoreOptions::default(), |patient| patient);
        let store = Store::open(opened.backend, testing::world(2)).await.unwrap();
        let chunks = store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap();
        assert!(chunks.len() > 4 && chunks.iter().all(|at| at.pack == chunks[0].pack));
        Lab { objects, counted, store, chunks }
    }

    impl Lab {
        /// All of `chunks` out of one stretch: how each went, and the calls of the backend.
        async fn read(&self, chunks: &[ChunkRef]) -> (Vec<Result<Bytes>>, u64) {
            let (stretch, before) = (self.store.stretch(chunks), self.counted.calls());
            let reads = chunks.iter().map(|at| self.store.read_chunk_of(at, &stretch));
            let read = join_all(reads).await;
            (read, self.counted.calls() - before)
        }

        fn is(&self, at: &ChunkRef, plain: &Bytes) -> bool {
            crate::chunk::id_of(self.store.settings(), plain) == at.id
        }
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_of_a_stretch_come_in_one_request_and_keep_only_themselves() {
        let lab = lab().await;
        let every_second: Vec<_> = lab.chunks.iter().copied().step_by(2).collect();
        let (read, calls) = lab.read(&every_second).await;
        assert_eq!(calls, 1);
        for (at, plain) in every_second.iter().zip(read) {
            let plain = plain.unwrap();
            assert!(lab.is(at, &plain) && plain.is_unique());
        }
        let counters = lab.store.counters();
        assert_eq!(counters.chunk_reads, every_second.len() as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_read_before_somebody_waits_and_a_reader_that_leaves_takes_nobody_along() {
        let lab = lab().await;
        let before = lab.counted.calls();
        let stretch = lab.store.stretch(&lab.chunks);
        assert_eq!(lab.counted.calls(), before);
        tokio::select! {
            biased;
            _ = lab.store.read_chunk_of(&lab.chunks[0], &stretch) => panic!("it waits for others"),
            () = std::future::ready(()) => {}
        }
        let plain = lab.store.read_chunk_of(&lab.chunks[1], &stretch).await.unwrap();
        assert!(lab.is(&lab.chunks[1], &plain));
        assert_eq!(lab.counted.calls(), before + 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_damaged_chunk_and_one_that_reaches_beyond_the_pack_fail_alone() {
        let lab = lab().await;
        let path = pack::path(&lab.chunks[0].pack);
        let mut bytes = lab.objects.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[lab.chunks[1].offset as usize] ^= 1;
        lab.objects.put(&path, bytes.into()).await.unwrap();
        let (read, _) = lab.read(&lab.chunks).await;
        for (index, plain) in read.into_iter().enumerate() {
            match index {
                1 => assert_eq!(plain.unwrap_err().kind(), ErrorKind::Corrupt),
                _ => assert!(lab.is(&lab.chunks[index], &plain.unwrap())),
            }
        }
        let mut wild = lab.chunks[2];
        wild.offset = u32::MAX;
        let (read, _) = lab.read(&[lab.chunks[0], wild, lab.chunks[3]]).await;
        assert!(lab.is(&lab.chunks[0], read[0].as_ref().unwrap()));
        assert_eq!(read[1].as_ref().unwrap_err().kind(), ErrorKind::Corrupt);
        assert!(lab.is(&lab.chunks[3], read[2].as_ref().unwrap()));
    }

    #[tokio::test(start_paused = true)]
    async fn chunks_of_a_pack_that_was_rewritten_are_found_where_they_are_now() {
        let lab = lab().await;
        let old = lab.chunks[0].pack;
        let mut builder = pack::Builder::new();
        for at in lab.chunks.iter().rev() {
            let range = u64::from(at.offset)..u64::from(at.offset + at.stored);
            let stored = lab.objects.get_range(&pack::path(&old), range).await.unwrap();
            builder.add(at.id, at.len, at.encoding, &stored);
        }
        let done = builder.finish(lab.store.settings(), |_| false).unwrap();
        let key = pack::path(&done.id);
        lab.objects.put(&key, done.bytes.clone().into()).await.unwrap();
        let meta = lab.objects.head(&key).await.unwrap();
        let index =
            pack::PackIndex::load(&*lab.objects, lab.store.settings(), &meta).await.unwrap();
        rewritten::save(&lab.store, &old, index.chunks()).await.unwrap();
        lab.objects.delete(&pack::path(&old)).await.unwrap();
        for _ in 0..2 {
            let (read, _) = lab.read(&lab.chunks).await;
            for (at, plain) in lab.chunks.iter().zip(read) {
                assert!(lab.is(at, &plain.unwrap()));
            }
        }
        assert_eq!(lab.store.counters().chunks_moved, 2 * lab.chunks.len() as u64);
    }

    #[tokio::test(start_paused = true)]
    async fn when_the_store_cannot_be_reached_nobody_tries_for_longer_than_alone() {
        let lab = lab().await;
        lab.counted.set_down(true);
        let began = tokio::time::Instant::now();
        let alone = lab.store.read_chunk(&lab.chunks[0]).await.unwrap_err();
        let took = began.elapsed();
        let (read, _) = lab.read(&lab.chunks).await;
        assert!(began.elapsed() < 2 * took + took / 2, "{:?} of {took:?}", began.elapsed());
        for plain in read {
            assert_eq!(plain.unwrap_err().kind(), alone.kind());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn when_a_store_without_patience_fails_once_chunks_are_read_alone() {
        let lab = lab().await;
        let mut mixed = 0;
        for seed in 0..20 {
            let faults = FaultRates { failed_before: 500, ..FaultRates::default() };
            let bare: Arc<dyn ObjectStore> =
                Arc::new(Unreliable::new(lab.objects.clone(), seed, faults));
            let Ok(store) = Store::open(bare, testing::world(seed)).await else { continue };
            let stretch = store.stretch(&lab.chunks);
            let reads = lab.chunks.iter().map(|at| store.read_chunk_of(at, &stretch));
            let good = join_all(reads).await.iter().filter(|read| read.is_ok()).count();
            mixed += usize::from(0 < good && good < lab.chunks.len());
        }
        assert!(mixed > 0, "one failure takes all with it");
    }

    #[tokio::test(start_paused = true)]
    async fn a_chunk_of_another_pack_is_read_alone() {
        let lab = lab().await;
        let stretch = lab.store.stretch(&lab.chunks[..2]);
        let plain = lab.store.read_chunk_of(&lab.chunks[3], &stretch).await.unwrap();
        assert!(lab.is(&lab.chunks[3], &plain));
        let none = lab.store.stretch(&[]);
        assert!(lab.store.read_chunk_of(&lab.chunks[0], &none).await.is_ok());
    }
}
