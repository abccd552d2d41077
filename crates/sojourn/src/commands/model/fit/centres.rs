//! The centres of a profile: made from what was measured at one block size, put together for all.

use super::run::FitRun;
use block::Result;
use model::fit::{Hidden, MeasuredLoad};
use model::{Centre, CentreKind, Demand, Profile, ProfileCentre};

/// A hidden queue below this share of the whole response is none.
const NOTHING: f64 = 0.005;

/// The load generator: part of what was measured, not of the server.
pub(super) fn generator(demand: f64) -> Centre {
    Centre { name: "load generator".to_owned(), kind: CentreKind::Queue, demand }
}

pub(super) fn centre(
    name: &str,
    kind: CentreKind,
    block: u64,
    request: f64,
    miss: f64,
) -> Result<ProfileCentre> {
    let demand =
        |seconds: f64| Demand::points(vec![(block, if seconds < 1e-9 { 0.0 } else { seconds })]);
    Ok(ProfileCentre {
        name: name.to_owned(),
        kind,
        request: demand(request)?,
        miss: demand(miss)?,
        piece: 0.0,
    })
}

/// The measured loads with the centres that are known.
pub(super) fn loads_of<'a>(
    centres: &[ProfileCentre],
    own: f64,
    runs: impl Iterator<Item = &'a FitRun>,
    visits: impl Fn(&FitRun) -> f64,
) -> Result<Vec<MeasuredLoad>> {
    runs.map(|run| {
        let known = centres.iter().map(|centre| Centre {
            name: centre.name.clone(),
            kind: centre.kind,
            demand: centre.request.at(run.block) + (1.0 - run.hit) * centre.miss.at(run.block),
        });
        Ok(MeasuredLoad {
            clients: run.clients,
            throughput: run.throughput,
            known: known.chain([generator(own)]).collect(),
            think: 0.0,
            visits: visits(run),
        })
    })
    .collect()
}

/// Adds what was found behind what could be seen.
pub(super) fn add(
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
            centres.push(centre(&format!("{name}{suffix}"), kind, block, request, miss)?);
        }
    }
    Ok(())
}

/// Adds the centres of another block size. One that was not found at a size takes nothing there.
pub(super) fn merge(
    profile: &mut Profile,
    mut centres: Vec<ProfileCentre>,
    block: u64,
) -> Result<()> {
    let others: Vec<u64> = match profile.centres.first() {
        Some(first) => first.request.as_points().iter().map(|(bytes, _)| *bytes).collect(),
        None => Vec::new(),
    };
    for known in &profile.centres {
        if !centres.iter().any(|centre| centre.name == known.name) {
            centres.push(centre(&known.name, known.kind, block, 0.0, 0.0)?);
        }
    }
    for found in centres {
        match profile.centres.iter_mut().find(|known| known.name == found.name) {
            Some(known) => {
                known.request = joined(&known.request, &found.request)?;
                known.miss = joined(&known.miss, &found.miss)?;
            }
            None => {
                let nothing = others.iter().map(|block| (*block, 0.0));
                let before = Demand::points(nothing.collect())?;
                profile.centres.push(ProfileCentre {
                    request: joined(&before, &found.request)?,
                    miss: joined(&before, &found.miss)?,
                    ..found
                });
            }
        }
    }
    Ok(())
}

/// Leaves demands out that are none at any size.
pub(super) fn without_nothing(profile: &mut Profile) {
    for centre in &mut profile.centres {
        for demand in [&mut centre.request, &mut centre.miss] {
            if demand.as_points().iter().all(|(_, seconds)| *seconds == 0.0) {
                *demand = Demand::default();
            }
        }
    }
}

fn joined(a: &Demand, b: &Demand) -> Result<Demand> {
    Demand::points([a.as_points(), b.as_points()].concat())
}
