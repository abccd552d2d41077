//! How many clients a server holds, and what to buy next: a [`Profile`] joined with the hit ratio
//! of its cache by size.

use crate::network::{
    CentreKind, MOST_CLIENTS, MOST_CLIENTS_SERVERS, MOST_SERVERS, Network, Solution,
};
use crate::profile::{Demand, Profile};
use block::{Error, Result};

/// The most steps of solving for each number of clients anew.
const MOST_STEPS: u64 = 4_000_000;

/// Hit ratio by cache size: linear between the points, from 0 at size 0, level behind the last.
#[derive(Clone, Debug, PartialEq)]
pub struct HitCurve(Vec<(u64, f64)>);

impl HitCurve {
    /// A curve of these points: cache size in bytes, hit ratio 0 to 1.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) without points, and for ratios that are none.
    pub fn new(mut points: Vec<(u64, f64)>) -> Result<Self> {
        points.sort_by_key(|(size, _)| *size);
        points.dedup_by_key(|(size, _)| *size);
        if points.is_empty() {
            return Err(Error::invalid("a hit-ratio curve without points"));
        }
        if let Some((size, hit)) = points.iter().find(|(_, hit)| !(0.0..=1.0).contains(hit)) {
            return Err(Error::invalid(format!("a hit ratio of {hit} at {size} bytes")));
        }
        Ok(Self(points))
    }

    /// Reads lines of a size in bytes, a comma and a hit ratio, 0 to 1. Further columns, empty lines,
    /// those that begin with `#`, and names of columns in the first line are passed over.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) with the line, or as [`new`](Self::new).
    pub fn parse(text: &str) -> Result<Self> {
        let mut points = Vec::new();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut fields = line.split(',').map(str::trim);
            let point = (|| {
                let size = fields.next()?.parse::<u64>().ok()?;
                Some((size, fields.next()?.parse::<f64>().ok()?))
            })();
            match point {
                Some(point) => points.push(point),
                None if points.is_empty() && number == 0 => {} // names of columns
                None => {
                    return Err(Error::invalid(format!(
                        "line {}: not a size in bytes, a comma and a hit ratio",
                        number + 1
                    )));
                }
            }
        }
        Self::new(points)
    }

    /// The hit ratio of a cache of `size` bytes.
    pub fn at(&self, size: u64) -> f64 {
        let right = self.0.partition_point(|(bytes, _)| *bytes < size);
        let Some((x1, y1)) = self.0.get(right).copied() else {
            return self.0.last().map_or(0.0, |(_, hit)| *hit);
        };
        let (x0, y0) = if right == 0 { (0, 0.0) } else { self.0[right - 1] };
        if x1 == x0 {
            return y1;
        }
        y0 + (y1 - y0) * (size - x0) as f64 / (x1 - x0) as f64
    }
}

/// How the clients of a cache share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSharing {
    /// All ask for the same data, as machines of one golden image do: more clients need no more
    /// cache.
    Shared,
    /// Each asks for data of its own: the cache of a curve that comes from so many clients is
    /// divided among more of them.
    Private {
        /// The clients that the curve comes from, at least 1.
        clients: u32,
    },
}

/// The hit ratios of a server's cache by the number of its clients.
#[derive(Clone, Debug, PartialEq)]
pub enum Hits {
    /// The same for all.
    Same(f64),
    /// For 1, 2, 3, … clients; never rising.
    By(Vec<f64>),
}

impl Hits {
    /// The hit ratios of a cache of `memory` bytes for up to `most` clients, when a share of all requests
    /// (`never`, 0 to 1) never misses, such as writes.
    pub fn of(curve: &HitCurve, memory: u64, sharing: CacheSharing, never: f64, most: u32) -> Self {
        let effective = |memory: u64| never + (1.0 - never) * curve.at(memory);
        match sharing {
            CacheSharing::Shared => Self::Same(effective(memory)),
            CacheSharing::Private { clients } => {
                let each = |n: u32| memory as f64 * f64::from(clients.max(1)) / f64::from(n);
                // Linear interpolation of a curve that has steps is not always monotone.
                let mut lowest: f64 = 1.0;
                let by = (1..=most).map(|n| {
                    lowest = lowest.min(effective(each(n) as u64));
                    lowest
                });
                Self::By(by.collect())
            }
        }
    }

    /// The hit ratio with so many clients (from 1 on).
    pub fn at(&self, clients: u32) -> f64 {
        match self {
            Self::Same(hit) => *hit,
            Self::By(all) => {
                let index = (clients.max(1) as usize - 1).min(all.len().saturating_sub(1));
                all.get(index).copied().unwrap_or(0.0)
            }
        }
    }
}

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityQuestion {
    /// Bytes of a request.
    pub block: u64,
    /// Seconds between an answer and the next request of a client.
    pub think: f64,
    /// The mean response that is still good, in seconds.
    pub target: f64,
    /// The most clients that matter.
    pub most: u32,
}

