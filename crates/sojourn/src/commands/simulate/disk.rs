//! `sojourn simulate disk`: schedulers on models of disks under a load, and who wins.
//!
//! | module | part |
//! |---|---|
//! | [`load`] | the load that was asked for |
//! | [`show`] | tables and comma-separated values |
//! | [`page`] | the page with plots |

mod load;
mod page;
mod show;

use super::write_page;
use crate::output::{Output, raw};
use crate::progress::Bar;
use block::Result;
use engine::disk_profile;
use load::{DiskLoadArgs, SharedWorkload};
use schedule::compare::{Comparison, Estimate, least};
use schedule::simulation::{SimulationOutcome, SimulationSetup, run as simulate};
use schedule::{Model, Profile, scheduler};
use serde::Serialize;
use std::path::PathBuf;

/// Arguments of `sojourn simulate disk`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate disk
  sojourn simulate disk --scheduler cats,deadline,cfq --profile cheetah-15k4 --seeds 5
  sojourn simulate disk --load buffered --scheduler cats --scheduler cats:read-delay=500
  sojourn simulate disk day.trace --disk alice --profile hdd-7200,my-disk.toml --html day.html
  sojourn simulate disk --load open --rate 120 --size 4K --profile hdd-7200

docs/disk-lab.md lists schedulers and their parameters; sojourn simulate profiles lists disks.")]
pub(crate) struct Args {
    #[command(flatten)]
    load: DiskLoadArgs,
    /// Profiles, shipped ones by name or files, after commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "cheetah-15k4")]
    profile: Vec<String>,
    /// A scheduler, or several after commas; may be repeated [default: all]
    #[arg(long, value_name = "SCHEDULER", value_delimiter = ',')]
    scheduler: Vec<String>,
    /// What schedulers believe the disk to be, when it is another one: a profile
    #[arg(long, value_name = "PROFILE")]
    believe: Option<String>,
    /// Requests handed to the driver before it waits for the disk [default: one more than the disk
    /// works on]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    outstanding: Option<u32>,
    /// Requests of a run
    #[arg(long, value_name = "N", default_value_t = 50_000)]
    requests: u64,
    /// Requests at the beginning that are not counted [default: a tenth]
    #[arg(long, value_name = "N")]
    warm_up: Option<u64>,
    /// Runs of each scheduler on each disk
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    seeds: u32,
    /// The first seed
    #[arg(long, value_name = "N", default_value_t = 1000)]
    seed: u64,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// One scheduler on one disk.
#[derive(Debug, Serialize)]
pub(super) struct SchedulerRow {
    profile: String,
    scheduler: String,
    service_ms: Estimate,
    service_variance: Estimate,
    device_ms: Estimate,
    response_ms: Estimate,
    response_variance: Estimate,
    p50_ms: Estimate,
    p90_ms: Estimate,
    p99_ms: Estimate,
    p999_ms: Estimate,
    worst_ms: Estimate,
    sectors_per_ms: Estimate,
    requests_per_ms: Estimate,
    utilisation: Estimate,
    hit_ratio: Estimate,
    foreseen: Estimate,
    in_system: Estimate,
    counters: Vec<(&'static str, u64)>,
    /// All seeds gave the same run.
    #[serde(skip)]
    is_one_run: bool,
    #[serde(skip)]
    first: SimulationOutcome,
}

impl SchedulerRow {
    fn new(profile: &str, scheduler: &str, outcomes: Vec<SimulationOutcome>) -> Self {
        let is_one_run = draw_nothing(&outcomes);
        let counted = if is_one_run { &outcomes[..1] } else { &outcomes[..] };
        let of = |value: fn(&SimulationOutcome) -> f64| {
            Estimate::of(&counted.iter().map(value).collect::<Vec<_>>())
        };
        Self {
            profile: profile.to_owned(),
            scheduler: scheduler.to_owned(),
            service_ms: of(|o| o.service.mean_ms()),
            service_variance: of(|o| o.service.variance_ms2()),
            device_ms: of(|o| o.device.mean_ms()),
            response_ms: of(|o| o.response.mean_ms()),
            response_variance: of(|o| o.response.variance_ms2()),
            p50_ms: of(|o| o.response.quantile_ms(0.5)),
            p90_ms: of(|o| o.response.quantile_ms(0.9)),
            p99_ms: of(|o| o.response.quantile_ms(0.99)),
            p999_ms: of(|o| o.response.quantile_ms(0.999)),
            worst_ms: of(|o| o.response.most_ms()),
            sectors_per_ms: of(SimulationOutcome::sectors_per_ms),
            requests_per_ms: of(SimulationOutcome::rate_per_ms),
            utilisation: of(SimulationOutcome::utilisation),
            hit_ratio: of(SimulationOutcome::hit_ratio),
            foreseen: of(SimulationOutcome::foreseen),
            in_system: of(|o| o.in_system),
            is_one_run,
            counters: outcomes.first().map(|o| o.counters.clone()).unwrap_or_default(),
            first: outcomes.into_iter().next().unwrap_or_default(),
        }
    }
}

/// Whether several runs are one: of a load that does not depend on the seed, such as a trace, on a disk whose model draws
/// nothing. That they are equal then says nothing of how certain their figures are.
fn draw_nothing(outcomes: &[SimulationOutcome]) -> bool {
    let figures = |outcome: &SimulationOutcome| {
        let SimulationOutcome { service, device, response, .. } = outcome;
        [service, device, response]
            .map(|time| [time.mean_ms(), time.variance_ms2(), time.most_ms()])
    };
    outcomes.len() > 1 && outcomes.windows(2).all(|two| figures(&two[0]) == figures(&two[1]))
}

/// Who wins on one disk.
#[derive(Debug, Serialize)]
struct Winner {
    profile: String,
    sentence: String,
    #[serde(flatten)]
    verdict: Comparison,
}

#[derive(Debug, Serialize)]
struct DiskSimulationView {
    load: String,
    requests: u64,
    warm_up: u64,
    seeds: u32,
    rows: Vec<SchedulerRow>,
    winners: Vec<Winner>,
}

/// Simulates.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let profiles =
        args.profile.iter().map(|p| disk_profile::load(p)).collect::<Result<Vec<_>>>()?;
    let believed = args.believe.as_deref().map(|p| disk_profile::load(p)?.model()).transpose()?;
    let schedulers: Vec<String> = match args.scheduler.is_empty() {
        true => scheduler::ALL.iter().map(|kind| kind.name.to_owned()).collect(),
        false => args.scheduler.clone(),
    };
    // A name that is wrong is told before anything takes time.
    schedulers.iter().try_for_each(|s| scheduler::make(s).map(drop))?;
    let warm_up = args.warm_up.unwrap_or(args.requests / 10);
    let mut view = DiskSimulationView {
        load: args.load.describe(),
        requests: args.requests,
        warm_up,
        seeds: args.seeds,
        rows: Vec::new(),
        winners: Vec::new(),
    };
    let total = profiles.len() as u64 * schedulers.len() as u64 * u64::from(args.seeds);
    let bar = Bar::requests("runs", Some(total));
    for profile in &profiles {
        let prepared = args.load.prepare(profile.sectors()?)?;
        let from = view.rows.len();
        for scheduler in &schedulers {
            let mut outcomes = Vec::new();
            for number in 0..args.seeds {
                let one = One { args, profile, scheduler, warm_up, number };
                outcomes.push(one.run(&prepared, believed.as_deref())?);
                bar.moved(1);
            }
            view.rows.push(SchedulerRow::new(&profile.name, scheduler, outcomes));
        }
        view.winners.push(winner(&profile.name, &view.rows[from..]));
    }
    drop(bar);
    if let Some(path) = &args.html {
        write_page(path, &page::page(&view))?;
    }
    if args.csv {
        return raw(show::csv(&view).as_bytes());
    }
    output.print(&view, || show::text(&view))
}

/// One run.
struct One<'a> {
    args: &'a Args,
    profile: &'a Profile,
    scheduler: &'a str,
    warm_up: u64,
    number: u32,
}

