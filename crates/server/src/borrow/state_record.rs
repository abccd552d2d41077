//! Where the state of a disk that the kernel holds goes back to: `borrow/NAME.state` in the home.
//!
//! The disk has the mark of its record in its identity, so that neither is taken for another's: the record of a
//! disk that ended with its machine says nothing of the next one of that name, and a disk whose record is in another
//! home is not taken down as if it carried nothing.

use super::control::directory;
use super::source_identity::SourceIdentity;
use block::{Error, Result};
use engine::home::Home;
use formats::Format;
use serde::{Deserialize, Serialize};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use transient::dm::Mapped;

/// What `borrow down` must know of the state of a disk that the kernel holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateRecord {
    /// Which borrowed disk carries it: [`Mapped::state`].
    pub mark: String,
    /// Where it came from, and goes back to.
    pub source: String,
    /// Which file or device that was; `None` for an export.
    pub identity: Option<SourceIdentity>,
    /// What format that file was of; `None` for an export, and in the record of an earlier build.
    #[serde(default)]
    pub format: Option<Format>,
    /// Its size in bytes.
    pub size: u64,
    /// Where on the borrowed disk it begins, in bytes.
    pub offset: u64,
    /// How far it has come.
    pub stage: StateStage,
}

/// How far a state has come.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum StateStage {
    /// It is being copied in: what is on the borrowed disk is not it.
    Copying,
    /// All of it is there, and may be changed.
    InUse,
    /// It went back, and had this hash then.
    WrittenBack(String),
}

impl StateRecord {
    /// The record of a state that is about to be copied to `offset` of a new borrowed disk.
    ///
    /// # Errors
    /// Any error from the system's randomness, and from looking at the source.
    pub fn new(source: String, format: Option<Format>, size: u64, offset: u64) -> Result<Self> {
        let identity = match source.contains("://") {
            true => None,
            false => Some(SourceIdentity::of(Path::new(&source))?),
        };
        let mut mark = [0; 8];
        engine::world::system().entropy.fill(&mut mark)?;
        let mark = format!("{:016x}", u64::from_le_bytes(mark));
        Ok(Self { mark, source, identity, format, size, offset, stage: StateStage::Copying })
    }

    /// Refuses to take another file or device for the source.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict); any error from looking at it.
    pub fn check_source(&self) -> Result<()> {
        self.identity.as_ref().map_or(Ok(()), |known| known.must_be(Path::new(&self.source)))
    }

    fn path(home: &Home, name: &str) -> PathBuf {
        directory(home).join(format!("{name}.state"))
    }

    /// That of a borrowed disk that is up; `None` when nothing of it goes back.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when something goes back and this home does not know where to,
    /// [`Corrupt`](block::ErrorKind::Corrupt) when that cannot be read.
    pub fn of(home: &Home, mapped: &Mapped) -> Result<Option<Self>> {
        // One that an older build has written is in doubt whatever the disk says.
        let record = Self::load(home, &mapped.name)?;
        let Some(mark) = &mapped.state else { return Ok(None) };
        match record {
            Some(record) if record.mark == *mark => Ok(Some(record)),
            _ => Err(Error::conflict(format!(
                "{name} carries a state that goes back to where it came from, and {path} does not say where \
                 that is: name the home of its `borrow up` (--home), or give the changes up with --drop-changes",
                name = mapped.name,
                path = Self::path(home, &mapped.name).display()
            ))),
        }
    }

    fn load(home: &Home, name: &str) -> Result<Option<Self>> {
        let path = Self::path(home, name);
        let bytes = match std::fs::read(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| Error::io(path.display(), e))?,
        };
        serde_json::from_slice(&bytes).map(Some).map_err(|e| {
            Error::corrupt(format!(
                "{} does not say where the state goes back to ({e}); copy it by hand, then give \
                 --drop-changes",
                path.display()
            ))
        })
    }

    /// Keeps it: what was there before is there until all of this is on stable storage.
    ///
    /// # Errors
    /// Any error from the home.
    pub fn save(&self, home: &Home, name: &str) -> Result<()> {
        let path = Self::path(home, name);
        let bytes = serde_json::to_vec(self)
            .map_err(|e| Error::internal("cannot write a record as JSON").with_source(e))?;
        let fresh = path.with_extension("state.new");
        let write = || {
            let mut options = OpenOptions::new();
            let mut file =
                options.write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &path)
        };
        write().map_err(|e| Error::io(path.display(), e))?;
        block::file::sync_directory(&directory(home))
    }

    /// Removes what there is of one.
    ///
    /// # Errors
    /// Any error from the home.
    pub fn remove(home: &Home, name: &str) -> Result<()> {
        let path = Self::path(home, name);
        match std::fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path.display(), e)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn home() -> (tempfile::TempDir, Home) {
        let dir = tempfile::tempdir().unwrap();
        let home = Home::find(Some(dir.path())).unwrap();
        std::fs::create_dir_all(directory(&home)).unwrap();
        (dir, home)
    }

    fn mapped(state: Option<&str>) -> Mapped {
        Mapped {
            name: "x".to_owned(),
            node: PathBuf::from("/dev/mapper/x"),
            size: 64 << 10,
            users: 0,
            lent: Vec::new(),
            device: 7,
            parts: Vec::new(),
            remnant: false,
            state: state.map(str::to_owned),
        }
    }

    #[test]
    fn a_disk_that_carries_a_state_is_nothing_without_its_own_record() {
        let (_dir, home) = home();
        let (_other_dir, other) = self::home();
        let record = StateRecord::new("nbd://lab/alice".to_owned(), None, 4096, 8192).unwrap();
        record.save(&home, "x").unwrap();
        let disk = mapped(Some(&record.mark));
        assert_eq!(StateRecord::of(&home, &disk).unwrap(), Some(record.clone()));
        // From another home, and with the record of another disk.
        for (home, disk) in [(&other, &disk), (&home, &mapped(Some("0000000000000000")))] {
            let error = StateRecord::of(home, disk).unwrap_err();
            assert!(error.message().contains("--drop-changes"), "{error}");
            assert_eq!(error.kind(), ErrorKind::Conflict);
        }
        // A disk that carries none has nothing to do with what an earlier one left.
        assert_eq!(StateRecord::of(&home, &mapped(None)).unwrap(), None);
        let next = StateRecord::new(record.source.clone(), None, 4096, 8192).unwrap();
        assert_ne!(next.mark, record.mark);
    }

    #[test]
    fn a_record_is_replaced_whole() {
        let (_dir, home) = home();
        let raw = Some(Format::Raw);
        let mut record = StateRecord::new("nbd://lab/alice".to_owned(), raw, 4096, 0).unwrap();
        record.save(&home, "x").unwrap();
        record.stage = StateStage::WrittenBack("hash".to_owned());
        record.save(&home, "x").unwrap();
        assert_eq!(StateRecord::load(&home, "x").unwrap(), Some(record));
        let left = std::fs::read_dir(directory(&home)).unwrap().count();
        assert_eq!(left, 1, "nothing lies beside it");
        std::fs::write(StateRecord::path(&home, "x"), r#"{"source":"/srv/state","size":4096}"#)
            .unwrap();
        for state in [Some("0000000000000000"), None] {
            let error = StateRecord::of(&home, &mapped(state)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "of an older build: {error}");
        }
        StateRecord::remove(&home, "x").unwrap();
        StateRecord::remove(&home, "x").unwrap();
    }
}
