//! Wishes of one read to the layers in front of the backend, which go with its options.

use object_store::GetOptions;

/// How many bytes an object may have whose body is wanted: that of a longer one is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MostBytes(pub(crate) u64);

impl MostBytes {
    /// Whether an object is longer than whoever asked for all of it can use.
    pub(crate) fn is_exceeded(options: &GetOptions, size: u64) -> bool {
        options.extensions.get::<Self>().is_some_and(|most| size > most.0)
    }
}

/// A wish of one read to the layers in front of the backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hint {
    /// From the backend itself, not from what is kept of it.
    Fresh,
    /// Just this range, without its neighbourhood.
    Exact,
    /// An answer that is given once the object's name is on stable storage.
    Durable,
}
