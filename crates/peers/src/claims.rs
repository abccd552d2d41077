//! Room for what peers claim to have: a bound on all of it together, and on what one machine may have of that.

use crate::summary::{ClaimedChunks, LONGEST_LOG, SummaryPart};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Ids that all peers claim together at the most: less than 200 MB of memory.
const MOST_CLAIMS: u64 = 16 << 20;
/// Ids that the peers at one address claim together: as many as one honest peer may, so that one bad machine leaves
/// room to others, whatever number of ports it answers at.
const MOST_OF_ADDRESS: u64 = LONGEST_LOG;

/// How many ids are claimed at each address.
#[derive(Debug, Default)]
pub(crate) struct ClaimRoom(Mutex<HashMap<IpAddr, u64>>);

impl ClaimRoom {
    /// Changes the claims of a peer at an address within what is left for it.
    fn change<T>(
        &self,
        address: IpAddr,
        claims: &mut ClaimedChunks,
        change: impl FnOnce(&mut ClaimedChunks, u64) -> T,
    ) -> T {
        let mut held = self.0.lock();
        let before = claims.len();
        let others: u64 = held.values().sum::<u64>() - before;
        let here = held.get(&address).copied().unwrap_or(0) - before;
        let most = MOST_CLAIMS.saturating_sub(others).min(MOST_OF_ADDRESS.saturating_sub(here));
        let changed = change(claims, most);
        match here + claims.len() {
            0 => held.remove(&address),
            now => held.insert(address, now),
        };
        changed
    }
}

/// What a peer says that it has, as far as there is room for it.
#[derive(Debug)]
pub(crate) struct PeerClaims {
    address: IpAddr,
    room: Arc<ClaimRoom>,
    claims: ClaimedChunks,
}

impl PeerClaims {
    /// Nothing yet, of a peer at this address.
    pub(crate) fn new(address: IpAddr, room: Arc<ClaimRoom>) -> Self {
        Self { address, room, claims: ClaimedChunks::default() }
    }

    /// Takes a part, as [`ClaimedChunks::take`] does; what there is no room for is not claimed.
    pub(crate) fn take(&mut self, part: &SummaryPart) -> bool {
        self.room
            .change(self.address, &mut self.claims, |claims, most| claims.take_up_to(most, part))
    }

    /// Forgets that it claims an id.
    pub(crate) fn disown(&mut self, id: &[u8; 32]) {
        self.room.change(self.address, &mut self.claims, |claims, _| claims.disown(id));
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        self.room.change(self.address, &mut self.claims, |claims, _| {
            *claims = ClaimedChunks::default();
        });
    }

    /// What is known: the log's number, and how much of it.
    pub(crate) fn known(&self) -> (u64, u64) {
        self.claims.known()
    }

    /// Whether it claims an id.
    pub(crate) fn claims(&self, id: &[u8; 32]) -> bool {
        self.claims.claims(id)
    }

    /// How many it claims.
    pub(crate) fn len(&self) -> u64 {
        self.claims.len()
    }
}

impl Drop for PeerClaims {
    fn drop(&mut self) {
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::MOST_AT_ONCE;

    /// Tells of so many ids of its own, as a peer that has them, or says so.
    fn tell(claims: &mut PeerClaims, count: u64) {
        let mut from = 0;
        while from < count {
            let until = count.min(from + MOST_AT_ONCE as u64);
            let bits = (from as u32..until as u32).collect();
            assert!(claims.take(&SummaryPart { log: 1, from, bits }), "it goes on");
            from = until;
        }
        assert_eq!(claims.known(), (1, count));
    }

    #[test]
    fn a_machine_that_claims_everything_leaves_room_and_all_of_it_is_bounded() {
        let (room, at) = (Arc::new(ClaimRoom::default()), |n| IpAddr::from([10, 0, 0, n]));
        let claims = |n| PeerClaims::new(at(n), Arc::clone(&room));
        let mut bad: Vec<_> = (0..3).map(|_| claims(1)).collect();
        bad.iter_mut().for_each(|claims| tell(claims, LONGEST_LOG));
        assert_eq!(bad.iter().map(PeerClaims::len).sum::<u64>(), MOST_OF_ADDRESS);
        let mut honest = claims(2);
        tell(&mut honest, LONGEST_LOG / 2);
        assert_eq!(honest.len(), LONGEST_LOG / 2);
        let mut others: Vec<_> = (3..13).map(claims).collect();
        others.iter_mut().for_each(|claims| tell(claims, LONGEST_LOG));
        let all = |others: &[PeerClaims]| {
            bad.iter().chain([&honest]).chain(others).map(PeerClaims::len).sum::<u64>()
        };
        assert_eq!(all(&others), MOST_CLAIMS);
        // Who goes away makes room, and so does a log that is forgotten.
        others.remove(0);
        let last = others.len() - 1;
        others[last].clear();
        tell(&mut others[last], LONGEST_LOG);
        assert_eq!(others[last].len(), LONGEST_LOG);
        others[last].disown(&[0; 32]);
        assert_eq!(others[last].len(), LONGEST_LOG - 1);
        drop((bad, honest, others));
        assert!(room.0.lock().is_empty());
    }
}
