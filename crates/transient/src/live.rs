//! Room borrowed from a running host: a file without a name on one of its mounted file systems.
//!
//! The file is allocated in full, and vanishes with the process whatever happens. When the host's
//! free space falls under a floor, room is given back by punching holes: first where nothing was
//! written, then, only if the user of the disk can bear that, where data is. Lost data is an error
//! when it is read, never zeroes.

use crate::bits::Bits;
use async_trait::async_trait;
use block::{
    Attempt, Device, Durability, Error, ErrorKind, Extent, ExtentKind, RandomFile, Result, Span,
    ZeroMode, extent, offload,
};
use parking_lot::RwLock;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// Says how many bytes are free beside a file.
type Free = Box<dyn Fn(BorrowedFd<'_>) -> Result<u64> + Send + Sync>;

/// What is given back at a time, in bytes.
const PIECE: u64 = 16 << 20;

/// What the user of a live disk can bear.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GiveBack {
    /// Only room that holds nothing is given back; new data is refused while the host is short.
    Unwritten,
    /// Data is given up too, from the end: for caches and scratch that can be made again.
    Anything,
}

/// What was given back, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Room that held nothing.
    pub unwritten: u64,
    /// Room that held data, which is lost.
    pub lost: u64,
}

/// A private file on a file system in use, as the only member of a stitched disk.
pub struct Live {
    file: Arc<RandomFile>,
    size: u64,
    floor: u64,
    policy: GiveBack,
    /// Bytes free on the file system; asked for at every look.
    free: Free,
    state: RwLock<Blocks>,
}

struct Blocks {
    /// Blocks that hold data.
    used: Bits,
    /// Blocks whose room was given back.
    gone: Bits,
    /// Blocks whose data was given up with their room.
    lost: Bits,
}

impl Live {
    /// Borrows `size` bytes (whole blocks) in the directory `dir`, so that at least `floor` bytes
    /// stay free there.
    ///
    /// # Errors
    /// [`NoSpace`](ErrorKind::NoSpace) when there is not that much room,
    /// [`Unsupported`](ErrorKind::Unsupported) where the file system has no files without names or
    /// cannot allocate.
    pub fn create(dir: &Path, size: u64, floor: u64, policy: GiveBack) -> Result<Self> {
        Self::with_free(dir, size, floor, policy, Box::new(free_bytes))
    }

