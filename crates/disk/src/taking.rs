//! Disks that are about to be this server's: until the store has said that one was taken, a file in its directory
//! says so. Such a directory holds nothing, and may be of a disk that somebody else has: it opens only once the store
//! says that the take came through, and goes when it says that it did not.

use crate::fence::{self, Tenure};
use crate::record::DiskRecord;
use block::fs::{FsPath, Open};
use block::{Error, Result, offload};
use std::io;
use store::{RefKind, ServerId, Store};

/// The file.
const FILE: &str = "taking";

/// Marks a directory that is being made. It is as durable as the directory.
pub(crate) fn begin(directory: &FsPath) -> Result<()> {
    let path = directory.join(FILE);
    path.open(Open::REPLACE).map(drop).map_err(|e| path.error(e))
}

/// Notes that the store has answered: the disk is this server's.
pub(crate) fn end(directory: &FsPath) -> Result<()> {
    let path = directory.join(FILE);
    match path.remove_synced() {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(path.error(e)),
        _ => Ok(()),
    }
}

/// Whether nobody knows here that the store has answered.
pub(crate) fn is_open(directory: &FsPath) -> bool {
    directory.join(FILE).exists()
}

/// Asks the store whether the disk of a record was taken by `server`.
///
/// # Errors
/// Any error from the store.
pub(crate) async fn came_through(
    store: &Store,
    record: &DiskRecord,
    server: ServerId,
) -> Result<bool> {
    let name = &record.name;
    let found = store.refs().get(RefKind::Disk, name).await.map_err(|e| {
        e.context(format!("whether disk {name:?} was taken is not known before the store answers"))
    })?;
    let tenure = Tenure { server, epoch: record.epoch };
    found.map_or(Ok(false), |found| fence::is_held(&found, record.uuid, tenure))
}

/// Finds out, before a disk is opened, what came of a take that was interrupted, if there was one. Its lock is held.
///
/// # Errors
/// [`Fenced`](block::ErrorKind::Fenced) when it came to nothing; any error from the store and the file system.
pub(crate) async fn confirm(
    store: &Store,
    directory: &FsPath,
    record: &DiskRecord,
    server: ServerId,
) -> Result<()> {
    let at = directory.clone();
    if !offload(move || Ok(is_open(&at))).await? {
        return Ok(());
    }
    if came_through(store, record, server).await? {
        let at = directory.clone();
        return offload(move || end(&at)).await;
    }
    let name = &record.name;
    Err(Error::fenced(format!(
        "disk {name:?} was not taken, as that was interrupted or refused: take it again ('sojourn disk take {name}')"
    )))
}
