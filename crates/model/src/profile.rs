//! The demands of a storage server: by centre, by block size, and by whether its cache has what is
//! asked for.

use crate::network::{Centre, CentreKind, MOST_CENTRES, Network, time};
use block::{ByteSize, Error, Result};

/// The most block sizes of a demand.
const MOST_SIZES: usize = 64;

/// A demand by block size: points between which it is linear, and whose outermost lines go on.
/// Without any point it is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Demand(Vec<(u64, f64)>);

impl Demand {
    /// The same demand for every block size, in seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is no time.
    pub fn constant(seconds: f64) -> Result<Self> {
        Self::points(vec![(1, seconds)])
    }

    /// A demand by block size (bytes, at least 1), in seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a block size given twice, 0, or no times.
    pub fn points(mut points: Vec<(u64, f64)>) -> Result<Self> {
        points.sort_by_key(|(bytes, _)| *bytes);
        if points.len() > MOST_SIZES {
            return Err(Error::invalid(format!("more than {MOST_SIZES} block sizes of a demand")));
        }
        for (bytes, seconds) in &points {
            let what = match bytes {
                1 => "the demand".to_owned(), // of blocks of any size
                _ => format!("the demand at blocks of {}", ByteSize(*bytes)),
            };
            time(&what, *seconds)?;
        }
        if points.first().is_some_and(|(bytes, _)| *bytes == 0) {
            return Err(Error::invalid("a demand at blocks of no bytes"));
        }
        if let Some(twice) = points.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let size = ByteSize(twice[0].0);
            return Err(Error::invalid(format!("two demands at blocks of {size}: give one")));
        }
        Ok(Self(points))
    }

    /// The points: block size in bytes, demand in seconds; ascending.
    pub fn as_points(&self) -> &[(u64, f64)] {
        &self.0
    }

    /// Whether nobody measured what a block of `block` bytes takes: it lies outside of the sizes that were, or
    /// is not the only one. A demand that is the same for all sizes is known for all.
    pub fn extrapolates(&self, block: u64) -> bool {
        match self.0.as_slice() {
            [] | [(1, _)] => false,
            [(first, _), .., (last, _)] => !(*first..=*last).contains(&block),
            [(only, _)] => *only != block,
        }
    }

    /// The demand at blocks of `block` bytes, in seconds; never negative.
    pub fn at(&self, block: u64) -> f64 {
        match self.0.as_slice() {
            [] => 0.0,
            [(_, seconds)] => *seconds,
            points => {
                let right = points.partition_point(|(bytes, _)| *bytes < block);
                let right = right.clamp(1, points.len() - 1);
                let ((x0, y0), (x1, y1)) = (points[right - 1], points[right]);
                let share = (block as f64 - x0 as f64) / (x1 as f64 - x0 as f64);
                (y0 + (y1 - y0) * share).max(0.0)
            }
        }
    }
}

/// A centre of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct ProfileCentre {
    /// Its name: `cpu`, `disk`, `network`, …
    pub name: String,
    /// How it serves.
    pub kind: CentreKind,
    /// What every request takes.
    pub request: Demand,
    /// What a request takes in addition when the cache has not got it.
    pub miss: Demand,
    /// What each piece of 128 KiB takes in addition, in seconds, that comes from the store into the piece cache;
    /// it is written to the server's disk before anybody is answered. 0 where there is no piece cache.
    pub piece: f64,
}

impl ProfileCentre {
    /// Whether it is the store, or on the way to it: only misses take time here. What a server keeps on its
    /// own disk of a store behind a network, its piece cache, saves this time.
    pub fn is_store(&self) -> bool {
        self.request.as_points().iter().all(|(_, seconds)| *seconds == 0.0)
            && self.miss.as_points().iter().any(|(_, seconds)| *seconds > 0.0)
    }
}

/// The demands of a server.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// Its name, for reports.
    pub name: String,
    /// Its centres.
    pub centres: Vec<ProfileCentre>,
}

/// A hit ratio at which another centre becomes the bottleneck.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Switch {
    /// The hit ratio, 0 to 1.
    pub hit: f64,
    /// The bottleneck below it: an index of the profile's centres.
    pub below: usize,
    /// The bottleneck above it.
    pub above: usize,
}

