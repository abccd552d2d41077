//! A store in a directory: one file for each object, under its name.
//!
//! A file is written under a name that no listing shows, `<object>#<number>`, synced, and then gets the
//! object's name. What was answered is on stable storage: the file, its name, and the names of the
//! directories that were made for it.
//!
//! A name that is removed is synced away, too, before anything else is made: without a journal, a power cut
//! brings it back with the number of its file, and when a directory has got that number since, the check of
//! the file system takes that directory's own name from it.
//!
//! The same holds for what others wrote. A writer who was killed may have left a name that every process
//! sees and that a power cut takes away. Whoever is told that an object exists already, or finds it in a
//! listing of the directory that it is in, may rely on it and keep no copy: so that directory is synced
//! before the answer, and those above it once. A listing of a tree of directories, such as that of all
//! refs, syncs none.
//!
//! On a share that hangs, each piece of work keeps its thread until the share is back, whoever waits for it. A
//! directory has few [threads](threads), and what finds none waits without one.

mod placed;
#[cfg(test)]
mod tests;
mod threads;

use crate::hint::Hint;
use async_trait::async_trait;
use block::ErrorKind as Kinds;
use block::fs::{DirectoryEntry, File, FileType, FsPath, Metadata, Open};
use bytes::Bytes;
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt, TryFutureExt};
use object_store::path::Path;
use object_store::{
    Attributes, CopyMode, CopyOptions, Error, GetOptions, GetResult, GetResultPayload, ListResult,
    MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions, PutOptions, PutPayload,
    PutResult, Result,
};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;
#[cfg(test)]
pub(crate) use threads::THREADS;
use threads::Threads;

/// What errors call this backend.
const NAME: &str = "directory";
/// Bytes of an object that are read at once. A full pack has 8 MiB: whoever reads whole packs gets each
/// in one buffer, and copies nothing to join pieces.
const PIECE: u64 = 16 << 20;
/// Directories below each other that a listing goes into: more than a store has, fewer than a link that
/// leads back up would make.
const DEPTH: usize = 16;
/// Objects that are deleted one after the other, before their directories are synced.
const DELETED: usize = 64;
/// So many times at the same time.
const DELETIONS: usize = 4;

/// A directory as a backend.
#[derive(Debug, Clone)]
pub(crate) struct Directory {
    root: FsPath,
    settled: Arc<Settled>,
    threads: Threads,
}

/// Device and number of a directory. A share that is mounted again, or another one in its place, has other
/// directories below the same paths.
type DirectoryIdentity = (u64, u64);

/// Directories that were synced.
#[derive(Debug, Default)]
struct Settled {
    /// Those whose own names are durable.
    named: Mutex<HashMap<PathBuf, DirectoryIdentity>>,
    /// Those that were listed, and when they had changed last by then.
    listed: Mutex<HashMap<PathBuf, (DirectoryIdentity, SystemTime)>>,
}

impl Settled {
    /// Makes the name of a directory durable, and those above it below `root`: who made them may have
    /// been killed. They are never removed, so that is done once.
    fn name(&self, root: &FsPath, directory: &FsPath) -> block::Result<()> {
        if **directory == **root {
            return Ok(());
        }
        let found = directory.metadata().map_err(|e| directory.error(e))?.identity;
        if self.named.lock().get(&**directory) == Some(&found) {
            return Ok(());
        }
        let above = directory.above();
        self.name(root, &above)?;
        above.sync_directory()?;
        self.named.lock().insert(directory.to_path_buf(), found);
        Ok(())
    }

    /// Makes the names durable that were found in a directory, of which `found` was known before it was read.
    fn list(&self, root: &FsPath, directory: &FsPath, found: Metadata) -> block::Result<()> {
        let found = (found.identity, found.modified);
        if self.listed.lock().get(&**directory) == Some(&found) {
            return Ok(());
        }
        match self.name(root, directory).and_then(|()| directory.sync_directory()) {
            // One that nobody can write to has nothing to sync, or no way to.
            Err(e) if !matches!(e.kind(), Kinds::Denied | Kinds::Invalid | Kinds::Unsupported) => {
                return Err(e);
            }
            _ => {}
        }
        self.listed.lock().insert(directory.to_path_buf(), found);
        Ok(())
    }
}

/// A sync failed: an object may be there for every reader, and gone after a power cut.
#[derive(Debug)]
struct Undurable(block::Error);

impl fmt::Display for Undurable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot be made durable: {}", self.0)
    }
}

