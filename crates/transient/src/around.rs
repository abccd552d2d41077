//! Who else can reach the bytes of a disk without the kernel minding: programs that have the whole
//! disk or a partition of it open by another node, loop devices on it, and those who use the file
//! behind a loop device.
//!
//! An exclusive open keeps mounts, swap space and larger devices away, and nobody else. The rest is
//! kept away by locks ([`block::image_lock`]), as far as locks go, and looked for again as long as the
//! disk is held.

use crate::identity::DiskIdentity;
use crate::loops;
use crate::machine::KernelDisk;
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
    /// [`Code::InUse`] when a loop device stands on it, or may.
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
        let Some(answer) = loops::ask(device, path, true) else {
            refuse!(
                ReadError,
                "{name} does not answer, nor does the file that it stands on, {}; end what serves that",
                path.display()
            );
        };
        let file = answer.named.map_err(std::io::Error::from).and_then(|_| open(path));
        let (ground, file) = match (answer.ground, file) {
            (Ok(Some(DiskIdentity::Device(_))), _) => {
                refuse!(InUse, "{name} stands on the device {}; offer that", path.display());
            }
            (Ok(Some(ground)), Ok(file)) => (ground, file),
            (Ok(_), Err(e)) => return Err(untold(device, path, &e)),
            (Err(e), _) => return Err(untold(device, path, &e.into())),
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
    /// Which one does, or may.
    pub(crate) fn check(&self) -> Result<(), Reached> {
        let path = self.path.display();
        for device in KernelDisk::disks() {
            let Some(file) = device.loop_file() else { continue };
            if device.device() == self.own {
                continue;
            }
            let name = device.path.display();
            let here = match loops::ask_once(&device, &file) {
                // Detached meanwhile, or gone.
                None if device.loop_file().is_none() => continue,
                None => {
                    return Err(Reached::Perhaps(format!(
                        "{path} may be behind {name}: the file that this stands on, {}, does not answer; detach \
                         {name} (losetup --detach), or end what serves that file",
                        file.display()
                    )));
                }
                Some(answer) => match (answer.ground, answer.named) {
                    (Ok(Some(ground)), _) => self.grounds.contains(&ground),
                    (Ok(None), _) => false,
                    // Who may not ask is told by the path of the file.
                    (Err(_), Ok(named)) => self.grounds.contains(&named),
                    (Err(_), Err(_)) => file.file_name() == self.path.file_name(),
                },
            };
            if here {
                return Err(Reached::By(format!(
                    "{path} is behind {name}; detach that first (losetup --detach)"
                )));
            }
        }
        Ok(())
    }
}

/// Somebody else can reach the bytes of a disk.
#[derive(Debug)]
pub(crate) enum Reached {
    /// By this way.
    By(String),
    /// By this way, perhaps: nobody can tell now.
    Perhaps(String),
}

impl From<Reached> for Refusal {
    fn from(reached: Reached) -> Self {
        let (Reached::By(sentence) | Reached::Perhaps(sentence)) = reached;
        Refusal::new(Code::InUse, sentence)
    }
}

impl From<Reached> for block::Error {
    fn from(reached: Reached) -> Self {
        match reached {
            Reached::By(sentence) => Self::conflict(sentence),
            Reached::Perhaps(sentence) => Self::unavailable(sentence),
        }
    }
}

/// Refuses a loop device whose file cannot be found.
fn untold(device: &KernelDisk, path: &Path, error: &std::io::Error) -> Refusal {
    let (name, path) = (device.path.display(), path.display());
    let sentence = format!("who else uses {path}, which {name} stands on, cannot be told: {error}");
    Refusal::new(Code::ReadError, sentence)
}

fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    Ok(File::from(rustix::fs::open(path, flags, Mode::empty())?))
}
