//! Read-only bytes: of a whole disk ([`Source`]) and of one partition ([`Window`]).

use crate::{Code, Refusal};
use std::cell::Cell;
use std::io;

/// A disk to read from: a block device, an image file, bytes in memory. It cannot be written.
pub trait Source: Send + Sync {
    /// Its size in bytes.
    fn size(&self) -> u64;

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// That of the read; a read beyond the end fails.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// The size of a logical sector in bytes: 512 or 4096.
    fn sector_size(&self) -> u32 {
        512
    }

    /// Whether the disk turns; `None` where nobody knows.
    fn rotational(&self) -> Option<bool> {
        None
    }
}

impl Source for [u8] {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = start.checked_add(buf.len()).and_then(|end| self.get(start..end));
        buf.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl Source for Vec<u8> {
    fn size(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.as_slice().read_at(offset, buf)
    }
}

/// The most bytes that one [`Window::bytes`] returns.
pub const MAX_READ: usize = 16 << 20;

/// The bytes of one partition, or of a whole disk; all that a reader of a file system sees.
///
/// It counts what is read and refuses to go on when that is more than any honest file system of
/// this size needs, so that no image can keep a reader busy for ever.
pub struct Window<'a> {
    source: &'a dyn Source,
    base: u64,
    size: u64,
    work: Cell<u64>,
}

impl<'a> Window<'a> {
    /// All of a disk.
    pub fn whole(source: &'a dyn Source) -> Self {
        Self { source, base: 0, size: source.size(), work: Cell::new(0) }
    }

    /// The `size` bytes at `base` of a disk.
    ///
    /// # Errors
    /// [`Code::OutsideDisk`] when they do not lie on it.
    pub fn part(source: &'a dyn Source, base: u64, size: u64) -> Result<Self, Refusal> {
        match base.checked_add(size) {
            Some(end) if end <= source.size() => {
                Ok(Self { source, base, size, work: Cell::new(0) })
            }
            _ => Err(Refusal::new(
                Code::OutsideDisk,
                format!(
                    "{size} bytes at {base} reach beyond the end of the disk ({} bytes)",
                    source.size()
                ),
            )),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Where it starts on the disk, in bytes.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// The size of the disk's logical sectors in bytes.
    pub fn sector_size(&self) -> u32 {
        self.source.sector_size()
    }

    /// How many bytes were read through this window so far; a read counts as 512 at least.
    pub fn work(&self) -> u64 {
        self.work.get()
    }

    /// Fills `buf` with the bytes at `offset`.
    ///
    /// # Errors
    /// [`Code::OutsideFileSystem`], [`Code::ReadError`], [`Code::TooMuchWork`].
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<(), Refusal> {
        let len = buf.len() as u64;
        if offset.checked_add(len).is_none_or(|end| end > self.size) {
            return Err(Refusal::new(
                Code::OutsideFileSystem,
                format!("{len} bytes at offset {offset} are needed, and it has only {}", self.size),
            ));
        }
        self.count(len.max(512))?;
        self.source.read_at(self.base + offset, buf).map_err(|e| {
            Refusal::new(
                Code::ReadError,
                format!("cannot read {len} bytes at offset {offset}: {e}"),
            )
        })
    }

    /// Counts as if `len` bytes were read: for what a reader goes through that lies nowhere, such as holes.
    ///
    /// # Errors
    /// [`Code::TooMuchWork`].
    pub(crate) fn count(&self, len: u64) -> Result<(), Refusal> {
        let work = self.work.get().saturating_add(len);
        self.work.set(work);
        if work > self.size.saturating_mul(2).saturating_add(16 << 20) {
            return Err(Refusal::new(
                Code::TooMuchWork,
                "its structures lead round and round; check it with its own tool",
            ));
        }
        Ok(())
    }

    /// The `len` bytes at `offset`.
    ///
    /// # Errors
    /// Any error from [`read`](Self::read); [`Code::TooMuchWork`] above [`MAX_READ`].
    pub fn bytes(&self, offset: u64, len: usize) -> Result<Vec<u8>, Refusal> {
        if len > MAX_READ {
            return Err(Refusal::new(
                Code::TooMuchWork,
                format!("it has a structure of {len} bytes; at most {MAX_READ} are read"),
            ));
        }
        // Checked before memory is taken for it.
        if offset.checked_add(len as u64).is_none_or(|end| end > self.size) {
            self.read(offset, &mut [])?;
            return Err(Refusal::new(
                Code::OutsideFileSystem,
                format!("{len} bytes at offset {offset} are needed, and it has only {}", self.size),
            ));
        }
        let mut buf = vec![0; len];
        self.read(offset, &mut buf)?;
        Ok(buf)
    }
}
