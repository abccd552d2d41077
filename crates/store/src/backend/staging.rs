//! What writers that were killed leave in a local store: files `<object>#<number>`, which no listing
//! shows.

use crate::gc::Amount;
use block::{Error, Result};
use std::fs::{self, DirEntry, File};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// Directories below each other in a store: `refs`, kind, name.
const DEPTH: usize = 4;

/// Deletes files that were being written and have not been for `age`; with `dry_run` it only says
/// how many there are. Waits for the disk.
///
/// # Errors
/// Those of the file system.
pub fn sweep_staging(store: &Path, age: Duration, dry_run: bool) -> Result<Amount> {
    // The file system's own time: that of the files' dates.
    let probe = store.join("clock#0");
    let now = File::create(&probe).and_then(|file| file.metadata()?.modified());
    let now = now.map_err(|e| Error::io(probe.display(), e))?;
    fs::remove_file(&probe).map_err(|e| Error::io(probe.display(), e))?;
    let mut swept = Amount::default();
    walk(store, DEPTH, &mut |entry| {
        let Some((len, modified)) = left_over(entry)? else { return Ok(()) };
        if now.duration_since(modified).unwrap_or_default() < age {
            return Ok(());
        }
        if !dry_run {
            fs::remove_file(entry.path())?;
        }
        swept.add(len);
        Ok(())
    })?;
    Ok(swept)
}

/// Length and date of a file whose name says that it was being written.
fn left_over(entry: &DirEntry) -> std::io::Result<Option<(u64, SystemTime)>> {
    let name = entry.file_name();
    let staged = name.to_str().and_then(|name| name.rsplit_once('#')).is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|digit| digit.is_ascii_digit())
    });
    if !staged {
        return Ok(None);
    }
    match entry.metadata() {
        Ok(found) if found.is_file() => Ok(Some((found.len(), found.modified()?))),
        Ok(_) => Ok(None),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

fn walk(
    directory: &Path,
    depth: usize,
    each: &mut dyn FnMut(&DirEntry) -> std::io::Result<()>,
) -> Result<()> {
    let failed = |path: &Path, e| Error::io(path.display(), e);
    for entry in fs::read_dir(directory).map_err(|e| failed(directory, e))? {
        let entry = entry.map_err(|e| failed(directory, e))?;
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() && depth > 1 => walk(&path, depth - 1, each)?,
            Ok(_) => match each(&entry) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(failed(&path, e)),
                _ => {}
            },
            // Moved to its place since.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(e) => return Err(failed(&path, e)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(sweep_staging(&dir.path().join("gone"), hour, true).is_err());
    }
}
