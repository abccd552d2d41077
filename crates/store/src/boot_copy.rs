//! Boot copies: the chunks of a boot list once more, side by side and in the order of the list.
//!
//! Packs hold chunks in image order, and what a boot reads is scattered over an image: a disk with one
//! arm moves it for every few of them. So the chunks of a list that is whole are stored again, in packs
//! of their own, where one long read brings them. A label of the image version's ref names a manifest
//! that shows them one behind the other, which keeps them as it keeps everything else.
//!
//! A copy only helps. The version's own manifest names the chunks' own places, and whoever cannot
//! read a copy reads there.

use crate::boot_list::{self, Located};
use crate::chunker::{MAX_CHUNK, SEGMENT};
use crate::manifest_root;
use crate::{
    BootListId, ChunkId, ChunkRef, Manifest, ManifestId, RefBody, RefKind, Session, Settings,
    Store, import, pack,
};
use block::{Error, ErrorKind, Result};
use objects::GAP;

/// The most plain bytes of a copy, 256 MiB: its map is one segment. Of a longer list it has the
/// beginning.
pub const MOST: u64 = SEGMENT;
/// Fewer movements of an arm are not worth a copy.
const FEWEST: usize = 8;
/// So many times the movements that a copy takes, it has to save.
const GAIN: usize = 4;
/// The level of zstd, unless the store's is higher. A copy is stored once, and read by each machine that boots: a
/// seventh fewer bytes than at level 3 are worth a quarter of a second of a processor for each MiB.
const LEVEL: i32 = 19;
/// How often a version whose ref was changed by somebody else is tried again.
const ATTEMPTS: usize = 8;

impl RefBody {
    /// The label of an image version that names the manifest of its boot copy.
    pub const BOOT_COPY: &str = "boot_copy";

    /// The boot copy of an image version, if it has one.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the label is not an id.
    pub fn boot_copy(&self) -> Result<Option<ManifestId>> {
        self.labels.get(Self::BOOT_COPY).map(|id| id.parse()).transpose()
    }
}

/// Stores the chunks of a list that an image has once more, in the order of the list; `None` where
/// that would save little, since they lie in few places as it is. Nothing refers to the copy yet.
///
/// # Errors
/// Any error from reading the chunks and from an import.
pub async fn write(session: &Session, located: &[Located]) -> Result<Option<ManifestId>> {
    match chosen(located) {
        Some(chunks) => make(session, chunks).await.map(Some),
        None => Ok(None),
    }
}

/// The chunks that a copy of a list has, for a version that shows `manifest`; `None` where it would save
/// little.
///
/// # Errors
/// Any error from the version's manifest.
pub async fn choose(
    store: &Store,
    manifest: &ManifestId,
    list: &[ChunkId],
) -> Result<Option<Vec<ChunkRef>>> {
    Ok(chosen(&locate(store, manifest, list).await?))
}

/// Stores the chunks that [`choose`] gave. Nothing refers to the copy yet.
///
/// # Errors
/// Any error from reading the chunks and from an import.
pub async fn make(session: &Session, chunks: Vec<ChunkRef>) -> Result<ManifestId> {
    import::anew(session, chunks, level(session.store().settings())).await.map(|copy| copy.manifest)
}

/// The boot copy of a list, for a version that shows `manifest`, if it is worth one; `None` also when it
/// cannot be had, of which a warning tells: without it boots are slower, no more.
pub async fn of_list(
    session: &Session,
    manifest: &ManifestId,
    list: &[ChunkId],
) -> Option<ManifestId> {
    let copy = async { write(session, &locate(session.store(), manifest, list).await?).await };
    copy.await.unwrap_or_else(|error| {
        tracing::warn!(error = error.message(), "a boot list gets no boot copy");
        None
    })
}

/// Names a boot copy in the ref of an image version, in place of the one that it had; says whether it
/// did: not when the version was removed, or shows meanwhile another manifest than the `manifest` whose
/// chunks were copied, or has another list than `list`.
///
/// # Errors
/// [`Fenced`](ErrorKind::Fenced) when the session was taken for dead: then the version has what it had;
/// [`Conflict`](ErrorKind::Conflict) when the ref changes all the time; else the backend's.
pub async fn name(
    session: &Session,
    version: &str,
    manifest: &ManifestId,
    list: BootListId,
    copy: ManifestId,
) -> Result<bool> {
    let still =
        |body: &RefBody| Ok(body.manifest == Some(*manifest) && body.boot_list()? == Some(list));
    label(session, version, still, Some(copy)).await
}

