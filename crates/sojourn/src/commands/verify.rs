//! `sojourn verify`: everything in the store, a sample of it, or what some names need.

use super::runnable::{Invocation, Runnable, finish};
use crate::output::Output;
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, Result};
use engine::Config;
use engine::Home;
use engine::{self, StoreUse, sources};
use std::fmt::Write;
use std::process::ExitCode;
use store::verify::{Fault, FaultState, StoreVerifyReport, Touched, VerifyOptions};
use store::{ImageName, RefKind, Store, images};

/// Parts of an image that are printed of one fault.
const SHOWN: usize = 4;

/// Arguments of `sojourn verify`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn verify                      every object of the store
  sojourn verify --deep               and what faulty memory may have written
  sojourn verify --sample 1%          all maps and names, and a hundredth of the packs
  sojourn verify debian:3 alice@monday
  sojourn verify --source /mnt/copy   also say what a copy of the store could heal

Names each damaged or missing object, the images, disks and snapshots that need it, and where.
The exit code is 7 when there is any. Run it beside everything else: nothing is locked or changed.")]
pub(crate) struct Args {
    /// Verify what these need, not the whole store: NAME[:TAG] of an image, DISK@SNAPSHOT
    #[arg(value_name = "IMAGE|DISK@SNAP")]
    pub(crate) names: Vec<String>,
    /// Read only this part of the packs (or of the chunks that the names need), another one each
    /// time
    #[arg(long, value_name = "PERCENT", value_parser = permille)]
    pub(crate) sample: Option<u32>,
    /// Decompress every chunk and compare its id: finds what was written wrong, too
    #[arg(long)]
    pub(crate) deep: bool,
    /// Another store with the same key: say what it could heal; may be repeated
    #[arg(long, value_name = "DIR|URL")]
    pub(crate) source: Vec<String>,
}

/// Reads a percentage, in thousandths.
fn permille(text: &str) -> Result<u32> {
    let wrong = || Error::invalid(format!("{text:?} is not a percentage from 0.1% to 100%"));
    let number: f64 = text.trim_end_matches('%').parse().map_err(|_| wrong())?;
    let permille = (number * 10.0).round();
    if (1.0..=1000.0).contains(&permille) { Ok(permille as u32) } else { Err(wrong()) }
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(self, &invocation.home()?, invocation.output))
    }
}

/// Verifies.
async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let store = stores::open_for(home, &config, StoreUse::Inspection).await?;
    sources::add(&store, &args.source, home, &config).await?;
    let mut names = Vec::with_capacity(args.names.len());
    for name in &args.names {
        names.push(resolve(&store, name).await?);
    }
    let options = VerifyOptions { sample_permille: args.sample, names, deep: args.deep };
    let bar = Bar::bytes("verifying", None);
    let report = store::verify::store(&store, &options, &bar).await?;
    drop(bar);
    output.print(&report, || text(&report))?;
    match report.faults.as_slice() {
        [] => Ok(()),
        [first, rest @ ..] => Err(Error::corrupt(format!(
            "{} of the store's objects {}: {}{}; heal them with `sojourn repair --from`, or \
             restore them from a backup",
            report.faults.len(),
            if rest.is_empty() { "is missing or damaged" } else { "are missing or damaged" },
            first.object,
            if rest.is_empty() { "" } else { " and others" },
        ))),
    }
}

async fn resolve(store: &Store, name: &str) -> Result<(RefKind, String)> {
    if name.contains('@') {
        // Only parcels are numbered by nature; a snapshot of that name goes before.
        let snapshot = store.refs().get(RefKind::Snapshot, name).await?;
        let kind = match snapshot {
            None if store.refs().get(RefKind::Parcel, name).await?.is_some() => RefKind::Parcel,
            _ => RefKind::Snapshot,
        };
        return Ok((kind, name.to_owned()));
    }
    let image: ImageName = name.parse()?;
    Ok((RefKind::Image, images::resolve(store, &image).await?.name))
}

fn text(report: &StoreVerifyReport) -> String {
    let mut text = format!(
        "{} names, {} objects, {} packs, {} chunks read: {} in the store, {} of data\n",
        report.names,
        report.objects,
        report.packs,
        report.chunks,
        ByteSize(report.stored_bytes),
        ByteSize(report.bytes),
    );
    if report.is_clean() {
        text.push_str("nothing is missing or damaged\n");
    }
    report.faults.iter().for_each(|fault| text.push_str(&describe(fault)));
    text
}

/// A fault and whom it touches, in lines.
pub(crate) fn describe(fault: &Fault) -> String {
    let state = match fault.state {
        FaultState::Missing => "missing",
        FaultState::Damaged => "damaged",
    };
    let mut text = format!("{}: {state} at {}: {}\n", fault.object, fault.offset, fault.why);
    if fault.healable_chunks > 0 {
        let (some, all) = (fault.healable_chunks, fault.lost_chunks);
        let _ = writeln!(text, "  sources have {some} of its {all} lost chunks");
    }
    if fault.touches.is_empty() {
        text.push_str("  no name needs what is wrong with it\n");
    }
    for touched in &fault.touches {
        let _ = writeln!(text, "  {} {}{}", touched.kind, touched.name, spans(touched));
    }
    text
}

fn spans(touched: &Touched) -> String {
    let shown = touched.spans.iter().take(SHOWN);
    let mut text: String =
        shown.map(|span| format!(", {} at {}", ByteSize(span.length), span.offset)).collect();
    if touched.spans.len() > SHOWN {
        let _ = write!(text, ", and {} more", touched.spans.len() - SHOWN);
    }
    text
}
