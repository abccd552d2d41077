//! Reading chunks: from their place, out of what was read for several, or from wherever else they are.

use crate::coalesced_read::CoalescedRead;
use crate::heal;
use crate::store::on_its_own;
use crate::{ChunkRef, Store};
use block::Result;
use bytes::Bytes;

impl Store {
    /// The chunk's plain bytes: read, decompressed and verified. When its pack was rewritten, it is
    /// found where it is now; when it is missing or damaged, in the stores that were added by
    /// [`add_source`](Self::add_source).
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt), naming pack and offset, when the bytes are not the chunk's;
    /// [`NotFound`](block::ErrorKind::NotFound) when the pack is gone;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn read_chunk(&self, at: &ChunkRef) -> Result<Bytes> {
        self.counted(at, heal::chunk(self, at, self.read_at(at))).await
    }

    /// The chunk's plain bytes, out of what `stretch` reads for several chunks. One that is not among them, or that it
    /// does not bring whole and right, is read alone, as by [`read_chunk`](Self::read_chunk).
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt), naming pack and offset, when the bytes are not the chunk's;
    /// [`NotFound`](block::ErrorKind::NotFound) when the pack is gone;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn read_chunk_of(&self, at: &ChunkRef, stretch: &CoalescedRead) -> Result<Bytes> {
        self.counted(at, heal::chunk(self, at, self.read_part(at, stretch))).await
    }

    /// The plain bytes of a chunk's copy: from the place that `copy` names, out of `stretch` if there is
    /// one. A copy that cannot be read is looked for nowhere, and is no failure yet: whoever asked reads
    /// the chunk in its own place.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt), naming pack and offset, when the bytes are not the chunk's;
    /// [`NotFound`](block::ErrorKind::NotFound) when the pack is gone;
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) from the
    /// backend.
    pub async fn read_copy(
        &self,
        copy: &ChunkRef,
        stretch: Option<&CoalescedRead>,
    ) -> Result<Bytes> {
        let plain = match stretch {
            Some(stretch) => self.read_part(copy, stretch).await?,
            None => self.read_at(copy).await?,
        };
        self.count(copy, Ok(plain))
    }

    /// Counts a chunk being read, and what came of it.
    async fn counted(
        &self,
        at: &ChunkRef,
        read: impl Future<Output = Result<Bytes>>,
    ) -> Result<Bytes> {
        self.count(at, read.await)
    }

    /// The chunk's plain bytes from the place that `at` names, out of a stretch where that brings them.
    async fn read_part(&self, at: &ChunkRef, stretch: &CoalescedRead) -> Result<Bytes> {
        match stretch.part(at).await {
            Some(stored) => match at.decode(self.settings(), stored?) {
                Ok(plain) => Ok(on_its_own(at, plain)),
                Err(_) => self.read_at(at).await,
            },
            None => self.read_at(at).await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{import, testing};
    use block::Memory;
    use object_store::ObjectStore;
    use object_store::memory::InMemory;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_chunk_that_is_stored_plain_does_not_keep_the_whole_pack_in_memory() {
        // This backend answers with parts of the object's own buffer.
        let backend: Arc<dyn ObjectStore> = Arc::new(InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let image = Memory::from(testing::noise(3, 1 << 20));
        let done = import::from_device(&testing::session(&store).await, &image, &()).await.unwrap();
        for at in store.manifest(&done.manifest).await.unwrap().chunks().await.unwrap() {
            assert_eq!(at.encoding, crate::Encoding::Plain);
            assert!(store.read_chunk(&at).await.unwrap().is_unique());
        }
    }
}