impl std::error::Error for Undurable {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// Whether a write failed after the object was in its place: that it can be read says nothing then.
pub(crate) fn is_undurable(error: &Error) -> bool {
    matches!(error, Error::Generic { source, .. } if source.is::<Undurable>())
}

fn undurable(error: block::Error) -> Error {
    Error::Generic { store: NAME, source: Undurable(error).into() }
}

fn failed(path: &FsPath, error: io::Error) -> Error {
    let named = path.display().to_string();
    match error.kind() {
        io::ErrorKind::NotFound => Error::NotFound { path: named, source: error.into() },
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: named, source: error.into() },
        io::ErrorKind::PermissionDenied => {
            Error::PermissionDenied { path: named, source: error.into() }
        }
        _ => Error::Generic { store: NAME, source: path.error(error).into() },
    }
}

/// Whether a name is that of a file that is being written.
pub(super) fn is_staged(name: &str) -> bool {
    name.split_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    })
}

fn meta(location: Path, found: &Metadata) -> ObjectMeta {
    let since = found.modified.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let (_, number) = found.identity;
    ObjectMeta {
        location,
        last_modified: found.modified.into(),
        size: found.len,
        e_tag: Some(format!("\"{number:x}-{:x}-{:x}\"", since.as_micros(), found.len)),
        version: None,
    }
}

impl Directory {
    /// The directory at `root`, which exists.
    pub(crate) fn new(root: FsPath) -> io::Result<Self> {
        let (settled, threads) = (Arc::default(), Threads::default());
        Ok(Self { root: root.canonicalize()?, settled, threads })
    }

    /// The directory.
    pub(crate) fn root(&self) -> &FsPath {
        &self.root
    }

    /// Does `work` on this directory, on one of its threads.
    pub(crate) async fn work<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.threads.run(work).await
    }

    fn path(&self, location: &Path) -> Result<FsPath> {
        match location.filename() {
            Some(name) if !is_staged(name) => Ok(self.root.join(location.as_ref())),
            _ => {
                let why = format!("{location:?} cannot be the name of an object");
                Err(Error::Generic { store: NAME, source: why.into() })
            }
        }
    }

    /// Deletes objects, and syncs the directories that they were in.
    fn remove(&self, locations: Vec<Result<Path>>) -> Vec<Result<Path>> {
        let mut left = HashMap::new();
        let mut remove = |location: Result<Path>| {
            let location = location?;
            let path = self.path(&location)?;
            path.remove_file().map_err(|e| failed(&path, e))?;
            let directory = path.above();
            left.entry(directory.to_path_buf()).or_insert(directory);
            Ok(location)
        };
        let removed = locations.into_iter().map(&mut remove).collect();
        for directory in left.values() {
            // Should that fail, an object may come back: nobody was promised that it does not.
            let _ = directory.sync_directory();
        }
        removed
    }
}

/// Makes the directory that `path` is in, and those above it, on stable storage.
fn make_above(path: &FsPath) -> Result<()> {
    let directory = path.above();
    if directory.parent().is_none() || directory.is_dir() {
        return Ok(());
    }
    make_above(&directory)?;
    match directory.create_dir() {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(failed(&directory, e)),
        _ => {}
    }
    directory.above().sync_directory().map_err(undurable)
}

/// A new file beside `path`, under a name of its own.
fn stage(path: &FsPath) -> Result<(File, FsPath)> {
    for number in 1u64.. {
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!("#{number}"));
        let staged = path.above().join(name);
        match staged.open(Open::NEW) {
            Ok(file) => return Ok((file, staged)),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound => make_above(&staged)?,
            Err(e) => return Err(failed(&staged, e)),
        }
    }
    Err(Error::Generic { store: NAME, source: "no number is left".into() })
}

/// Writes an object; gives what is known of it.
fn put(path: &FsPath, payload: &PutPayload, mode: &PutMode) -> Result<Metadata> {
    let (file, staged) = stage(path)?;
    let written = || -> io::Result<Metadata> {
        let mut at = 0;
        for part in payload {
            file.write_all_at(part, at)?;
            at += part.len() as u64;
        }
        file.sync_all()?;
        file.metadata()
    };
    let named = written().map_err(|e| failed(&staged, e)).and_then(|found| {
        let named = match mode {
            PutMode::Create => staged.rename_new(path).map(|()| false),
            _ => staged.replace(path),
        };
        named.map(|left| (found, left)).map_err(|e| failed(path, e))
    });
    if named.is_err() {
        let _ = staged.remove_file();
    }
    // Without one that was replaced the name is another writer's by now.
    let left = named.as_ref().is_ok_and(|(_, left)| *left);
    let synced = staged.settle(left).map_err(undurable);
    let named = named.map(|(found, _)| found);
    match named {
        // One that is there already is durable, too, when that is answered.
        Ok(_) | Err(Error::AlreadyExists { .. }) => synced.and(named),
        Err(_) => named,
    }
}

