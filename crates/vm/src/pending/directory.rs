//! The directory of a suspension: made under another name, put in its place and removed as a whole.

use crate::ram::WRITTEN;
use block::{Error, Result};
use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;

/// The directory, in that of the machine.
pub(super) const DIRECTORY: &str = "pending";
/// It is made here.
pub(super) const FRESH: &str = "pending.new";
/// It is here while it is being given up.
pub(super) const ASIDE: &str = "pending.aside";
pub(super) const MEMORY: &str = "memory";

/// Held while what is kept is replaced or given up.
pub(super) static REPLACING: Mutex<()> = Mutex::new(());

/// Writes the directory, and puts it in its place; `sync` puts the names in a directory on stable storage.
pub(super) fn write(
    machine: &Path,
    fresh: &Path,
    files: &[(&str, Vec<u8>)],
    sync: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    remove(fresh)?;
    let failed = |e| Error::io(fresh.display(), e);
    std::fs::DirBuilder::new().mode(0o700).create(fresh).map_err(failed)?;
    std::fs::hard_link(machine.join(WRITTEN), fresh.join(MEMORY)).map_err(failed)?;
    for (name, bytes) in files {
        let mut file = File::create(fresh.join(name)).map_err(failed)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    sync(fresh)?;
    let place = machine.join(DIRECTORY);
    let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    renameat_with(CWD, fresh, CWD, &place, flags).map_err(|e| failed(e.into()))?;
    if let Err(error) = sync(machine) {
        // The guest goes on then, and writes into that memory: it must not be found by its name.
        let undone = match flags {
            RenameFlags::EXCHANGE => renameat_with(CWD, fresh, CWD, &place, flags),
            _ => renameat_with(CWD, &place, CWD, fresh, flags),
        };
        undone.map_err(|e| failed(e.into()))?;
        return Err(error);
    }
    // What was there before is of no use any more; what stays of it is removed by the next one.
    let _ = remove(fresh);
    Ok(())
}

/// Removes a directory of a suspension as a whole: it is under another name before the first file of it goes.
pub(super) fn give_up(machine: &Path, directory: &Path) -> Result<()> {
    let gone = machine.join(FRESH);
    remove(&gone)?;
    match std::fs::rename(directory, &gone) {
        Err(e) if e.kind() == IoKind::NotFound => return Ok(()),
        other => other.map_err(|e| Error::io(directory.display(), e))?,
    }
    sync(machine)?;
    remove(&gone)
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(e) if e.kind() != IoKind::NotFound => Err(Error::io(directory.display(), e)),
        _ => Ok(()),
    }
}

pub(super) fn sync(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|e| Error::io(directory.display(), e))
}

/// A file of at most so many bytes.
pub(super) fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |e| Error::io(path.display(), e);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::corrupt(format!("{} is longer than it can be", path.display())));
    }
    Ok(bytes)
}
