//! A file allocation table on disk, looked up entry by entry.

use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// How much of the table is read at once, in bytes.
const PAGE: u64 = 32 << 10;

/// A table of 16 or 32 bit entries, read through a cache of one page.
pub(crate) struct FatTable<'a> {
    window: &'a Window<'a>,
    offset: u64,
    /// Bytes of an entry: 2 or 4.
    width: u64,
    /// Entries that count: one for each cluster, and the two before them.
    entries: u64,
    page: Vec<u8>,
    page_at: u64,
}

impl<'a> FatTable<'a> {
    /// The table at byte `offset` of the window.
    pub(crate) fn new(window: &'a Window<'a>, offset: u64, width: u64, entries: u64) -> Self {
        Self { window, offset, width, entries, page: Vec::new(), page_at: 0 }
    }

    /// The raw entry of `cluster`.
    pub(crate) fn get(&mut self, cluster: u64) -> Result<u32, Refusal> {
        if cluster >= self.entries {
            refuse!(
                Structure,
                "a chain leads to cluster {cluster}, and the last one is {}; check it with its own tool",
                self.entries - 1
            );
        }
        let at = cluster * self.width;
        let page_at = at / PAGE * PAGE;
        if self.page.is_empty() || self.page_at != page_at {
            let len = PAGE.min(self.entries * self.width - page_at);
            self.page = self.window.bytes(self.offset + page_at, len as usize)?;
            self.page_at = page_at;
        }
        let within = (at - page_at) as usize;
        Ok(match self.width {
            2 => u32::from(le16(&self.page, within)),
            _ => le32(&self.page, within),
        })
    }
}
