//! A lent disk, opened for writing while it is still held against others.

use crate::{HostDisk, Watch, sys};
use async_trait::async_trait;
use block::{
    Attempt, Device, Durability, Error, Extent, ExtentKind, RandomFile, Result, Span, ZeroMode,
    extent, image_lock, offload,
};
use rustix::fs::{Advice, FallocateFlags, OFlags};
use std::num::NonZeroU64;
use std::sync::Arc;
use tokio::sync::{Mutex, OwnedMutexGuard};

/// What is written in one lane is written in order: so many bytes side by side.
const LANE: u64 = 1 << 20;
/// How many lanes there are; places far apart share one.
const LANES: usize = 64;

/// A disk or image file of the owner, whole. What is above it ([`Stitched`](crate::Stitched))
/// touches the lent ranges only.
///
/// It is read and written through the page cache, without read-ahead: a page that was not asked for
/// is not read. What is written to a device is on it when the write returns: each node of a disk has a page cache of
/// its own, and a page that the kernel writes out later would land on what the owner has written by another one since.
/// An image file has one page cache, whoever uses it.
pub struct Member {
    file: Arc<RandomFile>,
    size: u64,
    /// Keeps others away for as long as this lives.
    held: Arc<HostDisk>,
    /// Looks whether they kept away.
    watch: Arc<Watch>,
    /// Each is held by a write until that is over, also when nobody waits for it any more: a later one of the same
    /// place would else be overwritten by it.
    lanes: Vec<Arc<Mutex<()>>>,
}

impl Member {
    /// Opens for writing what `held` holds: the very same device or file, whatever its path leads
    /// to by now. Nothing is written but while a look of `watch` holds.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when it cannot be written, and others of opening.
    pub fn open(held: Arc<HostDisk>, watch: Arc<Watch>) -> Result<Self> {
        let failed = |e| Error::io(format_args!("cannot write {}", held.path().display()), e);
        let file = image_lock::open_again(held.file(), OFlags::RDWR).map_err(failed)?;
        held.must_be_writable()?;
        let file = Arc::new(RandomFile::from_file(file, held.path()));
        let size = file.len()?;
        // Only advice: a system that reads ahead all the same reads, but writes nothing.
        let _ = rustix::fs::fadvise(file.file(), 0, NonZeroU64::new(size), Advice::Random);
        let lanes = (0..LANES).map(|_| Arc::default()).collect();
        Ok(Self { file, size, held, watch, lanes })
    }

    /// The lanes of a span, in an order in which no two wait for each other.
    fn lanes(&self, span: Span) -> impl Iterator<Item = &Arc<Mutex<()>>> {
        let (first, last) = (span.offset() / LANE, span.end().saturating_sub(1) / LANE);
        let number = |at: u64| (at % LANES as u64) as usize;
        let (low, high) = match (number(first), number(last) + 1) {
            _ if last.saturating_sub(first) >= LANES as u64 => (0..0, 0..LANES),
            (from, to) if from < to => (0..0, from..to),
            (from, to) => (0..to, from..LANES),
        };
        [low, high].into_iter().filter_map(|numbers| self.lanes.get(numbers)).flatten()
    }

    /// Waits for the writes to a span that are under way.
    async fn alone(&self, span: Span) -> Vec<OwnedMutexGuard<()>> {
        let mut held = Vec::with_capacity(2);
        for lane in self.lanes(span) {
            held.push(Arc::clone(lane).lock_owned().await);
        }
        held
    }

    /// Does what may wait for the disk, if the lenders are as they were. It goes on when nobody waits for it any
    /// more, such as a client that has gone, and the disk and the lanes are held for as long as that.
    async fn offload(
        &self,
        alone: Vec<OwnedMutexGuard<()>>,
        work: impl FnOnce(&RandomFile) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let (file, watch) = (Arc::clone(&self.file), Arc::clone(&self.watch));
        let held = Arc::clone(&self.held);
        offload(move || {
            let done = watch.look().and_then(|()| work(&file));
            drop(alone);
            // What it is written by is closed before others may have the disk.
            drop(file);
            drop(held);
            done
        })
        .await
    }

