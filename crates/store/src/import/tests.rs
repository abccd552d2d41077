use super::*;
use crate::chunker::{PAGE, SEGMENT};
use crate::testing::{self, noise};
use crate::{Content, Grain, Manifest, Store, UploadPlan, verify};
use async_trait::async_trait;
use block::conformance::Sequence;
use block::{
    Durability, ErrorKind, Extent, ExtentKind, Fault, Memory, Operation, ScriptedDevice, Span,
    ZeroMode, extent,
};
use object_store::memory::InMemory;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt};
use objects::testing::Failing;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device of pages that are mostly not there. Not a double, but a model: what is imported is compared
/// with its pages, and it is far larger than memory.
#[derive(Debug, Clone, PartialEq)]
struct Sparse {
    size: u64,
    pages: BTreeMap<u64, Vec<u8>>,
}

impl Sparse {
    fn new(size: u64) -> Self {
        Self { size, pages: BTreeMap::new() }
    }

    fn from_bytes(bytes: &[u8]) -> Self {
        let mut device = Self::new(bytes.len() as u64);
        device.put(0, bytes);
        device
    }

    fn put(&mut self, page: u64, bytes: &[u8]) {
        for (i, bytes) in bytes.chunks(PAGE).enumerate() {
            let mut whole = bytes.to_vec();
            whole.resize(PAGE, 0);
            self.pages.insert(page + i as u64, whole);
        }
    }
}

#[async_trait]
impl Device for Sparse {
    fn size(&self) -> u64 {
        self.size
    }
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        for piece in span.pieces(BLOCK) {
            let page = piece.offset() / BLOCK;
            let place = piece.index_in(span);
            match self.pages.get(&page) {
                Some(bytes) => {
                    let from = piece.relative_to(page * BLOCK).index_in(Span::whole(BLOCK));
                    buf[place].copy_from_slice(&bytes[from]);
                }
                None => buf[place].fill(0),
            }
        }
        Ok(())
    }
    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(Error::denied("read-only"))
    }
    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut at = span.offset();
        while at < span.end() && list.len() < limit {
            let page = at / BLOCK;
            let (kind, end) = match self.pages.range(page..).next() {
                Some((found, _)) if *found == page => (ExtentKind::Data, (page + 1) * BLOCK),
                Some((found, _)) => (ExtentKind::Hole, found * BLOCK),
                None => (ExtentKind::Hole, self.size),
            };
            let end = end.min(span.end());
            extent::push(&mut list, Span::between(at, end), kind);
            at = end;
        }
        Ok(list)
    }
}

async fn fresh() -> (Store, Arc<InMemory>) {
    let backend = Arc::new(InMemory::new());
    let store =
        Store::create(backend.clone(), testing::settings(), testing::world(1)).await.unwrap();
    (store, backend)
}

/// An image of about `pages` pages with noise, text, zeroes and repetitions.
fn image(seed: u64, pages: u64) -> Vec<u8> {
    let mut random = Sequence::new(seed);
    let mut bytes: Vec<u8> = Vec::new();
    while bytes.len() < pages as usize * PAGE {
        let run = (1 + random.below(40)) as usize * PAGE;
        match random.below(5) {
            0 => bytes.resize(bytes.len() + (1 + random.below(8)) as usize * PAGE, 0),
            1 => {
                let text: Vec<u8> = (0..run).map(|i| (i % 251) as u8 ^ (run as u8)).collect();
                bytes.extend(text);
            }
            2 if bytes.len() > run => {
                let from = random.below((bytes.len() - run) as u64 / BLOCK + 1) as usize * PAGE;
                bytes.extend_from_within(from..from + run);
            }
            _ => bytes.extend(noise(random.number(), run)),
        }
    }
    bytes
}

