//! The bytes that sessions hold for commands under way: what each may hold in any case, and what is beyond it out of
//! one budget of all, of which one client has half at the most.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};

/// What a session may hold whatever the others do, in bytes: commands go on, if one after the other.
pub(super) const OWN: u64 = 1 << 20;

/// Bytes of which so many may be taken.
#[derive(Debug)]
struct SharedBytes {
    most: u64,
    taken: AtomicU64,
}

impl SharedBytes {
    fn new(most: u64) -> Self {
        Self { most, taken: AtomicU64::new(0) }
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |taken: u64| taken.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.taken.fetch_update(Relaxed, Relaxed, more).is_ok()
    }

    fn give_back(&self, bytes: u64) {
        self.taken.fetch_sub(bytes, Relaxed);
    }
}

/// What all sessions may hold beyond their [`OWN`].
#[derive(Debug)]
pub(super) struct CommandRoom {
    all: SharedBytes,
    clients: Mutex<HashMap<String, Weak<SharedBytes>>>,
}

impl CommandRoom {
    pub(super) fn new(most: u64) -> Self {
        Self { all: SharedBytes::new(most), clients: Mutex::default() }
    }

    /// The room of a session of `client`.
    pub(super) fn session(&self, client: &str) -> SessionRoom<'_> {
        let mut clients = self.clients.lock();
        let shared = clients.get(client).and_then(Weak::upgrade).unwrap_or_else(|| {
            let own = Arc::new(SharedBytes::new(self.all.most / 2));
            clients.retain(|_, other| other.strong_count() > 0);
            clients.insert(client.to_owned(), Arc::downgrade(&own));
            own
        });
        SessionRoom { of: self, client: shared, held: 0, taken: 0 }
    }

    /// What is taken beyond what sessions have of their own.
    #[cfg(test)]
    pub(super) fn taken(&self) -> u64 {
        self.all.taken.load(Relaxed)
    }
}

/// What one session holds; all of it is given back when this is dropped.
#[derive(Debug)]
pub(super) struct SessionRoom<'a> {
    of: &'a CommandRoom,
    /// That of all sessions of its client.
    client: Arc<SharedBytes>,
    held: u64,
    /// What of it is beyond the session's own.
    taken: u64,
}

impl SessionRoom<'_> {
    /// Holds so many bytes more, if there is room for them.
    pub(super) fn hold(&mut self, bytes: u64) -> bool {
        let held = self.held.saturating_add(bytes);
        let beyond = held.saturating_sub(OWN);
        if beyond > self.taken {
            let more = beyond - self.taken;
            if !self.client.take(more) {
                return false;
            }
            if !self.of.all.take(more) {
                self.client.give_back(more);
                return false;
            }
            self.taken = beyond;
        }
        self.held = held;
        true
    }

    /// Gives so many bytes back.
    pub(super) fn give_back(&mut self, bytes: u64) {
        self.held = self.held.saturating_sub(bytes);
        let beyond = self.held.saturating_sub(OWN);
        if beyond < self.taken {
            self.client.give_back(self.taken - beyond);
            self.of.all.give_back(self.taken - beyond);
            self.taken = beyond;
        }
    }
}

impl Drop for SessionRoom<'_> {
    fn drop(&mut self) {
        self.give_back(self.held);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_session_has_its_own_room_and_each_client_half_however_much_others_hold() {
        let all = CommandRoom::new(4 * OWN);
        let mut greedy = all.session("greedy");
        assert!(greedy.hold(3 * OWN) && !greedy.hold(1));
        let mut again = all.session("greedy");
        assert!(again.hold(OWN) && !again.hold(1), "its client has half");
        let mut other = all.session("other");
        assert!(other.hold(3 * OWN) && !other.hold(1));
        let mut third = all.session("third");
        assert!(third.hold(OWN) && !third.hold(1), "there is no more");
        other.give_back(OWN);
        assert!(third.hold(OWN) && !third.hold(1));
        drop((greedy, again, other, third));
        assert_eq!(all.taken(), 0);
        drop(all.session("new"));
        assert_eq!(all.clients.lock().len(), 1, "nobody is remembered who has gone");
    }

    proptest! {
        #[test]
        fn the_sessions_together_hold_no_more_than_the_budget_and_their_own(
            steps in prop::collection::vec((0usize..3, any::<bool>(), 0u64..3 * OWN), 0..60),
        ) {
            let all = CommandRoom::new(3 * OWN);
            let mut rooms = ["a", "b", "c"].map(|client| all.session(client));
            let mut held = [0_u64; 3];
            let beyond = |held: u64| held.saturating_sub(OWN);
            for (who, holds, bytes) in steps {
                if holds {
                    let others: u64 = (0..3).filter(|n| *n != who).map(|n| beyond(held[n])).sum();
                    let wants = beyond(held[who] + bytes);
                    let fits = wants <= 3 * OWN / 2 && others + wants <= 3 * OWN;
                    prop_assert_eq!(rooms[who].hold(bytes), fits);
                    if fits {
                        held[who] += bytes;
                    }
                } else {
                    let bytes = bytes.min(held[who]);
                    rooms[who].give_back(bytes);
                    held[who] -= bytes;
                }
                prop_assert_eq!(all.taken(), held.iter().map(|held| beyond(*held)).sum::<u64>());
            }
        }
    }
}
