//! The seed's line: milliseconds by distance, least squares, with and without the moving average of
//! 1001 points that the seed draws it through (section 5). The average makes the same line and a
//! better-looking R2: what an access takes varies as much as before.

use super::MeasuredAccess;
use serde::Serialize;

/// A line through accesses.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct SeekLine {
    /// Milliseconds at distance 0.
    pub base_ms: f64,
    /// Milliseconds more over the whole disk.
    pub seek_ms: f64,
    /// The part of the variance that the line explains.
    pub r2: f64,
}

/// Points on both sides of the moving average.
const REACH: usize = 500;

fn least_squares(points: &[(f64, f64)]) -> SeekLine {
    let n = points.len().max(1) as f64;
    let mean_x = points.iter().map(|p| p.0).sum::<f64>() / n;
    let mean_y = points.iter().map(|p| p.1).sum::<f64>() / n;
    let xy: f64 = points.iter().map(|p| (p.0 - mean_x) * (p.1 - mean_y)).sum();
    let xx: f64 = points.iter().map(|p| (p.0 - mean_x).powi(2)).sum();
    let yy: f64 = points.iter().map(|p| (p.1 - mean_y).powi(2)).sum();
    let seek_ms = if xx > 0.0 { xy / xx } else { 0.0 };
    let r2 = if xx * yy > 0.0 { xy * xy / xx / yy } else { 0.0 };
    SeekLine { base_ms: mean_y - seek_ms * mean_x, seek_ms, r2 }
}

/// The line through the accesses, the one through their moving average, and that average: distances
/// as parts of the disk, and milliseconds.
pub fn lines(accesses: &[MeasuredAccess], sectors: u64) -> (SeekLine, SeekLine, Vec<(f64, f64)>) {
    let mut points: Vec<(f64, f64)> =
        accesses.iter().map(|a| (a.distance as f64 / sectors as f64, a.ms)).collect();
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let raw = least_squares(&points);
    // Sums up to each point, so that an average is a difference.
    let mut sums = vec![0.0];
    for (_, ms) in &points {
        sums.push(sums[sums.len() - 1] + ms);
    }
    let smooth: Vec<(f64, f64)> = points
        .iter()
        .enumerate()
        .map(|(i, (x, _))| {
            let (from, to) = (i.saturating_sub(REACH), (i + REACH + 1).min(points.len()));
            (*x, (sums[to] - sums[from]) / (to - from) as f64)
        })
        .collect();
    (raw, least_squares(&smooth), smooth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    #[test]
    fn the_moving_average_changes_r2_and_not_the_line() {
        let mut random = Random::new(1);
        let accesses: Vec<MeasuredAccess> = (0..50_000)
            .map(|_| {
                let distance = random.below(1000) + random.below(1000);
                let ms = 4.25 + 5.25 * distance as f64 / 2000.0 + 4.0 * (random.unit() - 0.5);
                MeasuredAccess { distance, ms }
            })
            .collect();
        let (raw, smooth, _) = lines(&accesses, 2000);
        assert!((raw.base_ms - 4.25).abs() < 0.05 && (raw.seek_ms - 5.25).abs() < 0.1, "{raw:?}");
        assert!((raw.base_ms - smooth.base_ms).abs() < 0.05);
        assert!(raw.r2 < 0.7 && smooth.r2 > 0.95, "{raw:?} {smooth:?}");
    }
}
