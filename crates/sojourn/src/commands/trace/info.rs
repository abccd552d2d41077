//! `sojourn trace info`.

use super::Reading;
use crate::output::{Output, Table, fields, moment, visible};
use crate::progress::Bar;
use block::{ByteSize, Result};
use report::Unit;
use serde::Serialize;
use std::path::PathBuf;
use trace::{Format, TraceDisk};

/// Clients and disks that are printed.
const SHOWN: usize = 20;

/// Arguments of `sojourn trace info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace info boot.sjt
  sojourn trace info --json web.load.gz")]
pub(crate) struct Args {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    reading: Reading,
}

/// What is printed.
#[derive(Serialize)]
struct InfoView {
    format: Option<Format>,
    complete: bool,
    requests: u64,
    /// When it began, Unix seconds; null where that is not known.
    began: Option<f64>,
    seconds: Option<f64>,
    times: bool,
    latencies: bool,
    operations: bool,
    alignment: u32,
    clients: Vec<String>,
    disks: Vec<TraceDisk>,
    notes: String,
}

pub(super) fn run(args: &Args, output: Output) -> Result<()> {
    let options = args.reading.options();
    let format = match args.trace.as_os_str() == "-" {
        true => options.format,
        false => Some(trace::guess(&args.trace, &options)?),
    };
    let mut source = args.reading.open(&args.trace)?;
    let bar = Bar::requests("reading", source.header().requests);
    let (mut batch, mut requests, mut last) = (Vec::new(), 0, 0);
    while source.read(&mut batch)? {
        requests += batch.len() as u64;
        last = batch.last().map_or(last, |r| r.time);
        bar.at(requests, 0);
    }
    drop(bar);
    let header = source.header().clone();
    let view = InfoView {
        format,
        complete: header.complete,
        requests,
        began: (header.start > 0).then(|| header.start as f64 / 1e9),
        seconds: header.times.then_some(last as f64 / 1e9),
        times: header.times,
        latencies: header.latencies,
        operations: header.ops,
        alignment: header.alignment,
        clients: header.clients,
        disks: header.disks,
        notes: header.notes,
    };
    output.print(&view, || text(&view))
}

fn text(view: &InfoView) -> String {
    let yes = |known: bool| if known { "yes" } else { "not known" }.to_owned();
    let finished =
        if view.complete { "" } else { " (not finished: its recorder is at work, or was killed)" };
    let mut text = fields(&[
        ("format", view.format.map_or("-", Format::as_str).to_owned() + finished),
        ("requests", view.requests.to_string()),
        ("began", view.began.map_or_else(|| yes(false), |s| moment(s as u64) + " UTC")),
        ("length", view.seconds.map_or_else(|| yes(false), |s| Unit::Seconds.show(s))),
        ("latencies", yes(view.latencies)),
        ("operations", yes(view.operations)),
        ("aligned to", ByteSize(view.alignment.into()).to_string()),
        ("clients", view.clients.len().to_string()),
        ("disks", view.disks.len().to_string()),
    ]);
    let named: Vec<_> = view.clients.iter().filter(|name| !name.is_empty()).collect();
    if !named.is_empty() {
        let mut table = Table::new(&["client"]);
        named.iter().take(SHOWN).for_each(|name| table.row([(*name).clone()]));
        text.push('\n');
        text.push_str(&table.render());
    }
    let disks: Vec<_> = view.disks.iter().filter(|disk| !disk.name.is_empty()).collect();
    if !disks.is_empty() {
        let mut table = Table::new(&["disk", ">size", "made from"]);
        for disk in disks.iter().take(SHOWN) {
            let size = if disk.size == 0 { "-".into() } else { ByteSize(disk.size).to_string() };
            table.row([disk.name.clone(), size, disk.base.clone()]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    if named.len() > SHOWN || disks.len() > SHOWN {
        text.push_str("… and more; see --json\n");
    }
    if !view.notes.is_empty() {
        text.push('\n');
        view.notes.lines().for_each(|line| {
            text.push_str(&visible(line));
            text.push('\n');
        });
    }
    text
}
