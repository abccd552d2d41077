//! A local directory as a backend.

use crate::arm::DiskReadOrder;
use crate::backend_reads::BackendReadMeter;
use crate::directory::Directory;
use crate::{spare, turns};
use block::fs::{FileType, FsPath};
use block::{Error, Result};
use object_store::ObjectStore;
use std::io;
use std::sync::Arc;

/// A backend in a local directory that exists. What it answered is on stable storage.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is no such directory; else that of the file system,
/// naming it.
pub fn local(path: impl Into<FsPath>) -> Result<Arc<dyn ObjectStore>> {
    local_ordered(path, &DiskReadOrder::Arrival)
}

/// The same, with reads of ranges in this order.
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when there is no such directory; [`Invalid`](block::ErrorKind::Invalid)
/// when the order is by a profile that describes no disk; else that of the file system, naming it.
pub fn local_ordered(
    path: impl Into<FsPath>,
    order: &DiskReadOrder,
) -> Result<Arc<dyn ObjectStore>> {
    Ok(local_metered(path, order)?.0)
}

/// The same, and the meter of what is read from it.
///
/// # Errors
/// Those of [`local_ordered`].
pub(crate) fn local_metered(
    path: impl Into<FsPath>,
    order: &DiskReadOrder,
) -> Result<(Arc<dyn ObjectStore>, Arc<BackendReadMeter>)> {
    let path = path.into();
    match path.metadata() {
        Ok(found) if found.kind == FileType::Directory => {}
        Ok(_) => {
            return Err(Error::invalid(format!(
                "{} is not a directory; give the directory of a store",
                path.display()
            )));
        }
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            return Err(Error::not_found(format!(
                "there is no directory {}; correct the store's path, or make a store with \
                 \"sojourn init\"",
                path.display()
            )));
        }
        Err(e) => return Err(path.error(e)),
    }
    let named = path.display().to_string();
    let reserve = spare::reserve(&path);
    let backend = Directory::new(path).map_err(|e| Error::io(named, e))?;
    let turns = turns::Turns::new(backend).ordered(order)?;
    let meter = turns.meter();
    Ok((Arc::new(spare::RoomyDirectory::new(turns, reserve)), meter))
}

/// Opens a new store as [`local`] does: the directory is made if need be.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when there is no such directory; else that of the file system,
/// naming it.
pub fn create_local(path: impl Into<FsPath>) -> Result<Arc<dyn ObjectStore>> {
    let path = path.into();
    make_durable(&path)?;
    local(path)
}

/// Makes a directory and those above it that are missing, each on stable storage. One that is there may
/// be what somebody left who was killed.
fn make_durable(path: &FsPath) -> Result<()> {
    let above = path.above();
    if path.parent().is_none() {
        return Ok(());
    }
    if !path.is_dir() {
        if !above.is_dir() {
            make_durable(&above)?;
        }
        match path.create_dir() {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(path.error(e)),
            _ => {}
        }
    }
    above.sync_directory()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{OpenStoreOptions, create, open};
    use block::ErrorKind;

    #[test]
    fn urls_name_directories() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let options = OpenStoreOptions::default();
        create(&format!("file://{}", path.display()), &options).unwrap();
        assert!(path.is_dir());
        open(path.to_str().unwrap(), &options).unwrap();
        let error = create_local("/proc/no/such").unwrap_err();
        assert!(error.message().contains("/proc/no"));
    }

    #[test]
    fn opening_a_mistyped_directory_is_not_found_and_leaves_nothing_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("above").join("mistyped");
        let error = local(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("mistyped") && error.message().contains("sojourn init"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        std::fs::write(dir.path().join("file"), "x").unwrap();
        let error = local(dir.path().join("file")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        create_local(&path).unwrap();
        assert!(path.is_dir());
    }
}
