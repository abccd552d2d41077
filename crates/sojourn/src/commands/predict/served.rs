//! `predict --simulate`: the server, event by event.

use super::{Args, Data, PredictedSize};
use crate::output::Table;
use crate::progress::Bar;
use block::{ByteSize, Error, Result};
use engine::config::time::duration;
use model::Profile;
use serde::Serialize;
use simulate::{ClientPace, Crowd, ServerLoad, ServerOutcome, ServerSetup, serve};
use std::collections::BTreeMap;
use std::time::Duration;

/// The most numbers of clients that are simulated for a size of the cache.
const MOST_NUMBERS: usize = 12;
/// The part of its memory that a server is simulated without, too: so little should make no difference.
const LITTLE: u64 = 16;
/// The difference in throughput, as a share, from which on it does.
const CLIFF: f64 = 0.1;

/// How the server that is simulated is configured, and how its clients come.
#[derive(Debug, clap::Args)]
pub(crate) struct ServedOptions {
    /// Bytes of the store that the server keeps on its own disk, `pieces.size` of the configuration: 4GiB unless
    /// told otherwise where the store is behind a network; 0 where the store is on a disk of the server
    #[arg(long, value_name = "SIZE", default_value = "0")]
    pub(crate) pieces: ByteSize,
    /// Simulate the server event by event, too: its cache and loads, its queues, clients that ask for the same
    /// at the same time. Begins with empty caches
    #[arg(long, conflicts_with = "curve")]
    pub(crate) simulate: bool,
    /// How far the server reads ahead, as `serve.read_ahead`
    #[arg(long, value_name = "SIZE", default_value = "2M", requires = "simulate")]
    pub(crate) read_ahead: ByteSize,
    /// The image has a boot list of what the trace's first client reads
    #[arg(long, requires = "simulate")]
    pub(crate) boot_list: bool,
    /// Each client starts so much later than the one before
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, requires = "simulate")]
    pub(crate) stagger: Duration,
    /// Clients begin again until then; without, each asks once for all that it has in the trace
    #[arg(long = "for", value_name = "TIME", value_parser = duration, requires = "simulate")]
    pub(crate) until: Option<Duration>,
    /// Answers before that are not counted
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = duration, requires = "simulate")]
    pub(crate) warm_up: Duration,
}

