//! How long requests take, learned by their size. Pure: whoever uses it brings the time.

use crate::source::CostEstimate;
use std::time::Duration;

/// Requests of up to so many bytes are alike; longer ones are a class of their own.
const LIMITS: [u64; 2] = [16 << 10, 96 << 10];
/// What stands for a class where nothing was measured, in bytes.
const TYPICAL: [u64; CLASSES] = [8 << 10, 48 << 10, 160 << 10];
const CLASSES: usize = LIMITS.len() + 1;
/// The weight of a new measurement.
const WEIGHT: f64 = 0.2;
/// Measurements of which the 95th percentile is taken.
const WINDOW: usize = 32;
/// How many samples are needed before it says anything.
const ENOUGH: usize = 8;
/// A measurement that is older says what was, and the estimate may be right again.
const OLD: Duration = Duration::from_secs(60);
/// Bounds of the time after which somebody else is asked, too: a hedge costs the other one's link.
const SOONEST: Duration = Duration::from_millis(20);
const LATEST: Duration = Duration::from_secs(2);
/// The latest where somebody else takes long: an estimate of that may be far off.
pub(crate) const DEAREST: Duration = Duration::from_secs(10);
/// A hedge that takes as long as this is dear: it is not sent before the source took as long as it would.
const DEAR: Duration = Duration::from_millis(200);

#[derive(Debug, Clone, Copy)]
struct SizeClass {
    mean: f64,
    measured: Option<Duration>,
    recent: [f32; WINDOW],
    count: usize,
}

/// What a source takes.
#[derive(Debug, Clone)]
pub(crate) struct LearnedPace {
    estimate: CostEstimate,
    classes: [SizeClass; CLASSES],
}

fn class_of(bytes: u64) -> usize {
    LIMITS.partition_point(|limit| *limit < bytes)
}

impl LearnedPace {
    pub(crate) fn new(estimate: CostEstimate) -> Self {
        let class = SizeClass { mean: 0.0, measured: None, recent: [0.0; WINDOW], count: 0 };
        Self { estimate, classes: [class; CLASSES] }
    }

    /// What a request of so many bytes was expected to take before any was measured.
    pub(crate) fn at_first(&self, bytes: u64) -> Duration {
        self.estimate.of(bytes)
    }

    /// A request of so many bytes took so long, and ended at `now`.
    pub(crate) fn answered(&mut self, bytes: u64, took: Duration, now: Duration) {
        let class = &mut self.classes[class_of(bytes)];
        let seconds = took.as_secs_f64();
        class.mean = match class.measured {
            None => seconds,
            Some(_) => class.mean + WEIGHT * (seconds - class.mean),
        };
        class.measured = Some(now);
        class.recent[class.count % WINDOW] = seconds as f32;
        class.count += 1;
    }

    /// Somebody else answered when a request of so many bytes had taken so long, at `now`: it would have taken
    /// longer, and no less than was expected.
    pub(crate) fn outrun(&mut self, bytes: u64, took: Duration, now: Duration) {
        self.answered(bytes, took.max(self.expected(bytes, now)), now);
    }

    /// What a request of so many bytes is expected to take.
    pub(crate) fn expected(&self, bytes: u64, now: Duration) -> Duration {
        let class = class_of(bytes);
        let estimate = self.estimate.of(bytes);
        let nearest = (0..CLASSES)
            .filter(|other| self.classes[*other].measured.is_some())
            .min_by_key(|other| other.abs_diff(class));
        let Some(known) = nearest else { return estimate };
        let mut expected = Duration::from_secs_f64(self.classes[known].mean);
        if known != class {
            // As much more or less as the estimate says.
            let typical = |class: usize| self.estimate.of(TYPICAL[class]).as_secs_f64();
            expected = expected.mul_f64(typical(class) / typical(known));
        }
        match self.classes[known].measured {
            Some(at) if now.saturating_sub(at) > OLD => expected.min(estimate),
            _ => expected,
        }
    }

    /// After how long somebody else is asked as well, who is expected to take `other`: the 95th
    /// percentile, and not before a quarter of what the other one would take, or all of it where that is long.
    pub(crate) fn patience(&self, bytes: u64, now: Duration, other: Duration) -> Duration {
        let class = &self.classes[class_of(bytes)];
        let filled = class.count.min(WINDOW);
        let percentile = if filled < ENOUGH {
            self.expected(bytes, now) * 4
        } else {
            let mut recent = class.recent;
            let recent = &mut recent[..filled];
            recent.sort_unstable_by(f32::total_cmp);
            Duration::from_secs_f32(recent[(filled * 19 / 20).min(filled - 1)])
        };
        let dear = (other.as_secs_f64() / DEAR.as_secs_f64()).clamp(0.25, 1.0);
        percentile.clamp(SOONEST, LATEST).max(other.mul_f64(dear).min(DEAREST))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    #[test]
    fn what_was_measured_replaces_the_estimate_and_grows_old() {
        let mut pace = LearnedPace::new(CostEstimate::LOCAL);
        let guess = pace.expected(50_000, MS(0));
        assert!(guess > MS(2) && guess < MS(4), "{guess:?}");
        (0..20).for_each(|_| pace.answered(50_000, MS(300), MS(10)));
        assert!(pace.expected(50_000, MS(20)) > MS(290));
        assert!(pace.expected(200_000, MS(20)) > MS(290), "the nearest class stands in");
        assert_eq!(pace.expected(50_000, MS(120_000)), guess, "it may be quick again");
    }

    #[test]
    fn patience_is_the_95th_percentile_within_bounds() {
        let mut pace = LearnedPace::new(CostEstimate::LOCAL);
        for n in 0..32 {
            pace.answered(50_000, if n % 16 == 0 { MS(400) } else { MS(100) }, MS(n));
        }
        let patience = pace.patience(50_000, MS(40), MS(0));
        assert!(patience >= MS(100) && patience <= MS(401), "{patience:?}");
        let dear = pace.patience(50_000, MS(40), MS(10_000));
        assert_eq!(dear, MS(10_000), "what takes long on the link is no hedge before that");
        assert_eq!(pace.patience(50_000, MS(40), MS(240_000)), DEAREST);
        pace.outrun(50_000, MS(1), MS(41));
        assert!(pace.expected(50_000, MS(41)) > MS(90), "who was outrun was not quick");
        let mut quick = LearnedPace::new(CostEstimate::LOCAL);
        (0..32).for_each(|n| quick.answered(4096, MS(0), MS(n)));
        assert_eq!(quick.patience(4096, MS(40), MS(0)), SOONEST);
        (0..32).for_each(|n| quick.answered(4096, MS(60_000), MS(n)));
        assert_eq!(quick.patience(4096, MS(40), MS(0)), LATEST);
    }
}
