//! Which extents and pages were read first, in order.

use crate::resume_set::{FirstReads, MAX_EXTENTS, MAX_PAGES};
use crate::{EXTENT, PAGE};
use block::Span;
use std::collections::HashSet;

/// The extents and pages that were read, in order, while that is being noted.
#[derive(Default)]
pub(super) struct Touched {
    pub(super) order: FirstReads,
    extents: HashSet<u32>,
    pages: HashSet<u32>,
    pub(super) noting: bool,
}

impl Touched {
    /// Nothing, and whether what is read from now on is noted.
    pub(super) fn starting(noting: bool) -> Self {
        Self { noting, ..Self::default() }
    }

    /// Notes a read, while that is being noted.
    pub(super) fn note(&mut self, span: Span) {
        if !self.noting {
            return;
        }
        let Self { order, extents, pages, .. } = self;
        for extent in span.offset() / EXTENT..span.end().div_ceil(EXTENT) {
            let extent = extent as u32;
            if order.extents.len() < MAX_EXTENTS && extents.insert(extent) {
                order.extents.push(extent);
            }
        }
        for page in span.offset() / PAGE..span.end().div_ceil(PAGE) {
            let page = page as u32;
            if order.pages.len() < MAX_PAGES && pages.insert(page) {
                order.pages.push(page);
            }
        }
    }
}
