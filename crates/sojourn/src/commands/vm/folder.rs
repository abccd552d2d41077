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
//! | `memory` | its memory where there is no FUSE; of no use once it does not run |
//! | `written` | what its guest wrote to its memory; of no use once it does not run |
//! | `pending/` | a suspension that is not in the store yet |
//! | `pending.aside/` | the same while its disk is put back to an older parcel; after a kill it is put back itself |
//! | `not-sent` | why that is not sent: it was given up, or somebody had it end |
//! | `unreleased` | the parcel that the machine has become, while its disk and its claim are still to be given up |

use super::not_sent::NotSent;
use super::note;
use block::fs::FsPath;
use block::lock::{LockFile, Taking};
use block::{Error, ErrorKind, Result};
use engine::Home;
use std::fs::DirBuilder;
use std::io::Write;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use tempfile::NamedTempFile;
use vm::{MachineSpec, Parcel, PendingSuspension};

/// Paths of sockets have 108 bytes at the most.
const LONGEST: usize = 90;
/// The file that says why a suspension is not sent.
const NOT_SENT: &str = "not-sent";
/// The file that names a parcel whose disk is still to be released.
const UNRELEASED: &str = "unreleased";

/// A description of a machine that is on stable storage, and not in its place yet.
pub(super) struct WrittenSpec(NamedTempFile);

/// The directory of a machine, which may not be there.
#[derive(Debug, Clone)]
pub(super) struct MachineFolder {
    name: String,
    path: PathBuf,
}

impl MachineFolder {
    /// That of one machine.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a bad name, or a home whose path is too long.
    pub(super) fn of(home: &Home, name: &str) -> Result<Self> {
        store::check_name("machine", name)?;
        let path = home.vms().join(name);
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

    /// The socket of the guest's serial console, while the machine runs.
    pub(super) fn console(&self) -> PathBuf {
        self.path.join("console.sock")
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
    /// [`NotFound`](block::ErrorKind::NotFound) when there is no such machine; any error from the description.
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

    /// Whether a parcel is of the machine that is here, or none is: another one may have the same name.
    pub(super) fn is_of(&self, parcel: &Parcel) -> bool {
        let described = self.spec().ok().map(|spec| spec.uuid);
        let suspended = self.pending().ok().flatten().map(|pending| pending.machine.uuid);
        [described, suspended].into_iter().flatten().all(|uuid| uuid == parcel.spec.uuid)
    }

    /// Refuses to go on with a parcel of another machine that has the same name.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict).
    pub(super) fn must_be_of(&self, parcel: &Parcel) -> Result<()> {
        if self.is_of(parcel) {
            return Ok(());
        }
        let (name, parcel) = (&self.name, parcel.name());
        Err(Error::conflict(format!(
            "{parcel} is of another machine than the {name:?} of this home: 'sojourn vm clone {parcel} NAME' makes one of \
             another name of it"
        )))
    }

    /// Makes it.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the home has a machine of this name; any error from the file
    /// system.
    pub(super) fn make(&self, spec: &MachineSpec) -> Result<()> {
        self.must_be_free()?;
        self.put(spec)
    }

    /// Makes it, or gives it another description.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn put(&self, spec: &MachineSpec) -> Result<()> {
        self.put_written(self.write(spec)?)
    }

    /// Writes a description that is to be [put](Self::put_written) in its place later, when there may be no room for it.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn write(&self, spec: &MachineSpec) -> Result<WrittenSpec> {
        let failed = |e| Error::io(self.path.display(), e);
        self.make_directory()?;
        let mut file = NamedTempFile::new_in(&self.path).map_err(failed)?;
        file.write_all(spec.encode()?.as_bytes()).map_err(failed)?;
        file.as_file().sync_all().map_err(failed)?;
        Ok(WrittenSpec(file))
    }

