//! What a server does for its disks once a second, beside its loop: a disk whose storage hangs keeps
//! neither signals waiting nor other disks open.

use super::running::RunningServer;
use engine::Engine;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// Rounds of one kind that go on at a time: those that began before wait for hanging storage.
const ROUNDS: usize = 16;

/// Head-room is looked at once in so many ticks.
const HEAD_ROOM_TICKS: u64 = 5;

/// The rounds that go on.
pub(crate) struct Upkeep {
    engine: Arc<Engine>,
    /// Idle disks are closed.
    closing: JoinSet<()>,
    /// Room is kept for what must not fail when the disk is full.
    taking_room: JoinSet<()>,
    ticks: u64,
}

impl Upkeep {
    /// Nothing is done yet.
    pub(crate) fn new(engine: Arc<Engine>) -> Self {
        Self { engine, closing: JoinSet::new(), taking_room: JoinSet::new(), ticks: 0 }
    }

    /// Begins what is due. Disks that nobody has used for `idle` are closed.
    pub(crate) fn tick(&mut self, idle: Duration, running: &RunningServer) {
        while self.closing.try_join_next().is_some() {}
        if self.closing.len() < ROUNDS {
            let engine = Arc::clone(&self.engine);
            self.closing.spawn(async move { engine.open.close_idle(idle).await });
        }
        if self.ticks.is_multiple_of(HEAD_ROOM_TICKS) {
            let untimed = running.untimed_requests();
            running.head_room.note(&self.engine, &running.nbd.counters(), untimed);
        }
        if self.taking_room.try_join_next().is_some() || self.taking_room.is_empty() {
            let disks = Arc::clone(&self.engine.disks);
            self.taking_room.spawn(async move { disks.keep_room().await });
        }
        self.ticks += 1;
    }

    /// Waits for the rounds that work on disks. Room may be left as it is at any instant, so nothing waits
    /// for that: it ends with this.
    pub(crate) async fn finish(&mut self) {
        while self.closing.join_next().await.is_some() {}
    }
}
