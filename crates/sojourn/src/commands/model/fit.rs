//! `sojourn model fit`: the demands of a real server, measured.

mod args;
mod lab;
mod loads;
mod run;
#[cfg(test)]
mod tests;

pub(crate) use self::args::Args;

use self::lab::{Lab, worst};
use self::run::FitRun;
use super::lookups::lookups;
use super::measure::{Watched, interface};
use super::{pieces, write_file};
use crate::output::{Output, Table};
use block::{ByteSize, Error, Result};
use engine::Home;
use model::Profile;
use serde::Serialize;
use std::fmt::Write;

/// A model that is off by more is of no use.
const WRONG: f64 = 0.5;

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
        return pieces::run(&args.target, without, &args.out, home, output);
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
        profile.add_block_size(centres, *block)?;
        runs.append(&mut measured);
    }
    profile.drop_zero_demands();
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
