//! A logical unit as all its initiators share it, and one initiator's use of it.

use super::Sense;
use super::identity::Identity;
use super::reservations::{Notice, Refused, Reservations};
use async_trait::async_trait;
use block::{Device, Result};
use futures::future::{self, BoxFuture, FutureExt};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Weak};
use tokio::sync::{Notify, RwLock};

/// The smallest block of a unit, in bytes: what firmware and Windows need.
pub const BLOCK: u32 = 512;
/// The largest one.
const LARGEST_BLOCK: u32 = 64 << 10;

/// Conditions that an initiator has not been told of, at the most.
const MOST_ATTENTIONS: usize = 8;

/// Keeps the reservations of a unit while no server runs.
#[async_trait]
pub trait ReservationKeeper: Send + Sync {
    /// Keeps this record, or none, durably.
    ///
    /// # Errors
    /// When it cannot be kept; what was kept before is kept still.
    async fn keep(&self, record: Option<&str>) -> Result<()>;
}

/// What the initiators of a logical unit share.
pub struct Unit {
    /// Who it is.
    pub identity: Identity,
    /// Whether there is any reservation, for a look without a lock.
    reserved: AtomicBool,
    reservations: Mutex<Reservations>,
    /// Held by whoever changes the reservations.
    changing: tokio::sync::Mutex<()>,
    keeper: Box<dyn ReservationKeeper>,
    nexuses: Mutex<Vec<Weak<Nexus>>>,
    /// Held shared by what changes blocks, alone by what must see none of that.
    pub(super) changes: Arc<RwLock<()>>,
}

impl Unit {
    /// A unit of its own, with the reservations that were kept of it.
    pub fn new(
        identity: Identity,
        reservations: Reservations,
        keeper: Box<dyn ReservationKeeper>,
    ) -> Arc<Self> {
        Arc::new(Self {
            identity,
            reserved: AtomicBool::new(!reservations.is_empty()),
            reservations: Mutex::new(reservations),
            changing: tokio::sync::Mutex::default(),
            keeper,
            nexuses: Mutex::default(),
            changes: Arc::default(),
        })
    }

    /// Lets an initiator port use the unit through `device`.
    pub fn attach(self: &Arc<Self>, port: String, device: Arc<dyn Device>) -> Arc<Nexus> {
        let nexus = Arc::new(Nexus {
            block: BLOCK.max(device.limits().minimum).min(LARGEST_BLOCK),
            size: AtomicU64::new(device.size()),
            unit: Arc::clone(self),
            port,
            device,
            attentions: Mutex::new(VecDeque::from([Sense::POWER_ON])),
            attention: AtomicBool::new(true),
            resets: Notify::new(),
            epoch: AtomicU64::new(0),
        });
        let mut nexuses = self.nexuses.lock();
        nexuses.retain(|nexus| nexus.strong_count() > 0);
        nexuses.push(Arc::downgrade(&nexus));
        nexus
    }

    /// Whether anybody uses it, or has reserved something of it.
    pub fn is_in_use(&self) -> bool {
        let used = self.nexuses.lock().iter().any(|nexus| nexus.strong_count() > 0);
        used || self.reserved.load(SeqCst)
    }

    /// Looks at or changes the reservations.
    pub(super) fn reservations<T>(&self, with: impl FnOnce(&mut Reservations) -> T) -> T {
        let mut reservations = self.reservations.lock();
        let result = with(&mut reservations);
        self.reserved.store(!reservations.is_empty(), SeqCst);
        result
    }

    /// RESERVE or RELEASE, whichever `with` does.
    pub(super) async fn reserve<T>(&self, with: impl FnOnce(&mut Reservations) -> T) -> T {
        let _alone = self.changing.lock().await;
        self.reservations(with)
    }

    /// PERSISTENT RESERVE OUT; what is to outlive the server is durable before anybody sees it.
    ///
    /// # Errors
    /// Why it is refused.
    pub(super) async fn change_reservations(
        &self,
        port: &str,
        action: u8,
        scope_and_kind: (u8, u8),
        data: &[u8],
    ) -> std::result::Result<Vec<Notice>, Refused> {
        let _alone = self.changing.lock().await;
        let (before, mut changed) = self.reservations(|all| (all.record(), all.clone()));
        let notices = changed.change(port, action, scope_and_kind, data)?;
        let record = changed.record();
        if record != before
            && let Err(error) = self.keeper.keep(record.as_deref()).await
        {
            tracing::error!(%error, "the reservations of a disk cannot be kept");
            return Err(Sense::of(&error, false).into());
        }
        self.reservations(|all| all.adopt(changed));
        Ok(notices)
    }

    /// Whether there is any reservation.
    pub(super) fn is_reserved(&self) -> bool {
        self.reserved.load(SeqCst)
    }

    /// Tells initiators of conditions.
    pub(super) fn tell(&self, notices: Vec<Notice>) {
        let nexuses: Vec<_> = self.nexuses.lock().iter().filter_map(Weak::upgrade).collect();
        for (port, sense) in notices {
            nexuses.iter().filter(|nexus| nexus.port == port).for_each(|nexus| nexus.attend(sense));
        }
    }

