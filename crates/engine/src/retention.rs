//! Which of several versions or snapshots are old enough to go.

use block::{Error, Result};
use std::time::Duration;

/// What stays: what either of the two keeps, and always the newest.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Retention {
    /// The newest so many.
    pub keep: Option<u32>,
    /// What was made within this time.
    pub within: Option<Duration>,
}

impl Retention {
    /// How many of these go, from the first on: given when each was made, the oldest first, in Unix
    /// seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when nothing would be kept.
    pub fn superseded(&self, created: &[u64], now: u64) -> Result<usize> {
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
        Retention { keep, within }.superseded(created, 100).unwrap()
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
        assert!(Retention { keep: Some(0), within: None }.superseded(&[], 1).is_err());
    }
}
