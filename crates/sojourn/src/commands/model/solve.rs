//! `sojourn model solve`.

use super::solved::{ClientsRow, SolveView, SolvedCase, SwitchView, not_measured, percent};
use super::{classes, plots, profile, write_file};
use crate::lists::{Numbers, Shares, Sizes};
use crate::output::{Output, Table};
use block::{ByteSize, Error, Result};
use engine::config::time::duration;
use model::{CentreKind, Network, Profile, Solution};
use std::fmt::Write;
use std::path::PathBuf;
use std::time::Duration;

/// The most results that are computed.
const MOST_ROWS: usize = 1_000_000;
/// The most rows of a case that are printed as text.
const SHOWN: usize = 12;

/// Arguments of `sojourn model solve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn model solve transcom --clients 1-50 --hit 0,0.5,0.9,0.95,1 --block 4K,32K
  sojourn model solve transcom --clients 1,5,15,50 --hit 0-1:0.01 --block 4K,32K --html curves.html
  sojourn model solve server.toml --clients 1-500 --hit 95% --csv load.csv

PROFILE is a file as `sojourn model fit` writes it (docs/model.md), or `transcom`: the server of
Table 1 of the TransCom paper. Responses hold all centres of the profile, delays included. A
profile with classes of clients, and no --clients, is solved for that mix.")]
pub(crate) struct Args {
    /// The demands of the server: a file, or `transcom`
    pub(crate) profile: String,
    /// Numbers of clients [default: 1-50]
    #[arg(long, value_name = "LIST")]
    pub(crate) clients: Option<Numbers>,
    /// Hit ratios of the server's cache, 0 to 1
    #[arg(long, value_name = "LIST", default_value = "0,0.5,0.8,0.9,0.95,1")]
    pub(crate) hit: Shares,
    /// Bytes of a request
    #[arg(long, value_name = "LIST", default_value = "4K")]
    pub(crate) block: Sizes,
    /// Time of a client between an answer and its next request
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration)]
    pub(crate) think: Duration,
    /// Also write all results as CSV
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Also write a page with plots, which opens without a network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let contents = profile(&args.profile)?;
    if args.clients.is_none() && !contents.classes.is_empty() {
        return classes::run(&contents, output);
    }
    let clients = args.clients.clone().unwrap_or_else(|| Numbers((1..=50).collect()));
    let view = compute(&contents.profile, &clients.0, args)?;
    if let Some(path) = &args.csv {
        write_file(path, &csv(&contents.profile, &view)?)?;
    }
    if let Some(path) = &args.html {
        write_file(path, &plots::page(&view))?;
    }
    output.print(&view, || text(&contents.profile, &view))
}

fn compute(profile: &Profile, clients: &[u32], args: &Args) -> Result<SolveView> {
    let rows = clients.len() * args.hit.0.len() * args.block.0.len();
    if rows > MOST_ROWS {
        return Err(Error::invalid(format!(
            "{rows} results are asked for, at most {MOST_ROWS} are computed: give shorter lists"
        )));
    }
    if clients.first() == Some(&0) {
        return Err(Error::invalid("0 clients ask for nothing: give 1 or more"));
    }
    let think = args.think.as_secs_f64();
    let mut cases = Vec::new();
    let mut switches = Vec::new();
    let name = |k: usize| profile.centres[k].name.clone();
    for block in &args.block.0 {
        for switch in profile.switches(*block)? {
            let (below, above) = (name(switch.below), name(switch.above));
            switches.push(SwitchView { block: *block, hit: switch.hit, below, above });
        }
        for hit in &args.hit.0 {
            let network = profile.network(*block, *hit, think)?;
            let solutions = network.sweep(clients.last().copied().unwrap_or(0))?;
            let wanted = clients.iter().filter_map(|n| solutions.get(*n as usize - 1));
            let bounds = network.bounds();
            cases.push(SolvedCase {
                block: *block,
                hit: *hit,
                extrapolated: profile.extrapolated(*block).next().is_some(),
                knee: bounds.knee(),
                limit: (bounds.highest > 0.0).then(|| 1.0 / bounds.highest),
                bottleneck: bounds.bottleneck.map(name),
                rows: wanted.map(|solution| row(&network, *block, solution)).collect(),
            });
        }
    }
    Ok(SolveView { profile: profile.name.clone(), think_ms: think * 1e3, cases, switches })
}