async fn read_span(store: &Store, manifest: &Manifest, span: Span) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut at = span.offset();
    for piece in manifest.pieces(span).await.unwrap() {
        assert_eq!(piece.span.offset(), at);
        at = piece.span.end();
        let len = piece.span.len() as usize;
        match piece.content {
            Content::Hole => bytes.resize(bytes.len() + len, 0),
            Content::Chunk { at, skip } => {
                let chunk = store.read_chunk(&at).await.unwrap();
                bytes.extend_from_slice(&chunk[skip as usize..skip as usize + len]);
            }
        }
    }
    assert_eq!(at, span.end());
    bytes
}

async fn read_all(store: &Store, id: &ManifestId) -> Vec<u8> {
    let manifest = store.manifest(id).await.unwrap();
    read_span(store, &manifest, Span::whole(manifest.size())).await
}

async fn objects(backend: &InMemory) -> Vec<(String, u64)> {
    let mut list: Vec<_> = objects::list(backend, "")
        .await
        .unwrap()
        .into_iter()
        .map(|meta| (meta.location.to_string(), meta.size))
        .collect();
    list.sort();
    list
}

#[tokio::test]
async fn an_image_reads_back_and_a_second_import_stores_nothing() {
    let (store, backend) = fresh().await;
    let mut bytes = image(1, 3000);
    bytes.truncate(bytes.len() - 512 * 3);
    let size = bytes.len() as u64;
    let first = import_bytes(&store, &bytes).await;
    assert_eq!(first.size, size);
    assert!(first.stats.new_chunks > 0 && first.stats.zero > 0 && first.stats.reused_chunks > 0);
    assert_eq!(read_all(&store, &first.manifest).await, bytes);
    let before = content(&backend).await;
    let second = import_bytes(&store, &bytes).await;
    assert_eq!(second.manifest, first.manifest);
    assert_eq!((second.stats.new_chunks, second.stats.packs), (0, 0));
    assert_eq!(content(&backend).await, before);
    let counters = store.counters();
    assert!(counters.chunk_reads > 0 && counters.stored_bytes_read < counters.plain_bytes_read);
}

/// All objects but the pins of sessions.
async fn content(backend: &Arc<InMemory>) -> Vec<(String, u64)> {
    let mut found = objects(backend).await;
    found.retain(|(key, _)| !key.starts_with("pins/"));
    found
}

async fn import_bytes(store: &Store, bytes: &[u8]) -> Imported {
    from_device(&testing::session(store).await, &Memory::from(bytes.to_vec()), &()).await.unwrap()
}

#[tokio::test]
async fn an_upload_compresses_at_its_own_level_where_that_is_higher_than_the_stores() {
    let mut words = Sequence::new(3);
    let text: Vec<u8> = (0..1 << 18)
        .flat_map(|_| [b"disk", b"page", b"boot", b"lock"][words.below(4) as usize].to_owned())
        .collect();
    let stored = async |level: i32| {
        let (store, _) = fresh().await;
        let plan = UploadPlan { level, ..UploadPlan::default() };
        let session = testing::session(&store).await.uploading(plan);
        let done = from_device(&session, &Memory::from(text.clone()), &()).await.unwrap();
        assert_eq!(read_all(&store, &done.manifest).await, text);
        done.stats.stored_bytes
    };
    let (usual, higher) = (stored(0).await, stored(12).await);
    assert_eq!(stored(1).await, usual, "the store's counts");
    assert!(higher < usual, "{higher} is not less than {usual}");
}

