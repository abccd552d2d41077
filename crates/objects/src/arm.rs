//! The order in which reads go to a disk with one arm.
//!
//! A disk that turns serves a read in half of the time when the arm need not go far for it, and the kernel
//! orders only what it is given. So few reads are given to it at a time, and those that wait are ordered by
//! hit-first aged SATF (`schedule`'s `hit-satf`, which won the disk lab's comparison) with a model of the disk
//! and a shadow of its cache. The model knows where the head is and how fast it moves; where the platter is in
//! its turn nobody outside the disk knows, and half a turn is taken for it.
//!
//! Nothing here finds out by itself that a disk has an arm: virtual disks often say that they turn, whatever is
//! below them, and flash is slow when it is given little at a time.

use block::Result;
use block::fs::{BlockDevice, FsPath};
use parking_lot::Mutex;
use schedule::{
    Decision, DiskRequest, Model, Profile, SECTOR, Scheduler, SegmentCache, View, scheduler,
};
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// The scheduler.
const SCHEDULER: &str = "hit-satf";
/// Reads that the disk has at a time: one that it works on, and one for it to go on with.
const GIVEN: usize = 2;

/// How reads of a store in a directory are ordered.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum DiskReadOrder {
    /// The order in which they come.
    #[default]
    Arrival,
    /// The order that suits the arm of a disk like this.
    Arm(Box<Profile>),
}

/// The queue in front of a disk's arm.
pub(crate) struct ArmQueue {
    state: Mutex<ArmState>,
    epoch: Instant,
    /// Where the file system begins on the disk, in bytes.
    start: u64,
    /// The disk's size in bytes, and the model's in sectors: positions are stretched from one to the other.
    size: u64,
    sectors: u64,
}

struct ArmState {
    scheduler: Box<dyn Scheduler>,
    model: Box<dyn Model>,
    shadow: SegmentCache,
    /// Who waits for each request of the scheduler.
    waiting: HashMap<u64, oneshot::Sender<ArmTurn>>,
    next_id: u64,
    /// Reads that the disk has.
    given: usize,
    /// Where the head is behind them, and when it is expected there, in nanoseconds since the epoch.
    head: u64,
    free: u64,
}

/// A read's time at the disk; it ends when this is dropped.
pub(crate) struct ArmTurn {
    arm: Option<Arc<ArmQueue>>,
}

impl ArmQueue {
    /// The queue for a directory; `None` when its reads go as they come.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the profile describes no disk.
    pub(crate) fn of(directory: &FsPath, order: &DiskReadOrder) -> Result<Option<Arc<Self>>> {
        let DiskReadOrder::Arm(profile) = order else { return Ok(None) };
        let device = directory.of_system().and_then(BlockDevice::of);
        Self::new(profile, device).map(|arm| Some(Arc::new(arm)))
    }

