//! Verbs on disks, and what they give: what travels over the control socket, and what `--json` prints.
//! The field names are documented in docs/cli.md and do not change.

use disk::{BlockPlace, Mode};
use serde::{Deserialize, Deserializer, Serialize};
use std::time::Duration;
use store::import::ImportStats;

/// A mode, or the switch that a program before [`Mode::WriteThrough`] sends: whether it is ephemeral.
fn mode_or_switch<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mode, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum ModeOrSwitch {
        Mode(Mode),
        Ephemeral(bool),
    }
    Ok(match ModeOrSwitch::deserialize(deserializer)? {
        ModeOrSwitch::Mode(mode) => mode,
        ModeOrSwitch::Ephemeral(true) => Mode::Ephemeral,
        ModeOrSwitch::Ephemeral(false) => Mode::Persistent,
    })
}

/// A verb on disks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum DiskRequest {
    /// Make a disk on an image version.
    Create {
        /// The disk.
        name: String,
        /// The image, as `name` or `name:tag`, or `disk@snapshot`.
        from: String,
        /// What becomes of what is written.
        #[serde(alias = "ephemeral", deserialize_with = "mode_or_switch")]
        mode: Mode,
        /// Bytes; as large as the image when there is none.
        size: Option<u64>,
    },
    /// Make several disks of the same.
    CreateAll {
        /// The disks.
        names: Vec<String>,
        /// The image, as `name` or `name:tag`, or `disk@snapshot`.
        from: String,
        /// What becomes of what is written.
        #[serde(alias = "ephemeral", deserialize_with = "mode_or_switch")]
        mode: Mode,
        /// Bytes of each; as large as what they are made of when there is none.
        size: Option<u64>,
    },
    /// All disks of the home.
    List,
    /// One disk.
    Show {
        /// The disk.
        name: String,
    },
    /// Where the bytes of a disk are.
    Map {
        /// The disk.
        name: String,
        /// The most cells, 1 to 4096.
        cells: usize,
    },
    /// Freeze the state of a disk.
    Snapshot {
        /// The disk.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Return a disk to a snapshot.
    Rollback {
        /// The disk.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Publish the state of a disk as an image version.
    Commit {
        /// The disk.
        name: String,
        /// The image, as `name` or `name:tag`.
        image: String,
    },
    /// Move a disk to another version of its image.
    Rebase {
        /// The disk.
        name: String,
        /// The image, as `name` or `name:tag`.
        image: String,
        /// Where both the disk and the image changed, keep what the disk has.
        keep_mine: bool,
    },
    /// Drop the private blocks of a disk.
    Reset {
        /// The disk.
        name: String,
    },
    /// Make a disk larger.
    Grow {
        /// The disk.
        name: String,
        /// Bytes.
        size: u64,
    },
    /// Remove a disk.
    Remove {
        /// The disk.
        name: String,
        /// Only the store knows it any more.
        #[serde(default)]
        lost: bool,
    },
    /// Remove a snapshot.
    RemoveSnapshot {
        /// The disk.
        name: String,
        /// The snapshot.
        snapshot: String,
    },
    /// Take a disk that another server held.
    Take {
        /// The disk.
        name: String,
        /// Also from a server that is at work.
        force: bool,
        /// What a machine has in its memory there, which runs with the disk or is suspended, is given up.
        #[serde(default)]
        lost: bool,
    },
    /// Send what a disk holds to the store, and go on with it.
    Publish {
        /// The disk.
        name: String,
    },
    /// By what it is told later whether a disk still holds what it does now.
    Mark {
        /// The disk.
        name: String,
        /// Set a mark; else only look for one.
        set: bool,
    },
    /// How many bytes of a disk the store does not have: asks nobody.
    PrivateBytes {
        /// The disk.
        name: String,
    },
    /// Whether a disk holds what a manifest says, and nothing that was written since.
    Holds {
        /// The disk.
        name: String,
        /// The manifest's id.
        manifest: String,
    },
    /// Publish a disk and give it up.
    Release {
        /// The disk.
        name: String,
    },
    /// Make what is here of a disk that was taken a disk of its own.
    Keep {
        /// The disk.
        name: String,
        /// The name of the new disk.
        new: String,
    },
    /// The disks of the store that other servers hold, or nobody.
    Elsewhere,
}

impl DiskRequest {
    /// Whether it changes nothing of any disk, nor opens one.
    pub fn only_looks(&self) -> bool {
        matches!(self, Self::List | Self::Show { .. } | Self::Map { .. } | Self::Elsewhere)
    }
}

/// What a verb on disks gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskReply {
    /// A disk as it is now.
    Disk(DiskView),
    /// All disks, by name.
    Disks(Vec<DiskView>),
    /// What became of each disk that was to be made, in the order in which they were named.
    Made(Vec<MadeView>),
    /// Where the bytes of a disk are.
    Map(MapView),
    /// The snapshot that was made.
    Snapshot(SnapshotView),
    /// The version that was published.
    Image(ImageView),
    /// The disk, and what both had changed.
    Rebase(RebaseView),
    /// What was removed.
    Removed(String),
    /// The mark of a disk; none when it was written since one was set.
    Mark(Option<String>),
    /// Bytes of a disk that the store does not have.
    PrivateBytes(u64),
    /// Whether a disk holds what was asked for.
    Holds(bool),
    /// A disk whose state is in the store now.
    Published(PublishedView),
    /// What was given up.
    Released(String),
    /// The disks of the store that are not here.
    Elsewhere(Vec<ElsewhereView>),
}

