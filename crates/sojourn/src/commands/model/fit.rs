//! `sojourn model fit`: the demands of a real server, measured.

use super::measure::{ResourceUse, Watched, interface};
use super::write_file;
use crate::commands::replay::drive;
use crate::lists::{Numbers, Sizes};
use crate::output::{Output, Table};
use crate::remote;
use block::{ByteSize, Error, Result, Span};
use engine::Home;
use engine::config::time::duration;
use model::fit::{Busy, Hidden, Measured, MeasuredLoad, hidden, utilisation_law};
use model::{Centre, CentreKind, Demand, Network, Profile, ProfileCentre};
use nbd::Uri;
use replay::{ReplayPlan, ReplayReport, Script};
use serde::Serialize;
use server::client::ControlClient;
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Reads of all clients together in one script; clients begin again when they are through.
const READS: u32 = 400_000;
/// The part of a run that is not counted, in parts of the whole.
const WARM_UP: u32 = 5;
/// A model whose throughput differs by more from that of loads with misses is measured again.
const GOOD: f64 = 0.15;
/// A model that is off by more is of no use.
const WRONG: f64 = 0.5;
/// What the piece cache may answer of the misses for them to be misses of the store.
const FEW_PIECES: f64 = 0.05;
/// A hidden queue below this share of the whole response is none.
const NOTHING: f64 = 0.005;

/// Arguments of `sojourn model fit`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn model fit 'nbd://server/debian' --pid 4711 --out server.toml
  sojourn model fit 'nbd+unix:///debian?socket=/srv/sojourn/nbd.sock' --home /srv/sojourn \\
      --block 4K,32K --disk sda --out server.toml
  sojourn --home /srv/sojourn model fit 'nbd+unix:///debian?socket=/srv/sojourn/nbd.sock' \\
      --add-pieces server.toml --out with-pieces.toml

Reads at random from the export, only reads: first a part that fits the server's cache, again and
again, then all of it. Processor, disk and network are measured by the utilisation law where they
can be watched; what remains of the response is a queue and a delay, found from how the
throughput grows with the clients. Then it reads with other numbers of clients and says how far
the model is off. docs/model.md tells more.")]
pub(crate) struct Args {
    /// The export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, or encrypted, with
    /// nbds:// and ?tls-certificates=DIR
    pub(crate) target: Uri,
    /// Where to write the profile
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
    /// Bytes of a request; what other sizes take is reckoned from these
    #[arg(long, value_name = "LIST", default_value = "4K,128K")]
    pub(crate) block: Sizes,
    /// Numbers of clients to measure at
    #[arg(long, value_name = "LIST", default_value = "1,4,16")]
    pub(crate) loads: Numbers,
    /// Numbers of clients to check at
    #[arg(long, value_name = "LIST", default_value = "2,8,32")]
    pub(crate) check: Numbers,
    /// How long each number of clients is measured
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = duration)]
    pub(crate) time: Duration,
    /// How often to measure while loads with misses differ by more than 15 % from the model, as they do
    /// when the machine was disturbed; the best one counts
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub(crate) attempts: u32,
    /// How much of the export is read for hits: less than the server's cache
    #[arg(long, value_name = "SIZE", default_value = "16M")]
    pub(crate) hot: ByteSize,
    /// Measure hits alone: of a server without a cache, or all of whose data fit in it
    #[arg(long)]
    pub(crate) hits_only: bool,
    /// The server's process on this machine [default: the server of --home, if it runs]
    #[arg(long, value_name = "PID")]
    pub(crate) pid: Option<u32>,
    /// The disk that the server's store is on, as in /proc/diskstats
    #[arg(long, value_name = "DISK")]
    pub(crate) disk: Option<String>,
    /// The network interface between server and clients
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// The interface's speed in bits a second [default: what it says]
    #[arg(long, value_name = "BITS", requires = "network")]
    pub(crate) speed: Option<u64>,
    /// The server has a piece cache, and PROFILE was measured without: measure what each piece takes that comes
    /// into it, by first reads of one client, and write PROFILE with that. Needs --home, and an empty piece cache
    #[arg(long, value_name = "PROFILE", conflicts_with_all = ["hits_only", "disk", "network"])]
    pub(crate) add_pieces: Option<String>,
    /// Write the profile even if the check says that it is wrong
    #[arg(long)]
    pub(crate) force: bool,
}

