//! Files on a disk that has aged: sizes as Barford and Crovella found them on web servers
//! ("Generating Representative Web Workloads", 1998), in directories over the whole disk; then half
//! of the files are deleted and as many written again into the gaps, as the seed does (section 5).

use crate::Random;
use block::{Error, Result};
use std::collections::BTreeMap;
use std::io::{self, Write};

/// Sectors of a page.
pub const PAGE: u64 = 8;

/// Inodes of a block, and directory entries of a block.
const INODES: u32 = 16;
const ENTRIES: u32 = 64;

/// The most files.
pub const MOST: u32 = 1_000_000;

/// Files are made smaller, down to this part, when they do not fit.
const LEAST_PART: f64 = 0.8;

/// Bytes of the largest file: larger ones are cut, as the seed cuts them.
const LARGEST: f64 = 100e6;

/// Where every file is.
#[derive(Clone, Debug)]
pub struct Layout {
    /// First page and number of pages.
    extents: Vec<(u32, u32)>,
    /// The first extent of each file, and one more at the end.
    first: Vec<u32>,
    /// The file of each rank of popularity.
    ranks: Vec<u32>,
    /// The first block of each directory.
    directories: Vec<u32>,
    per_directory: u32,
    log_files: f64,
}

/// Pages of a file: 93 % lognormal up to 133 KB, 7 % Pareto above.
fn pages(random: &mut Random) -> u32 {
    let bytes = if random.unit() < 0.93 {
        loop {
            let bytes = (9.357 + 1.318 * random.normal()).exp();
            if bytes <= 133_000.0 {
                break bytes;
            }
        }
    } else {
        random.pareto(1.1, 133_000.0).min(LARGEST)
    };
    ((bytes / 4096.0).ceil() as u32).max(1)
}

/// Lays files out before they age.
struct FreshLayout {
    files: Vec<Vec<(u32, u32)>>,
    free: BTreeMap<u32, u32>,
    directories: Vec<u32>,
}

/// Blocks of a directory's inodes and entries.
fn metadata(per_directory: u32) -> u64 {
    u64::from(per_directory / INODES + per_directory / ENTRIES + 2)
}

impl Layout {
    /// So many files on a disk of so many sectors. The same seed gives the same layout.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the disk is too small, or addresses more than 32
    /// bits of pages.
    pub fn new(sectors: u64, files: u32, seed: u64) -> Result<Self> {
        let disk = (sectors / PAGE).min(u64::from(u32::MAX) - 1);
        if !(1..=MOST).contains(&files) {
            return Err(Error::invalid(format!("{files} files; give 1 to {MOST}")));
        }
        let count = files.div_ceil(1000).max(1);
        let per_directory = files.div_ceil(count);
        let mut random = Random::new(seed);
        let mut fresh = Self::fresh(disk, files, per_directory, &mut random)?;
        Self::age(&mut fresh, per_directory, &mut random);
        let mut extents = Vec::new();
        let mut first = Vec::with_capacity(files as usize + 1);
        for file in &fresh.files {
            first.push(extents.len() as u32);
            extents.extend_from_slice(file);
        }
        first.push(extents.len() as u32);
        let mut ranks: Vec<u32> = (0..files).collect();
        for i in (1..ranks.len()).rev() {
            ranks.swap(i, random.below(i as u64 + 1) as usize);
        }
        let log_files = (f64::from(files) + 1.0).ln();
        let directories = fresh.directories;
        Ok(Self { extents, first, ranks, directories, per_directory, log_files })
    }

