//! The memory of a machine becomes a manifest: see [`image`](crate::image) for what it shows.
//!
//! Each extent that changed is stored as what has to be xored to the base. Where that takes more room than the
//! extent itself would, or more than half of it, the extent may be stored in the base instead. This writes the
//! base's segment anew, which is 56 bytes for each of its extents; so it is done for a whole segment, when it
//! saves more than it costs, or when a resume would have to fetch much twice.

use crate::disk_pages::{self, DiskParts, StoredDisk};
use crate::image::{MemoryImage, MemoryLayout, SEGMENT, xor};
use crate::{EXTENT, PAGE, resume_set};
use async_trait::async_trait;
use block::{Device, Durability, Error, Extent, ExtentKind, Result, Span, ZeroMode, offload};
use copies::PageCopies;
use std::collections::BTreeMap;
use store::{Grain, Imported, Manifest, Progress, Session, import};

mod copies;

/// Bytes that one entry takes in a segment.
const ENTRY: u64 = 56;
/// What a resume may have to fetch twice of one segment, in bytes.
const MOST_TWICE: u64 = 8 << 20;
/// The zstd level by which extents are weighed. They are stored at that of the upload.
const WEIGHED_AT: i32 = 1;

/// Memory that does not change while it is saved.
#[async_trait]
pub trait MemorySource: Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Whether an extent may differ from what the parcel before says, or is not zero if there is none.
    fn changed(&self, extent: u64) -> bool;

    /// Reads whole pages.
    ///
    /// # Errors
    /// Any error from the file system and the store.
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()>;
}

/// The rest of what a suspended machine is made of.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineTail<'a> {
    /// The state of its devices.
    pub state: &'a [u8],
    /// Its [resume set](crate::resume_set), encoded.
    pub resume_set: &'a [u8],
    /// The pages that a resume reads first.
    pub first_pages: &'a [u32],
}

/// What was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SavedMemory {
    /// The manifest and figures of what is new.
    pub imported: Imported,
    /// What it shows.
    pub layout: MemoryLayout,
    /// Extents that changed.
    pub changed: u64,
    /// Extents of these that were stored in full.
    pub full: u64,
}

/// How an extent that changed is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ExtentForm {
    /// In the base region.
    Full,
    /// Xored to the base. 0 bytes: it is as the base says.
    Delta { delta: u64, full: u64, on_zeroes: bool },
}

impl ExtentForm {
    /// What storing it in full saves, and what it spares a resume.
    fn gain(self) -> Option<(u64, u64)> {
        match self {
            Self::Delta { delta, full, on_zeroes } if delta * 2 > full => {
                Some((delta.saturating_sub(full), if on_zeroes { 0 } else { full }))
            }
            _ => None,
        }
    }
}

/// Stores the memory of a machine, as it differs from `base`, and the machine's other parts.
///
/// Nothing refers to the manifest yet; it stays until the session ends. `base` has a ref, or is held. Pages that are
/// blocks of `disk`, too, are not stored once more.
///
/// # Errors
/// Any error from the source and the store.
pub async fn memory(
    session: &Session,
    base: Option<&MemoryImage>,
    source: &dyn MemorySource,
    tail: MachineTail<'_>,
    disk: Option<StoredDisk<'_>>,
    progress: &dyn Progress,
) -> Result<SavedMemory> {
    let base = base.filter(|base| base.layout().memory == source.size());
    let forms = weigh(base, source).await?;
    let parts = BaseParts { base, source, forms: &forms };
    let lengths = [tail.state.len() as u64, tail.resume_set.len() as u64];
    let copies = match copies::of(&parts, tail.first_pages, lengths).await {
        Ok(copies) => copies,
        // They only make a resume quick.
        Err(error) => {
            tracing::warn!(%error, "the first pages of a resume are not copied");
            PageCopies::default()
        }
    };
    let pages = copies.pages.len() as u64;
    let layout = MemoryLayout::new(source.size(), lengths[0], lengths[1], pages);
    let full = forms.values().filter(|form| **form == ExtentForm::Full).count() as u64;
    let changed = forms.len() as u64;
    let list = resume_set::encode_pages(&copies.pages);
    let tail = [tail.state, tail.resume_set, &list].concat();
    let view = DerivedMemory { layout, base, source, tail, copies, forms: &forms };
    let spans = view.changed();
    let empty;
    let on: &Manifest = match base {
        Some(base) => base.manifest(),
        None => {
            let made = import::from_device(session, &Zeroes(layout.size()), &()).await?;
            empty = session.store().manifest(&made.manifest).await?;
            &empty
        }
    };
    let parts = match disk {
        Some(disk) => on_disk(&view, &spans, disk).await,
        None => DiskParts { known: Vec::new(), stored: spans },
    };
    let (size, grain) = (layout.size(), Grain::Blocks);
    let imported = import::derive_with_known(
        session,
        on,
        size,
        &view,
        (&parts.stored, &parts.known),
        grain,
        progress,
    )
    .await?;
    Ok(SavedMemory { imported, layout, changed, full })
}

