//! Which files of the piece cache go: those that were not used for longest, found in memory that does not grow with
//! their number. 64 GiB of pieces of 4 KiB are sixteen million files.
//!
//! They are gone through twice: once to see how many bytes are of which time, once to remove what is older than the
//! time up to which all must go. Of the files of just that time, as many as are remembered are put in order. What
//! is left to do then is done in another round.

use std::collections::{BTreeMap, BinaryHeap};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// How much is remembered at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct EvictionMemory {
    /// Files.
    files: usize,
    /// Times.
    times: usize,
}

impl EvictionMemory {
    /// Some ten MiB.
    pub(super) const USUAL: Self = Self { files: 1 << 16, times: 1 << 14 };
}

/// A file, in the order in which they go.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PieceFile {
    /// Seconds and nanoseconds of the last use. Of those of the same moment, the ones that are being written go last.
    used: (i64, i64, bool),
    len: u64,
    path: PathBuf,
}

impl PieceFile {
    /// Nanoseconds of the last use.
    fn moment(&self) -> i128 {
        i128::from(self.used.0) * 1_000_000_000 + i128::from(self.used.1)
    }
}

/// The files of the cache in `dir`.
fn files(dir: &Path) -> impl Iterator<Item = PieceFile> {
    let folders = fs::read_dir(dir).into_iter().flatten().flatten();
    let folders = folders.filter(|entry| entry.file_name().len() == 2);
    let entries = folders.flat_map(|folder| fs::read_dir(folder.path()).into_iter().flatten());
    entries.flatten().filter_map(|entry| {
        let meta = entry.metadata().ok()?;
        let path = entry.path();
        let used = (meta.mtime(), meta.mtime_nsec(), path.extension().is_some());
        meta.is_file().then_some(PieceFile { used, len: meta.len(), path })
    })
}

/// How many bytes were last used when: times are as long as they must be for few of them to do.
struct AgeHistogram {
    /// Nanoseconds of a time.
    width: i128,
    times: BTreeMap<i128, u64>,
    most: usize,
}

impl AgeHistogram {
    fn new(most: usize) -> Self {
        Self { width: 1 << 30, times: BTreeMap::new(), most: most.max(1) }
    }

    fn time(&self, file: &PieceFile) -> i128 {
        file.moment().div_euclid(self.width)
    }

    fn add(&mut self, file: &PieceFile) {
        *self.times.entry(self.time(file)).or_default() += file.len;
        while self.times.len() > self.most {
            self.width *= 2;
            for (time, bytes) in std::mem::take(&mut self.times) {
                *self.times.entry(time.div_euclid(2)).or_default() += bytes;
            }
        }
    }

    fn total(&self) -> u64 {
        self.times.values().sum()
    }

    /// The time up to which files go when `bytes` of the oldest do, and the bytes that go of that time itself.
    fn last_to_go(&self, bytes: u64) -> Option<(i128, u64)> {
        let mut rest = bytes;
        for (time, here) in &self.times {
            if rest <= *here {
                return Some((*time, rest));
            }
            rest -= here;
        }
        self.times.last_key_value().map(|(time, here)| (*time, *here))
    }
}

/// The oldest files of some, as many as it takes for `bytes`, and not more than `most`.
struct OldestFiles {
    heap: BinaryHeap<PieceFile>,
    held: u64,
    bytes: u64,
    most: usize,
}

impl OldestFiles {
    fn add(&mut self, file: PieceFile) {
        self.held += file.len;
        self.heap.push(file);
        while let Some(newest) = self.heap.peek()
            && (self.heap.len() > self.most.max(1) || self.held - newest.len >= self.bytes)
        {
            self.held -= newest.len;
            self.heap.pop();
        }
    }
}

/// What became of the files that were to go, in bytes.
#[derive(Default)]
struct RemovedFiles {
    removed: u64,
    /// What is still there.
    kept: u64,
}

/// Removes a file.
type Remove<'a> = &'a dyn Fn(&Path) -> io::Result<()>;

impl RemovedFiles {
    fn remove(&mut self, file: &PieceFile, remove: Remove<'_>) {
        match remove(&file.path) {
            Ok(()) => self.removed += file.len,
            // Somebody else made room.
            Err(e) if e.kind() == ErrorKind::NotFound => {}
            Err(_) => self.kept += file.len,
        }
    }
}

/// Removes the files that were not used for longest until the rest is well below `limit`; returns
/// the bytes that were removed.
pub(super) fn evict(dir: &Path, limit: u64, memory: EvictionMemory) -> u64 {
    evict_with(dir, limit, memory, &|path| fs::remove_file(path))
}

/// The same, with files that are removed so.
fn evict_with(dir: &Path, limit: u64, memory: EvictionMemory, remove: Remove<'_>) -> u64 {
    let goal = limit - limit / 8;
    let (mut evicted, mut cannot_go) = (0, 0);
    loop {
        let mut ages = AgeHistogram::new(memory.times);
        files(dir).for_each(|file| ages.add(&file));
        let total = ages.total();
        let enough = if evicted == 0 && cannot_go == 0 { limit - limit / 16 } else { goal };
        // What cannot be removed is among the oldest, and something else goes for it.
        let wanted = total.saturating_sub(goal).saturating_add(cannot_go);
        let Some((last, of_last)) = ages.last_to_go(wanted).filter(|_| total > enough) else {
            return evicted;
        };
        let round = remove_oldest(dir, &ages, (last, of_last), memory.files, remove);
        evicted += round.removed;
        if total - round.removed.min(total) <= goal
            || (round.removed == 0 && round.kept <= cannot_go)
        {
            return evicted;
        }
        cannot_go = round.kept;
    }
}

