//! What files take on a file system: whole blocks, and entries of their directory. FAT and exFAT have blocks
//! (clusters) of up to 64 KiB and more, so a map of 300 bytes takes as much as a long one.

use super::head::HEAD;
use super::index;
use block::fs::{FUSE, is_network};
use block::{ByteSize, Error, Result};
use std::collections::HashMap;
use std::path::Path;

/// Stored bytes of the chunks of a pack file: with the one that reaches it, the file is full.
pub(super) const PACK: u64 = 8 << 20;
/// Bytes of a pack file beside its chunks: its head, and the pack's own head, trailer and seal.
const PACK_OVERHEAD: u64 = HEAD as u64 + 16 + 32 + 16;
/// Bytes of a chunk in its pack beside what is stored of it.
const CHUNK_OVERHEAD: u64 = 48;
/// Bytes of a file's entry in its directory: on FAT as many entries as its name takes.
const ENTRY: u64 = 128;
/// Bytes of a record beside what it names.
const RECORD: u64 = 4096;
/// Left free on a file system.
const RESERVE: u64 = 1 << 20;
/// What stands for the size of blocks where the file system does not tell.
const USUAL_BLOCK: u64 = 4096;
/// The largest blocks that a file system has: clusters of exFAT.
const LARGEST_BLOCK: u64 = 32 << 20;

/// The blocks of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockSize(u64);

impl BlockSize {
    /// The block size of the file system that a directory is on.
    pub(super) fn of(directory: &Path) -> Self {
        let block = rustix::fs::statvfs(directory).map_or(0, |stat| stat.f_frsize);
        // Of the unsigned kind: some are negative where the system's type is signed.
        let kind = rustix::fs::statfs(directory).map_or(0, |stat| stat.f_type as u32);
        Self::told(kind, block)
    }

    /// The block size of a file system of this kind (`f_type`) that says `block`.
    fn told(kind: u32, block: u64) -> Self {
        // One that comes over a network tells the size of a transfer. A disk under FUSE, as by ntfs-3g, has clusters.
        let is_transfer = is_network(kind) && kind != FUSE && block > USUAL_BLOCK;
        let is_possible = block.is_power_of_two() && block <= LARGEST_BLOCK;
        Self(if is_transfer || !is_possible { USUAL_BLOCK } else { block })
    }

    /// What a file of so many bytes takes.
    pub(super) fn taken(self, len: u64) -> u64 {
        len.div_ceil(self.0).saturating_mul(self.0)
    }

    /// What a directory of so many files takes.
    pub(super) fn directory(self, files: u64) -> u64 {
        self.taken(files.saturating_mul(ENTRY))
    }
}

/// What stays on a medium that is written: all but the index, and records of what is written again.
#[derive(Debug, Clone)]
pub(super) struct Occupied {
    pub(super) blocks: BlockSize,
    /// Files that stay.
    pub(super) files: u64,
    /// What they take.
    pub(super) bytes: u64,
    /// What the index takes that is written again.
    pub(super) index: u64,
    /// What the records take that are written again, by their numbers.
    pub(super) records: HashMap<u32, u64>,
    /// Chunks in pack files, and pack files.
    pub(super) indexed: (u64, u64),
}

/// A record that is to be written: the number of its file, and how many ids it has.
pub(super) type PlannedRecord = (u32, u64);

/// Bytes that may still be written to a medium. What a file takes until others have its name counts as well, so
/// that at no time there is more on it than there may be.
#[derive(Debug, Clone)]
pub(super) struct MediaRoom {
    left: u64,
    blocks: BlockSize,
    files: u64,
    /// Bytes of the index file that is to come, and what the one before takes.
    index: u64,
    index_before: u64,
    /// Stored bytes and file bytes of the pack file that is filled now.
    pack: (u64, u64),
}

impl MediaRoom {
    /// The room on the medium in `directory`, behind what is there, the index and these records:
    /// `size` bytes are for all of that, or what the file system has.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace) when not even these fit into `size`; the system's when it does not
    /// tell.
    pub(super) fn of(
        directory: &Path,
        occupied: &Occupied,
        records: &[PlannedRecord],
        size: Option<u64>,
    ) -> Result<Self> {
        let stat =
            rustix::fs::statvfs(directory).map_err(|e| Error::io(directory.display(), e.into()))?;
        let free = stat.f_bavail.saturating_mul(stat.f_frsize);
        Self::within(occupied, records, size, free).map_err(|e| e.context(directory.display()))
    }

