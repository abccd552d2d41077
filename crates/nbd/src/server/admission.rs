//! Which connections are let in: as many as are allowed, of all clients and of each.

use super::budget::Budget;
use super::counters::CounterRegistry;
use super::exports::Peer;
use super::limits::ServerLimits;
use super::stream::Watch;
use super::{Inner, lock};
use block::{Error, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// One connection's place among those that are allowed.
pub(super) struct ConnectionSeat {
    pub(super) inner: Arc<Inner>,
    pub(super) limits: Arc<ServerLimits>,
    seat: Mutex<Option<ClientSeat>>,
    /// It is counted as accepted or refused.
    counted: AtomicBool,
    /// The place went to a newer connection.
    pub(super) evicted: Arc<AtomicBool>,
    /// To see that the client leaves, where there is a socket.
    pub(super) watch: Option<Watch>,
}

/// A client that has a connection.
pub(super) struct ConnectedClient {
    connections: usize,
    /// What all of them may hold.
    pub(super) part: Arc<Budget>,
}

/// A connection's place among those of its client.
struct ClientSeat {
    inner: Arc<Inner>,
    caller: String,
    part: Arc<Budget>,
}

impl ConnectionSeat {
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many connections, of all
    /// or of this client.
    pub(super) fn take(inner: &Arc<Inner>, peer: &Peer) -> Result<Self> {
        let registry = &inner.registry;
        let limits = inner.limits();
        let before = registry.connections.fetch_add(1, Relaxed);
        // Gives it back on drop.
        let (inner, seat) = (Arc::clone(inner), Mutex::default());
        let (counted, evicted) = (AtomicBool::new(false), Arc::default());
        let place = Self { inner, limits, seat, counted, evicted, watch: None };
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
        let made = self.inner.negotiations.make_room(self.limits.handshake_deadline);
        if made {
            self.inner.registry.connections.fetch_sub(1, Relaxed);
        }
        made
    }

    /// Counts the connection to this client, and to no other any more.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when the client has too many.
    pub(super) fn sit_down(&self, peer: &Peer) -> Result<()> {
        let (seat, connections) = ClientSeat::take(&self.inner, &peer.identity);
        let most = self.limits.client_connections;
        if most > 0 && connections > most {
            self.count_once(|registry| &registry.refused);
            let why = format!("more than {most} connections of one client: raise the limit");
            return Err(Error::unavailable(why));
        }
        *lock(&self.seat) = Some(seat);
        Ok(())
    }

    /// What the client's connections may hold.
    pub(super) fn part_of_client(&self) -> Arc<Budget> {
        let seat = lock(&self.seat);
        let part = seat.as_ref().map(|seat| Arc::clone(&seat.part));
        part.unwrap_or_else(|| Budget::new(self.limits.client_budget()))
    }

    /// Counts the connection as refused, or as accepted, which it is when no limit can refuse it any more.
    pub(super) fn count_once(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        if !self.counted.swap(true, Relaxed) {
            self.count(what);
        }
    }

    pub(super) fn count(&self, what: impl Fn(&CounterRegistry) -> &AtomicU64) {
        what(&self.inner.registry).fetch_add(1, Relaxed);
    }
}

impl Drop for ConnectionSeat {
    fn drop(&mut self) {
        self.count_once(|registry| &registry.accepted); // no limit has refused it
        if !self.evicted.load(Relaxed) {
            self.inner.registry.connections.fetch_sub(1, Relaxed);
        }
    }
}

impl ClientSeat {
    /// Counts one connection more of the client; gives how many it has now.
    fn take(inner: &Arc<Inner>, identity: &str) -> (Self, usize) {
        let mut callers = lock(&inner.callers);
        // The limits are read while nobody can change this client's part after them.
        let caller = callers.entry(identity.to_owned()).or_insert_with(|| ConnectedClient {
            connections: 0,
            part: Budget::new(inner.limits().client_budget()),
        });
        caller.connections += 1;
        let (inner, part) = (Arc::clone(inner), Arc::clone(&caller.part));
        (Self { inner, caller: identity.to_owned(), part }, caller.connections)
    }
}

impl Drop for ClientSeat {
    fn drop(&mut self) {
        let mut callers = lock(&self.inner.callers);
        if let Some(caller) = callers.get_mut(&self.caller) {
            caller.connections -= 1;
            if caller.connections == 0 {
                callers.remove(&self.caller);
            }
        }
    }
}
