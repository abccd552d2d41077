//! This machine: its disks, and whether a suspended system waits on it.

use crate::sys;
use block::Span;
use freespace::{Code, FileSystem, Refusal, SuspendedIn, refuse};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where a suspended system was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sleeper {
    /// The partition, image or firmware variable.
    pub place: String,
    /// What it says, one sentence.
    pub sentence: String,
}

/// A disk of this machine, or a partition of one, as the kernel knows it.
#[derive(Debug, Clone)]
pub(crate) struct KernelDisk {
    /// `/dev/NAME`.
    pub(crate) path: PathBuf,
    /// Its directory below `/sys`.
    sysfs: PathBuf,
}

impl KernelDisk {
    /// All disks that have a size, by name. Partitions are not among them.
    pub(crate) fn disks() -> Vec<Self> {
        Self::disks_in(Path::new("/sys/block"))
    }

    /// The same without drives that hold no medium: nothing is stored there. Asks the drives.
    pub(crate) fn disks_with_media() -> Vec<Self> {
        let mut list = Self::disks();
        list.retain(|node| !node.is_empty_drive(has_no_medium));
        list
    }

    fn disks_in(sysfs: &Path) -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir(sysfs) else { return Vec::new() };
        let mut list: Vec<Self> = entries
            .flatten()
            .filter_map(|entry| Self::at(&entry.path()))
            .filter(|node| node.number("size").is_some_and(|sectors| sectors > 0))
            // One way of several to a disk of NVMe, which has no node of its own: the disk has one.
            .filter(|node| node.number("hidden") != Some(1))
            .collect();
        list.sort_by(|a, b| a.path.cmp(&b.path));
        list
    }

    /// Whether it is a drive for media that can be removed, and has none. An empty optical drive has a size all
    /// the same.
    fn is_empty_drive(&self, has_no_medium: impl FnOnce(&Path) -> bool) -> bool {
        self.number("removable") == Some(1) && has_no_medium(&self.path)
    }

    /// The node with this directory, `/sys/…/NAME`.
    pub(crate) fn at(sysfs: &Path) -> Option<Self> {
        let sysfs = sysfs.canonicalize().ok()?;
        let name = sysfs.file_name()?.to_str()?.replace('!', "/");
        Some(Self { path: PathBuf::from(format!("/dev/{name}")), sysfs })
    }

    /// The disk or partition with this number.
    pub(crate) fn of_device(device: u64) -> Option<Self> {
        let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
        Self::at(Path::new(&format!("/sys/dev/block/{major}:{minor}")))
    }

    /// Its number.
    pub(crate) fn device(&self) -> Option<u64> {
        let text = self.text("dev")?;
        let (major, minor) = text.split_once(':')?;
        Some(rustix::fs::makedev(major.parse().ok()?, minor.parse().ok()?))
    }

    /// The file that it stands on, if it is a loop device that is attached: where it was then.
    pub(crate) fn loop_file(&self) -> Option<PathBuf> {
        let path = std::fs::read(self.sysfs.join("loop/backing_file")).ok()?;
        let path = path.strip_suffix(b"\n").unwrap_or(&path);
        Some(PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    }

    /// The number of what is in it now: another one whenever a loop device is attached to another file, or a drive
    /// gets another medium.
    pub(crate) fn attachment(&self) -> Option<u64> {
        self.number("diskseq")
    }

    /// Its partitions: number, start and size in bytes.
    pub(crate) fn partitions(&self) -> Vec<(Self, u32, u64, u64)> {
        let Ok(entries) = std::fs::read_dir(&self.sysfs) else { return Vec::new() };
        let mut list: Vec<(Self, u32, u64, u64)> = entries
            .flatten()
            .filter(|entry| entry.path().join("partition").exists())
            .filter_map(|entry| Self::at(&entry.path()))
            .filter_map(|node| {
                let number = node.number("partition")? as u32;
                // The kernel counts in 512 bytes whatever the disk's sectors are.
                let bytes = |name| node.number(name)?.checked_mul(512);
                let (start, size) = (bytes("start")?, bytes("size")?);
                Some((node, number, start, size))
            })
            .collect();
        list.sort_by_key(|(_, number, ..)| *number);
        list
    }

    /// The disk that a partition is on; `None` for a disk.
    pub(crate) fn parent(&self) -> Option<Self> {
        self.sysfs.join("partition").exists().then(|| self.sysfs.parent().and_then(Self::at))?
    }

    /// Where it starts on its disk, and its size, in bytes. The kernel counts in 512 bytes.
    pub(crate) fn span(&self) -> Span {
        let bytes = |name| self.number(name).unwrap_or(0).saturating_mul(512);
        let start = if self.sysfs.join("partition").exists() { bytes("start") } else { 0 };
        Span::between(start, start.saturating_add(bytes("size")))
    }

    /// What a disk is called by its maker, the same by whichever way it is reached; few virtual ones have one.
    pub(crate) fn wwid(&self) -> Option<String> {
        // NVMe; SCSI, and all that the kernel takes for it.
        let texts = ["wwid", "device/wwid"].into_iter().filter_map(|name| self.text(name));
        texts.into_iter().find(|text| !text.is_empty())
    }

    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.sysfs.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Whether something larger stands on it, such as a volume group.
    fn is_held(&self) -> bool {
        let holders = std::fs::read_dir(self.sysfs.join("holders"));
        holders.is_ok_and(|mut held| held.next().is_some())
    }

    /// Whether something larger stands on it or on one of its partitions: not all that is stored
    /// there need be visible from above.
    pub(crate) fn is_held_somewhere(&self) -> bool {
        self.is_held() || self.partitions().iter().any(|(part, ..)| part.is_held())
    }

    /// The whole disk that it is, or is on, and all that this stands on, however many layers there are.
    fn layers(&self) -> Vec<Self> {
        let whole = |node: Self| node.parent().unwrap_or(node);
        let mut layers = vec![whole(self.clone())];
        let mut next = 0;
        while let Some(layer) = layers.get(next) {
            next += 1;
            let Ok(below) = std::fs::read_dir(layer.sysfs.join("slaves")) else { continue };
            for node in below.flatten().filter_map(|entry| Self::at(&entry.path())).map(whole) {
                if layers.iter().all(|known| known.sysfs != node.sysfs) {
                    layers.push(node);
                }
            }
        }
        layers
    }

    /// Whether what is written to it may be first copied for a snapshot, or take room from a pool: it does not where
    /// all that it stands on is written in place.
    fn may_share_its_room(&self) -> bool {
        let mapped = |layer: &&Self| layer.sysfs.join("dm").is_dir();
        let layers = self.layers();
        let mut uuids = layers.iter().filter(mapped).map(|layer| layer.text("dm/uuid"));
        uuids.any(|uuid| !is_written_in_place(&uuid.unwrap_or_default()))
    }

    /// Refuses disks that nothing can be written in place on, and, unless the user named the disk,
    /// those that are somebody else's business.
    pub(crate) fn judge(&self, named: bool) -> Result<(), Refusal> {
        let path = self.path.display();
        // A partition has no queue of its own.
        let zoned = self.text("queue/zoned").or_else(|| self.parent()?.text("queue/zoned"));
        if zoned.is_some_and(|zoned| zoned != "none") {
            refuse!(Zoned, "{path} is a zoned disk: it cannot be overwritten in place");
        }
        if self.is_held() {
            refuse!(InUse, "{path} is part of something larger that is in use");
        }
        if self.may_share_its_room() {
            refuse!(
                Snapshots,
                "{path} has snapshots, is one, is thin, or stands on such a volume or on a device-mapper device of \
                 an unknown kind: writing to it may take room from others"
            );
        }
        if named {
            return Ok(());
        }
        let sysfs = self.sysfs.to_string_lossy();
        if sysfs.contains("/devices/virtual/") || sysfs.contains("/session") {
            refuse!(VirtualDisk, "{path} is no disk of this machine; name it if it is meant");
        }
        if self.number("removable") == Some(1) {
            refuse!(Removable, "{path} may be pulled out; name it if it is meant");
        }
        if self.number("ro") == Some(1) {
            refuse!(ReadOnly, "{path} cannot be written");
        }
        Ok(())
    }
}

