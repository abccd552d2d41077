//! The kinds of names, and what a name of each kind looks like.

use crate::name::check_name;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a name is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RefKind {
    /// An image version: `name:tag`.
    Image,
    /// A disk.
    Disk,
    /// A snapshot of a disk: `disk@snapshot`.
    Snapshot,
    /// A suspended machine: `machine@number`.
    Parcel,
    /// A machine that runs: `machine`.
    Machine,
    /// How far garbage collection is: one name, `store`.
    Gc,
}

impl RefKind {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Image, Self::Disk, Self::Snapshot, Self::Parcel, Self::Machine, Self::Gc];

    /// The kind in words, as it stands in keys.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Image => "image",
            Self::Disk => "disk",
            Self::Snapshot => "snapshot",
            Self::Parcel => "parcel",
            Self::Machine => "machine",
            Self::Gc => "gc",
        }
    }

    /// Checks a name of this kind.
    pub(super) fn check(self, name: &str) -> Result<()> {
        let parts = |sign: char, first: &str, second: &str| match name.split_once(sign) {
            Some((a, b)) => check_name(first, a).and_then(|()| check_name(second, b)),
            None => Err(Error::invalid(format!(
                "{self} name {:?} lacks its {second}: write {first}{sign}{second}",
                name.chars().take(40).collect::<String>()
            ))),
        };
        match self {
            Self::Image => parts(':', "image", "version"),
            Self::Disk => check_name("disk", name),
            Self::Snapshot => parts('@', "disk", "snapshot"),
            Self::Parcel => parts('@', "machine", "number"),
            Self::Machine => check_name("machine", name),
            Self::Gc => check_name("collection", name),
        }
    }
}

impl fmt::Display for RefKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
