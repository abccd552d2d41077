//! How many more clients the server holds, from its live counters: see [`model::head_room`].
//! Field names are documented in docs/cli.md and do not change.

use engine::Engine;
use model::head_room::{self, HeadRoom, Limit, OperatingLimits, ServerInterval};
use nbd::server::TimedOperation;
use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap, VecDeque};
use tokio::time::Instant;

/// Moments that are kept: a minute, when they are [`noted`](Meter::note) every five seconds.
const MOMENTS: usize = 13;
/// The share of its time that the busiest part of the server may be busy.
const BUSY: f64 = 0.8;
/// The share of all requests that may come by iSCSI and vhost-user: what these take is in the processor's time and in
/// the reads of the store, but nobody knows their clients and response times.
const UNTIMED: f64 = 0.05;

/// The head-room of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct HeadRoomView {
    /// The interval that was looked at.
    pub seconds: f64,
    /// Clients now, of those that asked anything in it: exports in use, one used by several machines once for each.
    /// So a host with twenty virtual machines, each on a disk of its own, is twenty.
    pub clients: u64,
    /// Their requests.
    pub requests: u64,
    /// Requests by iSCSI and vhost-user, whose clients and times are not known.
    #[serde(default)]
    pub untimed_requests: u64,
    /// Clients like them that there may be in addition; null when too little was asked to tell, or too much by iSCSI
    /// and vhost-user.
    pub more: Option<u64>,
    /// What ends it: `utilisation`, `response`, or `none` when there may be even more.
    pub limit: Option<String>,
    /// What is busiest then: `cpu` or `backend`.
    pub bottleneck: Option<String>,
    /// The mean time in the server now.
    pub response_us: Option<f64>,
    /// The same with so many more clients.
    pub response_then_us: Option<f64>,
    /// How busy the processors are with serving, now.
    pub cpu_percent: Option<f64>,
    /// How busy what the store lies on is, now.
    pub backend_percent: Option<f64>,
}

/// Counters at one moment.
#[derive(Debug)]
struct Moment {
    at: Instant,
    requests: u64,
    /// By iSCSI and vhost-user.
    untimed: u64,
    response_nanos: u64,
    cpu_seconds: f64,
    reads: objects::BackendReads,
    /// By identity: requests since it came, and the exports that it uses.
    clients: HashMap<String, (u64, Vec<String>)>,
    /// Requests for each export.
    exports: HashMap<String, u64>,
}

impl Moment {
    fn now(engine: &Engine, counters: &nbd::Counters, untimed: u64) -> Self {
        let all = TimedOperation::ALL.into_iter().map(|operation| counters.latencies.of(operation));
        let (mut requests, mut response_nanos) = (0, 0u64);
        for latency in all {
            requests += latency.count();
            response_nanos = response_nanos.wrapping_add(latency.nanos());
        }
        let traffic = |t: &nbd::Traffic| t.reads + t.writes + t.flushes + t.trims + t.zeroes;
        let used = |exports: &BTreeMap<String, u64>| exports.keys().cloned().collect();
        let clients = counters.clients.iter().map(|(identity, client)| {
            (identity.clone(), (traffic(&client.traffic), used(&client.exports)))
        });
        let exports = counters.exports.iter();
        let time = clock_gettime(ClockId::ProcessCPUTime);
        // Busy polling is no work for clients.
        let polled = counters.total.busy_poll_nanos as f64 / 1e9;
        Self {
            at: Instant::now(),
            requests,
            untimed,
            response_nanos,
            cpu_seconds: time.tv_sec as f64 + time.tv_nsec as f64 / 1e9 - polled,
            reads: engine.link.reads(),
            clients: clients.collect(),
            exports: exports.map(|(name, seen)| (name.clone(), traffic(&seen.traffic))).collect(),
        }
    }

    /// How many clients were there at this moment, of those that asked anything between two others: exports in
    /// use, one that several machines use once for each.
    fn clients(&self, first: &Self, last: &Self) -> usize {
        let was_asked = |export: &&String| {
            let requests = |moment: &Self| moment.exports.get(*export).copied().unwrap_or(0);
            requests(last) > requests(first)
        };
        let clients = self.clients.iter().filter_map(|(identity, (now, exports))| {
            let then = first.clients.get(identity).map_or(0, |(then, _)| *then);
            let later = last.clients.get(identity).map_or(0, |(later, _)| *later);
            // An export that is not counted any more must not hide who uses it. One that attached anew is counted anew.
            (later.max(*now) != then).then(|| exports.iter().filter(was_asked).count().max(1))
        });
        clients.sum()
    }