/// One measured load.
#[derive(Debug, Clone, Serialize)]
struct FitRun {
    block: u64,
    clients: u32,
    /// The share of look-ups that the cache answered.
    hit: f64,
    throughput: f64,
    response_ms: f64,
    /// What the profile says.
    predicted_throughput: f64,
    predicted_response_ms: f64,
    /// The difference in throughput, as a share.
    error: f64,
    /// Whether the profile was made from it.
    used: bool,
    #[serde(skip)]
    work: ResourceUse,
    /// Processor time of the load generator.
    #[serde(skip)]
    own: f64,
    #[serde(skip)]
    answers: f64,
}

#[derive(Serialize)]
struct FitView {
    profile: String,
    /// The largest difference in throughput at numbers of clients that the profile was not made
    /// from, as a share.
    worst_error: f64,
    runs: Vec<FitRun>,
}

pub(super) fn run(args: &Args, home: Option<&Home>, output: Output) -> Result<()> {
    if let Some(without) = &args.add_pieces {
        return super::pieces::run(args, without, home, output);
    }
    let status = home.map_or(Ok(None), lookups)?;
    let watched = Watched {
        pid: args.pid.or(status.map(|status| status.pid)),
        disk: args.disk.clone(),
        network: match &args.network {
            Some(name) => Some(interface(name, args.speed)?),
            None => None,
        },
    };
    let lab = Lab { args, watched, home: home.filter(|_| status.is_some()) };
    let mut profile = Profile { name: args.target.to_string(), centres: Vec::new() };
    let mut runs = Vec::new();
    for block in &args.block.0 {
        let (centres, mut measured) = lab.best(*block)?;
        merge(&mut profile, centres, *block)?;
        runs.append(&mut measured);
    }
    without_nothing(&mut profile);
    let worst = worst(&runs, |_| true);
    let notes = format!(
        "Measured by sojourn model fit {} at {:?} clients for {:?} each.\n\
         At {:?} clients, which it was not made from, throughput differs by at most {:.1} %.",
        env!("CARGO_PKG_VERSION"),
        args.loads.0,
        args.time,
        args.check.0,
        worst * 100.0
    );
    must_be_right(worst, args.force)?;
    write_file(&args.out, &model::file::render(&profile, &notes)?)?;
    let view = FitView { profile: args.out.display().to_string(), worst_error: worst, runs };
    output.print(&view, || text(&view))
}

/// Refuses a model that its own check contradicts.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable): the machine was disturbed, or nothing of this kind fits.
fn must_be_right(worst: f64, force: bool) -> Result<()> {
    // Also what is no number.
    if worst <= WRONG || force {
        return Ok(());
    }
    Err(Error::unavailable(format!(
        "the model differs from what was measured by {:.0} % where it was checked, so it is not written: \
         measure again on a quiet machine, longer (--time) or at other loads, or give --force",
        worst * 100.0
    )))
}

/// Refuses misses that the server's own disk answered: they say nothing of the store.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when more than a few of them did.
fn must_be_the_stores(from_pieces: f64, force: bool) -> Result<()> {
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
fn worst(runs: &[FitRun], kind: impl Fn(&FitRun) -> bool) -> f64 {
    let checked = runs.iter().filter(|run| !run.used && kind(run));
    checked.map(|run| run.error.abs()).fold(0.0, f64::max)
}

/// Whether a load waits for more than the server itself. Others take microseconds, which differ from
/// run to run.
fn waits(run: &FitRun) -> bool {
    run.hit < 0.9
}

/// Look-ups in a server's cache so far.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lookups {
    pub(super) pid: u32,
    pub(super) hits: u64,
    pub(super) misses: u64,
    /// Parts of the store that the piece cache had, and had not; none where the server has none.
    pub(super) pieces: Option<(u64, u64)>,
    /// Bytes of those that it had not.
    pub(super) piece_bytes: u64,
}

