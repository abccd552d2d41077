//! The server: exports, front ends, the control socket, HTTP, hand-over and everything else that a process
//! does which serves disks to clients.
//!
//! This crate may know the engine, the protocols, certificates and access rules, signals, and the service
//! manager. It must not know the command line, print results, or decide what a store, a cache or a disk
//! does: that is `engine` and what is below it. Options arrive as plain values ([`options::Options`],
//! [`listen::Asked`]).
//!
//! | module | concept |
//! |---|---|
//! | [`daemon`] | the server of a home, from start to graceful stop |
//! | [`options`] | what the user asks of it, on top of the configuration |
//! | [`running`] | a running server, as its control socket and HTTP see it |
//! | [`upkeep`] | what it does for its disks once a second |
//! | [`exports`] | a home's disks and images as exports |
//! | [`file`](mod@file) | one file as the only export |
//! | [`brief`] | `--single` and `--run`: one client, or one command, and the end |
//! | [`plain`] | listeners without a home: `--file` |
//! | [`boots`] | what boots read is recorded, and loaded ahead of the next ones |
//! | [`gateway`](mod@gateway) | the store by HTTPS, for clients with certificates |
//! | [`iscsi`](mod@iscsi) | the same exports by iSCSI |
//! | [`listen`] | where the server listens, and what is asked of clients there |
//! | [`listeners`] | how that changes while it runs |
//! | [`security`] | TLS and access rules |
//! | [`record`], [`recordings`] | a trace of what clients ask, and its files |
//! | [`forward`] | another server's exports |
//! | [`inherit`], [`notify`] | sockets from, and notices to, the service manager |
//! | [`lease`] | the others on the store learn that the server is at work |
//! | [`lease_questions`] | a store that hangs is asked about few disks at a time, and about none twice |
//! | [`handover`] | one server follows another, and no client notices |
//! | [`prepared`] | what of a server can fail, done before an earlier one lets go |
//! | [`returning`] | who wants the disk of a client that was passed waits for it |
//! | [`reserve`] | descriptors for what must not fail |
//! | [`signals`] | what stops and reloads a server |
//! | [`reload`] | the configuration is read again |
//! | [`forecast`] | what other caches would do is followed |
//! | [`spare`] | how many processors there are to spare for busy polling |
//! | [`throttle`] | exports as slow, or as faulty, as a modelled disk |
//! | [`strain`] | full and slow disks, and a slow store, are noticed |
//! | [`control`] | how commands reach the disks that a server has open |
//! | [`borrow`] | borrowed disks in use, and borrowed room for a server's disks |
//! | [`descriptors`] | how many files and sockets may be open |
//! | [`names`] | the names of metrics and log fields |
//! | [`http`], [`https`], [`metrics`], [`status`], [`latency`], [`head_room`] | what the server tells of itself |

pub mod boots;
pub mod borrow;
pub mod brief;
pub mod control;
pub mod daemon;
pub mod descriptors;
pub mod exports;
pub mod file;
mod forecast;
pub mod forward;
pub mod gateway;
mod handover;
pub mod head_room;
mod http;
mod https;
mod inherit;
pub mod iscsi;
pub mod latency;
pub mod lease;
mod lease_questions;
pub mod listen;
mod listeners;
mod metrics;
mod names;
pub mod notify;
pub mod options;
pub mod plain;
mod prepared;
pub mod record;
pub mod recordings;
mod reload;
mod reserve;
mod returning;
mod running;
pub mod security;
pub mod signals;
mod spare;
pub mod status;
pub mod strain;
pub mod throttle;
mod upkeep;

use engine::Config;
use std::time::Duration;

/// The configuration's limits as the NBD server takes them.
pub fn limits(config: &Config) -> nbd::Limits {
    let (wanted, possible) =
        (config.limits.connections as usize, crate::descriptors::connections());
    if wanted > possible {
        tracing::info!(
            wanted,
            possible,
            "fewer connections than limits.connections: the system allows too few open files \
             (RLIMIT_NOFILE; LimitNOFILE= in a systemd unit)"
        );
    }
    nbd::Limits {
        connections: wanted.min(possible),
        client_connections: config.limits.client_connections as usize,
        client_rates: nbd::server::Rates {
            requests: config.limits.client_iops,
            bytes: config.limits.client_bandwidth.0,
        },
        handshake_deadline: Duration::from_secs(config.limits.handshake_seconds),
        in_flight_bytes: usize::try_from(config.limits.in_flight.0).unwrap_or(usize::MAX),
        total_bytes: config.limits.total_in_flight.0,
        max_request: u32::try_from(config.limits.request.0).unwrap_or(u32::MAX),
        busy_poll: match config.serve.busy_poll_us {
            None => nbd::server::BusyPoll::WhileSpare(spare::BUSY_POLL),
            Some(0) => nbd::server::BusyPoll::Never,
            Some(us) => nbd::server::BusyPoll::Always(Duration::from_micros(us)),
        },
        stop_deadline: Duration::from_secs(config.serve.stop_seconds),
        ..nbd::Limits::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::server::BusyPoll;

    #[test]
    fn requests_are_looked_for_as_the_configuration_says_or_while_there_are_processors_to_spare() {
        for (text, expected) in [
            ("", BusyPoll::WhileSpare(Duration::from_micros(200))),
            ("[serve]\nbusy_poll_us = 0", BusyPoll::Never),
            ("[serve]\nbusy_poll_us = 70", BusyPoll::Always(Duration::from_micros(70))),
        ] {
            assert_eq!(limits(&Config::parse(text).unwrap()).busy_poll, expected, "{text}");
        }
    }
}