    fn within(
        occupied: &Occupied,
        records: &[PlannedRecord],
        size: Option<u64>,
        free: u64,
    ) -> Result<Self> {
        let blocks = occupied.blocks;
        let (chunks, packs) = occupied.indexed;
        let index = index::len(chunks, packs);
        let record = |(_, ids): &PlannedRecord| blocks.taken(RECORD + 8 * ids);
        // What is written again takes the old file's room until the new one has its name.
        let before = |number: &u32| occupied.records.get(number).copied().unwrap_or(0);
        let all_records: u64 = records.iter().map(|one| record(one).max(before(&one.0))).sum();
        // The new index is beside the old one until it has its name, and so is each record.
        let files = occupied.files + records.len() as u64 + 2;
        let longest = records.iter().map(record).max().unwrap_or(0);
        let indexes = blocks.taken(index).max(occupied.index) + blocks.taken(index);
        let fixed = all_records + longest + indexes + blocks.directory(files);
        let allowed = match size {
            None => u64::MAX,
            Some(size) => {
                let needed = occupied.bytes + fixed;
                size.checked_sub(needed).ok_or_else(|| {
                    Error::no_space(format!(
                        "what stays on it and the index and descriptions of what is to be written take {}, \
                         and it may have {} (--size); allow more, or take something off with `sojourn media \
                         remove`",
                        ByteSize(needed),
                        ByteSize(size)
                    ))
                })?
            }
        };
        // One that is full may have all of it: then nothing but these is written.
        let replaced = occupied.index + occupied.records.values().sum::<u64>();
        let free = free.saturating_add(replaced).saturating_sub(fixed + RESERVE);
        let (left, index_before) = (allowed.min(free), occupied.index);
        Ok(Self { left, blocks, files, index, index_before, pack: (0, 0) })
    }

    /// Takes the room of a file of so many bytes, if there is as much.
    pub(super) fn take_file(&mut self, len: u64) -> bool {
        self.take(self.blocks.taken(len) + self.entry(), 0, 1)
    }

    /// Takes the room of a chunk of so many stored bytes behind the ones before, if there is as much.
    pub(super) fn take_chunk(&mut self, stored: u64) -> bool {
        let (bytes, len) = match self.pack {
            (bytes, _) if bytes >= PACK => (0, 0),
            pack => pack,
        };
        let is_new = bytes == 0;
        let start = if is_new { PACK_OVERHEAD } else { len };
        let end = start + stored + CHUNK_OVERHEAD;
        let grows = index::len(1, u64::from(is_new)) - index::len(0, 0);
        let file = self.blocks.taken(end) - if is_new { 0 } else { self.blocks.taken(len) };
        let entry = if is_new { self.entry() } else { 0 };
        let is_taken = self.take(file + entry, grows, u64::from(is_new));
        if is_taken {
            self.pack = (bytes + stored, end);
        }
        is_taken
    }

    /// There is none any more: the file system says so.
    pub(super) fn end(&mut self) {
        self.left = 0;
    }

    /// What one more entry of the directory takes.
    fn entry(&self) -> u64 {
        self.blocks.directory(self.files + 1) - self.blocks.directory(self.files)
    }