    fn new(profile: &Profile, device: Option<BlockDevice>) -> Result<Self> {
        let model = profile.seen_from_outside()?;
        let sectors = model.sectors();
        let (start, size) = match device {
            Some(device) => (device.start, device.size.max(SECTOR)),
            None => (0, sectors.saturating_mul(SECTOR)),
        };
        let state = Mutex::new(ArmState {
            scheduler: scheduler::make(SCHEDULER)?,
            shadow: SegmentCache::new(model.cache()),
            model,
            waiting: HashMap::new(),
            next_id: 0,
            given: 0,
            head: 0,
            free: 0,
        });
        Ok(Self { state, epoch: Instant::now(), start, size, sectors })
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    /// The sector of the model's disk for a position in the file system.
    fn sector(&self, position: u64) -> u64 {
        let byte = u128::from(self.start.saturating_add(position).min(self.size - 1));
        (byte * u128::from(self.sectors) / u128::from(self.size)) as u64
    }

    /// Waits until it is the turn of a read of so many bytes from `position` in the file system on. One that is
    /// nowhere does not wait.
    pub(crate) async fn turn(self: &Arc<Self>, position: Option<u64>, bytes: u64) -> ArmTurn {
        let Some(position) = position else { return ArmTurn { arm: None } };
        let (sender, receiver) = oneshot::channel();
        {
            let now = self.now();
            let mut state = self.state.lock();
            let id = state.next_id;
            state.next_id += 1;
            let request = DiskRequest {
                id,
                awaited: true,
                start: self.sector(position),
                sectors: bytes.div_ceil(SECTOR).clamp(1, u64::from(u32::MAX)) as u32,
                arrived: now,
                ..DiskRequest::default()
            };
            state.waiting.insert(id, sender);
            let ArmState { scheduler, shadow, model, head, free, .. } = &mut *state;
            let start = now.max(*free);
            let view = View { now, start, head: *head, shadow, model: &**model };
            scheduler.add(request, &view);
            self.give(&mut state);
        }
        match receiver.await {
            Ok(turn) => turn,
            // Nobody drops a sender that has not been used.
            Err(_) => ArmTurn { arm: None },
        }
    }

    /// Gives the disk what it has room for.
    fn give(self: &Arc<Self>, state: &mut ArmState) {
        while state.given < GIVEN {
            let now = self.now();
            let start = now.max(state.free);
            let ArmState { scheduler, shadow, model, head, .. } = &mut *state;
            let view = View { now, start, head: *head, shadow, model: &**model };
            let Decision::Go(request, _) = scheduler.next(&view) else { return };
            let Some(sender) = state.waiting.remove(&request.id) else { continue };
            match sender.send(ArmTurn { arm: Some(Arc::clone(self)) }) {
                Ok(()) => state.took(&request, start),
                // Whoever waited has gone. The lock is held: the turn must not end by itself.
                Err(mut turn) => drop(turn.arm.take()),
            }
        }
    }

    /// The disk is done with a read.
    fn done(self: &Arc<Self>) {
        let now = self.now();
        let mut state = self.state.lock();
        state.given -= 1;
        if state.given == 0 {
            state.free = now;
        }
        self.give(&mut state);
    }
}

impl ArmState {
    /// The disk got a read that it is expected to begin at `start`.
    fn took(&mut self, request: &DiskRequest, start: u64) {
        let takes = if self.shadow.holds(request.start, request.end()) {
            self.model.expected_hit()
        } else {
            let takes = self.model.expected(start, self.head, request);
            self.head = request.end();
            takes
        };
        self.shadow.read(request);
        self.free = start + takes;
        self.given += 1;
    }
}

impl Drop for ArmTurn {
    fn drop(&mut self) {
        if let Some(arm) = self.arm.take() {
            arm.done();
        }
    }
}

impl fmt::Debug for ArmQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("ArmQueue").field("given", &state.given).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::VecDeque;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn arm() -> Arc<ArmQueue> {
        Arc::new(ArmQueue::new(&Profile::named("hdd-7200").unwrap(), None).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn reads_that_wait_go_in_the_order_of_the_arm_s_way() {
        let (arm, gib) = (arm(), |n: u64| Some(n << 30));
        // These go at once, to an end of the disk and to the other; the others wait, none longer than another.
        let mut held = VecDeque::from([arm.turn(gib(1), 1).await, arm.turn(gib(1800), 1).await]);
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> =
            [900, 20, 1500, 10].map(|at| (at, Box::pin(arm.turn(gib(at), 1)))).into();
        assert!(waiting.iter_mut().all(|(_, turn)| turn.as_mut().poll(&mut context).is_pending()));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(held.pop_front());
            waiting.retain_mut(|(at, turn)| match turn.as_mut().poll(&mut context) {
                Poll::Ready(turn) => {
                    held.push_back(turn);
                    order.push(*at);
                    false
                }
                Poll::Pending => true,
            });
        }
        assert_eq!(order, [1500, 900, 20, 10]);
    }

    #[tokio::test]
    async fn who_stops_waiting_takes_nobody_s_turn() {
        let arm = arm();
        let first = [arm.turn(Some(0), 1).await, arm.turn(Some(1), 1).await];
        let mut context = Context::from_waker(Waker::noop());
        {
            let mut gone = pin!(arm.turn(Some(1 << 40), 1));
            assert!(gone.as_mut().poll(&mut context).is_pending());
            let mut given = pin!(arm.turn(Some(1 << 30), 1));
            assert!(given.as_mut().poll(&mut context).is_pending());
            drop(first);
            // Both have got their turns; only one of them looks.
            assert!(matches!(given.poll(&mut context), Poll::Ready(_)));
        }
        assert_eq!(arm.state.lock().given, 0);
        drop(arm.turn(Some(5), 1).await);
        assert_eq!(arm.state.lock().given, 0);
    }

    #[tokio::test]
    async fn what_is_nowhere_waits_for_nobody() {
        let arm = arm();
        let _held = [arm.turn(Some(0), 1).await, arm.turn(Some(1), 1).await];
        let _turn = arm.turn(None, 1).await;
    }

    #[test]
    fn positions_are_stretched_from_the_disk_to_the_model_s() {
        let device = BlockDevice { size: 1 << 30, start: 1 << 20 };
        let arm = ArmQueue::new(&Profile::named("hdd-7200").unwrap(), Some(device)).unwrap();
        assert_eq!(arm.sector(0), arm.sectors >> 10);
        assert_eq!(arm.sector((1 << 29) - (1 << 20)), arm.sectors / 2);
        assert_eq!(arm.sector(u64::MAX), arm.sectors - arm.sectors.div_ceil(1 << 30));
    }
}
