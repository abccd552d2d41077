//! What a trace says of itself as a whole.

use serde::{Deserialize, Serialize};

/// Clients and disks of a trace at most: their numbers can index an array.
pub const MAX_PARTIES: u32 = 1 << 20;

/// A disk of a trace.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TraceDisk {
    /// Its name; empty when not known.
    pub name: String,
    /// Its size in bytes; 0 when not known.
    pub size: u64,
    /// What it was made from, such as `debian:3`; empty when not known. Disks of one base have the
    /// same content where nobody has written.
    pub base: String,
}

/// What a trace says of itself as a whole.
///
/// Some formats name clients and disks only as they go. The lists then grow with each batch: they
/// are complete once [`Source::read`](crate::Source::read) has returned `false`, and at any time
/// they hold every client and disk that was read so far.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Header {
    /// The clients' names, empty when not known; `Request::client` is the index.
    #[serde(skip)]
    pub clients: Vec<String>,
    /// The disks; `Request::disk` is the index.
    #[serde(skip)]
    pub disks: Vec<TraceDisk>,
    /// How many requests there are, when the format knows it ahead.
    pub requests: Option<u64>,
    /// When the trace's time 0 was, in nanoseconds of Unix time; 0: not known.
    pub start: u64,
    /// Whether `Request::time` is a time. When not, it counts requests: 0, 1, 2, ….
    pub times: bool,
    /// Whether `Request::latency` was measured (where it is not 0).
    pub latencies: bool,
    /// Whether `Request::op` is known. When not, every request is a read.
    pub ops: bool,
    /// All offsets and lengths are multiples of this many bytes; 1 when nothing is known.
    pub alignment: u32,
    /// Whether the trace was finished. When not, its recorder was killed: all whole blocks are there.
    #[serde(skip, default = "yes")]
    pub complete: bool,
    /// Free text: where it comes from, what was done to it. One fact a line.
    pub notes: String,
}

fn yes() -> bool {
    true
}

impl Default for Header {
    /// Nothing named, everything real.
    fn default() -> Self {
        Self {
            clients: Vec::new(),
            disks: Vec::new(),
            requests: None,
            start: 0,
            times: true,
            latencies: false,
            ops: true,
            alignment: 1,
            complete: true,
            notes: String::new(),
        }
    }
}

impl Header {
    /// A number that changes when the header does, while it is read: it only grows.
    pub(crate) fn growth(&self) -> usize {
        let flags = usize::from(self.times) + usize::from(self.complete) * 2;
        self.clients.len() + self.disks.len() + self.notes.len() + flags
    }

    /// Adds a line to the notes.
    pub fn note(&mut self, line: &str) {
        if !self.notes.is_empty() && !self.notes.ends_with('\n') {
            self.notes.push('\n');
        }
        self.notes.push_str(line);
    }
}
