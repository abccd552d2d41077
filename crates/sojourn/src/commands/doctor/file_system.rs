//! The file systems of the home and of a store in a directory: whether they keep what they were given, and the room
//! on them.

use super::finding::Finding;
use super::patient::Patient;
use crate::mounts::Mount;
use block::ByteSize;
use block::reserve::Volume;
use std::path::{Path, PathBuf};

/// What guests never get, at the most, in bytes; it is a part of the file system if that is less.
const KEPT: u64 = 256 << 20;
const KEPT_PART: u64 = 16;
/// Below this part of room or inodes there is little.
const LITTLE_PART: u64 = 20;
/// Below so many bytes there is little, if that is more than the part.
const LITTLE: u64 = 2 << 30;

pub(super) fn look(patient: &Patient) -> Vec<Finding> {
    let home = there(patient.home.dir());
    let mut findings = of_one("the home", &home);
    let store = patient.store_directory().map(|path| there(&path));
    // A store in the home is on the home's file system.
    if let Some(store) = store.filter(|store| device(store) != device(&home)) {
        findings.extend(of_one("the store", &store));
    }
    if patient.has_home {
        findings.extend(reserve(patient));
    }
    findings
}

/// The directory, or the nearest one above it that is there.
fn there(path: &Path) -> PathBuf {
    path.ancestors().find(|path| path.exists()).unwrap_or(Path::new("/")).to_owned()
}

fn device(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    path.metadata().ok().map(|metadata| metadata.dev())
}

fn of_one(name: &str, path: &Path) -> Vec<Finding> {
    let Some(mount) = Mount::of(path) else {
        return vec![Finding::trouble(
            format!("/proc does not say what file system {} is on", path.display()),
            "a killed server then keeps what was flushed, and not all that was answered",
            "mount /proc in this container",
        )];
    };
    let mut findings: Vec<Finding> = kind(name, path, &mount).into_iter().collect();
    findings.extend(options(name, &mount));
    findings.extend(room(name, path));
    if findings.is_empty() {
        let left = Volume::of(path).map(|volume| format!(", {} free", ByteSize(volume.available)));
        let left = left.unwrap_or_default();
        findings.push(Finding::ok(format!(
            "{name} is on {} ({}){left}",
            mount.kind,
            mount.point.display()
        )));
    }
    findings
}

/// What is known of this kind of file system.
fn kind(name: &str, path: &Path, mount: &Mount) -> Option<Finding> {
    let on = format!("{name} is on {} ({})", mount.kind, mount.point.display());
    let local = format!("move {name} to ext4, XFS or btrfs on a disk of this machine");
    match mount.kind.as_str() {
        "tmpfs" | "ramfs" => {
            Some(Finding::danger(on, "all of it is gone when the machine ends", local))
        }
        "overlay" => Some(Finding::danger(
            on,
            "it is the container's own layer, and gone with the container",
            format!("give the container a volume, and {name} a place on it"),
        )),
        "vfat" | "exfat" | "msdos" => Some(Finding::trouble(
            on,
            "it has no holes, no rights and no journal: disks take their whole size, and a power cut damages it",
            local,
        )),
        _ if engine::places::is_over_network(path) => {
            // A store is made for that; a home is not.
            (name == "the home").then(|| {
                Finding::trouble(
                    on,
                    "locks and syncs are then the network's to keep; when it hangs, every guest does",
                    "keep the home on a disk of this machine, and the store in the network (docs/stores.md)",
                )
            })
        }
        "ext2" => Some(no_journal(on, &local)),
        "ext3" | "ext4" if !has_journal(&mount.source) => Some(no_journal(on, &local)),
        _ => None,
    }
}

fn no_journal(on: String, local: &str) -> Finding {
    Finding::danger(
        format!("{on}, without a journal"),
        "a power cut takes what guests were told is on the disk: its fsync does not write all metadata (docs/shadow-format.md)",
        format!("tune2fs -j on the device while it is not mounted, or {local}"),
    )
}

/// Whether the ext4 on a device has a journal, as far as the kernel says.
fn has_journal(source: &str) -> bool {
    let Some(device) = Path::new(source).canonicalize().ok() else { return true };
    let Some(name) = device.file_name().and_then(|name| name.to_str()) else { return true };
    let task = std::fs::read_to_string(format!("/sys/fs/ext4/{name}/journal_task"));
    task.map_or(true, |task| !task.starts_with("<none>"))
}

