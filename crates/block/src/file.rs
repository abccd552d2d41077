//! Positional file I/O with a fast path that never waits for the disk.

#[cfg(test)]
mod tests;

use crate::fs::{File, FsPath, Open};
use crate::image_lock::LockedFile;
use crate::offload::offload_read;
use crate::ring::{ReadTarget, Ring};
use crate::{Attempt, Error, ErrorKind, Extent, ExtentKind, Result, Span, extent, offload};
use rustix::io::Errno;
use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Longer writes may make the kernel wait for the disk, in bytes.
const LONG_WRITE: usize = 256 << 10;

/// Runs work that may block on this thread, while others take its tasks where there are others.
fn in_place<T>(work: impl FnOnce() -> T) -> T {
    use tokio::runtime::{Handle, RuntimeFlavor};
    match Handle::try_current().map(|runtime| runtime.runtime_flavor()) {
        Ok(RuntimeFlavor::MultiThread) => tokio::task::block_in_place(work),
        _ => work(),
    }
}

/// A regular file or block device, read and written at offsets by any number of tasks.
///
/// Reads that the page cache can answer are done on the spot ([`try_read`](Self::try_read));
/// others go by the [ring](crate::ring) where there is one. Where there is none, and with everything
/// else that may wait for the disk, threads wait ([`offload`]).
#[derive(Debug)]
pub struct RandomFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    file: File,
    path: PathBuf,
    /// Keeps the lock on the file, until the last request of it has ended.
    _lock: Option<LockedFile>,
    /// The ring of this file, if not the one that is installed.
    ring: Option<Ring>,
    /// The file system answers reads with RWF_NOWAIT.
    nowait: AtomicBool,
}

impl RandomFile {
    /// Opens a file with the given options.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) or [`Denied`](ErrorKind::Denied); [`Conflict`](ErrorKind::Conflict)
    /// and [`NoSpace`](ErrorKind::NoSpace) where the options make a file. Each names the path.
    pub fn open(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let file = options.open(path).map_err(|e| Error::io(path.display(), e))?;
        Ok(Self::from_file(file, path))
    }

    /// Opens a file of any file system.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) or [`Denied`](ErrorKind::Denied); [`Conflict`](ErrorKind::Conflict)
    /// and [`NoSpace`](ErrorKind::NoSpace) where the options make a file. Each names the path.
    pub fn open_on(path: &FsPath, how: Open) -> Result<Self> {
        let file = path.open(how).map_err(|e| path.error(e))?;
        Ok(Self::from_file(file, path.to_path_buf()))
    }

    /// Uses an open file; `path` is for messages.
    pub fn from_file(file: impl Into<File>, path: impl Into<PathBuf>) -> Self {
        Self::new(file.into(), path.into(), None)
    }

    /// Uses an open file that is locked, and gives the lock back when its last request has ended.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when this process may open no more files.
    pub fn from_locked(file: LockedFile, path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        let own = file.try_clone().map_err(|e| Error::io(path.display(), e))?;
        Ok(Self::with(own.into(), path, Some(file), None))
    }

    /// Uses an open file that waits for the disk by `ring`, whichever is installed.
    pub fn with_ring(file: impl Into<File>, path: impl Into<PathBuf>, ring: Ring) -> Self {
        Self::new(file.into(), path.into(), Some(ring))
    }

    fn new(file: File, path: PathBuf, ring: Option<Ring>) -> Self {
        Self::with(file, path, None, ring)
    }