    /// Files one behind the other, each directory behind its inodes, what is over between them.
    fn fresh(
        disk: u64,
        files: u32,
        per_directory: u32,
        random: &mut Random,
    ) -> Result<FreshLayout> {
        let mut sizes: Vec<u32> = (0..files).map(|_| pages(random)).collect();
        let metadata = metadata(per_directory);
        let count = u64::from(files.div_ceil(per_directory));
        let sum = |sizes: &[u32]| sizes.iter().map(|s| u64::from(*s)).sum::<u64>();
        let room = disk.saturating_sub(metadata * count + 1000);
        // The seed's million files are a little more than the seed's disk.
        let part = room as f64 / sum(&sizes) as f64;
        if (LEAST_PART..1.0).contains(&part) {
            sizes.iter_mut().for_each(|s| *s = ((f64::from(*s) * part) as u32).max(1));
        }
        let total = sum(&sizes);
        let Some(spare) = room.checked_sub(total) else {
            return Err(Error::invalid(format!(
                "{files} files take {} MiB, the disk has {}; give fewer files",
                total / 256,
                disk / 256
            )));
        };
        let gap = (spare / count) as u32;
        let mut fresh =
            FreshLayout { files: Vec::new(), free: BTreeMap::new(), directories: Vec::new() };
        let mut page = 0u64;
        for (i, size) in sizes.iter().enumerate() {
            if i.is_multiple_of(per_directory as usize) {
                if i > 0 && gap > 0 {
                    fresh.free.insert(page as u32, gap);
                    page += u64::from(gap);
                }
                fresh.directories.push(page as u32);
                page += metadata;
            }
            fresh.files.push(vec![(page as u32, *size)]);
            page += u64::from(*size);
        }
        Ok(fresh)
    }

    /// Deletes half of the files and writes as many, each from its directory on into the next gaps.
    fn age(fresh: &mut FreshLayout, per_directory: u32, random: &mut Random) {
        let mut gone = Vec::new();
        for (i, file) in fresh.files.iter_mut().enumerate() {
            if random.unit() < 0.5 {
                fresh.free.extend(file.drain(..));
                gone.push(i);
            }
        }
        let mut free: BTreeMap<u32, u32> = BTreeMap::new();
        for (start, length) in std::mem::take(&mut fresh.free) {
            match free.last_entry() {
                Some(mut last) if last.key() + last.get() == start => *last.get_mut() += length,
                _ => {
                    free.insert(start, length);
                }
            }
        }
        for i in gone {
            let directory = fresh.directories[i / per_directory as usize];
            let (mut need, mut at) = (pages(random), directory);
            while need > 0 {
                let gap = free.range(at..).next().or_else(|| free.iter().next());
                let Some((start, length)) = gap.map(|(s, l)| (*s, *l)) else { break };
                free.remove(&start);
                let taken = need.min(length);
                fresh.files[i].push((start, taken));
                if taken < length {
                    free.insert(start + taken, length - taken);
                }
                need -= taken;
                at = start + taken;
            }
            if fresh.files[i].is_empty() {
                // The disk is full: a file of one block beside its directory's inodes.
                fresh.files[i].push((directory + metadata(per_directory) as u32, 1));
            }
        }
    }

    /// How many files there are.
    pub fn files(&self) -> u32 {
        self.ranks.len() as u32
    }

    /// Pieces and pages of all files.
    pub fn extents(&self) -> (usize, u64) {
        (self.extents.len(), self.extents.iter().map(|(_, pages)| u64::from(*pages)).sum())
    }