fn row(network: &Network, block: u64, solution: &Solution) -> ClientsRow {
    let queues = network.centres().iter().zip(&solution.centres);
    let queues = queues.filter(|(centre, _)| centre.kind != CentreKind::Delay);
    ClientsRow {
        clients: solution.clients,
        throughput: solution.throughput,
        bytes_per_second: solution.throughput * block as f64,
        response_ms: solution.response * 1e3,
        utilisation: queues.map(|(c, used)| (c.name.clone(), used.utilisation)).collect(),
        bottleneck: solution.bottleneck(network).map(|k| network.centres()[k].name.clone()),
    }
}

/// Queueing centres, in the profile's order.
fn queues(profile: &Profile) -> Vec<&str> {
    let queues = profile.centres.iter().filter(|centre| centre.kind != CentreKind::Delay);
    queues.map(|centre| centre.name.as_str()).collect()
}

fn text(profile: &Profile, view: &SolveView) -> String {
    let names = queues(profile);
    let titles: Vec<String> =
        names.iter().map(|name| format!(">{}", name.to_uppercase())).collect();
    let mut columns = vec![">BLOCK", ">HIT", ">CLIENTS", ">REQUESTS/S", ">MIB/S", ">RESPONSE MS"];
    columns.extend(titles.iter().map(String::as_str));
    let mut table = Table::new(&columns);
    for case in &view.cases {
        for at in shown(case.rows.len()) {
            let row = &case.rows[at];
            let mut cells = vec![
                ByteSize(case.block).to_string(),
                percent(case.hit),
                row.clients.to_string(),
                format!("{:.2}", row.throughput),
                format!("{:.2}", row.bytes_per_second / f64::from(1 << 20)),
                format!("{:.4}", row.response_ms),
            ];
            cells.extend(
                names.iter().map(|name| format!("{:.2} %", row.utilisation[*name] * 100.0)),
            );
            table.row(cells);
        }
    }
    let mut text = table.render();
    text.push('\n');
    for case in &view.cases {
        let size = ByteSize(case.block);
        let _ = match (&case.bottleneck, case.knee, case.limit) {
            (Some(bottleneck), Some(knee), Some(limit)) => writeln!(
                text,
                "{size}, {} hits: {bottleneck} limits to {limit:.1} requests/s, knee at {knee:.1} \
                 clients",
                percent(case.hit)
            ),
            _ => writeln!(text, "{size}, {} hits: nothing limits", percent(case.hit)),
        };
    }
    for switch in &view.switches {
        let SwitchView { block, hit, below, above } = switch;
        let _ = writeln!(
            text,
            "{}: {below} is the bottleneck below {} hits, {above} above",
            ByteSize(*block),
            percent(*hit)
        );
    }
    let cases = view.cases.iter().filter(|case| case.extrapolated);
    text.push_str(&not_measured(cases.map(|case| case.block)));
    text
}

/// Which of so many rows are shown: all, or some that lie evenly, the first and the last.
fn shown(rows: usize) -> Vec<usize> {
    if rows <= SHOWN {
        return (0..rows).collect();
    }
    let mut all: Vec<usize> = (0..SHOWN).map(|i| i * (rows - 1) / (SHOWN - 1)).collect();
    all.dedup();
    all
}

/// All rows as CSV.
fn csv(profile: &Profile, view: &SolveView) -> Result<String> {
    let names = queues(profile);
    if names.iter().any(|name| name.contains([',', '"', '\n'])) {
        return Err(Error::invalid(
            "a centre's name has a comma or a quote, which CSV cannot hold: rename it",
        ));
    }
    let mut csv =
        "block,hit,clients,requests_per_second,bytes_per_second,response_ms,bottleneck".to_owned();
    names.iter().for_each(|name| csv.push_str(&format!(",utilisation_{name}")));
    csv.push('\n');
    for case in &view.cases {
        for row in &case.rows {
            let _ = write!(
                csv,
                "{},{},{},{},{},{},{}",
                case.block,
                case.hit,
                row.clients,
                row.throughput,
                row.bytes_per_second,
                row.response_ms,
                row.bottleneck.as_deref().unwrap_or("")
            );
            for name in &names {
                let _ = write!(csv, ",{}", row.utilisation[*name]);
            }
            csv.push('\n');
        }
    }
    Ok(csv)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_show_their_first_and_last_row() {
        assert_eq!(shown(3), [0, 1, 2]);
        let rows = shown(500);
        assert_eq!((rows.len(), rows[0], rows[SHOWN - 1]), (SHOWN, 0, 499));
    }
}
