//! How many lines clients that break the protocol may write into the log. Whoever can connect can
//! break it as often as it likes, and every time is counted in [`Counters`](crate::server::Counters); the log
//! gets some of them, and how many it did not get.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use tokio::time::Instant;

/// For so long the numbers below hold.
const PERIOD: Duration = Duration::from_secs(60);
/// Lines of one client in a period.
const OF_ONE: u32 = 5;
/// Lines in a period.
const OF_ALL: u32 = 50;

/// What was logged of late.
#[derive(Debug, Default)]
pub(in crate::server) struct Complaints {
    period: Mutex<Period>,
}

#[derive(Debug, Default)]
struct Period {
    began: Option<Instant>,
    lines: u32,
    /// Lines of each client that has one: so no more of them than lines.
    of: HashMap<String, u32>,
    /// What was not logged, and not told of.
    left_out: u64,
}

impl Complaints {
    /// Whether a line about `client` goes into the log at `now`.
    pub(in crate::server) fn admits(&self, client: &str, now: Instant) -> bool {
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        if period.is_over(now) {
            let left_out = period.left_out;
            *period = Period { began: Some(now), left_out, ..Period::default() };
        }
        let full = period.lines >= OF_ALL || period.of.get(client).is_some_and(|n| *n >= OF_ONE);
        if full {
            period.left_out += 1;
        } else {
            period.lines += 1;
            *period.of.entry(client.to_owned()).or_default() += 1;
        }
        !full
    }

    /// Logs how many lines were left out, once their period is over.
    pub(in crate::server) fn log_left_out(&self, now: Instant) {
        if let Some(lines) = self.left_out(now) {
            tracing::warn!(
                lines,
                "more of clients that broke the protocol was left out of the log"
            );
        }
    }

    /// How many lines were left out, once their period is over; each is told of once.
    fn left_out(&self, now: Instant) -> Option<u64> {
        let mut period = self.period.lock().unwrap_or_else(PoisonError::into_inner);
        let told = period.left_out > 0 && period.is_over(now);
        told.then(|| std::mem::take(&mut period.left_out))
    }
}

impl Period {
    fn is_over(&self, now: Instant) -> bool {
        self.began.is_none_or(|began| now - began >= PERIOD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_gets_few_lines_all_together_some_and_the_rest_is_counted() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        let logged =
            |client: &str, now| (0..1000).filter(|_| complaints.admits(client, now)).count();
        assert_eq!(logged("rude", now), OF_ONE as usize);
        assert_eq!(logged("another", now), OF_ONE as usize);
        let rest: usize = (0..1000).map(|n| logged(&n.to_string(), now)).sum();
        assert_eq!(rest, (OF_ALL - 2 * OF_ONE) as usize);
        assert_eq!(complaints.left_out(now), None, "more may come");
        let later = now + PERIOD;
        assert_eq!(complaints.left_out(later), Some(1_002_000 - u64::from(OF_ALL)));
        assert_eq!(complaints.left_out(later), None);
        assert_eq!(logged("rude", later), OF_ONE as usize);
    }

    #[test]
    fn what_was_left_out_is_not_forgotten_with_a_new_period() {
        let (complaints, now) = (Complaints::default(), Instant::now());
        for _ in 0..OF_ONE + 3 {
            complaints.admits("rude", now);
        }
        assert!(complaints.admits("rude", now + PERIOD));
        assert_eq!(complaints.left_out(now + 2 * PERIOD), Some(3));
    }
}
