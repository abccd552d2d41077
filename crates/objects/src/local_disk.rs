//! The files of the piece cache.
//!
//! Nothing is remembered of them but how much was written since they were counted: the directory
//! is the truth, so it may be deleted, shared and restored at any time. When this process has
//! written a sixteenth of the limit, all files are counted, and the ones that were not used for
//! longest go, in little memory however many there are (`eviction`). Who reads does not wait for that, and what is
//! kept meanwhile counts towards the next time. A file that is used gets the time of its use, at most once in a
//! quarter of an hour.

mod eviction;

use block::{ErrorKind, offload, offload_behind};
use bytes::Bytes;
use eviction::{EvictionMemory, evict};
use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Where pieces are kept, and how many.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PieceOptions {
    /// The directory; it is made when something is kept. It may be deleted at any time.
    pub dir: PathBuf,
    /// Bytes that are kept; the least recently used pieces go first.
    pub limit: u64,
}

/// What a piece cache did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PieceCounters {
    /// Parts that were on the local disk.
    pub hits: u64,
    /// Their bytes.
    pub hit_bytes: u64,
    /// Parts that were fetched.
    pub misses: u64,
    /// Their bytes.
    pub miss_bytes: u64,
    /// Files that were damaged, and were fetched again.
    pub damaged: u64,
    /// Parts that could not be kept: the local disk is full or fails.
    pub not_kept: u64,
    /// Bytes that were dropped to make room.
    pub evicted_bytes: u64,
}

const MAGIC: [u8; 8] = *b"SOJPIEC1";
const HEADER: usize = MAGIC.len() + 32;
/// The longest file that is read.
const MAX_FILE: u64 = 32 << 20;
/// After a failed write nothing is kept for this long.
const PAUSE: Duration = Duration::from_secs(30);
/// Names whose time of use is fresh; forgotten all at once.
const FRESH: usize = 16384;
const FRESH_FOR: Duration = Duration::from_secs(15 * 60);

/// Removes from a directory the files beyond a limit that were not used for longest; gives their bytes.
type Evict = dyn Fn(&Path, u64) -> u64 + Send + Sync;

/// What is told of a part.
pub(crate) struct ToldPart {
    /// The part.
    pub(crate) name: [u8; 32],
    /// Which of its bytes, if it goes so far; …
    pub(crate) within: Range<u64>,
    /// … what they are, as far as the object goes; …
    pub(crate) bytes: Bytes,
    /// … and whether they are the whole part.
    pub(crate) is_all: bool,
}

/// A directory of parts of objects.
pub(crate) struct LocalDisk {
    options: PieceOptions,
    tally: LivePieceCounters,
    /// Bytes written by this process since the files were counted.
    written: AtomicU64,
    /// Whether the files were counted at all.
    counted: AtomicBool,
    /// Whether they are being counted.
    counting: AtomicBool,
    evict: Box<Evict>,
    /// Numbers of temporary files.
    serial: AtomicU64,
    /// Until when nothing is kept.
    paused: Mutex<Option<Instant>>,
    used: Mutex<(HashSet<[u8; 32]>, Option<Instant>)>,
}

#[derive(Default)]
struct LivePieceCounters {
    hits: AtomicU64,
    hit_bytes: AtomicU64,
    misses: AtomicU64,
    miss_bytes: AtomicU64,
    damaged: AtomicU64,
    not_kept: AtomicU64,
    evicted: AtomicU64,
}

impl LocalDisk {
    pub(crate) fn new(options: PieceOptions) -> Self {
        Self {
            options,
            tally: LivePieceCounters::default(),
            written: AtomicU64::new(0),
            counted: AtomicBool::new(false),
            counting: AtomicBool::new(false),
            evict: Box::new(|dir, limit| evict(dir, limit, EvictionMemory::USUAL)),
            serial: AtomicU64::new(0),
            paused: Mutex::default(),
            used: Mutex::default(),
        }
    }

