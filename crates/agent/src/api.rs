//! What commands ask of the process of attached disks, and what it tells; the latter is also what `--json`
//! prints.

use crate::peers::PeersView;
use crate::progress::{HoardProgress, UploadProgress};
use lookaside::SourceReport;
use serde::{Deserialize, Serialize};

/// The path of [`AttachRequest`] on the control socket.
pub const ATTACH_PATH: &str = "/v1/attach";

/// A verb on attached disks.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "verb", rename_all = "snake_case", deny_unknown_fields)]
pub enum AttachRequest {
    /// Take a disk, unless it is here, and look after it.
    Attach {
        /// The disk.
        name: String,
        /// Also from a server that is at work.
        force: bool,
    },
    /// Tell of all.
    Status,
    /// Have everything of a disk go up now.
    Sync {
        /// The disk.
        name: String,
    },
    /// Drop what was written since the disk was published last.
    Discard {
        /// The disk.
        name: String,
    },
    /// Give a disk up once everything is in the store. The answer comes at once.
    Detach {
        /// The disk.
        name: String,
    },
    /// Have everything that a disk stands on come here, or stop that.
    Hoard {
        /// The disk.
        name: String,
        /// Whether it is to come.
        wanted: bool,
    },
    /// Change what goes up, and what is hoarded, in a second; `None` leaves it as it is.
    Budget {
        /// Bytes; 0 is no limit.
        up: Option<u64>,
        /// Bytes; 0 is no limit.
        down: Option<u64>,
    },
    /// Have nothing go up until told otherwise, also after a restart.
    Pause {
        /// Whether nothing is to go up.
        paused: bool,
    },
    /// Remember that a disk is to be a block device of this machine, or none.
    Device {
        /// The disk.
        name: String,
        /// The device's path.
        device: Option<String>,
    },
    /// Ask these places for chunks, too, from now on. Those that are asked already are looked at anew.
    Sources {
        /// The places as `sources` of the configuration has them.
        places: Vec<String>,
    },
}

/// All attached disks of a store.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachedView {
    /// The store.
    pub store: String,
    /// The home of these disks.
    pub home: String,
    /// Their NBD socket.
    pub socket: String,
    /// Whether a process looks after them.
    pub running: bool,
    /// Whether nothing goes up until somebody says so.
    #[serde(default)]
    pub paused: bool,
    /// Bytes per second that go up at most; 0 is no limit.
    pub up_bytes_per_second: u64,
    /// Bytes per second that are hoarded at most; 0 is no limit.
    pub down_bytes_per_second: u64,
    /// What came from where since the start, the store last; empty when the store is the only source.
    #[serde(default)]
    pub sources: Vec<SourceReport>,
    /// Other machines of the network, if they are asked and answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<PeersView>,
    /// The disks, by name.
    pub disks: Vec<AttachedDisk>,
}

/// An attached disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AttachedDisk {
    /// Its name.
    pub name: String,
    /// Whether it is given up when everything is in the store.
    pub detaching: bool,
    /// What of it is not in the store.
    pub upload: UploadProgress,
    /// What of it is not here.
    pub hoard: HoardProgress,
    /// The disk that what was written here became, after another machine took this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kept_as: Option<String>,
    /// Why it cannot be used, or given up.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Whether that is because a client uses it.
    #[serde(default)]
    pub in_use: bool,
    /// The block device of this machine that it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The same for people, a line for each thing.
    pub text: Vec<String>,
}
