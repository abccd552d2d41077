//! What was measured, as the model takes it: loads with the centres that are known.

use super::run::FitRun;
use block::Result;
use model::fit::MeasuredLoad;
use model::{Centre, CentreKind, ProfileCentre};

/// The load generator: part of what was measured, not of the server.
pub(super) fn generator(demand: f64) -> Centre {
    Centre { name: "load generator".to_owned(), kind: CentreKind::Queue, demand }
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
