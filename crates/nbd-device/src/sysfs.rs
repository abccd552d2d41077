//! The NBD devices that are connected now, as the kernel shows them in sysfs.

use block::{Error, Result};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
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
    /// The logical block size in bytes.
    pub block_size: u64,
    /// Whether it takes no writes.
    pub is_read_only: bool,
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

/// Has the kernel look for partitions, which it does when the device is opened.
pub async fn look_for_partitions(index: u32) {
    let path = path(index);
    let opened = block::offload(move || {
        File::open(&path).map(drop).map_err(|e| Error::io(path.display(), e))
    });
    if let Err(error) = opened.await {
        tracing::warn!(%error, "cannot look for partitions");
    }
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

/// The kernel's block devices, held open: a keeper that the initial RAM disk started is left in a file
/// system where nothing is mounted any more, and finds no path there.
#[derive(Debug)]
pub struct BlockDevices {
    directory: OwnedFd,
}

impl BlockDevices {
    /// Opens the directory.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) where sysfs is not mounted.
    pub fn open() -> Result<Self> {
        Self::open_at(Path::new(BLOCK_DEVICES))
    }

    fn open_at(path: &Path) -> Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(path, flags, Mode::empty());
        Ok(Self { directory: directory.map_err(|e| Error::io(path.display(), e.into()))? })
    }

    /// All connected devices, by number.
    ///
    /// # Errors
    /// Any error from reading sysfs.
    pub fn connected(&self) -> Result<Vec<ConnectedDevice>> {
        let failed = |e: Errno| Error::io(BLOCK_DEVICES, e.into());
        let mut devices = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let number = entry.file_name().to_str().ok().and_then(|name| name.strip_prefix("nbd"));
            let Some(index) = number.and_then(|number| number.parse().ok()) else { continue };
            devices.extend(self.device(index)?);
        }
        devices.sort_by_key(|device| device.index);
        Ok(devices)
    }

    /// A device; `None` when it is not connected.
    ///
    /// # Errors
    /// Any error from reading sysfs.
    pub fn device(&self, index: u32) -> Result<Option<ConnectedDevice>> {
        if !self.is_connected(index)? {
            return Ok(None);
        }
        let number = |attribute| -> Result<Option<u64>> {
            Ok(self.read(index, attribute)?.and_then(|text| text.parse().ok()))
        };
        Ok(Some(ConnectedDevice {
            index,
            size: number("size")?.unwrap_or(0).saturating_mul(SECTOR),
            block_size: number("queue/logical_block_size")?.unwrap_or(SECTOR),
            is_read_only: number("ro")?.is_some_and(|flag| flag != 0),
            backend: self.backend(index)?,
        }))
    }

    /// Whether somebody has a device connected.
    ///
    /// # Errors
    /// Any error from reading sysfs.
    pub fn is_connected(&self, index: u32) -> Result<bool> {
        Ok(self.read(index, "pid")?.is_some())
    }

    /// Who is at the other end of a device; `None` when it is not connected, or the kernel does not tell.
    ///
    /// # Errors
    /// Any error from reading sysfs.
    pub fn backend(&self, index: u32) -> Result<Option<String>> {
        self.read(index, "backend")
    }

    /// The text of an attribute; `None` when it is not there.
    fn read(&self, index: u32, attribute: &str) -> Result<Option<String>> {
        let name = format!("nbd{index}/{attribute}");
        let failed = |e| Error::io(format!("{BLOCK_DEVICES}/{name}"), e);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let mut file = match rustix::fs::openat(&self.directory, &name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(None),
            Err(e) => return Err(failed(e.into())),
        };
        let mut text = String::new();
        match file.read_to_string(&mut text) {
            Ok(_) => Ok(Some(text.trim_end().to_owned())),
            // It went away since.
            Err(e) if e.raw_os_error() == Some(Errno::NODEV.raw_os_error()) => Ok(None),
            Err(e) => Err(failed(e)),
        }
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
            (
                "nbd2",
                &[
                    ("pid", "1\n"),
                    ("size", "2048\n"),
                    ("ro", "1\n"),
                    ("queue/logical_block_size", "4096\n"),
                    ("backend", "nbd://lab/alice\n"),
                ],
            ),
            ("nbd1", &[("size", "0\n")]),
            ("vda", &[("size", "5\n")]),
        ] {
            fs::create_dir_all(dir.path().join(name).join("queue")).unwrap();
            for (file, text) in files {
                fs::write(dir.path().join(name).join(file), text).unwrap();
            }
        }
        let backend = Some("nbd://lab/alice".to_owned());
        let expected = [
            ConnectedDevice {
                index: 2,
                size: 1 << 20,
                block_size: 4096,
                is_read_only: true,
                backend,
            },
            ConnectedDevice {
                index: 10,
                size: 4096,
                block_size: 512,
                is_read_only: false,
                backend: None,
            },
        ];
        let devices = BlockDevices::open_at(dir.path()).unwrap();
        assert_eq!(devices.connected().unwrap(), expected);
        assert_eq!(devices.device(1).unwrap(), None);
        assert_eq!(devices.backend(2).unwrap().as_deref(), Some("nbd://lab/alice"));
        assert_eq!(
            [1, 2, 3].map(|index| devices.is_connected(index).unwrap()),
            [false, true, false]
        );
        let error = BlockDevices::open_at(&dir.path().join("none")).unwrap_err();
        assert_eq!(error.kind(), block::ErrorKind::NotFound);
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