#[tokio::test]
async fn pieces_cover_any_span_and_the_fast_path_agrees() {
    let (store, _) = fresh().await;
    let bytes = image(2, 300);
    let done = import_bytes(&store, &bytes).await;
    let manifest = store.manifest(&done.manifest).await.unwrap();
    let mut pieces = Vec::new();
    let mut collect = |piece| {
        pieces.push(piece);
        Ok(std::ops::ControlFlow::Continue(()))
    };
    let whole = Span::whole(done.size);
    assert_eq!(manifest.try_pieces(whole, &mut collect).unwrap(), block::Attempt::WouldWait);
    let all = manifest.pieces(whole).await.unwrap();
    assert_eq!(manifest.try_pieces(whole, &mut collect).unwrap(), block::Attempt::Done);
    assert_eq!(pieces, all);
    let mut random = Sequence::new(3);
    for _ in 0..200 {
        let span = random.span(done.size);
        assert_eq!(read_span(&store, &manifest, span).await, bytes[span.index_in(whole)]);
    }
    let beyond = Span::between(0, done.size + 1);
    assert_eq!(manifest.pieces(beyond).await.unwrap_err().kind(), ErrorKind::Invalid);
    let chunks = manifest.chunks().await.unwrap();
    assert_eq!(chunks.len() as u64, done.stats.new_chunks);
}

#[tokio::test]
async fn a_stream_gives_the_manifest_of_the_device() {
    let (store, _) = fresh().await;
    let bytes = image(3, 700);
    let device = import_bytes(&store, &bytes).await;
    let stream = from_stream(&testing::session(&store).await, bytes.as_slice(), &()).await.unwrap();
    assert_eq!((stream.manifest, stream.size), (device.manifest, device.size));
    for (bytes, remedy) in [(&bytes[..0], "empty"), (&bytes[..1000], "truncate -s %512")] {
        let error = from_stream(&testing::session(&store).await, bytes, &()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(remedy), "{error}");
    }
}

#[tokio::test]
async fn sizes_that_no_disk_has_are_refused() {
    let (store, _) = fresh().await;
    for size in [0, 1, 511, 513, (256 << 40) + 512] {
        let error = from_device(&testing::session(&store).await, &Sparse::new(size), &())
            .await
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{size}");
    }
}

#[tokio::test]
async fn holes_are_never_read_and_change_nothing() {
    let (store, _) = fresh().await;
    let bytes = image(4, 400);
    let dense = import_bytes(&store, &bytes).await;
    let mut sparse = Sparse::from_bytes(&bytes);
    sparse.pages.retain(|_, page| page.iter().any(|b| *b != 0));
    let only_data = {
        let pages = sparse.pages.clone();
        move |operation| match operation {
            Operation::Read(span)
                if span.pieces(BLOCK).any(|p| !pages.contains_key(&(p.offset() / BLOCK))) =>
            {
                Fault::Fail(ErrorKind::Internal)
            }
            _ => Fault::None,
        }
    };
    let found =
        from_device(&testing::session(&store).await, &ScriptedDevice::new(sparse, only_data), &())
            .await
            .unwrap();
    assert_eq!(found.manifest, dense.manifest);
    assert_eq!(found.stats.zero, dense.stats.zero);
}

#[tokio::test]
async fn segments_of_a_large_image_are_apart_and_empty_ones_are_not_stored() {
    let (store, backend) = fresh().await;
    let edge = SEGMENT / BLOCK;
    let mut large = Sparse::new(5 * SEGMENT + 1536);
    large.put(edge - 20, &image(5, 40)[..40 * PAGE]);
    large.put(4 * edge - 3, &noise(1, 6 * PAGE));
    large.put(5 * edge, &noise(2, 1536));
    let done = from_device(&testing::session(&store).await, &large, &()).await.unwrap();
    let manifest = store.manifest(&done.manifest).await.unwrap();
    for page in [edge - 20, 4 * edge - 3, 5 * edge] {
        let span = Span::between(page * BLOCK, ((page + 40) * BLOCK).min(large.size));
        let mut expected = vec![0; span.len() as usize];
        large.read(span, &mut expected).await.unwrap();
        assert_eq!(read_span(&store, &manifest, span).await, expected);
    }
    let segments = objects(&backend).await.iter().filter(|o| o.0.starts_with("segments/")).count();
    assert_eq!(segments, 5, "0, 1, 3, 4 and 5");
}

