//! Whether two processes see the same page cache of a file system.
//!
//! What was written and not synced is there for the next process as long as the machine runs and the
//! device stays. After a restart, or when the device was pulled and put back, storage may have any part
//! of it.

use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::io::Errno;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The kernel's name for this run of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";

/// Tells apart what the kernel holds in memory of a file system: the same as long as nothing that was
/// written and not synced can have been lost, but for a file system that was shut down by force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PageCacheId(pub [u8; 32]);

impl PageCacheId {
    /// That of the system's file system which `path` is on; `None` where nobody can tell, as in a
    /// container without `/proc`, or without the device of a btrfs.
    ///
    /// # Errors
    /// [`NotFound`](io::ErrorKind::NotFound), or [`PermissionDenied`](io::ErrorKind::PermissionDenied) when a
    /// directory above it may not be searched.
    pub(crate) fn of(path: &Path) -> io::Result<Option<Self>> {
        let device = fs::metadata(path)?.dev();
        let Some(boot) = fs::read_to_string(BOOT).ok().and_then(|text| boot_id(&text)) else {
            return Ok(None);
        };
        let mut id = [0; 32];
        id[..16].copy_from_slice(&boot.to_be_bytes());
        id[16..24].copy_from_slice(&device.to_le_bytes());
        let Some(attachment) = attachment(path, device)? else { return Ok(None) };
        id[24..].copy_from_slice(&attachment.to_le_bytes());
        Ok(Some(Self(id)))
    }
}

/// A UUID's 128 bits.
fn boot_id(text: &str) -> Option<u128> {
    let digits: String = text.trim().chars().filter(|c| *c != '-').collect();
    (digits.len() == 32).then(|| u128::from_str_radix(&digits, 16).ok())?
}

/// The number that the kernel gave the block device of a path's file system when it was attached (`diskseq`,
/// since Linux 5.15); 0 for a file system without one, or where there are no such numbers. `None` where the file
/// system has a device and nobody can tell which.
fn attachment(path: &Path, device: u64) -> io::Result<Option<u64>> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    if major != 0 {
        return Ok(Some(sequence(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))));
    }
    // A number of its own: btrfs, which may be on several devices, or one that is on none. It is the next one's
    // when it is free again, also when the device was pulled and put back.
    let Some(mount) = mount_number(path)? else { return Ok(Some(0)) };
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(match mount_source(&mounts, mount) {
        Some(("btrfs", source)) => in_sysfs(&source).map(|device| sequence(&device)),
        // All its devices, with colons between them.
        Some(("bcachefs", source)) => {
            source.split(':').next().and_then(in_sysfs).map(|device| sequence(&device))
        }
        _ => Some(0),
    })
}

/// The number of a device at its place in sysfs.
fn sequence(device: &Path) -> u64 {
    // A partition has that of its disk. The place is a link: `..` is not where its name is.
    let places = [device.join("diskseq"), device.join("../diskseq")];
    let read = |path: &PathBuf| fs::read_to_string(path).ok()?.trim().parse().ok();
    places.iter().find_map(read).unwrap_or(0)
}

/// The number of the mount that a path is below; `None` before Linux 5.8.
fn mount_number(path: &Path) -> io::Result<Option<u64>> {
    match statx(CWD, path, AtFlags::empty(), StatxFlags::MNT_ID) {
        Ok(found) if found.stx_mask & StatxFlags::MNT_ID.bits() != 0 => Ok(Some(found.stx_mnt_id)),
        Ok(_) | Err(Errno::NOSYS) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// The file system type and the source (`btrfs`, `/dev/sda2`) of a mount, out of `/proc/self/mountinfo`, whose lines
/// begin with the mount's number (proc_pid_mountinfo(5)). `None` when no line does.
fn mount_source(mounts: &str, number: u64) -> Option<(&str, String)> {
    let number = number.to_string();
    let line = mounts.lines().find(|line| line.split(' ').next() == Some(number.as_str()))?;
    let (_, rest) = line.split_once(" - ")?;
    let mut words = rest.split(' ');
    let (kind, escaped) = (words.next()?, words.next()?);
    let source = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(escaped.to_owned(), |text, (code, char)| text.replace(code, char));
    Some((kind, source))
}

/// The place in sysfs of the block device that `/dev` has, or had where this process is not to see it, by this
/// path.
fn in_sysfs(device: &str) -> Option<PathBuf> {
    if let Ok(found) = fs::metadata(device)
        && found.file_type().is_block_device()
    {
        let (major, minor) = (rustix::fs::major(found.rdev()), rustix::fs::minor(found.rdev()));
        return Some(PathBuf::from(format!("/sys/dev/block/{major}:{minor}")));
    }
    let (all, name) = (Path::new("/sys/class/block"), Path::new(device).file_name()?.to_str()?);
    let same = all.join(name);
    if same.exists() {
        return Some(same);
    }
    // /dev/mapper has a name of its own for each.
    fs::read_dir(all).ok()?.filter_map(io::Result::ok).map(|entry| entry.path()).find(|place| {
        fs::read_to_string(place.join("dm/name")).is_ok_and(|mapped| mapped.trim_end() == name)
    })
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
    fn what_a_mount_is_of_is_found_by_its_number() {
        let mounts = "27 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
                      135 27 0:46 / /mnt/a\\040b rw shared:7 master:1 - btrfs /dev/a\\040b rw,subvol=/\n\
                      13 27 0:5 / /proc rw - proc proc rw\n";
        let source = |number| mount_source(mounts, number);
        assert_eq!(source(27), Some(("ext4", "/dev/vda".to_owned())));
        assert_eq!(source(135), Some(("btrfs", "/dev/a b".to_owned())));
        assert_eq!(source(13), Some(("proc", "proc".to_owned())));
        assert_eq!(mount_source(mounts, 1), None);
        assert_eq!(mount_source("135 27", 135), None);
    }

    #[test]
    fn a_boot_id_is_a_uuid() {
        let text = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0\n";
        assert_eq!(boot_id(text), Some(0x0f1e_2d3c_4b5a_6978_8796_a5b4_c3d2_e1f0));
        assert_eq!(boot_id("0f1e2d3c"), None);
        assert_eq!(boot_id("zzze2d3c-4b5a-6978-8796-a5b4c3d2e1f0"), None);
    }
}