/// Which of the changed parts are on the disk; none where that cannot be found out: then they are stored.
async fn on_disk(view: &DerivedMemory<'_>, spans: &[Span], disk: StoredDisk<'_>) -> DiskParts {
    let (tail, memory) = (view.layout.tail(), view.layout.memory);
    let (of_memory, rest) = spans.split_at(spans.partition_point(|span| span.end() <= tail));
    let over_holes = view.base.is_none();
    let found = disk_pages::find(view, of_memory, over_holes, disk, memory).await;
    let mut parts = found.unwrap_or_else(|error| {
        tracing::warn!(%error, "what of the memory is on the machine's disk is stored once more");
        DiskParts { known: Vec::new(), stored: of_memory.to_vec() }
    });
    parts.stored.extend(rest);
    parts
}

/// How each extent that changed is to be stored.
async fn weigh(
    base: Option<&MemoryImage>,
    source: &dyn MemorySource,
) -> Result<BTreeMap<u64, ExtentForm>> {
    let mut forms = BTreeMap::new();
    for segment in Span::whole(source.size()).pieces(SEGMENT) {
        let extents = segment.offset() / EXTENT..segment.end().div_ceil(EXTENT);
        let changed = extents.filter(|extent| source.changed(*extent));
        let Some(base) = base else {
            forms.extend(changed.map(|extent| (extent, ExtentForm::Full)));
            continue;
        };
        let mut here = BTreeMap::new();
        for extent in changed {
            here.insert(extent, weigh_one(base, source, extent).await?);
        }
        let gains = here.values().filter_map(|form| form.gain());
        let (saved, twice) = gains.fold((0, 0), |sum, gain| (sum.0 + gain.0, sum.1 + gain.1));
        if saved > 0 || twice > MOST_TWICE {
            let cost = base.manifest().pieces(segment).await?.len() as u64 * ENTRY;
            if saved > cost || twice > MOST_TWICE {
                for form in here.values_mut().filter(|form| form.gain().is_some()) {
                    *form = ExtentForm::Full;
                }
            }
        }
        forms.append(&mut here);
    }
    Ok(forms)
}

async fn weigh_one(
    base: &MemoryImage,
    source: &dyn MemorySource,
    extent: u64,
) -> Result<ExtentForm> {
    let span = extent_of(extent, source.size());
    let (mut now, mut then) = (vec![0; span.len() as usize], vec![0; span.len() as usize]);
    source.read(span, &mut now).await?;
    base.read_base(span, &mut then).await?;
    offload(move || {
        let on_zeroes = then.iter().all(|byte| *byte == 0);
        xor(&mut then, &now);
        let delta = packed(&then)?;
        let full = if on_zeroes { delta } else { packed(&now)? };
        Ok(ExtentForm::Delta { delta, full, on_zeroes })
    })
    .await
}

/// How long bytes are once they are compressed.
fn packed(bytes: &[u8]) -> Result<u64> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let packed = zstd::bulk::compress(bytes, WEIGHED_AT);
    packed.map(|packed| packed.len() as u64).map_err(|e| Error::io("compressing memory", e))
}

fn extent_of(extent: u64, memory: u64) -> Span {
    Span::between(extent * EXTENT, ((extent + 1) * EXTENT).min(memory))
}

/// What the base of the new memory image is made of.
struct BaseParts<'a> {
    base: Option<&'a MemoryImage>,
    source: &'a dyn MemorySource,
    forms: &'a BTreeMap<u64, ExtentForm>,
}

impl BaseParts<'_> {
    /// Whether an extent is stored in the base anew.
    fn is_new(&self, extent: u64) -> bool {
        self.forms.get(&extent) == Some(&ExtentForm::Full)
    }

    /// Reads what lies in one extent.
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        match self.base {
            _ if self.is_new(span.offset() / EXTENT) => self.source.read(span, buf).await,
            Some(base) => base.read_base(span, buf).await,
            None => {
                buf.fill(0);
                Ok(())
            }
        }
    }
}