#[tokio::test]
async fn a_read_error_names_the_offset() {
    let (store, _) = fresh().await;
    let plan = |operation| match operation {
        Operation::Read(span) if span.end() > 2 << 20 => Fault::Fail(ErrorKind::Unavailable),
        _ => Fault::None,
    };
    let source = ScriptedDevice::new(Memory::from(noise(1, 4 << 20)), plan);
    let error = from_device(&testing::session(&store).await, &source, &()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.message().contains("reading the source at offset "), "{error}");
}

#[tokio::test]
async fn an_interrupted_import_goes_on_where_it_ended() {
    let inner = Arc::new(InMemory::new());
    let failing = Arc::new(Failing::new(inner.clone(), 1));
    let store =
        Store::create(failing.clone(), testing::settings(), testing::world(1)).await.unwrap();
    let bytes = noise(6, 40 << 20);
    failing.allow(1);
    let session = testing::session(&store).await;
    let mut stored = 0;
    for allowed in [0, 1, 1, 2] {
        failing.allow(allowed);
        let source = Memory::from(bytes.clone());
        let error = from_device(&session, &source, &()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        let found = objects(&inner).await;
        assert!(found.iter().all(|(key, _)| !key.starts_with("manifests/")), "{found:?}");
        let packs = found.iter().filter(|(key, _)| key.starts_with("packs/")).count();
        assert!(packs >= stored);
        stored = packs;
    }
    assert!(stored > 0);
    failing.allow(1000);
    let done = import_bytes(&store, &bytes).await;
    assert!(done.stats.reused_chunks > 0 && done.stats.new_bytes < bytes.len() as u64);
    assert_eq!(read_all(&store, &done.manifest).await, bytes);
    let packs = objects(&inner).await.iter().filter(|o| o.0.starts_with("packs/")).count();
    assert_eq!(packs, stored + done.stats.packs as usize);
}

#[tokio::test]
async fn progress_adds_up_to_the_image() {
    struct Sum(std::sync::atomic::AtomicU64);
    impl Progress for Sum {
        fn advance(&self, scanned: u64, _: u64) {
            self.0.fetch_add(scanned, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let (store, _) = fresh().await;
    let mut sparse = Sparse::from_bytes(&image(8, 500));
    sparse.size += 300 * BLOCK;
    let sum = Sum(Default::default());
    let done = from_device(&testing::session(&store).await, &sparse, &sum).await.unwrap();
    assert_eq!(sum.0.into_inner(), sparse.size);
    assert_eq!(done.stats.scanned, sparse.size);
}

#[tokio::test]
async fn verification_finds_what_is_damaged_and_where() {
    let (store, backend) = fresh().await;
    let bytes = noise(9, 3 << 20);
    let done = import_bytes(&store, &bytes).await;
    let clean = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!((clean.chunks, clean.bytes), (done.stats.new_chunks, 3 << 20));
    assert_eq!(clean.damaged, []);

    let (key, _) = objects(&backend).await.into_iter().find(|o| o.0.starts_with("packs/")).unwrap();
    let path = Path::from(key.clone());
    let mut pack = backend.get(&path).await.unwrap().bytes().await.unwrap().to_vec();
    pack[100_000] ^= 1;
    backend.put(&path, pack.into()).await.unwrap();
    let report = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!(report.damaged.len(), 1);
    let damage = &report.damaged[0];
    assert_eq!(damage.object, key);
    assert!(damage.offset <= 100_000 && damage.spans[0].offset() <= 100_000);
    assert!(damage.spans[0].end() + 16 > 100_000);
    // An import goes by indexes and does not see it: the remedy is to remove the pack first.
    assert!(damage.why.contains("remove it and import the image again"), "{}", damage.why);
    import_bytes(&store, &bytes).await;
    let report = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!(report.damaged.len(), 1);

    backend.delete(&path).await.unwrap();
    let report = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!(report.damaged.len() as u64, clean.chunks);
    assert!(report.damaged[0].why.contains(&key) && report.damaged[0].why.contains("again"));

    // A new import puts back what is missing: the manifest is whole again.
    assert_eq!(import_bytes(&store, &bytes).await.manifest, done.manifest);
    let report = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!(report.damaged, []);

    let (key, _) =
        objects(&backend).await.into_iter().find(|o| o.0.starts_with("segments/")).unwrap();
    backend.delete(&Path::from(key.clone())).await.unwrap();
    let report = verify::manifest(&store, &done.manifest, &()).await.unwrap();
    assert_eq!(report.damaged[0].object, key);
    assert_eq!(report.damaged[0].spans, [Span::whole(3 << 20)]);
}

#[tokio::test]
async fn no_truncation_or_flipped_bit_of_any_object_gives_wrong_bytes() {
    let (store, backend) = fresh().await;
    let mut bytes = noise(10, 3 * PAGE);
    bytes.resize(5 * PAGE, 0);
    bytes.extend([7; 4 * PAGE]);
    let done = import_bytes(&store, &bytes).await;
    for (key, _) in objects(&backend).await {
        let path = Path::from(key.clone());
        let good = backend.get(&path).await.unwrap().bytes().await.unwrap();
        let mut random = Sequence::new(11);
        let flips = |len: usize, random: &mut Sequence| -> Vec<usize> {
            match len {
                0..2000 => (0..len).collect(),
                _ => (0..200)
                    .map(|_| random.below(len as u64) as usize)
                    .chain(len - 300..len)
                    .collect(),
            }
        };
        let mut cases: Vec<Vec<u8>> = flips(good.len(), &mut random)
            .into_iter()
            .map(|at| {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << random.below(8);
                bad
            })
            .collect();
        cases.extend((0..32).map(|_| good[..random.below(good.len() as u64) as usize].to_vec()));
        for bad in cases {
            backend.put(&path, bad.into()).await.unwrap();
            let backend: Arc<dyn ObjectStore> = backend.clone();
            match try_read_all(backend, &done.manifest).await {
                Ok(found) => assert!(found == bytes, "{key}: wrong bytes"),
                Err(e) => assert!(
                    matches!(
                        e.kind(),
                        ErrorKind::Corrupt | ErrorKind::Unsupported | ErrorKind::Invalid
                    ),
                    "{key}: {e:?}"
                ),
            }
        }
        backend.put(&path, good.into()).await.unwrap();
    }
}

async fn try_read_all(backend: Arc<dyn ObjectStore>, id: &ManifestId) -> Result<Vec<u8>> {
    let store = Store::open(backend, testing::world(2)).await?;
    let manifest = store.manifest(id).await?;
    let mut bytes = Vec::new();
    for piece in manifest.pieces(Span::whole(manifest.size())).await? {
        let len = piece.span.len() as usize;
        match piece.content {
            Content::Hole => bytes.resize(bytes.len() + len, 0),
            Content::Chunk { at, skip } => {
                let chunk = store.read_chunk(&at).await?;
                bytes.extend_from_slice(&chunk[skip as usize..skip as usize + len]);
            }
        }
    }
    Ok(bytes)
}

/// Changes pages of an image at random; returns the new image and what changed.
fn edit(random: &mut Sequence, old: &[u8], size: u64) -> (Vec<u8>, Vec<Span>) {
    let mut new = old.to_vec();
    new.resize(size as usize, 0);
    let blocks = size.div_ceil(BLOCK);
    let mut dirty = vec![false; blocks as usize];
    for _ in 0..1 + random.below(6) {
        let start = random.below(blocks);
        let end = (start + 1 + random.below(30)).min(blocks);
        let place = (start * BLOCK) as usize..((end * BLOCK).min(size)) as usize;
        match random.below(4) {
            0 => new[place].fill(0),
            1 => {
                let from = random.below(blocks.saturating_sub(end - start) + 1) * BLOCK;
                let from = (from as usize).min(new.len() - place.len());
                new.copy_within(from..from + place.len(), place.start);
            }
            2 => {} // said to have changed, but did not
            _ => {
                let bytes = noise(random.number(), place.len());
                new[place].copy_from_slice(&bytes);
            }
        }
        dirty[start as usize..end as usize].fill(true);
    }
    let mut changed: Vec<Span> = Vec::new();
    for block in (0..blocks).filter(|b| dirty[*b as usize]) {
        let span = Span::between(block * BLOCK, ((block + 1) * BLOCK).min(size));
        match changed.last_mut() {
            // Neighbours need not be joined.
            Some(last) if last.end() == span.offset() && random.below(8) > 0 => {
                *last = Span::between(last.offset(), span.end());
            }
            _ => changed.push(span),
        }
    }
    (new, changed)
}

fn resized(random: &mut Sequence, size: u64) -> u64 {
    let other = match random.below(4) {
        0 => size + random.below(400) * 512,
        1 => size - random.below(size / 512 / 2) * 512,
        _ => size,
    };
    other.max(512)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_derived_manifest_is_that_of_a_full_import(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (store, _) = fresh().await;
            let mut random = Sequence::new(seed);
            let pages = 100 + random.below(500);
            let mut bytes = image(random.number(), pages);
            let size = resized(&mut random, bytes.len() as u64 / 512 * 512);
            bytes.resize(size as usize, 0);
            let mut base = import_bytes(&store, &bytes).await.manifest;
            for _ in 0..3 {
                let size = resized(&mut random, bytes.len() as u64);
                let (new, changed) = edit(&mut random, &bytes, size);
                let manifest = store.manifest(&base).await.unwrap();
                let view = Memory::from(new.clone());
                let derived =
                    derive(&testing::session(&store).await, &manifest, size, &view, &changed, Grain::Content, &())
                        .await
                        .unwrap();
                let full = import_bytes(&store, &new).await;
                assert!(read_all(&store, &derived.manifest).await == new, "wrong bytes");
                assert_eq!(derived.manifest, full.manifest, "from {changed:?}");
                assert_eq!(full.stats.new_chunks, 0);
                (bytes, base) = (new, derived.manifest);
            }
        });
    }

    #[test]
    fn a_manifest_derived_by_blocks_reads_as_the_view(seed in any::<u64>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let (store, _) = fresh().await;
            let mut random = Sequence::new(seed);
            let pages = 100 + random.below(500);
            let mut bytes = image(random.number(), pages);
            let mut base = import_bytes(&store, &bytes).await.manifest;
            for round in 0..6 {
                let size = resized(&mut random, bytes.len() as u64);
                let (new, changed) = edit(&mut random, &bytes, size);
                let manifest = store.manifest(&base).await.unwrap();
                let view = Sparse::from_bytes(&new);
                let grain = if round == 4 { Grain::Content } else { Grain::Blocks };
                let derived =
                    derive(&testing::session(&store).await, &manifest, size, &view, &changed, grain, &()).await.unwrap();
                assert!(read_all(&store, &derived.manifest).await == new, "wrong bytes");
                (bytes, base) = (new, derived.manifest);
            }
        });
    }
}

