//! What a [`Mapper`](super::Mapper) needs of its machine: the control device, the keyring, and the nodes of
//! mapped devices.

use super::ioctl::{MapCommand, Message};
use crate::sys::{self, KernelKey};
use block::{Error, Result};
use rustix::fs::{FileType, Mode};
use std::ffi::CStr;
use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

const CONTROL: &str = "/dev/mapper/control";
const NODES: &str = "/dev/mapper";

/// The machine of a mapper.
pub(super) trait MapperHost: Debug + Send + Sync {
    /// Has the kernel do what a message asks for; its reply takes the message's place.
    fn call(&self, command: MapCommand, message: &mut Message) -> io::Result<()>;

    /// Hands a key to the kernel, for as long as the answer lives.
    fn hand_key(&self, description: &CStr, bytes: &[u8]) -> io::Result<Option<KernelKey>>;

    /// The number of the block device that a mapped device's node leads to; `None` when there is no such node, or
    /// it is anything else.
    fn node(&self, name: &str) -> io::Result<Option<u64>>;

    /// Makes the node of a mapped device.
    fn make_node(&self, name: &str, device: u64) -> io::Result<()>;

    /// Removes the node of a mapped device.
    fn remove_node(&self, name: &str) -> io::Result<()>;
}

/// The node of a mapped device.
pub(super) fn node_path(name: &str) -> PathBuf {
    Path::new(NODES).join(name)
}

/// This machine.
#[derive(Debug)]
pub(super) struct ThisMachine {
    control: File,
}

impl ThisMachine {
    /// Opens the control device; its node is made where no udev did.
    pub(super) fn open() -> Result<Self> {
        let open = || File::options().read(true).write(true).open(CONTROL);
        let control = match open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_control()?;
                open()
            }
            other => other,
        };
        let control = control.map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => no_mapper(),
            _ if e.raw_os_error() == Some(libc::ENODEV) => no_mapper(),
            _ => Error::io(CONTROL, e),
        })?;
        Ok(Self { control })
    }
}

impl MapperHost for ThisMachine {
    fn call(&self, command: MapCommand, message: &mut Message) -> io::Result<()> {
        sys::ioctl(&self.control, command.request(), message.bytes())
    }

    fn hand_key(&self, description: &CStr, bytes: &[u8]) -> io::Result<Option<KernelKey>> {
        KernelKey::add(description, bytes).map(Some)
    }

    fn node(&self, name: &str) -> io::Result<Option<u64>> {
        match std::fs::metadata(node_path(name)) {
            Ok(meta) => Ok(meta.file_type().is_block_device().then(|| meta.rdev())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn make_node(&self, name: &str, device: u64) -> io::Result<()> {
        let mode = Mode::RUSR | Mode::WUSR;
        let kind = FileType::BlockDevice;
        Ok(rustix::fs::mknodat(rustix::fs::CWD, node_path(name), kind, mode, device)?)
    }

    fn remove_node(&self, name: &str) -> io::Result<()> {
        std::fs::remove_file(node_path(name))
    }
}

/// Makes the node of the control device.
fn make_control() -> Result<()> {
    let misc = std::fs::read_to_string("/proc/misc").unwrap_or_default();
    let minor = misc.lines().find_map(|line| {
        let (minor, name) = line.trim().split_once(' ')?;
        (name == "device-mapper").then(|| minor.parse::<u32>().ok())?
    });
    let minor = minor.ok_or_else(no_mapper)?;
    std::fs::create_dir_all(NODES).map_err(|e| Error::io(NODES, e))?;
    let (mode, device) = (Mode::RUSR | Mode::WUSR, rustix::fs::makedev(10, minor));
    rustix::fs::mknodat(rustix::fs::CWD, CONTROL, FileType::CharacterDevice, mode, device)
        .map_err(|e| Error::io(CONTROL, e.into()))
}

fn no_mapper() -> Error {
    Error::unsupported(
        "this kernel has no device-mapper; load it (modprobe dm-mod dm-crypt), or use --as nbd",
    )
}