/// Whether a drive says that there is no medium in it.
fn has_no_medium(path: &Path) -> bool {
    // Without the last flag, an optical drive would close its tray.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(fd) => File::from(fd),
        Err(e) => return e == Errno::NOMEDIUM,
    };
    let read = || rustix::io::pread(&file, &mut [0; 512], 0);
    sys::has_no_disc(&file) || matches!(read(), Err(Errno::NOMEDIUM))
}

/// What the firmware says of suspended systems.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FirmwareState {
    /// It was told of none, or is one that is never told.
    Awake,
    /// It was told where one is stored (systemd's `HibernateLocation`).
    Asleep(Sleeper),
    /// What it was told cannot be read.
    Unseen,
}

/// What the firmware of this machine says.
pub(crate) fn firmware() -> FirmwareState {
    firmware_at(Path::new("/sys/firmware/efi"))
}

fn firmware_at(efi: &Path) -> FirmwareState {
    if !efi.exists() {
        return FirmwareState::Awake;
    }
    let variables = std::fs::read_dir(efi.join("efivars"));
    let names: std::io::Result<Vec<_>> =
        variables.and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    // Every firmware has variables, so where there are none, nothing is mounted.
    let Some(names) = names.ok().filter(|names| !names.is_empty()) else {
        return FirmwareState::Unseen;
    };
    let told =
        names.into_iter().find(|name| name.to_string_lossy().starts_with("HibernateLocation-"));
    told.map_or(FirmwareState::Awake, |name| {
        FirmwareState::Asleep(Sleeper {
            place: name.to_string_lossy().into_owned(),
            sentence: "the firmware was told where a suspended system is stored".to_owned(),
        })
    })
}

