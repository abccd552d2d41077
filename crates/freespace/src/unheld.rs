//! Devices and image files to look at without keeping others away.

use crate::{Code, Refusal, Source};
use rustix::fs::{Mode, OFlags};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A device or image file that is not held: others may have it, and write to it.
#[derive(Debug)]
pub struct UnheldDisk {
    file: File,
    size: u64,
    sector_size: u32,
}

impl UnheldDisk {
    /// Opens a block device or an image file for reading.
    ///
    /// # Errors
    /// [`Code::ReadError`].
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let open = || {
            let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
            let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
            let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
            // What has none is an image file.
            let sector_size = rustix::fs::ioctl_blksszget(&file).unwrap_or(512);
            Ok(Self { file, size, sector_size })
        };
        open().map_err(|e: io::Error| {
            Refusal::new(Code::ReadError, format!("cannot open {}: {e}", path.display()))
        })
    }
}

impl Source for UnheldDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn sector_size(&self) -> u32 {
        self.sector_size
    }
}