/// Opens an object. A socket, which cannot be opened, is none. (A pipe waits for whoever writes to it, as a file
/// does on a file system that hangs.)
fn open(path: &FsPath) -> Result<File> {
    path.open(Open::READ).map_err(|error| {
        let is_other = path.metadata().is_ok_and(|found| found.kind == FileType::Other);
        failed(path, if is_other { io::ErrorKind::NotFound.into() } else { error })
    })
}

fn read(path: &FsPath, file: &File, range: &Range<u64>) -> Result<Bytes> {
    let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
    let bytes = file.read_range(range.start, len).map_err(|e| failed(path, e))?;
    if bytes.len() < len {
        let why = format!("the range {range:?} ends beyond the object {}", path.display());
        return Err(Error::Generic { store: NAME, source: why.into() });
    }
    Ok(bytes.into())
}

/// The bytes of a range, a piece at a time.
fn pieces(
    threads: Threads,
    path: FsPath,
    file: File,
    range: Range<u64>,
) -> impl Stream<Item = Result<Bytes>> {
    stream::try_unfold((path, file, range), move |(path, file, range)| {
        let threads = threads.clone();
        async move {
            if range.is_empty() {
                return Ok(None);
            }
            let next = range.end.min(range.start + PIECE);
            let piece = move || {
                let bytes = read(&path, &file, &(range.start..next))?;
                Ok(Some((bytes, (path, file, next..range.end))))
            };
            threads.run(piece).await
        }
    })
}

/// What a directory has, with what links lead to; nothing when it is gone.
fn entries(directory: &FsPath) -> Result<Vec<(DirectoryEntry, FsPath)>> {
    let found = match directory.read_dir() {
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(Vec::new());
        }
        other => other.map_err(|e| failed(directory, e))?,
    };
    let followed = found.into_iter().filter_map(|mut entry| {
        let path = directory.join(&entry.name);
        if entry.kind == FileType::Other {
            entry.kind = path.metadata().ok()?.kind;
        }
        Some((entry, path))
    });
    Ok(followed.collect())
}

/// The object that a file is, if it is one and still there. A pipe or a socket is none.
fn object(prefix: &Path, entry: &DirectoryEntry, path: &FsPath) -> Result<Option<ObjectMeta>> {
    let Some(name) = entry.name.to_str().filter(|name| !is_staged(name)) else { return Ok(None) };
    let Some(location) = below(prefix, name) else { return Ok(None) };
    match path.metadata() {
        Ok(found) if found.kind == FileType::File => Ok(Some(meta(location, &found))),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(failed(path, e)),
    }
}

/// The name in a prefix; none for what no object can have.
fn below(prefix: &Path, name: &str) -> Option<Path> {
    match prefix.as_ref() {
        "" => Path::parse(name).ok(),
        prefix => Path::parse(format!("{prefix}/{name}")).ok(),
    }
}

/// Adds the objects below a directory; says whether all of them are in that one itself.
fn walk(
    directory: &FsPath,
    prefix: &Path,
    depth: usize,
    all: &mut Vec<ObjectMeta>,
) -> Result<bool> {
    let mut flat = true;
    for (entry, path) in entries(directory)? {
        match entry.kind {
            FileType::Directory if depth == 0 => {
                let why = format!("{}: directories go too deep for a store", path.display());
                return Err(Error::Generic { store: NAME, source: why.into() });
            }
            FileType::Directory => {
                flat = false;
                if let Some(prefix) = entry.name.to_str().and_then(|name| below(prefix, name)) {
                    walk(&path, &prefix, depth - 1, all)?;
                }
            }
            _ => all.extend(object(prefix, &entry, &path)?),
        }
    }
    Ok(flat)
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "directory {}", self.root.display())
    }
}

