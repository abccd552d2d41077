//! A rotating disk into a profile of `bins`.
//!
//! Random reads hardly ever go a short way, good schedulers nearly always do. So reads are stratified:
//! the same number for each quarter of an octave of distance, in random order, forwards and backwards.

use super::line::{SeekLine, lines};
use super::{FitError, MeasuredAccess, Probe, compare, mean};
use crate::model::bins::{self, Bins};
use crate::model::spread::Spread;
use crate::{CacheShape, DiskRequest, Profile, Random, SegmentCache};
use block::{Error, Result};
use serde::Serialize;

/// Sectors of a read.
const READ: u32 = 8;

/// Quantiles of a distribution.
const QUANTILES: usize = 33;

/// The most segments and sectors of read-ahead that are looked for.
const SEGMENTS: u32 = 512;
const PREFETCH: u32 = 8192;

/// What a calibration found.
#[derive(Clone, Debug, Serialize)]
pub struct Rotating {
    /// The profile.
    pub profile: Profile,
    /// The seed's line through random reads.
    pub line: SeekLine,
    /// The line through their moving average.
    pub smooth_line: SeekLine,
    /// The moving average, thinned: part of the disk, milliseconds (Figure 1).
    pub figure: Vec<(f64, f64)>,
    /// How well the profile fits reads that it was not fitted to.
    pub fit: Vec<FitError>,
    /// The mean of those reads, measured and by the model.
    pub mean: (f64, f64),
}

/// A calibration under way.
struct RotatingCalibration<'a> {
    probe: &'a mut dyn Probe,
    random: Random,
    sectors: u64,
    head: u64,
    done: f64,
    total: f64,
}

impl RotatingCalibration<'_> {
    fn read(&mut self, start: u64, sectors: u32) -> Result<f64> {
        let ms = self.probe.read(start, sectors)?;
        self.head = start + u64::from(sectors);
        self.done += 1.0;
        if (self.done as u64).is_multiple_of(256) {
            self.probe.progress((self.done / self.total).min(1.0));
        }
        Ok(ms)
    }

    /// A place somewhere, for a read of so many sectors.
    fn anywhere(&mut self, sectors: u32) -> u64 {
        self.random.below(self.sectors - u64::from(sectors))
    }

    /// Reads somewhere else.
    fn read_elsewhere(&mut self) -> Result<()> {
        let place = self.anywhere(READ);
        self.read(place, READ).map(drop)
    }

    /// Times of reads that are out of the cache for sure: each place read twice.
    fn hits(&mut self, count: usize) -> Result<Vec<f64>> {
        let mut times = Vec::with_capacity(count);
        for _ in 0..count {
            let place = self.anywhere(READ);
            self.read(place, READ)?;
            times.push(self.read(place, READ)?);
        }
        Ok(times)
    }

    /// Whether reads of what `prepare` leaves behind are answered by the cache on board, by most of
    /// five tries.
    fn cached(
        &mut self,
        limit: f64,
        mut attempt: impl FnMut(&mut Self) -> Result<f64>,
    ) -> Result<bool> {
        let mut hits = 0;
        for _ in 0..5 {
            hits += u32::from(attempt(self)? < limit);
        }
        Ok(hits >= 3)
    }

    /// The shape of the cache on board: reads shorter than `limit` milliseconds are hits.
    fn cache(&mut self, limit: f64) -> Result<CacheShape> {
        // The farthest sector behind a read that is there too. The arm goes away before it is looked
        // for: just behind the head, a miss may be as fast as a hit.
        let prefetch = self.largest(PREFETCH, |work, far| {
            work.cached(limit, |work| {
                let place = work.anywhere(2 * PREFETCH);
                work.read(place, READ)?;
                work.read_elsewhere()?;
                work.read(place + u64::from(READ) + u64::from(far) - 1, 1)
            })
        })?;
        // How many other reads leave a span where it is.
        let others = self.largest(SEGMENTS, |work, others| {
            work.cached(limit, |work| {
                let place = work.anywhere(READ);
                work.read(place, READ)?;
                (0..others).try_for_each(|_| work.read_elsewhere())?;
                work.read(place, READ)
            })
        })?;
        // How much of a long read is kept: the end.
        let length = self.largest(PREFETCH, |work, back| {
            work.cached(limit, |work| {
                let place = work.anywhere(2 * PREFETCH);
                work.read(place, PREFETCH)?;
                work.read_elsewhere()?;
                work.read(place + u64::from(PREFETCH - back), 1)
            })
        })?;
        let segments = others + 1;
        let (prefetch_sectors, kept) = (prefetch, length.max(READ));
        Ok(CacheShape { segments, segment_sectors: kept + prefetch, prefetch_sectors })
    }

    /// The largest number up to `most` for which it holds, if it holds for all smaller ones.
    fn largest(
        &mut self,
        most: u32,
        mut holds: impl FnMut(&mut Self, u32) -> Result<bool>,
    ) -> Result<u32> {
        let (mut low, mut high) = (0, 1);
        while high <= most && holds(self, high)? {
            (low, high) = (high, high * 2);
        }
        high = high.min(most + 1);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            match holds(self, middle)? {
                true => low = middle,
                false => high = middle,
            }
        }
        Ok(low)
    }

    /// Reads at these distances, without those that the cache on board answers.
    fn accesses(&mut self, distances: Vec<u64>, shape: CacheShape) -> Result<Vec<MeasuredAccess>> {
        let mut shadow = SegmentCache::new(shape);
        let mut accesses = Vec::with_capacity(distances.len());
        for wanted in distances {
            let last = self.sectors - u64::from(READ);
            let forwards = self.random.unit() < 0.5;
            let (above, below) = (self.head + wanted, self.head.checked_sub(wanted));
            let place = match (forwards, below) {
                (false, Some(below)) => below.min(last),
                _ if above <= last => above,
                (_, Some(below)) => below.min(last),
                // So far it cannot go from here.
                _ => self.anywhere(READ),
            };
            let distance = self.head.abs_diff(place);
            let hit = shadow.holds(place, place + u64::from(READ));
            let head = self.head;
            let ms = self.read(place, READ)?;
            if hit {
                // The arm stayed where it was.
                self.head = head;
            }
            shadow.read(&DiskRequest { start: place, sectors: READ, ..DiskRequest::default() });
            if !hit {
                accesses.push(MeasuredAccess { distance, ms });
            }
        }
        Ok(accesses)
    }

    /// So many distances for each bin, in random order.
    fn strata(&mut self, per_bin: usize) -> Vec<u64> {
        let mut distances = Vec::new();
        for bin in 0..=bins::bin(self.sectors - 1) {
            let (from, to) = bins::distances(bin);
            let to = to.min(self.sectors);
            for _ in 0..per_bin {
                distances.push(from + self.random.below(to.saturating_sub(from).max(1)));
            }
        }
        for i in (1..distances.len()).rev() {
            distances.swap(i, self.random.below(i as u64 + 1) as usize);
        }
        distances
    }

    /// Microseconds for each sector more of a read.
    fn transfer(&mut self, count: usize) -> Result<f64> {
        const LONG: u32 = 1024;
        let mut sums = [0.0; 2];
        for _ in 0..count {
            for (sum, sectors) in sums.iter_mut().zip([READ, LONG]) {
                let place = self.anywhere(LONG);
                *sum += self.read(place, sectors)?;
            }
        }
        Ok(((sums[1] - sums[0]) / count as f64 / f64::from(LONG - READ) * 1e3).max(0.0))
    }
}

