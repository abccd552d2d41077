//! Lists in files of the home.

use block::fs::{FsPath, Open};
use block::{Error, Result};
use serde::de::DeserializeOwned;
use std::io;
use std::path::PathBuf;

/// The longest file that is read, in bytes.
const LONGEST: u64 = 32 << 20;

/// Reads a list; there is nothing in one that is not there.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the file is damaged;
/// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
pub(crate) async fn read<T: DeserializeOwned + Send + 'static>(path: PathBuf) -> Result<Vec<T>> {
    block::offload(move || {
        let file = match FsPath::from(path.as_path()).open(Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(Error::io(path.display(), e)),
        };
        let bytes = file.read_to_end(0, LONGEST).map_err(|e| Error::io(path.display(), e))?;
        serde_json::from_slice(&bytes)
            .map_err(|e| Error::invalid(format!("{} is damaged ({e}); remove it", path.display())))
    })
    .await
}
