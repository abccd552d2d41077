//! What one client, and all of them, may take.

use crate::server::schedule::busy_poll::BusyPoll;
use crate::server::schedule::pace::Rates;
use std::time::Duration;

/// Bounds on what clients may take from a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at a time; more are closed at once, unless one that keeps the server waiting in its
    /// negotiation, for a tenth of its deadline at least, leaves its place to a new one.
    pub connections: usize,
    /// Connections at a time of one client: told apart by its process or its address, and as soon as
    /// it has shown a certificate by that and its address. More are closed at once. 0 is no limit.
    pub client_connections: usize,
    /// How fast one client may go, over all its connections.
    pub client_rates: Rates,
    /// From the connection to the end of the negotiation.
    pub handshake_deadline: Duration,
    /// The longest option of the negotiation, in bytes; a longer one is refused, in step.
    pub option_bytes: usize,
    /// Bytes of one connection's requests and replies that are held at a time. While there are
    /// more, its requests are not read. A single request is always let in.
    pub in_flight_bytes: usize,
    /// The same for all connections together, beyond the 256 KiB that each may always hold. While
    /// it is used up, large requests stay unread. At least `max_request` in effect. The connections of
    /// one client hold no more than half of it, or a single request.
    pub total_bytes: u64,
    /// How long a client may be in the way: while it holds a part of `total_bytes` that others
    /// wait for, it must take or send half of that in this time, and while it has closed its side and
    /// has replies to take, or holds little, 64 KiB, or is dropped. A client that takes nothing of its
    /// replies for ten times as long is dropped in any case.
    pub stall_deadline: Duration,
    /// The longest read or write, in bytes, as told to clients.
    pub max_request: u32,
    /// Silence on a TCP connection until the peer is probed; a peer that then stays silent for
    /// the same time again is dropped.
    pub keepalive: Duration,
    /// Whether a connection looks for the next request of a client that has one in flight before it
    /// sleeps.
    pub busy_poll: BusyPoll,
    /// How long a stop waits for requests in flight and for clients to take their replies.
    pub stop_deadline: Duration,
}

impl ServerLimits {
    /// The bytes that all connections together may hold, in effect.
    pub(in crate::server) fn budget(&self) -> u64 {
        self.total_bytes.max(self.max_request.into())
    }

    /// The bytes that one client may hold.
    pub(in crate::server) fn client_budget(&self) -> u64 {
        (self.total_bytes / 2).max(self.max_request.into())
    }
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 4096,
            client_connections: 0,
            client_rates: Rates::default(),
            handshake_deadline: Duration::from_secs(30),
            option_bytes: 64 << 10,
            in_flight_bytes: 16 << 20,
            total_bytes: 1 << 30,
            stall_deadline: Duration::from_secs(30),
            max_request: 32 << 20,
            keepalive: Duration::from_secs(60),
            busy_poll: BusyPoll::Never,
            stop_deadline: Duration::from_secs(10),
        }
    }
}