    /// Writes the layout as `kernel/load.c` reads it: little-endian words of 32 bits. The numbers of
    /// files, of files in a directory, of directories, of pieces; the first piece of each file, and
    /// the number of all; the file of each rank of popularity; the first page of each directory; the
    /// first page of each piece, and its number of pages.
    ///
    /// # Errors
    /// Any error from `out`.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let counts = [self.files(), self.per_directory];
        let lengths = [self.directories.len() as u32, self.extents.len() as u32];
        let extents = self.extents.iter().flat_map(|&(start, pages)| [start, pages]);
        let words = counts.into_iter().chain(lengths);
        let words = words.chain(self.first.iter().copied()).chain(self.ranks.iter().copied());
        for word in words.chain(self.directories.iter().copied()).chain(extents) {
            out.write_all(&word.to_le_bytes())?;
        }
        Ok(())
    }

    /// A file by Zipf's law, in the seed's continuous approximation: F(x) = ln(x+1) / ln(N+2).
    pub(super) fn pick(&self, random: &mut Random) -> u32 {
        let rank = ((random.unit() * self.log_files).exp() - 1.0) as usize;
        self.ranks[rank.min(self.ranks.len() - 1)]
    }

    /// The indices of a file's pieces: from the first to before the second.
    pub(super) fn pieces(&self, file: u32) -> (u32, u32) {
        (self.first[file as usize], self.first[file as usize + 1])
    }

    /// A piece: first page, pages.
    pub(super) fn piece(&self, index: u32) -> (u32, u32) {
        self.extents[index as usize]
    }

    /// The pages of a file's directory entry and of its inode.
    pub(super) fn metadata_pages(&self, file: u32) -> [u64; 2] {
        let start = u64::from(self.directories[(file / self.per_directory) as usize]);
        let inside = file % self.per_directory;
        let inodes = u64::from(self.per_directory / INODES);
        let entry = start + inodes + 1 + u64::from(inside / ENTRIES);
        [entry, start + u64::from(inside / INODES)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_page_belongs_to_two_files_or_lies_beyond_the_disk() {
        let sectors = 6_000_000;
        let layout = Layout::new(sectors, 20_000, 42).unwrap();
        let mut all = layout.extents.clone();
        all.sort_unstable();
        for pair in all.windows(2) {
            assert!(pair[0].0 + pair[0].1 <= pair[1].0, "{pair:?}");
        }
        let (start, pages) = all.last().unwrap();
        assert!(u64::from(start + pages) * PAGE <= sectors);
        for file in [0, 999, 1000, 19_999] {
            let (first, last) = layout.pieces(file);
            assert!(first < last);
            for page in layout.metadata_pages(file) {
                let inside =
                    |(s, l): &(u32, u32)| (u64::from(*s)..u64::from(s + l)).contains(&page);
                assert!(!all.iter().any(inside), "a file lies on inodes");
            }
        }
        assert!(all.len() > 22_000, "the disk has aged: {} pieces", all.len());
    }

    #[test]
    fn files_have_the_mean_size_of_the_distributions_and_zipf_prefers_the_first() {
        let mut random = Random::new(1);
        let mean = (0..200_000).map(|_| f64::from(pages(&mut random))).sum::<f64>() / 2e5;
        // 73.5 GB in a million files.
        assert!((15.5..20.5).contains(&mean), "{mean}");
        let layout = Layout::new(60_000_000, 100_000, 1).unwrap();
        let top = (0..20_000).filter(|_| layout.pick(&mut random) == layout.ranks[0]).count();
        // ln 2 / ln 100,001.
        assert!((top as f64 / 2e4 - 0.0602).abs() < 0.006, "{top}");
    }

    #[test]
    fn what_the_kernels_load_reads_has_every_piece_where_the_layout_has_it() {
        let layout = Layout::new(6_000_000, 3_000, 42).unwrap();
        let mut written = Vec::new();
        layout.write_to(&mut written).unwrap();
        let words: Vec<u32> = written
            .chunks_exact(4)
            .map(|word| u32::from_le_bytes(word.try_into().unwrap()))
            .collect();
        let [files, per_directory, directories, extents] = words[..4] else { panic!() };
        assert_eq!((files, per_directory, directories), (3_000, 1_000, 3));
        let (first, rest) = words[4..].split_at(files as usize + 1);
        let (ranks, rest) = rest.split_at(files as usize);
        let (_, pieces) = rest.split_at(directories as usize);
        assert_eq!(pieces.len(), 2 * extents as usize);
        for &file in ranks {
            let (begin, end) = layout.pieces(file);
            assert_eq!((begin, end), (first[file as usize], first[file as usize + 1]));
            for index in begin..end {
                let at = 2 * index as usize;
                assert_eq!(layout.piece(index), (pieces[at], pieces[at + 1]));
            }
        }
    }

    #[test]
    fn a_disk_that_is_too_small_is_told() {
        let error = Layout::new(100_000, 50_000, 1).unwrap_err();
        assert!(error.message().contains("give fewer files"), "{error}");
    }
}