impl Profile {
    /// The server of Table 1 of the TransCom paper: a processor, a disk and a network interface,
    /// and the client's own time, for blocks of 4 and 32 KiB.
    ///
    /// # Errors
    /// None that can happen: the numbers are times.
    pub fn transcom() -> Result<Self> {
        let points = |small: f64, large: f64| {
            Demand::points(vec![(4 << 10, small * 1e-3), (32 << 10, large * 1e-3)])
        };
        let centre = |name: &str, kind, request, miss| ProfileCentre {
            name: name.to_owned(),
            kind,
            request,
            miss,
            piece: 0.0,
        };
        let none = Demand::default;
        Ok(Self {
            name: "transcom".to_owned(),
            centres: vec![
                centre("cpu", CentreKind::Queue, points(0.1, 0.23)?, none()),
                centre("network", CentreKind::Queue, points(0.17, 0.5)?, none()),
                centre("disk", CentreKind::Queue, none(), points(6.76, 7.2)?),
                centre("client", CentreKind::Delay, points(0.32, 2.56)?, none()),
            ],
        })
    }

    /// Checks names and numbers of centres.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid), naming the centre.
    pub fn check(&self) -> Result<()> {
        if self.centres.is_empty() || self.centres.len() > MOST_CENTRES {
            return Err(Error::invalid(format!(
                "a profile of {} centres: give 1 to {MOST_CENTRES}",
                self.centres.len()
            )));
        }
        for (at, centre) in self.centres.iter().enumerate() {
            let name = &centre.name;
            if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
                return Err(Error::invalid(format!(
                    "centre {name:?}: a name has 1 to 64 bytes and no control characters"
                )));
            }
            time(&format!("a piece at centre {name:?}"), centre.piece)?;
            if self.centres[..at].iter().any(|other| other.name == *name) {
                return Err(Error::invalid(format!("two centres {name:?}: rename one")));
            }
        }
        Ok(())
    }

    /// The demands at blocks of `block` bytes and a hit ratio (0 to 1), in seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a hit ratio or a block size that is none.
    pub fn demands(&self, block: u64, hit: f64) -> Result<Vec<f64>> {
        if !(0.0..=1.0).contains(&hit) {
            return Err(Error::invalid(format!("a hit ratio of {hit}: give 0 to 1")));
        }
        if block == 0 || block > 1 << 30 {
            return Err(Error::invalid(format!(
                "blocks of {}: give a size from 1 byte to 1 GiB",
                ByteSize(block)
            )));
        }
        let demand =
            |centre: &ProfileCentre| centre.request.at(block) + (1.0 - hit) * centre.miss.at(block);
        Ok(self.centres.iter().map(demand).collect())
    }

    /// The network at blocks of `block` bytes, a hit ratio (0 to 1) and a think time in seconds.
    ///
    /// # Errors
    /// Any error from [`demands`](Self::demands) and [`Network::new`].
    pub fn network(&self, block: u64, hit: f64, think: f64) -> Result<Network> {
        let demands = self.demands(block, hit)?;
        let centres = self.centres.iter().zip(demands).map(|(centre, demand)| Centre {
            name: centre.name.clone(),
            kind: centre.kind,
            demand,
        });
        Network::new(think, centres.collect())
    }

    /// The centres at which nobody measured what a request of `block` bytes takes.
    pub fn extrapolated(&self, block: u64) -> impl Iterator<Item = &ProfileCentre> {
        let unknown =
            move |c: &&ProfileCentre| c.request.extrapolates(block) || c.miss.extrapolates(block);
        self.centres.iter().filter(unknown)
    }

    /// The same server, of whose misses only this share, 0 to 1, needs the [store](ProfileCentre::is_store):
    /// its piece cache has what the others ask for.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for another share.
    pub fn with_store_share(&self, share: f64) -> Result<Self> {
        if !(0.0..=1.0).contains(&share) {
            return Err(Error::invalid(format!("a share of {share}: give 0 to 1")));
        }
        let mut profile = self.clone();
        for centre in profile.centres.iter_mut().filter(|centre| centre.is_store()) {
            let points = centre.miss.as_points().iter();
            let small = |seconds: f64| if seconds < 1e-15 { 0.0 } else { seconds };
            centre.miss = Demand::points(points.map(|(b, s)| (*b, small(s * share))).collect())?;
        }
        Ok(profile)
    }

    /// The hit ratios between 0 and 1 at which the bottleneck changes, ascending.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a hit ratio or a block size that is none.
    pub fn switches(&self, block: u64) -> Result<Vec<Switch>> {
        let per_server = |demands: Vec<f64>| -> Vec<f64> {
            let loads = demands.iter().zip(&self.centres);
            loads
                .map(|(demand, c)| c.kind.servers().map_or(0.0, |n| demand / f64::from(n)))
                .collect()
        };
        let cold = per_server(self.demands(block, 0.0)?);
        let warm = per_server(self.demands(block, 1.0)?);
        let at = |k: usize, hit: f64| cold[k] + (warm[k] - cold[k]) * hit;
        let highest = |hit: f64| {
            (0..cold.len()).max_by(|a, b| at(*a, hit).total_cmp(&at(*b, hit))).unwrap_or(0)
        };
        // Demands are straight lines: the bottleneck can change only where two of them cross.
        let mut crossings = vec![0.0, 1.0];
        for a in 0..cold.len() {
            for b in a + 1..cold.len() {
                let hit = (cold[a] - cold[b]) / ((cold[a] - warm[a]) - (cold[b] - warm[b]));
                if hit > 0.0 && hit < 1.0 {
                    crossings.push(hit);
                }
            }
        }
        crossings.sort_by(f64::total_cmp);
        crossings.dedup();
        let spans: Vec<usize> =
            crossings.windows(2).map(|span| highest((span[0] + span[1]) / 2.0)).collect();
        let found = spans.windows(2).zip(&crossings[1..]).filter(|(pair, _)| pair[0] != pair[1]);
        Ok(found.map(|(pair, hit)| Switch { hit: *hit, below: pair[0], above: pair[1] }).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn demands_are_straight_lines_between_and_beyond_the_points() {
        let demand = Demand::points(vec![(32 << 10, 2.56), (4 << 10, 0.32)]).unwrap();
        for kib in [1u64, 4, 8, 16, 32, 64] {
            assert!((demand.at(kib << 10) - 0.08 * kib as f64).abs() < 1e-12);
            assert_eq!(demand.extrapolates(kib << 10), !(4..=32).contains(&kib));
        }
        let single = Demand::points(vec![(4096, 1.0)]).unwrap();
        assert!(!single.extrapolates(4096) && single.extrapolates(32 << 10));
        assert!(!Demand::constant(3.0).unwrap().extrapolates(7));
        let falling = Demand::points(vec![(4096, 1.0), (8192, 0.5)]).unwrap();
        assert_eq!(falling.at(1 << 20), 0.0);
        assert_eq!(Demand::constant(3.0).unwrap().at(7), 3.0);
        assert_eq!(Demand::default().at(7), 0.0);
    }

    #[test]
    fn the_papers_bottleneck_switches_from_disk_to_network() {
        let profile = Profile::transcom().unwrap();
        for (block, hit) in [(4 << 10, 1.0 - 0.17 / 6.76), (32 << 10, 1.0 - 0.5 / 7.2)] {
            let switches = profile.switches(block).unwrap();
            assert_eq!(switches.len(), 1);
            assert!((switches[0].hit - hit).abs() < 1e-12);
            let name = |k: usize| profile.centres[k].name.as_str();
            assert_eq!((name(switches[0].below), name(switches[0].above)), ("disk", "network"));
        }
    }

    #[test]
    fn what_the_store_takes_shrinks_with_the_share_of_misses_that_need_it() {
        let profile = Profile::transcom().unwrap();
        let store = |share| profile.with_store_share(share).unwrap().demands(4096, 0.5).unwrap();
        let (all, half, none) = (store(1.0), store(0.5), store(0.0));
        assert_eq!(all, profile.demands(4096, 0.5).unwrap());
        assert_eq!(
            (all[0], all[1]),
            (half[0], half[1]),
            "processor and network serve hits as well"
        );
        assert!(
            (half[2] / all[2] - 0.5).abs() < 1e-12 && none[2] == 0.0,
            "{all:?} {half:?} {none:?}"
        );
        assert!(profile.with_store_share(1.5).is_err());
    }

    #[test]
    fn senseless_profiles_and_questions_are_refused() {
        let mut profile = Profile::transcom().unwrap();
        profile.check().unwrap();
        for (block, hit) in [(0, 0.5), (4096, -0.1), (4096, 1.1), (4096, f64::NAN), (2 << 30, 0.5)]
        {
            assert!(profile.network(block, hit, 0.0).is_err(), "{block} {hit}");
        }
        assert!(Demand::points(vec![(0, 1.0)]).is_err());
        assert!(Demand::points(vec![(1, 1.0), (1, 2.0)]).is_err());
        assert!(Demand::constant(-1.0).is_err());
        assert!(Demand::constant(f64::INFINITY).is_err());
        profile.centres[1].name = "cpu".into();
        assert!(profile.check().unwrap_err().message().contains("rename"));
        profile.centres[1].name = String::new();
        assert!(profile.check().is_err());
        profile.centres.clear();
        assert!(profile.check().is_err());
    }
}
