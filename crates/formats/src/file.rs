//! Opening a file so that two writers cannot meet, and reading the few bytes that are checked.

use block::image_lock::{self, LockedFile, Usage};
use block::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Opens a regular file or block device, and locks it ([`block::image_lock`]): other readers may have
/// it too, a writer has it alone. A device that is mounted or held otherwise is refused.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<LockedFile> {
    let fail = |e| Error::io(path.display(), e);
    // Looked at first: opening a pipe would wait for its other end.
    let kind = std::fs::metadata(path).map_err(fail)?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::invalid(format!(
            "{}: neither a file nor a block device; name a disk image",
            path.display()
        )));
    }
    let usage = if read_only { Usage::Read } else { Usage::Write };
    let file = match kind.is_block_device() {
        true => image_lock::open_device(path, usage)?,
        false => OpenOptions::new().read(true).write(!read_only).open(path).map_err(fail)?,
    };
    let file = LockedFile::new(file);
    lock(&file, path, usage)?;
    Ok(file)
}

/// Creates a file that was not there, its name durable, locks it for writing, and gives it to `make`;
/// when that fails the file is removed again. `mode`: its permissions, less what the process takes
/// from new files.
pub(crate) fn create<T>(
    path: &Path,
    mode: u32,
    make: impl FnOnce(LockedFile) -> Result<T>,
) -> Result<T> {
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(mode).open(path);
    let file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::conflict(format!(
            "{}: exists already; remove it or choose another name",
            path.display()
        )),
        _ => Error::io(path.display(), e),
    })?;
    let file = LockedFile::new(file);
    lock(&file, path, Usage::Write)?;
    // Whoever takes the file for a leftover locks it, and may have been the first to do so.
    if !is_at(&file, path)? {
        return Err(Error::conflict(format!(
            "{}: another process took it away; choose another name",
            path.display()
        )));
    }
    // The lock lives as long as this: what is removed is ours.
    let held = file.clone();
    // So that a later flush of the file is all that its content needs.
    let named = match path.parent() {
        Some(parent) if parent != Path::new("") => block::file::sync_directory(parent),
        _ => block::file::sync_directory(Path::new(".")),
    };
    named.and_then(|()| make(file)).inspect_err(|_| {
        // Nothing is lost: it was not there before, and has no data.
        let _ = std::fs::remove_file(path);
        drop(held);
    })
}

/// Whether a path leads to an open file, and not to another one or none.
fn is_at(file: &File, path: &Path) -> Result<bool> {
    let fail = |e| Error::io(path.display(), e);
    let open = file.metadata().map_err(fail)?;
    match std::fs::symlink_metadata(path) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(fail(e)),
    }
}

/// Removes a file that a process which was killed left behind; one that is not there is no error.
///
/// # Errors
/// [`Conflict`](ErrorKind::Conflict) when a process still has it locked, or when it cannot be told
/// whether one has; any error from the system.
pub fn remove_leftover(path: &Path) -> Result<()> {
    let fail = |e| Error::io(path.display(), e);
    match std::fs::symlink_metadata(path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
        Ok(there) if there.is_file() => {}
        Ok(_) => {
            return Err(Error::conflict(format!(
                "{}: is there already, and no file",
                path.display()
            )));
        }
    }
    let file = match OpenOptions::new().read(true).open(path) {
        Ok(file) => LockedFile::new(file),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(fail(e)),
    };
    image_lock::lock(&file, path, Usage::Exclusive).map_err(|e| match e.kind() {
        ErrorKind::Unsupported => Error::conflict(format!(
            "{}: is left of a process that was killed, or another one writes it; this file system has \
             no locks to tell; remove it when none does",
            path.display()
        )),
        _ => e,
    })?;
    if is_at(&file, path)? { std::fs::remove_file(path).map_err(fail) } else { Ok(()) }
}

fn lock(file: &File, path: &Path, usage: Usage) -> Result<()> {
    match image_lock::lock(file, path, usage) {
        // A file system without locks protects nothing, and nothing can be done about it.
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(()),
        locked => locked,
    }
}

/// The length in bytes; that of the device for a block device.
pub(crate) fn len(file: &File, path: &Path) -> Result<u64> {
    let mut file = file;
    file.seek(SeekFrom::End(0)).map_err(|e| Error::io(path.display(), e))
}

/// Reads `count` bytes at `offset`, fewer at the end of the file.
pub(crate) fn read_up_to(file: &File, path: &Path, offset: u64, count: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; count];
    let mut done = 0;
    while done < count {
        match file.read_at(&mut bytes[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io(path.display(), e)),
        }
    }
    bytes.truncate(done);
    Ok(bytes)
}

/// A big-endian number in `bytes`, which hold it.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

/// A big-endian number in `bytes`, which hold it.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    u64::from(be32(bytes, at)) << 32 | u64::from(be32(bytes, at + 4))
}

/// A little-endian number in `bytes`, which hold it.
pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    be32(bytes, at).swap_bytes()
}

/// A little-endian number in `bytes`, which hold it.
pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    be64(bytes, at).swap_bytes()
}
