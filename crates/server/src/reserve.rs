//! Descriptors that are kept for a step which must not fail for want of them.

use block::{Error, Result};
use std::fs::File;

/// So many are free as soon as they are released; unless others are quicker.
#[derive(Debug)]
pub(crate) struct Reserve(Vec<File>);

impl Reserve {
    /// Keeps `count` of them.
    ///
    /// # Errors
    /// When there are not so many.
    pub(crate) fn of(count: usize) -> Result<Self> {
        let keep = |_| File::open("/dev/null").map_err(|e| Error::io("/dev/null", e));
        (0..count).map(keep).collect::<Result<_>>().map(Self)
    }

    /// Frees `count` of them.
    pub(crate) fn release(&mut self, count: usize) {
        self.0.truncate(self.0.len().saturating_sub(count));
    }
}