    /// What happened since `before`, when so many clients were there on average.
    fn since(&self, before: &Self, clients: u32) -> ServerInterval {
        let sum = |now: u64, then: u64| now.saturating_sub(then) as f64;
        let mut reads = head_room::Reads::default();
        for (read, (now, then)) in reads.0.iter_mut().zip(self.reads.0.iter().zip(&before.reads.0))
        {
            read.count = now.count.saturating_sub(then.count);
            read.seconds = sum(now.nanos, then.nanos) / 1e9;
        }
        ServerInterval {
            seconds: (self.at - before.at).as_secs_f64(),
            clients,
            requests: self.requests.saturating_sub(before.requests),
            response_seconds: sum(self.response_nanos, before.response_nanos) / 1e9,
            cpu_seconds: (self.cpu_seconds - before.cpu_seconds).max(0.0),
            cpus: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
            reads,
        }
    }
}

/// Looks at the counters now and then.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<VecDeque<Moment>>);

impl Meter {
    /// Keeps the counters of this moment, and how many requests came by other ways than NBD. To be called every five
    /// seconds.
    pub(crate) fn note(&self, engine: &Engine, counters: &nbd::Counters, untimed: u64) {
        let moment = Moment::now(engine, counters, untimed);
        let mut moments = self.0.lock();
        moments.push_back(moment);
        if moments.len() > MOMENTS {
            moments.pop_front();
        }
    }

    /// The head-room by what happened in the last minute, or since the start. `response` is the
    /// longest mean response that is bearable, in seconds. `None` before there is an interval.
    pub(crate) fn view(
        &self,
        engine: &Engine,
        counters: &nbd::Counters,
        untimed: u64,
        response: Option<f64>,
    ) -> Option<HeadRoomView> {
        let now = Moment::now(engine, counters, untimed);
        let moments = self.0.lock();
        let (seen, clients) = interval(&moments, &now)?;
        let untimed = now.untimed.saturating_sub(moments.front()?.untimed);
        drop(moments);
        let limits = OperatingLimits { utilisation: BUSY, response };
        let found = if is_too_much(untimed, seen.requests) {
            None
        } else {
            head_room::head_room(&seen, limits).unwrap_or_else(|e| {
                tracing::debug!(error = e.message(), "no head-room");
                None
            })
        };
        Some(HeadRoomView { untimed_requests: untimed, ..view(&seen, clients, found) })
    }
}

/// Whether so many requests without times hide what those with times take.
fn is_too_much(untimed: u64, timed: u64) -> bool {
    untimed as f64 > UNTIMED * (untimed as f64 + timed as f64)
}

/// What happened from the first of these moments until now, and the clients that are there now. Little's law is of
/// averages: clients that came or left meanwhile count for as long as they were there. When none is there now, none
/// counts, as there would be nothing that more of them could be like.
fn interval(moments: &VecDeque<Moment>, now: &Moment) -> Option<(ServerInterval, u32)> {
    let first = moments.front()?;
    let there = moments.iter().chain([now]).map(|moment| moment.clients(first, now));
    let average = there.sum::<usize>() as f64 / (moments.len() + 1) as f64;
    let present = now.clients(first, now) as u32;
    let clients = if present == 0 { 0 } else { (average.round() as u32).max(1) };
    Some((now.since(first, clients), present))
}

/// What is told of an interval, now that there are so many clients.
fn view(seen: &ServerInterval, clients: u32, found: Option<HeadRoom>) -> HeadRoomView {
    let mut view = HeadRoomView {
        seconds: seen.seconds,
        clients: clients.into(),
        requests: seen.requests,
        untimed_requests: 0,
        more: None,
        limit: None,
        bottleneck: None,
        response_us: None,
        response_then_us: None,
        cpu_percent: None,
        backend_percent: None,
    };
    if let Some(found) = found {
        let limit = match found.limit {
            Limit::Utilisation => "utilisation",
            Limit::Response => "response",
            Limit::None => "none",
        };
        view.more = Some((seen.clients + found.more).saturating_sub(clients).into());
        view.limit = Some(limit.to_owned());
        view.bottleneck = Some(found.bottleneck);
        view.response_us = Some(seen.response_seconds * 1e6 / seen.requests as f64);
        view.response_then_us = Some(found.response * 1e6);
        view.cpu_percent = Some(found.busy.0 * 100.0);
        view.backend_percent = Some(found.busy.1 * 100.0);
    }
    view
}

