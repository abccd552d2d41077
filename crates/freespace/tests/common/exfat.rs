//! Files for a fresh exFAT, written here because no tool writes one without mounting it;
//! `fsck.exfat` judges the result.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const FIRST: u32 = 2;
const END: u32 = 0xFFFF_FFFF;

/// Where a new file's clusters are.
pub(crate) enum Place {
    /// In a row, without a chain.
    Row(u32, u32),
    /// These, chained.
    Chain(Vec<u32>),
}

struct Volume<'f> {
    file: &'f File,
    fat: u64,
    heap: u64,
    cluster: u64,
    bitmap: u64,
}

fn number(file: &File, at: u64) -> u32 {
    let mut raw = [0; 4];
    file.read_exact_at(&mut raw, at).unwrap();
    u32::from_le_bytes(raw)
}

impl<'f> Volume<'f> {
    fn open(file: &'f File) -> Self {
        let mut shifts = [0; 2];
        file.read_exact_at(&mut shifts, 108).unwrap();
        let sector = 1u64 << shifts[0];
        let mut volume = Self {
            file,
            fat: u64::from(number(file, 80)) * sector,
            heap: u64::from(number(file, 88)) * sector,
            cluster: sector << shifts[1],
            bitmap: 0,
        };
        // mkfs.exfat puts the bitmap first.
        volume.bitmap = volume.offset(FIRST);
        volume
    }

    fn offset(&self, cluster: u32) -> u64 {
        self.heap + u64::from(cluster - FIRST) * self.cluster
    }

    fn mark(&self, cluster: u32) {
        let bit = cluster - FIRST;
        let at = self.bitmap + u64::from(bit / 8);
        let mut byte = [0];
        self.file.read_exact_at(&mut byte, at).unwrap();
        byte[0] |= 1 << (bit % 8);
        self.file.write_all_at(&byte, at).unwrap();
    }

    fn link(&self, cluster: u32, next: u32) {
        self.file.write_all_at(&next.to_le_bytes(), self.fat + 4 * u64::from(cluster)).unwrap();
    }

    /// Writes the three entries of a file at `at`; returns its first cluster.
    fn add(&self, at: u64, name: &str, directory: bool, place: &Place) -> u32 {
        let (first, count, flags) = match place {
            Place::Row(first, count) => {
                (*first..first + count).for_each(|cluster| self.mark(cluster));
                (*first, *count, 3)
            }
            Place::Chain(list) => {
                for (i, cluster) in list.iter().enumerate() {
                    self.mark(*cluster);
                    self.link(*cluster, *list.get(i + 1).unwrap_or(&END));
                }
                (list[0], list.len() as u32, 1)
            }
        };
        let len = u64::from(count) * self.cluster;
        let mut entries = [0u8; 96];
        entries[0] = 0x85;
        entries[1] = 2;
        entries[4] = if directory { 0x10 } else { 0x20 };
        for stamp in [8, 12, 16] {
            // 1 January 2020.
            entries[stamp..stamp + 4].copy_from_slice(&0x5021_0000u32.to_le_bytes());
        }
        entries[32] = 0xC0;
        entries[33] = flags;
        entries[35] = name.len() as u8;
        let upper = name.to_ascii_uppercase();
        let hash = upper.bytes().flat_map(|byte| [byte, 0]);
        let hash = hash.fold(0u16, |sum, byte| sum.rotate_right(1).wrapping_add(byte.into()));
        entries[36..38].copy_from_slice(&hash.to_le_bytes());
        entries[40..48].copy_from_slice(&len.to_le_bytes());
        entries[52..56].copy_from_slice(&first.to_le_bytes());
        entries[56..64].copy_from_slice(&len.to_le_bytes());
        entries[64] = 0xC1;
        for (i, byte) in name.bytes().enumerate() {
            entries[66 + 2 * i] = byte;
        }
        let sum = entries.iter().enumerate().filter(|(i, _)| !matches!(i, 2 | 3));
        let sum =
            sum.fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
        entries[2..4].copy_from_slice(&sum.to_le_bytes());
        self.file.write_all_at(&entries, at).unwrap();
        first
    }
}

/// Adds a directory with files in rows and in chains to the fresh exFAT in `image`.
pub(crate) fn fill(image: &Path) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let volume = Volume::open(&file);
    let root = volume.offset(number(&file, 96));
    // Behind label, bitmap and up-case table.
    let mut at = root + 96;
    let directory = volume.add(at, "directory", true, &Place::Row(100, 1));
    at += 96;
    for (i, place) in [
        Place::Row(200, 30),
        Place::Chain(vec![300, 302, 304, 310, 299]),
        Place::Row(1000, 1),
        Place::Chain((2000..2040).step_by(3).collect()),
    ]
    .iter()
    .enumerate()
    {
        volume.add(at, &format!("file{i}"), false, place);
        at += 96;
    }
    let mut at = volume.offset(directory);
    let nested = volume.add(at, "nested", true, &Place::Chain(vec![120]));
    at += 96;
    volume.add(at, "inner", false, &Place::Chain(vec![130, 129, 140]));
    volume.add(volume.offset(nested), "innermost", false, &Place::Row(150, 7));
}
