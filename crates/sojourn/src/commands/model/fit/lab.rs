//! Loads put on a server, and the centres that explain what was measured.

use super::args::Args;
use super::loads::{generator, loads_of};
use super::run::FitRun;
use crate::commands::model::lookups::{export_size, lookups};
use crate::commands::model::measure::{ResourceUse, Watched};
use crate::commands::replay::drive;
use crate::remote;
use block::{ByteSize, Error, Result, Span};
use engine::Home;
use model::centres::add_hidden;
use model::fit::{Busy, Measured, hidden, utilisation_law};
use model::{CentreKind, Network, Profile, ProfileCentre};
use replay::{ReplayPlan, ReplayReport, Script};
use std::sync::Arc;
use std::time::Duration;

/// Reads of all clients together in one script; clients begin again when they are through.
const READS: u32 = 400_000;
/// The part of a run that is not counted, in parts of the whole.
const WARM_UP: u32 = 5;
/// A model whose throughput differs by more from that of loads with misses is measured again.
const GOOD: f64 = 0.15;
/// What the piece cache may answer of the misses for them to be misses of the store.
const FEW_PIECES: f64 = 0.05;

/// What may be watched: name, whether it is, its kind, and its work in a run.
type Resource = (&'static str, bool, CentreKind, fn(&FitRun) -> f64);

/// What is measured with what.
pub(super) struct Lab<'a> {
    pub(super) args: &'a Args,
    pub(super) watched: Watched,
    pub(super) home: Option<&'a Home>,
}

impl Lab<'_> {
    /// Measures one block size until its check is good, as often as may be: the best measurement.
    pub(super) fn best(&self, block: u64) -> Result<(Vec<ProfileCentre>, Vec<FitRun>)> {
        let mut best = self.block(block)?;
        for _ in 1..self.args.attempts {
            if worst(&best.1, waits) <= GOOD {
                break;
            }
            match self.block(block) {
                Ok(again) if worst(&again.1, waits) < worst(&best.1, waits) => best = again,
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(error = error.message(), "the first measurement has to do");
                    break;
                }
            }
        }
        Ok(best)
    }

    /// Measures one block size: its centres, and all runs.
    fn block(&self, block: u64) -> Result<(Vec<ProfileCentre>, Vec<FitRun>)> {
        let size = self.size(block)?;
        if !self.args.hits_only && size < self.args.hot.0.saturating_mul(4) {
            return Err(Error::invalid(format!(
                "the export has {}, which is not much more than the hot part of {}: give a \
                 smaller --hot, a larger export, or --hits-only",
                ByteSize(size),
                self.args.hot
            )));
        }
        let hot = Span::whole(self.args.hot.0.min(size));
        // Brings the hot part into the cache.
        self.run(block, 1, hot, 0)?;
        let mut hits = Vec::new();
        for clients in self.all() {
            hits.push(self.run(block, clients, hot, u64::from(clients))?);
        }
        let mut misses = Vec::new();
        if !self.args.hits_only {
            let before = self.home.map_or(Ok(None), lookups)?;
            for clients in self.all() {
                let seed = 1_000_000 + u64::from(clients);
                misses.push(self.run(block, clients, Span::whole(size), seed)?);
            }
            if let (Some(before), Some(after)) = (before, self.home.map_or(Ok(None), lookups)?) {
                must_be_the_stores(after.share_of_pieces(&before), self.args.force)?;
            }
            if self.home.is_none() {
                // Nobody says how often the cache was hit: hits always, misses always.
                hits.iter_mut().for_each(|run| run.hit = 1.0);
                misses.iter_mut().for_each(|run| run.hit = 0.0);
            }
        }
        self.fit(block, hits, misses)
    }

    fn all(&self) -> Vec<u32> {
        let mut all = [self.args.loads.0.as_slice(), &self.args.check.0].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    fn size(&self, block: u64) -> Result<u64> {
        let size = export_size(&self.args.target)?;
        if size < block || block > 32 << 20 {
            return Err(Error::invalid(format!(
                "{} has {} bytes: give blocks that fit, of 32 MiB at most",
                self.args.target, size
            )));
        }
        Ok(size)
    }

    /// Reads at random in `span` with so many clients, one request each.
    fn run(&self, block: u64, clients: u32, span: Span, seed: u64) -> Result<FitRun> {
        if clients == 0 {
            return Err(Error::invalid("0 clients measure nothing: give 1 or more"));
        }
        let reads = (READS / clients).max(1);
        let script = Script::random_reads(clients, reads, block as u32, span, seed)?;
        let mut plan = ReplayPlan::new(self.args.target.clone(), &script);
        plan.options = remote::options(&self.args.target)?;
        plan.repeat = true;
        plan.warm_up = self.args.time / WARM_UP;
        plan.until = Some(self.args.time + plan.warm_up);
        let before = (self.watched.look()?, self.home.map_or(Ok(None), lookups)?);
        let (report, own) = drive(Arc::new(script), plan, 1)?;
        let after = (self.watched.look()?, self.home.map_or(Ok(None), lookups)?);
        if let Some(first) = report.first_error {
            return Err(Error::unavailable(format!("a read failed: {first}")));
        }
        let hit = match (before.1, after.1) {
            (Some(before), Some(after)) => {
                let hits = after.hits.saturating_sub(before.hits) as f64;
                let all = hits + after.misses.saturating_sub(before.misses) as f64;
                answered_whole(hits, all, report.answers as f64)
            }
            _ => 1.0,
        };
        Ok(measured(block, clients, hit, &report, after.0.since(before.0), own))
    }

    /// The centres that explain these runs, which learn what they say of them.
    fn fit(
        &self,
        block: u64,
        mut hits: Vec<FitRun>,
        mut misses: Vec<FitRun>,
    ) -> Result<(Vec<ProfileCentre>, Vec<FitRun>)> {
        let used = |run: &&FitRun| self.args.loads.0.contains(&run.clients);
        let mut centres = Vec::new();
        for (name, watched, kind, work) in self.resources() {
            if !watched {
                continue;
            }
            let busy = |run: &FitRun| Busy {
                per_answer: work(run) / run.answers.max(1.0),
                hit: run.hit,
                answers: run.answers,
            };
            let loads: Vec<Busy> = hits.iter().chain(&misses).filter(used).map(busy).collect();
            let Measured { request, miss, .. } = utilisation_law(&loads)?;
            centres.push(ProfileCentre::measured(name, kind, block, request, miss)?);
        }
        let own: f64 = hits.iter().filter(used).map(|run| run.own / run.answers.max(1.0)).sum();
        let own = own / hits.iter().filter(used).count().max(1) as f64;
        let loads = loads_of(&centres, own, hits.iter().filter(used), |_| 1.0)?;
        let path = hidden(&loads)?;
        let response = 1.0 / loads.iter().map(|load| load.throughput).fold(0.0, f64::max);
        add_hidden(&mut centres, "path", block, path, response, false)?;
        if !misses.is_empty() {
            let visits = |run: &FitRun| 1.0 - run.hit;
            let missing: Vec<&FitRun> =
                misses.iter().filter(used).filter(|run| visits(run) > 0.01).collect();
            if missing.is_empty() {
                return Err(Error::invalid(
                    "the cache answered everything: the export fits in it; give --hits-only, or \
                     an export that does not fit",
                ));
            }
            let loads = loads_of(&centres, own, missing.into_iter(), visits)?;
            let response = 1.0 / loads.iter().map(|load| load.throughput).fold(0.0, f64::max);
            add_hidden(&mut centres, "backend", block, hidden(&loads)?, response, true)?;
        }
        let profile = Profile { name: "fit".to_owned(), centres };
        let mut runs = Vec::new();
        for mut run in hits.drain(..).chain(misses.drain(..)) {
            run.used = self.args.loads.0.contains(&run.clients);
            let mut network = profile.network(block, run.hit, 0.0)?.centres().to_vec();
            network.push(generator(own));
            let solution = Network::new(0.0, network)?.solve(run.clients)?;
            run.predicted_throughput = solution.throughput;
            run.predicted_response_ms = solution.response * 1e3;
            run.error = solution.throughput / run.throughput - 1.0;
            runs.push(run);
        }
        Ok((profile.centres, runs))
    }

    /// What may be watched.
    fn resources(&self) -> [Resource; 3] {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get) as u32;
        let cpu = if cores > 1 { CentreKind::Servers(cores.min(1024)) } else { CentreKind::Queue };
        let Watched { pid, disk, network } = &self.watched;
        [
            ("cpu", pid.is_some(), cpu, |run| run.work.cpu),
            ("disk", disk.is_some(), CentreKind::Queue, |run| run.work.disk),
            ("network", network.is_some(), CentreKind::Queue, |run| run.work.network()),
        ]
    }
}

