//! What values a configuration may have.

use super::{Config, log};
use crate::disk_profile;
use access::Rules;
use block::{Error, Result};
use std::net::SocketAddr;

impl Config {
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) with the key of a value that is not allowed, and why.
    pub(super) fn check(&self) -> Result<()> {
        let bad = |key: &str, why: &str| Err(Error::invalid(format!("{key}: {why}")));
        if !self.cache.policy.serves() {
            return bad(
                "cache.policy",
                "this policy is for comparisons only; use duel or another that docs/simulate.md names",
            );
        }
        if self.store.is_empty() {
            return bad("store", "is empty; give a directory or a file:// URL");
        }
        if !(self.pieces.size.0 == 0 || self.pieces.size.0 >= 16 << 20) {
            return bad("pieces.size", "must be 0 (nothing is kept) or at least 16MiB");
        }
        if self.pieces.dir.is_empty() {
            return bad("pieces.dir", "is empty; give a directory");
        }
        Rules::new(self.access.clone(), false)?;
        if self.serve.http.as_ref().is_some_and(|http| http.address.parse::<SocketAddr>().is_err())
        {
            return bad("serve.http", "is not IP:PORT, such as 127.0.0.1:9180");
        }
        let is_name = |name: &String| {
            let part = |part: &str| {
                !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
            };
            name.split('.').all(part)
        };
        if !self.serve.http_names.iter().all(is_name) {
            return bad("serve.http_names", "are names of this machine, such as lab.example.org");
        }
        if self.serve.gateway.as_ref().is_some_and(|at| at.parse::<SocketAddr>().is_err()) {
            return bad("serve.gateway", "is not IP:PORT, such as 0.0.0.0:9443");
        }
        if self.tls.dir.is_empty() {
            return bad("tls.dir", "is empty; give a directory");
        }
        if self.trace.dir.as_deref() == Some("") {
            return bad("trace.dir", "is empty; give a directory, or leave it out");
        }
        if self.trace.size.0 < 1 << 20 {
            return bad("trace.size", "must be at least 1MiB");
        }
        if self.limits.connections == 0 {
            return bad("limits.connections", "is 0; at least 1 is needed");
        }
        if self.limits.handshake_seconds == 0 {
            return bad("limits.handshake_seconds", "is 0; at least 1 is needed");
        }
        if !(1 << 16..=32 << 20).contains(&self.limits.request.0) {
            return bad("limits.request", "must be 64KiB to 32MiB");
        }
        let slow = 1..1_000_000;
        if slow.contains(&self.limits.client_bandwidth.0) {
            return bad("limits.client_bandwidth", "must be 0 (no limit) or at least 1MB a second");
        }
        if !(1 << 20..=1 << 30).contains(&self.limits.in_flight.0) {
            return bad("limits.in_flight", "must be 1MiB to 1GiB");
        }
        if !(64 << 20..=1 << 40).contains(&self.limits.total_in_flight.0) {
            return bad("limits.total_in_flight", "must be 64MiB to 1TiB");
        }
        for (key, seconds) in [
            ("limits.handshake_seconds", self.limits.handshake_seconds),
            ("serve.idle_seconds", self.serve.idle_seconds),
            ("serve.stop_seconds", self.serve.stop_seconds),
            ("serve.store_seconds", self.serve.store_seconds),
            ("serve.lease_seconds", self.serve.lease_seconds),
        ] {
            if seconds > 86_400 {
                return bad(key, "is more than a day; write seconds, or text such as \"30s\"");
            }
        }
        if self.serve.read_ahead.0 > 64 << 20 {
            return bad("serve.read_ahead", "must be at most 64MiB");
        }
        disk_profile::read_order(&self.serve.store_disk)
            .map_err(|e| e.context("serve.store_disk"))?;
        if self.serve.loads > 4096 {
            return bad("serve.loads", "must be at most 4096");
        }
        if self.serve.slow_ms > 86_400_000 {
            return bad("serve.slow_ms", "is more than a day; write milliseconds");
        }
        if self.serve.busy_poll_us > Some(1000) {
            return bad("serve.busy_poll_us", "must be at most 1000");
        }
        if self.serve.lease_seconds < 3 {
            return bad("serve.lease_seconds", "must be at least 3");
        }
        log::check_level(&self.log.level).map_err(|e| e.context("log.level"))?;
        Ok(())
    }
}
