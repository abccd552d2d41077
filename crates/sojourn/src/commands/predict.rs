//! `sojourn predict`: how many clients a server holds, and what to buy next.

mod curve;
mod load;
mod notes;
mod plots;
mod served;
mod server;

use super::runnable::{Invocation, Runnable, done};
use crate::commands::model::{profile, write_file};
use crate::commands::trace::Reading;
use crate::lists::{Numbers, Sizes};
use crate::output::{Output, Table};
use block::{ByteSize, Error, Result};
use cache::PolicyKind;
use curve::TraceAnswers;
use engine::config::time::duration;
use load::TraceLoad;
use model::Profile;
use model::predict::{CacheSharing, CapacityQuestion, Hits, ServerCapacity, Upgrade, most_clients};
use serde::Serialize;
use served::SimulatedPoint;
use server::Cached;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Arguments of `sojourn predict`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn predict --profile server.toml --trace day.trace --clients 1-500 --memory 1G-16G
  sojourn predict --profile server.toml --trace boot.trace --memory 256M --think 0s --response 5ms
  sojourn predict --profile transcom --trace boot.trace --memory 64M --html holds.html
  sojourn predict --profile server.toml --trace boot.trace --memory 1G --simulate --clients 1,6,24

PROFILE comes from `sojourn model fit`. The trace tells how large requests are, how long a client
pauses between them, and by its hit-ratio curve what a cache of so much memory answers. With
--data shared (machines of one golden image) more clients need no more cache; with private each
brings data of its own. Arithmetic takes clients for unrelated; those that boot together share
loads, and --simulate runs them one by one. docs/model.md says what is assumed.")]
pub(crate) struct Args {
    /// The demands of the server: a file, or `transcom`
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: String,
    /// A trace of the load
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: PathBuf,
    /// Numbers of clients; the largest is the most that is looked for
    #[arg(long, value_name = "LIST", default_value = "1-500")]
    pub(crate) clients: Numbers,
    /// Sizes of the server's cache; 1G-16G is 1, 2, 4, 8 and 16 GiB
    #[arg(long, value_name = "LIST")]
    pub(crate) memory: Sizes,
    /// The mean response that is still good
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = duration)]
    pub(crate) response: Duration,
    /// Bytes of a request [default: the mean of the trace]
    #[arg(long, value_name = "SIZE")]
    pub(crate) block: Option<ByteSize>,
    /// Time of a client between an answer and its next request [default: the mean of the trace]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) think: Option<Duration>,
    /// Whether clients ask for the same data
    #[arg(long, value_enum, default_value_t = Data::Shared)]
    pub(crate) data: Data,
    /// What stays in the cache when it is full, as `cache.policy` in the configuration
    #[arg(long, value_name = "POLICY", default_value_t = PolicyKind::default())]
    pub(crate) policy: PolicyKind,
    /// What the cache keeps at a time: the mean length of the chunks in it
    #[arg(long, value_name = "SIZE", default_value = "120K")]
    pub(crate) grain: ByteSize,
    /// Take hit ratios from this file instead: lines of a size in bytes, a comma, and a hit ratio
    #[arg(long, value_name = "FILE")]
    pub(crate) curve: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) served: served::ServedOptions,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Also write a page with plots, which opens without a network
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
}

/// Whose data clients ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Data {
    /// All for the same
    Shared,
    /// Each for its own
    Private,
}

/// One size of the cache.
#[derive(Debug, Serialize)]
struct PredictedSize {
    memory: u64,
    /// Requests answered without the backend, at so many clients as it holds.
    hit: f64,
    /// Look-ups in the cache that are hits, as the server counts them, for the clients of the trace; null
    /// with a curve from elsewhere.
    cache_hit: Option<f64>,
    /// Requests that need the piece cache in addition, but not the store; null with a curve from elsewhere.
    kept: Option<f64>,
    /// How many clients get the response asked for.
    clients: u32,
    /// Whether more clients than were looked for would get it.
    at_least: bool,
    /// Where more clients begin to wait for each other.
    knee: Option<f64>,
    /// Requests a second at so many clients.
    throughput: f64,
    response_ms: f64,
    bottleneck: Option<String>,
    utilisation: BTreeMap<String, f64>,
    /// What each change brings, best first.
    next: Vec<UpgradeView>,
    /// The response by number of clients.
    curve: Vec<Point>,
    /// The same, simulated.
    #[serde(skip_serializing_if = "Option::is_none")]
    simulated: Option<Vec<SimulatedPoint>>,
}