impl HeadRoomView {
    /// In a line.
    pub fn text(&self) -> String {
        let (Some(more), Some(bottleneck), Some(then)) =
            (self.more, &self.bottleneck, self.response_then_us)
        else {
            if is_too_much(self.untimed_requests, self.requests) {
                return format!(
                    "{} of {} requests came by iSCSI or vhost-user, and what their clients need is not known",
                    self.untimed_requests,
                    self.untimed_requests + self.requests
                );
            }
            if self.requests >= head_room::ENOUGH_REQUESTS {
                return format!(
                    "{} requests in {:.0} s, whose times tell nothing of what more clients would meet",
                    self.requests, self.seconds
                );
            }
            return format!(
                "not enough requests yet: {} in {:.0} s, {} are needed",
                self.requests,
                self.seconds,
                head_room::ENOUGH_REQUESTS
            );
        };
        let least = if self.limit.as_deref() == Some("none") { "at least " } else { "" };
        format!(
            "{least}{more} more clients like the {} of now; then {bottleneck} is busiest, {:.0} us \
             in the server (now {:.0})",
            self.clients,
            then,
            self.response_us.unwrap_or(0.0)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(at: Instant, n: u64) -> Moment {
        Moment {
            at,
            requests: 5000 * n,
            untimed: 0,
            response_nanos: 5000 * n * 1_000_000,
            cpu_seconds: 0.05 * n as f64,
            reads: objects::BackendReads::default(),
            clients: HashMap::from([
                ("a".into(), (2500 * n, vec!["alice".into()])),
                ("b".into(), (2500 * n, vec!["bob".into()])),
                ("c".into(), (7, vec!["alice".into()])),
            ]),
            exports: HashMap::from([("alice".into(), 2500 * n), ("bob".into(), 2500 * n)]),
        }
    }

    #[test]
    fn a_host_counts_once_for_each_export_that_its_machines_ask() {
        let at = Instant::now();
        let mut later = moment(at, 2);
        let names = ["one", "two", "idle"].map(String::from);
        later.clients.insert("host".into(), (90, names.to_vec()));
        later.exports.extend(names.into_iter().zip([50, 40, 0]));
        assert_eq!(later.clients(&moment(at, 1), &later), 2 + 2);
        later.exports.clear();
        assert_eq!(later.clients(&moment(at, 1), &later), 3, "exports that were forgotten");
        let with = |requests| {
            let mut with = moment(at, 1);
            with.clients = [("w".into(), (requests, vec!["bob".into()]))].into();
            with
        };
        let (busy, anew) = (with(1000), with(3));
        assert_eq!(anew.clients(&busy, &anew), 1, "one that attached anew");
        assert_eq!(busy.clients(&busy, &with(1000)), 0, "one that asks for nothing");
    }

    #[test]
    fn clients_that_came_or_left_count_for_as_long_as_they_were_there() {
        let at = Instant::now();
        let mut moments = VecDeque::from([1, 2, 3, 4].map(|n| moment(at, n)));
        for (there, number) in moments.iter_mut().zip([0, 2, 4, 4]) {
            for name in ["w", "x", "y", "z"].into_iter().take(number) {
                there.clients.insert(name.into(), (10, vec!["bob".into()]));
            }
        }
        // Two all the time; two more at three of five moments, and another two at two of them.
        let (seen, now) = interval(&moments, &moment(at, 5)).unwrap();
        assert_eq!((seen.clients, now), (4, 2));
        let mut empty = moment(at, 5);
        empty.clients.clear();
        let (seen, now) = interval(&moments, &empty).unwrap();
        assert_eq!((seen.clients, now), (0, 0), "there is nobody to be like");
    }

    #[test]
    fn what_lies_between_two_moments_is_judged() {
        let start = Instant::now();
        let later = start + std::time::Duration::from_secs(10);
        let judged = |now: &Moment| interval(&VecDeque::from([moment(start, 1)]), now).unwrap();
        let (mut seen, clients) = judged(&moment(later, 3));
        assert_eq!((seen.clients, clients, seen.requests), (2, 2, 10_000));
        assert!(
            (seen.cpu_seconds - 0.1).abs() < 1e-9 && (seen.response_seconds - 10.0).abs() < 1e-9
        );
        seen.cpus = 1;
        // Two clients keep the processor busy by 1 %: it holds about 160 of them.
        let limits = OperatingLimits { utilisation: BUSY, response: None };
        let found = view(&seen, clients, head_room::head_room(&seen, limits).unwrap());
        assert!((140..=170).contains(&found.more.unwrap()), "{found:?}");
        assert!(found.text().contains("more clients like the 2 of now; then cpu"), "{found:?}");
        let many = HeadRoomView { untimed_requests: 600, more: None, ..found };
        assert!(many.text().starts_with("600 of 10600 requests came by iSCSI"), "{}", many.text());
        assert!(!is_too_much(0, 0) && !is_too_much(500, 10_000) && is_too_much(600, 10_000));
        let (idle, clients) = judged(&moment(later, 1));
        let found = view(&idle, clients, head_room::head_room(&idle, limits).unwrap());
        assert!(
            found.more.is_none() && found.text().contains("not enough requests yet: 0 in 10 s")
        );
    }
}
