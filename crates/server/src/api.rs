//! Requests and replies of the control socket besides those on disks, which are [`engine::api`]. The
//! replies are also what `--json` prints; their field names are documented in docs/cli.md and do not
//! change.

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
/// The path by which exports are looked at, and the protocol that goes on behind it.
pub(crate) const LOOK_PATH: &str = "/v1/look";
pub(crate) const LOOK_PROTOCOL: &str = "nbd";

/// Change the block cache until the configuration is read again; what is not named stays.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRequest {
    /// Bytes.
    pub size: Option<u64>,
    /// Which blocks are evicted.
    pub policy: Option<PolicyKind>,
}

/// What reading the configuration again came to.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Reloaded {
    /// Keys that changed and that need a restart.
    pub restart: Vec<String>,
    /// Where the server listens from now on.
    #[serde(default)]
    pub opened: Vec<String>,
    /// Where it does not any more; clients that came by it stay.
    #[serde(default)]
    pub closed: Vec<String>,
}

/// Take no new clients, and end when the last one has left.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DrainRequest {
    /// End after so many seconds in any case.
    pub seconds: Option<u64>,
    /// Start a successor and hand everything over to it.
    #[serde(default)]
    pub to_successor: bool,
}

/// The server drains, or has handed over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Draining {
    /// Connections at that moment, or those that were handed over.
    pub connections: u64,
    /// The process that goes on.
    #[serde(default)]
    pub successor: Option<u32>,
}

/// An error on its way to the command that asked.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Problem {
    pub(crate) kind: String,
    pub(crate) message: String,
}

impl From<&Error> for Problem {
    fn from(error: &Error) -> Self {
        Self { kind: error.kind().as_str().to_owned(), message: error.message().to_owned() }
    }
}

impl From<Problem> for Error {
    fn from(problem: Problem) -> Self {
        let kind = ErrorKind::ALL.into_iter().find(|kind| kind.as_str() == problem.kind);
        Self::new(kind.unwrap_or(ErrorKind::Internal), problem.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_keeps_its_kind_across_the_socket() {
        for kind in ErrorKind::ALL {
            let json = serde_json::to_string(&Problem::from(&Error::new(kind, "m"))).unwrap();
            let back = Error::from(serde_json::from_str::<Problem>(&json).unwrap());
            assert_eq!((back.kind(), back.message()), (kind, "m"));
        }
    }
}
