//! The readers of free space: any bytes as a file system of any kind, in a sparse image.
//!
//! An input is a kind, the size of the image in MiB, and pieces: 4 bytes of place (in units of 64
//! bytes), 2 of length, the bytes; with the length's highest bit set, one byte repeated 64 times
//! the length. Unless the kind's highest bit is set, the checksums of what is read are made right.
#![no_main]

use freespace::{FileSystem, FreeSpaceOptions, Level, Source, Window};
use libfuzzer_sys::fuzz_target;
use std::collections::HashMap;

const PAGE: usize = 4096;
const UNIT: u64 = 64;

/// An image of which only the pages that were written take memory.
struct Image {
    pages: HashMap<u64, Vec<u8>>,
    size: u64,
    /// Whose checksums are made right.
    sealed: Option<FileSystem>,
}

/// Makes the checksum of one structure right; readers read each as a whole.
fn seal(kind: FileSystem, offset: u64, bytes: &mut [u8]) {
    let at = match (kind, bytes.get(..4)) {
        (FileSystem::XFS, Some(b"XFSB")) => 224,
        (FileSystem::XFS, Some(b"XAGF")) => 216,
        (FileSystem::XFS, Some(b"XAGI")) => 312,
        (FileSystem::XFS, Some(b"XAFL")) => 32,
        (FileSystem::XFS, Some(b"AB3B" | b"AB3C" | b"IAB3")) => 52,
        (FileSystem::BTRFS, _) if bytes.len() >= 4096 => {
            let sum = crc32c::crc32c(&bytes[32..]);
            bytes[..4].copy_from_slice(&sum.to_le_bytes());
            return;
        }
        // The boot region of exFAT: eleven sectors, and one of checksums.
        (FileSystem::EXFAT, _) if offset == 0 && bytes.len() > 512 && bytes.len() % 12 == 0 => {
            let (covered, stored) = bytes.split_at_mut(bytes.len() / 12 * 11);
            let covered = covered.iter().enumerate().filter(|(i, _)| !matches!(i, 106 | 107 | 112));
            let sum = covered
                .fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
            stored.chunks_exact_mut(4).for_each(|word| word.copy_from_slice(&sum.to_le_bytes()));
            return;
        }
        _ => return,
    };
    if bytes.len() >= 512 {
        bytes[at..at + 4].fill(0);
        let sum = crc32c::crc32c(bytes);
        bytes[at..at + 4].copy_from_slice(&sum.to_le_bytes());
    }
}

impl Image {
    fn new(size: u64, sealed: Option<FileSystem>, mut input: &[u8]) -> Self {
        let mut image = Self { pages: HashMap::new(), size, sealed };
        while let [a, b, c, d, low, high, rest @ ..] = input {
            let at = u64::from(u32::from_le_bytes([*a, *b, *c, *d])) * UNIT;
            let len = usize::from(u16::from_le_bytes([*low, *high & 0x7F]));
            let repeated = high & 0x80 != 0;
            let (bytes, behind) = rest.split_at(if repeated { 1 } else { len }.min(rest.len()));
            if repeated {
                image.write(
                    at,
                    &vec![bytes.first().copied().unwrap_or(0); len.min(4096) * UNIT as usize],
                );
            } else {
                image.write(at, bytes);
            }
            input = behind;
        }
        image
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..self.size).zip(bytes) {
            let page = self.pages.entry(at / PAGE as u64).or_insert_with(|| vec![0; PAGE]);
            page[at as usize % PAGE] = *byte;
        }
    }
}

impl Source for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        assert!(offset + buf.len() as u64 <= self.size, "a read beyond the end");
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = at as usize % PAGE;
            let len = (PAGE - within).min(buf.len() - done);
            match self.pages.get(&(at / PAGE as u64)) {
                Some(page) => buf[done..done + len].copy_from_slice(&page[within..within + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
        }
        if let Some(kind) = self.sealed {
            seal(kind, offset, buf);
        }
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let [kind, low, high, pieces @ ..] = data else { return };
    let kinds = [
        FileSystem::SWAP,
        FileSystem::FAT32,
        FileSystem::EXFAT,
        FileSystem::NTFS,
        FileSystem::XFS,
        FileSystem::BTRFS,
        FileSystem::EXT4,
        FileSystem::FAT16,
    ];
    let level = [None, Some(Level::Fast), Some(Level::Deep)][usize::from(kind >> 4 & 7) % 3];
    let options = FreeSpaceOptions { level, btrfs: true, shadow_copies: kind & 8 != 0 };
    // At most 512 MiB, so that a reader which reads all of it ends soon.
    let size = u64::from(u16::from_le_bytes([*low, *high]) % 512 + 1) << 20;
    let sealed = kind & 128 == 0;
    let kind = kinds[usize::from(kind & 7)];
    let image = Image::new(size, sealed.then_some(kind), pieces);
    let Ok(found) = freespace::read(kind, &Window::whole(&image), &options) else { return };
    assert!(found.size <= size);
    assert!(found.free.iter().all(|span| !span.is_empty() && span.end() <= found.size));
    assert!(found.free.windows(2).all(|pair| pair[0].end() < pair[1].offset()));
});
