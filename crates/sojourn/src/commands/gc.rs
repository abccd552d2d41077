//! `sojourn gc`: deleting what no name needs any more.

use super::runnable::{Invocation, Runnable, writes};
use crate::output::{Output, visible};
use crate::progress::Bar;
use crate::stores;
use block::{ByteSize, Error, Result, offload};
use engine::Config;
use engine::Home;
use objects::Amount;
use objects::{is_remote, sweep_staging};
use serde::Serialize;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;
use store::gc::{GcOptions, GcReport, collect};

/// Arguments of `sojourn gc`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn gc --dry-run              what is garbage now
  sojourn gc                        once a day, from cron or a timer
  sojourn gc --grace 0s             delete garbage at once, when nobody reads what was removed

It runs beside servers, imports and other collections. What it finds unreferenced is only noted;
a later run deletes it after the grace period, unless it is in use again. Packs that are mostly
garbage are rewritten. What cannot be read stops the deletion of whatever it may refer to: exit
code 7.")]
pub(crate) struct Args {
    /// Only say what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// How long garbage stays, for readers of images that were removed
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub(crate) grace: Duration,
    /// Rewrite packs of which less than this is in use; 0% for none
    #[arg(long, value_name = "PERCENT", default_value = "50%", value_parser = share)]
    pub(crate) rewrite_below: f64,
    /// Take imports, commits and copies for dead that were silent for so long; they show themselves
    /// every hour, so with less than 2h none may be running
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = time)]
    pub(crate) stale: Duration,
}

/// What was done.
#[derive(Serialize)]
struct GcView {
    #[serde(flatten)]
    report: GcReport,
    /// Files that killed writers left in a local store, deleted.
    left_over: Amount,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        writes(run(self, &invocation.home()?, invocation.output))
    }
}

/// Collects.
async fn run(args: &Args, home: &Home, output: Output) -> Result<()> {
    let config = Config::of(home)?;
    let store = stores::open(home, &config).await?;
    let Args { dry_run, grace, rewrite_below, stale } = *args;
    let bar = Bar::bytes("collecting", None);
    let report = collect(&store, &GcOptions { dry_run, grace, rewrite_below, stale }, &bar).await?;
    let place = home.store_url(&config.store);
    let left_over = if is_remote(&place) {
        Amount::default()
    } else {
        let directory = place.strip_prefix("file://").unwrap_or(&place).to_owned();
        offload(move || sweep_staging(Path::new(&directory), stale, dry_run)).await?
    };
    drop(bar);
    let view = GcView { report, left_over };
    output.print(&view, || text(&view))?;
    match view.report.doubts.first() {
        None => Ok(()),
        Some(first) => Err(Error::corrupt(format!(
            "not everything could be collected: {first}; mend it with `sojourn repair`, or remove \
             the name that needs it"
        ))),
    }
}

fn amount(amount: Amount) -> String {
    format!("{} in {} objects", ByteSize(amount.bytes), amount.objects)
}

fn text(view: &GcView) -> String {
    let GcView { report, left_over } = view;
    let (would, to_be) = if report.dry_run { ("would be ", "would be") } else { ("", "is") };
    let live = &report.live;
    let mut text = format!(
        "in use: {} names, {} manifests, {} packs, {} chunks\n",
        live.names, live.manifests, live.packs, live.chunks
    );
    let _ = writeln!(text, "garbage found: {}", amount(report.found));
    if report.rewritten.objects > 0 {
        let _ = writeln!(
            text,
            "of that in packs that {would}rewritten: {}, of which {} {to_be} kept",
            amount(report.rewritten),
            ByteSize(report.kept_bytes)
        );
    }
    let _ = writeln!(text, "{would}deleted: {}", amount(report.freed));
    for waiting in &report.waiting {
        let _ = write!(text, "waiting: {}", amount(waiting.garbage));
        if waiting.seconds > 0 {
            let _ = write!(text, ", for {}", span(waiting.seconds));
        }
        if !waiting.sessions.is_empty() {
            // In their own words, which a gateway's client may have chosen.
            let _ = write!(text, ", until the end of: {}", visible(&waiting.sessions.join(", ")));
        }
        text.push('\n');
    }
    for (count, what) in [
        (report.records, "old records of names"),
        (report.pins, "pins of writers that died"),
        (left_over.objects, "files of writers that died"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{would}deleted: {count} {what}");
        }
    }
    for list in &report.replaced {
        let _ = writeln!(text, "damaged and replaced: {list}, a list of garbage");
    }
    for doubt in &report.doubts {
        let _ = writeln!(text, "cannot be read: {doubt}");
    }
    text
}

const UNITS: [(&str, u64); 4] = [("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)];

/// A time as people say it, in the largest unit that has one.
fn span(seconds: u64) -> String {
    let unit = UNITS.iter().find(|(_, length)| seconds >= *length);
    let (name, length) = unit.copied().unwrap_or(("s", 1));
    format!("{} {name}", seconds.div_ceil(length))
}

/// Reads a time such as `90s`, `30m`, `24h` or `7d`.
pub(super) fn time(text: &str) -> Result<Duration> {
    let wrong = || {
        Error::invalid(format!(
            "{text:?} is not a time: write a number and s, m, h or d, as in 24h"
        ))
    };
    let (name, length) = UNITS.iter().find(|(name, _)| text.ends_with(name)).ok_or_else(wrong)?;
    let number: u64 = text.trim_end_matches(name).parse().map_err(|_| wrong())?;
    number.checked_mul(*length).map(Duration::from_secs).ok_or_else(wrong)
}

/// Reads a percentage.
fn share(text: &str) -> Result<f64> {
    let number = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    number
        .filter(|number| (0.0..=100.0).contains(number))
        .map(|number| number / 100.0)
        .ok_or_else(|| Error::invalid(format!("{text:?} is not a percentage from 0% to 100%")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use store::gc::WaitingGarbage;

    #[test]
    fn times_and_shares_are_read_as_people_write_them() {
        for (text, seconds) in [("90s", 90), ("30m", 1800), ("24h", 86_400), ("7d", 604_800)] {
            assert_eq!(time(text).unwrap(), Duration::from_secs(seconds));
        }
        for bad in ["", "h", "24", "1.5h", "-1h", "99999999999999999999d", "18446744073709551615d"]
        {
            assert!(time(bad).is_err(), "{bad}");
        }
        assert_eq!((share("50%").unwrap(), share("0").unwrap()), (0.5, 0.0));
        for bad in ["", "%", "-1%", "101%", "nan"] {
            assert!(share(bad).is_err(), "{bad}");
        }
        assert_eq!((span(90), span(86_400)), ("2 m".into(), "1 d".into()));
    }

    #[test]
    fn what_sessions_say_of_themselves_gives_a_terminal_no_orders() {
        let waiting = WaitingGarbage {
            garbage: Amount::default(),
            seconds: 0,
            sessions: vec!["up\u{1b}[2Jload".into()],
        };
        let report = GcReport { waiting: vec![waiting], ..GcReport::default() };
        let shown = text(&GcView { report, left_over: Amount::default() });
        assert!(shown.contains("up\\u{1b}[2Jload"), "{shown:?}");
    }
}
