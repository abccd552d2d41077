//! The home: where one server's configuration, local store, disks and sockets are.
//!
//! | file | what |
//! |---|---|
//! | `sojourn.toml` | the configuration |
//! | `store/` | the store, unless the configuration names another |
//! | `disks/` | one directory per disk |
//! | `lock` | locked by the server, and holds its process id |
//! | `control.sock` | the server's control socket |
//! | `successor.sock` | where a server waits that is to follow the one that runs |
//! | `nbd.sock` | the default NBD socket |
//! | `machines.toml` | which machine has which disk |
//! | `boot/` | kernels that were given for images: `sojourn image boot` |
//! | `machines-seen.json`, `leases.json` | machines that asked, and the addresses that they got |
//! | `machine-secrets.json` | what machines have to prove before they are told what to start |
//! | `tokens.json` | who may do what over HTTP: `sojourn token` |
//! | `audit.log` | who changed what through the server |
//! | `tls/` | certificates: those that `sojourn cert` makes |

use block::lock::{LockFile, Taking};
use block::{Error, Result};
use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The home of root, unless another one is named. It is that of the package's server, whose user systemd makes its
/// owner.
pub const ROOT_HOME: &str = "/var/lib/sojourn";

/// The paths of a home.
#[derive(Debug, Clone)]
pub struct Home {
    dir: PathBuf,
    key_file: Option<PathBuf>,
}

impl Home {
    /// The home that the user asked for, or the default one. Nothing is touched.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when there is no default because `$HOME` is not set.
    pub fn find(asked: Option<&Path>) -> Result<Self> {
        let dir = match asked {
            Some(dir) if dir.as_os_str().is_empty() => {
                return Err(Error::invalid(
                    "the home is empty; give --home or SOJOURN_HOME a path",
                ));
            }
            Some(dir) => dir.to_path_buf(),
            None if rustix::process::geteuid().is_root() => PathBuf::from(ROOT_HOME),
            None => match std::env::var_os("HOME").filter(|home| !home.is_empty()) {
                Some(home) => PathBuf::from(home).join(".local/share/sojourn"),
                None => {
                    return Err(Error::invalid("HOME is not set; say where to work with --home"));
                }
            },
        };
        let dir = std::path::absolute(&dir).map_err(|e| Error::io(dir.display(), e))?;
        Ok(Self { dir, key_file: None })
    }

    /// The same, with the key file of its store if the user names one.
    ///
    /// # Errors
    /// Any error from [`find`](Self::find); [`Invalid`](block::ErrorKind::Invalid) when the key file's path is empty.
    pub fn with_key_file(asked: Option<&Path>, key_file: Option<&Path>) -> Result<Self> {
        let home = Self::find(asked)?;
        let key_file = match key_file {
            Some(path) if path.as_os_str().is_empty() => {
                return Err(Error::invalid(
                    "the key file is empty; give --key-file or SOJOURN_KEY_FILE a path",
                ));
            }
            Some(path) => {
                Some(std::path::absolute(path).map_err(|e| Error::io(path.display(), e))?)
            }
            None => None,
        };
        Ok(Self { key_file, ..home })
    }