#[tokio::test]
async fn many_small_changes_do_not_break_an_extent_to_pieces() {
    let (store, _) = fresh().await;
    let mut bytes = noise(12, 64 << 10);
    let mut base = import_bytes(&store, &bytes).await.manifest;
    for i in 0..16 {
        let page = i * 7 % 16;
        bytes[page * PAGE..(page + 1) * PAGE].copy_from_slice(&noise(100 + i as u64, PAGE));
        let manifest = store.manifest(&base).await.unwrap();
        let changed = [Span::between(page as u64 * BLOCK, (page as u64 + 1) * BLOCK)];
        let view = Memory::from(bytes.clone());
        let size = bytes.len() as u64;
        let derived = derive(
            &testing::session(&store).await,
            &manifest,
            size,
            &view,
            &changed,
            Grain::Blocks,
            &(),
        )
        .await
        .unwrap();
        base = derived.manifest;
        let manifest = store.manifest(&base).await.unwrap();
        assert!(manifest.pieces(Span::whole(size)).await.unwrap().len() <= 4);
        assert!(derived.stats.new_bytes <= 64 << 10);
    }
    assert_eq!(read_all(&store, &base).await, bytes);
}

#[tokio::test]
async fn a_small_change_of_a_large_image_reads_and_stores_little() {
    let (store, _) = fresh().await;
    let edge = SEGMENT / BLOCK;
    let mut large = Sparse::new(8 * SEGMENT);
    for segment in 0..8 {
        large.put(segment * edge + 5, &noise(segment, 100 * PAGE));
    }
    let base = from_device(&testing::session(&store).await, &large, &()).await.unwrap();
    let manifest = store.manifest(&base.manifest).await.unwrap();
    large.put(3 * edge + 50, &noise(77, PAGE));
    // Trimmed from the middle of one segment to the end of the next.
    large.pages.retain(|page, _| !(5 * edge + 20..7 * edge).contains(page));
    let changed = [
        Span::between((3 * edge + 50) * BLOCK, (3 * edge + 51) * BLOCK),
        Span::between((5 * edge + 20) * BLOCK, 7 * edge * BLOCK),
    ];
    let mut reads = Vec::new();
    for grain in [Grain::Content, Grain::Blocks] {
        let view = ScriptedDevice::noting(large.clone());
        let size = large.size;
        let done =
            derive(&testing::session(&store).await, &manifest, size, &view, &changed, grain, &())
                .await
                .unwrap();
        let found = store.manifest(&done.manifest).await.unwrap();
        for segment in 0..8 {
            let start = segment * SEGMENT;
            let span = Span::between(start, start + 120 * BLOCK);
            let mut expected = vec![0; span.len() as usize];
            large.read(span, &mut expected).await.unwrap();
            assert!(read_span(&store, &found, span).await == expected, "segment {segment}");
        }
        if grain == Grain::Content {
            let full = from_device(&testing::session(&store).await, &large, &()).await.unwrap();
            assert_eq!(done.manifest, full.manifest);
        }
        reads.push(view.bytes(|call| matches!(call, Operation::Read(_))));
    }
    assert!(reads[0] < 2 << 20 && reads[1] < 256 << 10, "{reads:?}");
}

