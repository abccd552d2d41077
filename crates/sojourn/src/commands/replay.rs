//! `sojourn replay`: a trace against any NBD server.

use super::runnable::{Invocation, Runnable, done};
use crate::commands::trace::Reading;
use crate::output::{Output, Table, fields};
use crate::progress::Bar;
use crate::remote;
use block::{ByteSize, Error, Result};
use clap::builder::RangedU64ValueParser;
use engine::config::time::duration;
use nbd::Uri;
use replay::{
    Answers, Hub, Lateness, Pace, ReplayPlan, ReplayReport, Script, ScriptSelection, Summary,
};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// Arguments of `sojourn replay`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn replay boot.trace 'nbd://server/debian' --reads-only
  sojourn replay boot.trace 'nbd://server/vm{client}' --clients 50 --allow-writes --speed 1
  sojourn replay load.trace 'nbd+unix:///disk?socket=/run/nbd.sock' --reads-only --for 60s --repeat
  sojourn replay oltp.trace 'nbd://server/scratch{client}' --allow-writes --verify --depth 4

Every client of the trace (and every disk that it used) is a client of its own; with more --clients
than that, they begin again with the first. In the export's name {client} is the number of the
client from 1 on, {name} its name in the trace, {disk} its disk's. Writes hold a pattern that tells
where they belong. Lateness is from when a request was due to when it was sent; `own` is what of it
was the replayer's.")]
pub(crate) struct Args {
    /// The trace, of any format that `sojourn trace info` knows
    pub(crate) trace: PathBuf,
    /// The export: nbd://HOST[:PORT]/EXPORT or nbd+unix:///EXPORT?socket=PATH, or encrypted, with
    /// nbds:// and ?tls-certificates=DIR
    pub(crate) target: Uri,
    /// How many clients to emulate [default: the trace's]
    #[arg(long, value_name = "N")]
    pub(crate) clients: Option<u32>,
    /// How many connections carry clients that share exports [default: one for each client]
    #[arg(long, value_name = "N")]
    pub(crate) connections: Option<u32>,
    /// `max`, or a factor of the trace's times: 1 for the original ones
    #[arg(long, default_value = "max", value_name = "SPEED", value_parser = pace)]
    pub(crate) speed: Pace,
    /// Requests that a client may have under way; with 1 its next request waits for its last
    #[arg(long, default_value_t = 1, value_name = "N")]
    pub(crate) depth: u32,
    /// Each client starts so much later than the one before
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) stagger: Duration,
    /// Fail when nothing is answered for so long though requests wait
    #[arg(long, default_value = "60s", value_name = "TIME", value_parser = duration)]
    pub(crate) timeout: Duration,
    /// Send nothing after this time
    #[arg(long = "for", value_name = "TIME", value_parser = duration)]
    pub(crate) until: Option<Duration>,
    /// Do not count answers before this time
    #[arg(long, default_value = "0s", value_name = "TIME", value_parser = duration)]
    pub(crate) warm_up: Duration,
    /// Clients begin again when they have done everything; needs --for
    #[arg(long, requires = "until")]
    pub(crate) repeat: bool,
    /// Overwrite what the exports hold
    #[arg(long)]
    pub(crate) allow_writes: bool,
    /// Leave out everything that is not a read
    #[arg(long, conflicts_with = "allow_writes")]
    pub(crate) reads_only: bool,
    /// Check what is read of what was written; needs an export for each client
    #[arg(long, requires = "allow_writes")]
    pub(crate) verify: bool,
    /// Also say what each client got
    #[arg(long)]
    pub(crate) by_client: bool,
    /// Also say what was answered in each stretch of so long
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) interval: Option<Duration>,
    /// Move requests beyond the end of an export into it
    #[arg(long)]
    pub(crate) wrap: bool,
    /// Take only so many requests from the trace's start
    #[arg(long, value_name = "N")]
    pub(crate) first: Option<u64>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Threads that carry the connections
    #[arg(long, value_name = "N", default_value_t = 1,
          value_parser = RangedU64ValueParser::<usize>::new().range(1..=256))]
    pub(crate) threads: usize,
}

