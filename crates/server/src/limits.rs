//! The configuration's limits as the NBD server takes them.

use super::descriptors;
use engine::Config;
use std::time::Duration;

/// The configuration's limits as the NBD server takes them.
pub(crate) fn limits(config: &Config) -> nbd::ServerLimits {
    let (wanted, possible) = (config.limits.connections as usize, descriptors::connections());
    if wanted > possible {
        tracing::info!(
            wanted,
            possible,
            "fewer connections than limits.connections: the system allows too few open files \
             (RLIMIT_NOFILE; LimitNOFILE= in a systemd unit)"
        );
    }
    nbd::ServerLimits {
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
            None => nbd::server::BusyPoll::DEFAULT,
            Some(0) => nbd::server::BusyPoll::Never,
            Some(us) => nbd::server::BusyPoll::Always(Duration::from_micros(us)),
        },
        stop_deadline: Duration::from_secs(config.serve.stop_seconds),
        ..nbd::ServerLimits::default()
    }
}

/// The limits of iSCSI that match these of NBD.
pub(crate) fn of_initiators(limits: &nbd::ServerLimits) -> iscsi::InitiatorLimits {
    iscsi::InitiatorLimits {
        connections: limits.connections.min(iscsi::InitiatorLimits::default().connections),
        client_connections: limits.client_connections,
        held_bytes: limits.total_bytes,
        login_deadline: limits.handshake_deadline,
        busy_poll: limits.busy_poll,
        stop_deadline: limits.stop_deadline,
        ..iscsi::InitiatorLimits::default()
    }
}

/// The limits of vhost-user that match these of NBD.
pub(crate) fn of_virtqueues(limits: &nbd::ServerLimits) -> vhost_user::FrontEndLimits {
    vhost_user::FrontEndLimits {
        connections: limits.connections.min(vhost_user::FrontEndLimits::default().connections),
        busy_poll: limits.busy_poll,
        held_bytes: limits.total_bytes,
        // Half of what connections leave, if there are as many as may be: the other half is for disks and the store. A
        // quarter where they would leave little: there are seldom as many.
        descriptors: (descriptors::limit().saturating_sub(limits.connections as u64) / 2)
            .max(descriptors::limit() / 4),
        stop_deadline: limits.stop_deadline,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::server::BusyPoll;

    #[test]
    fn requests_are_polled_for_as_the_configuration_says_or_while_there_are_processors_to_spare() {
        for (text, expected) in [
            ("", BusyPoll::WhileSpare(Duration::from_micros(200))),
            ("[serve]\nbusy_poll_us = 0", BusyPoll::Never),
            ("[serve]\nbusy_poll_us = 70", BusyPoll::Always(Duration::from_micros(70))),
        ] {
            assert_eq!(limits(&Config::parse(text).unwrap()).busy_poll, expected, "{text}");
        }
    }
}
