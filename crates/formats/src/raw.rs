//! Raw files and block devices.

use async_trait::async_trait;
use block::{
    Attempt, Device, Durability, Error, ErrorKind, Extent, RandomFile, Result, Span, ZeroMode,
    offload,
};
use std::path::Path;
use std::sync::Arc;

/// Zeroes written at a time where the file system cannot zero.
const ZEROES: u64 = 256 << 10;

/// A file whose bytes are the disk's.
pub(crate) struct Raw {
    file: Arc<RandomFile>,
    size: u64,
    read_only: bool,
}

/// Opens a raw image.
pub(crate) async fn open(path: &Path, read_only: bool) -> Result<Arc<dyn Device>> {
    let path = path.to_owned();
    offload(move || {
        let file = RandomFile::from_locked(crate::file::open(&path, read_only)?, path)?;
        Ok(Arc::new(Raw::new(file, read_only)?) as Arc<dyn Device>)
    })
    .await
}

/// Creates a raw image without data.
pub(crate) async fn create(path: &Path, size: u64, mode: u32) -> Result<Arc<dyn Device>> {
    let path = path.to_owned();
    offload(move || {
        crate::file::create(&path, mode, |file| {
            file.set_len(size).map_err(|e| Error::io(path.display(), e))?;
            let file = RandomFile::from_locked(file, &path)?;
            Ok(Arc::new(Raw::new(file, false)?) as Arc<dyn Device>)
        })
    })
    .await
}

impl Raw {
    pub(crate) fn new(file: RandomFile, read_only: bool) -> Result<Self> {
        let size = file.len()?;
        Ok(Self { file: Arc::new(file), size, read_only })
    }

    fn writable(&self) -> Result<()> {
        if self.read_only {
            let path = self.file.path().display();
            return Err(Error::denied(format!("{path}: opened read-only; open it for writing")));
        }
        Ok(())
    }

    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&RandomFile) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let file = Arc::clone(&self.file);
        offload(move || work(&file)).await
    }

    async fn settle(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Durable => self.file.sync().await,
        }
    }
}

/// `Ok` of whether it was done, when the file system cannot.
fn done(result: Result<()>) -> Result<bool> {
    match result {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(false),
        Err(e) => Err(e),
    }
}

fn write_zeroes(file: &RandomFile, span: Span) -> Result<()> {
    let zeroes = vec![0; span.len().min(ZEROES) as usize];
    span.pieces(ZEROES)
        .try_for_each(|piece| file.write(piece.offset(), &zeroes[..piece.len() as usize]))
}

#[async_trait]
impl Device for Raw {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.file.try_read(span.offset(), buf)
    }

    fn try_write(&self, span: Span, data: &[u8]) -> Result<Attempt> {
        self.writable()?;
        self.file.write(span.offset(), data)?;
        Ok(Attempt::Done)
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.file.read(span.offset(), buf).await
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.writable()?;
        match durability {
            Durability::Buffered => self.file.write(span.offset(), data),
            Durability::Durable => self.file.write_durable(span.offset(), data).await,
        }
    }

    async fn flush(&self) -> Result<()> {
        if self.read_only { Ok(()) } else { self.file.sync().await }
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.writable()?;
        self.blocking(move |file| done(file.punch(span))).await?;
        self.settle(durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.writable()?;
        self.blocking(move |file| {
            if mode.may_punch && done(file.punch(span))? || done(file.zero_range(span))? {
                return Ok(());
            }
            if mode.only_if_fast {
                let path = file.path().display();
                return Err(Error::unsupported(format!("{path}: this file system cannot zero")));
            }
            write_zeroes(file, span)
        })
        .await?;
        self.settle(durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.blocking(move |file| file.extents(span, limit)).await
    }
}