    fn with(file: File, path: PathBuf, lock: Option<LockedFile>, ring: Option<Ring>) -> Self {
        Self {
            inner: Arc::new(Inner { file, path, _lock: lock, ring, nowait: AtomicBool::new(true) }),
        }
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The file itself.
    pub fn file(&self) -> &File {
        &self.inner.file
    }

    /// The length in bytes; that of the device for a block device.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the file system cannot tell.
    pub fn len(&self) -> Result<u64> {
        self.inner.file.len().map_err(|e| Error::io(self.path().display(), e))
    }

    /// Whether the file has no byte.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the file system cannot tell.
    pub fn is_empty(&self) -> Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads if the page cache holds all of it. Bytes beyond the end of the file read as zeroes.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the disk fails.
    pub fn try_read(&self, offset: u64, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_by(offset, buf, |at, buf| self.inner.file.read_now(buf, at))
    }

    #[inline]
    fn try_read_by(
        &self,
        offset: u64,
        buf: &mut [u8],
        mut read: impl FnMut(u64, &mut [u8]) -> rustix::io::Result<usize>,
    ) -> Result<Attempt> {
        let inner = &*self.inner;
        if !inner.nowait.load(Ordering::Relaxed) {
            return Ok(Attempt::WouldWait);
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            match read(at, &mut buf[done..]) {
                // Linux 5.9 and 5.10 say so, too, of what is not in the page cache (preadv2(2), BUGS).
                Ok(0) if at < self.len()? => return Ok(Attempt::WouldWait),
                Ok(0) => {
                    buf[done..].fill(0);
                    break;
                }
                Ok(n) => done += n,
                Err(Errno::AGAIN) => return Ok(Attempt::WouldWait),
                Err(Errno::INTR) => {}
                Err(Errno::OPNOTSUPP | Errno::INVAL) => {
                    inner.nowait.store(false, Ordering::Relaxed);
                    return Ok(Attempt::WouldWait);
                }
                Err(e) => return Err(inner.error(e)),
            }
        }
        Ok(Attempt::Done)
    }

    /// Reads, waiting for the disk where needed. Bytes beyond the end read as zeroes.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the disk fails.
    pub async fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if self.try_read(offset, buf)? == Attempt::Done {
            return Ok(());
        }
        self.read_waiting(offset, buf).await
    }

    /// Reads what was not in the page cache a moment ago.
    async fn read_waiting(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if let Some(ring) = self.inner.ring()
            && self.inner.read_by(ring, offset, buf).await? == Attempt::Done
        {
            return Ok(());
        }
        let inner = Arc::clone(&self.inner);
        let len = buf.len();
        let bytes = offload_read(move || {
            let mut bytes = vec![0; len];
            inner.read_blocking(offset, &mut bytes)?;
            Ok(bytes)
        })
        .await?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    /// Reads on this thread, waiting for the disk where needed.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the disk fails.
    pub fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.inner.read_blocking(offset, buf)
    }

    /// Writes into the page cache, on this thread. The kernel makes a writer wait when the disk is
    /// far behind, for seconds with a long write: the runtime lends this thread's other tasks to
    /// another one meanwhile.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) when the file system is full, [`Unavailable`](ErrorKind::Unavailable)
    /// when the disk fails.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let write = || self.inner.file.write_all_at(data, offset);
        let written = if data.len() > LONG_WRITE { in_place(write) } else { write() };
        written.map_err(|e| Error::io(self.path().display(), e))
    }

    /// Writes, and returns when the bytes (and the metadata needed to read them) are on stable
    /// storage.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) when the file system is full, [`Unavailable`](ErrorKind::Unavailable)
    /// when the disk fails.
    pub async fn write_durable(&self, offset: u64, data: &[u8]) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        let data = data.to_vec();
        offload(move || {
            let written = inner.file.write_durable(&data, offset);
            written.map_err(|e| Error::io(inner.path.display(), e))
        })
        .await
    }

    /// Puts everything written so far on stable storage.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) or [`Unavailable`](ErrorKind::Unavailable) when the bytes do not get
    /// to the disk. The kernel may have dropped the pages that it could not write.
    pub async fn sync(&self) -> Result<()> {
        let inner = Arc::clone(&self.inner);
        offload(move || inner.file.sync_data().map_err(|e| Error::io(inner.path.display(), e)))
            .await
    }

    /// Syncs, and drops what the page cache holds, on this thread: the next reads bring what stable storage
    /// has. After a sync that failed the page cache may hold bytes that storage does not, and call them
    /// written. File systems in memory keep what they hold.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) or [`Unavailable`](ErrorKind::Unavailable) when the sync fails: then
    /// nothing is dropped.
    pub fn drop_cached(&self) -> Result<()> {
        let file = &self.inner.file;
        // Only what is clean can be dropped.
        file.sync_data().map_err(|e| Error::io(self.path().display(), e))?;
        file.drop_clean().map_err(|e| self.inner.error(e))
    }

    /// Sets the length.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) when there is no such room, [`Invalid`](ErrorKind::Invalid) when the
    /// file is not open for writing.
    pub fn set_len(&self, len: u64) -> Result<()> {
        self.inner.file.set_len(len).map_err(|e| Error::io(self.path().display(), e))
    }

    /// Makes a range read as zeroes and gives its room back.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the file system has no holes.
    pub fn punch(&self, span: Span) -> Result<()> {
        self.zero(span, false)
    }

    /// Makes a range read as zeroes and keeps or reserves its room.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the file system cannot.
    pub fn zero_range(&self, span: Span) -> Result<()> {
        self.zero(span, true)
    }

    fn zero(&self, span: Span, keep_room: bool) -> Result<()> {
        if span.is_empty() {
            return Ok(());
        }
        loop {
            match self.inner.file.zero(span.offset(), span.len(), keep_room) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(self.inner.error(e)),
            }
        }
    }

    /// What the file system says of a range: data or holes, at most `limit` extents from its
    /// start. A file system that does not know says data.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the file system fails.
    pub fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut at = span.offset();
        while at < span.end() && list.len() < limit {
            let data = match self.inner.file.seek_data(at) {
                Ok(data) => data.min(span.end()),
                Err(Errno::NXIO) => span.end(),
                Err(Errno::INVAL | Errno::OPNOTSUPP) => {
                    extent::push(&mut list, Span::between(at, span.end()), ExtentKind::Data);
                    break;
                }
                Err(e) => return Err(self.inner.error(e)),
            };
            extent::push(&mut list, Span::between(at, data), ExtentKind::Hole);
            if data == span.end() || list.len() == limit {
                break;
            }
            let hole =
                self.inner.file.seek_hole(data).map_err(|e| self.inner.error(e))?.min(span.end());
            extent::push(&mut list, Span::between(data, hole), ExtentKind::Data);
            at = hole;
        }
        Ok(list)
    }
}

