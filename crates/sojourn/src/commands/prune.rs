//! Which of several versions or snapshots are old enough to go.

use super::gc::time;
use block::{Error, Result};
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
    /// How many of these go, from the first on: given when each was made, the oldest first, in Unix
    /// seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when nothing would be kept.
    pub(super) fn superseded(&self, created: &[u64], now: u64) -> Result<usize> {
        if self.keep == Some(0) {
            return Err(Error::invalid("--keep is at least 1; remove the last one by its name"));
        }
        let newest = self.keep.map_or(1, |keep| keep as usize);
        let oldest_kept =
            self.within.map_or(u64::MAX, |within| now.saturating_sub(within.as_secs()));
        let old = created.iter().take_while(|created| **created < oldest_kept).count();
        Ok(old.min(created.len().saturating_sub(newest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn superseded(keep: Option<u32>, within: Option<u64>, created: &[u64]) -> usize {
        let within = within.map(Duration::from_secs);
        Retain { keep, within, dry_run: false }.superseded(created, 100).unwrap()
    }

    #[test]
    fn what_either_limit_keeps_stays_and_the_newest_always() {
        let created = [10, 50, 90, 95];
        assert_eq!(superseded(Some(1), None, &created), 3);
        assert_eq!(superseded(Some(9), None, &created), 0);
        assert_eq!(superseded(None, Some(60), &created), 1);
        assert_eq!(superseded(None, Some(1), &created), 3);
        assert_eq!(superseded(Some(3), Some(1), &created), 1);
        assert_eq!(superseded(Some(1), Some(50), &created), 1);
        assert_eq!(superseded(Some(1), None, &[]), 0);
        assert!(Retain { keep: Some(0), within: None, dry_run: false }.superseded(&[], 1).is_err());
    }
}
