//! Boot lists: the chunks that a boot reads, in the order of their first use.
//!
//! A list names chunks by their ids alone. So it is as good for another image that has the same
//! chunks, such as the same system built anew. An image version's ref names its list by a label; a
//! list that is missing or names chunks that the image has not makes a boot slower, no more.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 4 | salt |
//! | 4 | 4 | n, number of chunks, 1 to 65536 |
//! | 8 | 8 | reserved |
//! | 16 | 32 × n | chunk ids, each once |

use crate::chunker::PAGE;
use crate::object;
use crate::object_kind::ObjectKind;
use crate::segment::Segment;
use crate::wire::damaged;
use crate::{BootListId, ChunkId, ChunkRef, Manifest, RefBody, Session, Store, heal};
use block::{Error, Result, Span};
use futures::stream::{self, StreamExt, TryStreamExt};
use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::Arc;
use zerocopy::byteorder::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The label of an image version that names its boot list.
pub const LABEL: &str = "boot_list";
/// The label that says from how many boots the list was recorded. A list without it is somebody's own.
pub const BOOTS: &str = "boot_list_boots";
/// The most chunks of a list: about 4 GiB.
pub const MAX_CHUNKS: usize = 65536;
/// Segments of an image that are read at the same time.
const SEGMENTS: usize = 4;
/// Segments that are read before it is known what is looked for.
const MAPPED: usize = 16;

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct BootListHead {
    salt: U32,
    chunks: U32,
    reserved: [u8; 8],
}

/// A chunk of a boot list that an image has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Located {
    /// Where it is stored.
    pub at: ChunkRef,
    /// Where the image first shows it, in bytes.
    pub span: Span,
}

impl RefBody {
    /// The boot list of an image version, if it has one.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the label is not an id.
    pub fn boot_list(&self) -> Result<Option<BootListId>> {
        self.labels.get(LABEL).map(|id| id.parse()).transpose()
    }

    /// From how many boots its boot list was recorded: 0 without a list, and `None` when the list is
    /// somebody's own.
    pub fn recorded_boots(&self) -> Option<u32> {
        if !self.labels.contains_key(LABEL) {
            return Some(0);
        }
        self.labels.get(BOOTS)?.parse().ok()
    }
}

/// Stores a list. Chunks beyond [`MAX_CHUNKS`], and those that come again, are left out.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a list without chunks; else the backend's.
pub async fn write(session: &Session, chunks: &[ChunkId]) -> Result<BootListId> {
    let mut seen = HashSet::new();
    let ids = chunks.iter().filter(|id| seen.insert(**id)).take(MAX_CHUNKS);
    let rows: Vec<u8> = ids.flat_map(|id| id.0).collect();
    if rows.is_empty() {
        return Err(Error::invalid("a boot list needs at least one chunk"));
    }
    let (store, settings) = (session.store(), session.store().settings());
    let mut salt = 0u32;
    loop {
        let head = BootListHead {
            salt: salt.into(),
            chunks: ((rows.len() / 32) as u32).into(),
            reserved: [0; 8],
        };
        let body = [head.as_bytes(), &rows].concat();
        let id = BootListId(object::id_of(settings, ObjectKind::BootList, &body));
        // One of that name is about to be deleted.
        if session.absent().boot_list(&id) {
            salt += 1;
            continue;
        }
        object::write_content(store.backend(), settings, ObjectKind::BootList, &body).await?;
        return Ok(id);
    }
}

/// Reads a list.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound), [`Corrupt`](block::ErrorKind::Corrupt); else the
/// backend's.
pub async fn read(store: &Store, id: &BootListId) -> Result<Vec<ChunkId>> {
    let body = heal::content(store, ObjectKind::BootList, &id.0).await?;
    decode(&ObjectKind::BootList.key(id), &body)
}

/// Checks the body of a list.
pub(crate) fn decode(key: &str, body: &[u8]) -> Result<Vec<ChunkId>> {
    let (head, rows) =
        BootListHead::ref_from_prefix(body).map_err(|_| damaged(key, "it is too short"))?;
    let (ids, rest) = rows.as_chunks::<32>();
    let right = ids.len() == head.chunks.get() as usize
        && (1..=MAX_CHUNKS).contains(&ids.len())
        && rest.is_empty()
        && head.reserved == [0; 8];
    if !right {
        return Err(damaged(key, "its lengths do not match its size"));
    }
    let mut seen = HashSet::with_capacity(ids.len());
    if !ids.iter().all(|id| seen.insert(id)) {
        return Err(damaged(key, "it names a chunk twice"));
    }
    Ok(ids.iter().map(|id| ChunkId(*id)).collect())
}

