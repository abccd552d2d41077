//! Timed reads of a block device or a file past the page cache.

use block::{Error, Result};
use rustix::fs::{Mode, OFlags, SeekFrom, fstat, open, seek};
use rustix::io::pread;
use schedule::SECTOR;
use schedule::calibrate::Probe;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use tokio::time::Instant;

/// The alignment of buffers, offsets and lengths that O_DIRECT needs at most, in bytes.
const ALIGNED: usize = 4096;

/// An open device or file.
pub(super) struct ProbedDevice {
    fd: OwnedFd,
    sectors: u64,
    buffer: Vec<u8>,
}

impl ProbedDevice {
    /// Opens a block device or a regular file for reading.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is something else, is empty, has holes, or cannot
    /// be read past the page cache; any error from the system.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let invalid = |what: &str| Error::invalid(format!("{}: {what}", path.display()));
        // The type first: opening a FIFO would wait for a writer.
        let named = std::fs::metadata(path).map_err(|e| Error::io(path.display(), e))?;
        if !named.is_file() && !named.file_type().is_block_device() {
            return Err(invalid("neither a block device nor a regular file"));
        }
        let fd = open(path, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty());
        let fd = fd.map_err(|e| match e {
            rustix::io::Errno::INVAL => {
                invalid("cannot be read past the page cache (O_DIRECT); give the device below it")
            }
            e => Error::io(path.display(), e.into()),
        })?;
        let end = seek(&fd, SeekFrom::End(0)).map_err(|e| Error::io(path.display(), e.into()))?;
        if end == 0 {
            return Err(invalid("is empty"));
        }
        // The file system answers reads of holes without the disk.
        if named.is_file() && named.blocks() < end / SECTOR / 8 * 7 {
            return Err(invalid("has holes, which are not read from the disk; give a full file"));
        }
        Ok(Self { fd, sectors: end / SECTOR, buffer: Vec::new() })
    }

    /// Whether the kernel says that the device, or the one below the file, rotates; `None` when it does
    /// not say.
    pub(super) fn rotates(&self) -> Option<bool> {
        let stat = fstat(&self.fd).ok()?;
        let is_device = rustix::fs::FileType::from_raw_mode(stat.st_mode).is_block_device();
        let device = if is_device { stat.st_rdev } else { stat.st_dev };
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        let sys = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
        // A partition's queue is that of its disk.
        ["queue/rotational", "../queue/rotational"]
            .iter()
            .find_map(|file| std::fs::read_to_string(sys.join(file)).ok())
            .map(|text| text.trim() == "1")
    }

    /// Reads whole blocks that hold these sectors, into an aligned part of `buffer`. Errors do not name the device.
    fn read_into(&self, buffer: &mut Vec<u8>, start: u64, sectors: u32) -> Result<()> {
        let from = start * SECTOR / ALIGNED as u64 * ALIGNED as u64;
        let end = (start + u64::from(sectors)) * SECTOR;
        let length = ((end - from) as usize).next_multiple_of(ALIGNED);
        if buffer.len() < length + ALIGNED {
            buffer.resize(length + ALIGNED, 0);
        }
        let skip = buffer.as_ptr().align_offset(ALIGNED);
        let mut done = 0;
        while from + (done as u64) < end {
            let room = &mut buffer[skip + done..skip + length];
            match pread(&self.fd, room, from + done as u64) {
                Ok(0) => return Err(Error::unavailable("ended while it was read")),
                Ok(count) => done += count,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => return Err(Error::io("cannot be read", e.into())),
            }
        }
        Ok(())
    }
}

/// Milliseconds since then.
fn ms(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

impl Probe for ProbedDevice {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&mut self, start: u64, sectors: u32) -> Result<f64> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let begin = Instant::now();
        let result = self.read_into(&mut buffer, start, sectors);
        let took = ms(begin);
        self.buffer = buffer;
        result.map(|()| took)
    }

    fn read_many(&mut self, starts: &[u64], sectors: u32, depth: usize) -> Result<f64> {
        let this = &*self;
        let begin = Instant::now();
        let part = starts.len().div_ceil(depth.max(1)).max(1);
        std::thread::scope(|scope| {
            let reader = |starts: &'_ [u64]| {
                let mut buffer = Vec::new();
                starts.iter().try_for_each(|start| this.read_into(&mut buffer, *start, sectors))
            };
            let readers: Vec<_> =
                starts.chunks(part).map(|starts| scope.spawn(move || reader(starts))).collect();
            readers.into_iter().try_for_each(|reader| {
                reader.join().map_err(|_| Error::internal("a reader panicked"))?
            })
        })?;
        Ok(ms(begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_vanishes_while_it_is_read_is_told_and_what_cannot_be_written_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.raw");
        std::fs::write(&path, vec![7; 1 << 20]).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let mut device = match ProbedDevice::open(&path) {
            Err(e) if e.message().contains("O_DIRECT") => return,
            opened => opened.unwrap(),
        };
        assert_eq!(device.sectors(), 2048);
        assert!(device.read(1024, 8).unwrap() > 0.0);
        // Its end goes away below the reader, as that of a device does which is pulled out.
        file.set_len(4096).unwrap();
        device.read(0, 8).unwrap();
        let alone = device.read(1024, 8).unwrap_err();
        let several = device.read_many(&[0, 1024, 0, 1024], 8, 2).unwrap_err();
        for error in [alone, several] {
            assert_eq!(error.kind(), ErrorKind::Unavailable);
            // Whoever calls says which one.
            assert_eq!(error.message(), "ended while it was read");
        }
    }
}
