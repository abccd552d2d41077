//! The directory of a machine in a home.
//!
//! | file | what |
//! |---|---|
//! | `machine.json` | its description |
//! | `lock` | locked by the keeper while the machine runs |
//! | `keeper.sock` | the keeper's control socket |
//! | `keeper.log`, `qemu.log`, `console.log` | what keeper, QEMU and guest said |
//! | `qmp.sock`, `console.sock`, `vnc.sock` | QEMU's monitor, the serial console, the screen |
//! | `ram/` | its memory on FUSE |

use block::lock::{LockFile, Taking};
use block::{Error, Result};
use engine::Home;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use vm::MachineSpec;

/// Paths of sockets have 108 bytes at the most.
const LONGEST: usize = 90;

/// The directory of a machine, which may not be there.
#[derive(Debug, Clone)]
pub(super) struct MachineFolder {
    name: String,
    path: PathBuf,
}

impl MachineFolder {
    /// The directory of all machines.
    pub(super) fn all(home: &Home) -> PathBuf {
        home.dir().join("machines")
    }

    /// That of one machine.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a bad name, or a home whose path is too long.
    pub(super) fn of(home: &Home, name: &str) -> Result<Self> {
        store::check_name("machine", name)?;
        let path = Self::all(home).join(name);
        if path.as_os_str().len() > LONGEST {
            return Err(Error::invalid(format!(
                "{} is too long a path for sockets; use a shorter name or a home with a shorter path",
                path.display()
            )));
        }
        Ok(Self { name: name.to_owned(), path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.path.join("keeper.sock")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.path.join("keeper.log")
    }

    fn description(&self) -> PathBuf {
        self.path.join("machine.json")
    }

    pub(super) fn exists(&self) -> bool {
        self.description().exists()
    }

    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when there is such a machine.
    pub(super) fn must_be_free(&self) -> Result<()> {
        if self.exists() {
            return Err(Error::conflict(format!(
                "there is a machine {:?} already; choose another name, or remove it first",
                self.name
            )));
        }
        Ok(())
    }

    /// The machine's description.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such machine; those of the description.
    pub(super) fn spec(&self) -> Result<MachineSpec> {
        let path = self.description();
        let text = match std::fs::read_to_string(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                return Err(Error::not_found(format!(
                    "this home has no machine {:?}; see 'sojourn vm list'",
                    self.name
                )));
            }
            other => other.map_err(|e| Error::io(path.display(), e))?,
        };
        MachineSpec::decode(&text).map_err(|e| e.context(path.display()))
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the home has a machine of this name; those of the file
    /// system.
    pub(super) fn make(&self, spec: &MachineSpec) -> Result<()> {
        self.must_be_free()?;
        self.put(spec)
    }

    /// Makes it, or gives it another description.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn put(&self, spec: &MachineSpec) -> Result<()> {
        let failed = |e| Error::io(self.path.display(), e);
        DirBuilder::new().recursive(true).mode(0o700).create(&self.path).map_err(failed)?;
        let mut file = tempfile::NamedTempFile::new_in(&self.path).map_err(failed)?;
        file.write_all(spec.encode()?.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(self.description()).map_err(|e| failed(e.error))?;
        std::fs::File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// Takes the machine for one keeper.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while it runs.
    pub(super) fn lock(&self) -> Result<LockFile> {
        match LockFile::take(self.path.join("lock"))? {
            Taking::Ours(lock) => Ok(lock),
            Taking::Held(holder) => Err(Error::conflict(format!(
                "machine {:?} runs already, kept by {holder}; see 'sojourn vm show {}'",
                self.name, self.name
            ))),
            Taking::Replaced => Err(Error::conflict(format!(
                "machine {:?} was removed or replaced just now; look at it and try again",
                self.name
            ))),
        }
    }

    /// Clears away, too, what a keeper that was killed left mounted.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while it runs.
    pub(super) fn must_not_run(&self) -> Result<()> {
        if !self.path.exists() {
            return Ok(());
        }
        let _lock = self.lock()?;
        vm::mount::detach(&self.path.join(vm::machine::MOUNT_POINT));
        Ok(())
    }

    /// Removes it.
    ///
    /// # Errors
    /// Those of the file system.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(self.path.display(), e))
            }
            _ => Ok(()),
        }
    }
}