/// What a refusal tells of the machine.
pub(crate) fn sleeper(place: &str, refusal: &Refusal) -> Option<Sleeper> {
    (refusal.code == Code::Hibernated)
        .then(|| Sleeper { place: place.to_owned(), sentence: refusal.sentence.clone() })
}

/// Whether a suspended system could hide in what was refused like this: its swap space or swap file
/// was not seen, or this is what it has mounted.
pub(crate) fn may_hide(kind: Option<FileSystem>, code: Code) -> bool {
    match code {
        Code::Encrypted | Code::VolumeManager | Code::RaidMember | Code::CacheMember => true,
        Code::OtherFileSystem | Code::Ambiguous | Code::PartitionTable => true,
        Code::ReadError | Code::OutsideDisk | Code::OutsideFileSystem | Code::TooMuchWork => true,
        // A suspended system leaves what it has mounted like that.
        Code::Unclean | Code::NeedsReplay | Code::Orphans => true,
        Code::InUse | Code::Hibernated | Code::NothingFree => false,
        _ => match kind.map(|kind| kind.reader().suspended) {
            // No files are read there; one that is clean was unmounted, so nothing sleeps on it.
            Some(SuspendedIn::UnreadFiles) => true,
            // Files may not have been found in it.
            Some(SuspendedIn::SwapFiles | SuspendedIn::OwnFile) => matches!(
                code,
                Code::Checksum | Code::Structure | Code::Geometry | Code::UnknownFeature
            ),
            Some(SuspendedIn::Nothing) | None => false,
        },
    }
}

