//! The file of this program, for who starts it again.

use crate::{Error, Result};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// What the kernel says behind the path of a file that was removed, or replaced, as by an upgrade.
const REPLACED: &[u8] = b" (deleted)";

/// The path of this program. It is the same after an upgrade, and the new program is there.
///
/// # Errors
/// That of the system.
pub fn own_program() -> Result<PathBuf> {
    let found = std::env::current_exe().map_err(|e| Error::io("the path of this program", e))?;
    Ok(as_it_was(&found).to_owned())
}

fn as_it_was(path: &Path) -> &Path {
    let bytes = path.as_os_str().as_bytes();
    bytes.strip_suffix(REPLACED).map_or(path, |bytes| Path::new(OsStr::from_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_was_replaced_has_the_path_that_it_had() {
        for path in ["/usr/bin/sojourn (deleted)", "/usr/bin/sojourn"] {
            assert_eq!(as_it_was(Path::new(path)), Path::new("/usr/bin/sojourn"));
        }
        assert!(own_program().unwrap().is_file());
    }
}
