//! A disk of this machine, or an image file: opened for reading only, and held against others from
//! before the first byte is read.

use crate::around::Surroundings;
use block::ErrorKind;
use block::image_lock::{self, Usage};
use freespace::{Code, Refusal, Source, refuse};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open disk. As long as it lives, nobody can mount it (a block device is held exclusively), and
/// nobody who locks images as we or QEMU do can use it.
#[derive(Debug)]
pub struct HostDisk {
    file: File,
    path: PathBuf,
    size: u64,
    sector_size: u32,
    sysfs: Option<PathBuf>,
    around: Arc<Surroundings>,
}

impl HostDisk {
    /// Opens a block device or an image file. Nothing is ever written through it.
    ///
    /// # Errors
    /// [`Code::InUse`] when somebody has it, or can reach its bytes; [`Code::ReadError`].
    pub fn open(path: &Path) -> Result<Self, Refusal> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let meta = std::fs::metadata(path).map_err(|e| unreadable(path, &e))?;
        let is_device = meta.file_type().is_block_device();
        if !is_device && !meta.is_file() {
            refuse!(ReadError, "{} is neither a block device nor an image file", path.display());
        }
        let flags = if is_device { flags | OFlags::EXCL } else { flags };
        let file = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(fd) => closes_last(File::from(fd)),
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
        lock(&file, path, is_device)?;
        let around = match is_device {
            true => Surroundings::of_device(path, &opened),
            false => Surroundings::of_file(path, &opened),
        };
        let around = Arc::new(around.inspect_err(|_| image_lock::unlock(&file))?);
        let sector_size = match is_device {
            true => rustix::fs::ioctl_blksszget(&file).map_err(|e| unreadable(path, &e.into()))?,
            false => 512,
        };
        let size = rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0))
            .map_err(|e| unreadable(path, &e.into()))?;
        Ok(Self { file, path: path.to_owned(), size, sector_size, sysfs, around })
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

    /// Refuses a read-only device. The kernel may open it for writing all the same, and then fails
    /// every write.
    ///
    /// # Errors
    /// [`Denied`](ErrorKind::Denied).
    pub fn must_be_writable(&self) -> block::Result<()> {
        let read_only = self.sysfs.as_ref().map(|sysfs| std::fs::read_to_string(sysfs.join("ro")));
        match read_only {
            Some(Ok(text)) if text.trim() != "0" => Err(block::Error::denied(format!(
                "{} is read-only; make it writable (blockdev --setrw), or leave it out",
                self.path.display()
            ))),
            _ => Ok(()),
        }
    }

    /// What shares bytes with it.
    pub(crate) fn around(&self) -> &Arc<Surroundings> {
        &self.around
    }
}

impl Drop for HostDisk {
    fn drop(&mut self) {
        // A child process that is just being started may hold the file a moment longer.
        image_lock::unlock(&self.file);
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

/// Gives an open file a high descriptor. A process that dies closes them in their order, and the one that keeps
/// others away is to go after those by which the disk is written: closing it last, the kernel writes out what is
/// dirty before somebody else may have the disk.
fn closes_last(file: File) -> File {
    const HIGH: u64 = 4096;
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let least = most.map_or(HIGH, |most| HIGH.min(most / 2));
    match rustix::io::fcntl_dupfd_cloexec(&file, least as i32) {
        Ok(high) => File::from(high),
        // For want of descriptors.
        Err(_) => file,
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Refusal {
    Refusal::new(Code::ReadError, format!("cannot open {}: {error}", path.display()))
}

fn lock(file: &File, path: &Path, is_device: bool) -> Result<(), Refusal> {
    match image_lock::lock(file, path, Usage::Exclusive) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == ErrorKind::Conflict => Err(Refusal::new(Code::InUse, e.message())),
        // Where a device's node has no locks, nobody has one; the kernel's own claim holds.
        Err(e) if is_device && e.kind() == ErrorKind::Unsupported => Ok(()),
        Err(e) => Err(Refusal::new(Code::ReadError, e.message())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn the_descriptor_that_holds_a_disk_is_the_last_that_a_dying_process_closes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 4096]).unwrap();
        let disk = HostDisk::open(&path).unwrap();
        let later = image_lock::open_again(disk.file(), OFlags::RDWR).unwrap();
        assert!(disk.file().as_raw_fd() > later.as_raw_fd(), "{disk:?}, {later:?}");
    }
}
