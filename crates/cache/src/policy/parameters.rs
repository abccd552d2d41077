//! The parameters of a policy, by name: as configuration and command line write them.

use super::Ratio;
use block::{Error, Result};

/// The parameters of a policy that has some.
pub(super) trait Tunable {
    /// Each one's name, and its value as it is written.
    fn list(&self) -> Vec<(&'static str, String)>;

    /// Sets the one of this name; `false` when there is none.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the value is not one that it may have.
    fn set(&mut self, name: &str, value: &str) -> Result<bool>;
}

/// A part of a whole: 0 to 1.
pub(super) fn part(name: &str, value: &str) -> Result<Ratio> {
    let ratio: Ratio = value.parse()?;
    if ratio <= Ratio::times(1) {
        return Ok(ratio);
    }
    Err(Error::invalid(format!("{name}={value} is more than the whole; use 0 to 1")))
}

/// A whole number from `least` to `most`.
pub(super) fn integer(name: &str, value: &str, least: u32, most: u32) -> Result<u32> {
    let number = value.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| {
        Error::invalid(format!("{name}={value} is not a whole number from {least} to {most}"))
    })
}
