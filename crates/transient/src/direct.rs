//! A disk read past the page cache: what is on it now, whoever wrote it and by whatever way.
//!
//! The page cache of a block device keeps what was read once, also while somebody writes to the same
//! bytes by another device (the file behind a loop device, the whole disk beside its partition).

use block::image_lock::open_again;
use freespace::Source;
use parking_lot::Mutex;
use rustix::fs::{Advice, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Buffers, offsets and lengths of reads are multiples of this, in bytes.
const GRAIN: u64 = 4096;
/// Bytes that are read at a time, and how many such pieces are kept until [`Direct::forget`].
const PIECE: u64 = 64 << 10;
const KEPT: usize = 16;

/// An open disk or image file that is read past the page cache where its file system allows it, and
/// else from a page cache that was dropped before.
#[derive(Debug)]
pub(crate) struct Direct {
    file: File,
    size: u64,
    past_cache: bool,
    kept: Mutex<VecDeque<(u64, Vec<u8>)>>,
}

impl Direct {
    /// Opens once more what `file` is; it is not held.
    pub(crate) fn open(file: &File) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let (file, past_cache) = match open_again(file, flags | OFlags::DIRECT) {
            Ok(file) => (file, true),
            // A file system without such reads.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => (open_again(file, flags)?, false),
            Err(e) => return Err(e),
        };
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        let direct = Self { file, size, past_cache, kept: Mutex::default() };
        direct.forget();
        Ok(direct)
    }

    /// Forgets what was read before, so that it is read again.
    pub(crate) fn forget(&self) {
        self.kept.lock().clear();
        if !self.past_cache {
            let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
        }
    }

    /// The piece that starts at `start`, cut at the end of the disk.
    fn piece(&self, start: u64) -> io::Result<Vec<u8>> {
        let len = PIECE.min(self.size - start) as usize;
        let mut bytes = vec![0; len.next_multiple_of(GRAIN as usize) + GRAIN as usize];
        let skip = bytes.as_ptr().align_offset(GRAIN as usize);
        let aligned = &mut bytes[skip..skip + len.next_multiple_of(GRAIN as usize)];
        let mut done = 0;
        while done < len {
            match self.file.read_at(&mut aligned[done..], start + done as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        bytes.copy_within(skip..skip + len, 0);
        bytes.truncate(len);
        Ok(bytes)
    }
}

impl Source for Direct {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut kept = self.kept.lock();
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let start = at / PIECE * PIECE;
            if let Some(index) = kept.iter().position(|(known, _)| *known == start) {
                kept.swap(0, index);
            } else {
                let piece = self.piece(start)?;
                kept.truncate(KEPT - 1);
                kept.push_front((start, piece));
            }
            let Some((_, piece)) = kept.front() else { continue };
            let from = &piece[(at - start) as usize..];
            let len = from.len().min(buf.len() - done);
            buf[done..done + len].copy_from_slice(&from[..len]);
            done += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_of_a_file_are_read_and_read_again_when_they_were_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        // Longer than all that is kept, and no whole number of anything.
        let len = (KEPT as u64 + 3) * PIECE + 1234;
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 251) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let direct = Direct::open(&File::open(&path).unwrap()).unwrap();
        assert_eq!(direct.size(), len);
        for (offset, size) in
            [(0, 1), (1, 5000), (PIECE - 3, 6), (100, 5 * PIECE), (0, len), (len - 1, 1)]
        {
            let mut buf = vec![0; size as usize];
            direct.read_at(offset, &mut buf).unwrap();
            assert!(buf == bytes[offset as usize..(offset + size) as usize], "{offset}, {size}");
        }
        assert!(direct.read_at(len - 1, &mut [0; 2]).is_err());
        let file = File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"new", len - 3).unwrap();
        direct.forget();
        let mut buf = [0; 3];
        direct.read_at(len - 3, &mut buf).unwrap();
        assert_eq!(&buf, b"new");
    }
}
