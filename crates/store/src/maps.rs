//! Maps: the objects that say what an image holds, and what its boots read first. Each is named by the hash
//! of its content, so whoever has one nearby can give it in place of a distant store.

use crate::object;
use crate::object_kind::ObjectKind;
use crate::{BootListId, ManifestId, SegmentId, Settings};
use async_trait::async_trait;
use block::{Error, Result};
use bytes::Bytes;
use object_store::path::Path;
use std::fmt;

/// What an object has beside its body at the most, in bytes.
const FRAME: u64 = 64;

/// A map, by its kind and the hash of its content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MapId {
    /// The root of a manifest.
    Root(ManifestId),
    /// 256 MiB of a manifest.
    Segment(SegmentId),
    /// A boot list.
    BootList(BootListId),
}

impl MapId {
    /// The longest object of any kind, in bytes: that of a root.
    pub const MAX_LEN: u64 = {
        let (root, list) = (ObjectKind::Root.max_body(), ObjectKind::BootList.max_body());
        assert!(root > list && root > ObjectKind::Segment.max_body());
        root + FRAME
    };

    /// The longest object of this kind, in bytes.
    pub const fn max_len(&self) -> u64 {
        self.kind().max_body() + FRAME
    }

    /// The number of its kind, from 1, as files outside of a store have it.
    pub const fn kind_number(&self) -> u32 {
        match self {
            Self::Root(_) => 1,
            Self::Segment(_) => 2,
            Self::BootList(_) => 3,
        }
    }

    /// The map of a kind with this number; `None` for a number that no kind has.
    pub const fn of_kind(number: u32, id: [u8; 32]) -> Option<Self> {
        Some(match number {
            1 => Self::Root(ManifestId(id)),
            2 => Self::Segment(SegmentId(id)),
            3 => Self::BootList(BootListId(id)),
            _ => return None,
        })
    }

    /// The hash.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        match self {
            Self::Root(id) => id.as_bytes(),
            Self::Segment(id) => id.as_bytes(),
            Self::BootList(id) => id.as_bytes(),
        }
    }

    /// The object's key in a store.
    pub fn path(&self) -> Path {
        Path::from(self.kind().key(&blake3::Hash::from_bytes(*self.as_bytes())))
    }

    /// The content of the object of this map, if it is that.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it is anything else,
    /// [`Unsupported`](block::ErrorKind::Unsupported) when it is of a newer format.
    pub fn verify(&self, settings: &Settings, object: Bytes) -> Result<Bytes> {
        let (kind, key) = (self.kind(), self.path());
        let body = object::decode(settings, kind, key.as_ref(), object)?;
        match object::id_of(settings, kind, &body) == *self.as_bytes() {
            true => Ok(body),
            false => Err(Error::corrupt(format!("what was given for {key} is something else"))),
        }
    }

    pub(crate) fn of(kind: ObjectKind, id: &[u8; 32]) -> Option<Self> {
        Some(match kind {
            ObjectKind::Root => Self::Root(ManifestId(*id)),
            ObjectKind::Segment => Self::Segment(SegmentId(*id)),
            ObjectKind::BootList => Self::BootList(BootListId(*id)),
            ObjectKind::Moved | ObjectKind::Condemned | ObjectKind::Pin | ObjectKind::Server => {
                return None;
            }
        })
    }

    pub(crate) const fn kind(&self) -> ObjectKind {
        match self {
            Self::Root(_) => ObjectKind::Root,
            Self::Segment(_) => ObjectKind::Segment,
            Self::BootList(_) => ObjectKind::BootList,
        }
    }
}

impl fmt::Display for MapId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path())
    }
}

/// When maps nearby are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MapTurn {
    /// Before the store: by who is expected to be quicker than that.
    BeforeStore,
    /// The store does not have it, or not whole, cannot be reached, or has been waited for for some seconds: by
    /// whoever has it.
    AfterStore,
}

