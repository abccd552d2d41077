//! Whether two processes see the same page cache of a file system.
//!
//! What was written and not synced is there for the next process as long as the machine runs and the
//! device stays. After a restart, or when the device was pulled and put back, storage may have any part
//! of it.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The kernel's name for this run of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Tells apart what the kernel holds in memory of a file system: the same as long as nothing that was
/// written and not synced can have been lost, but for a file system that was shut down by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageCacheId(pub [u8; 32]);

impl PageCacheId {
    /// That of the system's file system which `path` is on; `None` where nobody can tell, as in a
    /// container without `/proc`.
    ///
    /// # Errors
    /// That of the system call.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let device = fs::metadata(path)?.dev();
        let Some(boot) = fs::read_to_string(BOOT).ok().and_then(|text| boot_id(&text)) else {
            return Ok(None);
        };
        let mut id = [0; 32];
        id[..16].copy_from_slice(&boot.to_be_bytes());
        id[16..24].copy_from_slice(&device.to_le_bytes());
        id[24..].copy_from_slice(&attachment(device).to_le_bytes());
        Ok(Some(Self(id)))
    }
}

/// A UUID's 128 bits.
fn boot_id(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?
}

/// The number that the kernel gave the block device when it was attached (`diskseq`, since Linux 5.15);
/// 0 for a file system without one, or where that is not known.
fn attachment(device: u64) -> u64 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let place = format!("/sys/dev/block/{major}:{minor}");
    // A partition has that of its disk.
    [format!("{place}/diskseq"), format!("{place}/../diskseq")]
        .iter()
        .find_map(|path| fs::read_to_string(path).ok()?.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_file_system_has_one_page_cache_and_another_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let id = |path: &Path| PageCacheId::of(path).unwrap();
        assert_eq!(id(dir.path()), id(dir.path()));
        assert_ne!(id(dir.path()), id(Path::new("/proc")));
        assert!(PageCacheId::of(&dir.path().join("gone")).is_err());
    }

    #[test]
    fn a_boot_id_is_a_uuid() {
        let text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n";
        assert_eq!(boot_id(text), Some(0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0));
        assert_eq!(boot_id("0f1e2d3c"), None);
        assert_eq!(boot_id("zzze2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), None);
    }
}