/// Takes its boot copy off an image version; says whether it did: not when the version was removed or
/// got another copy meanwhile.
///
/// # Errors
/// [`Fenced`](ErrorKind::Fenced) when the session was taken for dead: then the version has what it had;
/// [`Conflict`](ErrorKind::Conflict) when the ref changes all the time; else the backend's.
pub(crate) async fn unname(session: &Session, version: &str, copy: ManifestId) -> Result<bool> {
    let still = |body: &RefBody| Ok(body.boot_copy()? == Some(copy));
    label(session, version, still, None).await
}

/// Gives an image version this copy, or none, while `still` says that it is for it; says whether it was.
async fn label(
    session: &Session,
    version: &str,
    still: impl Fn(&RefBody) -> Result<bool>,
    copy: Option<ManifestId>,
) -> Result<bool> {
    let refs = session.store().refs();
    for _ in 0..ATTEMPTS {
        let found = refs.look_up(RefKind::Image, version).await?;
        let Some(record) = found.record() else { return Ok(false) };
        let mut body = record.body.clone();
        if !still(&body)? {
            return Ok(false);
        }
        let copy = copy.map(|copy| copy.to_string());
        if body.labels.get(RefBody::BOOT_COPY) == copy.as_ref() {
            return Ok(true);
        }
        match copy {
            Some(copy) => body.labels.insert(RefBody::BOOT_COPY.to_owned(), copy),
            None => body.labels.remove(RefBody::BOOT_COPY),
        };
        session.check().await?;
        match session.publish_over(&found, body).await {
            Err(e) if e.kind() == ErrorKind::Conflict => {}
            other => return other.map(|_| true),
        }
    }
    Err(Error::conflict(format!("the ref of image {version} changes all the time; try again")))
}

/// Where an image has the chunks of a list.
async fn locate(store: &Store, manifest: &ManifestId, list: &[ChunkId]) -> Result<Vec<Located>> {
    boot_list::locate(&*store.manifest(manifest).await?, list).await
}

/// The chunks of a copy of what was located; `None` where it would save little.
fn chosen(located: &[Located]) -> Option<Vec<ChunkRef>> {
    let chunks = beginning(located, MOST);
    is_worth_it(&chunks).then_some(chunks)
}

/// The longest beginning of a list that has at most `most` plain bytes.
fn beginning(located: &[Located], most: u64) -> Vec<ChunkRef> {
    let mut bytes = 0;
    let fits = |at: &ChunkRef| {
        bytes += u64::from(at.len);
        bytes <= most
    };
    located.iter().map(|found| found.at).take_while(fits).collect()
}

/// The chunks of a copy, where it has them, in the order of the list.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when the manifest is too long to be a copy's; any error from its
/// segment.
pub async fn chunks(copy: &Manifest) -> Result<Vec<ChunkRef>> {
    if copy.size() > MOST {
        let key = manifest_root::key(&copy.id());
        return Err(Error::corrupt(format!("object {key} is too long to be a boot copy's")));
    }
    copy.chunks().await
}

/// The level of zstd at which the chunks of copies are compressed.
pub(crate) fn level(settings: &Settings) -> i32 {
    settings.compression_level().max(LEVEL)
}

/// Whether the list of a copy may have more chunks than the copy had room for.
pub fn may_lack(copy: &Manifest) -> bool {
    copy.size() + u64::from(MAX_CHUNK) > MOST
}

/// Whether a disk moves its arm so much less for a copy that this is worth its room.
fn is_worth_it(chunks: &[ChunkRef]) -> bool {
    let stored: u64 = chunks.iter().map(|at| u64::from(at.stored)).sum();
    let packs = stored.div_ceil(pack::FULL as u64) as usize;
    let places = places(chunks);
    places >= FEWEST && places >= GAIN * packs
}

