//! Guest memory as a plain file, where FUSE cannot be used: all of it is fetched before the guest goes on, and
//! what changed is found by comparing.

use crate::{EXTENT, GuestRam, PAGE};
use block::{Error, Result, Span, offload};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

/// Bytes that are read at a time.
const STEP: u64 = 16 * EXTENT;

/// Makes the file at `path`, with all that the memory holds, and with room for all that it may: a guest that touches a
/// page for which there is none ends with QEMU. It is noted no more what is read: all is, and not by the
/// guest.
///
/// # Errors
/// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
/// [`Unavailable`](block::ErrorKind::Unavailable) when the file cannot be written;
/// [`Unavailable`](block::ErrorKind::Unavailable), [`NotFound`](block::ErrorKind::NotFound) or
/// [`Corrupt`](block::ErrorKind::Corrupt) when a page cannot be had from the store.
pub(crate) async fn fill(ram: &GuestRam, path: &Path) -> Result<()> {
    let failed = |e| Error::io(path.display(), e);
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    file.set_len(ram.size()).map_err(failed)?;
    match fallocate(&file, FallocateFlags::empty(), 0, ram.size()) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
            tracing::warn!(
                "the guest ends when there is no room for its memory, which cannot be set aside here"
            );
        }
        set_aside => set_aside.map_err(|e| failed(e.into()))?,
    }
    let file = Arc::new(file);
    ram.note_nothing();
    for span in Span::whole(ram.size()).pieces(STEP) {
        let mut buf = vec![0; span.len() as usize];
        ram.read(span, &mut buf).await?;
        // It is zero already.
        if buf.iter().any(|byte| *byte != 0) {
            let file = Arc::clone(&file);
            let write = move || {
                file.write_all_at(&buf, span.offset())
                    .map_err(|e| Error::io("the file of guest memory", e))
            };
            offload(write).await?;
        }
    }
    Ok(())
}

/// Takes over what the guest changed in the file. The guest is stopped.
///
/// # Errors
/// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
/// [`Unavailable`](block::ErrorKind::Unavailable) when the file cannot be read, or the memory cannot take the
/// pages; [`Unavailable`](block::ErrorKind::Unavailable), [`NotFound`](block::ErrorKind::NotFound) or
/// [`Corrupt`](block::ErrorKind::Corrupt) when a page cannot be had from the store.
pub(crate) async fn collect(ram: &GuestRam, path: &Path) -> Result<()> {
    let file = Arc::new(File::open(path).map_err(|e| Error::io(path.display(), e))?);
    for span in Span::whole(ram.size()).pieces(STEP) {
        let (shared, mut now) = (Arc::clone(&file), vec![0; span.len() as usize]);
        let read = move || {
            let outcome = shared.read_exact_at(&mut now, span.offset());
            outcome.map(|()| now).map_err(|e| Error::io("the file of guest memory", e))
        };
        let now = offload(read).await?;
        let mut then = vec![0; now.len()];
        ram.read(span, &mut then).await?;
        let pages = now.chunks_exact(PAGE as usize).zip(then.chunks_exact(PAGE as usize));
        for (index, (now, _)) in pages.enumerate().filter(|(_, (now, then))| now != then) {
            let start = span.offset() + index as u64 * PAGE;
            ram.write(Span::between(start, start + PAGE), now)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryImage;
    use crate::resume_set::FirstReads;
    use crate::save::{self, MachineTail};
    use cache::Cache;
    use disk::Loader;
    use store::{Store, testing};

    /// The memory of a parcel that is all zeroes.
    async fn parcel(dir: &Path, size: u64) -> Arc<MemoryImage> {
        let backend = Arc::new(object_store::memory::InMemory::new());
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let config =
            cache::Config { capacity: 64 << 20, policy: cache::PolicyKind::default(), seed: 1 };
        let cache = Arc::new(Cache::new(config));
        let loader = Loader::new(store.clone(), cache, disk::LoadOptions::default());
        let frozen = GuestRam::new(dir, size, None).unwrap().freeze().unwrap();
        let session = store.session("test").await.unwrap();
        let saved = save::memory(&session, None, &frozen, MachineTail::default(), None, &()).await;
        let saved = session.close(saved).await.unwrap();
        let manifest = store.manifest(&saved.imported.manifest).await.unwrap();
        Arc::new(MemoryImage::new(&loader, manifest, saved.layout).unwrap())
    }

    #[tokio::test]
    async fn what_is_read_to_fill_the_file_is_not_noted_as_what_the_guest_read() {
        let dir = tempfile::tempdir().unwrap();
        let base = parcel(dir.path(), 4 << 20).await;
        let ram = GuestRam::new(dir.path(), 4 << 20, Some(base)).unwrap();
        ram.read(Span::between(0, PAGE), &mut [0; PAGE as usize]).await.unwrap();
        assert_eq!((ram.noted().extents, ram.noted().pages), (vec![0], vec![0]));
        fill(&ram, &dir.path().join("memory")).await.unwrap();
        assert_eq!([ram.noted(), ram.stop_noting()], <[FirstReads; 2]>::default());
    }

    #[tokio::test]
    async fn only_what_changed_in_the_file_is_taken_over() {
        let dir = tempfile::tempdir().unwrap();
        let ram = GuestRam::new(dir.path(), 4 << 20, None).unwrap();
        ram.write(Span::between(0, PAGE), &[1; PAGE as usize]).unwrap();
        let path = dir.path().join("memory");
        fill(&ram, &path).await.unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(blocks * 512 >= 4 << 20, "there is room for {blocks} blocks alone");
        file.write_all_at(&[2; 10], 3 << 20).unwrap();
        collect(&ram, &path).await.unwrap();
        assert_eq!(ram.written(), 2 * PAGE);
        let mut page = [0; PAGE as usize];
        ram.read(Span::between(3 << 20, (3 << 20) + PAGE), &mut page).await.unwrap();
        assert_eq!((page[..10].to_vec(), page[10]), (vec![2; 10], 0));
    }
}
