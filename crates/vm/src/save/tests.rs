use super::*;
use crate::PAGE;
use crate::disk_pages::NearbyChunks;
use crate::disk_pages::tests::{AllNearby, NoneNearby};
use crate::pages::Pages;
use crate::resume_set;
use cache::Cache;
use disk::Loader;
use proptest::prelude::*;
use std::sync::Arc;
use store::Store;
use store::testing::{self, noise};

const MEMORY: u64 = 2 << 20;
const PAGES: u64 = MEMORY / PAGE;

/// Memory in a vector, and what changed in it.
struct Plain {
    bytes: Vec<u8>,
    changed: Pages,
}

impl Plain {
    fn new() -> Self {
        Self { bytes: vec![0; MEMORY as usize], changed: Pages::none(PAGES) }
    }

    fn write(&mut self, at: u64, data: &[u8]) {
        self.bytes[at as usize..at as usize + data.len()].copy_from_slice(data);
        for page in at / PAGE..(at + data.len() as u64).div_ceil(PAGE) {
            self.changed.insert(page);
        }
    }
}

#[async_trait]
impl MemorySource for Plain {
    fn size(&self) -> u64 {
        MEMORY
    }

    fn changed(&self, extent: u64) -> bool {
        self.changed.any(extent * 16..(extent * 16 + 16).min(PAGES))
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        buf.copy_from_slice(&self.bytes[span.offset() as usize..span.end() as usize]);
        Ok(())
    }
}

async fn lab() -> (Store, Arc<Loader>) {
    let backend = Arc::new(object_store::memory::InMemory::new());
    let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
    let loader = fresh(&store);
    (store, loader)
}

/// A way into an empty cache.
fn fresh(store: &Store) -> Arc<Loader> {
    let config =
        cache::Config { capacity: 64 << 20, policy: cache::PolicyKind::default(), seed: 1 };
    let cache = Arc::new(Cache::new(config));
    Loader::new(store.clone(), cache, disk::LoadOptions::default())
}

/// The image that was saved, with an empty cache.
async fn cold(store: &Store, saved: &SavedMemory) -> MemoryImage {
    let manifest = store.manifest(&saved.imported.manifest).await.unwrap();
    MemoryImage::new(&fresh(store), manifest, saved.layout).unwrap()
}

fn page(number: u64) -> Span {
    Span::between(number * PAGE, (number + 1) * PAGE)
}

/// Saves memory over what was saved before, and reads it back.
async fn hop(
    lab: &(Store, Arc<Loader>),
    memory: &mut Plain,
    before: Option<&MemoryImage>,
    tail: MachineTail<'_>,
) -> (SavedMemory, MemoryImage) {
    hop_with(lab, memory, before, tail, None).await
}

/// The same of a machine with a disk.
async fn hop_with(
    (store, loader): &(Store, Arc<Loader>),
    memory: &mut Plain,
    before: Option<&MemoryImage>,
    tail: MachineTail<'_>,
    disk: Option<StoredDisk<'_>>,
) -> (SavedMemory, MemoryImage) {
    let session = store.session("test").await.unwrap();
    let saved = super::memory(&session, before, memory, tail, disk, &()).await;
    let saved = session.close(saved).await.unwrap();
    let manifest = store.manifest(&saved.imported.manifest).await.unwrap();
    let image = MemoryImage::new(loader, manifest, saved.layout).unwrap();
    let mut read = vec![0; MEMORY as usize];
    image.read(Span::whole(MEMORY), &mut read).await.unwrap();
    assert!(read == memory.bytes, "the memory is not what it was");
    assert_eq!(image.state().await.unwrap(), tail.state);
    // Page by page, out of copies where there are any.
    let cold = cold(store, &saved).await;
    for number in 0..PAGES {
        let (at, mut read) = (page(number), vec![0; PAGE as usize]);
        cold.read(at, &mut read).await.unwrap();
        let is_as_it_was = read == memory.bytes[at.offset() as usize..at.end() as usize];
        assert!(is_as_it_was, "page {number} is not what it was");
    }
    memory.changed = Pages::none(PAGES);
    (saved, image)
}

/// All chunks but one of these can be read without a network.
struct AllBut(Vec<store::ChunkId>);

#[async_trait]
impl NearbyChunks for AllBut {
    async fn at_hand(&self, mut chunks: Vec<store::ChunkRef>) -> Result<Vec<store::ChunkRef>> {
        chunks.retain(|at| !self.0.contains(&at.id));
        Ok(chunks)
    }
}

