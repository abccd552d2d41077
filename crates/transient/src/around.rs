//! Who else can reach the bytes of a disk without the kernel minding: programs that have the whole
//! disk or a partition of it open by another node, loop devices on it, and those who use the file
//! behind a loop device.
//!
//! An exclusive open keeps mounts, swap space and larger devices away, and nobody else. The rest is
//! kept away by locks ([`block::image_lock`]), as far as locks go, and looked for again as long as the
//! disk is held.

use crate::identity::DiskIdentity;
use crate::machine::KernelDisk;
use crate::sys;
use block::ErrorKind;
use block::image_lock::{self, Usage};
use freespace::{Code, Refusal, refuse};
use rustix::fs::{Mode, OFlags};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// What shares bytes with a disk, locked.
#[derive(Debug)]
pub(crate) struct Surroundings {
    path: PathBuf,
    /// Nodes of the same disk, and the file behind it.
    locked: Vec<File>,
    /// No loop device may stand on one of these,
    grounds: Vec<DiskIdentity>,
    /// but for this one, which is the disk itself.
    own: Option<u64>,
}

impl Drop for Surroundings {
    fn drop(&mut self) {
        self.locked.iter().for_each(image_lock::unlock);
    }
}

impl Surroundings {
    /// What is around an image file.
    ///
    /// # Errors
    /// [`Code::InUse`] when a loop device stands on it.
    pub(crate) fn of_file(path: &Path, meta: &Metadata) -> Result<Self, Refusal> {
        let grounds = vec![DiskIdentity::of(meta)];
        let around = Self { path: path.to_owned(), locked: Vec::new(), grounds, own: None };
        around.check()?;
        Ok(around)
    }

    /// What is around a block device.
    ///
    /// # Errors
    /// [`Code::InUse`] when somebody else can reach its bytes; [`Code::ReadError`] when that cannot be
    /// told.
    pub(crate) fn of_device(path: &Path, meta: &Metadata) -> Result<Self, Refusal> {
        let mut around = Self {
            path: path.to_owned(),
            locked: Vec::new(),
            grounds: vec![DiskIdentity::of(meta)],
            own: None,
        };
        let Some(node) = KernelDisk::of_device(meta.rdev()) else {
            refuse!(ReadError, "the kernel does not know {}", path.display());
        };
        let parent = node.parent();
        let parts = node.partitions().into_iter().map(|(part, ..)| part);
        for other in parent.iter().cloned().chain(parts) {
            around.lock_node(&other.path)?;
        }
        // The node that others open, when it was named by another one.
        let known = std::fs::metadata(&node.path).ok();
        if known.is_some_and(|known| (known.dev(), known.ino()) != (meta.dev(), meta.ino())) {
            around.lock_node(&node.path)?;
        }
        let whole = parent.unwrap_or(node);
        if let Some(file) = whole.loop_file() {
            around.below(&whole, &file)?;
        }
        around.check()?;
        Ok(around)
    }

    fn lock_node(&mut self, path: &Path) -> Result<(), Refusal> {
        match open(path) {
            Ok(file) => self.lock(file, path),
            // Nobody can have it by a node that is not there.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(e) => refuse!(ReadError, "cannot open {}: {e}", path.display()),
        }
    }

    fn lock(&mut self, file: File, path: &Path) -> Result<(), Refusal> {
        match image_lock::lock(&file, path, Usage::Around) {
            Ok(()) => {}
            // Where there are no locks, nobody has one.
            Err(e) if e.kind() == ErrorKind::Unsupported => {}
            Err(e) => return Err(Refusal::new(Code::InUse, e.message())),
        }
        let meta = file
            .metadata()
            .map_err(|e| Refusal::new(Code::ReadError, format!("{}: {e}", path.display())))?;
        self.grounds.push(DiskIdentity::of(&meta));
        self.locked.push(file);
        Ok(())
    }

    /// Takes the file that the loop device `device` stands on into account. `path` is where it was
    /// when the device was made.
    fn below(&mut self, device: &KernelDisk, path: &Path) -> Result<(), Refusal> {
        let name = device.path.display();
        let stands_on = open(&device.path).and_then(|file| sys::loop_backing(&file));
        let (ground, file) = match (stands_on, open(path)) {
            (Ok(Some(DiskIdentity::Device(_))), _) => {
                refuse!(InUse, "{name} stands on the device {}; offer that", path.display());
            }
            (Ok(Some(ground)), Ok(file)) => (ground, file),
            (Ok(_), Err(e)) | (Err(e), _) => refuse!(
                ReadError,
                "who else uses {}, which {name} stands on, cannot be told: {e}",
                path.display()
            ),
            (Ok(None), Ok(_)) => refuse!(InUse, "{name} was detached just now"),
        };
        let same = file.metadata().is_ok_and(|meta| DiskIdentity::of(&meta) == ground);
        if !same {
            refuse!(
                ReadError,
                "who else uses the file that {name} stands on cannot be told: {} is another one",
                path.display()
            );
        }
        self.own = device.device();
        self.lock(file, path)
    }

    /// Looks again whether a loop device stands on any of it.
    ///
    /// # Errors
    /// [`Code::InUse`] naming the device.
    pub(crate) fn check(&self) -> Result<(), Refusal> {
        for device in KernelDisk::disks() {
            let Some(file) = device.loop_file() else { continue };
            if device.device() == self.own {
                continue;
            }
            let here = match open(&device.path).and_then(|file| sys::loop_backing(&file)) {
                Ok(Some(ground)) => self.grounds.contains(&ground),
                Ok(None) => false,
                // Who may not ask is told by the path of the file.
                Err(_) => match std::fs::metadata(&file) {
                    Ok(meta) => self.grounds.contains(&DiskIdentity::of(&meta)),
                    Err(_) => file.file_name() == self.path.file_name(),
                },
            };
            if here {
                refuse!(
                    InUse,
                    "{} is behind {}; detach that first (losetup --detach)",
                    self.path.display(),
                    device.path.display()
                );
            }
        }
        Ok(())
    }
}

fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}
