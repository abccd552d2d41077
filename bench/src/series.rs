//! All windows of a run. Every round starts each server anew, one after the other, and measures
//! one window of each load, so that a median spans the whole run: a noisy moment of the machine
//! spoils one window of a few cells and no median.

use crate::contender::{self, Bench, Contender};
use crate::load::{self, Load, Sample};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Length of a window.
    pub(crate) window: Duration,
    /// Windows of each cell.
    pub(crate) rounds: usize,
    /// Size of the disk, bytes.
    pub(crate) size: u64,
    /// Beginnings of the names of the wanted servers; all, when empty.
    pub(crate) only: Vec<String>,
    /// Over TCP on this machine, and not over unix sockets.
    pub(crate) tcp: bool,
    /// The loads.
    pub(crate) loads: Vec<Load>,
}

/// One server's run.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) contender: Contender,
    pub(crate) version: String,
    /// One for each load.
    pub(crate) cells: Vec<Cell>,
}

/// One load on one server.
#[derive(Debug, Default)]
pub(crate) struct Cell {
    pub(crate) samples: Vec<Sample>,
    /// Why there is no figure: the first failure in any round.
    pub(crate) failure: Option<String>,
}

/// All servers' runs.
#[derive(Debug, Default)]
pub(crate) struct Series {
    pub(crate) runs: Vec<Run>,
    /// Servers that cannot run here, and why.
    pub(crate) left_out: Vec<(Contender, String)>,
}

/// Runs everything in `dir`.
pub(crate) fn run(options: &Options, dir: &Path, sojourn: Option<PathBuf>) -> Result<Series> {
    let mut bench = Bench::new(dir, options.size, sojourn)?;
    if options.tcp {
        bench = bench.over_tcp();
    }
    let mut series = Series::default();
    for contender in contender::ALL {
        let wanted = contender.role == contender::Role::Limit
            || options.only.is_empty()
            || options.only.iter().any(|name| contender.name.starts_with(name.as_str()));
        if !wanted {
            continue;
        }
        match contender.version(&bench) {
            Ok(version) => {
                let cells = options.loads.iter().map(|_| Cell::default()).collect();
                series.runs.push(Run { contender, version, cells });
            }
            Err(error) => {
                let why = format!("{error:#}");
                eprintln!("left out: {}: {why}", contender.name);
                series.left_out.push((contender, why));
            }
        }
    }
    for round in 1..=options.rounds {
        for run in &mut series.runs {
            eprintln!("round {round} of {}: {}", options.rounds, run.contender.name);
            run_round(options, &bench, run);
        }
    }
    Ok(series)
}

/// One window of each load on a fresh server; on another one from there where a load wants private disks that
/// nobody wrote to, and somebody did. Of servers of one raw file that is the same file again.
fn run_round(options: &Options, bench: &Bench, run: &mut Run) {
    let contender = run.contender;
    let start = || contender.start(bench).map_err(|error| format!("{error:#}"));
    let (mut server, mut touched) = (start(), false);
    for (load, cell) in options.loads.iter().zip(&mut run.cells) {
        if touched && load.wants_untouched() && server.is_ok() {
            drop(server); // before the other one takes its room
            (server, touched) = (start(), false);
        }
        touched |= load.writes();
        let result = match &server {
            Ok(server) => load::measure(
                *load,
                options.window,
                options.size,
                server.place(),
                &|index| server.export(index),
                &mut server.tree(),
            )
            .map_err(|error| match server.alive() {
                true => format!("{error:#}"),
                false => format!("the server died ({error:#})"),
            }),
            Err(why) => Err(why.clone()),
        };
        match result {
            Ok(sample) => cell.samples.push(sample),
            Err(why) => {
                eprintln!("  {}: {why}", load.name());
                cell.failure.get_or_insert(why);
            }
        }
        if server.as_ref().is_ok_and(|server| !server.alive()) {
            server = Err(format!("not running: the server died in {}", load.name()));
        }
    }
}