/// What became of publishing a disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PublishedView {
    /// The disk.
    pub disk: String,
    /// Bytes of blocks that the store did not have before; 0 when it had all.
    pub bytes: u64,
}

/// What became of one of several disks that were to be made.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MadeView {
    /// It was made.
    Disk(DiskView),
    /// It was not.
    Failed {
        /// The disk.
        name: String,
        /// The kind of the error, as [`block::ErrorKind::as_str`] has it.
        kind: String,
        /// What went wrong.
        message: String,
    },
}

/// A disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct DiskView {
    /// Its name.
    pub name: String,
    /// The image version it stands on, as `name:tag`.
    pub image: String,
    /// `persistent`, `ephemeral` or `write-through`.
    pub mode: String,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub created: u64,
    /// Bytes of its private blocks.
    pub private_bytes: u64,
    /// Whether it holds what its image version does.
    #[serde(default)]
    pub unchanged: bool,
    /// Whether its private blocks, if it has any, lie over what its image version holds.
    #[serde(default)]
    pub over_image: bool,
    /// Its snapshots.
    pub snapshots: Vec<SnapshotView>,
    /// Why the disk cannot be used, if so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// Where the bytes of a disk are, in cells of equal size; the last one may be shorter.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MapView {
    /// The disk.
    pub disk: String,
    /// Its size in bytes.
    pub size: u64,
    /// The size of a cell in bytes: a power of two, at least 4096.
    pub cell_bytes: u64,
    /// Bytes of the whole disk.
    pub total: BytesByPlace<u64>,
    /// Bytes of each cell, in the order of the disk.
    pub cells: BytesByPlace<Vec<u64>>,
    /// How long it took to draw, without what was waited for.
    #[serde(skip)]
    pub work: Duration,
}

/// Bytes, by the place where they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesByPlace<T> {
    /// Nowhere: zeroes.
    pub zero: T,
    /// In the image, whose chunks the store has.
    pub stored: T,
    /// In the image, whose chunks this machine keeps of a distant store.
    pub kept: T,
    /// In the image, whose chunks are in memory.
    pub cached: T,
    /// In the disk's own files: its client wrote them.
    pub private: T,
    /// The same, on their way to the store for a snapshot, a commit or a publication.
    pub waiting: T,
    /// In the image, of which nobody has read here yet what it holds there.
    pub unread: T,
}

impl<T> BytesByPlace<T> {
    /// What `of` gives for each place.
    pub fn of(of: impl Fn(BlockPlace) -> T) -> Self {
        Self {
            zero: of(BlockPlace::Zero),
            stored: of(BlockPlace::Stored),
            kept: of(BlockPlace::Kept),
            cached: of(BlockPlace::Cached),
            private: of(BlockPlace::Private),
            waiting: of(BlockPlace::Waiting),
            unread: of(BlockPlace::Unread),
        }
    }

    /// That of a place.
    pub fn at(&self, place: BlockPlace) -> &T {
        match place {
            BlockPlace::Zero => &self.zero,
            BlockPlace::Stored => &self.stored,
            BlockPlace::Kept => &self.kept,
            BlockPlace::Cached => &self.cached,
            BlockPlace::Private => &self.private,
            BlockPlace::Waiting => &self.waiting,
            BlockPlace::Unread => &self.unread,
        }
    }
}

/// A disk of the store that another server holds, or nobody.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ElsewhereView {
    /// Its name.
    pub name: String,
    /// The image version it stands on, as `name:tag`.
    pub image: String,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub created: u64,
    /// The id of the server that holds it; nobody does when it was released.
    pub holder: Option<String>,
    /// The host of that server.
    pub host: Option<String>,
    /// Whether that server is at work.
    pub alive: bool,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// A snapshot of a disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SnapshotView {
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub created: u64,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// An image version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImageView {
    /// `name:tag`.
    pub image: String,
    /// Bytes.
    pub size: u64,
    /// Unix seconds.
    pub created: u64,
    /// The id of its manifest, in hex.
    pub manifest: String,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub source: Option<String>,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub error: Option<String>,
}

/// An image version that was imported.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ImportView {
    /// The version.
    #[serde(flatten)]
    pub image: ImageView,
    /// Figures of the import.
    pub stats: ImportStats,
}

/// What a rebase found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RebaseView {
    /// The disk after it.
    pub disk: DiskView,
    /// Ranges that both the disk and the image changed; the disk's content was kept.
    pub both_changed: Vec<Range>,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Range {
    /// The first byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_program_from_before_there_were_three_modes_is_understood() {
        let asked = |what: &str, value: serde_json::Value| {
            let mut verb = json!({"verb": "create", "name": "a", "from": "debian", "size": null});
            verb[what] = value;
            match serde_json::from_value(verb) {
                Ok(DiskRequest::Create { mode, .. }) => Some(mode),
                _ => None,
            }
        };
        assert_eq!(asked("ephemeral", true.into()), Some(Mode::Ephemeral));
        assert_eq!(asked("ephemeral", false.into()), Some(Mode::Persistent));
        assert_eq!(asked("mode", "write-through".into()), Some(Mode::WriteThrough));
        assert_eq!(asked("mode", "other".into()), None);
    }
}