    fn with_free(dir: &Path, size: u64, floor: u64, policy: GiveBack, free: Free) -> Result<Self> {
        let named = |e: rustix::io::Errno| match e {
            rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR => Error::unsupported(format!(
                "{}: this file system has no files without names, or cannot allocate room ahead; \
                 choose a directory on ext4, XFS or btrfs",
                dir.display()
            )),
            e => Error::io(dir.display(), e.into()),
        };
        // O_EXCL: it can never get a name.
        let flags = OFlags::TMPFILE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
        let file =
            File::from(rustix::fs::open(dir, flags, Mode::RUSR | Mode::WUSR).map_err(named)?);
        let there = free(file.as_fd())?;
        if there < size.saturating_add(floor) {
            return Err(Error::no_space(format!(
                "{}: {there} bytes are free, and {floor} of them are to stay so; borrow less, or \
                 lower the floor",
                dir.display()
            )));
        }
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size).map_err(named)?;
        let blocks = || Bits::new(size);
        let state = Blocks { used: blocks(), gone: blocks(), lost: blocks() };
        let file = Arc::new(RandomFile::from_file(file, dir));
        Ok(Self { file, size, floor, policy, free, state: RwLock::new(state) })
    }

    /// Looks at the host's free space and gives room back when it is under the floor. To be called
    /// about once a second.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
    /// [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub fn keep_floor(&self) -> Result<GivenBack> {
        let mut given = GivenBack::default();
        let mut short = self.short(0)?;
        for data in [false, true] {
            if data && self.policy == GiveBack::Unwritten {
                break;
            }
            // From the end: file systems and databases put what they need most at the start.
            let mut end = self.size;
            while short > 0 && end > 0 {
                let piece = Span::between(end.saturating_sub(PIECE), end);
                let bytes = self.give(piece, data, short)?;
                if data {
                    given.lost += bytes;
                } else {
                    given.unwritten += bytes;
                }
                short = short.saturating_sub(bytes);
                end = piece.offset();
            }
        }
        Ok(given)
    }

    /// How many bytes too few are free, were `more` used.
    fn short(&self, more: u64) -> Result<u64> {
        let free = (self.free)(self.file.file().as_fd())?;
        Ok(self.floor.saturating_add(more).saturating_sub(free))
    }

    /// Gives back up to `wanted` bytes of `piece` that hold data, or that hold none.
    fn give(&self, piece: Span, data: bool, wanted: u64) -> Result<u64> {
        let blocks = self.state.write();
        let (mut at, mut given) = (piece.offset(), 0);
        while at < piece.end() && given < wanted {
            let (run, used) = blocks.used.run(Span::between(at, piece.end()));
            let (run, gone) = blocks.gone.run(run);
            at = run.end();
            if used == data && !gone {
                let wanted = (wanted - given).next_multiple_of(block::BLOCK);
                let part = run.split_at(run.offset() + wanted).0;
                self.file.punch(part)?;
                blocks.gone.put(part, true);
                if data {
                    blocks.used.put(part, false);
                    blocks.lost.put(part, true);
                }
                given += part.len();
            }
        }
        Ok(given)
    }

    /// Bytes whose room was given back.
    pub fn given(&self) -> u64 {
        self.state.read().gone.count() * block::BLOCK
    }

    fn check_read(&self, blocks: &Blocks, span: Span) -> Result<()> {
        if span.is_empty() || blocks.lost.run(span) == (span, false) {
            return Ok(());
        }
        Err(Error::unavailable(format!(
            "{}: data at {} was given up because the host needed the room",
            self.file.path().display(),
            span.offset()
        )))
    }

    /// Writes, taking room again where it was given back and the host has enough.
    fn put(&self, span: Span, data: &[u8]) -> Result<()> {
        let blocks = self.state.read();
        if !span.is_empty() && blocks.gone.run(span) != (span, false) && self.short(span.len())? > 0
        {
            return Err(Error::no_space(format!(
                "{}: the host needs its free space; free some there",
                self.file.path().display()
            )));
        }
        self.file.write(span.offset(), data)?;
        blocks.used.put(span, true);
        blocks.gone.put(span, false);
        blocks.lost.put(span, false);
        Ok(())
    }
}

fn free_bytes(file: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstatvfs(file)
        .map_err(|e| Error::io("cannot see how much space is free", e.into()))?;
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}

/// Whole blocks come from above: this is a member of a stitched disk.
#[async_trait]
impl Device for Live {
    fn size(&self) -> u64 {
        self.size
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        let Some(blocks) = self.state.try_read() else { return Ok(Attempt::WouldWait) };
        self.check_read(&blocks, span)?;
        self.file.try_read(span.offset(), buf)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        self.put(span, data).map(|()| Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.file.read(span.offset(), buf).await?;
        // Looked at afterwards: what was given up meanwhile reads as a hole.
        self.check_read(&self.state.read(), span)
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.put(span, data)?;
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Durable => self.file.sync().await,
        }
    }

    async fn flush(&self) -> Result<()> {
        self.file.sync().await
    }

    /// The blocks hold nothing any more; their room stays allocated until the host wants it.
    async fn discard(&self, span: Span, _: Durability) -> Result<()> {
        let blocks = self.state.write();
        blocks.used.put(span, false);
        blocks.lost.put(span, false);
        Ok(())
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        if mode.only_if_fast {
            return Err(Error::new(ErrorKind::Unsupported, "room of a host is zeroed by writing"));
        }
        for piece in span.pieces(64 << 10) {
            self.write(piece, &vec![0; piece.len() as usize], durability).await?;
        }
        Ok(())
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        let file = Arc::clone(&self.file);
        let mut list = offload(move || file.extents(span, limit)).await?;
        if list.is_empty() {
            extent::push(&mut list, span, ExtentKind::Data);
        }
        Ok(list)
    }
}
