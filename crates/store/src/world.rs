//! What a library must not reach for by itself.

use block::Result;
use std::fmt;
use std::sync::Arc;

/// Tells the time.
pub trait Clock: Send + Sync {
    /// Seconds since 1970-01-01 00:00 UTC.
    fn now(&self) -> u64;
}

/// Gives unpredictable bytes.
pub trait Entropy: Send + Sync {
    /// Fills `buf`.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the system has none.
    fn fill(&self, buf: &mut [u8]) -> Result<()>;
}

/// The time and the randomness that a [`Store`](crate::Store) uses.
#[derive(Clone)]
pub struct World {
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Gives unpredictable bytes.
    pub entropy: Arc<dyn Entropy>,
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}
