//! Connections that have not logged in yet, and who leaves when there are too many: they cost their peers nothing,
//! and must keep nobody out.

use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::Notify;

/// Connections in their login, the oldest first.
#[derive(Debug)]
pub(super) struct Logins {
    most: usize,
    waiting: Mutex<(u64, BTreeMap<u64, HalfOpen>)>,
}

#[derive(Debug)]
struct HalfOpen {
    address: IpAddr,
    leave: Arc<Notify>,
}

impl Logins {
    /// Room for so many, and for one at least.
    pub(super) fn new(most: usize) -> Self {
        Self { most: most.max(1), waiting: Mutex::default() }
    }

    /// Takes a place for a connection from `address`. When there is none, the oldest connection leaves of the
    /// address that has the most.
    pub(super) fn enter(&self, address: IpAddr) -> LoginPlace<'_> {
        let (next, waiting) = &mut *self.waiting.lock();
        while waiting.len() >= self.most {
            let Some(number) = victim(waiting) else { break };
            if let Some(evicted) = waiting.remove(&number) {
                evicted.leave.notify_one();
            }
        }
        let (number, leave) = (*next, Arc::new(Notify::new()));
        *next += 1;
        waiting.insert(number, HalfOpen { address, leave: Arc::clone(&leave) });
        LoginPlace { logins: self, number, leave }
    }
}

/// The oldest connection of the address that has the most, of the one that has the oldest if several have.
fn victim(waiting: &BTreeMap<u64, HalfOpen>) -> Option<u64> {
    let mut counts: HashMap<IpAddr, usize> = HashMap::new();
    waiting.values().for_each(|one| *counts.entry(one.address).or_default() += 1);
    let most = *counts.values().max()?;
    waiting.iter().find(|(_, one)| counts.get(&one.address) == Some(&most)).map(|(n, _)| *n)
}

/// A connection's place among them; free again when it is dropped.
pub(super) struct LoginPlace<'a> {
    logins: &'a Logins,
    number: u64,
    leave: Arc<Notify>,
}

impl LoginPlace<'_> {
    /// Ready when another connection has taken the place.
    pub(super) async fn lost(&self) {
        self.leave.notified().await;
    }
}

impl Drop for LoginPlace<'_> {
    fn drop(&mut self) {
        self.logins.waiting.lock().1.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;
    use std::net::Ipv4Addr;

    fn address(last: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, last).into()
    }

    fn has_lost(place: &LoginPlace<'_>) -> bool {
        place.lost().now_or_never().is_some()
    }

    #[test]
    fn the_oldest_of_the_address_that_has_the_most_leaves() {
        let logins = Logins::new(4);
        let [quiet, first, second, third] = [1, 2, 2, 2].map(|n| logins.enter(address(n)));
        let fourth = logins.enter(address(2));
        assert!(has_lost(&first));
        let other = logins.enter(address(3));
        assert!(has_lost(&second));
        for place in [&quiet, &third, &fourth, &other] {
            assert!(!has_lost(place));
        }
    }

    #[test]
    fn who_has_logged_in_leaves_its_place_to_another() {
        let logins = Logins::new(1);
        drop(logins.enter(address(1)));
        let one = logins.enter(address(1));
        assert!(!has_lost(&one));
        let other = logins.enter(address(2));
        assert!(has_lost(&one) && !has_lost(&other));
        drop(one);
        assert!(!has_lost(&other));
    }
}