fn pace(text: &str) -> Result<Pace> {
    match text {
        "max" => Ok(Pace::Fast),
        _ => text.parse().map(Pace::Times).map_err(|_| {
            Error::invalid(format!("{text:?} is no speed: give max, or a factor such as 1 or 2.5"))
        }),
    }
}

/// What is printed.
#[derive(Serialize)]
pub(crate) struct ReplayView {
    #[serde(flatten)]
    pub(crate) report: ReplayReport,
    /// Requests of the trace that were not replayed: those that are not reads, with --reads-only,
    /// and empty ones.
    skipped: u64,
    /// Processor time of the replayer for each answer, in microseconds, from when all connections
    /// were made.
    cpu_us_per_request: f64,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, invocation.output))
    }
}

fn run(args: &Args, output: Output) -> Result<()> {
    let bar = Bar::waiting("loading the trace");
    let mut source = args.reading.open(&args.trace)?;
    let selection = ScriptSelection {
        first: args.first,
        reads_only: args.reads_only,
        ..ScriptSelection::default()
    };
    let script = Script::load(&mut source, selection)?;
    drop((source, bar));
    let skipped = script.skipped();
    let mut plan = ReplayPlan::new(args.target.clone(), &script);
    plan.options = remote::options(&args.target)?;
    plan.clients = args.clients.unwrap_or(plan.clients);
    plan.connections = args.connections;
    plan.pace = args.speed;
    plan.depth = args.depth;
    plan.patience = args.timeout;
    plan.stagger = args.stagger;
    plan.until = args.until;
    plan.warm_up = args.warm_up;
    plan.repeat = args.repeat;
    plan.allow_writes = args.allow_writes;
    plan.verify = args.verify;
    plan.wrap = args.wrap;
    plan.by_client = args.by_client;
    plan.interval = args.interval;
    let (report, cpu) = drive(Arc::new(script), plan, args.threads)?;
    let cpu_us_per_request = cpu.as_secs_f64() * 1e6 / (report.answers.max(1)) as f64;
    let view = ReplayView { report, skipped, cpu_us_per_request };
    output.print(&view, || text(&view))?;
    failure(&view.report)
}

/// Replays in a runtime of its own, so that nothing else runs beside; gives the processor time
/// that it took.
pub(crate) fn drive(
    script: Arc<Script>,
    plan: ReplayPlan,
    threads: usize,
) -> Result<(ReplayReport, Duration)> {
    let mut builder = match threads {
        1 => tokio::runtime::Builder::new_current_thread(),
        _ => tokio::runtime::Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    let runtime =
        builder.enable_all().build().map_err(|e| Error::io("cannot start the runtime", e))?;
    runtime.block_on(async {
        let hub = Hub::default();
        let bar = Bar::requests("replaying", script_total(&script, &plan));
        let show = async {
            let mut tick = tokio::time::interval(TICK);
            loop {
                tick.tick().await;
                let progress = hub.progress();
                bar.at(progress.answers, progress.errors);
            }
        };
        let stop = async {
            // Without signals there is no other way to stop than to wait.
            if tokio::signal::ctrl_c().await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        let replay = async {
            let mut stop = std::pin::pin!(stop);
            let prepared = tokio::select! {
                prepared = replay::prepare(script, plan, &hub) => prepared?,
                () = &mut stop => return Err(Error::unavailable("stopped before it began")),
            };
            let before = cpu_time();
            let report = prepared.run(stop).await?;
            Ok((report, cpu_time().saturating_sub(before)))
        };
        tokio::select! {
            done = replay => done,
            () = show => Err(Error::internal("the progress ended")),
        }
    })
}

/// How many requests there are in all, when that is known.
fn script_total(script: &Script, plan: &ReplayPlan) -> Option<u64> {
    (plan.until.is_none()).then(|| {
        let rounds = f64::from(plan.clients) / script.clients() as f64;
        (script.requests() as f64 * rounds) as u64
    })
}

fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().unwrap_or(0), time.tv_nsec.try_into().unwrap_or(0))
}