/// A server with a cache of some size.
#[derive(Clone, Debug, PartialEq)]
pub struct ServerCapacity {
    /// The hit ratio with so many clients as it holds (with one, when it holds none).
    pub hit: f64,
    /// The network at that hit ratio.
    pub network: Network,
    /// The solutions for 1, 2, … `most` clients.
    pub solutions: Vec<Solution>,
    /// How many clients get the response asked for; 0: not even one. At most `most`.
    pub clients: u32,
}

/// A change that makes a server faster, and how many clients it then holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Purchase {
    /// What is changed.
    pub what: Upgrade,
    /// How many clients get the response asked for.
    pub clients: u32,
}

/// A change of a server.
#[derive(Clone, Debug, PartialEq)]
pub enum Upgrade {
    /// Twice the memory.
    Memory,
    /// The centre of this name twice as fast; with several servers: twice as many.
    Centre(String),
}

impl CapacityQuestion {
    /// A server with this profile whose cache has these hit ratios.
    ///
    /// # Errors
    /// Any error from [`Profile::network`] and [`Network::sweep`].
    pub fn answer(&self, profile: &Profile, hits: &Hits) -> Result<ServerCapacity> {
        let network = |n: u32| profile.network(self.block, hits.at(n), self.think);
        let solutions = match hits {
            Hits::Same(_) => network(1)?.sweep(self.most)?,
            Hits::By(_) => {
                let steps = u64::from(self.most) * u64::from(self.most);
                if steps > MOST_STEPS {
                    return Err(Error::invalid(format!(
                        "{} clients with data of their own: at most {} are computed",
                        self.most,
                        MOST_STEPS.isqrt()
                    )));
                }
                (1..=self.most).map(|n| network(n)?.solve(n)).collect::<Result<_>>()?
            }
        };
        // The response of a closed network never falls with more clients.
        let clients = solutions.partition_point(|one| one.response <= self.target) as u32;
        let hit = hits.at(clients);
        Ok(ServerCapacity { hit, network: network(clients.max(1))?, solutions, clients })
    }

    /// What each change brings, best first; those that bring nothing are left out. `twice` is the server
    /// with twice the memory, and its hit ratios.
    ///
    /// # Errors
    /// Any error from [`answer`](Self::answer).
    pub fn purchases(
        &self,
        profile: &Profile,
        hits: &Hits,
        twice: (&Profile, &Hits),
    ) -> Result<Vec<Purchase>> {
        let now = self.answer(profile, hits)?.clients;
        let memory = self.answer(twice.0, twice.1)?.clients;
        let mut all = vec![Purchase { what: Upgrade::Memory, clients: memory }];
        for at in 0..profile.centres.len() {
            let mut better = profile.clone();
            let centre = &mut better.centres[at];
            match centre.kind {
                CentreKind::Delay => continue,
                CentreKind::Queue => {
                    centre.request = halved(&centre.request)?;
                    centre.miss = halved(&centre.miss)?;
                }
                CentreKind::Servers(count) => {
                    centre.kind = CentreKind::Servers((count * 2).min(MOST_SERVERS));
                }
            }
            let what = Upgrade::Centre(centre.name.clone());
            all.push(Purchase { what, clients: self.answer(&better, hits)?.clients });
        }
        all.retain(|purchase| purchase.clients > now);
        all.sort_by_key(|purchase| std::cmp::Reverse(purchase.clients));
        Ok(all)
    }

    /// The lowest hit ratio at which `clients` get the response asked for; `None` when not even a
    /// cache that has everything is enough.
    ///
    /// # Errors
    /// Any error from [`answer`](Self::answer).
    pub fn needed_hit(&self, profile: &Profile, clients: u32) -> Result<Option<f64>> {
        let good = |hit: f64| -> Result<bool> {
            let solution = profile.network(self.block, hit, self.think)?.solve(clients)?;
            Ok(solution.response <= self.target)
        };
        if !good(1.0)? {
            return Ok(None);
        }
        let (mut low, mut high) = (0.0, 1.0);
        if good(0.0)? {
            return Ok(Some(0.0));
        }
        while high - low > 1e-6 {
            let middle = (low + high) / 2.0;
            if good(middle)? { high = middle } else { low = middle }
        }
        Ok(Some(high))
    }
}

/// The most clients that can be computed for a profile.
pub fn most_clients(profile: &Profile) -> u32 {
    let several = profile.centres.iter().any(|c| matches!(c.kind, CentreKind::Servers(_)));
    if several { MOST_CLIENTS_SERVERS } else { MOST_CLIENTS }
}

fn halved(demand: &Demand) -> Result<Demand> {
    Demand::points(demand.as_points().iter().map(|(bytes, s)| (*bytes, small(s / 2.0))).collect())
}

