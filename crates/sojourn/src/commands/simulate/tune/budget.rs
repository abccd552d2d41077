//! `sojourn simulate tune --blocks … --split`: how to spend memory.

use super::super::{percent, write_page};
use super::{Args, config, gain};
use crate::lists::Sizes;
use crate::output::{Output, Table};
use block::{ByteSize, Error, Result};
use engine::config::time::duration;
use report::{Axis, Plot, Report, Series, Unit};
use serde::Serialize;
use simulate::{Budget, Costs, Spending, SpendingPlan};
use std::time::Duration;

/// Parts of the memory that clients may get.
const SHARES: [f64; 8] = [0.0, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75];

/// What to choose besides the policy, and by which times.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Choice {
    /// Also choose the size of blocks, of these: 4K-128K is 4, 8, 16, 32, 64 and 128 KiB
    #[arg(long, value_name = "LIST", conflicts_with_all = ["block", "per"])]
    blocks: Option<Sizes>,
    /// Also divide the memory between the server and a cache of each client
    #[arg(long, conflicts_with_all = ["client", "per"])]
    split: bool,
    /// Time of an exchange between client and server, without its data
    #[arg(long, value_name = "TIME", default_value = "200us", value_parser = duration)]
    trip: Duration,
    /// Bytes a second between client and server
    #[arg(long, value_name = "SIZE", default_value = "100M")]
    trip_rate: ByteSize,
    /// Time until the server gets from the store what it lacks, without its data
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = duration)]
    fetch: Duration,
    /// Bytes a second from the store
    #[arg(long, value_name = "SIZE", default_value = "100M")]
    fetch_rate: ByteSize,
}

impl Choice {
    /// Whether there is anything to choose besides the policy.
    pub(super) fn is_any(&self) -> bool {
        self.split || self.blocks.is_some()
    }

    fn costs(&self) -> Result<Costs> {
        if self.trip_rate.0 == 0 || self.fetch_rate.0 == 0 {
            return Err(Error::invalid("nothing comes at 0 bytes a second; give a higher rate"));
        }
        Ok(Costs {
            trip: self.trip.as_secs_f64(),
            trip_rate: self.trip_rate.0 as f64,
            fetch: self.fetch.as_secs_f64(),
            fetch_rate: self.fetch_rate.0 as f64,
        })
    }
}

#[derive(Debug, Serialize)]
struct BudgetCase {
    bytes: u64,
    config: String,
    #[serde(flatten)]
    spending: Spending,
}

/// Tunes blocks, division and policy.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let memory = args.memory.sizes().ok_or_else(|| {
        Error::invalid("what a part of the memory is depends on the block: give --memory in bytes")
    })?;
    if memory.len() > 1 && args.load.trace.as_os_str() == "-" {
        return Err(Error::invalid(
            "the trace is read once for each size of --memory: give a file, or one size",
        ));
    }
    let sizes = args
        .choice
        .blocks
        .as_ref()
        .map_or_else(|| args.load.one_size(), |list| Ok(list.0.clone()))?;
    let mut cases = Vec::new();
    for bytes in memory {
        let mut source = args.load.reading.open(&args.load.trace)?;
        let blocks = sizes.iter().map(|size| u32::try_from(*size).unwrap_or(u32::MAX));
        let budget = Budget {
            memory: *bytes,
            blocks: blocks.collect(),
            shares: if args.choice.split { SHARES.to_vec() } else { vec![0.0] },
            options: args.load.options_of_blocks(source.header())?,
            costs: args.choice.costs()?,
            one_in: args.one_in,
            samples: 4,
        };
        let spending = budget.spend(&mut *source)?;
        cases.push(BudgetCase { bytes: *bytes, config: lines(&spending), spending });
    }
    if let Some(path) = &args.html {
        write_page(path, &page(&cases, &args.load.trace.display().to_string()))?;
    }
    output.print(&cases, || cases.iter().map(text).collect::<Vec<_>>().join("\n"))
}

/// The lines of the configuration, and what is to be set elsewhere.
fn lines(spending: &Spending) -> String {
    let best = &spending.best;
    let client = match best.client {
        0 => "no cache".to_owned(),
        bytes => format!("a cache of {}", ByteSize(bytes)),
    };
    format!(
        "# each client: {client}; blocks of {}\n{}",
        ByteSize(best.block.into()),
        config(best.server, Some(&best.policy.to_string()))
    )
}

fn verdict(case: &BudgetCase) -> String {
    let Spending { best, plain, clients, saved, saved_error, .. } = &case.spending;
    format!(
        "{} for a server and {clients} client{}: blocks of {}, {} for each client, {} for the server \
         with {}: {} a read, {} less than with all of it at the server, blocks of {} and {}",
        ByteSize(case.bytes),
        if *clients == 1 { "" } else { "s" },
        ByteSize(best.block.into()),
        ByteSize(best.client),
        ByteSize(best.server),
        best.policy,
        Unit::Seconds.show(best.seconds),
        gain(*saved, *saved_error),
        ByteSize(plain.block.into()),
        plain.policy
    )
}

const COLUMNS: [&str; 8] = [
    ">block",
    ">each client",
    ">server",
    "policy",
    ">client hit %",
    ">server hit %",
    ">us a read",
    ">+-",
];

fn row(plan: &SpendingPlan) -> [String; 8] {
    [
        ByteSize(plan.block.into()).to_string(),
        ByteSize(plan.client).to_string(),
        ByteSize(plan.server).to_string(),
        plan.policy.to_string(),
        percent(plan.client_hit_ratio),
        percent(plan.server_hit_ratio),
        format!("{:.1}", plan.seconds * 1e6),
        format!("{:.1}", plan.error * 1e6),
    ]
}

fn text(case: &BudgetCase) -> String {
    let table = |plans: &[SpendingPlan]| {
        let mut table = Table::new(&COLUMNS);
        plans.iter().for_each(|plan| table.row(row(plan)));
        table.render()
    };
    format!(
        "{}\n\n{}\nall policies there:\n\n{}\n{}",
        verdict(case),
        table(&case.spending.plans),
        table(&case.spending.policies),
        case.config
    )
}

fn page(cases: &[BudgetCase], trace: &str) -> Report {
    let mut page = Report::new("Memory, divided").text(trace);
    for case in cases {
        let plans = &case.spending.plans;
        let x = Axis::new("part of the memory for clients", Unit::Percent);
        let mut plot = Plot::new("Time of a read", x, Axis::new("time", Unit::Seconds));
        for plans in plans.chunk_by(|a, b| a.block == b.block) {
            let part =
                |plan: &SpendingPlan| 100.0 * (1.0 - plan.server as f64 / case.bytes.max(1) as f64);
            let points = plans.iter().map(|plan| (part(plan), plan.seconds));
            plot = plot.series(Series::new(
                format!("blocks of {}", ByteSize(plans[0].block.into())),
                points,
            ));
        }
        let table = |plans: &[SpendingPlan]| {
            let mut table = report::Table::new(COLUMNS);
            plans.iter().for_each(|plan| {
                table.row(row(plan));
            });
            table
        };
        page = page
            .heading(&ByteSize(case.bytes).to_string())
            .text(&verdict(case))
            .plot(plot)
            .table(&table(plans))
            .text("All policies for the best blocks and division:")
            .table(&table(&case.spending.policies))
            .preformatted(&case.config);
    }
    page
}
