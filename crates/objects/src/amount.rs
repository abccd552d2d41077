//! How much there is of something.

use serde::Serialize;

/// A number of objects and their bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Amount {
    /// How many.
    pub objects: u64,
    /// Their bytes in the store.
    pub bytes: u64,
}

impl Amount {
    /// Counts one more object, of so many bytes.
    pub fn add(&mut self, bytes: u64) {
        self.objects += 1;
        self.bytes += bytes;
    }
}
