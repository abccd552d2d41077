//! Reading and cutting what is indexed; what did not change since the last time excepted.

use super::index::{ContentIndex, FileStamp, IndexRow, IndexedFile, IndexedKind};
use crate::regular::open_regular;
use block::{Device, Error, Result, Span, offload};
use serde::{Deserialize, Serialize};
use std::fs::{File, Metadata};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use store::chunker::{Cutter, PAGE, PageCut};
use store::{Progress, Settings};
use tokio::task::JoinSet;

/// Bytes that are read at a time.
const READ: usize = 1 << 20;
/// Files that are given to a thread at a time, and bytes of them.
const BATCH: usize = 512;
const BATCH_BYTES: u64 = 32 << 20;
/// Threads that read and cut.
const THREADS: usize = 2;
/// The largest file whose places an index can name: 16 TiB.
const LARGEST: u64 = (u32::MAX as u64) * PAGE as u64;
/// Files of less are in no chunk of their own.
const SMALLEST: u64 = PAGE as u64 + 1;

/// What an indexing did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexReport {
    /// Files that were read.
    pub read_files: u64,
    /// Their bytes.
    pub read_bytes: u64,
    /// Files that are as they were.
    pub kept_files: u64,
    /// Files and directories that could not be read, and were left out.
    pub skipped: u64,
    /// Chunks that the index names.
    pub chunks: u64,
}

/// Indexes the regular files below a directory; symbolic links and other file systems are not followed.
/// `before` is an earlier index of the same: what did not change since is not read again.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) or the system's when the directory itself cannot be read;
/// [`Internal`](block::ErrorKind::Internal) when a thread failed.
pub async fn index_tree(
    settings: &Settings,
    root: &Path,
    before: Option<ContentIndex>,
    progress: &dyn Progress,
) -> Result<(ContentIndex, IndexReport)> {
    let mut report = IndexReport::default();
    let (files, skipped) = {
        let root = root.to_owned();
        offload(move || walk(&root)).await?
    };
    report.skipped = skipped;
    let same = before.filter(|index| index.kind == IndexedKind::Tree && index.root == root);
    let mut known = same.map(ContentIndex::by_path).unwrap_or_default();
    let mut index = ContentIndex::new(IndexedKind::Tree, root);
    let mut changed = Vec::new();
    for (path, stamp) in files {
        match known.remove(&path).filter(|file| file.stamp == stamp) {
            Some(file) => {
                report.kept_files += 1;
                progress.advance(stamp.size, 0);
                index.files.push(file);
            }
            None => changed.push((path, stamp)),
        }
    }
    let mut tasks = JoinSet::new();
    let mut batches = batches(changed).into_iter();
    loop {
        while tasks.len() < THREADS
            && let Some(batch) = batches.next()
        {
            let (settings, root) = (settings.clone(), root.to_owned());
            tasks.spawn(
                async move { offload(move || Ok(cut_files(&settings, &root, batch))).await },
            );
        }
        let Some(done) = tasks.join_next().await else { break };
        let failed = |e| Error::internal("a task of an indexing failed").with_source(e);
        let (files, skipped) = done.map_err(failed)??;
        report.skipped += skipped;
        for file in files {
            report.read_files += 1;
            report.read_bytes += file.stamp.size;
            progress.advance(file.stamp.size, 0);
            index.files.push(file);
        }
    }
    index.files.sort_by(|a, b| a.path.cmp(&b.path));
    report.chunks = index.chunks();
    Ok((index, report))
}

/// Indexes a disk image: `device` is what it shows, `stamp` of the file that it is in.
///
/// # Errors
/// Any error from the device; [`Unsupported`](block::ErrorKind::Unsupported) above 16 TiB.
pub async fn index_image(
    settings: &Settings,
    root: &Path,
    stamp: FileStamp,
    device: &dyn Device,
    before: Option<ContentIndex>,
    progress: &dyn Progress,
) -> Result<(ContentIndex, IndexReport)> {
    let mut report = IndexReport::default();
    if let Some(same) = before
        && same.kind == IndexedKind::Image
        && same.root == root
        && same.files.first().is_some_and(|file| file.stamp == stamp)
    {
        report.kept_files = 1;
        report.chunks = same.chunks();
        return Ok((same, report));
    }
    if device.size() > LARGEST {
        return Err(Error::unsupported(format!(
            "{}: images above 16 TiB cannot be indexed",
            root.display()
        )));
    }
    let (mut rows, mut cutter) = (Vec::new(), FileCutter::new(true));
    let mut at = 0;
    while at < device.size() {
        let span = Span::between(at, (at + READ as u64).min(device.size()));
        let mut buffer = vec![0; (span.len() as usize).next_multiple_of(PAGE)];
        device.read(span, &mut buffer[..span.len() as usize]).await?;
        let settings = settings.clone();
        (rows, cutter) = offload(move || {
            cutter.feed(&settings, &buffer, &mut rows);
            Ok((rows, cutter))
        })
        .await?;
        progress.advance(span.len(), 0);
        at = span.end();
    }
    cutter.end(settings, &mut rows);
    report.read_files = 1;
    report.read_bytes = device.size();
    let mut index = ContentIndex::new(IndexedKind::Image, root);
    index.files.push(IndexedFile { path: PathBuf::new(), stamp, rows });
    report.chunks = index.chunks();
    Ok((index, report))
}

impl FileStamp {
    /// That of a file now.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.len(),
            seconds: metadata.mtime(),
            nanos: metadata.mtime_nsec() as u32,
        }
    }
}

