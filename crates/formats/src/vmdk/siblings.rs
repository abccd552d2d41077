//! Which files a descriptor may name.

use block::{Error, RandomFile, Result};
use std::path::{Path, PathBuf};

/// Lets a descriptor open the files of its own name and place, and nothing else.
pub(super) struct Siblings {
    directory: PathBuf,
    stem: String,
    /// The descriptor's, with its dot; tools give extents the same.
    extension: String,
}

impl Siblings {
    pub(super) fn of(path: &Path) -> Self {
        let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy()));
        Self {
            directory: path.parent().unwrap_or(Path::new("")).to_owned(),
            stem: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            extension: extension.unwrap_or_default(),
        }
    }

    /// Opens an extent for reading.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) for another file; any error from opening.
    pub(super) fn open(&self, extent: &str) -> Result<RandomFile> {
        if !self.allows(extent) {
            return Err(Error::denied(format!(
                "{extent:?} is not opened: an extent may only be {0}-flat{1} or {0}-fNNN{1} beside the \
                 descriptor; convert it with qemu-img convert -O qcow2",
                self.stem, self.extension
            )));
        }
        let path = self.directory.join(extent);
        let found = std::fs::symlink_metadata(&path).map_err(|e| Error::io(path.display(), e))?;
        if !found.is_file() {
            return Err(Error::denied(format!(
                "{extent:?} is not opened: an extent must be a file itself, not a link or a device"
            )));
        }
        RandomFile::from_locked(crate::file::open(&path, true)?, path)
    }

    fn allows(&self, extent: &str) -> bool {
        let rest = extent.strip_prefix(&self.stem).and_then(|e| e.strip_suffix(&self.extension));
        match rest {
            Some("-flat") => true,
            Some(rest) => rest
                .strip_prefix("-f")
                .is_some_and(|n| n.len() == 3 && n.bytes().all(|b| b.is_ascii_digit())),
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_extents_of_its_own_name_and_place_are_opened() {
        let siblings = Siblings::of(Path::new("/images/win.vmdk"));
        for good in ["win-flat.vmdk", "win-f001.vmdk"] {
            assert!(siblings.allows(good), "{good}");
        }
        for bad in [
            "/etc/shadow",
            "/images/win-flat.vmdk",
            "other-flat.vmdk",
            "win.vmdk",
            "sub/win-flat.vmdk",
            "sub/../win-flat.vmdk",
            "win-f1.vmdk",
            "win-f+01.vmdk",
            "win-flat.vmdk/..",
            "",
        ] {
            assert!(!siblings.allows(bad), "{bad}");
        }
    }
}
