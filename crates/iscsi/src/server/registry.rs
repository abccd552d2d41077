//! Which sessions and units there are.

use crate::Targets;
use crate::scsi::identity::Identity;
use crate::scsi::reservations::Reservations;
use crate::scsi::{ReservationKeeper, Unit};
use async_trait::async_trait;
use block::{Error, Result};
use nbd::server::Watch;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering::Relaxed, Ordering::SeqCst};
use tokio::sync::watch;

/// What a session is told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionOrder {
    /// Go on.
    Go,
    /// Ask the initiator to log out, and end.
    LogOut,
    /// End: the initiator has begun the session anew.
    End,
}

/// Which session it is (RFC 7143, 6.3.5), and of which client: nobody ends a session of another one. Machines that were
/// made from one image have one name, one ISID and one CHAP user: their addresses tell them apart.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    pub(super) client: String,
    pub(super) initiator: String,
    pub(super) isid: [u8; 6],
    pub(super) target: String,
}

#[derive(Debug)]
struct SessionHandle {
    number: u64,
    order: watch::Sender<SessionOrder>,
    ended: watch::Receiver<bool>,
    /// It takes nothing more, and only waits for what it has begun.
    ending: Arc<AtomicBool>,
    connection: Watch,
}

impl SessionHandle {
    /// Whether its initiator waits for nothing of it any more: what it has begun may still be at the device.
    fn is_lost(&self) -> bool {
        self.ending.load(SeqCst) || self.connection.has_hung_up()
    }
}

/// Which unit it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnitKey {
    target: String,
    /// Another disk may get the name.
    identity: String,
    /// The client that it is for alone: one that may only read resets no commands but its own.
    reader: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct SessionRegistry {
    sessions: Mutex<(u64, HashMap<SessionKey, SessionHandle>)>,
    units: Mutex<HashMap<UnitKey, Arc<Unit>>>,
    /// Held by whoever makes a unit of what was kept.
    opening: tokio::sync::Mutex<()>,
    handles: AtomicU16,
}

impl SessionRegistry {
    /// Ends the session of this key, if there is one, waits for its end, and takes its place for the session of
    /// this connection. May be cancelled.
    pub(super) async fn take_place(
        &self,
        key: SessionKey,
        connection: Watch,
    ) -> RegisteredSession<'_> {
        loop {
            let mut ended = {
                let (count, sessions) = &mut *self.sessions.lock();
                match sessions.get(&key) {
                    Some(handle) => {
                        handle.order.send_replace(SessionOrder::End);
                        handle.ended.clone()
                    }
                    None => {
                        *count += 1;
                        let (order, orders) = watch::channel(SessionOrder::Go);
                        let (end, ended) = watch::channel(false);
                        let number = *count;
                        let ending = Arc::new(AtomicBool::new(false));
                        let (also_ending, connection) = (Arc::clone(&ending), connection.clone());
                        let handle =
                            SessionHandle { number, order, ended, ending: also_ending, connection };
                        sessions.insert(key.clone(), handle);
                        return RegisteredSession {
                            registry: self,
                            key,
                            number,
                            orders,
                            ending,
                            _end: end,
                        };
                    }
                }
            };
            // An error says that it has ended, too.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// The unit of a target, which all sessions share that may write. Those of a `reader`, who may not, have one of
    /// their own, without reservations.
    ///
    /// # Errors
    /// When its reservations cannot be read.
    pub(super) async fn unit(
        &self,
        target: &str,
        identity: String,
        reader: Option<String>,
        targets: &Arc<dyn Targets>,
    ) -> Result<Arc<Unit>> {
        let key = UnitKey { target: target.to_owned(), identity, reader };
        let known = || self.units.lock().get(&key).map(Arc::clone);
        if let Some(unit) = known() {
            return Ok(unit);
        }
        let _alone = self.opening.lock().await;
        if let Some(unit) = known() {
            return Ok(unit);
        }
        let kept = match key.reader {
            Some(_) => None,
            None => targets.kept_reservations(&key.identity).await?,
        };
        let reservations = match kept {
            Some(text) => Reservations::restore(&text).map_err(|e| {
                // Not the initiator's fault; and who was kept out must not get in by a damaged record.
                Error::corrupt(format!("the reservations of {target}: {}", e.message()))
            })?,
            None => Reservations::default(),
        };
        let identity = key.identity.clone();
        let keeper = TargetsKeeper { targets: Arc::clone(targets), identity };
        let unit = Unit::new(Identity::new(&key.identity, target), reservations, Box::new(keeper));
        let mut units = self.units.lock();
        units.retain(|_, unit| Arc::strong_count(unit) > 1 || unit.is_in_use());
        units.insert(key, Arc::clone(&unit));
        Ok(unit)
    }

    /// A number for a session; not 0.
    pub(super) fn handle(&self) -> u16 {
        let number = self.handles.fetch_add(1, Relaxed);
        if number == 0 { self.handles.fetch_add(1, Relaxed).max(1) } else { number }
    }
}

/// A session's place; free again when it is dropped.
pub(super) struct RegisteredSession<'a> {
    registry: &'a SessionRegistry,
    key: SessionKey,
    number: u64,
    /// What it is told to do.
    pub(super) orders: watch::Receiver<SessionOrder>,
    ending: Arc<AtomicBool>,
    /// Closed when it has ended.
    _end: watch::Sender<bool>,
}

impl RegisteredSession<'_> {
    /// Waits for the end of the older sessions of this client on this target that it has given up, under whatever
    /// ISID: what they have begun must not land behind what this one writes. Those that it uses side by side with
    /// this one go on. May be cancelled.
    pub(super) async fn follow_lost_ones(&self) {
        let is_followed = |key: &SessionKey, handle: &SessionHandle| {
            let same = key.client == self.key.client && key.target == self.key.target;
            same && handle.number < self.number && handle.is_lost()
        };
        let lost: Vec<_> = {
            let (_, sessions) = &*self.registry.sessions.lock();
            let followed = sessions.iter().filter(|(key, handle)| is_followed(key, handle));
            followed.map(|(_, handle)| handle.ended.clone()).collect()
        };
        for mut ended in lost {
            // An error says that it has ended, too.
            let _ = ended.wait_for(|ended| *ended).await;
        }
    }

    /// The session takes nothing more of its initiator.
    pub(super) fn ends(&self) {
        self.ending.store(true, SeqCst);
    }
}

impl Drop for RegisteredSession<'_> {
    fn drop(&mut self) {
        let (_, sessions) = &mut *self.registry.sessions.lock();
        if sessions.get(&self.key).is_some_and(|handle| handle.number == self.number) {
            sessions.remove(&self.key);
        }
    }
}

/// Where the reservations of one unit are kept.
struct TargetsKeeper {
    targets: Arc<dyn Targets>,
    identity: String,
}

#[async_trait]
impl ReservationKeeper for TargetsKeeper {
    async fn keep(&self, record: Option<&str>) -> Result<()> {
        self.targets.keep_reservations(&self.identity, record).await
    }
}
