//! An open file, of the system or not.

use super::{FileType, Metadata};
use rustix::fs::{Advice, FallocateFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use std::fmt;
use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

/// An open file or directory. Cheap to clone where it is not the system's.
#[derive(Debug)]
pub struct File(FileHandle);

#[derive(Debug)]
enum FileHandle {
    System(fs::File),
    Other(Arc<dyn OpenFile>),
}

/// An open file that is not the system's. Errors are what the system calls of the same name report; a
/// lock goes with the last handle.
#[allow(clippy::missing_errors_doc)] // said once, above
pub trait OpenFile: fmt::Debug + Send + Sync {
    /// Reads up to the end of the file.
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize>;
    /// Writes some bytes, at least one.
    fn write_at(&self, data: &[u8], offset: u64) -> io::Result<usize>;
    /// What is known of it.
    fn metadata(&self) -> io::Result<Metadata>;
    /// Sets the length.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes a range read as zeroes without making the file longer: gives its room back, or keeps and
    /// reserves it.
    fn zero(&self, offset: u64, len: u64, keep_room: bool) -> io::Result<()>;
    /// Where the next data begins at or behind `offset`; `None` behind the last.
    fn seek_data(&self, offset: u64) -> io::Result<Option<u64>>;
    /// Where the next hole begins at or behind `offset`, which is data.
    fn seek_hole(&self, offset: u64) -> io::Result<u64>;
    /// Puts the bytes on stable storage, and with `all` everything else that is known of it.
    fn sync(&self, all: bool) -> io::Result<()>;
    /// Forgets clean pages: reads show what stable storage has.
    fn drop_clean(&self) -> io::Result<()>;
    /// Takes the lock, shared or alone; `false` when somebody else has it.
    fn try_lock(&self, alone: bool) -> io::Result<bool>;
    /// Gives the lock back.
    fn unlock(&self) -> io::Result<()>;
}

impl File {
    /// One that is not the system's.
    pub fn other(file: Arc<dyn OpenFile>) -> Self {
        Self(FileHandle::Other(file))
    }

    /// Whether it is the system's: only those have pages in its memory, and can be read by a ring.
    #[inline]
    pub(crate) fn is_system(&self) -> bool {
        matches!(self.0, FileHandle::System(_))
    }

    /// Reads at most what `buf` takes; 0 at the end.
    pub(crate) fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.0 {
            FileHandle::System(file) => file.read_at(buf, offset),
            FileHandle::Other(file) => file.read_at(buf, offset),
        }
    }

    /// Reads what memory has.
    #[inline]
    pub(crate) fn read_now(&self, buf: &mut [u8], offset: u64) -> rustix::io::Result<usize> {
        match &self.0 {
            FileHandle::System(file) => {
                let mut slices = [IoSliceMut::new(buf)];
                rustix::io::preadv2(file, &mut slices, offset, ReadWriteFlags::NOWAIT)
            }
            FileHandle::Other(file) => file.read_at(buf, offset).map_err(errno),
        }
    }

    /// Whether memory has all of a range, so that reading it waits for no device; `false` also when nobody can
    /// tell. Reads nothing: a read that may not wait (`RWF_NOWAIT`) has the kernel begin to fetch what is missing.
    pub fn is_in_memory(&self, offset: u64, len: usize) -> bool {
        match &self.0 {
            FileHandle::System(file) => super::position::is_in_memory(file, offset, len),
            FileHandle::Other(_) => false,
        }
    }

    /// Where the byte at `offset` is on the device of the file system, counted from the begin of that file
    /// system; `None` for a hole, and where the file system does not tell. May read the file system's own
    /// records.
    pub fn device_position(&self, offset: u64) -> Option<u64> {
        match &self.0 {
            FileHandle::System(file) => super::position::device_position(file, offset),
            FileHandle::Other(_) => None,
        }
    }

    /// Reads from `offset` to the end, at most `limit` bytes.
    ///
    /// # Errors
    /// Whatever `pread` reports, such as EIO from a disk that fails:
    /// [`Unavailable`](crate::ErrorKind::Unavailable) as an [`Error`](crate::Error).
    pub fn read_to_end(&self, offset: u64, limit: u64) -> io::Result<Vec<u8>> {
        let left = self.len()?.saturating_sub(offset).min(limit);
        self.read_range(offset, usize::try_from(left).unwrap_or(usize::MAX))
    }

    /// Reads `len` bytes, or those that there are. The memory for all of them is taken at once.
    ///
    /// # Errors
    /// Whatever `pread` reports, such as EIO from a disk that fails:
    /// [`Unavailable`](crate::ErrorKind::Unavailable) as an [`Error`](crate::Error).
    pub fn read_range(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let mut done = 0;
        while done < bytes.len() {
            match self.read_at(&mut bytes[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        bytes.truncate(done);
        Ok(bytes)
    }

    /// Writes all of `data`.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull), [`QuotaExceeded`](io::ErrorKind::QuotaExceeded) or
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) without room; whatever else `pwrite` reports. Some of it
    /// may be written then.
    #[inline]
    pub fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.write_all_at(data, offset),
            FileHandle::Other(file) => {
                let mut done = 0;
                while done < data.len() {
                    done += file.write_at(&data[done..], offset + done as u64)?;
                }
                Ok(())
            }
        }
    }

    /// Writes all of `data`, and returns when it is on stable storage. Waits for the disk.
    ///
    /// # Errors
    /// Any error from the system.
    pub fn write_durable(&self, data: &[u8], offset: u64) -> io::Result<()> {
        let file = match &self.0 {
            FileHandle::System(file) => file,
            FileHandle::Other(file) => {
                self.write_all_at(data, offset)?;
                return file.sync(false);
            }
        };
        let mut done = 0;
        while done < data.len() {
            let slices = [IoSlice::new(&data[done..])];
            let at = offset + done as u64;
            match rustix::io::pwritev2(file, &slices, at, ReadWriteFlags::DSYNC) {
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// The length in bytes; that of the device for a block device.
    ///
    /// # Errors
    /// Whatever `lseek` reports, such as ESPIPE for what is no file but a pipe.
    pub fn len(&self) -> io::Result<u64> {
        match &self.0 {
            FileHandle::System(file) => Ok(rustix::fs::seek(file, SeekFrom::End(0))?),
            FileHandle::Other(file) => file.metadata().map(|found| found.len),
        }
    }

    /// Whether it has no byte.
    ///
    /// # Errors
    /// Whatever `lseek` reports, such as ESPIPE for what is no file but a pipe.
    pub fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Sets the length.
    ///
    /// # Errors
    /// [`InvalidInput`](io::ErrorKind::InvalidInput) when the file is not open for writing,
    /// [`FileTooLarge`](io::ErrorKind::FileTooLarge) or [`StorageFull`](io::ErrorKind::StorageFull) when
    /// there is no such room.
    pub fn set_len(&self, len: u64) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.set_len(len),
            FileHandle::Other(file) => file.set_len(len),
        }
    }

    /// What is known of it.
    ///
    /// # Errors
    /// Whatever `fstat` reports, such as EIO from a network's file system.
    pub fn metadata(&self) -> io::Result<Metadata> {
        match &self.0 {
            FileHandle::System(file) => known(&file.metadata()?),
            FileHandle::Other(file) => file.metadata(),
        }
    }

    /// Puts the bytes on stable storage, and what is needed to read them. Waits for the disk.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull), [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), or EIO
    /// from a disk that fails; what could not be written is not tried again.
    pub fn sync_data(&self) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.sync_data(),
            FileHandle::Other(file) => file.sync(false),
        }
    }

    /// Puts everything of it on stable storage, but for its name. Waits for the disk.
    ///
    /// # Errors
    /// [`StorageFull`](io::ErrorKind::StorageFull), [`QuotaExceeded`](io::ErrorKind::QuotaExceeded), or EIO
    /// from a disk that fails; what could not be written is not tried again.
    pub fn sync_all(&self) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.sync_all(),
            FileHandle::Other(file) => file.sync(true),
        }
    }

    pub(crate) fn drop_clean(&self) -> rustix::io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => rustix::fs::fadvise(file, 0, None, Advice::DontNeed),
            FileHandle::Other(file) => file.drop_clean().map_err(errno),
        }
    }

    pub(crate) fn zero(&self, offset: u64, len: u64, keep_room: bool) -> rustix::io::Result<()> {
        let kind = if keep_room { FallocateFlags::ZERO_RANGE } else { FallocateFlags::PUNCH_HOLE };
        match &self.0 {
            FileHandle::System(file) => {
                rustix::fs::fallocate(file, kind | FallocateFlags::KEEP_SIZE, offset, len)
            }
            FileHandle::Other(file) => file.zero(offset, len, keep_room).map_err(errno),
        }
    }

    pub(crate) fn seek_data(&self, offset: u64) -> rustix::io::Result<u64> {
        match &self.0 {
            FileHandle::System(file) => rustix::fs::seek(file, SeekFrom::Data(offset)),
            FileHandle::Other(file) => match file.seek_data(offset) {
                Ok(Some(at)) => Ok(at),
                Ok(None) => Err(Errno::NXIO),
                Err(e) => Err(errno(e)),
            },
        }
    }

    pub(crate) fn seek_hole(&self, offset: u64) -> rustix::io::Result<u64> {
        match &self.0 {
            FileHandle::System(file) => rustix::fs::seek(file, SeekFrom::Hole(offset)),
            FileHandle::Other(file) => file.seek_hole(offset).map_err(errno),
        }
    }

    /// Takes the lock beside others who share it. Waits for who has it alone.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) where the file system has no locks; ENOLCK when the kernel
    /// has no room for one more.
    pub fn lock_shared(&self) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.lock_shared(),
            FileHandle::Other(file) => match file.try_lock(false)? {
                true => Ok(()),
                false => Err(io::ErrorKind::WouldBlock.into()),
            },
        }
    }

    /// Takes the lock alone; `false` when somebody has it.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) where the file system has no locks; ENOLCK when the kernel
    /// has no room for one more.
    pub fn try_lock(&self) -> io::Result<bool> {
        match &self.0 {
            FileHandle::System(file) => match file.try_lock() {
                Ok(()) => Ok(true),
                Err(fs::TryLockError::WouldBlock) => Ok(false),
                Err(fs::TryLockError::Error(e)) => Err(e),
            },
            FileHandle::Other(file) => file.try_lock(true),
        }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// [`Unsupported`](io::ErrorKind::Unsupported) where the file system has no locks.
    pub fn unlock(&self) -> io::Result<()> {
        match &self.0 {
            FileHandle::System(file) => file.unlock(),
            FileHandle::Other(file) => file.unlock(),
        }
    }
}

impl From<fs::File> for File {
    fn from(file: fs::File) -> Self {
        Self(FileHandle::System(file))
    }
}

impl AsFd for File {
    /// The descriptor; one that no call reads from or writes to when it is not the system's.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            FileHandle::System(file) => file.as_fd(),
            FileHandle::Other(_) => rustix::fs::CWD,
        }
    }
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// What is known of a file of the system.
pub(super) fn known(found: &fs::Metadata) -> io::Result<Metadata> {
    Ok(Metadata {
        kind: kind(found.file_type()),
        len: found.len(),
        room: found.blocks() * 512,
        identity: (found.dev(), found.ino()),
        modified: found.modified()?,
    })
}

pub(super) fn kind(of: fs::FileType) -> FileType {
    if of.is_file() {
        FileType::File
    } else if of.is_dir() {
        FileType::Directory
    } else {
        FileType::Other
    }
}
