//! `sojourn simulate cache`: hit ratios of policies at sizes.

use super::{CacheLoadArgs, percent, sizes, write_page};
use crate::lists::Amounts;
use crate::output::{Output, Table, raw};
use block::{ByteSize, Error, Result};
use report::{Axis, Plot, Report, Series, Unit};
use serde::Serialize;
use simulate::{Outcome, SimulatedPolicy, run_sizes};
use std::path::PathBuf;

/// Arguments of `sojourn simulate cache`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn simulate cache day.trace --policy lru,fmpq,lirs,opt --size 64M-1G
  sojourn simulate cache boots.trace --share image --size 16M,64M --html boots.html
  sojourn simulate cache day.trace --size 1%-40%
  sojourn simulate cache day.trace --client 16M --policy fmpq:lifetime=8 --size 256M --split 32768

A policy is a name, or a name with parameters: fmpq:lifetime=8,history=1. docs/simulate.md lists
them. opt is the best that any policy could do.")]
pub(crate) struct Args {
    #[command(flatten)]
    load: CacheLoadArgs,
    /// A policy, or several without parameters after commas; may be repeated [default: all]
    #[arg(long, value_name = "POLICY")]
    policy: Vec<String>,
    /// Sizes of the cache; 1G-16G is 1, 2, 4, 8 and 16 GiB, 10% a tenth of all that is asked for
    #[arg(long, value_name = "LIST")]
    size: Amounts,
    /// Split hits and misses at this distance: references since the block was last used (a power
    /// of two)
    #[arg(long, value_name = "N", value_parser = power)]
    split: Option<u32>,
    /// Print comma-separated values
    #[arg(long)]
    csv: bool,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

fn power(text: &str) -> Result<u32> {
    let number: Option<u32> = text.parse().ok();
    number.filter(|number| number.is_power_of_two()).ok_or_else(|| {
        Error::invalid(format!("{text:?} is no power of two; give one such as 32768"))
    })
}

/// Reads policies: separated by commas, unless they have parameters.
fn policies(texts: &[String]) -> Result<Vec<SimulatedPolicy>> {
    if texts.is_empty() {
        let all = cache::PolicyKind::all().into_iter().map(SimulatedPolicy::Kind);
        return Ok(all.chain([SimulatedPolicy::Opt]).collect());
    }
    let mut all = Vec::new();
    for text in texts {
        match text.contains(':') {
            true => all.push(text.parse()?),
            false => {
                for name in text.split(',') {
                    all.push(name.parse()?);
                }
            }
        }
    }
    Ok(all)
}

/// One policy at one size.
#[derive(Debug, Serialize)]
struct CacheRow {
    policy: String,
    bytes: u64,
    blocks: u32,
    hit_ratio: f64,
    read_hit_ratio: f64,
    /// Hits and misses below the distance, then from it; first references are in none.
    #[serde(skip_serializing_if = "Option::is_none")]
    split: Option<[u64; 4]>,
    #[serde(flatten)]
    outcome: Outcome,
}

#[derive(Debug, Serialize)]
struct CacheSimulationView {
    requests: u64,
    client_references: u64,
    /// What the clients' own caches answer of their reads; null without such caches.
    client_hit_ratio: Option<f64>,
    references: usize,
    distinct_blocks: u32,
    block: u32,
    rows: Vec<CacheRow>,
}

/// Simulates.
pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let policies = policies(&args.policy)?;
    let stream = args.load.read(1)?;
    let sizes = sizes(&args.size, &stream)?;
    let all_blocks: Vec<u32> = sizes.iter().map(|(_, blocks)| *blocks).collect();
    let mut rows = Vec::new();
    for policy in policies {
        let outcomes = run_sizes(policy, &all_blocks, &stream, args.split.is_some());
        for ((bytes, blocks), outcome) in sizes.iter().zip(outcomes) {
            rows.push(CacheRow {
                policy: policy.to_string(),
                bytes: *bytes,
                blocks: *blocks,
                hit_ratio: outcome.hit_ratio(),
                read_hit_ratio: outcome.read_hits as f64 / outcome.reads.max(1) as f64,
                split: args.split.map(|split| outcome.split(split.ilog2() as usize)),
                outcome,
            });
        }
    }
    let view = CacheSimulationView {
        requests: stream.requests,
        client_references: stream.before,
        client_hit_ratio: args.load.client_hit_ratio(&stream),
        references: stream.len(),
        distinct_blocks: stream.blocks(),
        block: stream.block,
        rows,
    };
    if let Some(path) = &args.html {
        write_page(path, &page(args, &view, &args.load.describe(&stream)))?;
    }
    if args.csv {
        return raw(csv(&view).as_bytes());
    }
    output.print(&view, || {
        let title = args.load.describe(&stream);
        format!("{title}\n\n{}{}", text(&view, args.split), matrix(&view))
    })
}