impl Lookups {
    /// The share of the parts of the store, asked for since `before`, that the piece cache had.
    fn share_of_pieces(&self, before: &Self) -> f64 {
        let (Some(now), Some(then)) = (self.pieces, before.pieces) else { return 0.0 };
        let kept = now.0.saturating_sub(then.0) as f64;
        let all = kept + now.1.saturating_sub(then.1) as f64;
        if all > 0.0 { kept / all } else { 0.0 }
    }
}

/// Those of the server of this home; `None` when none runs.
pub(super) fn lookups(home: &Home) -> Result<Option<Lookups>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start the runtime", e))?;
    runtime.block_on(async {
        let Some(client) = ControlClient::connect(home).await? else { return Ok(None) };
        let status = client.status().await?;
        let (hits, misses) = (status.cache.hits, status.cache.misses);
        let pieces = status.pieces.map(|pieces| (pieces.hits, pieces.misses));
        let piece_bytes = status.pieces.map_or(0, |pieces| pieces.miss_bytes);
        Ok(Some(Lookups { pid: status.pid, hits, misses, pieces, piece_bytes }))
    })
}

/// What may be watched: name, whether it is, its kind, and its work in a run.
type Resource = (&'static str, bool, CentreKind, fn(&FitRun) -> f64);

/// What is measured with what.
struct Lab<'a> {
    args: &'a Args,
    watched: Watched,
    home: Option<&'a Home>,
}

impl Lab<'_> {
    /// Measures one block size until its check is good, as often as may be: the best measurement.
    fn best(&self, block: u64) -> Result<(Vec<ProfileCentre>, Vec<FitRun>)> {
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
            centres.push(centre(name, kind, block, request, miss)?);
        }
        let own: f64 = hits.iter().filter(used).map(|run| run.own / run.answers.max(1.0)).sum();
        let own = own / hits.iter().filter(used).count().max(1) as f64;
        let loads = loads_of(&centres, own, hits.iter().filter(used), |_| 1.0)?;
        let path = hidden(&loads)?;
        let response = 1.0 / loads.iter().map(|load| load.throughput).fold(0.0, f64::max);
        add(&mut centres, "path", block, path, response, false)?;
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
            add(&mut centres, "backend", block, hidden(&loads)?, response, true)?;
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
            ("network", network.is_some(), CentreKind::Queue, |run| run.work.network),
        ]
    }
}

/// The bytes of an export.
///
/// # Errors
/// Those of the connection.
pub(super) fn export_size(target: &Uri) -> Result<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|e| Error::io("cannot start the runtime", e))?;
    let connect = remote::connect(target);
    runtime.block_on(async {
        let remote = connect.await?;
        let size = block::Device::size(&remote);
        remote.close().await;
        Ok(size)
    })
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
fn answered_whole(hits: f64, lookups: f64, answers: f64) -> f64 {
    if lookups <= 0.0 {
        return 1.0;
    }
    (hits / lookups).powf((lookups / answers.max(1.0)).max(1.0))
}

/// The load generator: part of what was measured, not of the server.
fn generator(demand: f64) -> Centre {
    Centre { name: "load generator".to_owned(), kind: CentreKind::Queue, demand }
}