/// Calibrates a rotating disk with `per_bin` reads of each bin of distance and twice as many in all at
/// random places. Only reads.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when it is smaller than 64 MiB or fewer than 20 reads are to
/// be made of each bin; any error from the probe.
pub fn calibrate(
    probe: &mut dyn Probe,
    name: &str,
    source: &str,
    per_bin: usize,
    seed: u64,
) -> Result<Rotating> {
    let sectors = probe.sectors();
    if sectors < 1 << 17 {
        return Err(Error::invalid("smaller than 64 MiB: too small to tell distances apart"));
    }
    if per_bin < 20 {
        return Err(Error::invalid("give at least 20 reads for each distance"));
    }
    let bins_used = bins::bin(sectors - 1) + 1;
    let total = (bins_used * per_bin * 5) as f64 + 3000.0;
    let random = Random::new(seed);
    let mut work = RotatingCalibration { probe, random, sectors, head: 0, done: 0.0, total };
    let mut hits = work.hits(200)?;
    let far: Vec<f64> = (0..100)
        .map(|_| {
            let place = work.anywhere(READ);
            work.read(place, READ)
        })
        .collect::<Result<_>>()?;
    hits.sort_by(f64::total_cmp);
    let middle = hits[hits.len() / 2];
    // Half-way between a hit and the fastest accesses; a disk whose cache is off has no hits.
    let mut sorted = far.clone();
    sorted.sort_by(f64::total_cmp);
    let limit = (middle + sorted[5]) / 2.0;
    let cache_on = middle < mean(&far) * 0.4;
    let shape = if cache_on { work.cache(limit)? } else { CacheShape::default() };
    let strata = work.strata(per_bin);
    let accesses = work.accesses(strata, shape)?;
    let count = bins_used * per_bin;
    let random_distances = |work: &mut RotatingCalibration<'_>| {
        (0..count)
            .map(|_| work.random.below(sectors).abs_diff(work.random.below(sectors)))
            .collect()
    };
    let places: Vec<u64> = random_distances(&mut work);
    let random_reads = work.accesses(places, shape)?;
    let sector_us = work.transfer(per_bin.max(200))?;
    match cache_on {
        true => hits.retain(|ms| *ms < limit),
        false => hits.clear(),
    }
    let hit_ms = Spread::of(&mut hits, QUANTILES).unwrap_or(Spread::Fixed(0.0));
    let bins = fit(&accesses, bins_used, sector_us, hit_ms)?;
    let profile = Profile {
        name: name.to_owned(),
        about: format!("measured: {} reads by distance", accesses.len()),
        source: source.to_owned(),
        size: format!("{sectors}s"),
        cache: cache_on.then_some(shape),
        linear: None,
        bins: Some(bins),
        mechanical: None,
        ssd: None,
        network: None,
    };
    report(profile, &random_reads, sectors, seed)
}

