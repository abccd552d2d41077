//! Which connections are let in: as many as are allowed, of all clients and of each.

use super::limits::ServerLimits;
use super::state::{ConnectedClient, ServerState};
use crate::server::counters::registry::CounterRegistry;
use crate::server::exports::Peer;
use crate::server::schedule::budget::Budget;
use crate::server::sockets::stream::Watch;
use block::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// One connection's place among those that are allowed.
pub(in crate::server) struct ConnectionSeat {
    pub(in crate::server) state: Arc<ServerState>,
    pub(in crate::server) limits: Arc<ServerLimits>,
    seat: Mutex<Option<ClientSeat>>,
    /// It is counted as accepted or refused.
    counted: AtomicBool,
    /// The place went to a newer connection.
    pub(in crate::server) evicted: Arc<AtomicBool>,
    /// To see that the client leaves, where there is a socket.
    pub(in crate::server) watch: Option<Watch>,
}

/// A connection's place among those of its client.
struct ClientSeat {
    state: Arc<ServerState>,
    caller: String,
    part: Arc<Budget>,
}

impl ConnectionSeat {
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many connections, of all
    /// or of this client.
    pub(in crate::server) fn take(state: &Arc<ServerState>, peer: &Peer) -> Result<Self> {
        let registry = &state.registry;
        let limits = state.limits();
        let before = registry.connections.fetch_add(1, Relaxed);
        // Gives it back on drop.
        let (state, seat) = (Arc::clone(state), Mutex::default());
        let (counted, evicted) = (AtomicBool::new(false), Arc::default());
        let place = Self { state, limits, seat, counted, evicted, watch: None };
        place.sit_down(peer)?;
        if before >= place.limits.connections as u64 && !place.inherits() {
            place.count_once(|registry| &registry.refused);
            let most = place.limits.connections;
            return Err(Error::unavailable(format!(
                "more than {most} connections: raise the limit"
            )));
        }
        Ok(place)
    }

    /// Whether a connection that keeps the server waiting in its negotiation leaves it its place.
    fn inherits(&self) -> bool {
        let made = self.state.negotiations.make_room(self.limits.handshake_deadline);
        if made {
            self.state.registry.connections.fetch_sub(1, Relaxed);
        }
        made
    }

    /// Counts the connection to this client, and to no other any more.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the client has too many.
    pub(in crate::server) fn sit_down(&self, peer: &Peer) -> Result<()> {
        let (seat, connections) = ClientSeat::take(&self.state, &peer.identity);
        let most = self.limits.client_connections;
        if most > 0 && connections > most {
            self.count_once(|registry| &registry.refused);
            let why = format!(
                "more than {most} connections of one client: close some, or raise client_connections"
            );
            return Err(Error::unavailable(why));
        }
        *self.seat() = Some(seat);
        Ok(())
    }

    fn seat(&self) -> MutexGuard<'_, Option<ClientSeat>> {
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the client's connections may hold.
    pub(in crate::server) fn part_of_client(&self) -> Arc<Budget> {
        let seat = self.seat();
        let part = seat.as_ref().map(|seat| Arc::clone(&seat.part));
        part.unwrap_or_else(|| Budget::new(self.limits.client_budget()))
    }

    /// Counts the connection as refused, or as accepted, which it is when no limit can refuse it any more.
    pub(in crate::server) fn count_once(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        if !self.counted.swap(true, Relaxed) {
            self.count(what);
        }
    }

    pub(in crate::server) fn count(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        what(&self.state.registry).fetch_add(1, Relaxed);
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.count_once(|registry| &registry.accepted); // no limit has refused it
        if !self.evicted.load(Relaxed) {
            self.state.registry.connections.fetch_sub(1, Relaxed);
        }
    }
}

impl ClientSeat {
    /// Counts one connection more of the client; gives how many it has now.
    fn take(state: &Arc<ServerState>, identity: &str) -> (Self, usize) {
        let mut callers = state.callers();
        // The limits are read while nobody can change this client's part after them.
        let caller = callers.entry(identity.to_owned()).or_insert_with(|| ConnectedClient {
            connections: 0,
            part: Budget::new(state.limits().client_budget()),
        });
        caller.connections += 1;
        let (state, part) = (Arc::clone(state), Arc::clone(&caller.part));
        (Self { state, caller: identity.to_owned(), part }, caller.connections)
    }
}

impl Drop for ClientSeat {
    fn drop(&mut self) {
        let mut callers = self.state.callers();
        if let Some(caller) = callers.get_mut(&self.caller) {
            caller.connections -= 1;
            if caller.connections == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}
