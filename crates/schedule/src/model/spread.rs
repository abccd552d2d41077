//! A distribution given by its quantiles.

use crate::Random;
use serde::{Deserialize, Serialize};

/// A number, or its quantiles at even steps from the least to the greatest: `0.25` is always 0.25;
/// `[0.1, 0.2, 0.9]` is from 0.1 to 0.9 with the median 0.2. Between quantiles it is uniform.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Spread {
    /// Always the same.
    Fixed(f64),
    /// At least two quantiles, ascending.
    Quantiles(Vec<f64>),
}

/// The most quantiles of one distribution.
const MOST: usize = 1001;

impl Spread {
    /// What is wrong with it as a distribution of numbers from `least` to `most`, if anything.
    pub(crate) fn fault(&self, least: f64, most: f64) -> Option<String> {
        let fits = |v: &f64| v.is_finite() && (least..=most).contains(v);
        match self {
            Self::Fixed(value) if fits(value) => None,
            Self::Fixed(value) => Some(format!("is {value}; give {least} to {most}")),
            Self::Quantiles(all) if all.len() < 2 || all.len() > MOST => {
                Some(format!("has {} quantiles; give 2 to {MOST}", all.len()))
            }
            Self::Quantiles(all) if !all.iter().all(fits) => {
                Some(format!("has a quantile outside {least} to {most}"))
            }
            Self::Quantiles(all) if !all.is_sorted() => {
                Some("has quantiles that are not ascending".to_owned())
            }
            Self::Quantiles(_) => None,
        }
    }

    /// The quantiles of these values, at most `count` of them; `None` without values.
    pub fn of(values: &mut [f64], count: usize) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        if count < 2 || last == 0 {
            return Some(Self::Fixed(values[last / 2]));
        }
        // A quantile in the middle of what it stands for keeps the mean.
        let at = |i: usize| {
            let place = i as f64 / (count - 1) as f64 * last as f64;
            let low = place.floor() as usize;
            let part = place - low as f64;
            values[low] + (values[(low + 1).min(last)] - values[low]) * part
        };
        Some(Self::Quantiles((0..count).map(at).collect()))
    }

    /// Its mean.
    pub fn mean(&self) -> f64 {
        match self {
            Self::Fixed(value) => *value,
            Self::Quantiles(all) => {
                let pairs = all.windows(2).map(|w| (w[0] + w[1]) / 2.0).sum::<f64>();
                pairs / (all.len() - 1).max(1) as f64
            }
        }
    }

    /// The value below which `part` (0 to 1) of it lies.
    pub fn quantile(&self, part: f64) -> f64 {
        match self {
            Self::Fixed(value) => *value,
            Self::Quantiles(all) => {
                let place = part.clamp(0.0, 1.0) * (all.len() - 1) as f64;
                let low = (place as usize).min(all.len().saturating_sub(2));
                all[low] + (all[low + 1] - all[low]) * (place - low as f64)
            }
        }
    }

    /// Draws from it.
    pub fn sample(&self, random: &mut Random) -> f64 {
        match self {
            Self::Fixed(value) => *value,
            Self::Quantiles(_) => self.quantile(random.unit()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_drawn_has_the_mean_and_the_quantiles() {
        let spread = Spread::Quantiles(vec![1.0, 2.0, 10.0]);
        assert_eq!(spread.mean(), (1.5 + 6.0) / 2.0);
        assert_eq!((spread.quantile(0.25), spread.quantile(1.0)), (1.5, 10.0));
        let mut random = Random::new(1);
        let drawn = (0..100_000).map(|_| spread.sample(&mut random)).sum::<f64>() / 1e5;
        assert!((drawn - spread.mean()).abs() < 0.03, "{drawn}");
    }

    #[test]
    fn quantiles_of_many_values_keep_their_mean() {
        let mut random = Random::new(2);
        let mut values: Vec<f64> = (0..10_000).map(|_| random.exponential(3.0)).collect();
        let mean = values.iter().sum::<f64>() / 1e4;
        let spread = Spread::of(&mut values, 101).unwrap();
        assert!((spread.mean() / mean - 1.0).abs() < 0.03);
        assert_eq!(Spread::of(&mut [], 5), None);
        assert_eq!(Spread::of(&mut [2.0], 5), Some(Spread::Fixed(2.0)));
    }

    #[test]
    fn what_is_no_distribution_is_told() {
        for bad in [vec![1.0], vec![2.0, 1.0], vec![0.0, f64::NAN], vec![-1.0, 1.0]] {
            assert!(Spread::Quantiles(bad.clone()).fault(0.0, 10.0).is_some(), "{bad:?}");
        }
        assert_eq!(Spread::Fixed(0.0).fault(0.0, 1.0), None);
    }
}