/// Whether a map of the kernel's device mapper is of a kind that is written in place, by what its maker called it. LVM
/// names the layers that are not; other pools and snapshots, such as those of Stratis and of containers, are unknown
/// here, and so are the maps that somebody made by hand.
fn is_written_in_place(uuid: &str) -> bool {
    // A partition of one, by kpartx.
    let whole = uuid.strip_prefix("part").and_then(|rest| {
        let (number, whole) = rest.split_once('-')?;
        number.parse::<u32>().is_ok().then_some(whole)
    });
    let uuid = whole.unwrap_or(uuid);
    if uuid.starts_with("LVM-") {
        return !["-real", "-cow", "-tpool", "-vpool"].iter().any(|layer| uuid.ends_with(layer));
    }
    ["CRYPT-", "mpath-", "DMRAID-", "SOJOURN-"].iter().any(|kind| uuid.starts_with(kind))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_that_shares_its_room_and_a_partition_of_a_zoned_disk_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let node =
            |name: &str| KernelDisk { path: PathBuf::from("/dev/x"), sysfs: dir.path().join(name) };
        for (name, uuid) in [
            ("plain", "LVM-abc"),
            ("thin", "LVM-abc-tpool"),
            ("old", "LVM-abc-real"),
            ("vdo", "LVM-abc-vpool"),
            ("stratis", "stratis-1-private-abc-thin-fs-def"),
            ("by-hand", ""),
            ("multipath", "part2-mpath-360000000000000000e00000000010001"),
            ("unlocked", "CRYPT-LUKS2-abc-root"),
        ] {
            let below = dir.path().join(name).join("slaves/dm-1/dm");
            std::fs::create_dir_all(&below).unwrap();
            std::fs::write(below.join("uuid"), format!("{uuid}\n")).unwrap();
        }
        for name in ["plain", "multipath", "unlocked"] {
            assert_eq!(node(name).judge(true), Ok(()), "{name}");
        }
        for name in ["thin", "old", "vdo", "stratis", "by-hand"] {
            assert_eq!(node(name).judge(true).unwrap_err().code, Code::Snapshots, "{name}");
        }
        // What is opened on a thin volume (LUKS), and a partition of a RAID set of such; each layer is a link.
        let on = |above: &str, below: &str| {
            let slaves = dir.path().join(above).join("slaves");
            std::fs::create_dir_all(&slaves).unwrap();
            std::os::unix::fs::symlink(dir.path().join(below), slaves.join("below")).unwrap();
        };
        on("crypt", "thin");
        on("md0", "crypt");
        std::fs::create_dir_all(dir.path().join("md0/md0p1")).unwrap();
        std::fs::write(dir.path().join("md0/md0p1/partition"), "1\n").unwrap();
        on("volume", "md0/md0p1");
        for above in ["crypt", "md0", "md0/md0p1", "volume"] {
            let refusal = node(above).judge(true).unwrap_err();
            assert_eq!(refusal.code, Code::Snapshots, "{above}: {refusal}");
        }
        on("crypt on plain", "plain");
        assert_eq!(node("crypt on plain").judge(true), Ok(()));
        // Layers that lead round end, too.
        on("one", "two");
        on("two", "one");
        assert_eq!(node("one").judge(true), Ok(()));
        std::fs::create_dir_all(dir.path().join("sdz/queue")).unwrap();
        std::fs::create_dir_all(dir.path().join("sdz/sdz1")).unwrap();
        std::fs::write(dir.path().join("sdz/queue/zoned"), "host-managed\n").unwrap();
        for (name, value) in [("partition", "1\n"), ("start", "2048\n"), ("size", "4096\n")] {
            std::fs::write(dir.path().join("sdz/sdz1").join(name), value).unwrap();
        }
        assert_eq!(node("sdz/sdz1").judge(true).unwrap_err().code, Code::Zoned);
        assert!(!node("sdz").is_held_somewhere());
        std::fs::create_dir_all(dir.path().join("sdz/sdz1/holders/dm-0")).unwrap();
        assert!(node("sdz").is_held_somewhere());
    }

    #[test]
    fn ways_to_a_disk_and_empty_drives_are_no_disks() {
        let dir = tempfile::tempdir().unwrap();
        for (name, size, hidden, removable) in [
            ("nvme0n1", "4096", "0", "0"),
            ("nvme0c0n1", "4096", "1", "0"),
            ("sda", "4096", "0", "1"),
            ("sdb", "0", "0", "1"),
            ("sr0", "2097151", "0", "1"),
        ] {
            let node = dir.path().join(name);
            std::fs::create_dir(&node).unwrap();
            for (file, value) in [("size", size), ("hidden", hidden), ("removable", removable)] {
                std::fs::write(node.join(file), format!("{value}\n")).unwrap();
            }
        }
        let mut disks = KernelDisk::disks_in(dir.path());
        let names = |disks: &[KernelDisk]| -> Vec<String> {
            disks.iter().map(|disk| disk.path.display().to_string()).collect()
        };
        assert_eq!(names(&disks), ["/dev/nvme0n1", "/dev/sda", "/dev/sr0"]);
        // Only drives for media are asked, and a stick is one that has its medium.
        disks.retain(|disk| !disk.is_empty_drive(|path| path != Path::new("/dev/sda")));
        assert_eq!(names(&disks), ["/dev/nvme0n1", "/dev/sda"]);
        // What cannot be opened may have one.
        let file = dir.path().join("sda/size");
        assert!(!has_no_medium(&file) && !has_no_medium(&dir.path().join("sdz")));
    }

    #[test]
    fn a_firmware_whose_variables_are_not_to_be_seen_is_not_one_that_was_told_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let efi = dir.path().join("efi");
        assert_eq!(firmware_at(&efi), FirmwareState::Awake, "a BIOS");
        std::fs::create_dir(&efi).unwrap();
        assert_eq!(firmware_at(&efi), FirmwareState::Unseen);
        let variables = efi.join("efivars");
        std::fs::create_dir(&variables).unwrap();
        assert_eq!(firmware_at(&efi), FirmwareState::Unseen, "not mounted");
        std::fs::write(variables.join("BootOrder-8be4df61"), "").unwrap();
        assert_eq!(firmware_at(&efi), FirmwareState::Awake);
        std::fs::write(variables.join("HibernateLocation-8cf2644b"), "").unwrap();
        assert!(matches!(firmware_at(&efi), FirmwareState::Asleep(_)));
    }
}