#[tokio::test]
async fn memory_is_here_when_its_base_and_all_that_changed_is() {
    let lab = lab().await;
    let tail = MachineTail { state: b"devices", ..MachineTail::default() };
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 256 << 10));
    let (_, base) = hop(&lab, &mut memory, None, tail).await;
    memory.changed = Pages::none(PAGES);
    memory.write(4096, b"a few bytes");
    let (_, image) = hop(&lab, &mut memory, Some(&base), tail).await;
    assert!(image.is_at_hand(&AllNearby).await.unwrap());
    assert!(!image.is_at_hand(&NoneNearby).await.unwrap());
    let ids = async |span: Span| -> Vec<_> {
        let pieces = image.manifest().pieces(span).await.unwrap();
        let chunks = pieces.into_iter().filter_map(|piece| match piece.content {
            store::Content::Chunk { at, .. } => Some(at.id),
            _ => None,
        });
        chunks.collect()
    };
    let changed = ids(Span::between(crate::image::SEGMENT, crate::image::SEGMENT + MEMORY)).await;
    assert_eq!(changed.len(), 1, "the page that changed");
    assert!(!image.is_at_hand(&AllBut(changed)).await.unwrap());
    // The state of the devices is read once, before the guest goes on.
    let tail = ids(Span::between(2 * crate::image::SEGMENT, image.manifest().size())).await;
    assert!(!tail.is_empty());
    assert!(image.is_at_hand(&AllBut(tail)).await.unwrap());
}

#[tokio::test]
async fn a_page_that_changed_a_little_costs_a_little() {
    let lab = lab().await;
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 1 << 20));
    let tail = MachineTail { state: b"devices", ..MachineTail::default() };
    let (first, image) = hop(&lab, &mut memory, None, tail).await;
    assert!(first.imported.stats.stored_bytes >= 1 << 20);
    memory.write(70_000, b"changed");
    memory.write(500_000, b"changed");
    let (second, _) = hop(&lab, &mut memory, Some(&image), tail).await;
    assert_eq!((second.changed, second.full), (2, 0));
    assert!(second.imported.stats.stored_bytes < 500, "{:?}", second.imported.stats);
}

#[tokio::test]
async fn memory_that_did_not_change_adds_no_chunk() {
    let lab = lab().await;
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 1 << 20));
    let tail = MachineTail { state: b"devices", ..MachineTail::default() };
    let (_, image) = hop(&lab, &mut memory, None, tail).await;
    let same = memory.bytes[..65536].to_vec();
    memory.write(0, &same);
    let (second, _) = hop(&lab, &mut memory, Some(&image), tail).await;
    assert_eq!(second.imported.stats.new_chunks, 0);
}

#[tokio::test]
async fn what_would_be_fetched_twice_is_stored_in_full_in_the_end() {
    let lab = lab().await;
    let mut memory = Plain::new();
    // What compresses well costs more as the difference to something else than by itself.
    memory.write(0, &noise(1, 1 << 20));
    let (_, image) = hop(&lab, &mut memory, None, MachineTail::default()).await;
    let text: Vec<u8> = b"the quick brown fox ".iter().copied().cycle().take(1 << 20).collect();
    memory.write(0, &text);
    let (second, image) = hop(&lab, &mut memory, Some(&image), MachineTail::default()).await;
    assert_eq!((second.changed, second.full), (16, 16));
    memory.write(10, b"once more");
    let (third, _) = hop(&lab, &mut memory, Some(&image), MachineTail::default()).await;
    assert_eq!((third.changed, third.full), (1, 0));
}

#[tokio::test]
async fn pages_of_which_there_are_copies_are_read_without_what_lies_around_them() {
    let lab = lab().await;
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 1 << 20));
    // Each of another extent; the last one is zero, and needs no copy.
    let list: Vec<u32> = (0..15).map(|extent| extent * 16 + extent).chain([400]).collect();
    let tail = MachineTail { state: b"devices", first_pages: &list, ..MachineTail::default() };
    let (saved, _) = hop(&lab, &mut memory, None, tail).await;
    let cold = cold(&lab.0, &saved).await;
    assert_eq!(cold.list_of_copies().await.unwrap(), &list[..15]);
    assert!(cold.fetch_copies_ahead(0, &list[..15]).await > 0);
    let mut read = vec![0; PAGE as usize];
    for number in &list[..15] {
        let at = page(u64::from(*number));
        cold.read(at, &mut read).await.unwrap();
        assert!(read == memory.bytes[at.offset() as usize..at.end() as usize]);
        assert!(cold.fetch_ahead(at).await > 0, "the extent of page {number} was fetched");
    }
    assert_eq!(cold.fetch_copies_ahead(0, &list[..15]).await, 0, "they are here");
}

