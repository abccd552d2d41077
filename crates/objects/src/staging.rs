//! What writers that were killed leave in a local store: files `<object>#<number>`, which no listing
//! shows.

use super::directory::is_staged;
use crate::Amount;
use block::Result;
use block::fs::{FileType, FsPath, Open};
use std::io;
use std::time::{Duration, SystemTime};

/// Directories below each other in a store: `refs`, kind, name.
const DEPTH: usize = 4;

/// Deletes files that were being written and have not been for `age`; with `dry_run` it only says
/// how many there are. Waits for the disk.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
pub fn sweep_staging(store: impl Into<FsPath>, age: Duration, dry_run: bool) -> Result<Amount> {
    let store = store.into();
    // The file system's own time: that of the files' dates.
    let probe = store.join("clock#0");
    let now = probe.open(Open::REPLACE).and_then(|file| file.metadata());
    let now = now.map_err(|e| probe.error(e))?.modified;
    // Another collection's look at the time may have removed it.
    match probe.remove_file() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(probe.error(e)),
        _ => {}
    }
    let mut swept = Amount::default();
    walk(&store, DEPTH, &mut |path| {
        let Some((len, modified)) = left_over(path)? else { return Ok(()) };
        if now.duration_since(modified).unwrap_or_default() < age {
            return Ok(());
        }
        if !dry_run {
            path.remove_file()?;
        }
        swept.add(len);
        Ok(())
    })?;
    Ok(swept)
}

/// Length and date of a file whose name says that it was being written.
fn left_over(path: &FsPath) -> io::Result<Option<(u64, SystemTime)>> {
    // That one is meant to stay.
    if path.file_name().is_some_and(|name| name == super::spare::FILE) {
        return Ok(None);
    }
    if !path.file_name().and_then(|name| name.to_str()).is_some_and(is_staged) {
        return Ok(None);
    }
    let found = path.metadata()?;
    Ok((found.kind == FileType::File).then_some((found.len, found.modified)))
}

/// Shows all files to `each`; that one is gone by then, moved to its place, is no error.
fn walk(
    directory: &FsPath,
    depth: usize,
    each: &mut dyn FnMut(&FsPath) -> io::Result<()>,
) -> Result<()> {
    for entry in directory.read_dir().map_err(|e| directory.error(e))? {
        let path = directory.join(&entry.name);
        if entry.kind == FileType::Directory && depth > 1 {
            walk(&path, depth - 1, each)?;
            continue;
        }
        match each(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(path.error(e)),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_old_files_that_were_being_written_are_deleted() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("refs/disk/a")).unwrap();
        let names =
            ["packs#1", "refs/disk/a/00000000000000000001#12", "refs/x", "a#b", "store.json"];
        for name in names {
            fs::write(dir.path().join(name), "12345").unwrap();
        }
        let hour = Duration::from_secs(3600);
        assert_eq!(sweep_staging(dir.path(), hour, false).unwrap(), Amount::default());
        let found = Amount { objects: 2, bytes: 10 };
        assert_eq!(sweep_staging(dir.path(), Duration::ZERO, true).unwrap(), found);
        assert_eq!(sweep_staging(dir.path(), Duration::ZERO, false).unwrap(), found);
        let left = |name: &&str| dir.path().join(name).exists();
        assert_eq!(names.map(|name| left(&name)), [false, false, true, true, true]);
        assert!(sweep_staging(dir.path().join("gone"), hour, true).is_err());
    }
}
