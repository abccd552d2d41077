//! Which file or device the source of a state is, whatever its path leads to later: a key that was pulled out gives
//! its name to the next one, and that may be as large.

use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The file or device that a path led to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum SourceIdentity {
    /// A file, by the numbers of its file system and of itself.
    File(u64, u64),
    /// A disk, or a partition of one.
    Device(BlockDeviceIdentity),
}

/// What is known of a block device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockDeviceIdentity {
    /// Its number, which another one gets when it is gone.
    number: u64,
    /// How many disks this kernel had seen with the disk that it is on, or of; kernels before 5.15 do not count.
    sequence: Option<String>,
    /// The disk's serial numbers.
    serial: Option<String>,
    /// Which partition it is.
    partition: Option<String>,
    /// The partition's identity in its table.
    uuid: Option<String>,
}

impl SourceIdentity {
    /// That of what a path leads to.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for what is neither a file nor a block device; any error from the
    /// file system.
    pub fn of(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|e| Error::io(path.display(), e))?;
        if meta.file_type().is_block_device() {
            return Ok(Self::Device(Facts::SYSTEM.of(meta.rdev())));
        }
        if meta.is_file() {
            return Ok(Self::File(meta.dev(), meta.ino()));
        }
        Err(Error::unsupported(format!("{} is neither a file nor a block device", path.display())))
    }

    /// Refuses a path that does not lead to this one now.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict); any error from [`of`](Self::of).
    pub fn must_be(&self, path: &Path) -> Result<()> {
        let same = match (self, Self::of(path)?) {
            (Self::Device(known), Self::Device(now)) => known.is(&now),
            (known, now) => *known == now,
        };
        match same {
            true => Ok(()),
            false => Err(Error::conflict(format!(
                "{} is not what the state came from any more; put that back in its place",
                path.display()
            ))),
        }
    }
}

impl BlockDeviceIdentity {
    /// Whether `now` is the same device. One that was pulled out and is back has to have a serial number.
    fn is(&self, now: &Self) -> bool {
        let stayed = self.sequence == now.sequence && self.number == now.number;
        let back = self.serial.is_some() && self.uuid == now.uuid;
        // udev may not have told yet.
        let differ =
            |a: &Option<String>, b: &Option<String>| matches!((a, b), (Some(a), Some(b)) if a != b);
        self.partition == now.partition
            && self.serial == now.serial
            && !differ(&self.uuid, &now.uuid)
            && (stayed || back)
    }
}

/// Where the system tells of its devices.
struct Facts<'a> {
    sysfs: &'a str,
    udev: &'a str,
}

impl Facts<'_> {
    const SYSTEM: Self = Self { sysfs: "/sys", udev: "/run/udev/data" };

    fn of(&self, number: u64) -> BlockDeviceIdentity {
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let unknown = BlockDeviceIdentity { number, ..BlockDeviceIdentity::default() };
        let link = format!("{}/dev/block/{major}:{minor}", self.sysfs);
        let Ok(own) = std::fs::canonicalize(link) else { return unknown };
        let partition = text(&own.join("partition"));
        let whole = match (&partition, own.parent()) {
            (Some(_), Some(parent)) => parent,
            _ => &own,
        };
        let sequence = text(&whole.join("diskseq"));
        let told = std::fs::read_to_string(format!("{}/b{major}:{minor}", self.udev));
        let uuid =
            setting(&std::fs::read_to_string(own.join("uevent")).unwrap_or_default(), "PARTUUID=")
                .or_else(|| setting(&told.unwrap_or_default(), "E:ID_PART_ENTRY_UUID="));
        BlockDeviceIdentity { number, sequence, serial: serial(whole), partition, uuid }
    }
}

/// The serial numbers of a disk and of what carries it, up to the device on a bus.
fn serial(disk: &Path) -> Option<String> {
    let mut found: Vec<String> = Vec::new();
    for place in disk.ancestors() {
        found.extend(["wwid", "serial"].iter().filter_map(|name| text(&place.join(name))));
        // Above a device of USB are hubs, which have serial numbers, too.
        let on_a_bus = |name: &str| place.join(name).exists();
        if on_a_bus("idVendor") || place.ends_with("devices") {
            break;
        }
    }
    (!found.is_empty()).then(|| found.join(" "))
}

