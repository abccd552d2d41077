//! How many bytes requests may hold that wait for the device: those of a ring, of a client, of all together.

use crate::carry::{Mailbox, PIECE};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, Weak};

/// What all clients may hold, and each of them.
#[derive(Debug)]
pub(crate) struct ClientsHeld {
    all: Arc<HeldBytes>,
    /// What each may hold that has a connection, or a request that waits.
    by_client: Mutex<HashMap<String, Weak<HeldBytes>>>,
}

impl ClientsHeld {
    /// So many bytes for all together.
    pub(crate) fn new(most: u64) -> Self {
        Self { all: HeldBytes::new(most), by_client: Mutex::default() }
    }

    /// What the connections of a client may hold together: half of all, so that one alone is in nobody's way.
    pub(crate) fn half_of(&self, client: &str) -> Arc<HeldBytes> {
        let mut by_client = self.by_client.lock();
        by_client.retain(|_, half| half.strong_count() > 0);
        if let Some(half) = by_client.get(client).and_then(Weak::upgrade) {
            return half;
        }
        let half = self.all.part(self.all.most / 2);
        by_client.insert(client.to_owned(), Arc::downgrade(&half));
        half
    }
}

/// What the rings of one client, or of all, may hold; or what one may.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    most: u64,
    state: Mutex<HeldState>,
    /// What this is a part of.
    whole: Option<Arc<Self>>,
}

#[derive(Debug, Default)]
struct HeldState {
    taken: u64,
    /// Rings that got less than they asked for: they ask again when some of it is given back.
    short: Vec<Weak<Mailbox>>,
}

impl HeldBytes {
    /// So many bytes; enough for one request at least.
    pub(crate) fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most: most.max(PIECE), state: Mutex::default(), whole: None })
    }

    /// At most so many of these bytes.
    pub(crate) fn part(self: &Arc<Self>, most: u64) -> Arc<Self> {
        let whole = Some(Arc::clone(self));
        Arc::new(Self { most: most.max(PIECE), state: Mutex::default(), whole })
    }

    /// Takes so many bytes for a ring. If there are fewer, it is woken when it is to ask again.
    pub(crate) fn take(self: &Arc<Self>, bytes: u64, ring: &Arc<Mailbox>) -> Option<HeldShare> {
        let whole = match &self.whole {
            Some(whole) => Some(Box::new(whole.take(bytes, ring)?)),
            None => None,
        };
        let mut state = self.state.lock();
        if state.taken + bytes > self.most {
            state.short.retain(|other| other.strong_count() > 0);
            if !state.short.iter().any(|other| other.as_ptr() == Arc::as_ptr(ring)) {
                state.short.push(Arc::downgrade(ring));
            }
            return None;
        }
        state.taken += bytes;
        Some(HeldShare { of: Arc::clone(self), bytes, _whole: whole })
    }
}

/// Bytes that a request holds, until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldShare {
    of: Arc<HeldBytes>,
    bytes: u64,
    /// The same of what that is a part of.
    _whole: Option<Box<Self>>,
}

impl Drop for HeldShare {
    fn drop(&mut self) {
        let short = {
            let mut state = self.of.state.lock();
            state.taken -= self.bytes;
            std::mem::take(&mut state.short)
        };
        short.iter().filter_map(Weak::upgrade).for_each(|ring| ring.wake());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring() -> Arc<Mailbox> {
        Arc::new(Mailbox::new().unwrap())
    }

    fn is_woken(ring: &Mailbox) -> bool {
        rustix::io::read(ring.wakes(), &mut [0; 8]).is_ok()
    }

    #[test]
    fn who_is_short_of_room_is_woken_when_there_is_some() {
        let all = HeldBytes::new(3 * PIECE);
        let (first, second) = (all.part(2 * PIECE), all.part(2 * PIECE));
        let (one, other) = (ring(), ring());
        let held: Vec<_> = (0..2).map(|_| first.take(PIECE, &one).unwrap()).collect();
        assert!(first.take(1, &one).is_none(), "more than its part");
        let third = second.take(PIECE, &other).unwrap();
        assert!(second.take(1, &other).is_none(), "more than there is");
        assert!(!is_woken(&one) && !is_woken(&other));
        drop(held);
        assert!(is_woken(&one) && is_woken(&other));
        assert!(second.take(PIECE, &other).is_some());
        drop(third);
        assert!(!is_woken(&one), "it asked for nothing");
        let again: Vec<_> = (0..2).map_while(|_| first.take(PIECE, &one)).collect();
        assert_eq!(again.len(), 2, "all was given back");
    }

    #[test]
    fn there_is_room_for_one_request_however_little_is_allowed() {
        let all = ClientsHeld::new(1);
        assert!(all.half_of("a").part(0).take(PIECE, &ring()).is_some());
    }

    #[test]
    fn all_connections_of_a_client_have_one_half_together() {
        let (all, ring) = (ClientsHeld::new(4 * PIECE), ring());
        let (first, second) = (all.half_of("a"), all.half_of("a"));
        let held = [&first, &second].map(|connection| connection.take(PIECE, &ring).unwrap());
        assert!(first.take(1, &ring).is_none() && second.take(1, &ring).is_none());
        assert!(all.half_of("b").take(2 * PIECE, &ring).is_some(), "the other half");
        // What is at the device counts for the connection that comes next.
        drop((first, second));
        assert!(all.half_of("a").take(1, &ring).is_none());
        drop(held);
        assert!(all.half_of("a").take(2 * PIECE, &ring).is_some());
        assert_eq!(all.by_client.lock().len(), 1, "who is gone is forgotten");
    }
}
