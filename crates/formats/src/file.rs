//! Opening a file so that two writers cannot meet, and reading the few bytes that are checked.

use block::image_lock::{self, Usage};
use block::{Error, ErrorKind, Result};
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;

/// Opens a regular file or block device, and locks it ([`block::image_lock`]): other readers may have
/// it too, a writer has it alone. A device that is mounted or held otherwise is refused.
pub(crate) fn open(path: &Path, read_only: bool) -> Result<File> {
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
    lock(&file, path, usage)?;
    Ok(file)
}

/// Creates a file that was not there, its name durable, and locks it for writing.
pub(crate) fn create(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path);
    let file = file.map_err(|e| match e.kind() {
        std::io::ErrorKind::AlreadyExists => Error::conflict(format!(
            "{}: exists already; remove it or choose another name",
            path.display()
        )),
        _ => Error::io(path.display(), e),
    })?;
    lock(&file, path, Usage::Write)?;
    // So that a later flush of the file is all that its content needs.
    match path.parent() {
        Some(parent) if parent != Path::new("") => block::file::sync_directory(parent)?,
        _ => block::file::sync_directory(Path::new("."))?,
    }
    Ok(file)
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