impl One<'_> {
    fn run(
        &self,
        prepared: &SharedWorkload,
        believed: Option<&dyn Model>,
    ) -> Result<SimulationOutcome> {
        let seed = self.args.seed.wrapping_add(u64::from(self.number));
        let model = self.profile.model()?;
        let outstanding = self.args.outstanding.map_or(model.servers() + 1, |n| n as usize);
        simulate(SimulationSetup {
            model,
            believed,
            shadow: believed.map(Model::cache),
            scheduler: scheduler::make(self.scheduler)?,
            load: self.args.load.start(prepared, seed)?,
            outstanding,
            requests: self.args.requests,
            warm_up: self.warm_up,
            seed,
            samples: self.args.html.is_some() && self.number == 0,
        })
        .map_err(|e| e.context(format!("{} on {}", self.scheduler, self.profile.name)))
    }
}

/// Who wins on one disk, in a sentence.
fn winner(profile: &str, rows: &[SchedulerRow]) -> Winner {
    let estimates: Vec<Estimate> = rows.iter().map(|row| row.response_ms).collect();
    let verdict = least(&estimates);
    let name = |index: &usize| rows[*index].scheduler.as_str();
    let sentence = match &verdict {
        Comparison::Wins { best } => format!(
            "{profile}: {} has the least mean response; its interval overlaps no other",
            name(best)
        ),
        Comparison::Ties { best, with } => format!(
            "{profile}: {} has the least mean response, but its interval overlaps that of {}; more \
             --seeds or --requests tell them apart",
            name(best),
            with.iter().map(name).collect::<Vec<_>>().join(", ")
        ),
        Comparison::Unknown if rows.len() < 2 => format!("{profile}: nothing to compare with"),
        Comparison::Unknown if rows.iter().any(|row| row.is_one_run) => format!(
            "{profile}: the load and the disk draw nothing, so that all seeds give one run, which says nothing of who \
             wins elsewhere"
        ),
        Comparison::Unknown => {
            format!("{profile}: one seed says nothing of who wins; give --seeds")
        }
    };
    Winner { profile: profile.to_owned(), sentence, verdict }
}
