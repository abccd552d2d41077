//! Which sessions and units there are.

use crate::scsi::Unit;
use crate::scsi::identity::Identity;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering::Relaxed};
use tokio::sync::watch;

/// What a session is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// Go on.
    Go,
    /// Ask the initiator to log out, and end.
    LogOut,
    /// End: the initiator has begun the session anew.
    End,
}

/// Which session it is (RFC 7143, 6.3.5), and of which client: nobody ends a session of another one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    pub(super) client: String,
    pub(super) initiator: String,
    pub(super) isid: [u8; 6],
    pub(super) target: String,
}

#[derive(Debug)]
struct Handle {
    number: u64,
    order: watch::Sender<Order>,
    ended: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Registry {
    sessions: Mutex<(u64, HashMap<Key, Handle>)>,
    units: Mutex<HashMap<String, Arc<Unit>>>,
    handles: AtomicU16,
}

impl Registry {
    /// Ends the session of this key, if there is one, waits for its end, and takes its place. May be
    /// cancelled.
    pub(super) async fn take_place(&self, key: Key) -> Place<'_> {
        loop {
            let mut ended = {
                let (count, sessions) = &mut *self.sessions.lock();
                match sessions.get(&key) {
                    Some(handle) => {
                        handle.order.send_replace(Order::End);
                        handle.ended.clone()
                    }
                    None => {
                        *count += 1;
                        let (order, orders) = watch::channel(Order::Go);
                        let (end, ended) = watch::channel(false);
                        let number = *count;
                        sessions.insert(key.clone(), Handle { number, order, ended });
                        return Place { registry: self, key, number, orders, _end: end };
                    }
                }
            };
            // An error says that it has ended, too.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// The unit of a target, which all sessions share.
    pub(super) fn unit(&self, target: &str, identity: &str) -> Arc<Unit> {
        let mut units = self.units.lock();
        if let Some(unit) = units.get(target) {
            return Arc::clone(unit);
        }
        units.retain(|_, unit| Arc::strong_count(unit) > 1 || unit.is_in_use());
        let unit = Unit::new(Identity::new(identity, target));
        units.insert(target.to_owned(), Arc::clone(&unit));
        unit
    }

    /// A number for a session; not 0.
    pub(super) fn handle(&self) -> u16 {
        let number = self.handles.fetch_add(1, Relaxed);
        if number == 0 { self.handles.fetch_add(1, Relaxed).max(1) } else { number }
    }
}

/// A session's place; free again when it is dropped.
pub(super) struct Place<'a> {
    registry: &'a Registry,
    key: Key,
    number: u64,
    /// What it is told to do.
    pub(super) orders: watch::Receiver<Order>,
    /// Closed when it has ended.
    _end: watch::Sender<bool>,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let (_, sessions) = &mut *self.registry.sessions.lock();
        if sessions.get(&self.key).is_some_and(|handle| handle.number == self.number) {
            sessions.remove(&self.key);
        }
    }
}
