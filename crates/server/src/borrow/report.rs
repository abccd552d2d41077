//! What is told of borrowed disks: printed by commands, sent over the control socket.

use super::lent_map::{LentMap, device_size};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use transient::dm::Mapped;

/// A borrowed disk in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StatusView {
    /// Its name.
    pub name: String,
    /// `nbd` or `dm`.
    pub kind: String,
    /// Where it can be reached: an NBD URI or a block device.
    pub address: String,
    /// The process that serves it; null when the kernel does.
    pub pid: Option<u32>,
    /// The block device that is swap space; null when none is.
    #[serde(default)]
    pub swap: Option<String>,
    /// Its size in bytes, swap space included.
    pub size: u64,
    /// Bytes that hold data; null where only the kernel knows.
    pub written: Option<u64>,
    /// Connections, or programs that have the device open.
    pub users: u64,
    /// What each disk of the owner lends.
    pub lent: Vec<LentView>,
    /// The state that was copied in; null when none was.
    pub state: Option<StateView>,
    /// Bytes given back to a running host.
    pub given_back: u64,
}

impl StatusView {
    /// Shows a disk that the kernel holds.
    pub fn mapped(mapped: Mapped) -> Self {
        let mut lent: Vec<(u64, LentView)> = Vec::new();
        let spans = |device: u64| {
            let of_it = mapped.lent.iter().filter(move |(on, _)| *on == device);
            of_it.map(|(_, span)| *span)
        };
        for (device, span) in &mapped.lent {
            let at = lent.iter().position(|(known, _)| known == device);
            let at = at.unwrap_or_else(|| {
                let disk = device_path(*device).display().to_string();
                let map = device_size(*device).map(|size| LentMap::of(size, spans(*device)));
                lent.push((*device, LentView { disk, bytes: 0, extents: 0, map }));
                lent.len() - 1
            });
            lent[at].1.bytes += span.len();
            lent[at].1.extents += 1;
        }
        Self {
            address: mapped.files().0.display().to_string(),
            swap: mapped.swap().map(|part| part.node.display().to_string()),
            name: mapped.name,
            kind: "dm".to_owned(),
            pid: None,
            size: mapped.size,
            written: None,
            users: mapped.users.into(),
            lent: lent.into_iter().map(|(_, view)| view).collect(),
            state: None,
            given_back: 0,
        }
    }
}

/// The path of a block device by its number.
pub(crate) fn device_path(device: u64) -> PathBuf {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let link = format!("/sys/dev/block/{major}:{minor}");
    let name = std::fs::read_link(link).ok();
    let name = name.as_deref().and_then(|path| path.file_name()?.to_str());
    match name {
        Some(name) => node_path(name),
        None => PathBuf::from(format!("/dev/block/{major}:{minor}")),
    }
}

/// The path of the device that the kernel calls `name`, which has no slashes: `cciss!c0d0` is `/dev/cciss/c0d0`.
fn node_path(name: &str) -> PathBuf {
    Path::new("/dev").join(name.replace('!', "/"))
}

/// What one disk of the owner lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LentView {
    /// The disk's path.
    pub disk: String,
    /// Bytes that it lends.
    pub bytes: u64,
    /// Ranges that it lends.
    pub extents: u64,
    /// Where these are; null for a directory, and where nobody knows the size of the disk.
    #[serde(default)]
    pub map: Option<LentMap>,
}

/// State that was copied in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct StateView {
    /// What people call it.
    pub source: String,
    /// Bytes that are here by now.
    pub fetched: u64,
    /// Bytes that are to be written back.
    pub changed: u64,
    /// Whether they will be.
    pub write_back: bool,
}

/// How the end is to be.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DownRequest {
    /// Give up what was changed and not written back.
    pub drop_changes: bool,
    /// Tell the owner's disks that the lent ranges hold nothing.
    pub discard: bool,
}

/// How the end was.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct DownView {
    /// The borrowed disk's name.
    pub name: String,
    /// Bytes of state written back.
    pub written_back: u64,
    /// Bytes of lent ranges that the owner's disks were told to forget.
    pub discarded: u64,
    /// The owner's file systems, looked at again.
    pub checked: Vec<CheckView>,
}

/// One file system of the owner after its loan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CheckView {
    /// The disk's path.
    pub disk: String,
    /// Where on the disk it begins, in bytes.
    pub offset: u64,
    /// The kind of file system.
    pub kind: String,
    /// Whether it is as it was.
    pub good: bool,
    /// What is wrong; null when nothing is.
    pub why: Option<String>,
}

impl CheckView {
    /// A disk that could not be looked at again.
    pub(crate) fn unseen(disk: String, why: &str) -> Self {
        Self { disk, offset: 0, kind: "disk".to_owned(), good: false, why: Some(why.to_owned()) }
    }

    /// Says what is wrong, unless something is already.
    pub(crate) fn blame(&mut self, why: &str) {
        self.good = false;
        self.why.get_or_insert_with(|| why.to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_whose_name_has_a_slash_is_found() {
        assert_eq!(node_path("sda1"), Path::new("/dev/sda1"));
        assert_eq!(node_path("cciss!c0d0p1"), Path::new("/dev/cciss/c0d0p1"));
    }
}
