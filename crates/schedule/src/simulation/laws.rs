//! The laws that hold in any run, whatever the scheduler: what was counted over time must equal what
//! was counted by request. Times are whole nanoseconds, so they must be equal to the last one.

use crate::Nanos;
use block::{Error, Result};

/// Two counts of the same: a number of things over time, and the times that each thing took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Balance {
    /// The number of things present, integrated over the window.
    over_time: u128,
    /// The sum of the times of those that left in the window.
    of_leavers: u128,
    /// How many are present, and the sum of the moments at which they came.
    present: u64,
    came: u128,
    /// The part of their times that the present ones had spent when the window began.
    before: u128,
}

impl Balance {
    /// Time passes.
    pub(crate) fn pass(&mut self, by: Nanos) {
        self.over_time += u128::from(by) * u128::from(self.present);
    }

    /// One comes.
    pub(crate) fn come(&mut self, now: Nanos) {
        self.present += 1;
        self.came += u128::from(now);
    }

    /// One that came at `came` leaves.
    pub(crate) fn leave(&mut self, came: Nanos, now: Nanos) {
        self.present -= 1;
        self.came -= u128::from(came);
        self.of_leavers += u128::from(now - came);
    }

    /// The window begins.
    pub(crate) fn begin(&mut self, now: Nanos) {
        self.over_time = 0;
        self.of_leavers = 0;
        self.before = self.spent(now);
    }

    /// What the present ones have spent.
    fn spent(&self, now: Nanos) -> u128 {
        u128::from(now) * u128::from(self.present) - self.came
    }

    /// How many are present.
    pub(crate) fn present(&self) -> u64 {
        self.present
    }

    /// The mean number present over a window of this length.
    pub(crate) fn mean(&self, window: Nanos) -> f64 {
        self.over_time as f64 / window.max(1) as f64
    }

    /// Fails when the two counts disagree at the end of the window.
    ///
    /// # Errors
    /// [`Internal`](block::ErrorKind::Internal), which names the law.
    pub(crate) fn check(&self, law: &str, now: Nanos) -> Result<()> {
        let by_request = (self.of_leavers + self.spent(now)).checked_sub(self.before);
        if by_request == Some(self.over_time) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "{law} does not hold in this run: {} ns counted over time, {} ns by request; its figures \
             are worth nothing, please report it",
            self.over_time,
            by_request.map_or("less than 0".to_owned(), |sum| sum.to_string())
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One there from the start, one that comes and goes, one that stays.
    fn balance() -> Balance {
        let mut balance = Balance::default();
        balance.come(5);
        balance.pass(5);
        balance.begin(10);
        balance.come(10);
        balance.pass(10);
        balance.leave(10, 20);
        balance.leave(5, 20);
        balance.come(20);
        balance.pass(7);
        balance
    }

    #[test]
    fn both_counts_agree_across_the_edges_of_the_window() {
        let balance = balance();
        balance.check("law", 27).unwrap();
        assert_eq!(balance.mean(17), 27.0 / 17.0);
    }

    #[test]
    fn one_nanosecond_that_is_counted_once_only_is_told() {
        let mut wrong = balance();
        wrong.pass(1);
        let error = wrong.check("Little's law", 27).unwrap_err();
        assert!(error.message().starts_with("Little's law does not hold"), "{error}");
    }
}