    /// What happened so far.
    pub(crate) fn counters(&self) -> PieceCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PieceCounters {
            hits: read(&self.tally.hits),
            hit_bytes: read(&self.tally.hit_bytes),
            misses: read(&self.tally.misses),
            miss_bytes: read(&self.tally.miss_bytes),
            damaged: read(&self.tally.damaged),
            not_kept: read(&self.tally.not_kept),
            evicted_bytes: read(&self.tally.evicted),
        }
    }

    fn path(&self, name: &[u8; 32]) -> PathBuf {
        let hex = blake3::Hash::from_bytes(*name).to_hex();
        let hex = hex.as_str();
        self.options.dir.join(&hex[..2]).join(&hex[2..])
    }

    /// The part of this name, if it is kept and sound.
    pub(crate) async fn read(self: &Arc<Self>, name: [u8; 32]) -> Option<Bytes> {
        let path = self.path(&name);
        let touch = self.is_due(name);
        let found = offload(move || Ok(load(&path, &name, touch))).await;
        match found {
            Ok(Loaded::Sound(bytes)) => {
                self.tally.hits.fetch_add(1, Ordering::Relaxed);
                self.tally.hit_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                return Some(bytes);
            }
            Ok(Loaded::Damaged) => {
                self.tally.damaged.fetch_add(1, Ordering::Relaxed);
            }
            Ok(Loaded::Absent) | Err(_) => {}
        }
        self.tally.misses.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Whether a part of this name is there; it is not read.
    pub(crate) fn has(&self, name: [u8; 32]) -> bool {
        self.path(&name).exists()
    }

    /// Whether the file's time of use is to be renewed.
    fn is_due(&self, name: [u8; 32]) -> bool {
        let mut used = self.used.lock();
        let now = Instant::now();
        let (names, since) = &mut *used;
        if names.len() >= FRESH || since.is_none_or(|since| now - since >= FRESH_FOR) {
            names.clear();
            *since = Some(now);
        }
        names.insert(name)
    }

    /// Keeps a part. That it cannot be kept is counted, and nobody's trouble.
    pub(crate) async fn keep(self: &Arc<Self>, name: [u8; 32], bytes: Bytes) {
        let len = bytes.len() as u64;
        self.tally.miss_bytes.fetch_add(len, Ordering::Relaxed);
        let paused = self.paused.lock().is_some_and(|until| Instant::now() < until);
        if paused || len + HEADER as u64 > self.options.limit / 4 {
            self.tally.not_kept.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let path = self.path(&name);
        let serial = self.serial.fetch_add(1, Ordering::Relaxed);
        let saved = offload(move || {
            save(&path, &name, &bytes, serial).map_err(|e| block::Error::io(path.display(), e))
        });
        match saved.await {
            Ok(()) => {
                let written = self.written.fetch_add(len + HEADER as u64, Ordering::Relaxed);
                if written > self.options.limit / 16 || !self.counted.load(Ordering::Relaxed) {
                    self.make_room();
                }
            }
            // Somebody deleted the directory, or made room, in the middle: the next may be kept.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.tally.not_kept.fetch_add(1, Ordering::Relaxed);
            }
            Err(e) => {
                self.tally.not_kept.fetch_add(1, Ordering::Relaxed);
                *self.paused.lock() = Some(Instant::now() + PAUSE);
                tracing::warn!(error = %e, "the piece cache keeps nothing for a while");
                if e.kind() == ErrorKind::NoSpace {
                    self.make_room();
                }
            }
        }
    }

    /// Removes parts.
    pub(crate) async fn forget(self: &Arc<Self>, names: Vec<[u8; 32]>) {
        let paths: Vec<_> = names.iter().map(|name| self.path(name)).collect();
        let removed = offload(move || {
            paths.iter().for_each(|path| drop(fs::remove_file(path)));
            Ok(())
        });
        let _ = removed.await;
    }

    /// Removes, and gives, those of these parts that are kept and have other bytes in a range than is told.
    pub(crate) async fn forget_changed(self: &Arc<Self>, parts: Vec<ToldPart>) -> Vec<ToldPart> {
        let paths: Vec<_> = parts.iter().map(|part| self.path(&part.name)).collect();
        let compared = offload(move || {
            let mut changed = Vec::new();
            for (path, part) in paths.iter().zip(parts) {
                let Loaded::Sound(kept) = load(path, &part.name, false) else { continue };
                let at = |offset| usize::try_from(offset).unwrap_or(usize::MAX).min(kept.len());
                if kept[at(part.within.start)..at(part.within.end)] != part.bytes {
                    let _ = fs::remove_file(path); // somebody else may have
                    changed.push(part);
                }
            }
            Ok(changed)
        });
        compared.await.unwrap_or_default()
    }

    /// Has the files counted, and those removed that were not used for longest, unless somebody does that already.
    /// Nobody waits for it: a walk through millions of files takes minutes on a disk with an arm.
    fn make_room(self: &Arc<Self>) {
        if self.counting.swap(true, Ordering::Relaxed) {
            return;
        }
        self.counted.store(true, Ordering::Relaxed);
        self.written.store(0, Ordering::Relaxed);
        let count = RunningCount(Arc::clone(self));
        offload_behind(move || {
            let disk = &count.0;
            let evicted = (disk.evict)(&disk.options.dir, disk.options.limit);
            disk.tally.evicted.fetch_add(evicted, Ordering::Relaxed);
        });
    }
}