/// Refuses misses that the server's own disk answered: they say nothing of the store.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when more than a few of them did.
pub(super) fn must_be_the_stores(from_pieces: f64, force: bool) -> Result<()> {
    if from_pieces <= FEW_PIECES || force {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "{:.0} % of what the cache missed came from the server's piece cache, so what the store takes cannot be \
         measured: have the server run with pieces.size = 0 meanwhile, and tell `predict` its size by --pieces; or \
         give --force for a profile of a server whose piece cache holds all",
        from_pieces * 100.0
    )))
}

/// The largest difference at loads of a kind that are not used for the fit.
pub(super) fn worst(runs: &[FitRun], kind: impl Fn(&FitRun) -> bool) -> f64 {
    let checked = runs.iter().filter(|run| !run.used && kind(run));
    checked.map(|run| run.error.abs()).fold(0.0, f64::max)
}

/// Whether a load waits for more than the server itself. Others take microseconds, which differ from
/// run to run.
fn waits(run: &FitRun) -> bool {
    run.hit < 0.9
}

fn measured(
    block: u64,
    clients: u32,
    hit: f64,
    report: &ReplayReport,
    work: ResourceUse,
    own: Duration,
) -> FitRun {
    FitRun {
        block,
        clients,
        hit,
        throughput: report.throughput,
        response_ms: report.mean_us / 1e3,
        predicted_throughput: 0.0,
        predicted_response_ms: 0.0,
        error: 0.0,
        used: false,
        work,
        own: own.as_secs_f64(),
        answers: report.answers as f64,
    }
}

/// The share of the requests that the cache answers whole, of so many hits and look-ups: a request for several
/// chunks, each looked up, is a miss when one of them is.
pub(super) fn answered_whole(hits: f64, lookups: f64, answers: f64) -> f64 {
    if lookups <= 0.0 {
        return 1.0;
    }
    (hits / lookups).powf((lookups / answers.max(1.0)).max(1.0))
}