    /// Puts a description that was written in its place.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn put_written(&self, WrittenSpec(file): WrittenSpec) -> Result<()> {
        let failed = |e| Error::io(self.path.display(), e);
        file.persist(self.description()).map_err(|e| failed(e.error))?;
        std::fs::File::open(&self.path).and_then(|directory| directory.sync_all()).map_err(failed)
    }

    /// Makes its directory, if it is not there, and puts its name on stable storage, whoever made it: what is kept in
    /// it of a suspension is nowhere else.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn make_directory(&self) -> Result<()> {
        self.make_directory_synced(&FsPath::sync_directory)
    }

    fn make_directory_synced(&self, sync: &dyn Fn(&FsPath) -> Result<()>) -> Result<()> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&self.path);
        made.map_err(|e| Error::io(self.path.display(), e))?;
        let all = FsPath::from(&self.path).above();
        sync(&all)?;
        sync(&all.above())
    }

    /// Notes why what is kept here of a suspension is not sent any more; `None` when it is tried.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn note_not_sent(&self, why: Option<&NotSent>) -> Result<()> {
        let path = self.path.join(NOT_SENT);
        match why {
            Some(why) => why.write(&path),
            None => note::clear(&path),
        }
    }

    /// Why what is kept here is not sent, if it is not to be.
    pub(super) fn not_sent(&self) -> Option<NotSent> {
        NotSent::read(&self.path.join(NOT_SENT))
    }

    /// Notes that the machine is in the store as `parcel`, and its disk and its claim are still to be given up; `None`
    /// when they have been, or the machine runs again.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn note_unreleased(&self, parcel: Option<&str>) -> Result<()> {
        let path = self.path.join(UNRELEASED);
        match parcel {
            Some(parcel) => note::write(&path, parcel),
            None => note::clear(&path),
        }
    }

    /// The parcel that the machine has become, if its disk and its claim are still to be given up.
    pub(super) fn unreleased(&self) -> Option<String> {
        note::read(&self.path.join(UNRELEASED))
    }

    /// A suspension that is not in the store yet, if there is one.
    ///
    /// # Errors
    /// Any error from [`PendingSuspension::find`].
    pub(super) fn pending(&self) -> Result<Option<PendingSuspension>> {
        // Whoever set one aside may be at it; if they were killed, this puts it back.
        if PendingSuspension::is_set_aside(&self.path)
            && let Err(error) = self.lock()
        {
            tracing::debug!(machine = self.name, %error, "what was set aside stays there");
        }
        PendingSuspension::find(&self.path)
    }

    /// Refuses to throw away what a newer build made of the machine: this one cannot tell what that is.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported).
    pub(super) fn must_not_be_newer(&self) -> Result<()> {
        match [self.spec().err(), self.pending().err()]
            .into_iter()
            .flatten()
            .find(|e| e.kind() == ErrorKind::Unsupported)
        {
            Some(newer) => Err(newer),
            None => Ok(()),
        }
    }

    /// Takes the machine for one keeper. What somebody set aside who was killed is back then: if its disk is another one
    /// by now, that is told as with any suspension.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while it runs; any error from the file system.
    pub(super) fn lock(&self) -> Result<LockFile> {
        match LockFile::take(self.path.join("lock"))? {
            Taking::Ours(lock) => {
                PendingSuspension::put_back(&self.path)?;
                Ok(lock)
            }
            Taking::Held(holder) => Err(Error::conflict(format!(
                "machine {:?} runs already, or is being stored, by {holder}; see 'sojourn vm show {}'",
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
        self.must_stay_down().map(drop)
    }

    /// The same, and nobody starts the machine here until the lock is dropped; none if it is not of this home.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while it runs.
    pub(super) fn must_stay_down(&self) -> Result<Option<LockFile>> {
        if !self.path.exists() {
            return Ok(None);
        }
        let lock = self.lock()?;
        vm::machine::clear(&self.path);
        Ok(Some(lock))
    }

    /// Removes it.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(super) fn remove(&self) -> Result<()> {
        match std::fs::remove_dir_all(&self.path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(self.path.display(), e))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[test]
    fn the_names_that_lead_to_a_suspension_are_put_on_stable_storage() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(&dir.path().join("home")), None).unwrap();
        let folder = MachineFolder::of(&home, "work").unwrap();
        // Also of a directory that somebody else made, who may have been killed before a sync.
        for _ in 0..2 {
            let synced = RefCell::new(Vec::new());
            let note = |path: &FsPath| {
                assert!(folder.path().is_dir(), "it is there when its name is synced");
                synced.borrow_mut().push(path.display().to_string());
                Ok(())
            };
            folder.make_directory_synced(&note).unwrap();
            let home = home.dir().display();
            assert_eq!(synced.into_inner(), [format!("{home}/machines"), home.to_string()]);
        }
        let failing = |_: &FsPath| Err(Error::unavailable("the disk failed"));
        folder.make_directory_synced(&failing).unwrap_err();
    }

    #[test]
    fn what_was_set_aside_comes_back_once_nobody_has_the_machine() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(dir.path()), None).unwrap();
        let folder = MachineFolder::of(&home, "work").unwrap();
        folder.make_directory().unwrap();
        let place = PendingSuspension::directory(folder.path());
        std::fs::create_dir(&place).unwrap();
        let lock = folder.lock().unwrap();
        PendingSuspension::set_aside(folder.path()).unwrap();
        assert!(folder.pending().unwrap().is_none() && !place.exists());
        drop(lock);
        folder.pending().unwrap();
        assert!(place.exists() && !PendingSuspension::is_set_aside(folder.path()));
    }

    #[test]
    fn what_a_newer_build_made_of_a_machine_is_told_from_damage_and_from_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::with_key_file(Some(dir.path()), None).unwrap();
        let folder = MachineFolder::of(&home, "work").unwrap();
        folder.must_not_be_newer().unwrap();
        folder.make_directory().unwrap();
        let place = PendingSuspension::directory(folder.path());
        std::fs::create_dir(&place).unwrap();
        for path in [folder.description(), place.join("pending.json")] {
            std::fs::write(&path, "{}").unwrap();
            folder.must_not_be_newer().unwrap();
            std::fs::write(&path, "{\"version\":9}").unwrap();
            let newer = folder.must_not_be_newer().unwrap_err();
            assert_eq!(newer.kind(), ErrorKind::Unsupported);
            assert!(newer.message().contains("newer sojourn"), "{newer}");
            std::fs::write(&path, "{}").unwrap();
        }
    }
}
