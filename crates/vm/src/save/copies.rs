//! Copies of the pages that a resume reads first: which there are, and which of them are new.

use super::BaseParts;
use crate::image::MemoryLayout;
use crate::{EXTENT, PAGE};
use block::{Result, Span};
use std::collections::BTreeMap;

/// Pages in an extent.
const EACH: usize = (EXTENT / PAGE) as usize;

/// Copies of pages of the base.
#[derive(Debug, Default)]
pub(super) struct PageCopies {
    /// The pages, in the order of their copies.
    pub(super) pages: Vec<u32>,
    /// Copies that the memory image before does not have at this place: an extent's worth each, by the place of the
    /// first one.
    pub(super) new: BTreeMap<u64, Vec<u8>>,
}

/// The copies of the pages `wanted`, but for pages that are zero in the machine and in the base. `lengths` has
/// the state's and the resume set's.
///
/// # Errors
/// Any error from the source and the store.
pub(super) async fn of(
    parts: &BaseParts<'_>,
    wanted: &[u32],
    lengths: [u64; 2],
) -> Result<PageCopies> {
    let Some(base) = parts.base else { return made(parts, wanted, 0).await };
    let is_new = |page: u32| parts.is_new(u64::from(page) * PAGE / EXTENT);
    let known = base.list_of_copies().await?;
    let same =
        wanted.iter().zip(known).take_while(|(page, known)| page == known && !is_new(**page));
    // Those that stay are not even read: on a thin link not all of them may have been fetched.
    let stay = same.count() / EACH * EACH;
    let copies = made(parts, wanted, stay).await?;
    let count = copies.pages.len() as u64;
    let layout = MemoryLayout::new(parts.source.size(), lengths[0], lengths[1], count);
    match stay > 0 && layout.copies() != base.layout().copies() {
        // All of them would have moved.
        true => made(parts, wanted, 0).await,
        false => Ok(copies),
    }
}

/// The copies, of which the first `stay` are as before.
async fn made(parts: &BaseParts<'_>, wanted: &[u32], stay: usize) -> Result<PageCopies> {
    let mut pages = wanted[..stay].to_vec();
    let mut bytes = Vec::new();
    let mut one = vec![0; PAGE as usize];
    for page in &wanted[stay..] {
        let start = u64::from(*page) * PAGE;
        let span = Span::between(start, start + PAGE);
        parts.read(span, &mut one).await?;
        if is_zero(&one) {
            // What has to be xored to it comes with it, in the order of the list.
            let mut now = vec![0; PAGE as usize];
            parts.source.read(span, &mut now).await?;
            if is_zero(&now) {
                continue;
            }
        }
        pages.push(*page);
        bytes.extend_from_slice(&one);
    }
    let places = (stay as u64..).step_by(EACH);
    let new = places.zip(bytes.chunks(EXTENT as usize).map(<[u8]>::to_vec)).collect();
    Ok(PageCopies { pages, new })
}

fn is_zero(page: &[u8]) -> bool {
    page.iter().all(|byte| *byte == 0)
}