/// A count of the files that is under way, or was not begun as the process ends.
struct RunningCount(Arc<LocalDisk>);

impl Drop for RunningCount {
    fn drop(&mut self) {
        self.0.counting.store(false, Ordering::Relaxed);
    }
}

enum Loaded {
    Sound(Bytes),
    Damaged,
    Absent,
}

fn load(path: &Path, name: &[u8; 32], touch: bool) -> Loaded {
    let Ok(mut file) = File::open(path) else { return Loaded::Absent };
    let len = file.metadata().map_or(0, |meta| meta.len());
    let mut bytes = Vec::with_capacity(len.min(MAX_FILE) as usize);
    let whole = len <= MAX_FILE && (&mut file).take(MAX_FILE).read_to_end(&mut bytes).is_ok();
    if !whole || !is_sound(name, &bytes) {
        let _ = fs::remove_file(path);
        return Loaded::Damaged;
    }
    if touch {
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        let keep = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
        let times = Timestamps { last_access: keep, last_modification: now };
        let _ = rustix::fs::utimensat(CWD, path, &times, AtFlags::empty());
    }
    Loaded::Sound(Bytes::from(bytes).slice(HEADER..))
}

fn is_sound(name: &[u8; 32], bytes: &[u8]) -> bool {
    bytes.len() >= HEADER
        && bytes[..8] == MAGIC
        && bytes[8..HEADER] == *blake3::keyed_hash(name, &bytes[HEADER..]).as_bytes()
}

fn save(path: &Path, name: &[u8; 32], bytes: &[u8], serial: u64) -> io::Result<()> {
    let Some(dir) = path.parent() else { return Ok(()) };
    let temporary = path.with_extension(format!("{}-{serial}", std::process::id()));
    let file = match File::create_new(&temporary) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
            File::create_new(&temporary)
        }
        other => other,
    };
    let written = file.and_then(|mut file| {
        file.write_all(&MAGIC)?;
        file.write_all(blake3::keyed_hash(name, bytes).as_bytes())?;
        file.write_all(bytes)?;
        fs::rename(&temporary, path)
    });
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    const LIMIT: u64 = 1 << 20;

    /// A cache whose files are counted only when the test says so, and then as few as it says.
    fn held(dir: &Path) -> (Arc<LocalDisk>, std::sync::mpsc::Sender<u64>, Receiver<()>) {
        let (release, released) = channel();
        let (begins, begun) = channel();
        let released = Mutex::new(released);
        let mut disk = LocalDisk::new(PieceOptions { dir: dir.to_owned(), limit: LIMIT });
        disk.evict = Box::new(move |_, limit| {
            assert_eq!(limit, LIMIT);
            let _ = begins.send(()); // the test may have ended
            released.lock().recv().unwrap_or(0)
        });
        (Arc::new(disk), release, begun)
    }

    #[tokio::test]
    async fn who_keeps_a_part_does_not_wait_until_the_files_are_counted() {
        let dir = tempfile::tempdir().unwrap();
        let (disk, release, begun) = held(dir.path());
        let part = Bytes::from(vec![5; 1000]);
        disk.keep([1; 32], part.clone()).await;
        disk.keep([2; 32], part.clone()).await;
        begun.recv().unwrap();
        assert_eq!(disk.read([1; 32]).await, Some(part.clone()));
        assert_eq!(disk.read([2; 32]).await, Some(part.clone()));
        assert!(begun.try_recv().is_err(), "they are counted once at a time");
        release.send(7).unwrap();
        while disk.counting.load(Ordering::Relaxed) {
            tokio::task::yield_now().await;
        }
        assert_eq!(disk.counters().evicted_bytes, 7);
    }
}