    /// Aborts the commands of those whose registrations were preempted. What comes out is ready when what they had
    /// begun is over.
    pub(super) fn abort_preempted(&self, notices: &[Notice]) -> impl Future<Output = ()> + use<> {
        let is_preempted = |nexus: &Nexus| {
            let notice = (nexus.port.clone(), Sense::REGISTRATIONS_PREEMPTED);
            notices.contains(&notice)
        };
        let nexuses: Vec<_> = self.nexuses.lock().iter().filter_map(Weak::upgrade).collect();
        for nexus in nexuses.iter().filter(|nexus| is_preempted(nexus)) {
            nexus.epoch.fetch_add(1, SeqCst);
            nexus.resets.notify_one();
        }
        let changes = Arc::clone(&self.changes);
        async move { drop(changes.write_owned().await) }
    }

    /// Resets the unit on behalf of `by`: all initiators' commands are aborted and the others are told, an
    /// SPC-2 reservation ends. What comes out is ready when nothing that came before changes anything any more.
    pub fn reset(&self, by: &Nexus) -> BoxFuture<'static, ()> {
        self.abort_all(by, Sense::RESET, Reservations::reset)
    }

    /// Clears the task set on behalf of `by`, which all initiators share (TST is 0): what a reset does, but for the
    /// reservations. What comes out is ready when nothing that came before changes anything any more.
    pub fn clear_task_set(&self, by: &Nexus) -> BoxFuture<'static, ()> {
        self.abort_all(by, Sense::COMMANDS_CLEARED, |_| ())
    }

    /// Aborts all initiators' commands on behalf of `by`; the others are told of it as `told`.
    fn abort_all(
        &self,
        by: &Nexus,
        told: Sense,
        end_reservations: impl FnOnce(&mut Reservations),
    ) -> BoxFuture<'static, ()> {
        let nexuses: Vec<_> = self.nexuses.lock().iter().filter_map(Weak::upgrade).collect();
        // First: what would reserve the unit, or take a condition that is told, is out of date from here on.
        for nexus in &nexuses {
            nexus.epoch.fetch_add(1, SeqCst);
        }
        self.reservations(end_reservations);
        for nexus in nexuses.iter().filter(|nexus| !std::ptr::eq(nexus.as_ref(), by)) {
            nexus.attend(told);
            nexus.resets.notify_one();
        }
        let changes = Arc::clone(&self.changes);
        let mut over = async move { drop(changes.write_owned().await) }.boxed();
        // It stands in line before anybody is told: what comes later does not overtake what is under way.
        match (&mut over).now_or_never() {
            Some(()) => future::ready(()).boxed(),
            None => over,
        }
    }
}

impl std::fmt::Debug for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unit").field("identity", &self.identity).finish_non_exhaustive()
    }
}

/// One initiator's use of a unit.
pub struct Nexus {
    /// The unit.
    pub unit: Arc<Unit>,
    /// The initiator port.
    pub(super) port: String,
    /// What it reads and writes.
    pub device: Arc<dyn Device>,
    /// The length of a block, in bytes.
    pub block: u32,
    /// The size that the initiator knows, in bytes.
    size: AtomicU64,
    attentions: Mutex<VecDeque<Sense>>,
    /// Whether there are any, for a look without a lock.
    attention: AtomicBool,
    /// Another initiator reset the unit, or cleared its task set.
    pub resets: Notify,
    /// How often all of the initiator's commands were aborted.
    epoch: AtomicU64,
}

impl Nexus {
    /// How many blocks there are; the rest of the device that is no whole block is left out.
    pub fn blocks(&self) -> u64 {
        self.device.size() / u64::from(self.block)
    }

    /// How often all of its commands were aborted, by a reset for example: a command that came at another epoch than this one is aborted.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(SeqCst)
    }

    /// Notes a condition that the initiator is to be told of.
    fn attend(&self, sense: Sense) {
        let mut attentions = self.attentions.lock();
        if attentions.len() < MOST_ATTENTIONS && !attentions.contains(&sense) {
            attentions.push_back(sense);
        }
        self.attention.store(true, SeqCst);
    }

    /// Takes the oldest condition that the initiator was not told of.
    pub(super) fn attention(&self) -> Option<Sense> {
        let size = self.device.size();
        if self.size.load(Relaxed) != size {
            self.size.store(size, Relaxed);
            self.attend(Sense::CAPACITY_CHANGED);
        }
        if !self.attention.load(SeqCst) {
            return None;
        }
        let mut attentions = self.attentions.lock();
        let sense = attentions.pop_front();
        self.attention.store(!attentions.is_empty(), SeqCst);
        sense
    }

    /// Notes again, as the oldest one, a condition that was taken and told to nobody.
    pub(super) fn put_back(&self, sense: Sense) {
        self.attentions.lock().push_front(sense);
        self.attention.store(true, SeqCst);
    }

    /// Whether a command may use the fast path: nobody has anything to be told, or reserved anything.
    pub(super) fn is_plain(&self) -> bool {
        let same = self.size.load(Relaxed) == self.device.size();
        same && !self.attention.load(SeqCst) && !self.unit.is_reserved()
    }

    /// Ends what does not outlive the session.
    pub fn leave(&self) {
        if self.unit.is_reserved() {
            self.unit.reservations(|all| all.forget(&self.port));
        }
    }
}

