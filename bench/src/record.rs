//! What recording a trace costs a server: processor time for each request of two servers on equal
//! disks, one of which records. They take turns window by window, so that what else the machine does
//! meets both; the median of the windows' ratios counts.

use crate::contender::{self, Bench};
use crate::load::{self, Pattern, PatternLoad};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::ffi::OsStr;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Size of the disks: their image fits the cache.
const SIZE: u64 = 64 << 20;

/// One load.
#[derive(Debug, Serialize)]
pub(crate) struct RecordingRow {
    load: String,
    /// Processor time of a request in microseconds, medians.
    without_us: f64,
    with_us: f64,
    /// The median of with / without, and the quarters below and above it.
    ratio: f64,
    lower: f64,
    upper: f64,
}

/// What was measured.
#[derive(Debug, Serialize)]
pub(crate) struct RecordingCost {
    rows: Vec<RecordingRow>,
    /// Requests in the trace, and its bytes for each.
    requests: u64,
    bytes_each: f64,
}

/// Measures in `dir`, `rounds` windows of each load.
///
/// # Errors
/// When a server fails, or a request that it answered is not in the trace.
pub(crate) fn run(
    sojourn: &Path,
    dir: &Path,
    window: Duration,
    rounds: usize,
) -> Result<RecordingCost> {
    let wanted = |load: &PatternLoad| {
        matches!(load.pattern, Pattern::Read | Pattern::Write) && load.clients <= 8
    };
    let loads: Vec<PatternLoad> = load::ALL.into_iter().filter(wanted).collect();
    let private = contender::ALL.into_iter().find(|one| one.name == "sojourn-private");
    let private = private.context("there is no sojourn-private")?;
    let bench = |name: &str| {
        let place = dir.join(name);
        std::fs::create_dir(&place)?;
        Bench::new(&place, SIZE, sojourn.to_owned())
    };
    let trace = dir.join("trace.sjt");
    let (plain, recorded) = (bench("plain")?, bench("recorded")?);
    let more: [&OsStr; 2] = ["--trace".as_ref(), trace.as_ref()];
    let servers = [private.start(&plain)?, private.start_with(&recorded, &more)?];
    let mut answered = 0;
    let mut rows = Vec::new();
    for load in loads {
        let mut pairs: Vec<[f64; 2]> = Vec::new();
        for round in 0..rounds {
            let mut pair = [0.0; 2];
            // Who is first meets other moments of the machine.
            for at in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
                let server = &servers[at];
                let export = |index| server.export(index);
                let sample =
                    load::measure(load, window, SIZE, server.place(), &export, &mut server.tree())?;
                let requests = sample.latency.count();
                pair[at] = sample.cpu * 1e6 / requests as f64;
                answered += if at == 1 { requests } else { 0 };
            }
            eprintln!("{}: {:.3} us, recorded {:.3} us", load.name(), pair[0], pair[1]);
            pairs.push(pair);
        }
        let of = |what: fn(&[f64; 2]) -> f64| sorted(pairs.iter().map(what));
        let ratios = of(|pair| pair[1] / pair[0]);
        rows.push(RecordingRow {
            load: load.name(),
            without_us: at(&of(|pair| pair[0]), 0.5),
            with_us: at(&of(|pair| pair[1]), 0.5),
            ratio: at(&ratios, 0.5),
            lower: at(&ratios, 0.25),
            upper: at(&ratios, 0.75),
        });
    }
    drop(servers); // ends the trace
    let output = Command::new(sojourn).args(["--json", "trace", "info"]).arg(&trace).output()?;
    let info: serde_json::Value =
        serde_json::from_slice(&output.stdout).context("cannot read what is in the trace")?;
    let requests = info["requests"].as_u64().unwrap_or(0);
    ensure!(
        requests >= answered,
        "the trace has {requests} requests, of the {answered} that were answered"
    );
    let bytes_each = trace.metadata()?.len() as f64 / requests as f64;
    Ok(RecordingCost { rows, requests, bytes_each })
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The value below which a share of them lies.
fn at(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len().saturating_sub(1) as f64;
    sorted.get((last * share).round() as usize).copied().unwrap_or(f64::NAN)
}

impl fmt::Display for RecordingCost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "What recording costs: processor time of the server for each request, us")?;
        writeln!(f, "{:<14}{:>9}{:>10}{:>8}   quarters", "load", "without", "recorded", "ratio")?;
        for row in &self.rows {
            let RecordingRow { load, without_us, with_us, ratio, lower, upper } = row;
            writeln!(
                f,
                "{load:<14}{without_us:>9.3}{with_us:>10.3}{ratio:>8.3}   {lower:.3} to {upper:.3}"
            )?;
        }
        writeln!(f, "{} requests in the trace, {:.2} bytes each", self.requests, self.bytes_each)
    }
}