/// Times below what a network takes are none.
fn small(seconds: f64) -> f64 {
    if seconds < 1e-15 { 0.0 } else { seconds }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn question(target: f64) -> CapacityQuestion {
        CapacityQuestion { block: 4096, think: 0.0, target, most: 200 }
    }

    #[test]
    fn curves_are_linear_between_points_and_level_behind() {
        let curve = HitCurve::new(vec![(200, 0.6), (100, 0.5)]).unwrap();
        for (size, hit) in [(0, 0.0), (50, 0.25), (100, 0.5), (150, 0.55), (200, 0.6), (999, 0.6)] {
            assert!((curve.at(size) - hit).abs() < 1e-12, "{size}");
        }
        assert!(HitCurve::new(vec![]).is_err());
        assert!(HitCurve::new(vec![(1, 1.5)]).is_err());
        assert_eq!(HitCurve::new(vec![(0, 0.5)]).unwrap().at(0), 0.5);
    }

    #[test]
    fn a_curve_file_is_read_and_a_wrong_line_is_named() {
        let curve = HitCurve::parse("size,hit,other\n# note\n1024, 0.5,x\n\n2048,0.75\n").unwrap();
        assert_eq!((curve.at(1024), curve.at(2048)), (0.5, 0.75));
        assert!(HitCurve::parse("1024,0.5\nx,1\n").unwrap_err().message().contains("line 2"));
        for bad in ["", "size,hit\n", "1024,1.5\n", "1024,nan\n"] {
            assert!(HitCurve::parse(bad).is_err(), "{bad}");
        }
    }

    /// The demands of Table 1 at 4 KiB: the response is below a local disk's 6.76 ms from these hit
    /// ratios on, and never at 50 clients.
    #[test]
    fn the_papers_server_needs_these_hit_ratios_to_beat_a_local_disk() {
        let profile = Profile::transcom().unwrap();
        let question = question(6.76e-3);
        for (clients, hit) in
            [(1, 0.088), (5, 0.80), (10, 0.90), (15, 0.934), (20, 0.951), (30, 0.967)]
        {
            let needed = question.needed_hit(&profile, clients).unwrap().unwrap();
            assert!((needed - hit).abs() < 1e-3, "{clients}: {needed}");
            assert!(question.answer(&profile, &Hits::Same(needed)).unwrap().clients >= clients);
            assert!(
                question.answer(&profile, &Hits::Same(needed - 0.01)).unwrap().clients < clients
            );
        }
        assert_eq!(question.needed_hit(&profile, 50).unwrap(), None);
    }

    #[test]
    fn the_bottleneck_is_what_to_buy_first() {
        let profile = Profile::transcom().unwrap();
        let question = question(10e-3);
        let first = |hit| {
            let hits = Hits::Same(hit);
            question.purchases(&profile, &hits, (&profile, &hits)).unwrap().remove(0).what
        };
        assert_eq!(first(0.5), Upgrade::Centre("disk".into()));
        assert_eq!(first(1.0), Upgrade::Centre("network".into()));
        let bought =
            question.purchases(&profile, &Hits::Same(0.5), (&profile, &Hits::Same(0.99))).unwrap();
        assert_eq!(bought[0].what, Upgrade::Memory);
    }

    #[test]
    fn private_data_divide_the_cache_and_shared_data_do_not() {
        let curve = HitCurve::new(vec![(1000, 0.9)]).unwrap();
        let shared = Hits::of(&curve, 500, CacheSharing::Shared, 0.2, 100);
        assert_eq!(shared, Hits::Same(0.2 + 0.8 * 0.45));
        let private = Hits::of(&curve, 1000, CacheSharing::Private { clients: 2 }, 0.0, 100);
        for (clients, hit) in [(1, 0.9), (2, 0.9), (4, 0.45), (8, 0.225), (999, 0.018)] {
            assert!((private.at(clients) - hit).abs() < 1e-3, "{clients}");
        }
        let profile = Profile::transcom().unwrap();
        let question = CapacityQuestion { most: 100, ..question(20e-3) };
        let held = |hits| question.answer(&profile, &hits).unwrap();
        let (few, many) = (held(private), held(Hits::Same(0.9)));
        assert!(few.clients < many.clients);
        assert_eq!(few.solutions[1], many.solutions[1], "two clients see the same cache");
        let error =
            CapacityQuestion { most: 5000, ..question }.answer(&profile, &Hits::By(vec![0.5]));
        assert!(error.is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn a_better_cache_never_holds_fewer_clients(a in 0.0f64..=1.0, b in 0.0f64..=1.0) {
            let profile = Profile::transcom().unwrap();
            let hold = |hit| question(8e-3).answer(&profile, &Hits::Same(hit)).unwrap().clients;
            prop_assert!(hold(a.min(b)) <= hold(a.max(b)));
        }
    }
}
