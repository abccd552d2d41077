//! What a trace says of the load that made it.

use serde::Serialize;
use std::collections::HashMap;
use trace::{Header, Op, Request};

/// Clients in a trace that are told apart; more count as one.
const MOST_CLIENTS: usize = 1 << 20;

/// The load of a trace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct TraceLoad {
    /// Requests with a range.
    pub(super) requests: u64,
    /// Clients of the trace.
    pub(super) clients: u32,
    /// The share of requests that change the disk, and so never wait for the backend.
    pub(super) changes: f64,
    /// The mean length of a request, in bytes.
    pub(super) mean_bytes: u64,
    /// From an answer to the same client's next request, on average; null without times.
    pub(super) think_ms: Option<f64>,
    /// The share of the chunks that another client asked for within the time of a miss after the first one.
    pub(super) related: f64,
}

/// Whether clients ask for the same at the same time.
#[derive(Debug)]
pub(super) struct ClientRelation {
    /// The time of a miss, in nanoseconds.
    window: u64,
    /// When a chunk was asked for first, and by whom; nobody once another client did soon after.
    first: HashMap<u64, (u64, Option<u32>)>,
    together: u64,
}

impl ClientRelation {
    /// Clients are together that ask within so many seconds.
    pub(super) fn within(seconds: f64) -> Self {
        Self { window: (seconds * 1e9) as u64, first: HashMap::new(), together: 0 }
    }

    /// Takes a read, and the chunks that it needs.
    pub(super) fn take(&mut self, request: &Request, chunks: &[u64]) {
        for chunk in chunks {
            let (time, client) =
                self.first.entry(*chunk).or_insert((request.time, Some(request.client)));
            let is_other = client.is_some_and(|client| client != request.client);
            if is_other && request.time.saturating_sub(*time) <= self.window {
                *client = None;
                self.together += 1;
            }
        }
    }

    /// The share of the chunks that were asked for together.
    pub(super) fn share(&self) -> f64 {
        self.together as f64 / self.first.len().max(1) as f64
    }
}

/// Counts the load of a trace as it goes by.
#[derive(Debug, Default)]
pub(super) struct Counter {
    clients: HashMap<u32, TraceClient>,
    requests: u64,
    changes: u64,
    bytes: u128,
    latency: u128,
}

#[derive(Debug, Clone, Copy)]
struct TraceClient {
    first: u64,
    last: u64,
    requests: u64,
}

impl Counter {
    /// Takes a part of the trace.
    pub(super) fn take(&mut self, batch: &[Request]) {
        for request in batch.iter().filter(|request| request.length > 0) {
            self.requests += 1;
            self.changes += u64::from(request.op != Op::Read);
            self.bytes += u128::from(request.length);
            self.latency += u128::from(request.latency);
            let full = self.clients.len() >= MOST_CLIENTS;
            let key = if full { u32::MAX } else { request.client };
            let new = TraceClient { first: request.time, last: request.time, requests: 0 };
            let client = self.clients.entry(key).or_insert(new);
            client.last = client.last.max(request.time);
            client.requests += 1;
        }
    }

    /// The load of everything taken.
    pub(super) fn load(&self, header: &Header) -> TraceLoad {
        let requests = self.requests.max(1) as f64;
        let active: u64 = self.clients.values().map(|client| client.last - client.first).sum();
        let gaps: u64 = self.clients.values().map(|client| client.requests - 1).sum();
        let think = (header.times && gaps > 0).then(|| {
            let gap = active as f64 / gaps as f64;
            (gap - self.latency as f64 / requests).max(0.0) / 1e6
        });
        TraceLoad {
            requests: self.requests,
            clients: u32::try_from(self.clients.len()).unwrap_or(u32::MAX),
            changes: self.changes as f64 / requests,
            mean_bytes: (self.bytes as f64 / requests).round().max(1.0) as u64,
            think_ms: think,
            related: 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_are_related_when_they_ask_for_the_same_within_a_miss() {
        let mut relation = ClientRelation::within(0.01);
        let read = |client, ms: u64| Request { client, time: ms * 1_000_000, ..Request::default() };
        relation.take(&read(0, 0), &[1, 2, 3, 4]);
        relation.take(&read(1, 5), &[1]);
        relation.take(&read(2, 6), &[1]); // the third is not counted again
        relation.take(&read(0, 7), &[2]); // the same client
        relation.take(&read(1, 20), &[3]); // too late
        assert_eq!(relation.share(), 0.25);
    }

    #[test]
    fn pauses_are_what_is_left_between_requests_of_one_client() {
        let mut counter = Counter::default();
        let request = |client, ms: u64, op, length| Request {
            client,
            time: ms * 1_000_000,
            op,
            length,
            latency: 2_000_000,
            ..Request::default()
        };
        counter.take(&[
            request(0, 0, Op::Read, 4096),
            request(1, 5, Op::Write, 8192),
            request(0, 10, Op::Read, 4096),
            request(0, 11, Op::Flush, 0),
        ]);
        counter.take(&[request(1, 25, Op::Read, 4096)]);
        let load = counter.load(&Header::default());
        assert_eq!((load.requests, load.clients, load.mean_bytes), (4, 2, 5120));
        assert_eq!(load.changes, 0.25);
        // Gaps of 10 and 20 ms, less 2 ms until the answer.
        assert!((load.think_ms.unwrap() - 13.0).abs() < 1e-9);
        let header = Header { times: false, ..Header::default() };
        assert_eq!(counter.load(&header).think_ms, None);
    }
}
