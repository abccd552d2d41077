//! Means and confidence intervals over seeds, and who wins.

use serde::Serialize;

/// The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// The 97.5 % quantile of Student's t.
fn quantile(degrees: usize) -> f64 {
    // Beyond the table by Cornish and Fisher's expansion, right to the fourth figure.
    let n = degrees as f64;
    T.get(degrees - 1).copied().unwrap_or(1.96 + 2.3723 / n + 2.8225 / (n * n))
}

/// A mean with its 95 % confidence interval.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Estimate {
    /// The mean over seeds.
    pub mean: f64,
    /// Half of the width of the interval; `None` with one seed, of which nothing follows, as with runs that draw nothing.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// The estimate from one value for each seed. Seeds are independent, so Student's t holds.
    pub fn of(values: &[f64]) -> Self {
        let count = values.len();
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        if count < 2 {
            return Self { mean, half_width: None };
        }
        let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
        let error = (squares / (count - 1) as f64 / count as f64).sqrt();
        Self { mean, half_width: Some(quantile(count - 1) * error) }
    }

    /// Whether the intervals have a value in common; `None` when one of them is not known.
    pub fn overlaps(&self, other: &Self) -> Option<bool> {
        let width = self.half_width? + other.half_width?;
        Some((self.mean - other.mean).abs() <= width)
    }
}

/// Who has the least, and how sure that is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Comparison {
    /// The least, and no other interval overlaps its own.
    Wins {
        /// The index of the winner.
        best: usize,
    },
    /// The least, but not sure: these are not told apart from it.
    Ties {
        /// The index of the least.
        best: usize,
        /// The others.
        with: Vec<usize>,
    },
    /// One seed, runs that draw nothing, or one candidate: nothing to say.
    Unknown,
}

/// Who has the least.
pub fn least(estimates: &[Estimate]) -> Comparison {
    let by_mean = |a: &usize, b: &usize| estimates[*a].mean.total_cmp(&estimates[*b].mean);
    let Some(best) = (0..estimates.len()).min_by(by_mean).filter(|_| estimates.len() > 1) else {
        return Comparison::Unknown;
    };
    let mut with = Vec::new();
    for (index, other) in estimates.iter().enumerate().filter(|(index, _)| *index != best) {
        match estimates[best].overlaps(other) {
            None => return Comparison::Unknown,
            Some(true) => with.push(index),
            Some(false) => {}
        }
    }
    if with.is_empty() { Comparison::Wins { best } } else { Comparison::Ties { best, with } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn nineteen_of_twenty_intervals_hold_the_truth() {
        let mut random = Random::new(1);
        let held = (0..4000).filter(|_| {
            let values: Vec<f64> = (0..5).map(|_| 7.0 + random.normal()).collect();
            let estimate = Estimate::of(&values);
            (estimate.mean - 7.0).abs() <= estimate.half_width.unwrap()
        });
        let held = held.count() as f64 / 4000.0;
        assert!((held - 0.95).abs() < 0.012, "{held}");
    }

    #[test]
    fn intervals_grow_narrower_with_every_seed_and_never_too_narrow() {
        assert!((1..200).all(|degrees| quantile(degrees + 1) < quantile(degrees)));
        for (degrees, exact) in
            [(31, 2.0395), (40, 2.0211), (60, 2.0003), (120, 1.9799), (1000, 1.9623)]
        {
            assert!((quantile(degrees) - exact).abs() < 0.0003, "{degrees}");
        }
    }

    #[test]
    fn a_winner_is_one_whose_interval_no_other_touches() {
        let estimate = |mean, half| Estimate { mean, half_width: Some(half) };
        let two = [estimate(5.0, 0.5), estimate(3.0, 0.4), estimate(3.5, 0.2)];
        assert_eq!(least(&two), Comparison::Ties { best: 1, with: vec![2] });
        assert_eq!(least(&two[..2]), Comparison::Wins { best: 1 });
        assert_eq!(least(&two[..1]), Comparison::Unknown);
        assert_eq!(least(&[Estimate::of(&[1.0]), Estimate::of(&[2.0])]), Comparison::Unknown);
    }
}