#[tokio::test]
async fn bad_changes_are_refused() {
    let (store, _) = fresh().await;
    let bytes = noise(13, 8 * PAGE);
    let base = import_bytes(&store, &bytes).await.manifest;
    let base = store.manifest(&base).await.unwrap();
    let view = Memory::from(bytes);
    let span = |a, b| Span::between(a, b);
    for changed in [
        vec![span(1, 4096)],
        vec![span(0, 100)],
        vec![span(8192, 12288), span(0, 4096)],
        vec![span(0, 65536)],
    ] {
        let error = derive(
            &testing::session(&store).await,
            &base,
            32768,
            &view,
            &changed,
            Grain::Content,
            &(),
        )
        .await;
        assert_eq!(error.unwrap_err().kind(), ErrorKind::Invalid, "{changed:?}");
    }
    let larger =
        derive(&testing::session(&store).await, &base, 65536, &view, &[], Grain::Blocks, &()).await;
    assert_eq!(larger.unwrap_err().kind(), ErrorKind::Invalid);
}

#[tokio::test]
async fn all_futures_may_move_between_threads() {
    fn moves<T: Send>(future: T) -> T {
        future
    }
    let (store, _) = fresh().await;
    let bytes = image(14, 50);
    let size = bytes.len() as u64;
    let view: Arc<dyn Device> = Arc::new(Memory::from(bytes.clone()));
    let nobody: &dyn Progress = &();
    let done = moves(from_device(&testing::session(&store).await, &*view, nobody)).await.unwrap();
    moves(from_stream(&testing::session(&store).await, bytes.as_slice(), nobody)).await.unwrap();
    let base = moves(store.manifest(&done.manifest)).await.unwrap();
    let whole = [Span::whole(size)];
    let session = testing::session(&store).await;
    let same = moves(derive(&session, &base, size, &*view, &whole, Grain::Content, nobody));
    assert_eq!(same.await.unwrap().manifest, done.manifest);
    moves(verify::manifest(&store, &done.manifest, nobody)).await.unwrap();
    moves(base.pieces(Span::whole(size))).await.unwrap();
    let chunks = moves(base.chunks()).await.unwrap();
    moves(store.read_chunk(&chunks[0])).await.unwrap();
    let refs = store.refs();
    let body = crate::RefBody { manifest: None, size: 1, created: 1, labels: Default::default() };
    moves(refs.create(crate::RefKind::Disk, "a", body.clone())).await.unwrap();
    moves(refs.update(crate::RefKind::Disk, "a", 1, body)).await.unwrap();
    moves(refs.remove(crate::RefKind::Disk, "a", 2)).await.unwrap();
    assert!(moves(refs.list(crate::RefKind::Disk)).await.unwrap().is_empty());
}