/// Distributions by distance. A bin without reads takes the distribution of the nearest one below.
fn fit(accesses: &[MeasuredAccess], count: usize, sector_us: f64, hit_ms: Spread) -> Result<Bins> {
    let mut times = vec![Vec::new(); count];
    for access in accesses {
        times[bins::bin(access.distance).min(count - 1)].push(access.ms);
    }
    let mut access_ms: Vec<Spread> = Vec::with_capacity(count);
    let first = times.iter().position(|bin| bin.len() > 4);
    let first = first.ok_or_else(|| Error::invalid("no read went to the disk itself"))?;
    for index in 0..count {
        let from = if times[index].len() > 4 { index } else { first };
        let spread = match access_ms.last() {
            Some(last) if from != index => last.clone(),
            _ => Spread::of(&mut times[from].clone(), QUANTILES).unwrap_or(Spread::Fixed(0.0)),
        };
        access_ms.push(spread);
    }
    Ok(Bins { access_ms, measured_sectors: READ, sector_us, hit_ms })
}

/// How well it fits.
fn report(profile: Profile, reads: &[MeasuredAccess], sectors: u64, seed: u64) -> Result<Rotating> {
    let mut model = profile.model()?;
    let mut random = Random::new(seed ^ 1);
    let mut measured: Vec<f64> = reads.iter().map(|a| a.ms).collect();
    let mut modelled: Vec<f64> = Vec::with_capacity(reads.len());
    for read in reads {
        let start = read.distance.min(sectors - u64::from(READ));
        let request = DiskRequest { start, sectors: READ, ..DiskRequest::default() };
        modelled.push(model.access(0, 0, &request, &mut random) as f64 * 1e-6);
    }
    let means = (mean(&measured), mean(&modelled));
    let fit = compare(&mut measured, &mut modelled);
    let (line, smooth_line, smooth) = lines(reads, sectors);
    let every = (smooth.len() / 400).max(1);
    let figure = smooth.into_iter().step_by(every).collect();
    Ok(Rotating { profile, line, smooth_line, figure, fit, mean: means })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::simulated::SimulatedDisk;

    fn found(name: &str) -> Rotating {
        let truth = Profile::named(name).unwrap();
        let mut probe = SimulatedDisk::new(truth.model().unwrap(), 3);
        calibrate(&mut probe, "found", "a test", 200, 1).unwrap()
    }

    #[test]
    fn the_cache_on_board_is_found_again() {
        let found = found("cheetah-15k4-mechanical");
        let cache = found.profile.cache.unwrap();
        assert_eq!((cache.segments, cache.prefetch_sectors), (64, 64));
        assert_eq!(cache.segment_sectors, 221);
        let bins = found.profile.bins.as_ref().unwrap();
        assert!((bins.hit_ms.mean() - 0.25).abs() < 0.01, "{:?}", bins.hit_ms);
        // 4 ms for 704 sectors.
        assert!((bins.sector_us - 5.68).abs() < 0.6, "{}", bins.sector_us);
    }

    #[test]
    fn reads_that_it_was_not_fitted_to_have_the_percentiles_of_the_model() {
        let found = found("cheetah-15k4-mechanical");
        assert!((found.mean.1 / found.mean.0 - 1.0).abs() < 0.03, "{:?}", found.mean);
        for fit in &found.fit {
            assert!((fit.model_ms / fit.measured_ms - 1.0).abs() < 0.06, "{fit:?}");
        }
        assert!(found.line.r2 < found.smooth_line.r2 && !found.figure.is_empty());
    }

    #[test]
    fn the_seeds_line_is_found_again_on_the_seeds_model() {
        let found = found("cheetah-15k4");
        assert!((found.line.base_ms - 4.25).abs() < 0.02, "{:?}", found.line);
        assert!((found.line.seek_ms - 5.25).abs() < 0.05, "{:?}", found.line);
    }

    #[test]
    fn a_disk_without_a_cache_has_none_in_its_profile() {
        let mut truth = Profile::named("cheetah-15k4").unwrap();
        truth.cache = None;
        let mut probe = SimulatedDisk::new(truth.model().unwrap(), 3);
        let found = calibrate(&mut probe, "found", "a test", 50, 1).unwrap();
        assert_eq!(found.profile.cache, None);
    }
}
