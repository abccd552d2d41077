//! This machine: its disks, and whether a suspended system waits on it.

use crate::refusal::refuse;
use crate::{Code, Refusal};
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
pub(crate) struct Node {
    /// `/dev/NAME`.
    pub(crate) path: PathBuf,
    /// Its directory below `/sys`.
    sysfs: PathBuf,
}

impl Node {
    /// All disks that have a size, by name. Partitions are not among them.
    pub(crate) fn disks() -> Vec<Self> {
        let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
        let mut list: Vec<Self> = entries
            .flatten()
            .filter_map(|entry| Self::at(&entry.path()))
            .filter(|node| node.number("size").is_some_and(|sectors| sectors > 0))
            .collect();
        list.sort_by(|a, b| a.path.cmp(&b.path));
        list
    }

    /// The node with this directory, `/sys/…/NAME`.
    pub(crate) fn at(sysfs: &Path) -> Option<Self> {
        let sysfs = sysfs.canonicalize().ok()?;
        let name = sysfs.file_name()?.to_str()?.replace('!', "/");
        Some(Self { path: PathBuf::from(format!("/dev/{name}")), sysfs })
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

    fn text(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.sysfs.join(name)).ok().map(|text| text.trim().to_owned())
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Refuses disks that nothing can be written in place on, and, unless the user named the disk,
    /// those that are somebody else's business.
    pub(crate) fn judge(&self, named: bool) -> Result<(), Refusal> {
        let path = self.path.display();
        if self.text("queue/zoned").is_some_and(|zoned| zoned != "none") {
            refuse!(Zoned, "{path} is a zoned disk: it cannot be overwritten in place");
        }
        if std::fs::read_dir(self.sysfs.join("holders")).is_ok_and(|mut held| held.next().is_some())
        {
            refuse!(InUse, "{path} is part of something larger that is in use");
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

/// Whether the firmware was told of a suspended system (systemd's `HibernateLocation`).
pub(crate) fn firmware() -> Option<Sleeper> {
    let variables = std::fs::read_dir("/sys/firmware/efi/efivars").ok()?;
    let name = variables
        .flatten()
        .map(|entry| entry.file_name())
        .find(|name| name.to_string_lossy().starts_with("HibernateLocation-"))?;
    Some(Sleeper {
        place: name.to_string_lossy().into_owned(),
        sentence: "the firmware was told where a suspended system is stored".to_owned(),
    })
}

/// What a refusal tells of the machine.
pub(crate) fn sleeper(place: &str, refusal: &Refusal) -> Option<Sleeper> {
    (refusal.code == Code::Hibernated)
        .then(|| Sleeper { place: place.to_owned(), sentence: refusal.sentence.clone() })
}

/// Whether a suspended system could hide in what was refused like this.
pub(crate) fn may_hide(code: Code) -> bool {
    matches!(code, Code::Encrypted | Code::VolumeManager | Code::RaidMember | Code::CacheMember)
}