#[tokio::test]
async fn parts_that_are_known_to_be_parts_of_chunks_are_named_and_not_stored() {
    let (store, _) = fresh().await;
    let (mut bytes, other) = (noise(1, 64 * PAGE), noise(2, 64 * PAGE));
    let base = import_bytes(&store, &bytes).await.manifest;
    let other_image = store.manifest(&import_bytes(&store, &other).await.manifest).await.unwrap();
    let base = store.manifest(&base).await.unwrap();
    let pieces = other_image.pieces(Span::whole(other.len() as u64)).await.unwrap();
    let Content::Chunk { at, .. } = pieces[0].content else { panic!("a hole") };
    // Over the end of a piece of the base, or in the middle of one, and beside a change.
    let known = |page: u64, skip: u32| KnownPiece {
        span: Span::between(page * BLOCK, (page + 3) * BLOCK),
        at,
        skip: skip * PAGE as u32,
    };
    let known = [known(5, 2), known(30, 0), known(40, 5)];
    for piece in &known {
        let (to, from) = (piece.span.offset() as usize, piece.skip as usize);
        bytes[to..to + 3 * PAGE].copy_from_slice(&other[from..from + 3 * PAGE]);
    }
    bytes[43 * PAGE..44 * PAGE].fill(7);
    let changed = [Span::between(43 * BLOCK, 44 * BLOCK)];
    let (view, size) = (Memory::from(bytes.clone()), bytes.len() as u64);
    let session = testing::session(&store).await;
    let grain = Grain::Blocks;
    let from = (&changed[..], &known[..]);
    let derived = derive_with_known(&session, &base, size, &view, from, grain, &()).await.unwrap();
    assert!(read_all(&store, &derived.manifest).await == bytes, "wrong bytes");
    assert_eq!(derived.stats.new_chunks, 1);

    let cut = KnownPiece { skip: 100, ..known[0] };
    let behind = KnownPiece { skip: at.len - PAGE as u32, ..known[0] };
    let beyond = KnownPiece { span: Span::between(size, size + BLOCK), ..known[0] };
    for wrong in [&[known[1], known[0]][..], &[cut], &[behind], &[beyond]] {
        let from = (&changed[..], wrong);
        let refused = derive_with_known(&session, &base, size, &view, from, grain, &()).await;
        assert_eq!(refused.unwrap_err().kind(), ErrorKind::Invalid, "{wrong:?}");
    }
}