/// What makes a replay a failure.
fn failure(report: &ReplayReport) -> Result<()> {
    if let Some(verified) = &report.verified
        && verified.wrong > 0
    {
        return Err(Error::corrupt(format!(
            "{} reads did not hold what had been written, the first of {}",
            verified.wrong,
            verified.first_wrong.as_deref().unwrap_or("an unknown place")
        )));
    }
    match &report.first_error {
        None if report.complete && report.verified.as_ref().is_some_and(|v| v.grains == 0) => {
            Err(Error::invalid(
                "nothing was verified: no read of the trace meets what it wrote before; leave out --verify",
            ))
        }
        None => Ok(()),
        Some(first) => Err(Error::unavailable(format!(
            "{} requests were answered with an error, the first: {first}",
            report.errors
        ))),
    }
}

fn text(view: &ReplayView) -> String {
    let report = &view.report;
    let time = match report.planned_seconds {
        Some(planned) => format!("{:.3} s, planned {planned:.3} s", report.seconds),
        None => format!("{:.3} s", report.seconds),
    };
    let mut text = fields(&[
        ("clients", format!("{} on {} connections", report.clients, report.connections)),
        ("time", time),
        (
            "throughput",
            format!(
                "{:.1} requests/s, {}/s",
                report.throughput,
                ByteSize((report.bytes as f64 / report.seconds.max(1e-9)) as u64)
            ),
        ),
        ("own processor", format!("{:.2} us for each request", view.cpu_us_per_request)),
    ]);
    for (count, what) in [
        (view.skipped, "requests of the trace were not replayed"),
        (report.unsupported, "requests are not offered by the export and were left out"),
    ] {
        if count > 0 {
            let _ = writeln!(text, "{count} {what}");
        }
    }
    if !report.complete {
        text.push_str("it ended before everything was replayed\n");
    }
    if let Some(verified) = &report.verified {
        let _ = writeln!(text, "verified: {} grains of 512 bytes", verified.grains);
    }
    let mut table = Table::new(&[
        "MICROSECONDS",
        ">COUNT",
        ">ERRORS",
        ">MEAN",
        ">P50",
        ">P90",
        ">P99",
        ">P99.9",
        ">MAX",
    ]);
    for op in &report.ops {
        let [mean, p50, p90, p99, p999, max] = cells(&op.latency);
        let (count, errors) = (op.requests.to_string(), op.errors.to_string());
        table.row([op.op.as_str().to_owned(), count, errors, mean, p50, p90, p99, p999, max]);
    }
    let Lateness { all, own } = &report.lateness;
    for (name, summary) in [("late", all.as_ref()), ("late, own", Some(own))] {
        let Some(summary) = summary else { continue };
        let [mean, p50, p90, p99, p999, max] = cells(summary);
        let none = || "-".to_owned();
        table.row([name.to_owned(), none(), none(), mean, p50, p90, p99, p999, max]);
    }
    text.push('\n');
    text.push_str(&table.render());
    let by_client = report.by_client.iter().map(|one| (one.client.to_string(), one.answers));
    text.push_str(&answers("CLIENT", by_client));
    let intervals = report.intervals.iter().map(|one| (format!("{:.3}", one.from), one.answers));
    text.push_str(&answers("FROM SECOND", intervals));
    text
}

/// Answers by what they are told apart by; nothing when they are not.
fn answers(what: &str, all: impl Iterator<Item = (String, Answers)>) -> String {
    let what = format!(">{what}");
    let mut table = Table::new(&[&what, ">COUNT", ">ERRORS", ">BYTES", ">MEAN US", ">MAX US"]);
    let mut rows = 0;
    for (name, Answers { requests, bytes, errors, mean_us, max_us }) in all {
        rows += 1;
        table.row([
            name,
            requests.to_string(),
            errors.to_string(),
            ByteSize(bytes).to_string(),
            format!("{mean_us:.1}"),
            format!("{max_us:.1}"),
        ]);
    }
    if rows > 0 { format!("\n{}", table.render()) } else { String::new() }
}

fn cells(summary: &Summary) -> [String; 6] {
    let Summary { mean_us, p50_us, p90_us, p99_us, p999_us, max_us } = *summary;
    [mean_us, p50_us, p90_us, p99_us, p999_us, max_us].map(|us| format!("{us:.1}"))
}