#[tokio::test]
async fn copies_that_stay_are_stored_once_and_more_of_them_cost_what_they_are() {
    let lab = lab().await;
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 1 << 20));
    let list: Vec<u32> = (0..40).map(|number| number * 5).collect();
    let tail =
        |list| MachineTail { state: b"devices", first_pages: list, ..MachineTail::default() };
    let (_, image) = hop(&lab, &mut memory, None, tail(&list[..32])).await;
    let (same, image) = hop(&lab, &mut memory, Some(&image), tail(&list[..32])).await;
    assert_eq!(same.imported.stats.new_chunks, 0);
    let (more, image) = hop(&lab, &mut memory, Some(&image), tail(&list)).await;
    let stored = more.imported.stats.stored_bytes;
    assert!((8 * PAGE..10 * PAGE).contains(&stored), "{stored}: the list, and eight pages");
    // An extent that is stored in full is another one in the base: its copies are made anew.
    memory.write(0, &b"a page ".repeat(10_000));
    let (full, _) = hop(&lab, &mut memory, Some(&image), tail(&list)).await;
    assert!(full.full > 0);
}

#[tokio::test]
async fn a_list_of_copies_that_is_damaged_is_done_without() {
    let lab = lab().await;
    let mut memory = Plain::new();
    memory.write(0, &noise(1, 1 << 20));
    let tail = MachineTail { first_pages: &[7, 8, 9], ..MachineTail::default() };
    let (mut saved, _) = hop(&lab, &mut memory, None, tail).await;
    // What lies behind it names page 0 three times.
    saved.layout.state += 12;
    let cold = cold(&lab.0, &saved).await;
    assert!(cold.list_of_copies().await.unwrap().is_empty());
    let mut read = vec![0; PAGE as usize];
    cold.read(page(7), &mut read).await.unwrap();
    assert!(read == memory.bytes[7 * PAGE as usize..8 * PAGE as usize]);
}

/// A disk that holds `bytes`, imported as an image is.
async fn disk(store: &Store, bytes: &[u8]) -> Arc<Manifest> {
    let session = store.session("test").await.unwrap();
    let made = import::from_stream(&session, bytes, &()).await;
    let made = session.close(made).await.unwrap();
    store.manifest(&made.manifest).await.unwrap()
}

/// The same, of which these chunks may be read.
fn searched<'a>(
    contents: &'a Manifest,
    loader: &'a Arc<Loader>,
    nearby: &'a dyn NearbyChunks,
) -> StoredDisk<'a> {
    StoredDisk { contents, loader, fewest: 1, nearby }
}

#[tokio::test]
async fn what_a_guest_has_read_of_its_disk_is_not_stored_once_more() {
    let lab = lab().await;
    let bytes = noise(5, 1 << 20);
    let contents = disk(&lab.0, &bytes).await;
    let on_disk = Some(searched(&contents, &lab.1, &AllNearby));
    let mut memory = Plain::new();
    // Long parts at another place of an extent, a part over the end of an extent, two pages, one page.
    let parts = [(0u64, 40u64, 3u64), (100, 12, 58), (200, 2, 90), (250, 1, 300)];
    for (from, pages, to) in parts {
        let from = (from * PAGE) as usize;
        memory.write(to * PAGE, &bytes[from..from + (pages * PAGE) as usize]);
    }
    memory.write(110 * PAGE, b"the guest's own");
    let (first, image) = hop_with(&lab, &mut memory, None, MachineTail::default(), on_disk).await;
    let stored = first.imported.stats.stored_bytes;
    // Two pages, the single one, and the guest's own; and where a chunk ends shortly behind the start of an extent.
    assert!(stored < 16 * PAGE, "{stored} bytes of 56 pages");
    let pieces = first_pieces(&lab.0, &first).await;
    assert!(pieces > 5, "parts of chunks are named");
    // Over it, and new parts where there was nothing.
    memory.write(4 * PAGE + 7, b"written over");
    memory.write(400 * PAGE, &bytes[64 * PAGE as usize..80 * PAGE as usize]);
    let (second, image) =
        hop_with(&lab, &mut memory, Some(&image), MachineTail::default(), on_disk).await;
    let stored = second.imported.stats.stored_bytes;
    assert!(stored < 8 * PAGE, "{stored} bytes of 17 pages");
    // Without the disk's chunks at hand all of it is stored, and reads the same.
    let nothing = Some(searched(&contents, &lab.1, &NoneNearby));
    memory.write(450 * PAGE, &bytes[128 * PAGE as usize..140 * PAGE as usize]);
    let tail = MachineTail::default();
    let (third, _) = hop_with(&lab, &mut memory, Some(&image), tail, nothing).await;
    assert!(third.imported.stats.stored_bytes > 11 * PAGE);
}

