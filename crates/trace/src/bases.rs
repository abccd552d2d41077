//! Which disks share their blocks, as the trace tells: those that were made from the same image.

use crate::TraceDisk;
use std::collections::HashMap;

/// The disks of a trace by what they were made from.
#[derive(Debug, Default)]
pub struct Bases {
    /// For each disk the first one of the same base; `None` for one without.
    first: Vec<Option<u32>>,
    by_base: HashMap<String, u32>,
}

impl Bases {
    /// Takes note of the disks that are new in the list of a header, which only grows.
    pub fn learn(&mut self, disks: &[TraceDisk]) {
        for disk in disks.iter().skip(self.first.len()) {
            let number = self.first.len() as u32;
            let first = (!disk.base.is_empty())
                .then(|| *self.by_base.entry(disk.base.clone()).or_insert(number));
            self.first.push(first);
        }
    }

    /// The first disk that was made from what this one was made from; `None` where the trace does not
    /// tell.
    pub fn of(&self, disk: u32) -> Option<u32> {
        self.first.get(disk as usize).copied().flatten()
    }

    /// Whether any disk has a base.
    pub fn are_known(&self) -> bool {
        !self.by_base.is_empty()
    }
}
