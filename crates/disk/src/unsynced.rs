//! What a failed sync leaves behind: the kernel may go on showing bytes that stable storage does not
//! have, and calls them written.
//!
//! After an error the pages that could not be written are clean, and the next sync is told nothing of
//! them (A. Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020). So whoever
//! opened the files again would read what a power failure takes away, also after a flush that succeeded.
//! A mark beside the files of a layer says that this may be so. It need not be durable: what it speaks of
//! is the kernel's memory, which does not outlive it either.

use block::fs::{FsPath, Open};
use block::{Error, RandomFile, Result};

/// What the name of a mark ends with.
pub(crate) const SUFFIX: &str = "unsynced";

/// The mark of a layer.
pub(crate) struct UnsyncedMark {
    mark: FsPath,
}

impl UnsyncedMark {
    /// That of a layer by the path of its map or its data.
    pub(crate) fn of(path: &FsPath) -> Self {
        Self { mark: path.with_extension(SUFFIX) }
    }

    /// Sets the mark: a sync of the layer failed.
    pub(crate) fn raise(&self) {
        if let Err(error) = self.mark.open(Open::REPLACE) {
            // A file system that takes no file is repaired, and then forgets its pages, before it does.
            tracing::warn!(path = %self.mark.display(), %error, "cannot note that a sync failed");
        }
    }

    /// Whether it is set.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn is_raised(&self) -> Result<bool> {
        self.mark.try_exists().map_err(|e| self.mark.error(e))
    }

    /// Takes the mark away: the layer is again what stable storage has.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn settle(&self) -> Result<()> {
        self.mark.remove_file().map_err(|e| self.mark.error(e))
    }
}

/// Has the next reads of a file come from stable storage. Waits for the disk.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when storage still does not take what was written.
pub(crate) fn reread(file: &RandomFile) -> Result<()> {
    file.drop_cached().map_err(|e| {
        Error::unavailable(format!(
            "a sync failed before, and still does; repair the file system: {e}"
        ))
    })
}

#[cfg(test)]
mod tests {
    use crate::layer::{Round, ShadowLayer, paths};
    use crate::maplog::{Failure, Identity};
    use block::{ErrorKind, Span};
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    const IDENTITY: Identity = Identity { disk: [7; 16], layer: 1 };

    fn open(directory: &Path) -> block::Result<ShadowLayer> {
        ShadowLayer::open(&directory.into(), IDENTITY, 1 << 20)
    }

    fn put(layer: &ShadowLayer, block: u64, byte: u8) {
        layer.take_in(Span::between(block * 4096, (block + 1) * 4096), &[byte; 4096]).unwrap();
    }

    #[test]
    fn a_layer_of_which_a_sync_failed_is_opened_as_storage_has_it() {
        let directory = tempfile::tempdir().unwrap();
        let (data, map) = paths(&directory.path().into(), 1);
        let mark = map.with_extension(super::SUFFIX);
        let aside = data.with_extension("aside");
        let layer = ShadowLayer::create(&directory.path().into(), IDENTITY).unwrap();
        layer.sync(Round::Close).unwrap();
        drop(layer);

        // A file that takes what is written and cannot be synced.
        fs::rename(&data, &aside).unwrap();
        symlink("/dev/null", &data).unwrap();
        let layer = open(directory.path()).unwrap();
        put(&layer, 3, 1);
        assert!(!mark.exists());
        assert!(matches!(layer.sync(Round::Flush), Err(Failure::Lost(_))));
        assert!(mark.exists());
        drop(layer);

        let error = open(directory.path()).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("repair the file system"), "{error}");
        assert!(mark.exists(), "who cannot sync it cannot say that all is well");

        // The disk works again, and does not have what was not synced.
        fs::remove_file(&data).unwrap();
        fs::rename(&aside, &data).unwrap();
        let layer = open(directory.path()).unwrap();
        assert!(!mark.exists() && layer.is_empty());
        put(&layer, 5, 2);
        layer.sync(Round::Flush).unwrap();
        drop(layer);
        assert_eq!(open(directory.path()).unwrap().held(0..256), vec![5..6]);
    }

    #[test]
    fn what_was_flushed_before_outlives_the_doubt() {
        let directory = tempfile::tempdir().unwrap();
        let layer = ShadowLayer::create(&directory.path().into(), IDENTITY).unwrap();
        for block in 0..100 {
            put(&layer, 2 * block, 9);
            layer.sync(Round::Flush).unwrap();
        }
        drop(layer);
        super::UnsyncedMark::of(&paths(&directory.path().into(), 1).1).raise();
        let layer = open(directory.path()).unwrap();
        assert_eq!(layer.held(0..256).len(), 100);
        let mut bytes = [0; 4096];
        layer.data.read_blocking(198 * 4096, &mut bytes).unwrap();
        assert_eq!(bytes, [9; 4096]);
        let names = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(names, 2, "data and map");
        layer.remove(&directory.path().into());
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