/// The beginning of an image's map in memory, while it is held.
pub struct Map(#[expect(dead_code, reason = "held, and found by manifests")] Vec<Arc<Segment>>);

/// Reads the beginning of an image's map, up to 4 GiB of the image, which [`locate`] is about to need:
/// side by side with the list, as a store may take its time for each.
///
/// # Errors
/// Any error from the image's segments.
pub async fn map(manifest: &Manifest) -> Result<Map> {
    let indices = 0..manifest.segments().min(MAPPED);
    let segments = stream::iter(indices).map(|index| manifest.segment(index)).buffered(SEGMENTS);
    let segments: Vec<_> = segments.try_collect().await?;
    Ok(Map(segments.into_iter().flatten().collect()))
}

/// The chunks of a list that an image has, in the order of the list. Reads the whole map of the
/// image, a few segments at a time, and keeps those that have chunks of the list: a boot needs them.
///
/// # Errors
/// Any error from the image's segments.
pub async fn locate(manifest: &Manifest, list: &[ChunkId]) -> Result<Vec<Located>> {
    let order: HashMap<ChunkId, usize> = list.iter().enumerate().map(|(i, id)| (*id, i)).collect();
    let order = &order;
    let search = |index: usize| async move {
        let origin = index as u64 * crate::chunker::SEGMENT;
        let mut hits = Vec::new();
        let note = |placed: crate::segment::Placed| {
            let place = order.get(&placed.at.id);
            if let Some(place) = place {
                let start = origin + u64::from(placed.start) * PAGE as u64;
                let end = (start + u64::from(placed.blocks) * PAGE as u64).min(manifest.size());
                hits.push((*place, Located { at: placed.at, span: Span::between(start, end) }));
            }
            place.is_some()
        };
        let kept = manifest.visit_to_keep(index, note).await?;
        Ok::<_, Error>((hits, kept))
    };
    let mut searches = pin!(stream::iter(0..manifest.segments()).map(search).buffered(SEGMENTS));
    let mut found: Vec<Option<Located>> = vec![None; list.len()];
    let mut held = Vec::new();
    while let Some((hits, kept)) = searches.try_next().await? {
        held.extend(kept);
        for (place, located) in hits {
            found[place].get_or_insert(located);
        }
    }
    Ok(found.into_iter().flatten().collect())
}

/// The chunks that ranges of an image show, in the order of the ranges, each once; holes have none.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a range beyond the image; any error from its segments.
pub async fn of_ranges(manifest: &Manifest, ranges: &[Span]) -> Result<Vec<ChunkId>> {
    let mut seen = HashSet::new();
    let mut list = Vec::new();
    for span in ranges {
        for piece in manifest.pieces(*span).await? {
            if let crate::Content::Chunk { at, .. } = piece.content
                && seen.insert(at.id)
            {
                list.push(at.id);
                if list.len() == MAX_CHUNKS {
                    return Ok(list);
                }
            }
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{import, testing};
    use block::{ErrorKind, Memory};
    use object_store::memory::InMemory;
    use proptest::prelude::*;

    async fn store() -> Store {
        let backend = Arc::new(InMemory::new());
        Store::create(backend, testing::settings(), testing::world(1)).await.unwrap()
    }

    #[tokio::test]
    async fn a_list_finds_its_chunks_in_another_image_that_has_them() {
        let store = store().await;
        let session = testing::session(&store).await;
        let old = testing::noise(1, 1 << 20);
        let mut new = testing::noise(2, 300 << 10);
        new.resize(512 << 10, 0);
        new.extend_from_slice(&old);
        let import = async |bytes: &[u8]| {
            let device = Memory::from(bytes.to_vec());
            let done = import::from_device(&session, &device, &()).await.unwrap();
            store.manifest(&done.manifest).await.unwrap()
        };
        let (first, second) = (import(&old).await, import(&new).await);
        let ranges = [Span::between(700 << 10, 900 << 10), Span::between(0, 4096)];
        let ids = of_ranges(&first, &ranges).await.unwrap();
        let id = write(&session, &[ids.clone(), ids.clone()].concat()).await.unwrap();
        let read = read(&store, &id).await.unwrap();
        assert_eq!(read, ids, "in order, each once");
        let found = locate(&first, &read).await.unwrap();
        assert_eq!(found.iter().map(|l| l.at.id).collect::<Vec<_>>(), ids);
        assert!(found[0].span.offset() <= 700 << 10 && found[0].span.end() > 700 << 10);
        let found = locate(&second, &read).await.unwrap();
        assert!(found.len() + 4 >= ids.len(), "{} of {}", found.len(), ids.len());
        for located in found {
            let bytes = store.read_chunk(&located.at).await.unwrap();
            assert_eq!(bytes, new[located.span.offset() as usize..][..bytes.len()]);
        }
        let beyond = of_ranges(&first, &[Span::between(0, 2 << 20)]).await.unwrap_err();
        assert_eq!(beyond.kind(), ErrorKind::Invalid);
        assert_eq!(write(&session, &[]).await.unwrap_err().kind(), ErrorKind::Invalid);
    }

    #[tokio::test]
    async fn a_missing_list_is_not_found_by_its_key() {
        let error = read(&store().await, &BootListId([7; 32])).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("bootlists/0707"), "{error}");
    }

    proptest! {
        #[test]
        fn any_body_is_refused_or_is_a_list(
            count in 0u32..4,
            rows in prop::collection::vec(0u8..3, 0..5),
            cut in 0usize..40,
        ) {
            let mut body = Vec::new();
            body.extend_from_slice(&[0; 4]);
            body.extend_from_slice(&count.to_le_bytes());
            body.extend_from_slice(&[0; 8]);
            rows.iter().for_each(|byte| body.extend_from_slice(&[*byte; 32]));
            body.truncate(body.len().saturating_sub(cut.saturating_sub(30)));
            let distinct: HashSet<_> = rows.iter().collect();
            let good = cut <= 30
                && count as usize == rows.len()
                && !rows.is_empty()
                && distinct.len() == rows.len();
            match decode("bootlists/x", &body) {
                Ok(list) => {
                    prop_assert!(good);
                    prop_assert_eq!(list.len(), rows.len());
                }
                Err(e) => {
                    prop_assert!(!good);
                    prop_assert_eq!(e.kind(), ErrorKind::Corrupt);
                }
            }
        }
    }
}