    fn take(&mut self, bytes: u64, index: u64, files: u64) -> bool {
        let index = self.index + index;
        let both = |len| self.blocks.taken(len).max(self.index_before) + self.blocks.taken(len);
        match self.left.checked_sub(bytes + both(index) - both(self.index)) {
            Some(left) => {
                (self.left, self.index) = (left, index);
                self.files += files;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn empty(block: u64) -> Occupied {
        let blocks = BlockSize(block);
        let bytes = blocks.taken(300);
        Occupied { blocks, files: 1, bytes, index: 0, records: HashMap::new(), indexed: (0, 0) }
    }

    proptest! {
        /// Whatever goes on, in files as they are written, takes no more than it may, in whole blocks.
        #[test]
        fn what_may_be_taken_is_never_exceeded(
            block in prop::sample::select(vec![512u64, 4096, 32 << 10, 64 << 10, 1 << 20]),
            size in 3 * MIB..60 * MIB,
            maps in prop::collection::vec(1u64..400_000, 0..20),
            chunks in prop::collection::vec(1u64..270_000, 0..400),
            // How many ids each has, and how long it is now, as is the index.
            records in prop::collection::vec((0u64..100_000, 0u64..2 * MIB), 1..4),
            index_before in 0u64..2 * MIB,
        ) {
            let mut occupied = empty(block);
            let (blocks, mut used) = (occupied.blocks, occupied.bytes);
            occupied.index = blocks.taken(index_before);
            let before: Vec<u64> = records.iter().map(|(_, len)| blocks.taken(*len)).collect();
            occupied.records = (0..).zip(before.iter().copied()).collect();
            let records: Vec<PlannedRecord> =
                (0..).zip(&records).map(|(number, (ids, _))| (number, *ids)).collect();
            let Ok(mut room) = MediaRoom::within(&occupied, &records, Some(size), u64::MAX) else {
                return Ok(());
            };
            let mut files = occupied.files + records.len() as u64 + 2;
            for len in maps {
                if room.take_file(len) {
                    used += blocks.taken(len);
                    files += 1;
                }
            }
            let (mut packs, mut taken) = (Vec::<(u64, u64)>::new(), 0);
            for stored in chunks {
                if !room.take_chunk(stored) {
                    break;
                }
                taken += 1;
                match packs.last_mut().filter(|pack| pack.0 < PACK) {
                    Some((bytes, chunks)) => (*bytes, *chunks) = (*bytes + stored, *chunks + 1),
                    None => packs.push((stored, 1)),
                }
            }
            let file = |(bytes, chunks): &(u64, u64)| {
                blocks.taken(PACK_OVERHEAD + bytes + CHUNK_OVERHEAD * chunks)
            };
            used += packs.iter().map(file).sum::<u64>();
            // One after the other is written beside the one before it, the index last.
            let ends = records.iter().map(|(_, ids)| blocks.taken(RECORD + 8 * ids));
            let index = blocks.taken(index::len(taken, packs.len() as u64));
            let steps = before.iter().copied().zip(ends).chain([(occupied.index, index)]);
            let mut now = occupied.index + before.iter().sum::<u64>();
            let mut most = now;
            for (before, end) in steps {
                most = most.max(now + end);
                now = now + end - before;
            }
            used += most;
            used += blocks.directory(files + packs.len() as u64);
            prop_assert!(used <= size, "{used} of {size}");
        }
    }

    #[test]
    fn a_map_of_some_bytes_takes_a_whole_cluster() {
        let mut room =
            MediaRoom::within(&empty(64 << 10), &[(1, 0)], Some(10 * MIB), u64::MAX).unwrap();
        let maps = (0..1000).filter(|_| room.take_file(300)).count();
        assert!((140..160).contains(&maps), "{maps}");
    }

    #[test]
    fn where_not_even_descriptions_fit_it_says_what_to_do() {
        let occupied = empty(64 << 10);
        let told = MediaRoom::within(&occupied, &[(1, 0)], Some(100_000), u64::MAX).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::NoSpace);
        assert!(told.message().contains("--size") && told.message().contains("media remove"));
    }

    #[test]
    fn a_full_file_system_takes_the_index_and_descriptions_again_and_nothing_else() {
        let mut full = MediaRoom::within(&empty(64 << 10), &[(1, 0)], None, RESERVE).unwrap();
        assert!(!full.take_file(1) && !full.take_chunk(1));
        // What they take now is theirs, and no room for anything else before they are written.
        let records = HashMap::from([(1, 10 * MIB)]);
        let again = Occupied { index: 10 * MIB, records, ..empty(64 << 10) };
        let mut full = MediaRoom::within(&again, &[(1, 0)], None, RESERVE).unwrap();
        assert!(!full.take_file(1) && !full.take_chunk(1));
        let mut room = MediaRoom::within(&again, &[(1, 0)], None, RESERVE + 10 * MIB).unwrap();
        assert!(room.take_file(8 * MIB) && !room.take_file(8 * MIB));
    }

    #[test]
    fn the_size_of_a_transfer_is_not_that_of_a_block() {
        let told = |kind, block| BlockSize::told(kind, block).taken(1);
        let (ext, fat, exfat, nfs, ceph) = (0xef53, 0x4d44, 0x2011_bab0, 0x6969, 0x00c3_6400);
        assert_eq!(told(FUSE, 64 << 10), 64 << 10);
        assert_eq!(told(nfs, 1 << 20), 4096);
        assert_eq!(told(nfs, 512), 512);
        assert_eq!(told(ceph, 4 << 20), 4096);
        assert_eq!(told(ext, 1024), 1024);
        assert_eq!(told(fat, 64 << 10), 64 << 10);
        assert_eq!(told(exfat, 32 << 20), 32 << 20);
        for nonsense in [0, 5000, 1 << 40] {
            assert_eq!(told(ext, nonsense), 4096);
        }
    }
}
