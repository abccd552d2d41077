//! Flash into a profile of `ssd`: reads of several sizes one at a time, then of one size at several
//! depths. Only reads, so writes are taken to be as fast as reads.

use super::{FitError, Probe, compare};
use crate::model::spread::Spread;
use crate::model::ssd::{Affine, Ssd};
use crate::{Profile, Random};
use block::{Error, Result};
use serde::Serialize;

/// Sectors of reads: 4 KiB to 1 MiB.
const SIZES: [u32; 5] = [8, 32, 128, 512, 2048];

/// Reads in flight.
const DEPTHS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Quantiles of a distribution: so many that the 99th percentile is one of them.
const QUANTILES: usize = 101;

/// What a calibration found.
#[derive(Clone, Debug, Serialize)]
pub struct Flash {
    /// The profile.
    pub profile: Profile,
    /// The median by size: bytes, milliseconds measured, milliseconds of the model.
    pub sizes: Vec<(u64, f64, f64)>,
    /// Reads of 4 KiB per second by depth, measured and by the model.
    pub depths: Vec<(usize, f64, f64)>,
    /// How well the profile fits reads of 4 KiB that it was not fitted to.
    pub fit: Vec<FitError>,
}

fn place(random: &mut Random, disk: u64, sectors: u32) -> u64 {
    random.below((disk - u64::from(sectors)) / 8) * 8
}

/// Milliseconds of `count` reads of one size, one after the other.
fn alone(
    probe: &mut dyn Probe,
    random: &mut Random,
    sectors: u32,
    count: usize,
) -> Result<Vec<f64>> {
    let disk = probe.sectors();
    (0..count).map(|_| probe.read(place(random, disk, sectors), sectors)).collect()
}

/// Base and slope through medians, each weighed by its own size, so that short reads count as long
/// ones.
fn affine(medians: &[(f64, f64)]) -> (f64, f64) {
    let (mut w, mut x, mut y, mut xx, mut xy) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (size, ms) in medians {
        let weight = 1.0 / (ms * ms).max(1e-12);
        w += weight;
        x += weight * size;
        y += weight * ms;
        xx += weight * size * size;
        xy += weight * size * ms;
    }
    let slope = ((w * xy - x * y) / (w * xx - x * x).max(1e-12)).max(0.0);
    (((y - slope * x) / w).max(0.0), slope)
}

/// Calibrates flash with `count` reads of each size and depth. Only reads.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is smaller than 64 MiB or `count` below 20; any error from
/// the probe.
pub fn calibrate(
    probe: &mut dyn Probe,
    name: &str,
    source: &str,
    count: usize,
    seed: u64,
) -> Result<Flash> {
    let disk = probe.sectors();
    if disk < 1 << 17 || count < 20 {
        return Err(Error::invalid("give a device of at least 64 MiB, and at least 20 reads"));
    }
    let mut random = Random::new(seed);
    let steps = (SIZES.len() + DEPTHS.len() + 1) as f64;
    let mut medians = Vec::new();
    let mut short = Vec::new();
    for (step, sectors) in SIZES.into_iter().enumerate() {
        let mut times = alone(probe, &mut random, sectors, count)?;
        times.sort_by(f64::total_cmp);
        medians.push((f64::from(sectors) / 2.0, times[times.len() / 2]));
        if step == 0 {
            short = times;
        }
        probe.progress((step + 1) as f64 / steps);
    }
    let (base, slope) = affine(&medians);
    let expected = base + slope * f64::from(SIZES[0]) / 2.0;
    let mut factors: Vec<f64> = short.iter().map(|ms| ms / expected.max(1e-9)).collect();
    let spread = Spread::of(&mut factors, QUANTILES).unwrap_or(Spread::Fixed(1.0));
    let service = expected * spread.mean();
    let mut rates = Vec::new();
    for (step, depth) in DEPTHS.into_iter().enumerate() {
        let reads = count * depth.min(8);
        let starts: Vec<u64> = (0..reads).map(|_| place(&mut random, disk, SIZES[0])).collect();
        let ms = probe.read_many(&starts, SIZES[0], depth)?;
        rates.push((depth, reads as f64 / ms.max(1e-9)));
        probe.progress((SIZES.len() + step + 1) as f64 / steps);
    }
    let best = rates.iter().map(|(_, rate)| *rate).fold(0.0, f64::max);
    let servers = (best * service).round().clamp(1.0, 1024.0) as u32;
    let read = Affine { base_us: base * 1e3, kib_us: slope * 1e3 };
    let ssd = Ssd { servers, read, write: read, spread: spread.clone(), write_buffer: None };
    let profile = Profile {
        name: name.to_owned(),
        about: "measured: reads by size and depth; writes were not, and are taken to be as reads"
            .into(),
        source: source.to_owned(),
        size: format!("{disk}s"),
        cache: None,
        linear: None,
        bins: None,
        mechanical: None,
        ssd: Some(ssd),
        network: None,
    };
    profile.model()?;
    let mut measured = alone(probe, &mut random, SIZES[0], count)?;
    let mut modelled: Vec<f64> =
        measured.iter().map(|_| expected * spread.sample(&mut random)).collect();
    probe.progress(1.0);
    let sizes = medians.iter().map(|(kib, ms)| ((kib * 1024.0) as u64, *ms, base + slope * kib));
    let depths = rates.iter().map(|(depth, rate)| {
        let model = (*depth).min(servers as usize) as f64 / service;
        (*depth, rate * 1e3, model * 1e3)
    });
    Ok(Flash {
        profile,
        sizes: sizes.collect(),
        depths: depths.collect(),
        fit: compare(&mut measured, &mut modelled),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::simulated::SimulatedDisk;

    #[test]
    fn a_modelled_ssd_is_found_again() {
        for name in ["ssd-sata", "ssd-nvme"] {
            let truth = Profile::named(name).unwrap();
            let mut probe = SimulatedDisk::new(truth.model().unwrap(), 3);
            let found = calibrate(&mut probe, "x", "a test", 2000, 1).unwrap();
            let (truth, ssd) = (truth.ssd.unwrap(), found.profile.ssd.clone().unwrap());
            assert!((ssd.read.base_us / truth.read.base_us - 1.0).abs() < 0.05, "{ssd:?}");
            assert!((ssd.read.kib_us / truth.read.kib_us - 1.0).abs() < 0.05, "{ssd:?}");
            assert!(ssd.servers.abs_diff(truth.servers) <= truth.servers / 10, "{}", ssd.servers);
            for fit in &found.fit {
                assert!((fit.model_ms / fit.measured_ms - 1.0).abs() < 0.05, "{fit:?}");
            }
        }
    }

    #[test]
    fn a_tail_of_two_in_a_hundred_keeps_its_99th_percentile() {
        let mut truth = Profile::named("ssd-nvme").unwrap();
        let mut factors: Vec<f64> = (0..98).map(|i| 0.9 + f64::from(i) * 0.003).collect();
        factors.extend([8.0, 9.0, 30.0]);
        truth.ssd.as_mut().unwrap().spread = Spread::Quantiles(factors);
        let mut probe = SimulatedDisk::new(truth.model().unwrap(), 3);
        let found = calibrate(&mut probe, "x", "a test", 10_000, 1).unwrap();
        let fit = found.fit.iter().find(|fit| fit.percentile == 99.0).unwrap();
        assert!((0.7..1.35).contains(&(fit.model_ms / fit.measured_ms)), "{fit:?}");
    }
}
