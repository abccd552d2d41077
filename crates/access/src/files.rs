//! The files of a certificate directory, under the names that QEMU and libnbd look for.

use block::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Certificates of the authorities that are trusted.
pub(crate) const CA_CERTIFICATE: &str = "ca-cert.pem";
/// The authority's key: it stays where certificates are made.
pub(crate) const CA_KEY: &str = "ca-key.pem";
/// What was revoked.
pub(crate) const REVOKED: &str = "ca-crl.pem";
/// What the server shows.
pub(crate) const SERVER_CERTIFICATE: &str = "server-cert.pem";
/// Its key.
pub(crate) const SERVER_KEY: &str = "server-key.pem";
/// What a client shows.
pub(crate) const CLIENT_CERTIFICATE: &str = "client-cert.pem";
/// Its key.
pub(crate) const CLIENT_KEY: &str = "client-key.pem";

/// Who may read a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Readers {
    Owner,
    Everybody,
}

/// The longest file that is read, in bytes.
const LONGEST: u64 = 4 << 20;

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    let io = |e| Error::io(path.display(), e);
    let mut bytes = Vec::new();
    File::open(path).map_err(io)?.take(LONGEST + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > LONGEST {
        let path = path.display();
        return Err(Error::invalid(format!("{path} is longer than 4 MiB; is it the right file?")));
    }
    Ok(bytes)
}

/// Reads a key, which others must not be able to read. As with the keys of ssh: the owner's own key
/// is for the owner alone; one that belongs to another user, such as root, may be given to a group
/// that the process is in.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>> {
    let metadata = std::fs::metadata(path).map_err(|e| Error::io(path.display(), e))?;
    let ours = metadata.uid() == rustix::process::geteuid().as_raw();
    let (others, who) = match (metadata.mode() & 0o007, ours) {
        (0, true) => (metadata.mode() & 0o070, "its group"),
        (0, false) => (0, ""),
        (some, _) => (some, "everybody"),
    };
    if others != 0 {
        let path = path.display();
        let why = format!("{path} is a key, and {who} may use the file: chmod 600 {path}");
        return Err(Error::denied(why));
    }
    read(path)
}

/// Makes a directory for the owner alone, with its parents.
pub(crate) fn make(dir: &Path) -> Result<()> {
    let made = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|e| Error::io(dir.display(), e))
}

/// Writes a file in one step: it is there whole, or is as it was.
pub(crate) fn write(path: &Path, text: &str, readers: Readers) -> Result<()> {
    Staged::new(path, text, readers)?.put()
}

/// Writes two files that belong together: both are on the disk before either takes its place, so that
/// nothing but the end of the system comes between the two.
pub(crate) fn write_pair(one: (&Path, &str, Readers), other: (&Path, &str, Readers)) -> Result<()> {
    let one = Staged::new(one.0, one.1, one.2)?;
    let other = Staged::new(other.0, other.1, other.2)?;
    one.put()?;
    other.put()
}

/// A file that is written and has not taken its place yet; removed when it never does.
struct Staged<'a> {
    path: &'a Path,
    fresh: PathBuf,
}

impl<'a> Staged<'a> {
    fn new(path: &'a Path, text: &str, readers: Readers) -> Result<Self> {
        let staged = Self { path, fresh: path.with_extension("new") };
        let _ = std::fs::remove_file(&staged.fresh); // of a command that was killed
        let mode = if readers == Readers::Owner { 0o600 } else { 0o644 };
        let written = (|| {
            let mut options = OpenOptions::new();
            let mut file = options.write(true).create_new(true).mode(mode).open(&staged.fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()
        })();
        written.map_err(|e| Error::io(path.display(), e)).map(|()| staged)
    }

    fn put(self) -> Result<()> {
        let put = std::fs::rename(&self.fresh, self.path)
            .and_then(|()| File::open(self.path.parent().unwrap_or(Path::new(".")))?.sync_all());
        put.map_err(|e| Error::io(self.path.display(), e))
    }
}

impl Drop for Staged<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.fresh); // it has taken its place, or never will
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_key_of_ones_own_is_for_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        std::fs::write(&path, "secret").unwrap();
        let read = |mode| {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            read_key(&path).map_err(|e| e.message().to_owned())
        };
        assert_eq!(read(0o600).unwrap(), b"secret");
        assert_eq!(read(0o400).unwrap(), b"secret");
        assert!(read(0o640).unwrap_err().contains("its group"));
        assert!(read(0o604).unwrap_err().contains("everybody"));
        assert!(read(0o666).unwrap_err().contains("chmod 600"));
    }

    #[test]
    fn of_two_files_neither_changes_when_one_cannot_be_written() {
        let dir = tempfile::tempdir().unwrap();
        let one = dir.path().join("one.pem");
        let lost = dir.path().join("none/other.pem");
        write(&one, "old", Readers::Everybody).unwrap();
        write_pair((&one, "new", Readers::Owner), (&lost, "new", Readers::Owner)).unwrap_err();
        assert_eq!(std::fs::read(&one).unwrap(), b"old");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left");
        let other = dir.path().join("other.pem");
        write_pair((&one, "new", Readers::Owner), (&other, "new", Readers::Owner)).unwrap();
        assert_eq!(std::fs::read(&one).unwrap(), b"new");
        assert_eq!(std::fs::metadata(&one).unwrap().mode() & 0o777, 0o600);
    }
}
