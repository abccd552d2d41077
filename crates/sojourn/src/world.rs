//! The real clock and the real randomness: the only place that asks the system for them.

use block::{Error, Result};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use store::{Clock, Entropy, World};

struct SystemClock;

impl Clock for SystemClock {
    #[allow(clippy::disallowed_methods)] // the one place
    fn now(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

struct SystemEntropy;

impl Entropy for SystemEntropy {
    #[allow(clippy::disallowed_methods)] // the one place
    fn fill(&self, buf: &mut [u8]) -> Result<()> {
        getrandom::fill(buf).map_err(|e| {
            Error::unavailable(format!("the system gives no random bytes: {e}")).with_source(e)
        })
    }
}

/// The system's clock and randomness.
pub(crate) fn system() -> World {
    World { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
}
