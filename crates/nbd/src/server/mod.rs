//! The server: listening, negotiation, the request loop.
//!
//! A room imports those above it in this table, and none below. The protocol reads from the top in
//! `session/protocol.rs`.
//!
//! | module | concept |
//! |---|---|
//! | `exports` | what is offered, to whom: implemented by the daemon |
//! | `schedule` | who goes first, and how much each may hold |
//! | `sockets` | sockets that listen and sockets that are connected |
//! | `counters` | what is counted and timed |
//! | `admission` | who may connect, what clients may take, and the server's state |
//! | `session` | one client, from the greeting to the end of its session |
//! | `serving` | [`Server`]: accepts clients until it stops |

mod admission;
mod counters;
mod exports;
mod schedule;
mod serving;
mod session;
mod sockets;

#[cfg(test)]
mod tests;

pub use admission::limits::ServerLimits;
pub use counters::latency::{Latencies, Latency, TimedOperation};
pub use counters::registry::{ClientCounters, ClientPace, Counters, ExportCounters};
pub use counters::traffic::Traffic;
pub use exports::{
    ExportSummary, Exports, Layered, PassedUse, Peer, Purpose, Session, SessionEnding, Transport,
};
pub use schedule::busy_poll::{BusyPoll, BusyPoller, Processors, Waits};
pub use schedule::idle_processors::spare_while_idle;
pub use schedule::lone_receiver::LoneReceiver;
pub use schedule::pace::Rates;
pub use serving::Server;
pub use session::passing::{Carrier, Interrupted, KeptPlace, PassedConnection, Passing, Phase};
pub use session::remainder::ConnectionRemainder;
pub use sockets::listener::{BindingTurn, DEFAULT_BACKLOG, Listener};
pub use sockets::stream::{ConnectedSocket, Watch};
pub use sockets::tls::{Credentials, Tls};