/// Hit ratios with a row for each policy and a column for each size, where there are several of both.
fn matrix(view: &CacheSimulationView) -> String {
    let of_policy: Vec<&[CacheRow]> = view.rows.chunk_by(|a, b| a.policy == b.policy).collect();
    let Some(first) = of_policy.first().filter(|rows| of_policy.len() > 1 && rows.len() > 1) else {
        return String::new();
    };
    let mut columns = vec!["hit %".to_owned()];
    columns.extend(first.iter().map(|row| format!(">{}", ByteSize(row.bytes))));
    let mut table = Table::new(&columns.iter().map(String::as_str).collect::<Vec<_>>());
    for rows in of_policy {
        let ratios = rows.iter().map(|row| percent(row.hit_ratio));
        table.row([rows[0].policy.clone()].into_iter().chain(ratios));
    }
    format!("\n{}", table.render())
}

fn text(view: &CacheSimulationView, split: Option<u32>) -> String {
    let mut columns = vec!["policy", ">size", ">hit %", ">hits", ">misses", ">first"];
    let titles: Vec<String> = split
        .map(|at| ["hits <", "misses <", "hits >=", "misses >="].map(|t| format!(">{t} {at}")))
        .into_iter()
        .flatten()
        .collect();
    columns.extend(titles.iter().map(String::as_str));
    let mut table = Table::new(&columns);
    for row in &view.rows {
        let mut cells = vec![
            row.policy.clone(),
            ByteSize(row.bytes).to_string(),
            percent(row.hit_ratio),
            row.outcome.hits.to_string(),
            row.outcome.misses.to_string(),
            row.outcome.cold.to_string(),
        ];
        cells.extend(row.split.into_iter().flatten().map(|count| count.to_string()));
        table.row(cells);
    }
    table.render()
}

fn csv(view: &CacheSimulationView) -> String {
    let mut text =
        String::from("policy,bytes,blocks,hit_ratio,hits,misses,first,read_hits,reads\n");
    for row in &view.rows {
        let o = &row.outcome;
        // A policy with parameters has commas.
        text.push_str(&format!(
            "\"{}\",{},{},{:.6},{},{},{},{},{}\n",
            row.policy,
            row.bytes,
            row.blocks,
            row.hit_ratio,
            o.hits,
            o.misses,
            o.cold,
            o.read_hits,
            o.reads
        ));
    }
    text
}

fn page(args: &Args, view: &CacheSimulationView, title: &str) -> Report {
    let mut page = Report::new("Simulated caches").text(title);
    let mut plot = Plot::new(
        "Hit ratio by size",
        Axis::log("cache", Unit::Bytes),
        Axis::new("hits", Unit::Percent),
    );
    for rows in view.rows.chunk_by(|a, b| a.policy == b.policy) {
        let points = rows.iter().map(|row| (row.bytes as f64, row.hit_ratio * 100.0));
        let series = Series::new(rows[0].policy.clone(), points);
        plot = plot.series(if rows[0].policy == "opt" { series.dashed() } else { series });
    }
    page = page.plot(plot);
    let mut table = report::Table::new(["Policy", ">Size", ">Hit %", ">Hits", ">Misses"]);
    for row in &view.rows {
        table.row([
            row.policy.clone(),
            ByteSize(row.bytes).to_string(),
            percent(row.hit_ratio),
            row.outcome.hits.to_string(),
            row.outcome.misses.to_string(),
        ]);
    }
    page = page.heading("Results").table(&table);
    let Some(split) = args.split else { return page };
    let mut table = report::Table::new([
        "Policy".to_owned(),
        ">Size".to_owned(),
        format!(">Hits below {split}"),
        format!(">Misses below {split}"),
        format!(">Hits from {split}"),
        format!(">Misses from {split}"),
    ]);
    for row in &view.rows {
        let mut cells = vec![row.policy.clone(), ByteSize(row.bytes).to_string()];
        cells.extend(row.split.into_iter().flatten().map(|count| count.to_string()));
        table.row(cells);
    }
    page.heading("By distance since the block was last used").table(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_lists_unless_they_have_parameters() {
        let names = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|&text| text.to_owned()).collect();
            let all = policies(&texts).unwrap();
            all.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            names(&["lru,opt", "fmpq:lifetime=8,history=1"]),
            ["lru", "opt", "fmpq:lifetime=8,history=1"]
        );
        assert_eq!(names(&[]).len(), 15);
        assert!(policies(&["mru".to_owned()]).unwrap_err().message().contains("or opt"));
        assert!(power("1000").is_err());
    }
}
