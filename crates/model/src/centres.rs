//! The centres of a profile: made from what was measured at one block size, put together for all.

use crate::fit::Hidden;
use crate::{CentreKind, Demand, Profile, ProfileCentre};
use block::Result;

/// A hidden queue or delay below this share of the whole response is none.
const NOTHING: f64 = 0.005;
/// A demand below so many seconds is none.
const SHORTEST: f64 = 1e-9;

impl ProfileCentre {
    /// A centre that was measured at blocks of `block` bytes: what every request takes there and what a miss takes
    /// in addition, in seconds.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a block of no bytes, and for what is no time.
    pub fn measured(
        name: &str,
        kind: CentreKind,
        block: u64,
        request: f64,
        miss: f64,
    ) -> Result<Self> {
        let demand = |seconds: f64| {
            Demand::points(vec![(block, if seconds < SHORTEST { 0.0 } else { seconds })])
        };
        Ok(Self {
            name: name.to_owned(),
            kind,
            request: demand(request)?,
            miss: demand(miss)?,
            piece: 0.0,
        })
    }
}

/// Adds to the centres at blocks of `block` bytes what was found behind them: a queue `name` and a delay
/// `name delay`, each unless it is next to nothing of the `response`, in seconds. Either of all requests or
/// `of_misses` alone.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for a block of no bytes, and for what is no time.
pub fn add_hidden(
    centres: &mut Vec<ProfileCentre>,
    name: &str,
    block: u64,
    found: Hidden,
    response: f64,
    of_misses: bool,
) -> Result<()> {
    for (suffix, kind, seconds) in
        [("", CentreKind::Queue, found.queue), (" delay", CentreKind::Delay, found.delay)]
    {
        if seconds > response * NOTHING {
            let (request, miss) = if of_misses { (0.0, seconds) } else { (seconds, 0.0) };
            let name = format!("{name}{suffix}");
            centres.push(ProfileCentre::measured(&name, kind, block, request, miss)?);
        }
    }
    Ok(())
}

impl Profile {
    /// Adds the centres that were measured at blocks of `block` bytes. One that was not found at a size takes
    /// nothing there.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a block size that is there already, and for more than a demand
    /// may have.
    pub fn add_block_size(&mut self, mut centres: Vec<ProfileCentre>, block: u64) -> Result<()> {
        let others: Vec<u64> = match self.centres.first() {
            Some(first) => first.request.as_points().iter().map(|(bytes, _)| *bytes).collect(),
            None => Vec::new(),
        };
        for known in &self.centres {
            if !centres.iter().any(|centre| centre.name == known.name) {
                centres.push(ProfileCentre::measured(&known.name, known.kind, block, 0.0, 0.0)?);
            }
        }
        for found in centres {
            match self.centres.iter_mut().find(|known| known.name == found.name) {
                Some(known) => {
                    known.request = joined(&known.request, &found.request)?;
                    known.miss = joined(&known.miss, &found.miss)?;
                }
                None => {
                    let nothing = others.iter().map(|block| (*block, 0.0));
                    let before = Demand::points(nothing.collect())?;
                    self.centres.push(ProfileCentre {
                        request: joined(&before, &found.request)?,
                        miss: joined(&before, &found.miss)?,
                        ..found
                    });
                }
            }
        }
        Ok(())
    }

    /// Leaves demands out that are 0 at all sizes.
    pub fn drop_zero_demands(&mut self) {
        for centre in &mut self.centres {
            for demand in [&mut centre.request, &mut centre.miss] {
                if demand.as_points().iter().all(|(_, seconds)| *seconds == 0.0) {
                    *demand = Demand::default();
                }
            }
        }
    }
}

fn joined(a: &Demand, b: &Demand) -> Result<Demand> {
    Demand::points([a.as_points(), b.as_points()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_sizes_come_together_in_one_profile() {
        let mut profile = Profile { name: "x".to_owned(), centres: Vec::new() };
        let one = |name: &str, block, request, miss| {
            vec![ProfileCentre::measured(name, CentreKind::Queue, block, request, miss).unwrap()]
        };
        profile.add_block_size(one("cpu", 4096, 1e-3, 0.0), 4096).unwrap();
        let mut second = one("cpu", 8192, 2e-3, 5e-3);
        second.extend(one("disk", 8192, 0.0, 1e-3));
        profile.add_block_size(second, 8192).unwrap();
        profile.add_block_size(one("disk", 16384, 0.0, 3e-3), 16384).unwrap();
        profile.drop_zero_demands();
        let [cpu, disk] = profile.centres.as_slice() else { panic!("{profile:?}") };
        assert!((cpu.request.at(6144) - 1.5e-3).abs() < 1e-9);
        // What was not found at a size takes nothing there.
        let sizes = |at: &Demand| [4096, 8192, 16384].map(|bytes| (at.at(bytes) * 1e3).round());
        assert_eq!((sizes(&cpu.request), sizes(&cpu.miss)), ([1.0, 2.0, 0.0], [0.0, 5.0, 0.0]));
        assert_eq!((sizes(&disk.miss), disk.request.as_points().len()), ([0.0, 1.0, 3.0], 0));
        let text = crate::file::render(&profile, "note").unwrap();
        assert_eq!(crate::file::parse(&text).unwrap().profile.centres.len(), 2);
    }
}