/// The new memory image as a device, where it differs from the one before.
struct DerivedMemory<'a> {
    layout: MemoryLayout,
    base: Option<&'a MemoryImage>,
    source: &'a dyn MemorySource,
    tail: Vec<u8>,
    copies: PageCopies,
    forms: &'a BTreeMap<u64, ExtentForm>,
}

impl DerivedMemory<'_> {
    /// Where the new image differs from the one before, in order.
    fn changed(&self) -> Vec<Span> {
        let plane = self.layout.plane();
        let at = |extent: u64, origin: u64| {
            let span = extent_of(extent, self.layout.memory);
            Span::between(origin + span.offset(), origin + span.end())
        };
        let full = self.forms.iter().filter(|(_, form)| **form == ExtentForm::Full);
        let mut spans: Vec<Span> = full.map(|(extent, _)| at(*extent, 0)).collect();
        if self.base.is_some() {
            spans.extend(self.forms.keys().map(|extent| at(*extent, plane)));
        }
        let (tail, size) = (self.layout.tail(), self.layout.size());
        let copies = self.layout.copies().min(size);
        if tail < copies {
            spans.push(Span::between(tail, copies));
        }
        let new = self.copies.new.keys().map(|place| copies + place * PAGE);
        spans.extend(new.map(|start| Span::between(start, (start + EXTENT).min(size))));
        spans
    }

    /// Reads copies that lie in one extent.
    async fn read_copies(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let at = span.offset() - self.layout.copies();
        let place = at / EXTENT * (EXTENT / PAGE);
        let from = (at % EXTENT) as usize;
        let new = self.copies.new.get(&place).and_then(|bytes| bytes.get(from..from + buf.len()));
        match (new, self.base) {
            (Some(bytes), _) => buf.copy_from_slice(bytes),
            // They are at the same place there.
            (None, Some(base)) => base.read_at(span, buf).await?,
            (None, None) => buf.fill(0),
        }
        Ok(())
    }

    /// Reads what lies in one extent of the delta region.
    async fn read_delta(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        match (self.forms.get(&(span.offset() / EXTENT)), self.base) {
            (Some(ExtentForm::Delta { delta: 1.., .. }), Some(base)) => {
                let mut then = vec![0; buf.len()];
                self.source.read(span, buf).await?;
                base.read_base(span, &mut then).await?;
                xor(buf, &then);
            }
            (None, Some(base)) => base.read_delta(span, buf).await?,
            _ => buf.fill(0),
        }
        Ok(())
    }
}

#[async_trait]
impl Device for DerivedMemory<'_> {
    fn size(&self) -> u64 {
        self.layout.size()
    }

    fn read_only(&self) -> bool {
        true
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let (plane, tail) = (self.layout.plane(), self.layout.tail());
        let mut rest = buf;
        for part in span.pieces(EXTENT) {
            let (target, behind) = rest.split_at_mut(part.len() as usize);
            rest = behind;
            if part.offset() >= self.layout.copies() {
                self.read_copies(part, target).await?;
            } else if part.offset() >= tail {
                let from = (part.offset() - tail) as usize;
                let stored = self.tail.get(from..).unwrap_or_default();
                let len = stored.len().min(target.len());
                target[..len].copy_from_slice(&stored[..len]);
                target[len..].fill(0);
            } else if part.offset() >= plane {
                self.read_delta(Span::between(part.offset() - plane, part.end() - plane), target)
                    .await?;
            } else {
                let parts = BaseParts { base: self.base, source: self.source, forms: self.forms };
                parts.read(part, target).await?;
            }
        }
        Ok(())
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent { span, kind: ExtentKind::Data }])
    }
}

/// A device of zeroes: what a first memory image is derived from.
struct Zeroes(u64);

#[async_trait]
impl Device for Zeroes {
    fn size(&self) -> u64 {
        self.0
    }

    fn read_only(&self) -> bool {
        true
    }

    async fn read(&self, _: Span, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }

    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn flush(&self) -> Result<()> {
        Ok(())
    }

    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(refuse())
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        Ok(vec![Extent { span, kind: ExtentKind::Hole }])
    }
}

fn refuse() -> Error {
    Error::denied("memory that is being saved does not change")
}

#[cfg(test)]
mod tests;