#[tokio::test]
async fn a_single_page_of_the_disk_is_named_where_its_chunk_is_named_anyway() {
    let lab = lab().await;
    let bytes = noise(5, 1 << 20);
    let contents = disk(&lab.0, &bytes).await;
    let on_disk = Some(searched(&contents, &lab.1, &AllNearby));
    let page_of = |page: u64| &bytes[(page * PAGE) as usize..][..PAGE as usize];
    // The first extent of the disk is at the start of the memory, and one page of the disk elsewhere.
    let stored = async |page: Option<u64>| {
        let mut memory = Plain::new();
        memory.write(0, &bytes[..EXTENT as usize]);
        if let Some(page) = page {
            memory.write(300 * PAGE, page_of(page));
        }
        let tail = MachineTail::default();
        hop_with(&lab, &mut memory, None, tail, on_disk).await.0.imported.stats.stored_bytes
    };
    stored(None).await;
    assert_eq!(stored(Some(7)).await, 0, "what there is besides is stored already");
    assert!(stored(Some(250)).await >= PAGE);
}

/// How many pieces the manifest of a memory image has.
async fn first_pieces(store: &Store, saved: &SavedMemory) -> usize {
    let manifest = store.manifest(&saved.imported.manifest).await.unwrap();
    manifest.pieces(Span::whole(MEMORY)).await.unwrap().len()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn any_memory_made_of_a_disk_is_the_memory_that_was(
        hops in proptest::collection::vec(
            proptest::collection::vec((0u64..200, 1u64..40, 0..PAGES - 40, any::<bool>()), 1..12),
            1..4,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lab = lab().await;
            // Some pages are alike, some zero, some like their neighbours.
            let mut bytes = noise(5, 1 << 20);
            bytes.copy_within(0..20 * PAGE as usize, 100 * PAGE as usize);
            bytes[60 * PAGE as usize..70 * PAGE as usize].fill(0);
            bytes[80 * PAGE as usize..99 * PAGE as usize].fill(7);
            let contents = disk(&lab.0, &bytes).await;
            let on_disk = Some(searched(&contents, &lab.1, &AllNearby));
            let (mut memory, mut before) = (Plain::new(), None);
            for parts in hops {
                for (from, pages, to, is_changed) in parts {
                    let from = (from * PAGE) as usize;
                    memory.write(to * PAGE, &bytes[from..from + (pages * PAGE) as usize]);
                    if is_changed {
                        memory.write(to * PAGE + 9, b"x");
                    }
                }
                let tail = MachineTail { state: b"devices", ..MachineTail::default() };
                let (_, image) = hop_with(&lab, &mut memory, before.as_ref(), tail, on_disk).await;
                before = Some(image);
            }
        });
    }

    #[test]
    fn any_hops_bring_the_memory_that_was(
        hops in proptest::collection::vec(
            (
                proptest::collection::vec((0..MEMORY - 70_000, 0u64..6, 1usize..70_000), 0..8),
                0usize..9000,
                proptest::sample::subsequence((0..PAGES as u32).collect::<Vec<_>>(), 0..60),
            ),
            1..5,
        ),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let lab = lab().await;
            let (mut memory, mut before) = (Plain::new(), None);
            for (writes, state, first_pages) in hops {
                for (at, seed, len) in writes {
                    // Seed 0 gives a page back.
                    let data = if seed == 0 { vec![0; len] } else { noise(seed, len) };
                    memory.write(at, &data);
                }
                let (state, set) = (noise(9, state), resume_set::encode(&[3, 1]));
                let tail = MachineTail { state: &state, resume_set: &set, first_pages: &first_pages };
                let (_, image) = hop(&lab, &mut memory, before.as_ref(), tail).await;
                assert_eq!(image.resume_set().await.unwrap(), [3, 1]);
                before = Some(image);
            }
        });
    }
}
