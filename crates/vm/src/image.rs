//! The memory of a suspended machine, read from the store.
//!
//! It is one manifest, so that everything a store does with manifests (collection, verification, repair,
//! copies, sealing, caches) is done with it. What the manifest shows is made of three regions:
//!
//! | from | region | content |
//! |---|---|---|
//! | 0 | base | memory as it was when it was last stored in full |
//! | *plane* | delta | what has to be xored to the base |
//! | 2 × *plane* | tail | the state of the devices, the resume set, and copies of the pages of the base that a resume reads first |
//!
//! *plane* is the memory's size, rounded up to 256 MiB, so that the manifest's segments belong to one region
//! each. Memory is base xor delta. So a page that changed a little costs a few bytes of delta, an extent that
//! did not change is a hole there, and there are no chains: each parcel's delta is against its own base, and
//! shares its chunks with the parcels before it.

use block::{Attempt, BLOCK, Device, Error, ErrorKind, Result, Span};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;

use crate::resume_set::{self, FirstReads};
use crate::{EXTENT, NearbyChunks, PAGE, document_version};
use disk::{Image, Loader};
use store::{ChunkId, ChunkRef, Content, Manifest, ManifestId, boot_list, machines};
use tokio::sync::OnceCell;

/// What a segment of a manifest shows.
pub(crate) const SEGMENT: u64 = 256 << 20;
/// The longest state of devices that is read, in bytes.
pub const MAX_STATE: u64 = 256 << 20;

/// Where things are in a memory image. A label of the parcel's ref.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryLayout {
    /// The version of this layout: 1, or 2 if there are copies of pages.
    pub version: u32,
    /// Bytes of guest memory.
    pub memory: u64,
    /// Bytes of the devices' state.
    pub state: u64,
    /// Bytes of the resume set.
    pub resume_set: u64,
    /// Pages of the base of which there are copies.
    #[serde(default, skip_serializing_if = "is_none")]
    pub first_pages: u64,
}

fn is_none(pages: &u64) -> bool {
    *pages == 0
}

impl MemoryLayout {
    /// That of memory with so many bytes, and of what else there is.
    pub fn new(memory: u64, state: u64, resume_set: u64, first_pages: u64) -> Self {
        let version = if first_pages == 0 { 1 } else { 2 };
        Self { version, memory, state, resume_set, first_pages }
    }

    /// Reads a layout, and checks it.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it is none,
    /// [`Unsupported`](block::ErrorKind::Unsupported) when it is of a newer version.
    pub fn decode(text: &str) -> Result<Self> {
        let damaged =
            |e| Error::corrupt(format!("the layout of a memory image cannot be read: {e}"));
        let version = document_version::read(text.as_bytes()).map_err(damaged)?;
        if !matches!(version, 1 | 2) {
            return Err(Error::unsupported(format!(
                "a memory image has layout {version}, and this build reads layouts 1 and 2; use a newer sojourn"
            )));
        }
        let layout: Self = serde_json::from_str(text).map_err(damaged)?;
        let longest_set = (resume_set::MAX_EXTENTS * 4) as u64;
        let memory_fits =
            layout.memory > 0 && layout.memory <= 1 << 40 && layout.memory.is_multiple_of(1 << 20);
        let pages_fit = match version {
            1 => layout.first_pages == 0,
            _ => (1..=resume_set::MAX_PAGES as u64).contains(&layout.first_pages),
        };
        if !memory_fits || !pages_fit || layout.state > MAX_STATE || layout.resume_set > longest_set
        {
            return Err(Error::corrupt("the layout of a memory image has sizes that cannot be"));
        }
        Ok(layout)
    }

    /// Where the delta region starts.
    pub(crate) fn plane(&self) -> u64 {
        machines::delta_start(self.memory)
    }

    /// Where the tail starts.
    pub(crate) fn tail(&self) -> u64 {
        2 * self.plane()
    }

    /// Where the copies of pages start: at a multiple of an extent, so that copies which stay as they are keep their
    /// chunks.
    pub(crate) fn copies(&self) -> u64 {
        self.tail() + (self.state + self.resume_set + 4 * self.first_pages).next_multiple_of(EXTENT)
    }

