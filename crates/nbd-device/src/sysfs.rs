//! The NBD devices that are connected now, as the kernel shows them in sysfs.

use block::{Error, Result};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Where the kernel shows block devices.
const BLOCK_DEVICES: &str = "/sys/block";
/// The kernel's sectors, in bytes, whatever a device's are.
const SECTOR: u64 = 512;

/// A device that is connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConnectedDevice {
    /// The N of `/dev/nbdN`.
    pub index: u32,
    /// Bytes.
    pub size: u64,
    /// Who is at the other end, as its maker said; Linux 5.14 and newer.
    pub backend: Option<String>,
}

impl ConnectedDevice {
    /// Its node.
    pub fn path(&self) -> PathBuf {
        path(self.index)
    }
}

/// The node of a device.
pub fn path(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{index}"))
}

/// The N of a path `/dev/nbdN`.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for any other path.
pub fn index_of(path: &Path) -> Result<u32> {
    let number = path.to_str().and_then(|path| path.strip_prefix("/dev/nbd"));
    number.and_then(|number| number.parse().ok()).ok_or_else(|| {
        Error::invalid(format!("{}: is not an NBD device, such as /dev/nbd0", path.display()))
    })
}

/// All connected devices, by number.
///
/// # Errors
/// Any error from reading sysfs.
pub fn connected() -> Result<Vec<ConnectedDevice>> {
    connected_in(Path::new(BLOCK_DEVICES))
}

/// Who is at the other end of a device; `None` when it is not connected, or the kernel does not tell.
///
/// # Errors
/// Any error from reading sysfs.
pub fn backend(index: u32) -> Result<Option<String>> {
    read(&Path::new(BLOCK_DEVICES).join(format!("nbd{index}")).join("backend"))
}

fn connected_in(directory: &Path) -> Result<Vec<ConnectedDevice>> {
    let failed = |e| Error::io(directory.display(), e);
    let entries = match directory.read_dir() {
        Ok(entries) => entries,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed(e)),
    };
    let mut devices = Vec::new();
    for entry in entries {
        let name = entry.map_err(failed)?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("nbd"));
        let Some(index) = number.and_then(|number| number.parse().ok()) else { continue };
        let device = directory.join(&name);
        // It is there while somebody has the device connected.
        if read(&device.join("pid"))?.is_none() {
            continue;
        }
        let sectors = read(&device.join("size"))?.and_then(|text| text.parse::<u64>().ok());
        devices.push(ConnectedDevice {
            index,
            size: sectors.unwrap_or(0).saturating_mul(SECTOR),
            backend: read(&device.join("backend"))?,
        });
    }
    devices.sort_by_key(|device| device.index);
    Ok(devices)
}

/// The text of an attribute; `None` when it is not there.
fn read(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text.trim_end().to_owned())),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
        Err(e) => Err(Error::io(path.display(), e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn only_devices_with_a_connection_are_listed_in_the_order_of_their_numbers() {
        let dir = tempfile::tempdir().unwrap();
        for (name, files) in [
            ("nbd10", &[("pid", "7\n"), ("size", "8\n")][..]),
            ("nbd2", &[("pid", "1\n"), ("size", "2048\n"), ("backend", "nbd://lab/alice\n")]),
            ("nbd1", &[("size", "0\n")]),
            ("vda", &[("size", "5\n")]),
        ] {
            fs::create_dir(dir.path().join(name)).unwrap();
            for (file, text) in files {
                fs::write(dir.path().join(name).join(file), text).unwrap();
            }
        }
        let backend = Some("nbd://lab/alice".to_owned());
        let expected = [
            ConnectedDevice { index: 2, size: 1 << 20, backend },
            ConnectedDevice { index: 10, size: 4096, backend: None },
        ];
        assert_eq!(connected_in(dir.path()).unwrap(), expected);
        assert_eq!(connected_in(&dir.path().join("none")).unwrap(), []);
    }

    #[test]
    fn a_device_is_named_by_its_node() {
        assert_eq!(index_of(Path::new("/dev/nbd12")).unwrap(), 12);
        assert_eq!(path(12), Path::new("/dev/nbd12"));
        for other in ["/dev/sda", "/dev/nbd", "nbd0", "/dev/nbd0p1"] {
            assert!(index_of(Path::new(other)).is_err(), "{other}");
        }
    }
}
