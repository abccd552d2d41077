//! The reservations of initiators that want them to outlive the server: a file for each disk that has any, in
//! `iscsi/reservations` of the home, by the disk's own number.

use block::fs::{FsPath, Open};
use block::{Error, Result, offload};
use iscsi::scsi::reservations::LONGEST;
use netboot::registry::replace_file;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// The longest name that a file may have, bytes, with what is appended while it is written.
const LONGEST_NAME: usize = 255 - ".new".len();
/// How much stays of a name that is longer.
const STAYS: usize = 160;

/// A home's.
#[derive(Debug, Clone)]
pub(super) struct ReservationFiles {
    directory: FsPath,
    is_durable: Arc<AtomicBool>,
}

impl ReservationFiles {
    /// The reservations of this home.
    pub(super) fn of(home: &Path) -> Self {
        let directory = FsPath::from(home.join("iscsi/reservations").as_path());
        Self { directory, is_durable: Arc::default() }
    }

    fn file(&self, identity: &str) -> FsPath {
        // Letters and digits stay; nothing leads elsewhere, and no two names become one.
        let name: String = identity
            .bytes()
            .map(|byte| match byte {
                b'a'..=b'z' | b'0'..=b'9' => char::from(byte).to_string(),
                b' ' => "-".to_owned(),
                _ => format!("_{byte:02x}"),
            })
            .collect();
        if name.len() <= LONGEST_NAME {
            return self.directory.join(name);
        }
        // No other name has an `x` behind its `_`.
        let (begin, hash) = (&name[..STAYS], blake3::hash(identity.as_bytes()));
        self.directory.join(format!("{begin}_x{}", hash.to_hex()))
    }

    /// Makes the directory and its name durable, once in a process: a record that was kept is not to go with it, and
    /// who made it earlier may have been killed before it was.
    fn make_directory(&self) -> Result<()> {
        if self.is_durable.load(Relaxed) {
            return Ok(());
        }
        self.directory.create_dir_all().map_err(|e| self.directory.error(e))?;
        let above = self.directory.above();
        above.sync_directory()?;
        above.above().sync_directory()?;
        self.is_durable.store(true, Relaxed);
        Ok(())
    }

    /// What was kept of a disk.
    ///
    /// # Errors
    /// Any error from reading, and [`Corrupt`](block::ErrorKind::Corrupt) for what is no text.
    pub(super) async fn load(&self, identity: &str) -> Result<Option<String>> {
        let path = self.file(identity);
        offload(move || {
            let file = match path.open(Open::READ) {
                Ok(file) => file,
                Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(e) => return Err(path.error(e)),
            };
            let bytes = file.read_to_end(0, LONGEST + 1).map_err(|e| path.error(e))?;
            let text = String::from_utf8(bytes).ok().filter(|text| text.len() as u64 <= LONGEST);
            let damaged =
                || Error::corrupt(format!("{}: it is no list of reservations", path.display()));
            text.map(Some).ok_or_else(damaged)
        })
        .await
    }

    /// Keeps this, or nothing.
    ///
    /// # Errors
    /// Any error from writing; what was kept before is kept still.
    pub(super) async fn keep(&self, identity: &str, record: Option<&str>) -> Result<()> {
        let (path, files) = (self.file(identity), self.clone());
        let record = record.map(str::to_owned);
        offload(move || match record {
            Some(record) => {
                files.make_directory()?;
                replace_file(&path, record.as_bytes())
            }
            None => match path.remove_synced() {
                Err(e) if e.kind() != io::ErrorKind::NotFound => Err(path.error(e)),
                _ => Ok(()),
            },
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_was_kept_is_there_until_nothing_is() {
        let dir = tempfile::tempdir().unwrap();
        let files = ReservationFiles::of(dir.path());
        let disk = "disk 00ff";
        assert_eq!(files.load(disk).await.unwrap(), None);
        files.keep(disk, None).await.unwrap();
        for record in ["one", "another one"] {
            files.keep(disk, Some(record)).await.unwrap();
            assert_eq!(ReservationFiles::of(dir.path()).load(disk).await.unwrap().unwrap(), record);
        }
        assert_eq!(files.load("disk 00fe").await.unwrap(), None);
        files.keep(disk, None).await.unwrap();
        assert_eq!(files.load(disk).await.unwrap(), None);
    }

    #[tokio::test]
    async fn a_name_of_any_length_is_kept_and_told_from_others() {
        let dir = tempfile::tempdir().unwrap();
        let files = ReservationFiles::of(dir.path());
        // Of 120 bytes, each of which takes three.
        let disks = ["1", "2"].map(|last| format!("image {}{last}", "-._".repeat(40)));
        for disk in &disks {
            assert_eq!(files.load(disk).await.unwrap(), None);
            files.keep(disk, Some(disk)).await.unwrap();
        }
        for disk in &disks {
            assert_eq!(files.load(disk).await.unwrap().as_ref(), Some(disk));
        }
        // The longest one that is written as it is.
        let disk = "a".repeat(LONGEST_NAME);
        files.keep(&disk, Some("one")).await.unwrap();
        assert!(dir.path().join("iscsi/reservations").join(&disk).is_file());
    }

    #[tokio::test]
    async fn what_is_no_record_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let files = ReservationFiles::of(dir.path());
        let disk = "image ../x:1";
        files.keep(disk, Some("one")).await.unwrap();
        let path = dir.path().join("iscsi/reservations/image-_2e_2e_2fx_3a1");
        std::fs::write(&path, [0xff; 10]).unwrap();
        let error = files.load(disk).await.unwrap_err();
        assert!(error.message().contains("image-_2e"), "{error}");
        let long = std::fs::File::create(&path).unwrap();
        long.set_len(LONGEST + 1).unwrap();
        assert!(files.load(disk).await.is_err());
    }
}
