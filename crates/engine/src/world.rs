//! The real clock and the real randomness: the only place that asks the system for them.

use block::{Error, Result};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{Clock, Entropy, World};

struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> u64 {
        since_1970().as_secs()
    }
}

/// The time since 1970-01-01 00:00 UTC.
#[allow(clippy::disallowed_methods)] // the one place
pub fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
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
pub fn system() -> World {
    World { clock: Arc::new(SystemClock), entropy: Arc::new(SystemEntropy) }
}

/// A moment as people read it: UTC, to the second (civil-from-days, H. Hinnant, "chrono-Compatible
/// Low-Level Date Algorithms").
pub fn moment(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let z = days + 719_468;
    let era = z / 146_097;
    let day_of_era = z % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_right_around_leap_days() {
        assert_eq!(moment(0), "1970-01-01 00:00:00");
        assert_eq!(moment(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(moment(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(moment(1_709_251_199), "2024-02-29 23:59:59");
        assert_eq!(moment(4_102_444_800), "2100-01-01 00:00:00");
    }
}
