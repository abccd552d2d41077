//! A disk of this machine, or an image file: opened for reading only, and held against others from
//! before the first byte is read.

use crate::refusal::refuse;
use crate::{Code, Refusal, Source, sys};
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// An open disk. As long as it lives, nobody can mount it (a block device is held exclusively) and
/// nobody who asks for the lock can use it (an image file).
#[derive(Debug)]
pub struct HostDisk {
    file: File,
    path: PathBuf,
    size: u64,
    sector_size: u32,
    sysfs: Option<PathBuf>,
}

impl HostDisk {
    /// Opens a block device or an image file. Nothing is ever written through it.
    ///
    /// # Errors
    /// [`Code::InUse`] when somebody has it; [`Code::ReadError`].
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let meta = std::fs::metadata(path).map_err(|e| unreadable(path, &e))?;
        let is_device = meta.file_type().is_block_device();
        if !is_device && !meta.is_file() {
            refuse!(ReadError, "{} is neither a block device nor an image file", path.display());
        }
        let flags = if is_device { flags | OFlags::EXCL } else { flags };
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => File::from(fd),
            Err(Errno::BUSY) => refuse!(
                InUse,
                "{} is in use: mounted (perhaps elsewhere), active swap, or part of something larger",
                path.display()
            ),
            Err(e) => return Err(unreadable(path, &e.into())),
        };
        // The path may lead elsewhere by now.
        let opened = file.metadata().map_err(|e| unreadable(path, &e))?;
        if opened.file_type() != meta.file_type() || opened.rdev() != meta.rdev() {
            refuse!(InUse, "{} changes while it is opened; try again", path.display());
        }
        let sysfs = is_device.then(|| {
            let (major, minor) =
                (rustix::fs::major(opened.rdev()), rustix::fs::minor(opened.rdev()));
            PathBuf::from(format!("/sys/dev/block/{major}:{minor}"))
        });
        if !is_device {
            lock(&file, path)?;
            loop_devices(&opened, path)?;
        }
        let sector_size = match is_device {
            true => rustix::fs::ioctl_blksszget(&file).map_err(|e| unreadable(path, &e.into()))?,
            false => 512,
        };
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
            .map_err(|e| unreadable(path, &e.into()))?;
        Ok(Self { file, path: path.to_owned(), size, sector_size, sysfs })
    }

    /// The path that it was opened by.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file. Closing it (with the disk) lets others have the disk.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether it is a block device, and not an image file.
    pub fn is_device(&self) -> bool {
        self.sysfs.is_some()
    }

    /// The kernel's directory of a block device, `/sys/dev/block/MAJOR:MINOR`.
    pub fn sysfs(&self) -> Option<&Path> {
        self.sysfs.as_deref()
    }
}

impl Drop for HostDisk {
    fn drop(&mut self) {
        // A child process that is just being started may hold the file a moment longer.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

impl Source for HostDisk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn sector_size(&self) -> u32 {
        self.sector_size
    }

    fn rotational(&self) -> Option<bool> {
        let sysfs = self.sysfs.as_ref()?;
        // A partition has no queue of its own.
        let own = std::fs::read_to_string(sysfs.join("queue/rotational"));
        let text =
            own.or_else(|_| std::fs::read_to_string(sysfs.join("../queue/rotational"))).ok()?;
        match text.trim() {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new(Code::ReadError, format!("cannot open {}: {error}", path.display()))
}

fn lock(file: &File, path: &Path) -> Result<(), Refusal> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => refuse!(InUse, "another program has locked {}", path.display()),
        Err(e) => Err(unreadable(path, &e.into())),
    }?;
    // QEMU locks ranges of an image, which is another kind of lock.
    match sys::has_locked_ranges(file) {
        Ok(false) => Ok(()),
        Ok(true) => refuse!(InUse, "another program has locked a part of {}", path.display()),
        Err(e) => Err(unreadable(path, &e)),
    }
}

/// A disk that is not held: others may have it, and write to it.
pub(crate) struct Unheld {
    file: File,
    size: u64,
}

impl Unheld {
    /// Opens it for reading.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))?;
        Ok(Self { file, size })
    }

    /// Forgets what was cached of it before others could write.
    pub(crate) fn refresh(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, rustix::fs::Advice::DontNeed);
    }
}

impl Source for Unheld {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
}

/// Refuses an image file that a loop device stands on: whatever is mounted there is invisible from
/// here.
fn loop_devices(file: &std::fs::Metadata, path: &Path) -> Result<(), Refusal> {
    let Ok(devices) = std::fs::read_dir("/sys/block") else { return Ok(()) };
    for device in devices.flatten() {
        let Ok(backing) = std::fs::read_to_string(device.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.trim_end_matches('\n');
        let same = match std::fs::metadata(backing) {
            Ok(other) => other.dev() == file.dev() && other.ino() == file.ino(),
            // It may have been renamed, or lie where this process sees nothing.
            Err(_) => Path::new(backing).file_name() == path.file_name(),
        };
        if same {
            refuse!(
                InUse,
                "{} is behind /dev/{}; detach that first (losetup --detach)",
                path.display(),
                device.file_name().to_string_lossy()
            );
        }
    }
    Ok(())
}
