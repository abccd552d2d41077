//! What a collection did, or would do.

use crate::condemned::CondemnedObject;
use objects::Amount;
use serde::Serialize;
use std::time::Duration;

/// How to collect.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GcOptions {
    /// Only say what would be done.
    pub dry_run: bool,
    /// How long what is unreferenced stays, for readers of what was removed.
    pub grace: Duration,
    /// A pack of which a smaller share than this is referenced is rewritten: 0 for never, at most 1.
    pub rewrite_below: f64,
    /// A session whose pin is older died. Sessions renew theirs every hour; with less than two hours
    /// sessions that are at work fail.
    pub stale: Duration,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            dry_run: false,
            grace: Duration::from_secs(86_400),
            rewrite_below: 0.5,
            stale: Duration::from_secs(86_400),
        }
    }
}

/// What names refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct LiveObjects {
    /// Image versions, disks, snapshots.
    pub names: u64,
    /// Distinct manifests.
    pub manifests: u64,
    /// Distinct segments.
    pub segments: u64,
    /// Packs.
    pub packs: u64,
    /// Chunks, each at its place.
    pub chunks: u64,
}

/// Garbage that was found in an earlier collection and is not deleted yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WaitingGarbage {
    /// What it was when it was found.
    pub garbage: Amount,
    /// Seconds until it may be deleted; 0 when only sessions are in the way.
    pub seconds: u64,
    /// Sessions that are older than it, as they call themselves.
    pub sessions: Vec<String>,
}

/// What a collection did. In a dry run: what it would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct GcReport {
    /// Whether nothing was done.
    pub dry_run: bool,
    /// What is in use.
    pub live: LiveObjects,
    /// Garbage that was found now, and can be deleted by a collection after the grace period.
    pub found: Amount,
    /// Garbage that was deleted.
    pub freed: Amount,
    /// Mostly unreferenced packs that were rewritten; they are part of what was found.
    pub rewritten: Amount,
    /// Bytes of their chunks that are in use, now in new packs, index entries included.
    pub kept_bytes: u64,
    /// Garbage of earlier collections that has to wait.
    pub waiting: Vec<WaitingGarbage>,
    /// Old records of names that were deleted.
    pub records: u64,
    /// Pins that were too old: of sessions that died, or that have newer ones.
    pub pins: u64,
    /// Lists of garbage that were damaged, by key: what they may have named was condemned anew.
    pub replaced: Vec<String>,
    /// What could not be read: nothing was deleted that it may refer to.
    pub doubts: Vec<String>,
}

/// How many `items` there are, and their bytes.
pub(crate) fn amount_of(items: &[CondemnedObject]) -> Amount {
    let mut amount = Amount::default();
    items.iter().for_each(|item| amount.add(item.size.into()));
    amount
}