/// To how many places an arm moves for these chunks, when it reads what lies between near ones.
fn places(chunks: &[ChunkRef]) -> usize {
    let mut order: Vec<_> =
        chunks.iter().map(|at| (at.pack, u64::from(at.offset), u64::from(at.stored))).collect();
    order.sort_unstable();
    let apart = |pair: &[(_, u64, u64)]| {
        let ((pack, start, len), (next, begin, _)) = (pair[0], pair[1]);
        pack != next || start + len + GAP < begin
    };
    order.windows(2).filter(|pair| apart(pair)).count() + usize::from(!order.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{gc, testing, verify};
    use block::{Memory, Span};
    use object_store::ObjectStoreExt;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    struct Lab {
        backend: Arc<InMemory>,
        store: Store,
        session: Session,
        image: Arc<Manifest>,
        located: Vec<Located>,
    }

    /// An image of so many MiB that does not compress, of which a list has a chunk of so many, from the
    /// end to the beginning.
    async fn lab(mib: usize, step: usize) -> Lab {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend.clone(), testing::settings(), testing::world(1)).await;
        let (store, bytes) = (store.unwrap(), Memory::from(testing::noise(6, mib << 20)));
        let session = testing::session(&store).await;
        let done = import::from_device(&session, &bytes, &()).await.unwrap();
        let image = store.manifest(&done.manifest).await.unwrap();
        let all = boot_list::of_ranges(&image, &[Span::whole(done.size)]).await.unwrap();
        let ids: Vec<_> = all.into_iter().rev().step_by(step).collect();
        let located = boot_list::locate(&image, &ids).await.unwrap();
        Lab { backend, store, session, image, located }
    }

    #[tokio::test]
    async fn a_copy_has_the_chunks_of_the_list_in_its_order_and_side_by_side() {
        let Lab { store, session, located, .. } = lab(100, 10).await;
        let chunks: Vec<_> = located.iter().map(|found| found.at).collect();
        let copy = write(&session, &located).await.unwrap().unwrap();
        let again = write(&session, &located).await.unwrap();
        assert_eq!(again, Some(copy), "two who make it make the same");
        let manifest = store.manifest(&copy).await.unwrap();
        let found = super::chunks(&manifest).await.unwrap();
        let ids = |list: &[ChunkRef]| list.iter().map(|at| at.id).collect::<Vec<_>>();
        assert_eq!(ids(&found), ids(&chunks));
        let own: Vec<_> = chunks.iter().map(|at| at.pack).collect();
        assert!(found.iter().all(|at| !own.contains(&at.pack)), "they are where they were");
        for pair in found.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            assert!(a.pack != b.pack || a.offset + a.stored == b.offset);
        }
        assert_ne!(found[0].pack, found[found.len() - 1].pack, "too few to tell");
        for at in &found {
            assert_eq!(store.read_copy(at, None).await.unwrap().len(), at.len as usize);
        }
        assert!(!may_lack(&manifest));
    }

    #[tokio::test]
    async fn what_lies_in_few_places_gets_no_copy() {
        let Lab { session, located, .. } = lab(12, 2).await;
        assert_eq!(write(&session, &located).await.unwrap(), None);
        assert_eq!(write(&session, &[]).await.unwrap(), None);
        let chunk = |number: u32| ChunkRef { offset: number << 20, ..located[0].at };
        let apart = |count: u32| (0..count).rev().map(chunk).collect::<Vec<_>>();
        assert_eq!(places(&apart(9)), 9);
        assert!(is_worth_it(&apart(8)) && !is_worth_it(&apart(7)));
        let near = |mut at: ChunkRef| {
            (at.offset, at.stored) = (at.offset / 8, 100_000);
            at
        };
        assert_eq!(places(&apart(9).into_iter().map(near).collect::<Vec<_>>()), 1);
    }

    #[tokio::test]
    async fn a_copy_has_as_much_of_the_list_as_fits() {
        let Lab { located, .. } = lab(2, 1).await;
        let three: u64 = located[..3].iter().map(|found| u64::from(found.at.len)).sum();
        for (most, count) in [(three - 1, 2), (three, 3), (three + 1, 3), (0, 0)] {
            let expected: Vec<_> = located[..count].iter().map(|found| found.at).collect();
            assert_eq!(beginning(&located, most), expected);
        }
        assert_eq!(beginning(&located, MOST).len(), located.len());
    }

    #[tokio::test]
    async fn a_ref_keeps_its_copy_and_damage_in_it_touches_no_part_of_the_image() {
        let Lab { backend, store, session, image, located } = lab(24, 10).await;
        let copy = write(&session, &located).await.unwrap().unwrap();
        let (id, size) = (image.id(), image.size());
        let labels = [(RefBody::BOOT_COPY.to_owned(), copy.to_string())].into();
        let body = RefBody { manifest: Some(id), size, created: 0, labels };
        assert_eq!(body.boot_copy().unwrap(), Some(copy));
        assert_eq!(body.roots().unwrap(), [id, copy]);
        let record = session.publish(crate::RefKind::Image, "debian:1", body).await;
        session.close(record).await.unwrap();
        let marked = crate::stats::collect(&store, &()).await.unwrap();
        assert_eq!(marked.boot_copies.chunks, located.len() as u64);
        assert!(marked.garbage_bytes < 1000, "{} of garbage", marked.garbage_bytes);
        let options =
            gc::GcOptions { grace: std::time::Duration::ZERO, ..gc::GcOptions::default() };
        for _ in 0..2 {
            gc::collect(&store, &options, &()).await.unwrap();
        }
        let manifest = store.manifest(&copy).await.unwrap();
        let at = super::chunks(&manifest).await.unwrap()[3];
        let path = pack::path(&at.pack);
        let mut bytes = backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
        bytes[at.offset as usize] ^= 1;
        backend.put(&path, bytes.into()).await.unwrap();
        let report = verify::store(&store, &verify::VerifyOptions::default(), &()).await.unwrap();
        let [fault] = report.faults.as_slice() else { panic!("{:?}", report.faults) };
        assert_eq!(fault.object, path.to_string());
        let [touched] = fault.touches.as_slice() else { panic!("{:?}", fault.touches) };
        assert!(touched.name == "debian:1" && touched.spans.is_empty(), "{touched:?}");
        let damaged = verify::manifest(&store, &id, &()).await.unwrap().damaged;
        assert!(damaged.is_empty(), "the image is whole: {damaged:?}");
    }

    #[tokio::test]
    async fn a_session_that_is_taken_for_dead_as_it_names_a_copy_gives_the_version_back() {
        const NAME: &str = "debian:1";
        let backend = Arc::new(testing::burying(RefKind::Image, NAME, 2));
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        let bytes = Memory::from(testing::noise(6, 1 << 20));
        let done = import::from_device(&session, &bytes, &()).await.unwrap();
        let list = boot_list::write(&session, &[ChunkId([7; 32])]).await.unwrap();
        let labels = [(boot_list::LABEL.to_owned(), list.to_string())].into();
        let body = RefBody { manifest: Some(done.manifest), size: done.size, created: 0, labels };
        session.publish(RefKind::Image, NAME, body.clone()).await.unwrap();
        session.close(Ok(())).await.unwrap();

        let name = async |session: &Session| {
            super::name(session, NAME, &done.manifest, list, done.manifest).await
        };
        let session = testing::session(&store).await;
        let fenced = name(&session).await.unwrap_err();
        assert_eq!(
            session.close(Err::<(), _>(fenced)).await.unwrap_err().kind(),
            ErrorKind::Fenced
        );
        let found = store.refs().get(RefKind::Image, NAME).await.unwrap().unwrap();
        assert_eq!((found.body, found.sequence), (body, 3));
        let session = testing::session(&store).await;
        assert!(name(&session).await.unwrap());
        session.close(Ok(())).await.unwrap();
        let found = store.refs().get(RefKind::Image, NAME).await.unwrap().unwrap();
        assert_eq!(found.body.boot_copy().unwrap(), Some(done.manifest));
    }

    #[tokio::test]
    async fn a_full_copy_may_lack_something_and_a_longer_manifest_is_none() {
        let backend = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let session = testing::session(&store).await;
        for (size, readable, lacks) in
            [(MOST - (1 << 20), true, false), (MOST, true, true), (MOST + 4096, false, true)]
        {
            let done = import::from_device(&session, &Memory::new(size), &()).await.unwrap();
            let manifest = store.manifest(&done.manifest).await.unwrap();
            let chunks = super::chunks(&manifest).await;
            assert_eq!(
                chunks.map_err(|e| e.kind()).err(),
                (!readable).then_some(ErrorKind::Corrupt)
            );
            assert_eq!(may_lack(&manifest), lacks);
        }
    }
}
