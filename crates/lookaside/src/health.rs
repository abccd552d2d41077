//! Who lied, failed or hung rests for a while, and for longer when it does so again. Pure: whoever uses it
//! brings the time.

use std::time::Duration;

/// Strikes without as many good answers in between that make a source rest.
const STRIKES: u32 = 3;
/// The first rest.
const FIRST: Duration = Duration::from_secs(1);
/// The longest rest.
const LONGEST: Duration = Duration::from_secs(300);
/// Good answers in a row after which the next rest is half as long.
const FORGIVEN: u32 = 64;

/// Whether a source is asked.
#[derive(Debug, Clone, Default)]
pub(crate) struct SourceHealth {
    strikes: u32,
    /// Rests so far, less what was forgiven.
    level: u32,
    /// Good answers since the last strike.
    good: u32,
    until: Duration,
}

impl SourceHealth {
    /// How long it still rests.
    pub(crate) fn rests(&self, now: Duration) -> Option<Duration> {
        (now < self.until).then(|| self.until - now)
    }

    /// A good answer.
    pub(crate) fn answered(&mut self) {
        self.strikes = self.strikes.saturating_sub(1);
        self.good += 1;
        if self.good >= FORGIVEN {
            self.good = 0;
            self.level = self.level.saturating_sub(1);
        }
    }

    /// A wrong answer, a failure or none in time; returns how long it rests, if it does from now on.
    pub(crate) fn struck(&mut self, now: Duration) -> Option<Duration> {
        self.good = 0;
        if self.rests(now).is_some() {
            // Of requests that were under way already.
            return None;
        }
        self.strikes += 1;
        if self.strikes < STRIKES {
            return None;
        }
        let rest = FIRST.saturating_mul(1 << self.level.min(16)).min(LONGEST);
        self.level = (self.level + 1).min(16);
        // One more strike after the rest, and it rests again.
        self.strikes = STRIKES - 1;
        self.until = now + rest;
        Some(rest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_source_rests_twice_as_long_each_time_and_is_forgiven_for_good_answers() {
        let (mut health, mut now, mut rests) = (SourceHealth::default(), SECOND, Vec::new());
        while rests.len() < 12 {
            if let Some(rest) = health.struck(now) {
                rests.push(rest.as_secs());
                assert!(health.rests(now).is_some());
                now += rest;
                assert!(health.rests(now).is_none());
            }
        }
        assert_eq!(rests, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300, 300]);
        (0..FORGIVEN * 20).for_each(|_| health.answered());
        let rest = std::iter::from_fn(|| Some(health.struck(now))).flatten().next();
        assert_eq!(rest, Some(FIRST));
    }

    proptest! {
        /// One bad answer among several good ones never makes a source rest.
        #[test]
        fn few_bad_answers_are_borne(gaps in prop::collection::vec(1u32..20, 1..100)) {
            let mut health = SourceHealth::default();
            for good in gaps {
                prop_assert_eq!(health.struck(SECOND), None);
                (0..good).for_each(|_| health.answered());
            }
        }
    }
}