    /// The disk that is held.
    pub fn disk(&self) -> &Arc<HostDisk> {
        &self.held
    }

    /// Whether every write waits for the disk.
    pub(crate) fn is_written_through(&self) -> bool {
        self.held.is_device()
    }

    /// Puts all that was written on stable storage, before the disk is given up. Waits for the disk.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody else uses a file system that lends: then nothing is
    /// synced. [`Unavailable`](block::ErrorKind::Unavailable) when the bytes do not get to the disk.
    pub fn settle(&self) -> Result<()> {
        self.watch.look()?;
        let synced = self.file.file().sync_data();
        synced.map_err(|e| Error::io(self.file.path().display(), e))
    }

    /// Tells the disk that it need not keep what `span` holds; on an image file the room is given
    /// back. For lent ranges, when the owner agreed to it: what was deleted there cannot be
    /// undeleted afterwards.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody else uses a file system that lends;
    /// [`Unsupported`](block::ErrorKind::Unsupported) when the disk cannot.
    pub fn trim(&self, span: Span) -> Result<()> {
        self.watch.look()?;
        if self.held.is_device() {
            // On a block device this is a discard, where the device zeroes what it discards.
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            let told = FallocateFlags::NO_HIDE_STALE;
            let file = self.file.file();
            return match rustix::fs::fallocate(file, flags | told, span.offset(), span.len()) {
                Ok(()) => Ok(()),
                Err(rustix::io::Errno::OPNOTSUPP) => self.file.punch(span),
                Err(e) => Err(Error::io(self.file.path().display(), e.into())),
            };
        }
        self.file.punch(span)
    }
}

#[async_trait]
impl Device for Member {
    fn size(&self) -> u64 {
        self.size
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.watch.intact()?;
        self.file.try_read(span.offset(), buf)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        let is_busy = || self.lanes(span).any(|lane| lane.try_lock().is_err());
        if self.is_written_through() || !self.watch.is_fresh() || is_busy() {
            return Ok(Attempt::WouldWait);
        }
        self.file.write(span.offset(), data)?;
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.watch.intact()?;
        self.file.read(span.offset(), buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        let alone = self.alone(span).await;
        if durability == Durability::Buffered && !self.is_written_through() {
            self.watch.pass().await?;
            return self.file.write(span.offset(), data);
        }
        let data = data.to_vec();
        self.offload(alone, move |file| {
            let written = match durability {
                Durability::Durable => file.file().write_durable(&data, span.offset()),
                Durability::Buffered => {
                    file.write(span.offset(), &data)?;
                    sys::write_out(file.file(), span)
                }
            };
            written.map_err(|e| Error::io(file.path().display(), e))
        })
        .await
    }

    /// Syncs. Not once somebody else was found to use a file system that lends: the kernel would write out at once
    /// what the page cache of an image file holds.
    async fn flush(&self) -> Result<()> {
        self.offload(Vec::new(), |file| {
            file.file().sync_data().map_err(|e| Error::io(file.path().display(), e))
        })
        .await
    }

    /// Does nothing: the owner's disk is told only when the owner agreed; see [`Member::trim`].
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Ok(())
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        if mode.only_if_fast {
            return Err(Error::unsupported("a lent disk is zeroed byte by byte"));
        }
        let zeroes = vec![0; 64 << 10];
        for piece in span.pieces(zeroes.len() as u64) {
            self.write(piece, &zeroes[..piece.len() as usize], durability).await?;
        }
        Ok(())
    }

    async fn extents(&self, span: Span, _: usize) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        extent::push(&mut list, span, ExtentKind::Data);
        Ok(list)
    }
}