/// A simulated number of clients.
#[derive(Debug, Clone, Serialize)]
pub(super) struct SimulatedPoint {
    pub(super) clients: u32,
    pub(super) throughput: f64,
    pub(super) response_ms: f64,
    /// Look-ups in the cache that are hits, as the server counts them.
    pub(super) cache_hit: f64,
    /// Look-ups that wait for a load that is on its way for somebody else.
    pub(super) shared: f64,
    /// Loads that needed the store, and their bytes.
    pub(super) store_loads: u64,
    pub(super) store_bytes: u64,
    /// The share of the time that each centre was busy; in a delay, how many were in it.
    pub(super) utilisation: BTreeMap<String, f64>,
    /// What arithmetic says, for unrelated clients and a cache that is as full as after the trace.
    pub(super) model_throughput: Option<f64>,
    /// The throughput with a sixteenth less memory; null where that does not hold a chunk.
    pub(super) less_memory_throughput: Option<f64>,
    /// Whether that is so different that the simulation cannot tell.
    pub(super) unsure: bool,
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// At most so many of a list, the first and the last among them, each about as many times the one before.
fn thinned(all: &[u32], most: usize) -> Vec<u32> {
    let (Some(first), Some(last)) = (all.first(), all.last()) else { return Vec::new() };
    if all.len() <= most {
        return all.to_vec();
    }
    let growth = (f64::from(*last) / f64::from((*first).max(1))).powf(1.0 / (most - 1) as f64);
    let mut kept: Vec<u32> = (0..most)
        .filter_map(|step| {
            let wanted = (f64::from((*first).max(1)) * growth.powi(step as i32)).round() as u32;
            let at = all.partition_point(|n| *n < wanted.min(*last));
            all.get(at).copied()
        })
        .collect();
    kept.dedup();
    kept
}

/// Simulates a size of the cache with the numbers of clients that are asked for.
///
/// # Errors
/// Any error from [`serve`].
pub(super) fn points(
    args: &Args,
    profile: &Profile,
    load: &ServerLoad,
    memory: u64,
    case: &PredictedSize,
) -> Result<Vec<SimulatedPoint>> {
    if args.served.until.is_some_and(|until| until <= args.served.warm_up) {
        return Err(Error::invalid(
            "nothing is counted: give a longer --for, or a shorter --warm-up",
        ));
    }
    let setup = ServerSetup {
        memory,
        policy: args.policy,
        pieces: args.served.pieces.0,
        read_ahead: args.served.read_ahead.0,
        loads: disk::LoadOptions::default().most,
        boot_list: args.served.boot_list,
    };
    let bar = Bar::waiting("simulating");
    let point = |clients: u32| {
        let crowd = Crowd {
            clients,
            private: args.data == Data::Private,
            stagger: nanoseconds(args.served.stagger),
            pace: args
                .think
                .map_or(ClientPace::Trace, |think| ClientPace::Pause(nanoseconds(think))),
            until: args.served.until.map(nanoseconds),
            warm_up: nanoseconds(args.served.warm_up),
        };
        let outcome = serve(profile, load, &setup, &crowd)?;
        let model = case.curve.iter().find(|point| point.clients == clients);
        let mut view = view(profile, clients, &outcome, model.map(|point| point.throughput));
        let less = ServerSetup { memory: memory - memory / LITTLE, ..setup.clone() };
        view.less_memory_throughput =
            serve(profile, load, &less, &crowd).ok().map(|outcome| outcome.throughput);
        view.unsure =
            view.less_memory_throughput.is_some_and(|less| is_cliff(outcome.throughput, less));
        Ok(view)
    };
    let numbers = thinned(&args.clients.0, MOST_NUMBERS);
    let points = numbers.into_iter().map(point).collect();
    drop(bar);
    points
}

/// Whether two throughputs that should be about the same are not.
fn is_cliff(throughput: f64, with_less: f64) -> bool {
    (with_less / throughput - 1.0).abs() > CLIFF
}

/// What a simulation cannot tell of a size of the cache, in a sentence; none when it can.
pub(super) fn unsure(case: &PredictedSize) -> Option<String> {
    let points = case.simulated.iter().flatten().filter(|point| point.unsure);
    let told = points.map(|point| {
        let less = point.less_memory_throughput.unwrap_or_default();
        format!("{} clients get {less:.0} instead of {:.0}", point.clients, point.throughput)
    });
    let told: Vec<String> = told.collect();
    (!told.is_empty()).then(|| {
        format!(
            "simulated with a sixteenth less memory than {}, {} requests a second: whether a client still finds what \
             another one has read depends on little there, and the simulation cannot tell",
            ByteSize(case.memory),
            told.join(", ")
        )
    })
}

fn view(
    profile: &Profile,
    clients: u32,
    seen: &ServerOutcome,
    model: Option<f64>,
) -> SimulatedPoint {
    let names = profile.centres.iter().map(|centre| centre.name.clone());
    SimulatedPoint {
        clients,
        throughput: seen.throughput,
        response_ms: seen.response * 1e3,
        cache_hit: seen.hit_ratio(),
        shared: seen.shared as f64 / (seen.hits + seen.misses).max(1) as f64,
        store_loads: seen.store_loads,
        store_bytes: seen.store_bytes,
        utilisation: names.zip(seen.utilisation.iter().copied()).collect(),
        model_throughput: model,
        less_memory_throughput: None,
        unsure: false,
    }
}

/// The table of what was simulated.
pub(super) fn table(cases: &[PredictedSize]) -> Table {
    let mut table = Table::new(&[
        ">memory",
        ">clients",
        ">cache hits",
        ">shared loads",
        ">from the store",
        ">requests/s",
        ">response ms",
        ">by arithmetic",
    ]);
    for case in cases {
        for point in case.simulated.iter().flatten() {
            table.row([
                ByteSize(case.memory).to_string(),
                point.clients.to_string(),
                format!("{:.1} %", point.cache_hit * 100.0),
                format!("{:.1} %", point.shared * 100.0),
                report::Unit::Bytes.show(point.store_bytes as f64),
                format!("{:.1}", point.throughput),
                format!("{:.3}", point.response_ms),
                point.model_throughput.map_or("-".to_owned(), |x| format!("{x:.1}")),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_memory_that_makes_a_large_difference_is_a_cliff() {
        assert!(is_cliff(529.0, 414.0) && is_cliff(414.0, 529.0));
        assert!(!is_cliff(145.0, 144.0) && !is_cliff(0.0, 0.0));
    }

    #[test]
    fn a_long_list_is_thinned_evenly_and_keeps_its_ends() {
        let all: Vec<u32> = (1..=500).collect();
        let kept = thinned(&all, 12);
        assert_eq!((kept[0], kept[kept.len() - 1]), (1, 500));
        assert!(kept.len() >= 10 && kept.is_sorted(), "{kept:?}");
        assert_eq!(thinned(&[3, 7], 12), [3, 7]);
    }
}