#[derive(Debug, Serialize)]
struct UpgradeView {
    /// `memory`, or a centre: twice as much of it.
    twice: String,
    /// How many clients it then holds.
    clients: u32,
    /// Whether more clients than were looked for would get the response.
    at_least: bool,
}

#[derive(Debug, Clone, Copy, Serialize)]
struct Point {
    clients: u32,
    throughput: f64,
    response_ms: f64,
    hit: f64,
}

#[derive(Debug, Serialize)]
struct PredictView {
    profile: String,
    trace: TraceLoad,
    block: u64,
    think_ms: f64,
    target_ms: f64,
    data: Data,
    /// The most clients that were looked for.
    most: u32,
    cases: Vec<PredictedSize>,
    /// What these figures do not tell.
    notes: Vec<String>,
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, invocation.output))
    }
}

fn run(args: &Args, output: Output) -> Result<()> {
    let profile = profile(&args.profile)?.profile;
    let TraceAnswers { load, curve, cached, requests } = curve::of(args, miss_seconds(&profile))?;
    let most = args.clients.0.last().copied().unwrap_or(0);
    if args.clients.0.first() == Some(&0) || most > most_clients(&profile) {
        return Err(Error::invalid(format!(
            "numbers of clients go from 1 to {} with this profile",
            most_clients(&profile)
        )));
    }
    let question = CapacityQuestion {
        block: args.block.map_or(load.mean_bytes, |size| size.0),
        think: match args.think {
            Some(think) => think.as_secs_f64(),
            None => load.think_ms.ok_or_else(no_times)? / 1e3,
        },
        target: args.response.as_secs_f64(),
        most,
    };
    let sharing = match args.data {
        Data::Shared => CacheSharing::Shared,
        Data::Private => CacheSharing::Private { clients: load.clients },
    };
    if args.data == Data::Private && args.served.pieces.0 > 0 && !args.served.simulate {
        return Err(Error::invalid(
            "with data of their own clients also divide the piece cache, which arithmetic cannot tell: give \
             --simulate, or --pieces 0",
        ));
    }
    let hits = |memory: u64| Hits::of(&curve, memory, sharing, load.changes, most);
    let cached = |memory: u64| cached.iter().find(|point| point.size == memory);
    let server =
        |memory: u64| profile.with_store_share(cached(memory).map_or(1.0, Cached::store_share));
    let mut cases = Vec::new();
    for memory in &args.memory.0 {
        let now = hits(*memory);
        let server_now = server(*memory)?;
        let holding = question.answer(&server_now, &now)?;
        let more = memory.saturating_mul(2);
        let next = question.purchases(&server_now, &now, (&server(more)?, &hits(more)))?;
        let next = next.into_iter().map(|purchase| UpgradeView {
            twice: match purchase.what {
                Upgrade::Memory => "memory".to_owned(),
                Upgrade::Centre(name) => name,
            },
            clients: purchase.clients,
            at_least: purchase.clients == most,
        });
        let mut case = case(args, *memory, &server_now, &now, &holding, next.collect());
        case.cache_hit = cached(*memory).map(|point| point.hits);
        case.kept = cached(*memory).map(|point| point.kept);
        if let Some(requests) = &requests {
            case.simulated = Some(served::points(args, &profile, requests, *memory, &case)?);
        }
        cases.push(case);
    }
    let mut notes = notes::all(args, &profile, &load, question.block);
    notes.extend(cases.iter().filter_map(served::unsure));
    let view = PredictView {
        profile: profile.name,
        block: question.block,
        think_ms: question.think * 1e3,
        target_ms: question.target * 1e3,
        data: args.data,
        most,
        trace: load,
        cases,
        notes,
    };
    if let Some(path) = &args.html {
        write_file(path, &plots::page(&view))?;
    }
    output.print(&view, || text(&view))
}

