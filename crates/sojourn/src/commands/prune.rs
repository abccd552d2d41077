//! The options of commands that remove old versions or snapshots.

use super::gc::time;
use engine::retention::Retention;
use std::time::Duration;

/// What stays: at least one of the two is given. The newest always stays.
#[derive(Debug, clap::Args)]
pub(crate) struct Retain {
    /// Retain the newest N
    #[arg(long, value_name = "N", required_unless_present = "within")]
    keep: Option<u32>,
    /// Retain what was made within this time (90m, 24h, 30d, …); with --keep what either keeps stays
    #[arg(long, value_name = "TIME", value_parser = time)]
    within: Option<Duration>,
    /// Only say what would be removed
    #[arg(long)]
    pub(super) dry_run: bool,
}

impl Retain {
    /// What the options keep.
    pub(super) fn retention(&self) -> Retention {
        Retention { keep: self.keep, within: self.within }
    }
}