#[async_trait]
impl ObjectStore for Directory {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        if matches!(opts.mode, PutMode::Update(_)) || !opts.attributes.is_empty() {
            return Err(Error::NotImplemented {
                operation: "conditional updates and attributes".into(),
                implementer: self.to_string(),
            });
        }
        let (path, location) = (self.path(location)?, location.clone());
        let (root, settled) = (self.root.clone(), Arc::clone(&self.settled));
        self.work(move || {
            let found = put(&path, &payload, &opts.mode);
            if !matches!(&found, Err(e) if !matches!(e, Error::AlreadyExists { .. })) {
                settled.name(&root, &path.above()).map_err(undurable)?;
            }
            let found = found?;
            let e_tag = meta(location, &found).e_tag;
            Ok(PutResult { e_tag, version: None, extensions: Default::default() })
        })
        .await
    }

    async fn put_multipart_opts(
        &self,
        _: &Path,
        _: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        Err(Error::NotImplemented {
            operation: "uploads in parts".into(),
            implementer: self.to_string(),
        })
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let (path, location) = (self.path(location)?, location.clone());
        let threads = self.threads.clone();
        self.work(move || {
            let file = open(&path)?;
            let found = file.metadata().map_err(|e| failed(&path, e))?;
            if found.kind != FileType::File {
                return Err(failed(&path, io::ErrorKind::NotFound.into()));
            }
            if options.extensions.get() == Some(&Hint::Durable) {
                path.above().sync_directory().map_err(undurable)?;
            }
            let meta = meta(location, &found);
            options.check_preconditions(&meta)?;
            let range = match &options.range {
                Some(range) => range
                    .as_range(meta.size)
                    .map_err(|e| Error::Generic { store: NAME, source: e.into() })?,
                None => 0..meta.size,
            };
            let (at, end) = (range.start, range.end);
            let body = if options.head {
                stream::empty().boxed()
            } else if end - at <= PIECE {
                let bytes = read(&path, &file, &range)?;
                stream::iter([Ok(bytes)]).boxed()
            } else {
                pieces(threads, path, file, at..end).boxed()
            };
            Ok(GetResult {
                payload: GetResultPayload::Stream(body),
                attributes: Attributes::default(),
                range,
                meta,
                extensions: Default::default(),
            })
        })
        .await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        let (path, ranges) = (self.path(location)?, ranges.to_vec());
        self.work(move || {
            let file = open(&path)?;
            ranges.iter().map(|range| read(&path, &file, range)).collect()
        })
        .await
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        let own = self.clone();
        let delete = move |locations: Vec<Result<Path>>| {
            let own = own.clone();
            async move {
                let removing = own.clone();
                let all = own.work(move || Ok(removing.remove(locations))).await;
                stream::iter(all.unwrap_or_else(|e| vec![Err(e)]))
            }
        };
        locations.ready_chunks(DELETED).map(delete).buffered(DELETIONS).flatten().boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        let prefix = prefix.cloned().unwrap_or_default();
        let root = self.root.join(prefix.as_ref());
        let (top, settled) = (self.root.clone(), Arc::clone(&self.settled));
        let threads = self.threads.clone();
        let list = move || {
            let mut all = Vec::new();
            // Before it is read: what changes meanwhile is synced by the next listing.
            let found = root.metadata().ok();
            let flat = walk(&root, &prefix, DEPTH, &mut all)?;
            if let Some(found) = found.filter(|_| flat && !all.is_empty()) {
                settled.list(&top, &root, found).map_err(undurable)?;
            }
            Ok(all)
        };
        let all = async move { threads.run(list).await };
        all.map_ok(|all| stream::iter(all).map(Ok)).try_flatten_stream().boxed()
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        let prefix = prefix.cloned().unwrap_or_default();
        let root = self.root.join(prefix.as_ref());
        self.work(move || {
            let (mut objects, mut common_prefixes) = (Vec::new(), Vec::new());
            for (entry, path) in entries(&root)? {
                if entry.kind == FileType::Directory {
                    common_prefixes.extend(entry.name.to_str().and_then(|n| below(&prefix, n)));
                } else {
                    objects.extend(object(&prefix, &entry, &path)?);
                }
            }
            common_prefixes.sort();
            Ok(ListResult { common_prefixes, objects, extensions: Default::default() })
        })
        .await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        let mode = match options.mode {
            CopyMode::Create => PutMode::Create,
            CopyMode::Overwrite => PutMode::Overwrite,
        };
        let payload = self.get_opts(from, GetOptions::default()).await?.bytes().await?;
        self.put_opts(to, payload.into(), mode.into()).await.map(drop)
    }
}
