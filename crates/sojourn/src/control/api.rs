//! Requests and replies of the control socket. The replies are also what `--json` prints; their
//! field names are documented in docs/cli.md and do not change.

use block::{Error, ErrorKind};
use cache::PolicyKind;
use serde::{Deserialize, Serialize};

/// The path of disk verbs.
pub(crate) const DISK_PATH: &str = "/v1/disk";
/// The path of the server's state.
pub(crate) const STATUS_PATH: &str = "/v1/status";

/// The path of [`Reloaded`].
pub(crate) const RELOAD_PATH: &str = "/v1/reload";
/// The path of [`DrainRequest`].
pub(crate) const DRAIN_PATH: &str = "/v1/drain";
/// The path by which a successor asks for what the server has.
pub(crate) const HAND_OVER_PATH: &str = "/v1/hand-over";
/// The path of [`CacheRequest`].
pub(crate) const CACHE_PATH: &str = "/v1/cache";

/// Change the block cache until the configuration is read again; what is not named stays.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CacheRequest {
    /// Bytes.
    pub(crate) size: Option<u64>,
    pub(crate) policy: Option<PolicyKind>,
}

/// What reading the configuration again came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reloaded {
    /// Keys that changed and that need a restart.
    pub(crate) restart: Vec<String>,
    /// Where the server listens from now on.
    #[serde(default)]
    pub(crate) opened: Vec<String>,
    /// Where it does not any more; clients that came by it stay.
    #[serde(default)]
    pub(crate) closed: Vec<String>,
}

/// Take no new clients, and end when the last one has left.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct DrainRequest {
    /// End after so many seconds in any case.
    pub(crate) seconds: Option<u64>,
    /// Start a successor and hand everything over to it.
    #[serde(default)]
    pub(crate) to_successor: bool,
}

/// The server drains, or has handed over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Draining {
    /// Connections at that moment, or those that were handed over.
    pub(crate) connections: u64,
    /// The process that goes on.
    #[serde(default)]
    pub(crate) successor: Option<u32>,
}

/// A verb on disks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum DiskRequest {
    Create {
        name: String,
        from: String,
        ephemeral: bool,
        size: Option<u64>,
    },
    List,
    Show {
        name: String,
    },
    Snapshot {
        name: String,
        snapshot: String,
    },
    Rollback {
        name: String,
        snapshot: String,
    },
    Commit {
        name: String,
        image: String,
    },
    Rebase {
        name: String,
        image: String,
        keep_mine: bool,
    },
    Reset {
        name: String,
    },
    Grow {
        name: String,
        size: u64,
    },
    Remove {
        name: String,
        /// Only the store knows it any more.
        #[serde(default)]
        lost: bool,
    },
    RemoveSnapshot {
        name: String,
        snapshot: String,
    },
    Take {
        name: String,
        /// Also from a server that is at work.
        force: bool,
    },
    Release {
        name: String,
    },
    Keep {
        name: String,
        new: String,
    },
    /// The disks of the store that other servers hold, or nobody.
    Elsewhere,
}

/// What a verb on disks gives.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum DiskReply {
    Disk(DiskView),
    Disks(Vec<DiskView>),
    Snapshot(SnapshotView),
    Image(ImageView),
    Rebase(RebaseView),
    Removed(String),
    Released(String),
    Elsewhere(Vec<ElsewhereView>),
}

/// A disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DiskView {
    pub(crate) name: String,
    /// The image version it stands on, as `name:tag`.
    pub(crate) image: String,
    /// `persistent` or `ephemeral`.
    pub(crate) mode: String,
    pub(crate) size: u64,
    /// Unix seconds.
    pub(crate) created: u64,
    /// Bytes of its private blocks.
    pub(crate) private_bytes: u64,
    pub(crate) snapshots: Vec<SnapshotView>,
    /// Why the disk cannot be used, if so.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

/// A disk of the store that another server holds, or nobody.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ElsewhereView {
    pub(crate) name: String,
    /// The image version it stands on, as `name:tag`.
    pub(crate) image: String,
    pub(crate) size: u64,
    /// Unix seconds.
    pub(crate) created: u64,
    /// The id of the server that holds it; nobody does when it was released.
    pub(crate) holder: Option<String>,
    /// The host of that server.
    pub(crate) host: Option<String>,
    /// Whether that server is at work.
    pub(crate) alive: bool,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

/// A snapshot of a disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotView {
    pub(crate) name: String,
    pub(crate) size: u64,
    /// Unix seconds.
    pub(crate) created: u64,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

/// An image version.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ImageView {
    /// `name:tag`.
    pub(crate) image: String,
    pub(crate) size: u64,
    /// Unix seconds.
    pub(crate) created: u64,
    /// The id of its manifest, in hex.
    pub(crate) manifest: String,
    /// Where it came from.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) source: Option<String>,
    /// Why nothing but the name is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) error: Option<String>,
}

/// What a rebase found.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct RebaseView {
    pub(crate) disk: DiskView,
    /// Ranges that both the disk and the image changed; the disk's content was kept.
    pub(crate) both_changed: Vec<Range>,
}

/// A range of bytes.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// An error on its way to the command that asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) kind: String,
    pub(crate) message: String,
}

const KINDS: [ErrorKind; 10] = [
    ErrorKind::Invalid,
    ErrorKind::NotFound,
    ErrorKind::Conflict,
    ErrorKind::Fenced,
    ErrorKind::Unavailable,
    ErrorKind::Corrupt,
    ErrorKind::NoSpace,
    ErrorKind::Denied,
    ErrorKind::Unsupported,
    ErrorKind::Internal,
];

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind().as_str().to_owned(), message: error.message().to_owned() }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let kind = KINDS.into_iter().find(|kind| kind.as_str() == problem.kind);
        Self::new(kind.unwrap_or(ErrorKind::Internal), problem.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_across_the_socket() {
        for kind in KINDS {
            let json = serde_json::to_string(&Problem::from(&Error::new(kind, "m"))).unwrap();
            let back = Error::from(serde_json::from_str::<Problem>(&json).unwrap());
            assert_eq!((back.kind(), back.message()), (kind, "m"));
        }
    }
}
