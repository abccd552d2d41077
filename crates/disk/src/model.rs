//! What is told of disks.

use block::{Error, Result, Span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use store::{ImageName, ManifestId};

/// What becomes of a disk's private blocks when its client leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// They stay.
    #[default]
    Persistent,
    /// They are dropped: the disk is that of its image again.
    Ephemeral,
    /// They stay, and each write is answered when the store has it: another server goes on with all of them when this
    /// one is lost.
    #[serde(rename = "write-through")]
    WriteThrough,
}

impl Mode {
    /// The mode in words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral => "ephemeral",
            Self::WriteThrough => "write-through",
        }
    }

    /// The mode that two switches choose.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for both.
    pub fn chosen(ephemeral: bool, write_through: bool) -> Result<Self, Error> {
        match (ephemeral, write_through) {
            (false, false) => Ok(Self::Persistent),
            (true, false) => Ok(Self::Ephemeral),
            (false, true) => Ok(Self::WriteThrough),
            (true, true) => Err(Error::invalid(
                "a disk that forgets its writes has none for another server: ephemeral or write-through, not both",
            )),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Mode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text {
            "persistent" => Ok(Self::Persistent),
            "ephemeral" => Ok(Self::Ephemeral),
            "write-through" => Ok(Self::WriteThrough),
            _ => Err(Error::invalid(format!(
                "{text:?} is not a mode of a disk; say persistent, ephemeral or write-through"
            ))),
        }
    }
}

/// What a disk is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskSource {
    /// An image version; the newest one without a tag.
    Image(ImageName),
    /// What a disk was at one of its snapshots.
    Snapshot {
        /// The disk.
        disk: String,
        /// The snapshot.
        snapshot: String,
    },
}

impl FromStr for DiskSource {
    type Err = Error;

    /// Reads `name[:tag]` of an image, or `disk@snapshot`.
    fn from_str(text: &str) -> Result<Self> {
        Ok(match text.split_once('@') {
            Some((disk, snapshot)) => {
                Self::Snapshot { disk: disk.to_owned(), snapshot: snapshot.to_owned() }
            }
            None => Self::Image(text.parse()?),
        })
    }
}

/// How a disk is to be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CreateOptions {
    /// Its size in bytes, at least the image's, a multiple of 512; the image's when not given.
    pub size: Option<u64>,
    /// Whether its private blocks outlive its client.
    pub mode: Mode,
}

/// Where a disk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resident {
    /// Its files were read.
    Known,
    /// They cannot be used; see the error.
    Damaged,
}

/// What a disk is. Its snapshots are told apart: the store has to be asked for them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DiskInfo {
    /// Its name, and that of its export.
    pub name: String,
    /// Whether the rest is known.
    pub state: Resident,
    /// Why not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The image version that it was made from or last rebased to (`debian:3`).
    pub image: String,
    /// What becomes of its private blocks.
    pub mode: Mode,
    /// Its size in bytes.
    pub size: u64,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// Room that its private blocks take here, in bytes.
    pub private_bytes: u64,
    /// It is as it was made or reset: it has no private block, and no snapshot, commit or rollback gave it another
    /// base. That is what its image version holds, if there still is one.
    pub unchanged: bool,
    /// What its private blocks lie over, if that is what it is reset to: its image version's, if there still is one.
    #[serde(skip)]
    pub over_origin: Option<ManifestId>,
}

/// A disk of the store that is not here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RemoteDisk {
    /// Its name.
    pub name: String,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The image version that it stands on.
    pub image: String,
    /// Its size in bytes.
    pub size: u64,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// The id of the server that holds it; `None` when it was released.
    pub holder: Option<String>,
    /// The host of that server, if it was ever at work.
    pub host: Option<String>,
    /// Whether that server is at work.
    pub alive: bool,
}

/// What a snapshot is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SnapshotInfo {
    /// Its name, without the disk's.
    pub name: String,
    /// When it was made, in Unix seconds.
    pub created: u64,
    /// The size of the disk then, in bytes.
    pub size: u64,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// What to do with blocks that both a disk and the new version of its image changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rebase {
    /// Change nothing and say which.
    #[default]
    Refuse,
    /// Keep the disk's.
    KeepMine,
}

/// What a rebase found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RebaseReport {
    /// The image version that the disk stands on now.
    pub image: String,
    /// Ranges that both changed, differently; in order.
    pub both_changed: Vec<Span>,
    /// Bytes that the disk keeps as its own.
    pub kept: u64,
    /// Bytes that the image changed.
    pub updated: u64,
}

/// What a disk's guest did since it was opened, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DiskCounters {
    /// Read by the guest.
    pub read: u64,
    /// Written by the guest.
    pub written: u64,
    /// Room that the private blocks take.
    pub private: u64,
}