/// Seconds that a miss of a block takes at all that is the store.
fn miss_seconds(profile: &Profile) -> f64 {
    profile.centres.iter().filter(|c| c.is_store()).map(|c| c.miss.at(block::BLOCK)).sum()
}

fn no_times() -> Error {
    Error::invalid(
        "the trace has no times, so it does not tell how long clients pause: say it with --think",
    )
}

fn case(
    args: &Args,
    memory: u64,
    profile: &Profile,
    hits: &Hits,
    holding: &ServerCapacity,
    next: Vec<UpgradeView>,
) -> PredictedSize {
    let name = |at: usize| profile.centres[at].name.clone();
    let at = holding.clients.max(1) as usize - 1;
    let solution = &holding.solutions[at];
    let queues = profile.centres.iter().zip(&solution.centres);
    let queues = queues.filter(|(centre, _)| centre.kind != model::CentreKind::Delay);
    let point = |clients: &u32| {
        let one = holding.solutions.get(*clients as usize - 1)?;
        Some(Point {
            clients: *clients,
            throughput: one.throughput,
            response_ms: one.response * 1e3,
            hit: hits.at(*clients),
        })
    };
    PredictedSize {
        memory,
        hit: holding.hit,
        cache_hit: None,
        kept: None,
        clients: holding.clients,
        at_least: holding.clients as usize == holding.solutions.len(),
        knee: holding.network.bounds().knee(),
        throughput: solution.throughput,
        response_ms: solution.response * 1e3,
        bottleneck: solution.bottleneck(&holding.network).map(name),
        utilisation: queues.map(|(c, used)| (c.name.clone(), used.utilisation)).collect(),
        next,
        curve: args.clients.0.iter().filter_map(point).collect(),
        simulated: None,
    }
}

/// The columns of what is said of a case.
const COLUMNS: [&str; 9] = [
    ">memory",
    ">cache hits",
    ">no backend",
    ">clients held",
    ">requests/s",
    ">response ms",
    "bottleneck",
    ">knee",
    "twice as much brings",
];

/// A number of clients, which may be the most that was looked for.
fn held(clients: u32, at_least: bool) -> String {
    format!("{clients}{}", if at_least { " or more" } else { "" })
}

/// What is said of a case, on the terminal and on the page.
fn row(case: &PredictedSize) -> [String; 9] {
    let next = case
        .next
        .iter()
        .map(|next| format!("{} {}", next.twice, held(next.clients, next.at_least)));
    let next: Vec<String> = next.collect();
    [
        ByteSize(case.memory).to_string(),
        case.cache_hit.map_or("-".to_owned(), |hit| format!("{:.1} %", hit * 100.0)),
        format!("{:.1} %", case.hit * 100.0),
        held(case.clients, case.at_least),
        format!("{:.1}", case.throughput),
        format!("{:.3}", case.response_ms),
        case.bottleneck.clone().unwrap_or_else(|| "none".to_owned()),
        case.knee.map_or("-".to_owned(), |knee| format!("{knee:.1}")),
        if next.is_empty() { "-".to_owned() } else { next.join(", ") },
    ]
}

fn text(view: &PredictView) -> String {
    let mut text = format!(
        "{} requests of {} clients, {} each on average, {:.0} % of them changes; a client pauses \
         {:.3} ms; the response asked for is {:.4} ms\n\n",
        view.trace.requests,
        view.trace.clients,
        ByteSize(view.block),
        view.trace.changes * 100.0,
        view.think_ms,
        view.target_ms
    );
    let mut table = Table::new(&COLUMNS);
    view.cases.iter().for_each(|case| table.row(row(case)));
    text.push_str(&table.render());
    if view.cases.iter().any(|case| case.at_least) {
        let _ = writeln!(
            text,
            "\n{} clients are the most that was looked for; --clients 1-N looks further",
            view.most
        );
    }
    if view.cases.iter().any(|case| case.clients == 0) {
        let _ = writeln!(text, "\nwhere 0 clients are held, the figures are those of a single one");
    }
    if view.cases.iter().any(|case| case.simulated.is_some()) {
        let _ = write!(text, "\nsimulated, beginning with empty caches:\n\n");
        text.push_str(&served::table(&view.cases).render());
    }
    for note in &view.notes {
        let _ = writeln!(text, "\nnote: {note}");
    }
    text
}