impl std::fmt::Debug for Nexus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Nexus").field("port", &self.port).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scsi::{Command, CommandOutcome};
    use block::{Memory, Span};

    struct Nowhere;

    #[async_trait]
    impl ReservationKeeper for Nowhere {
        async fn keep(&self, _: Option<&str>) -> Result<()> {
            Ok(())
        }
    }

    /// A unit and two initiators, who were told that they are new.
    fn two() -> (Arc<Unit>, [Arc<Nexus>; 2]) {
        let identity = Identity::new("disk 1", "target");
        let unit = Unit::new(identity, Reservations::default(), Box::new(Nowhere));
        let device: Arc<dyn Device> = Arc::new(Memory::new(1 << 20));
        let nexuses = ["one", "other"].map(|port| unit.attach(port.into(), Arc::clone(&device)));
        for nexus in &nexuses {
            let _ = nexus.attention();
        }
        (unit, nexuses)
    }

    fn write() -> std::result::Result<Command, Sense> {
        let mut cdb = [0; 16];
        (cdb[0], cdb[8]) = (0x2a, 1);
        Command::decode(&cdb)
    }

    async fn is_blank(nexus: &Nexus) -> bool {
        let mut block = [0; 512];
        nexus.device.read(Span::between(0, 512), &mut block).await.unwrap();
        block == [0; 512]
    }

    #[tokio::test]
    async fn a_write_that_waited_for_its_turn_while_the_unit_was_reset_is_not_carried_out() {
        let (unit, [one, other]) = two();
        let turn = unit.changes.write().await;
        let epoch = other.epoch();
        let (begun, queued) =
            (other.execute(write(), &[1; 512], epoch), other.execute(write(), &[1; 512], epoch));
        let mut begun = Box::pin(begun);
        assert!((&mut begun).now_or_never().is_none());
        let over = unit.reset(&one);
        drop(turn);
        let (begun, ()) = futures::join!(begun, over);
        // It is over: neither what waited nor what was not begun yet changes anything.
        for outcome in [begun, queued.await] {
            assert!(matches!(outcome, CommandOutcome::Aborted), "{outcome:?}");
        }
        assert!(is_blank(&other).await);
        assert_eq!(other.attention(), Some(Sense::RESET), "nobody else was told");
        assert_eq!(one.attention(), None);
        let again = other.execute(write(), &[1; 512], other.epoch()).await;
        assert!(matches!(again, CommandOutcome::Good(_)), "{again:?}");
    }

    /// PERSISTENT RESERVE OUT.
    async fn persistent_out(nexus: &Nexus, action: u8, key: u8, new: u8) {
        let mut cdb = [0; 16];
        (cdb[0], cdb[1], cdb[2], cdb[8]) = (0x5f, action, 1, 24);
        let mut keys = [0; 24];
        (keys[7], keys[15]) = (key, new);
        let done = nexus.execute(Command::decode(&cdb), &keys, nexus.epoch()).await;
        assert!(matches!(done, CommandOutcome::Good(_)), "{done:?}");
    }

    #[tokio::test]
    async fn what_came_from_a_port_before_it_was_preempted_and_aborted_is_not_carried_out() {
        let (_, [one, other]) = two();
        persistent_out(&one, 0, 0, 1).await;
        persistent_out(&other, 0, 0, 2).await;
        let (mine, epoch) = (one.epoch(), other.epoch());
        // There is no reservation that keeps anybody out.
        persistent_out(&one, 5, 1, 2).await;
        let queued = other.execute(write(), &[1; 512], epoch).await;
        assert!(matches!(queued, CommandOutcome::Aborted), "{queued:?}");
        assert!(is_blank(&other).await);
        assert_eq!(other.attention(), Some(Sense::REGISTRATIONS_PREEMPTED));
        assert_eq!(one.epoch(), mine, "its own commands go on");
        let again = other.execute(write(), &[1; 512], other.epoch()).await;
        assert!(matches!(again, CommandOutcome::Good(_)), "{again:?}");
    }

    #[tokio::test]
    async fn a_write_that_waited_for_its_turn_while_the_unit_was_taken_away_is_a_conflict() {
        let (unit, [_, other]) = two();
        let turn = unit.changes.write().await;
        let mut begun = Box::pin(other.execute(write(), &[1; 512], other.epoch()));
        assert!((&mut begun).now_or_never().is_none());
        assert!(unit.reservations(|all| all.reserve("one")));
        drop(turn);
        let outcome = begun.await;
        assert!(matches!(outcome, CommandOutcome::Conflict), "{outcome:?}");
        assert!(is_blank(&other).await);
    }
}
