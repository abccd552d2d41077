//! Parameters that are a part or a multiple of a cache's entries.

use block::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// A part or a multiple of a cache's entries, in hundredths: 0 to 1,000,000.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ratio(u32);

impl Ratio {
    /// The largest, in hundredths: 10,000 times.
    const MAX: u32 = 1_000_000;

    /// So many hundredths, 1,000,000 at most.
    pub const fn hundredths(hundredths: u32) -> Self {
        Self(if hundredths > Self::MAX { Self::MAX } else { hundredths })
    }

    /// So many times, 10,000 at most.
    pub const fn times(times: u32) -> Self {
        Self::hundredths(times.saturating_mul(100))
    }

    /// This part of `entries`, rounded down.
    #[inline]
    pub const fn of(self, entries: usize) -> usize {
        (entries as u64).saturating_mul(self.0 as u64) as usize / 100
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / 100.0)
    }
}

impl FromStr for Ratio {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let number: f64 = text.parse().unwrap_or(f64::NAN);
        let hundredths = (number * 100.0).round();
        if (0.0..=f64::from(Self::MAX)).contains(&hundredths) {
            return Ok(Self(hundredths as u32));
        }
        Err(Error::invalid(format!(
            "\"{text}\" is no part or multiple of a cache; use a number from 0 to 10000"
        )))
    }
}