/// The regular files below a directory that are worth indexing, and how many things could not be read.
fn walk(root: &Path) -> Result<(Vec<(PathBuf, FileStamp)>, u64)> {
    let at_root = |e| Error::io(root.display(), e);
    let device = std::fs::metadata(root).map_err(at_root)?.dev();
    let (mut files, mut skipped) = (Vec::new(), 0);
    let mut directories = vec![PathBuf::new()];
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(root.join(&directory)) {
            Ok(entries) => entries,
            Err(e) if directory.as_os_str().is_empty() => return Err(at_root(e)),
            Err(_) => {
                skipped += 1;
                continue;
            }
        };
        for entry in entries {
            let found = entry.and_then(|entry| Ok((entry.metadata()?, entry.file_name())));
            let Ok((metadata, name)) = found else {
                skipped += 1;
                continue;
            };
            let path = directory.join(name);
            if metadata.is_dir() && metadata.dev() == device {
                directories.push(path);
            } else if metadata.is_file() && (SMALLEST..=LARGEST).contains(&metadata.len()) {
                files.push((path, FileStamp::of(&metadata)));
            }
        }
    }
    // Neighbours in a directory tend to be neighbours on the disk.
    files.sort_by(|a, b| a.0.cmp(&b.0));
    Ok((files, skipped))
}

fn batches(files: Vec<(PathBuf, FileStamp)>) -> Vec<Vec<(PathBuf, FileStamp)>> {
    let (mut batches, mut batch, mut bytes) = (Vec::new(), Vec::new(), 0);
    for file in files {
        bytes += file.1.size;
        batch.push(file);
        if batch.len() >= BATCH || bytes >= BATCH_BYTES {
            batches.push(std::mem::take(&mut batch));
            bytes = 0;
        }
    }
    if !batch.is_empty() {
        batches.push(batch);
    }
    batches
}

/// Cuts files; how many could not be read, or were changed meanwhile.
fn cut_files(
    settings: &Settings,
    root: &Path,
    batch: Vec<(PathBuf, FileStamp)>,
) -> (Vec<IndexedFile>, u64) {
    let (mut files, mut skipped) = (Vec::with_capacity(batch.len()), 0);
    let mut buffer = vec![0; READ];
    for (path, stamp) in batch {
        let cut = open_regular(&root.join(&path)).and_then(|(mut file, metadata)| {
            let (found, mut rows) = (FileStamp::of(&metadata), Vec::new());
            cut_file(settings, &mut file, &mut buffer, &mut rows)?;
            let after = FileStamp::of(&file.metadata()?);
            Ok((found == stamp && after == stamp).then_some(rows))
        });
        match cut {
            Ok(Some(rows)) => files.push(IndexedFile { path, stamp, rows }),
            Ok(None) | Err(_) => skipped += 1,
        }
    }
    (files, skipped)
}

fn cut_file(
    settings: &Settings,
    file: &mut File,
    buffer: &mut [u8],
    rows: &mut Vec<IndexRow>,
) -> std::io::Result<()> {
    let mut cutter = FileCutter::new(false);
    let mut filled = 0;
    loop {
        let n = file.read(&mut buffer[filled..])?;
        filled += n;
        if n == 0 {
            // The last page is padded, as a file system pads it.
            let end = filled.next_multiple_of(PAGE);
            buffer[filled..end].fill(0);
            cutter.feed(settings, &buffer[..end], rows);
            cutter.end(settings, rows);
            return Ok(());
        }
        if filled == buffer.len() {
            cutter.feed(settings, buffer, rows);
            filled = 0;
        }
    }
}

/// Cuts what comes page by page, and names the chunks.
struct FileCutter {
    cutter: Cutter,
    /// What was read of the current chunk before.
    begun: Vec<u8>,
    page: u64,
    /// Chunks end where an image's segments do.
    in_segments: bool,
}

impl FileCutter {
    fn new(in_segments: bool) -> Self {
        Self { cutter: Cutter::default(), begun: Vec::new(), page: 0, in_segments }
    }

    /// Takes whole pages.
    fn feed(&mut self, settings: &Settings, bytes: &[u8], rows: &mut Vec<IndexRow>) {
        let mut start = 0;
        for (number, page) in bytes.chunks_exact(PAGE).enumerate() {
            let shown = if self.in_segments { self.page } else { 0 };
            let verdict = self.cutter.page(shown, page);
            let (at, next) = (number * PAGE, (number + 1) * PAGE);
            match verdict {
                PageCut::Join => {}
                PageCut::Cut => {
                    self.name(settings, &bytes[start..next], self.page + 1, rows);
                    start = next;
                }
                PageCut::Hole => {
                    self.name(settings, &bytes[start..at], self.page, rows);
                    start = next;
                }
            }
            self.page += 1;
        }
        self.begun.extend_from_slice(&bytes[start..]);
    }

    /// A chunk ends before page `end`.
    fn name(&mut self, settings: &Settings, rest: &[u8], end: u64, rows: &mut Vec<IndexRow>) {
        let len = self.begun.len() + rest.len();
        if len == 0 {
            return;
        }
        let id = if self.begun.is_empty() {
            settings.chunk_id(rest)
        } else {
            self.begun.extend_from_slice(rest);
            settings.chunk_id(&self.begun)
        };
        self.begun.clear();
        let pages = len / PAGE;
        rows.push(IndexRow { id, page: (end - pages as u64) as u32, pages: pages as u16 });
    }

    /// Nothing follows.
    fn end(&mut self, settings: &Settings, rows: &mut Vec<IndexRow>) {
        self.name(settings, &[], self.page, rows);
        self.cutter.end();
    }
}