    /// The key file that the command line names.
    pub fn key_file(&self) -> Option<&Path> {
        self.key_file.as_deref()
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The configuration file.
    pub fn config(&self) -> PathBuf {
        self.dir.join("sojourn.toml")
    }

    /// The directory of the disks.
    pub fn disks(&self) -> PathBuf {
        self.dir.join("disks")
    }

    /// The directory of the virtual machines, a directory each.
    pub fn vms(&self) -> PathBuf {
        self.dir.join("machines")
    }

    /// The list of machines that start from the network.
    pub fn machines(&self) -> PathBuf {
        self.dir.join("machines.toml")
    }

    /// Kernels that were given for image versions, a directory each.
    pub fn boot(&self) -> PathBuf {
        self.dir.join("boot")
    }

    /// Machines that asked to start and are not in the list.
    pub fn machines_seen(&self) -> PathBuf {
        self.dir.join("machines-seen.json")
    }

    /// Hashes of the secrets of machines that start from the network.
    pub fn machine_secrets(&self) -> PathBuf {
        self.dir.join("machine-secrets.json")
    }

    /// The addresses that machines got.
    pub fn leases(&self) -> PathBuf {
        self.dir.join("leases.json")
    }

    /// The list of tokens for the HTTP API.
    pub fn tokens(&self) -> PathBuf {
        self.dir.join("tokens.json")
    }

    /// What was changed through the server, and by whom.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// The control socket of the server.
    pub fn control(&self) -> PathBuf {
        self.dir.join("control.sock")
    }

    /// The NBD socket of a server that is told of no other.
    pub fn nbd_socket(&self) -> PathBuf {
        self.dir.join("nbd.sock")
    }

    /// Where a successor waits for what the server hands over.
    pub fn successor(&self) -> PathBuf {
        self.dir.join("successor.sock")
    }

    /// Where the indexes of trees and images are kept.
    pub fn indexes(&self) -> PathBuf {
        self.dir.join("indexes")
    }

    /// Where conversions of foreign formats may be put.
    pub fn scratch(&self) -> PathBuf {
        self.dir.join("tmp")
    }

    /// A path of the configuration: one that is not absolute lies in the home.
    pub fn resolve(&self, path: &Path) -> PathBuf {
        self.dir.join(path)
    }

    /// A store of the configuration as an absolute path or a URL.
    pub fn store_url(&self, store: &str) -> String {
        match store.contains("://") {
            true => store.to_owned(),
            false => self.resolve(Path::new(store)).display().to_string(),
        }
    }

    /// Whether somebody ran `sojourn init` here.
    pub fn exists(&self) -> bool {
        self.config().exists()
    }

    /// Fails when nobody ran `sojourn init` here.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound); [`Denied`](block::ErrorKind::Denied) when this user may not look.
    pub fn must_exist(&self) -> Result<()> {
        let (dir, config) = (self.dir.display(), self.config());
        match config.try_exists() {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(e) => return Err(Error::io(format!("cannot look into the home {dir}"), e)),
        }
        Err(Error::not_found(format!(
            "no home at {dir}: sojourn.toml is missing; make one with `sojourn --home {dir} init`"
        )))
    }

    /// The user and the group whose home it is, when it is another user's than root's; `None` also where
    /// there is no home. The directory says, or that of the disks where root made the one around it.
    pub fn other_owner(&self) -> Option<(u32, u32)> {
        [self.dir.clone(), self.disks()].into_iter().find_map(|dir| {
            let metadata = dir.metadata().ok()?;
            (metadata.uid() != 0).then_some((metadata.uid(), metadata.gid()))
        })
    }

    /// Fails when root, who needs to stay root to borrow, works on another user's home: the
    /// user's server could not read what root makes.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) with the remedy.
    pub fn must_be_ours(&self) -> Result<()> {
        match self.other_owner() {
            Some((owner, _)) if rustix::process::geteuid().is_root() => {
                let dir = self.dir.display();
                Err(Error::denied(format!(
                    "the home {dir} is of user {owner}, whose server could not read what root makes in \
                     it; borrowing needs root, so use a home of root's"
                )))
            }
            _ => Ok(()),
        }
    }

    /// Makes the directories. Others may not look in: disks hold private data.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) or [`NoSpace`](block::ErrorKind::NoSpace) when they cannot be made,
    /// [`Conflict`](block::ErrorKind::Conflict) when a file has one of the names.
    pub fn create(&self) -> Result<()> {
        for dir in [self.dir.clone(), self.disks()] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&dir)
                .map_err(|e| Error::io(dir.display(), e))?;
        }
        Ok(())
    }

    /// Makes the directory of the store that lies in the home; snapshots in it are private too.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when the directory above is missing,
    /// [`Denied`](block::ErrorKind::Denied) or [`NoSpace`](block::ErrorKind::NoSpace) when it cannot be made.
    pub fn create_store(&self, store: &Path) -> Result<()> {
        match DirBuilder::new().mode(0o700).create(store) {
            Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
                Err(Error::io(store.display(), e))
            }
            _ => Ok(()),
        }
    }

    /// Removes the directories again if they are empty.
    pub fn discard(&self) {
        for dir in [self.dir.join("store"), self.disks(), self.dir.clone()] {
            let _ = std::fs::remove_dir(dir);
        }
    }

    /// Takes the home for one server.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) naming the process that has it.
    pub fn lock(&self) -> Result<LockFile> {
        match LockFile::take(self.dir.join("lock"))? {
            Taking::Ours(lock) => Ok(lock),
            Taking::Held(holder) => Err(Error::conflict(format!(
                "{} is served by {holder} already; stop that server or use another --home",
                self.dir.display()
            ))),
            Taking::Replaced => Err(Error::conflict(format!(
                "{} was removed or replaced just now; look at it and try again",
                self.dir.display()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    #[test]
    fn a_second_server_on_one_home_is_refused_by_the_first_ones_pid() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        let lock = home.lock().unwrap();
        let error = home.lock().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Conflict);
        assert!(error.message().contains(&std::process::id().to_string()), "{error}");
        drop(lock);
        home.lock().unwrap();
    }
}
