//! Why something may not be borrowed.

use std::fmt;

/// A reason to lend nothing: a code for programs and one sentence for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The stable code.
    pub code: Code,
    /// One sentence: what is wrong, and what would help where something would. Lower-case.
    pub sentence: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: Code, sentence: impl Into<String>) -> Self {
        Self { code, sentence: sentence.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.sentence)
    }
}

impl std::error::Error for Refusal {}

/// Returns a [`Refusal`] with a formatted sentence: `refuse!(Counts, "group {n} says ...")`.
#[macro_export]
macro_rules! refuse {
    ($code:ident, $($sentence:tt)+) => {
        return Err($crate::Refusal::new($crate::Code::$code, format!($($sentence)+)))
    };
}
pub use refuse;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)*) => {
        /// Stable reason codes, as `--json` prints them. Documented in `docs/borrow.md`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Code { $($(#[doc = $doc])+ $name,)* }

        impl Code {
            /// Every code.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// The code as programs see it.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What the code means, one sentence.
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii(),)* }
            }
        }
    };
}

codes! {
    // Reading.
    /// The disk could not be read there.
    ReadError = "read-error",
    /// A structure points outside of its file system, or the file system is cut short.
    OutsideFileSystem = "outside-file-system",
    /// A partition reaches beyond the end of its disk.
    OutsideDisk = "outside-disk",
    /// Reading it would take more time or memory than any honest one of its size.
    TooMuchWork = "too-much-work",
    // What it is.
    /// Nothing that is known: no file system, no partition table.
    Unknown = "unknown",
    /// It carries the marks of more than one thing.
    Ambiguous = "ambiguous",
    /// A file system that is known by name only.
    OtherFileSystem = "other-file-system",
    /// Encrypted: what is free is not to be seen.
    Encrypted = "encrypted",
    /// A member of a RAID set; only the assembled set may be judged.
    RaidMember = "raid-member",
    /// A part of a volume manager's pool.
    VolumeManager = "volume-manager",
    /// A cache device of another disk, or a disk behind one.
    CacheMember = "cache-member",
    /// Space that is in no partition, or a partition without a file system.
    Unpartitioned = "unpartitioned",
    /// The partition table is damaged or contradicts itself.
    PartitionTable = "partition-table",
    // Its state.
    /// Somebody uses it now: it is mounted, active swap, or held open.
    InUse = "in-use",
    /// It was not unmounted cleanly.
    Unclean = "unclean",
    /// Its journal or log holds changes that are not in place yet.
    NeedsReplay = "needs-replay",
    /// It has recorded errors.
    Errors = "errors",
    /// Files that are deleted but not given back yet.
    Orphans = "orphans",
    /// It holds, or its machine holds, a suspended system that will go on from there.
    Hibernated = "hibernated",
    /// A suspended system may hide where nobody can look, and this file system does not show
    /// whether it is mounted.
    HiddenState = "hidden-state",
    /// Old versions (shadow copies, snapshots) may need the bytes that it says are free.
    Snapshots = "snapshots",
    // Its format.
    /// A feature or version of the format that is not known.
    UnknownFeature = "unknown-feature",
    /// A known feature that makes its map of free space no proof.
    UnsupportedFeature = "unsupported-feature",
    /// A checksum does not match.
    Checksum = "checksum",
    /// Two counts of the same thing differ.
    Counts = "counts",
    /// Impossible sizes or positions in its header.
    Geometry = "geometry",
    /// A broken structure.
    Structure = "structure",
    /// Something is in use although its map says free, or is used twice.
    Conflict = "conflict",
    /// It spans several devices.
    MultiDevice = "multi-device",
    // Rules of the house.
    /// It is borrowed only when asked for explicitly.
    NeedsConsent = "needs-consent",
    /// A zoned disk: it cannot be overwritten in place.
    Zoned = "zoned",
    /// A disk that cannot be written.
    ReadOnly = "read-only",
    /// A medium that may be pulled out.
    Removable = "removable",
    /// The disk that this system was started from or runs on.
    OwnDisk = "own-disk",
    /// Two devices show the same file system: one disk by two ways, or a copy of another.
    Duplicate = "duplicate",
    /// A disk behind a network, a loop device, or another virtual device.
    VirtualDisk = "virtual-disk",
    /// Nothing free of a useful size is left after the margins.
    NothingFree = "nothing-free",
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl serde::Serialize for Code {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_code_is_documented_once_and_with_its_meaning() {
        let page = include_str!("../../../docs/borrow.md");
        for code in Code::ALL {
            let row = format!("| `{code}` | {} |", code.meaning());
            assert_eq!(page.matches(&row).count(), 1, "docs/borrow.md has no row {row}");
        }
    }
}