fn text(path: &Path) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

fn setting(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| line.strip_prefix(name)).map(|value| value.trim().to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::fs;

    /// A machine with a hub and one key in it, whose third partition is 8:3.
    struct Machine(tempfile::TempDir);

    impl Machine {
        fn new() -> Self {
            let machine = Self(tempfile::tempdir().unwrap());
            machine.put("sys/devices/usb1/serial", "0000:00:14.0");
            machine.put("sys/devices/usb1/idVendor", "1d6b");
            fs::create_dir_all(machine.0.path().join("sys/dev/block")).unwrap();
            machine
        }

        fn put(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{text}\n")).unwrap();
        }

        /// Puts a key in, and says what its third partition is.
        fn key(
            &self,
            sequence: &str,
            serial: Option<&str>,
            uuid: Option<&str>,
        ) -> BlockDeviceIdentity {
            let usb = "sys/devices/usb1/1-1";
            let _ = fs::remove_dir_all(self.0.path().join(usb));
            let disk = format!("{usb}/host6/6:0:0:0/block/sda");
            self.put(&format!("{usb}/idVendor"), "0951");
            if let Some(serial) = serial {
                self.put(&format!("{usb}/serial"), serial);
            }
            self.put(&format!("{disk}/diskseq"), sequence);
            self.put(&format!("{disk}/sda3/partition"), "3");
            let told = uuid.map(|uuid| format!("S:disk/by-id/x\nE:ID_PART_ENTRY_UUID={uuid}"));
            self.put("udev/b8:3", &told.unwrap_or_default());
            let link = self.0.path().join("sys/dev/block/8:3");
            let _ = fs::remove_file(&link);
            std::os::unix::fs::symlink(self.0.path().join(disk).join("sda3"), link).unwrap();
            let at = |name: &str| self.0.path().join(name).display().to_string();
            let (sysfs, udev) = (at("sys"), at("udev"));
            Facts { sysfs: &sysfs, udev: &udev }.of(rustix::fs::makedev(8, 3))
        }
    }

    #[test]
    fn a_key_is_known_again_and_another_one_is_not_taken_for_it() {
        let machine = Machine::new();
        let (uuid, other) = (Some("0a-1"), Some("0b-2"));
        let key = machine.key("7", Some("K1"), uuid);
        let expected = BlockDeviceIdentity {
            number: rustix::fs::makedev(8, 3),
            sequence: Some("7".into()),
            serial: Some("K1".into()),
            partition: Some("3".into()),
            uuid: uuid.map(str::to_owned),
        };
        assert_eq!(key, expected, "the hub's serial number is not the key's");
        for (sequence, serial, uuid, same) in [
            ("7", Some("K1"), uuid, true),
            ("7", Some("K1"), None, true),
            ("9", Some("K1"), uuid, true),
            ("9", Some("K1"), other, false),
            ("9", Some("K1"), None, false),
            ("9", Some("K2"), uuid, false),
            ("9", None, uuid, false),
        ] {
            let now = machine.key(sequence, serial, uuid);
            assert_eq!(key.is(&now), same, "{now:?}");
        }
        // Without a serial number only one that never left is the same.
        let key = machine.key("7", None, uuid);
        assert!(key.is(&machine.key("7", None, uuid)));
        assert!(!key.is(&machine.key("9", None, uuid)));
    }

    #[test]
    fn a_file_in_the_place_of_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        fs::write(&path, "one").unwrap();
        let known = SourceIdentity::of(&path).unwrap();
        known.must_be(&path).unwrap();
        fs::write(&path, "changed").unwrap();
        known.must_be(&path).unwrap();
        fs::write(dir.path().join("other"), "one").unwrap();
        fs::rename(dir.path().join("other"), &path).unwrap();
        assert_eq!(known.must_be(&path).unwrap_err().kind(), ErrorKind::Conflict);
        assert_eq!(SourceIdentity::of(dir.path()).unwrap_err().kind(), ErrorKind::Unsupported);
    }
}
