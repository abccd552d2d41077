//! Lists in files of the home.

use block::fs::{FsPath, Open};
use block::{Error, Result};
use netboot::registry::replace_file;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io;
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes.
const LONGEST: u64 = 32 << 20;

/// Reads a list; there is nothing in one that is not there.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the file is damaged;
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(path: PathBuf) -> Result<Vec<T>> {
    block::offload(move || read_now(&path)).await
}

/// The same in the caller's thread.
///
/// # Errors
/// The same.
pub(super) fn read_now<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let file = match FsPath::from(path).open(Open::READ) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(Error::io(path.display(), e)),
    };
    let bytes = file.read_to_end(0, LONGEST).map_err(|e| Error::io(path.display(), e))?;
    serde_json::from_slice(&bytes)
        .map_err(|e| Error::invalid(format!("{} is damaged ({e}); remove it", path.display())))
}

/// Replaces a list, durably.
///
/// # Errors
/// Any error from the file system.
pub(crate) async fn write<T: Serialize + Send + 'static>(
    path: PathBuf,
    list: Vec<T>,
) -> Result<()> {
    block::offload(move || write_now(&path, &list)).await
}

/// The same in the caller's thread.
///
/// # Errors
/// The same.
pub(super) fn write_now<T: Serialize>(path: &Path, list: &[T]) -> Result<()> {
    let bytes = serde_json::to_vec(list)
        .map_err(|e| Error::internal("cannot write a list").with_source(e))?;
    replace_file(&FsPath::from(path), &bytes)
}
