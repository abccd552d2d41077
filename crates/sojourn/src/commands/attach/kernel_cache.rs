//! What the kernel of this machine has in memory of a disk that is a block device. It goes to the disk before anybody is
//! told that all of it is in the store.

use crate::mounts::{Mount, parse_number};
use block::{Error, Result};
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Where the kernel shows block devices, and partitions among them.
const BLOCK_DEVICES: &str = "/sys/class/block";

/// Writes what is in memory of a device: of the file systems on it, on its partitions and on what is made of these, and
/// of the devices themselves. Waits for all of that.
///
/// # Errors
/// The system's, naming what cannot be written.
pub(super) fn write_back(device: &Path) -> Result<()> {
    let Some(name) = device.file_name().and_then(|name| name.to_str()) else { return Ok(()) };
    let devices = Path::new(BLOCK_DEVICES);
    let mut names = BTreeSet::new();
    made_of(devices, name, &mut names);
    let mut is_all = true;
    for mount in mounts_on(devices, &names, Mount::all()?) {
        is_all &= sync_mount(&mount)?;
    }
    for name in &names {
        let node = Path::new("/dev").join(name);
        match File::open(&node) {
            Ok(opened) => opened.sync_all().map_err(|e| Error::io(node.display(), e))?,
            // It is not for this user.
            Err(_) => is_all = false,
        }
    }
    if !is_all {
        // Whoever may look at none of it may ask for everything.
        rustix::fs::sync();
    }
    Ok(())
}

/// Syncs a mounted file system; `false` where it cannot be reached by its path, or another one is in front of it.
fn sync_mount(mount: &Mount) -> Result<bool> {
    let Ok(opened) = File::open(&mount.point) else { return Ok(false) };
    let point = mount.point.display();
    rustix::fs::syncfs(&opened).map_err(|e| Error::io(&point, e.into()))?;
    let (major, minor) = mount.number;
    let found = opened.metadata().map_err(|e| Error::io(&point, e))?;
    Ok(found.dev() == rustix::fs::makedev(major, minor))
}

/// Adds the name of a device and of all that is made of it: partitions, and devices that hold one of these.
fn made_of(devices: &Path, name: &str, names: &mut BTreeSet<String>) {
    let at = devices.join(name);
    if !at.is_dir() || !names.insert(name.to_owned()) {
        return;
    }
    let below = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
    };
    let parts = below(&at).into_iter().filter(|part| at.join(part).join("partition").exists());
    for other in parts.chain(below(&at.join("holders"))) {
        made_of(devices, &other, names);
    }
}

/// Those mounts that are on one of these devices: by its number, or by its path, as a file system over several devices
/// has a number of its own.
fn mounts_on(devices: &Path, names: &BTreeSet<String>, mut mounts: Vec<Mount>) -> Vec<Mount> {
    let number_of = |name: &String| {
        let text = fs::read_to_string(devices.join(name).join("dev")).ok()?;
        parse_number(text.trim())
    };
    let numbers: Vec<_> = names.iter().filter_map(number_of).collect();
    let is_on = |source: &Path| {
        let source = source.canonicalize().unwrap_or_else(|_| source.to_owned());
        let name = source.strip_prefix("/dev").ok().and_then(Path::to_str);
        name.is_some_and(|name| names.contains(name))
    };
    mounts.retain(|mount| numbers.contains(&mount.number) || is_on(mount.source.as_ref()));
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounts::parse_all;
    use std::path::PathBuf;

    #[test]
    fn file_systems_on_a_device_its_partitions_and_what_is_made_of_them_are_found() {
        let sys = tempfile::tempdir().unwrap();
        let device = |name: &str, number: &str| {
            fs::create_dir_all(sys.path().join(name).join("holders")).unwrap();
            fs::write(sys.path().join(name).join("dev"), format!("{number}\n")).unwrap();
        };
        for (name, number) in
            [("nbd0", "43:0"), ("nbd0p1", "43:1"), ("dm-3", "253:3"), ("nbd1", "43:32")]
        {
            device(name, number);
        }
        fs::create_dir_all(sys.path().join("nbd0/nbd0p1")).unwrap();
        fs::write(sys.path().join("nbd0/nbd0p1/partition"), "1\n").unwrap();
        fs::write(sys.path().join("nbd0p1/holders/dm-3"), "").unwrap();
        let mut names = BTreeSet::new();
        made_of(sys.path(), "nbd0", &mut names);
        assert_eq!(names.iter().collect::<Vec<_>>(), ["dm-3", "nbd0", "nbd0p1"]);
        let table = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
            90 22 43:1 / /mnt/my\\040disk rw - vfat /dev/nbd0p1 rw\n\
            91 22 0:50 /home /mnt/b rw shared:2 master:1 - btrfs /dev/nbd0 rw\n\
            92 22 253:3 / /mnt/c rw - xfs /dev/mapper/cr rw\n\
            93 22 43:32 / /mnt/other rw - ext4 /dev/nbd1 rw\n\
            94 22 0:51 / /mnt/nfs rw - nfs server:/share rw\n";
        let found = mounts_on(sys.path(), &names, parse_all(table));
        let points: Vec<_> = found.into_iter().map(|mount| mount.point).collect();
        assert_eq!(points, ["/mnt/my disk", "/mnt/b", "/mnt/c"].map(PathBuf::from));
        made_of(sys.path(), "nbd7", &mut names);
        assert_eq!(names.len(), 3, "one that is not there has nothing in memory");
    }

    #[test]
    fn a_file_system_is_synced_by_its_mount_point() {
        let dir = tempfile::tempdir().unwrap();
        let dev = fs::metadata(dir.path()).unwrap().dev();
        let number = (rustix::fs::major(dev), rustix::fs::minor(dev));
        let any = parse_all("22 1 8:1 / / rw - ext4 /dev/sda1 rw").remove(0);
        let at = |number, point| sync_mount(&Mount { number, point, ..any.clone() }).unwrap();
        assert!(at(number, dir.path().to_owned()));
        assert!(!at((number.0, number.1 + 1), dir.path().to_owned()), "another one is there");
        assert!(!at(number, dir.path().join("nothing")));
    }
}