    /// The size of the manifest.
    pub fn size(&self) -> u64 {
        match self.first_pages {
            // A machine without state would be one without devices; a manifest is never empty anyway.
            0 => self.tail() + (self.state + self.resume_set).next_multiple_of(BLOCK),
            pages => self.copies() + pages * PAGE,
        }
    }
}

/// A region of an image that memory is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryRegion {
    /// Memory as it was when it was last stored in full.
    Base,
    /// What has to be xored to it.
    Delta,
}

/// The memory of a suspended machine.
pub struct MemoryImage {
    layout: MemoryLayout,
    image: Image,
    first_pages: OnceCell<FirstPages>,
}

/// The pages of which there are copies.
#[derive(Debug, Default)]
struct FirstPages {
    /// In the order of their copies.
    list: Vec<u32>,
    /// The place of each in that order.
    places: HashMap<u32, u32>,
}

impl MemoryImage {
    /// The memory that a manifest shows; it is read through `loader`.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when the manifest has not the size that the layout says.
    pub fn new(
        loader: &Arc<Loader>,
        manifest: Arc<Manifest>,
        layout: MemoryLayout,
    ) -> Result<Self> {
        if manifest.size() != layout.size() {
            return Err(Error::corrupt(format!(
                "memory image {} has {} bytes, and its layout says {}; restore the parcel's ref from a backup",
                manifest.id(),
                manifest.size(),
                layout.size()
            )));
        }
        let image = Image::through(loader, manifest).read_at_random();
        Ok(Self { layout, image, first_pages: OnceCell::new() })
    }

    /// Where things are in it.
    pub fn layout(&self) -> &MemoryLayout {
        &self.layout
    }

    /// The manifest.
    pub fn manifest(&self) -> &Arc<Manifest> {
        self.image.manifest()
    }

    /// Its manifest's id.
    pub fn id(&self) -> ManifestId {
        self.image.manifest().id()
    }