/// Whoever has maps nearby. Nothing that it gives is trusted.
#[async_trait]
pub trait MapLookup: Send + Sync + fmt::Debug {
    /// The object of a map as a store has it; `None` when nobody nearby gives it.
    async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Store, boot_list, import, testing};
    use block::{ErrorKind, Memory};
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use objects::testing::{FaultRates, Unreliable};
    use objects::{OpenStoreOptions, Patience, layered};
    use parking_lot::Mutex;
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
    use std::time::Duration;
    use tokio::time::Instant;

    /// Gives what it holds, and notes what it was asked.
    #[derive(Debug, Default)]
    struct Nearby {
        objects: Mutex<HashMap<MapId, Bytes>>,
        asked: Mutex<Vec<(MapId, MapTurn)>>,
        /// It answers only when the store has failed.
        last: bool,
        /// It does not answer the first so many times.
        sleeps: AtomicUsize,
    }

    #[async_trait]
    impl MapLookup for Nearby {
        async fn map(&self, id: &MapId, turn: MapTurn) -> Option<Bytes> {
            self.asked.lock().push((*id, turn));
            let is_asked = turn == MapTurn::AfterStore || !self.last;
            let awake = |left: usize| left.checked_sub(1);
            if self.sleeps.fetch_update(Relaxed, Relaxed, awake).is_ok() {
                return None;
            }
            self.objects.lock().get(id).cloned().filter(|_| is_asked)
        }
    }

    struct Lab {
        backend: Arc<InMemory>,
        store: Store,
        maps: Vec<MapId>,
        manifest: ManifestId,
    }

    async fn lab() -> Lab {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend.clone(), testing::settings(), testing::world(1)).await;
        let store = store.unwrap();
        let session = testing::session(&store).await;
        let image = Memory::from(testing::noise(3, 1 << 20));
        let done = import::from_device(&session, &image, &()).await.unwrap();
        let manifest = store.manifest(&done.manifest).await.unwrap();
        let ids: Vec<_> = manifest.chunks().await.unwrap().iter().map(|at| at.id).collect();
        let list = boot_list::write(&session, &ids).await.unwrap();
        let mut maps = manifest.maps();
        assert_eq!(maps.len(), 2);
        maps.push(MapId::BootList(list));
        Lab { backend, store, maps, manifest: done.manifest }
    }

    impl Lab {
        async fn nearby(&self, last: bool) -> Arc<Nearby> {
            let nearby = Nearby { last, ..Nearby::default() };
            for id in &self.maps {
                let object = self.store.map_object(id).await.unwrap();
                let stored = self.backend.get(&id.path()).await.unwrap().bytes().await.unwrap();
                assert_eq!(object, stored, "as the store has it");
                nearby.objects.lock().insert(*id, object);
            }
            Arc::new(nearby)
        }

        /// The store opened anew: nothing of it is in memory.
        async fn fresh(&self, nearby: &Arc<Nearby>) -> Store {
            let store = Store::open(self.backend.clone(), testing::world(2)).await.unwrap();
            store.ask_for_maps(Arc::clone(nearby) as Arc<dyn MapLookup>);
            store
        }

        async fn delete(&self) {
            for id in &self.maps {
                self.backend.delete(&id.path()).await.unwrap();
            }
        }

        async fn read(&self, store: &Store) -> Result<usize> {
            let MapId::BootList(list) = self.maps[2] else { panic!("the last is the list") };
            let manifest = store.manifest(&self.manifest).await?;
            let list = boot_list::read(store, &list).await?;
            assert_eq!(list.len(), manifest.chunks().await?.len());
            Ok(list.len())
        }
    }

    #[tokio::test]
    async fn maps_come_from_nearby_and_the_store_is_not_asked() {
        let lab = lab().await;
        let nearby = lab.nearby(false).await;
        lab.delete().await;
        lab.read(&lab.fresh(&nearby).await).await.unwrap();
        assert!(nearby.asked.lock().iter().all(|(_, turn)| *turn == MapTurn::BeforeStore));
        let kept = lab.fresh(&nearby).await;
        nearby.asked.lock().clear();
        let error = kept.stored_manifest(&lab.manifest).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound, "what is to be there is in a store");
        assert_eq!(*nearby.asked.lock(), [], "nobody nearby is asked for it");
    }

    #[tokio::test]
    async fn what_the_store_lost_comes_from_nearby_and_what_nobody_has_is_an_error() {
        let lab = lab().await;
        let nearby = lab.nearby(true).await;
        lab.delete().await;
        lab.read(&lab.fresh(&nearby).await).await.unwrap();
        nearby.objects.lock().clear();
        let error = lab.read(&lab.fresh(&nearby).await).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
    }

    #[tokio::test(start_paused = true)]
    async fn a_map_that_nearby_gives_late_is_not_waited_for_until_the_store_gives_up() {
        let lab = lab().await;
        let nearby = lab.nearby(false).await;
        let link = Unreliable::new(lab.backend.clone(), 1, FaultRates::default());
        let patience = Patience::lasting(Duration::from_secs(600));
        let options = OpenStoreOptions { patience, ..OpenStoreOptions::default() };
        let bare: Arc<dyn object_store::ObjectStore> = Arc::new(link.clone());
        let opened = layered(bare, "s3://test", &options, |patient| patient);
        let store = Store::open(opened.backend, testing::world(2)).await.unwrap();
        store.ask_for_maps(Arc::clone(&nearby) as Arc<dyn MapLookup>);
        link.set_down(true);
        let (began, honest) = (Instant::now(), nearby.objects.lock().clone());
        for id in &lab.maps {
            // It misses its first turn, lies in the next one, and gives the map in the one after that.
            nearby.sleeps.store(1, Relaxed);
            nearby.objects.lock().insert(*id, Bytes::from_static(b"something else"));
            let (object, ()) = tokio::join!(store.map_object(id), async {
                tokio::time::sleep(Duration::from_secs(3)).await;
                nearby.objects.lock().insert(*id, honest[id].clone());
            });
            assert_eq!(&object.unwrap(), &honest[id]);
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        // One that the store gives meanwhile is the store's.
        nearby.sleeps.store(usize::MAX, Relaxed);
        nearby.asked.lock().clear();
        let slow =
            FaultRates { delayed: 1000, delay: Duration::from_secs(5), ..FaultRates::default() };
        link.set(slow);
        link.set_down(false);
        for id in &lab.maps {
            assert_eq!(&store.map_object(id).await.unwrap(), &honest[id]);
        }
        // Nobody is asked without end while nobody answers.
        link.set_down(true);
        nearby.asked.lock().clear();
        let error = store.map_object(&lab.maps[0]).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let asked = nearby.asked.lock().len();
        assert!((10..40).contains(&asked), "{asked}");
    }

    #[tokio::test]
    async fn no_lie_passes_and_the_store_answers_instead() {
        let lab = lab().await;
        let nearby = lab.nearby(false).await;
        let honest = nearby.objects.lock().clone();
        for (n, id) in lab.maps.iter().enumerate() {
            let other = &honest[&lab.maps[(n + 1) % 3]];
            let flipped: Bytes = honest[id].iter().rev().copied().collect();
            let short = honest[id].slice(..honest[id].len() / 2);
            for lie in [other.clone(), flipped, short, Bytes::new()] {
                nearby.objects.lock().insert(*id, lie.clone());
                assert!(id.verify(lab.store.settings(), lie).is_err());
                lab.read(&lab.fresh(&nearby).await).await.unwrap();
            }
            assert_eq!(MapId::of_kind(id.kind_number(), *id.as_bytes()), Some(*id));
        }
        assert_eq!(MapId::of_kind(0, [1; 32]), None);
        assert_eq!(MapId::of_kind(4, [1; 32]), None);
    }
}
