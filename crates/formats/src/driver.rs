//! Images that the `imago` library reads, with a guard around it.
//!
//! The library reads and writes its files on the calling thread, and its futures stay on one
//! thread: each request runs as a whole on a thread for blocking work. A panic in it becomes an
//! error that names the file, and ends the use of the image.

use async_trait::async_trait;
use block::image_lock::LockedFile;
use block::{
    Device, Durability, Error, ErrorKind, Extent, ExtentKind, Limits, Result, Span, ZeroMode,
    extent, offload,
};
use imago::file::File;
use imago::{FormatAccess, Mapping, StorageExt};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::runtime::Handle;
use tokio::sync::RwLock;

/// Zeroes written at a time where the format has no mark for them.
const ZEROES: u64 = 1 << 20;

/// What the device must know of an image beside what the library tells.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Traits {
    pub(crate) read_only: bool,
    /// The unit of allocation in bytes, a power of two. Data may end that much before its unit
    /// does at the end of the file.
    pub(crate) unit: u32,
    /// Ranges can be marked as zero.
    pub(crate) zero_marks: bool,
}

/// An image behind the library.
pub(crate) struct ImageDriver {
    shared: Arc<SharedImage>,
    size: u64,
    traits: Traits,
}

struct SharedImage {
    /// Held exclusively to discard, which the library does not do beside other requests.
    image: RwLock<FormatAccess<File>>,
    path: PathBuf,
    broken: AtomicBool,
    /// Given back when the library has closed the image.
    _lock: LockedFile,
}

impl ImageDriver {
    /// Wraps an opened image, whose file is `lock`.
    pub(crate) fn new(
        image: FormatAccess<File>,
        lock: LockedFile,
        path: &Path,
        traits: Traits,
    ) -> Self {
        let size = image.size();
        let shared = SharedImage {
            image: RwLock::new(image),
            path: path.into(),
            broken: AtomicBool::new(false),
            _lock: lock,
        };
        Self { shared: Arc::new(shared), size, traits }
    }

    /// Runs one request beside others.
    async fn run<T: Send + 'static>(
        &self,
        request: impl AsyncFnOnce(&FormatAccess<File>) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.guarded(async move |shared| request(&*shared.image.read().await).await).await
    }

    /// Runs one request alone.
    async fn run_alone<T: Send + 'static>(
        &self,
        request: impl AsyncFnOnce(&mut FormatAccess<File>) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        self.guarded(async move |shared| request(&mut *shared.image.write().await).await).await
    }

    async fn guarded<T: Send + 'static>(
        &self,
        request: impl AsyncFnOnce(&SharedImage) -> io::Result<T> + Send + 'static,
    ) -> Result<T> {
        let shared = Arc::clone(&self.shared);
        let runtime = Handle::current();
        offload(move || {
            if shared.broken.load(Ordering::Relaxed) {
                return Err(broken(&shared.path));
            }
            let outcome = guard(&shared.path, || runtime.block_on(request(&shared)));
            if outcome.is_err() {
                shared.broken.store(true, Ordering::Relaxed);
            }
            outcome?.map_err(|e| error(&shared.path, e))
        })
        .await
    }

    fn writable(&self) -> Result<()> {
        if self.traits.read_only {
            let path = self.shared.path.display();
            return Err(Error::denied(format!("{path}: opened read-only; open it for writing")));
        }
        Ok(())
    }

    async fn settle(&self, durability: Durability) -> Result<()> {
        match durability {
            Durability::Buffered => Ok(()),
            Durability::Durable => self.flush().await,
        }
    }
}

/// Runs the library; a panic of it becomes an error.
pub(crate) fn guard<T>(path: &Path, work: impl FnOnce() -> T) -> Result<T> {
    // What a panic leaves half done is not used again: the image is given up.
    catch_unwind(AssertUnwindSafe(work)).map_err(|_| broken(path))
}

fn broken(path: &Path) -> Error {
    Error::corrupt(format!(
        "{}: the image's structure cannot be followed; check it with qemu-img check",
        path.display()
    ))
}

/// The library's error in our words: what comes from the system keeps its kind, what the library
/// says of the image is damage.
pub(crate) fn error(path: &Path, source: io::Error) -> Error {
    use io::ErrorKind as Io;
    match source.kind() {
        Io::InvalidData | Io::UnexpectedEof | Io::Other | Io::InvalidInput => {
            Error::new(ErrorKind::Corrupt, format!("{}: {source}", path.display()))
                .with_source(source)
        }
        _ => Error::io(path.display(), source),
    }
}