    /// Reads memory. `span` lies inside it.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) and [`Unavailable`](block::ErrorKind::Unavailable) when the
    /// bytes cannot be had.
    pub async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut delta = vec![0; buf.len()];
        let (base, change) =
            tokio::join!(self.read_base(span, buf), self.read_delta(span, &mut delta));
        base.and(change)?;
        xor(buf, &delta);
        Ok(())
    }

    /// Fetches what a part of the memory consists of into the cache, behind all that somebody waits for; returns the
    /// bytes that came. What cannot be had is passed over. `span` lies inside the memory.
    pub(crate) async fn fetch_ahead(&self, span: Span) -> u64 {
        let plane = self.layout.plane();
        let delta = Span::between(span.offset() + plane, span.end() + plane);
        let (base, delta) =
            tokio::join!(self.image.fetch_ahead(span), self.image.fetch_ahead(delta));
        base + delta
    }

    /// The same of one region alone. What is there already counts for nothing.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when not all of it can be had.
    pub(crate) async fn fetch_region_ahead(&self, region: MemoryRegion, span: Span) -> Result<u64> {
        let start = match region {
            MemoryRegion::Base => 0,
            MemoryRegion::Delta => self.layout.plane(),
        };
        self.image.fetch_all_ahead(Span::between(span.offset() + start, span.end() + start)).await
    }

    /// Whether all of the memory, its base and what changed since, can be read without a network.
    ///
    /// # Errors
    /// Any error from the maps of the manifest and the file system.
    pub(crate) async fn is_at_hand(&self, nearby: &dyn NearbyChunks) -> Result<bool> {
        let (memory, plane) = (self.layout.memory, self.layout.plane());
        let mut chunks: HashMap<ChunkId, ChunkRef> = HashMap::new();
        for region in [Span::between(0, memory), Span::between(plane, plane + memory)] {
            for segment in region.pieces(SEGMENT) {
                for piece in self.manifest().pieces(segment).await? {
                    if let Content::Chunk { at, .. } = piece.content {
                        chunks.insert(at.id, at);
                    }
                }
            }
        }
        let count = chunks.len();
        Ok(nearby.at_hand(chunks.into_values().collect()).await?.len() == count)
    }

    /// Reads the base alone: where there are copies of all the pages, and the extent is not in the cache, from these.
    pub(crate) async fn read_base(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        if self.layout.first_pages == 0 || span.len() > EXTENT {
            return self.image.read(span, buf).await;
        }
        if matches!(self.image.try_read(span, buf), Ok(Attempt::Done)) {
            return Ok(());
        }
        let Some(places) = self.first_pages().await?.places(span) else {
            return self.image.read(span, buf).await;
        };
        let mut rest = &mut *buf;
        for place in places {
            let (page, behind) = rest.split_at_mut(PAGE as usize);
            rest = behind;
            match self.image.read(self.copy_at(u64::from(place), 1), page).await {
                Ok(()) => {}
                // The page itself is there still.
                Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                    tracing::debug!(image = %self.id(), error = %e, "a copy of a page is damaged");
                    return self.image.read(span, buf).await;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Where the copies of so many pages are, from a place in their order on.
    fn copy_at(&self, place: u64, pages: u64) -> Span {
        let start = self.layout.copies() + place * PAGE;
        Span::between(start, (start + pages * PAGE).min(self.layout.size()))
    }

    /// The pages of the base of which there are copies, in the order of these.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the list cannot be had now. One that is damaged is empty: the
    /// pages themselves are there still.
    pub(crate) async fn list_of_copies(&self) -> Result<&[u32]> {
        Ok(&self.first_pages().await?.list)
    }

    async fn first_pages(&self) -> Result<&FirstPages> {
        self.first_pages.get_or_try_init(|| self.read_first_pages()).await
    }

    async fn read_first_pages(&self) -> Result<FirstPages> {
        let layout = &self.layout;
        let list = self.tail(layout.state + layout.resume_set, 4 * layout.first_pages).await;
        match list.and_then(|bytes| resume_set::decode_pages(&bytes, layout.memory)) {
            Ok(list) => Ok(FirstPages::new(list)),
            Err(e) if matches!(e.kind(), ErrorKind::Corrupt | ErrorKind::NotFound) => {
                tracing::warn!(image = %self.id(), error = %e, "copies of pages are done without");
                Ok(FirstPages::default())
            }
            Err(e) => Err(e),
        }
    }

    /// Fetches the copies of an extent's worth of pages, and what has to be xored to them, into the cache; as
    /// [`fetch_ahead`](Self::fetch_ahead). `pages` are those from `place` on.
    pub(crate) async fn fetch_copies_ahead(&self, place: u64, pages: &[u32]) -> u64 {
        let copies = self.image.fetch_ahead(self.copy_at(place, pages.len() as u64));
        let deltas = async {
            let mut bytes = 0;
            for page in pages {
                let start = self.layout.plane() + u64::from(*page) * PAGE;
                // Most are holes, or in the cache.
                bytes += self.image.fetch_ahead(Span::between(start, start + PAGE)).await;
            }
            bytes
        };
        let (copies, deltas) = tokio::join!(copies, deltas);
        copies + deltas
    }

    /// Reads a part of the image, in whichever region.
    pub(crate) async fn read_at(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.image.read(span, buf).await
    }

    /// Reads the delta region alone, what has to be xored to `span` of the base.
    pub(crate) async fn read_delta(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let plane = self.layout.plane();
        self.image.read(Span::between(span.offset() + plane, span.end() + plane), buf).await
    }

    /// The state of the devices.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) and [`Unavailable`](block::ErrorKind::Unavailable) when the
    /// bytes cannot be had.
    pub async fn state(&self) -> Result<Vec<u8>> {
        self.tail(0, self.layout.state).await
    }

    /// The extents that a resume reads first.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) and [`Unavailable`](block::ErrorKind::Unavailable) when the
    /// bytes cannot be had.
    pub async fn resume_set(&self) -> Result<Vec<u32>> {
        let bytes = self.tail(self.layout.state, self.layout.resume_set).await?;
        resume_set::decode(&bytes, self.layout.memory)
    }

    /// What a resume reads first.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) and [`Unavailable`](block::ErrorKind::Unavailable) when the
    /// bytes cannot be had.
    pub async fn first_reads(&self) -> Result<FirstReads> {
        let pages = self.list_of_copies().await?.to_vec();
        Ok(FirstReads { extents: self.resume_set().await?, pages })
    }

    /// The chunks that a resume reads first, in that order: the state of the devices, then what the extents of
    /// the resume set consist of.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) and [`Unavailable`](block::ErrorKind::Unavailable) when the
    /// bytes cannot be had.
    pub async fn first_chunks(&self) -> Result<Vec<ChunkId>> {
        let (tail, plane) = (self.layout.tail(), self.layout.plane());
        let mut spans = vec![Span::between(tail, self.layout.size())];
        for extent in self.resume_set().await? {
            let start = u64::from(extent) * EXTENT;
            let end = (start + EXTENT).min(self.layout.memory);
            spans.extend([Span::between(start, end), Span::between(start + plane, end + plane)]);
        }
        boot_list::of_ranges(self.manifest(), &spans).await
    }

    async fn tail(&self, from: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len as usize];
        let start = self.layout.tail() + from;
        for span in Span::between(start, start + len).pieces(1 << 20) {
            let at = (span.offset() - start) as usize;
            self.image.read(span, &mut bytes[at..at + span.len() as usize]).await?;
        }
        Ok(bytes)
    }
}

impl std::fmt::Debug for MemoryImage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryImage").field("id", &self.id()).field("layout", &self.layout).finish()
    }
}