fn centre(
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
fn loads_of<'a>(
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
fn add(
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
fn merge(profile: &mut Profile, mut centres: Vec<ProfileCentre>, block: u64) -> Result<()> {
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
fn without_nothing(profile: &mut Profile) {
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

fn text(view: &FitView) -> String {
    let mut table = Table::new(&[
        ">BLOCK",
        ">HITS",
        ">CLIENTS",
        ">REQUESTS/S",
        ">PREDICTED",
        ">RESPONSE MS",
        ">PREDICTED",
        ">ERROR",
        "USED",
    ]);
    for run in &view.runs {
        table.row([
            ByteSize(run.block).to_string(),
            format!("{:.1} %", run.hit * 100.0),
            run.clients.to_string(),
            format!("{:.1}", run.throughput),
            format!("{:.1}", run.predicted_throughput),
            format!("{:.4}", run.response_ms),
            format!("{:.4}", run.predicted_response_ms),
            format!("{:+.1} %", run.error * 100.0),
            if run.used { "to fit" } else { "to check" }.to_owned(),
        ]);
    }
    let mut text = table.render();
    let _ = write!(
        text,
        "\n{} is written; where it was checked, throughput differs by at most {:.1} %",
        view.profile,
        view.worst_error * 100.0
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_its_check_contradicts_is_refused() {
        must_be_right(0.49, false).unwrap();
        must_be_right(0.74, true).unwrap();
        for wrong in [0.74, f64::INFINITY, f64::NAN] {
            let error = must_be_right(wrong, false).unwrap_err();
            assert!(error.message().contains("--force"), "{error}");
        }
    }

    #[test]
    fn misses_that_the_piece_cache_answers_are_refused() {
        let looked = |pieces| Lookups { pid: 1, hits: 0, misses: 0, pieces, piece_bytes: 0 };
        let share = |pieces| looked(pieces).share_of_pieces(&looked(Some((10, 10))));
        assert_eq!((share(Some((40, 20))), share(Some((10, 10))), share(None)), (0.75, 0.0, 0.0));
        let error = must_be_the_stores(0.75, false).unwrap_err();
        assert!(error.message().contains("75 %") && error.message().contains("pieces.size = 0"));
        must_be_the_stores(0.75, true).unwrap();
        must_be_the_stores(0.01, false).unwrap();
    }

    #[test]
    fn a_request_for_several_chunks_misses_when_one_of_them_does() {
        assert_eq!(answered_whole(50.0, 100.0, 100.0), 0.5);
        assert_eq!(answered_whole(50.0, 100.0, 50.0), 0.25);
        // Private blocks and holes are looked up by nobody.
        assert_eq!(answered_whole(50.0, 100.0, 400.0), 0.5);
        assert_eq!(answered_whole(0.0, 0.0, 9.0), 1.0);
    }

    #[test]
    fn block_sizes_come_together_in_one_profile() {
        let mut profile = Profile { name: "x".to_owned(), centres: Vec::new() };
        let one = |name: &str, block, request, miss| {
            vec![centre(name, CentreKind::Queue, block, request, miss).unwrap()]
        };
        merge(&mut profile, one("cpu", 4096, 1e-3, 0.0), 4096).unwrap();
        let mut second = one("cpu", 8192, 2e-3, 5e-3);
        second.extend(one("disk", 8192, 0.0, 1e-3));
        merge(&mut profile, second, 8192).unwrap();
        merge(&mut profile, one("disk", 16384, 0.0, 3e-3), 16384).unwrap();
        without_nothing(&mut profile);
        let [cpu, disk] = profile.centres.as_slice() else { panic!("{profile:?}") };
        assert!((cpu.request.at(6144) - 1.5e-3).abs() < 1e-9);
        // What was not found at a size takes nothing there.
        let sizes = |at: &Demand| [4096, 8192, 16384].map(|bytes| (at.at(bytes) * 1e3).round());
        assert_eq!((sizes(&cpu.request), sizes(&cpu.miss)), ([1.0, 2.0, 0.0], [0.0, 5.0, 0.0]));
        assert_eq!((sizes(&disk.miss), disk.request.as_points().len()), ([0.0, 1.0, 3.0], 0));
        let text = model::file::render(&profile, "note").unwrap();
        assert_eq!(model::file::parse(&text).unwrap().profile.centres.len(), 2);
    }
}