/// Reads, and refuses what the file should hold but does not: the library would read zeroes.
async fn read(image: &FormatAccess<File>, span: Span, buf: &mut [u8], unit: u64) -> io::Result<()> {
    let mut at = span.offset();
    while at < span.end() {
        let (mapping, len) = image.get_mapping(at, span.end() - at).await?;
        if len == 0 {
            return Err(io::Error::other(format!("nothing is mapped at offset {at}")));
        }
        let part = Span::between(at, at + len);
        let part_buf = &mut buf[part.index_in(span)];
        match mapping {
            Mapping::Raw { storage, offset, .. } => {
                let held = imago::Storage::size(storage)?.next_multiple_of(unit);
                if offset.checked_add(len).is_none_or(|end| end > held) {
                    return Err(io::Error::other(format!(
                        "truncated: the data of offset {at} lies behind the end of the file"
                    )));
                }
                storage.read(part_buf, offset).await?;
            }
            Mapping::Zero { .. } => part_buf.fill(0),
            _ => image.read(part_buf, at).await?,
        }
        at += len;
    }
    Ok(())
}

async fn extents(image: &FormatAccess<File>, span: Span, limit: usize) -> io::Result<Vec<Extent>> {
    let mut list = Vec::new();
    let mut at = span.offset();
    while at < span.end() {
        let (mapping, len) = image.get_mapping(at, span.end() - at).await?;
        if len == 0 {
            return Err(io::Error::other(format!("nothing is mapped at offset {at}")));
        }
        let kind = match mapping {
            Mapping::Zero { explicit: true, .. } => ExtentKind::Zero,
            Mapping::Zero { .. } => ExtentKind::Hole,
            _ => ExtentKind::Data,
        };
        extent::push(&mut list, Span::between(at, at + len), kind);
        if list.len() > limit {
            list.truncate(limit);
            break;
        }
        at += len;
    }
    Ok(list)
}

/// Writes zeroes as data where there is data.
async fn write_zeroes(image: &FormatAccess<File>, span: Span) -> io::Result<()> {
    let zeroes = vec![0; span.len().min(ZEROES) as usize];
    let mut at = span.offset();
    while at < span.end() {
        let (mapping, len) = image.get_mapping(at, (span.end() - at).min(ZEROES)).await?;
        if len == 0 {
            return Err(io::Error::other(format!("nothing is mapped at offset {at}")));
        }
        if !matches!(mapping, Mapping::Zero { .. }) {
            image.write(&zeroes[..len as usize], at).await?;
        }
        at += len;
    }
    Ok(())
}

#[async_trait]
impl Device for ImageDriver {
    fn size(&self) -> u64 {
        self.size
    }

    fn limits(&self) -> Limits {
        Limits { preferred: self.traits.unit.max(512), ..Limits::default() }
    }

    fn read_only(&self) -> bool {
        self.traits.read_only
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let len = buf.len();
        let unit = u64::from(self.traits.unit);
        let bytes = self
            .run(async move |image| {
                let mut bytes = vec![0; len];
                read(image, span, &mut bytes, unit).await?;
                Ok(bytes)
            })
            .await?;
        buf.copy_from_slice(&bytes);
        Ok(())
    }

    async fn write(&self, span: Span, data: &[u8], durability: Durability) -> Result<()> {
        self.writable()?;
        let data = data.to_vec();
        self.run(async move |image| image.write(&data, span.offset()).await).await?;
        self.settle(durability).await
    }

    async fn flush(&self) -> Result<()> {
        if self.traits.read_only {
            return Ok(());
        }
        self.run(async move |image| {
            image.flush().await?;
            image.sync().await
        })
        .await
    }

    async fn discard(&self, span: Span, durability: Durability) -> Result<()> {
        self.writable()?;
        let unit = u64::from(self.traits.unit);
        if self.traits.zero_marks
            && let Some(inner) = span.align_inward(unit)
        {
            self.run_alone(async move |image| {
                image.discard_to_zero(inner.offset(), inner.len()).await
            })
            .await?;
        }
        self.settle(durability).await
    }

    async fn zero(&self, span: Span, mode: ZeroMode, durability: Durability) -> Result<()> {
        self.writable()?;
        if mode.only_if_fast && !self.traits.zero_marks {
            let path = self.shared.path.display();
            return Err(Error::unsupported(format!("{path}: this format cannot mark zeroes")));
        }
        let marked = self.traits.zero_marks.then(|| span.align_inward(self.traits.unit.into()));
        // The library is only given whole units: it fails with an unaligned end in the last one.
        let Some(inner) = marked.flatten() else {
            self.run(async move |image| write_zeroes(image, span).await).await?;
            return self.settle(durability).await;
        };
        let (head, rest) = span.split_at(inner.offset());
        let (_, tail) = rest.split_at(inner.end());
        self.run(async move |image| {
            write_zeroes(image, head).await?;
            write_zeroes(image, tail).await
        })
        .await?;
        if mode.may_punch {
            self.run_alone(async move |image| {
                image.discard_to_zero(inner.offset(), inner.len()).await
            })
            .await?;
        } else {
            self.run(async move |image| image.write_zeroes(inner.offset(), inner.len()).await)
                .await?;
        }
        self.settle(durability).await
    }

    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.run(async move |image| extents(image, span, limit).await).await
    }
}
