//! `sojourn status`.

use super::cache::in_short;
use super::runnable::{Invocation, Runnable, finish, writes};
use crate::output::{Output, Table, fields};
use block::{ByteSize, Result};
use engine::Home;
use serde::Serialize;
use server::client::ControlClient;
use server::remote::RemoteServer;
use server::status::StatusView;
use std::process::ExitCode;

/// Arguments of `sojourn status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn status
  sojourn --json status | jq .cache.hit_percent")]
pub(crate) struct Args {}

/// What is printed when no server runs.
#[derive(Serialize)]
struct Idle {
    running: bool,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        finish(run(&invocation.home()?, invocation.output))
    }

    fn run_on(&self, server: RemoteServer, output: Output) -> Result<ExitCode> {
        writes(of_server(&server, output))
    }
}

async fn run(home: &Home, output: Output) -> Result<()> {
    home.must_exist()?;
    match ControlClient::connect(home).await? {
        Some(client) => {
            let status = client.status().await?;
            output.print(&status, || describe(&status))
        }
        None => output.print(&Idle { running: false }, || {
            format!("no server runs on {}; start one with `sojourn serve`", home.dir().display())
        }),
    }
}

/// What a server of another machine tells.
async fn of_server(server: &RemoteServer, output: Output) -> Result<()> {
    let status = server.status().await?;
    output.print(&status, || describe(&status))
}

fn describe(status: &StatusView) -> String {
    let cache = &status.cache;
    let hits = cache.hit_percent.map_or("no reads yet".to_owned(), |p| format!("{p:.1} % hits"));
    let mut rows = vec![
        ("server", format!("process {}, version {}", status.pid, status.version)),
        ("running for", format!("{} s", status.uptime_seconds)),
        ("listening", status.listeners.join(", ")),
        ("clients", format!("{} connections", status.connections)),
        (
            "cache",
            format!(
                "{hits}, {} of {} used, {}",
                ByteSize(cache.bytes),
                ByteSize(cache.capacity_bytes),
                cache.policy
            ),
        ),
        (
            "store",
            format!("{} read in {} chunks", ByteSize(status.store.read_bytes), status.store.reads),
        ),
    ];
    for source in &status.sources {
        let bad = [
            (source.wrong, "wrong"),
            (source.failed, "failed"),
            (source.late, "late"),
            (source.missed, "gone"),
        ];
        let mut line = format!(
            "{} ({}): {} in {} chunks",
            source.name,
            source.kind,
            ByteSize(source.bytes),
            source.had
        );
        for (count, what) in bad.iter().filter(|(count, _)| *count > 0) {
            line.push_str(&format!(", {count} {what}"));
        }
        if source.resting_ms > 0 {
            line.push_str(&format!(", rests for {} s", source.resting_ms.div_ceil(1000)));
        }
        rows.push(("source", line));
    }
    rows.extend(status.troubles().into_iter().map(|line| ("trouble", line)));
    if let Some(room) = &status.head_room {
        rows.push(("head-room", room.text()));
    }
    if let Some(forecast) = &cache.forecast {
        rows.push(("forecast", in_short(forecast)));
    }
    if let Some(trace) = &status.trace {
        let state = match &trace.error {
            Some(error) => format!("ended: {error}"),
            None => format!("{} dropped", trace.dropped),
        };
        let size = ByteSize(trace.bytes);
        let line = format!("{}, {} requests, {size}, {state}", trace.file, trace.requests);
        rows.push(("recording", line));
    }
    for one in &status.throttles {
        let late = &one.counters;
        let line = format!(
            "{} as {}, {} requests, {} failed, {} late, {:.0} us on the mean",
            one.export, one.profile, late.requests, late.failed, late.late, late.late_mean_us
        );
        rows.push(("throttle", line));
    }
    let mut text = fields(&rows);
    if !status.exports.is_empty() {
        let mut table = Table::new(&[
            "EXPORT", ">CLIENTS", ">READS", ">READ", ">WRITES", ">WRITTEN", ">PRIVATE", ">ERRORS",
        ]);
        for export in &status.exports {
            table.row([
                export.name.clone(),
                export.connections.to_string(),
                export.traffic.reads.to_string(),
                ByteSize(export.traffic.read_bytes).to_string(),
                export.traffic.writes.to_string(),
                ByteSize(export.traffic.written_bytes).to_string(),
                export.private_bytes.map_or("-".to_owned(), |b| ByteSize(b).to_string()),
                export.traffic.errors.to_string(),
            ]);
        }
        text.push('\n');
        text.push_str(&table.render());
    }
    text
}