impl AsFd for Inner {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Inner {
    /// The ring to wait by, if any. Of a file system that cannot say that it would have to wait, the
    /// kernel would read by threads of its own, and few of them.
    fn ring(&self) -> Option<&Ring> {
        let can_wait = self.nowait.load(Ordering::Relaxed) && self.file.is_system();
        if offload::is_inline() || !can_wait {
            return None;
        }
        self.ring.as_ref().or_else(|| Ring::installed())
    }

    /// Reads by a ring, if that can.
    async fn read_by(
        self: &Arc<Self>,
        ring: &Ring,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<Attempt> {
        let (mut bytes, mut done) = (vec![0; buf.len()], 0);
        while done < buf.len() {
            let Some(at) = offset.checked_add(done as u64) else { return Ok(Attempt::WouldWait) };
            let Some((back, result)) =
                ring.read(Arc::clone(self) as ReadTarget, at, bytes, done).await
            else {
                return Ok(Attempt::WouldWait);
            };
            bytes = back;
            match result {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) => return Err(Error::io(self.path.display(), e.into())),
            }
        }
        buf[..done].copy_from_slice(&bytes[..done]);
        buf[done..].fill(0);
        Ok(Attempt::Done)
    }

    fn error(&self, errno: Errno) -> Error {
        if errno == Errno::OPNOTSUPP {
            let message = format!("{}: not supported by this file system", self.path.display());
            return Error::new(ErrorKind::Unsupported, message);
        }
        Error::io(self.path.display(), errno.into())
    }

    fn read_blocking(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut done = 0;
        while done < buf.len() {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => {
                    buf[done..].fill(0);
                    break;
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(self.path.display(), e)),
            }
        }
        Ok(())
    }
}

/// Puts the entries of a directory (names made, renamed or removed in it) on stable storage.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) or [`Denied`](ErrorKind::Denied) when it cannot be opened,
/// [`NoSpace`](ErrorKind::NoSpace) or [`Unavailable`](ErrorKind::Unavailable) when the disk fails.
pub fn sync_directory(path: &Path) -> Result<()> {
    FsPath::from(path).sync_directory()
}

/// Where links lead from a path, even when nothing is there.
pub fn behind_links(path: &Path) -> PathBuf {
    let mut path = path.to_owned();
    // As many as the system follows.
    for _ in 0..40 {
        let Ok(to) = std::fs::read_link(&path) else { break };
        path.pop();
        path.push(to);
    }
    path
}
