//! The memory of a suspension, as it goes to the store.

use crate::image::MemoryImage;
use crate::ram::EarlierPages;
use crate::save::MemorySource;
use crate::{EXTENT, PAGE};
use async_trait::async_trait;
use block::{Error, Result, Span, offload};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// The memory of a suspension, to be stored.
pub(crate) struct PendingMemory {
    pub(crate) size: u64,
    pub(crate) base: Option<Arc<MemoryImage>>,
    pub(crate) pages: EarlierPages,
}

#[async_trait]
impl MemorySource for PendingMemory {
    fn size(&self) -> u64 {
        self.size
    }

    fn changed(&self, extent: u64) -> bool {
        let last = self.size / PAGE;
        self.pages.changed.any(extent * EXTENT / PAGE..((extent + 1) * EXTENT / PAGE).min(last))
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        let (mut page, last) = (span.offset() / PAGE, span.end() / PAGE);
        while page < last {
            let (end, local) = self.pages.local.run(page..last);
            let part = Span::between(page * PAGE, end * PAGE);
            let (target, behind) = rest.split_at_mut(part.len() as usize);
            match (local, &self.base) {
                (true, _) => {
                    let (file, mut bytes) = (Arc::clone(&self.pages.file), vec![0; target.len()]);
                    let read = move || {
                        let outcome = file.read_exact_at(&mut bytes, part.offset());
                        outcome
                            .map(|()| bytes)
                            .map_err(|e| Error::io("the memory of a suspension", e))
                    };
                    target.copy_from_slice(&offload(read).await?);
                }
                (false, Some(base)) => base.read(part, target).await?,
                (false, None) => target.fill(0),
            }
            (rest, page) = (behind, end);
        }
        Ok(())
    }
}
