//! `pending.json`: what is written, and how it is read.

use crate::MachineSpec;
use crate::document_version;
use crate::image::MemoryLayout;
use block::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;
use store::ManifestId;

/// The version of the description that is written and read.
pub(super) const VERSION: u32 = 1;

/// What `pending.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingSuspension {
    /// The version of this description: 1.
    pub(super) version: u32,
    /// The number that the parcel gets.
    pub number: u64,
    /// Tells the parcel from another one of that number: 32 hexadecimal digits.
    pub token: String,
    /// When the machine was suspended, in Unix seconds.
    pub created: u64,
    /// By what the disk is recognised.
    pub disk_mark: String,
    /// The memory that the pages are over; `None`: zeroes.
    pub(super) base: Option<BaseMemory>,
    /// The machine.
    pub machine: MachineSpec,
}

/// The memory image of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct BaseMemory {
    pub(super) manifest: ManifestId,
    pub(super) layout: MemoryLayout,
}

/// `pending.json` before its parts are read, each of which has a version of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingDocument {
    #[serde(rename = "version")]
    _version: u32,
    number: u64,
    token: String,
    created: u64,
    disk_mark: String,
    base: Option<BaseDocument>,
    machine: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseDocument {
    manifest: ManifestId,
    layout: Value,
}

impl PendingDocument {
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) or [`Invalid`](ErrorKind::Invalid) when a part makes no sense,
    /// [`Unsupported`](ErrorKind::Unsupported) when a newer build wrote one.
    fn read(self) -> Result<PendingSuspension> {
        let base = self.base.map(|base| {
            let layout = MemoryLayout::decode(&base.layout.to_string())?;
            Ok(BaseMemory { manifest: base.manifest, layout })
        });
        let (base, machine) = (base.transpose()?, MachineSpec::decode(&self.machine.to_string())?);
        if base.is_some_and(|base| base.layout.memory != machine.memory) {
            return Err(Error::corrupt("its memory is another one's"));
        }
        let Self { number, token, created, disk_mark, .. } = self;
        Ok(PendingSuspension { version: VERSION, number, token, created, disk_mark, base, machine })
    }
}

impl PendingSuspension {
    /// Reads what the file at `path` holds.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) or [`Invalid`](ErrorKind::Invalid) when it makes no sense,
    /// [`Unsupported`](ErrorKind::Unsupported) when a newer build wrote it.
    pub(super) fn decode(path: &Path, text: &[u8]) -> Result<Self> {
        let damaged = |e| Error::corrupt(format!("{}: {e}", path.display()));
        let version = document_version::read(text).map_err(damaged)?;
        if version != VERSION {
            return Err(newer(
                path,
                &format!("it is of version {version}, and {VERSION} is read here"),
            ));
        }
        let found: PendingDocument = serde_json::from_slice(text).map_err(damaged)?;
        found.read().map_err(|e| match e.kind() {
            ErrorKind::Unsupported => newer(path, e.message()),
            _ => e.context(path.display()),
        })
    }
}

/// The error of a suspension that this build cannot read.
fn newer(path: &Path, why: &str) -> Error {
    Error::unsupported(format!(
        "{}: a suspension that a newer sojourn made, which stays as it is: use that one ({why})",
        path.display()
    ))
}