impl FirstPages {
    fn new(list: Vec<u32>) -> Self {
        let places = list.iter().zip(0..).map(|(page, place)| (*page, place)).collect();
        Self { list, places }
    }

    /// The places of all pages of a span, if there are copies of all.
    fn places(&self, span: Span) -> Option<Vec<u32>> {
        let pages = span.offset() / PAGE..span.end() / PAGE;
        if !span.offset().is_multiple_of(PAGE) || !span.end().is_multiple_of(PAGE) {
            return None;
        }
        pages.map(|page| self.places.get(&(page as u32)).copied()).collect()
    }
}

/// Changes `to` to what it is xor `by`; both are of the same length.
pub(crate) fn xor(to: &mut [u8], by: &[u8]) {
    for (to, by) in to.iter_mut().zip(by) {
        *to ^= by;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use proptest::prelude::*;

    #[test]
    fn a_layout_of_version_1_is_read_and_written_the_same() {
        let text = include_str!("../tests/golden/layout-v1.json").trim_end();
        let layout = MemoryLayout::decode(text).unwrap();
        let expected = MemoryLayout::new(2 << 30, 334_120, 1024, 0);
        assert_eq!(layout, expected);
        assert_eq!(layout.size(), (4 << 30) + 335_872);
        assert_eq!(serde_json::to_string(&layout).unwrap(), text);
    }

    #[test]
    fn a_layout_of_version_2_is_read_and_written_the_same() {
        let text = include_str!("../tests/golden/layout-v2.json").trim_end();
        let layout = MemoryLayout::decode(text).unwrap();
        assert_eq!(layout, MemoryLayout::new(2 << 30, 334_120, 1024, 1500));
        assert_eq!(layout.copies(), (4 << 30) + 6 * EXTENT);
        assert_eq!(layout.size(), layout.copies() + 1500 * PAGE);
        assert_eq!(serde_json::to_string(&layout).unwrap(), text);
        for bad in ["\"version\":1", "\"version\":2,\"more\":1"] {
            let bad = text.replace("\"version\":2", bad);
            assert_eq!(MemoryLayout::decode(&bad).unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
        }
        for count in ["0", "4097"] {
            let bad = text.replace("1500", count);
            assert_eq!(MemoryLayout::decode(&bad).unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
        }
    }

    #[test]
    fn a_layout_that_cannot_be_is_refused() {
        let good = MemoryLayout::new(64 << 20, 5000, 8, 0);
        let text = serde_json::to_string(&good).unwrap();
        assert_eq!(MemoryLayout::decode(&text).unwrap(), good);
        assert_eq!((good.plane(), good.size()), (SEGMENT, 2 * SEGMENT + 8192));
        for bad in ["{}", "", r#"{"version":1,"memory":1,"state":0,"resume_set":0}"#] {
            assert_eq!(MemoryLayout::decode(bad).unwrap_err().kind(), ErrorKind::Corrupt, "{bad}");
        }
        let newer = text.replace("\"version\":1", "\"version\":3");
        assert_eq!(MemoryLayout::decode(&newer).unwrap_err().kind(), ErrorKind::Unsupported);
        let huge = text.replace("5000", "99999999999");
        assert_eq!(MemoryLayout::decode(&huge).unwrap_err().kind(), ErrorKind::Corrupt);
    }

    proptest! {
        #[test]
        fn any_text_is_a_layout_or_an_error(text in ".{0,120}") {
            let _ = MemoryLayout::decode(&text);
        }
    }
}