/// What the options of a mount give away.
fn options(name: &str, mount: &Mount) -> Vec<Finding> {
    let mut findings = Vec::new();
    let at = mount.point.display();
    if mount.has("ro") {
        findings.push(Finding::trouble(
            format!("{name} is on a file system that is mounted read-only ({at})"),
            "nothing can be written; ext4 becomes read-only by itself after an error of the disk",
            format!("look at `dmesg`, check the file system, then: mount -o remount,rw {at}"),
        ));
    }
    if mount.has("nobarrier") || mount.has("barrier=0") {
        findings.push(Finding::danger(
            format!("{name} is on a file system without barriers ({at})"),
            "a power cut takes what guests were told is on the disk",
            format!("mount -o remount,barrier {at}, and take the option out of /etc/fstab"),
        ));
    }
    // The kernel shows that without a journal, too; `no_journal` is about that.
    if mount.has("data=writeback") && has_journal(&mount.source) {
        findings.push(Finding::danger(
            format!("{name} is on a file system that puts places into files before their bytes ({at})"),
            "after a power cut a block that was trimmed and written to again may have another file's bytes \
             (docs/shadow-format.md)",
            format!("take data=writeback out of /etc/fstab, umount {at} and mount it again"),
        ));
    }
    findings
}

fn room(name: &str, path: &Path) -> Vec<Finding> {
    let mut findings = Vec::new();
    if let Ok(volume) = Volume::of(path)
        && !volume.is_unlimited()
    {
        let kept = (volume.total / KEPT_PART).min(KEPT);
        let left = ByteSize(volume.available);
        let what = format!("{name} has {left} of {} left", ByteSize(volume.total));
        let remedy =
            "sojourn gc, sojourn disk prune and reset, another file system, or limits.disk_space";
        if volume.available <= kept {
            let why =
                "guests' writes of new blocks fail: the last of a file system is kept from them";
            findings.push(Finding::trouble(what, why, remedy));
        } else if volume.available < (volume.total / LITTLE_PART).min(LITTLE) {
            findings.push(Finding::advice(what, "disks are full when it is", remedy));
        }
    }
    if let Ok(found) = rustix::fs::statvfs(path)
        && found.f_files > 0
        && found.f_favail < found.f_files / LITTLE_PART
    {
        findings.push(Finding::trouble(
            format!("{name} has {} of {} inodes left", found.f_favail, found.f_files),
            "no disk, chunk or record can be made without one, whatever room there is",
            "remove files, or make the file system with more of them (mkfs -i)",
        ));
    }
    findings
}

/// The room that is kept for what must be written even when there is none.
fn reserve(patient: &Patient) -> Option<Finding> {
    let disks = patient.home.disks();
    let any = std::fs::read_dir(&disks).ok()?.flatten().any(|entry| {
        // What begins with a point is no disk.
        !entry.file_name().to_string_lossy().starts_with('.')
    });
    let file = disks.join(".reserve");
    let wanted = Volume::of(&disks).ok().filter(|volume| !volume.is_unlimited())?.reserve();
    let kept = file.metadata().map_or(0, |metadata| metadata.len());
    (any && kept < wanted).then(|| {
        Finding::advice(
            format!("the reserve of the home has {} of {}", ByteSize(kept), ByteSize(wanted)),
            "it was given up when the file system was full, and is made anew by the next server that has room",
            "make room; the reserve comes back by itself",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::finding::Level;

    fn mount(kind: &str, options: &[&str]) -> Mount {
        let options = options.iter().map(|option| (*option).to_owned()).collect();
        let (number, point, kind) = ((0, 40), "/srv".into(), kind.to_owned());
        Mount { number, point, kind, source: "none".to_owned(), options }
    }

    #[test]
    fn what_loses_data_is_a_danger() {
        let of = |kind_of| {
            kind("the home", Path::new("/"), &mount(kind_of, &[])).map(|found| found.level)
        };
        assert_eq!(of("tmpfs"), Some(Level::Danger));
        assert_eq!(of("overlay"), Some(Level::Danger));
        assert_eq!(of("ext2"), Some(Level::Danger));
        assert_eq!(of("vfat"), Some(Level::Trouble));
        assert_eq!(of("btrfs"), None);
        let levels = |all: &[&str]| -> Vec<Level> {
            options("the home", &mount("ext4", all)).iter().map(|found| found.level).collect()
        };
        assert_eq!(levels(&["rw", "nobarrier"]), [Level::Danger]);
        assert_eq!(levels(&["rw", "data=writeback"]), [Level::Danger]);
        assert_eq!(levels(&["rw", "data=ordered"]), []);
        assert_eq!(levels(&["ro"]), [Level::Trouble]);
        assert_eq!(levels(&["rw", "relatime"]), []);
    }
}
