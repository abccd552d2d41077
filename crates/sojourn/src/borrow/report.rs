//! What is told of borrowed disks: printed by commands, sent over the control socket.

use crate::output::{Table, fields};
use block::ByteSize;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use transient::dm::{Mapped, Purpose};

/// A borrowed disk in use.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StatusView {
    pub(crate) name: String,
    /// `nbd` or `dm`.
    pub(crate) kind: String,
    /// Where it can be reached: an NBD URI or a block device.
    pub(crate) address: String,
    /// The process that serves it; null when the kernel does.
    pub(crate) pid: Option<u32>,
    /// The block device that is swap space; null when none is.
    #[serde(default)]
    pub(crate) swap: Option<String>,
    /// Its size in bytes, swap space included.
    pub(crate) size: u64,
    /// Bytes that hold data; null where only the kernel knows.
    pub(crate) written: Option<u64>,
    /// Connections, or programs that have the device open.
    pub(crate) users: u64,
    pub(crate) lent: Vec<LentView>,
    pub(crate) state: Option<StateView>,
    /// Bytes given back to a running host.
    pub(crate) given_back: u64,
}

impl StatusView {
    /// Of a disk that the kernel holds.
    pub(crate) fn mapped(mapped: Mapped) -> Self {
        let mut lent: Vec<(u64, LentView)> = Vec::new();
        for (device, span) in &mapped.lent {
            let at = lent.iter().position(|(known, _)| known == device);
            let at = at.unwrap_or_else(|| {
                let disk = device_path(*device).display().to_string();
                lent.push((*device, LentView { disk, bytes: 0, extents: 0 }));
                lent.len() - 1
            });
            lent[at].1.bytes += span.len();
            lent[at].1.extents += 1;
        }
        let swap = mapped.parts.iter().find(|part| part.purpose == Purpose::Swap);
        Self {
            address: super::kernel::files(&mapped).0.display().to_string(),
            swap: swap.map(|part| part.node.display().to_string()),
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
    let name = name.as_deref().and_then(|path| path.file_name());
    match name {
        Some(name) => Path::new("/dev").join(name),
        None => PathBuf::from(format!("/dev/block/{major}:{minor}")),
    }
}

/// What one disk of the owner lends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LentView {
    pub(crate) disk: String,
    pub(crate) bytes: u64,
    pub(crate) extents: u64,
}

/// State that was copied in.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct StateView {
    pub(crate) source: String,
    /// Bytes that are here by now.
    pub(crate) fetched: u64,
    /// Bytes that are to be written back.
    pub(crate) changed: u64,
    /// Whether they will be.
    pub(crate) write_back: bool,
}

/// How the end is to be.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DownRequest {
    /// Give up what was changed and not written back.
    pub(crate) drop_changes: bool,
    /// Tell the owner's disks that the lent ranges hold nothing.
    pub(crate) discard: bool,
}

/// How the end was.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DownView {
    pub(crate) name: String,
    /// Bytes of state written back.
    pub(crate) written_back: u64,
    /// Bytes of lent ranges that the owner's disks were told to forget.
    pub(crate) discarded: u64,
    /// The owner's file systems, looked at again.
    pub(crate) checked: Vec<CheckView>,
}

/// One file system of the owner after its loan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CheckView {
    pub(crate) disk: String,
    pub(crate) offset: u64,
    pub(crate) kind: String,
    pub(crate) good: bool,
    /// What is wrong; null when nothing is.
    pub(crate) why: Option<String>,
}

impl DownView {
    /// For people.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!("{} is down; its key is gone\n", self.name);
        if self.written_back > 0 {
            text += &format!("written back: {}\n", ByteSize(self.written_back));
        }
        if self.discarded > 0 {
            text += &format!("discarded: {}\n", ByteSize(self.discarded));
        }
        for check in &self.checked {
            let verdict = match &check.why {
                None => "as it was before".to_owned(),
                Some(why) => format!("NOT AS IT WAS: {why}"),
            };
            text += &format!("{} at {} on {}: {verdict}\n", check.kind, check.offset, check.disk);
        }
        text
    }
}

/// A table of all, or details of one.
pub(crate) fn describe(all: &[StatusView]) -> String {
    if all.is_empty() {
        return "nothing is borrowed; see `sojourn borrow up --help`".to_owned();
    }
    let mut table =
        Table::new(&["NAME", "AS", ">SIZE", ">WRITTEN", ">USERS", ">EXTENTS", "ADDRESS"]);
    for disk in all {
        table.row([
            disk.name.clone(),
            disk.kind.clone(),
            ByteSize(disk.size).to_string(),
            disk.written.map_or("-".to_owned(), |bytes| ByteSize(bytes).to_string()),
            disk.users.to_string(),
            disk.lent.iter().map(|lent| lent.extents).sum::<u64>().to_string(),
            disk.address.clone(),
        ]);
    }
    let mut text = table.render();
    for disk in all {
        let Some(state) = &disk.state else { continue };
        text.push('\n');
        text += &fields(&[
            ("state of", disk.name.clone()),
            ("from", state.source.clone()),
            ("fetched", ByteSize(state.fetched).to_string()),
            ("changed", ByteSize(state.changed).to_string()),
            ("written back", if state.write_back { "at the end" } else { "never" }.to_owned()),
        ]);
    }
    text
}
