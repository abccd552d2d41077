//! Opening regular files, and nothing else, in a directory that somebody else may write to.

use rustix::fs::OFlags;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Opens a regular file for reading: not what a link leads to, and no device or pipe that would hang.
pub(crate) fn open_regular(path: &Path) -> io::Result<(File, Metadata)> {
    #[cfg(test)]
    failing::check(path)?;
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
    let metadata = file.metadata()?;
    match metadata.is_file() {
        true => Ok((file, metadata)),
        false => Err(io::Error::from(io::ErrorKind::InvalidInput)),
    }
}

/// The names in a directory, in their order: all of them, or an error.
pub(crate) fn names_in(directory: &Path) -> io::Result<Vec<OsString>> {
    let entries = std::fs::read_dir(directory)?;
    #[cfg(test)]
    failing::check(directory)?;
    let mut names = entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

/// What is at a path, and not what a link there leads to.
pub(crate) fn metadata(path: &Path) -> io::Result<Metadata> {
    #[cfg(test)]
    failing::check_metadata(path)?;
    std::fs::symlink_metadata(path)
}

/// Makes a file in place of whatever has its name: what a link leads to stays as it is.
pub(crate) fn create_afresh(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    File::create_new(path)
}

/// Files of tests that cannot be read, as on a device that fails.
#[cfg(test)]
pub(crate) mod failing {
    use parking_lot::Mutex;
    use std::collections::HashSet;
    use std::io;
    use std::path::{Path, PathBuf};
    use std::sync::LazyLock;

    type Failing = LazyLock<Mutex<HashSet<PathBuf>>>;

    static FILES: Failing = LazyLock::new(Mutex::default);
    static METADATA: Failing = LazyLock::new(Mutex::default);

    /// From now on a file, or a directory of this test's own, fails to be read, or does not any more.
    pub(crate) fn set(path: &Path, fails: bool) {
        change(&FILES, path, fails);
    }

    /// The same of what is known about a file without opening it.
    pub(crate) fn set_metadata(path: &Path, fails: bool) {
        change(&METADATA, path, fails);
    }

    fn change(failing: &Failing, path: &Path, fails: bool) {
        match fails {
            true => failing.lock().insert(path.to_owned()),
            false => failing.lock().remove(path),
        };
    }

    pub(super) fn check(path: &Path) -> io::Result<()> {
        is_sound(&FILES, path)
    }

    pub(super) fn check_metadata(path: &Path) -> io::Result<()> {
        is_sound(&METADATA, path)
    }

    fn is_sound(failing: &Failing, path: &Path) -> io::Result<()> {
        match failing.lock().contains(path) {
            true => Err(rustix::io::Errno::IO.into()),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_pipes_and_directories_are_not_opened_and_no_link_is_written_through() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        std::fs::write(at("file"), "content").unwrap();
        std::os::unix::fs::symlink(at("file"), at("link")).unwrap();
        let pipe = std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap();
        assert!(pipe.success());
        assert!(open_regular(&at("file")).is_ok());
        for name in ["link", "pipe", ".", "nothing"] {
            assert!(open_regular(&at(name)).is_err(), "{name}");
        }
        create_afresh(&at("link")).unwrap();
        assert_eq!(std::fs::read(at("file")).unwrap(), b"content");
        assert!(std::fs::symlink_metadata(at("link")).unwrap().is_file());
    }
}
