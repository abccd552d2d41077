//! The files of a certificate directory, under the names that QEMU and libnbd look for.

use block::{Error, Result};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

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

/// Reads a key, which others must not be able to read.
pub(crate) fn read_key(path: &Path) -> Result<Vec<u8>> {
    let mode = std::fs::metadata(path).map_err(|e| Error::io(path.display(), e))?.mode();
    if mode & 0o007 != 0 {
        let path = path.display();
        let why = format!("{path} is a key, and everybody may use the file: chmod 600 {path}");
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
    let fresh = path.with_extension("new");
    let io = |e| Error::io(path.display(), e);
    let _ = std::fs::remove_file(&fresh); // of a command that was killed
    let mode = if readers == Readers::Owner { 0o600 } else { 0o644 };
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&fresh);
    let written =
        file.as_mut().map_err(|e| std::io::Error::new(e.kind(), e.to_string())).and_then(|file| {
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&fresh, path)?;
            File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
        });
    if written.is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
    written.map_err(io)
}
