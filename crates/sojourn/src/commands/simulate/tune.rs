//! `sojourn simulate tune`: the best policy for a size, by miniature simulation.

mod budget;

use super::{CacheLoadArgs, percent, sizes, write_page};
use crate::lists::Amounts;
use crate::output::{Output, Table};
use block::{ByteSize, Result};
use report::{Axis, Bars, Report, Unit};
use serde::Serialize;
use simulate::{Advice, TuningQuestion, tune};
use std::path::PathBuf;

/// Arguments of `sojourn simulate tune`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate tune day.trace --memory 4G
  sojourn simulate tune day.trace --memory 256M-4G --client 64M --share image --html tune.html
  sojourn simulate tune day.trace --memory 4G --blocks 4K-128K --split
  sojourn simulate tune day.trace --memory 4G --split --fetch 20ms --fetch-rate 50M

Every policy that a server can have, many with several parameters, runs in miniature on eight
samples of one block in 64. What it prints goes into sojourn.toml. With --blocks or --split it
also chooses the size of blocks, or what part of the memory to give to the clients: then what
counts is the time of a read, as --trip and --fetch have it.")]
pub(crate) struct Args {
    #[command(flatten)]
    pub(super) load: CacheLoadArgs,
    /// Memory of the server's cache, with --split of all caches; of several sizes each is tuned. 10% is
    /// a tenth of all that is asked for
    #[arg(long, value_name = "LIST")]
    pub(super) memory: Amounts,
    /// A sample is one block of N
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=4096))]
    pub(super) one_in: u32,
    #[command(flatten)]
    pub(super) choice: budget::Choice,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
}

#[derive(Debug, Serialize)]
struct TunedSize {
    bytes: u64,
    /// What to configure; null where nothing is gained by it.
    policy: Option<String>,
    saved: f64,
    saved_error: f64,
    config: String,
    #[serde(flatten)]
    advice: Advice,
}

/// Tunes.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    if args.choice.is_any() {
        return budget::run(args, output);
    }
    let stream = args.load.read(1)?;
    let sizes = sizes(&args.memory, &stream)?;
    let mut cases = Vec::new();
    for (bytes, blocks) in sizes {
        let question = TuningQuestion { one_in: args.one_in, ..TuningQuestion::new(blocks) };
        let advice = tune(&stream, &question)?;
        let policy = advice.recommended().map(|best| best.policy.to_string());
        let config = config(bytes, policy.as_deref());
        let (saved, saved_error) = (advice.saved(), advice.saved_error());
        cases.push(TunedSize { bytes, policy, saved, saved_error, config, advice });
    }
    let title = args.load.describe(&stream);
    if let Some(path) = &args.html {
        write_page(path, &page(&cases, &title))?;
    }
    output.print(&cases, || {
        let cases: String = cases.iter().map(describe).collect();
        format!("{title}\n{cases}")
    })
}

/// The lines of the configuration for a cache.
fn config(bytes: u64, policy: Option<&str>) -> String {
    let policy = policy.map(|policy| format!("policy = \"{policy}\"\n")).unwrap_or_default();
    format!("[cache]\nsize = \"{}\"\n{policy}", exact(bytes))
}

/// A size that is read back as the same number of bytes.
fn exact(bytes: u64) -> String {
    let short = ByteSize(bytes).to_string();
    let same = short.parse::<ByteSize>().is_ok_and(|size| size.0 == bytes);
    if same { short } else { format!("{bytes}") }
}

/// A gain with half of the interval that holds it with 95 %.
fn gain(saved: f64, error: f64) -> String {
    format!("{} % (+- {})", percent(saved), percent(error))
}

/// What is said of a case above its table.
fn verdict(case: &TunedSize) -> String {
    let (bytes, usual) = (ByteSize(case.bytes), case.advice.usual.policy);
    let Some(policy) = &case.policy else {
        return format!(
            "{bytes}: leave the policy as it is: none is expected to hit more often than {usual} by more \
             than chance"
        );
    };
    let saved = gain(case.saved, case.saved_error);
    format!("{bytes}: {policy}, which is expected to miss {saved} less often than lru")
}

/// The candidates, best first.
fn rows(case: &TunedSize) -> impl Iterator<Item = [String; 3]> + '_ {
    case.advice.candidates.iter().map(|candidate| {
        let policy = candidate.policy.to_string();
        [policy, percent(candidate.hit_ratio), percent(candidate.error)]
    })
}

fn describe(case: &TunedSize) -> String {
    let mut table = Table::new(&["policy", ">hit %", ">+-"]);
    rows(case).for_each(|row| table.row(row));
    format!("\n{}\n\n{}\n{}", verdict(case), table.render(), case.config)
}

fn page(cases: &[TunedSize], title: &str) -> Report {
    let mut page = Report::new("Policies, tuned").text(title);
    for case in cases {
        let names = case.advice.candidates.iter().map(|candidate| candidate.policy.to_string());
        let hits = case.advice.candidates.iter().map(|candidate| candidate.hit_ratio * 100.0);
        let title = format!("Expected hit ratio with {}", ByteSize(case.bytes));
        let bars = Bars::new(title, "policy", names, Axis::new("hits", Unit::Percent));
        let mut table = report::Table::new(["Policy", ">Hit %", ">+-"]);
        rows(case).for_each(|row| {
            table.row(row);
        });
        page = page
            .heading(&ByteSize(case.bytes).to_string())
            .text(&verdict(case))
            .bars(bars.series("expected", hits))
            .table(&table)
            .preformatted(&case.config);
    }
    page
}
