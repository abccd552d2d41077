//! The memory of a machine as it was at one moment, while a parcel is made of it.

use super::{GuestRam, read_padded};
use crate::image::MemoryImage;
use crate::pages::Pages;
use crate::save::MemorySource;
use crate::{EXTENT, PAGE};
use async_trait::async_trait;
use block::{Error, Result, Span};
use std::sync::Arc;

/// What a parcel is being made of.
pub(super) struct FrozenPages {
    /// Pages that are part of it and were in the local file.
    pub(super) local: Pages,
    /// The ones whose content was put aside.
    pub(super) aside: Pages,
    pub(super) base: Option<Arc<MemoryImage>>,
    pub(super) changed: Pages,
}

/// The memory of a machine as it was at one moment. It is thawed when this is dropped; unless that was
/// [`stored`](Self::stored), its changes are part of the next parcel again.
pub struct FrozenRam {
    pub(super) ram: Arc<GuestRam>,
    pub(super) base: Option<Arc<MemoryImage>>,
    pub(super) changed: Pages,
    pub(super) done: bool,
}

impl FrozenRam {
    /// The parcel that the memory came from.
    pub fn base(&self) -> Option<&Arc<MemoryImage>> {
        self.base.as_ref()
    }

    /// The pages that are in the local file, and those that changed since the last parcel. All that is local has to
    /// be [taken over](GuestRam::take_over).
    pub(crate) fn pages(&self) -> (Pages, &Pages) {
        let state = self.ram.state.lock();
        let local = state.frozen.as_ref().map(|frozen| frozen.local.clone());
        (local.unwrap_or_else(|| Pages::none(self.ram.size / PAGE)), &self.changed)
    }

    /// What was frozen is stored as `image`: the next parcel is made against that.
    pub fn stored(mut self, image: Arc<MemoryImage>) {
        self.done = true;
        // Pages that are local stay so: the image says of the others what the base before it said.
        self.ram.state.lock().base = Some(image);
    }
}

impl Drop for FrozenRam {
    fn drop(&mut self) {
        let mut state = self.ram.state.lock();
        let Some(frozen) = state.frozen.take() else { return };
        if !self.done {
            state.changed.extend(&frozen.changed);
        }
        state.close_earlier();
    }
}

#[async_trait]
impl MemorySource for FrozenRam {
    fn size(&self) -> u64 {
        self.ram.size
    }

    fn changed(&self, extent: u64) -> bool {
        let last = self.ram.size / PAGE;
        let pages = extent * EXTENT / PAGE..((extent + 1) * EXTENT / PAGE).min(last);
        self.changed.any(pages)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let base = {
            let state = self.ram.state.lock();
            let frozen =
                state.frozen.as_ref().ok_or_else(|| Error::internal("the memory is not frozen"))?;
            frozen.base.clone()
        };
        let (places, earlier) = {
            let state = self.ram.state.lock();
            let frozen = state.frozen.as_ref();
            let places = frozen.map(|frozen| self.ram.places(&frozen.local, span));
            (places.unwrap_or_default(), state.earlier.clone())
        };
        let first = span.offset() / PAGE;
        self.ram.compose(span, buf, (base.as_deref(), earlier.as_ref()), &places).await?;
        // What was written over before it was read above was put aside before that.
        let aside = {
            let state = self.ram.state.lock();
            let frozen = state.frozen.as_ref();
            frozen.map(|frozen| frozen.aside.clone_range(span)).unwrap_or_default()
        };
        for (index, _) in aside.iter().enumerate().filter(|(_, aside)| **aside) {
            let at = index * PAGE as usize;
            read_padded(
                &self.ram.aside,
                (first + index as u64) * PAGE,
                &mut buf[at..at + PAGE as usize],
            )?;
        }
        Ok(())
    }
}

impl Pages {
    /// For each page of a span whether it is in the set.
    fn clone_range(&self, span: Span) -> Vec<bool> {
        (span.offset() / PAGE..span.end().div_ceil(PAGE)).map(|page| self.contains(page)).collect()
    }
}
