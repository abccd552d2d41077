//! Sequentiality: where a request begins, seen from where the client's last one on the disk ended.

use crate::Request;
use serde::Serialize;
use std::collections::HashMap;

/// How far a request may skip to be near, in bytes.
const NEAR: u64 = 64 << 10;
/// Pairs of a client and a disk that are followed.
const PAIRS: usize = 1 << 20;

/// Reads and writes by where they begin.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct AccessOrder {
    /// Where the one before ended.
    pub sequential: u64,
    /// Up to 64 KiB from there, forwards or backwards.
    pub near: u64,
    /// Elsewhere.
    pub random: u64,
    /// Bytes of a run of sequential requests, on average.
    pub mean_run: f64,
}

/// Follows clients.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    ends: HashMap<(u32, u32), u64>,
    order: AccessOrder,
    runs: u64,
    bytes: u64,
}

impl Follower {
    pub(crate) fn add(&mut self, request: &Request) {
        let key = (request.client, request.disk);
        if self.ends.len() >= PAIRS && !self.ends.contains_key(&key) {
            return;
        }
        self.bytes += u64::from(request.length);
        match self.ends.insert(key, request.end()) {
            Some(end) if end == request.offset => {
                self.order.sequential += 1;
                return;
            }
            Some(end) if end.abs_diff(request.offset) <= NEAR => self.order.near += 1,
            _ => self.order.random += 1,
        }
        self.runs += 1;
    }

    pub(crate) fn finish(self) -> AccessOrder {
        let mean_run = if self.runs == 0 { 0.0 } else { self.bytes as f64 / self.runs as f64 };
        AccessOrder { mean_run, ..self.order }
    }
}