/// Removes what is older than the time `last`, and the oldest of that time: as many as `bytes` takes, or `most`.
fn remove_oldest(
    dir: &Path,
    ages: &AgeHistogram,
    (last, bytes): (i128, u64),
    most: usize,
    remove: Remove<'_>,
) -> RemovedFiles {
    let mut round = RemovedFiles::default();
    let mut oldest = OldestFiles { heap: BinaryHeap::new(), held: 0, bytes, most };
    for file in files(dir) {
        match ages.time(&file).cmp(&last) {
            std::cmp::Ordering::Less => round.remove(&file, remove),
            std::cmp::Ordering::Equal => oldest.add(file),
            std::cmp::Ordering::Greater => {}
        }
    }
    oldest.heap.into_sorted_vec().iter().for_each(|file| round.remove(file, remove));
    round
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::fs::{File, FileTimes};
    use std::time::{Duration, UNIX_EPOCH};

    /// The same with all files in memory at once.
    fn evict_plainly(dir: &Path, limit: u64) -> u64 {
        let mut list: Vec<PieceFile> = files(dir).collect();
        let total: u64 = list.iter().map(|file| file.len).sum();
        if total <= limit - limit / 16 {
            return 0;
        }
        list.sort_unstable();
        let mut left = total;
        for file in list {
            if left <= limit - limit / 8 {
                break;
            }
            if fs::remove_file(&file.path).is_ok() {
                left -= file.len;
            }
        }
        total - left
    }

    /// A cache of files with these folders, lengths, times and ends of names.
    fn cache(list: &[(u8, u64, (u64, u32), bool)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (number, (folder, len, (seconds, nanos), is_temporary)) in list.iter().enumerate() {
            let folder = dir.path().join(format!("{folder:02x}"));
            fs::create_dir_all(&folder).unwrap();
            let end = if *is_temporary { ".1-2" } else { "" };
            let file = File::create(folder.join(format!("{number:03}{end}"))).unwrap();
            file.set_len(*len).unwrap();
            let used = UNIX_EPOCH + Duration::new(*seconds, *nanos);
            file.set_times(FileTimes::new().set_modified(used)).unwrap();
        }
        dir
    }

    fn names(dir: &Path) -> Vec<PathBuf> {
        let mut names: Vec<PathBuf> =
            files(dir).map(|file| file.path.strip_prefix(dir).unwrap().to_owned()).collect();
        names.sort();
        names
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn the_same_files_go_as_if_all_were_remembered(
            list in prop::collection::vec(
                (0u8..4, 0u64..5000, (prop_oneof![0u64..4, 1_000_000_000u64..1_100_000_000], 0u32..3), any::<bool>()),
                0..60,
            ),
            limit in 1u64..200_000, files in 1usize..8, times in 1usize..8,
        ) {
            let (plain, bounded) = (cache(&list), cache(&list));
            let expected = evict_plainly(plain.path(), limit);
            let evicted = evict(bounded.path(), limit, EvictionMemory { files, times });
            assert_eq!(evicted, expected);
            assert_eq!(names(bounded.path()), names(plain.path()));
        }
    }

    #[test]
    fn no_more_is_remembered_than_is_allowed() {
        let mut ages = AgeHistogram::new(100);
        let mut oldest =
            OldestFiles { heap: BinaryHeap::new(), held: 0, bytes: u64::MAX, most: 50 };
        for number in 0..100_000i64 {
            let used = (number * 7919 % 100_000 * 60, number % 1_000_000_000, false);
            let file = PieceFile { used, len: 4096, path: PathBuf::new() };
            ages.add(&file);
            oldest.add(file);
            assert!(ages.times.len() <= 100 && oldest.heap.len() <= 50);
        }
        assert_eq!(ages.total(), 100_000 * 4096);
        assert_eq!(oldest.heap.peek().map(|newest| newest.used.0), Some(49 * 60));
    }

    #[test]
    fn what_cannot_be_removed_does_not_keep_the_rest() {
        let list: Vec<_> = (0..20).map(|number| (0, 1000, (number, 0), false)).collect();
        let dir = cache(&list);
        let stuck = dir.path().join("00/000");
        let remove = |path: &Path| match path == stuck {
            true => Err(ErrorKind::PermissionDenied.into()),
            false => fs::remove_file(path),
        };
        let memory = EvictionMemory { files: 3, times: 4 };
        let evicted = evict_with(dir.path(), 10_000, memory, &remove);
        let left = names(dir.path());
        assert_eq!((evicted, left.len()), (12_000, 8));
        assert!(
            left.contains(&PathBuf::from("00/000")) && !left.contains(&PathBuf::from("00/012"))
        );
    }
}
