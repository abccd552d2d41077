//! When a disk is published, and what is done when that fails.
//!
//! A disk that was written to is published a little later, so that one upload carries what a guest
//! writes in one go. A store that does not answer is tried again with growing pauses; what was sent is
//! not sent again. A disk that another machine took ends it.

use crate::budget::ByteBudget;
use crate::progress::{UploadProgress, UploadState};
use async_trait::async_trait;
use block::{Error, ErrorKind};
use disk::Disk;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use store::{Progress, UploadPace, UploadPlan};
use tokio::sync::watch;
use tokio::time::Instant;

/// Packs of an upload without a budget: two of them are lost at most when the process is killed.
const PACK: usize = 512 << 10;
const AT_ONCE: usize = 2;
/// An upload of which nothing arrived for so long is one to a store that does not answer.
const STALL: Duration = Duration::from_secs(15);
/// A pack of an upload with a budget takes this many seconds of it.
const PACK_SECONDS: u64 = 2;

/// How soon things are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How long after the first write something goes up.
    pub after: Duration,
    /// How often a disk is looked at.
    pub tick: Duration,
    /// The pause after a first failure; it doubles with each further one.
    pub retry: Duration,
    /// The longest pause.
    pub longest_retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            after: Duration::from_secs(5),
            tick: Duration::from_millis(500),
            retry: Duration::from_secs(1),
            longest_retry: Duration::from_secs(30),
        }
    }
}

/// The write-back of one disk.
pub struct WriteBack {
    budget: Arc<ByteBudget>,
    timing: Timing,
    uplink: Arc<Uplink>,
    progress: Mutex<UploadProgress>,
    /// The disk that is followed.
    followed: Mutex<Weak<Disk>>,
    /// Counts those who want everything up now.
    asked: watch::Sender<u64>,
}

/// What goes over the wire for one disk.
struct Uplink {
    budget: Arc<ByteBudget>,
    /// Since the start.
    wire: AtomicU64,
    /// Bytes of the upload under way.
    uploaded: AtomicU64,
    scanned: AtomicU64,
    stored: AtomicU64,
    /// Objects that wait for the budget.
    waiting: AtomicU64,
}

/// An object waits for the budget, until this is dropped.
struct BudgetWait<'a>(&'a AtomicU64);

impl<'a> BudgetWait<'a> {
    fn begin(waiting: &'a AtomicU64) -> Self {
        waiting.fetch_add(1, Ordering::Relaxed);
        Self(waiting)
    }
}

impl Drop for BudgetWait<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[async_trait]
impl UploadPace for Uplink {
    async fn admit(&self, bytes: u64) {
        let _waiting = BudgetWait::begin(&self.waiting);
        self.budget.spend(bytes).await;
    }

    fn uploaded(&self, bytes: u64) {
        self.wire.fetch_add(bytes, Ordering::Relaxed);
        self.uploaded.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Progress for Uplink {
    fn advance(&self, scanned: u64, stored: u64) {
        self.scanned.fetch_add(scanned, Ordering::Relaxed);
        self.stored.fetch_add(stored, Ordering::Relaxed);
    }
}

impl Uplink {
    fn begin(&self) {
        for counter in [&self.uploaded, &self.scanned, &self.stored] {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Bytes that arrived of the upload under way.
    fn uploaded(&self) -> u64 {
        self.uploaded.load(Ordering::Relaxed)
    }

    /// Plain bytes that are in the store of `total`: what was packed counts as far as it was sent.
    fn sent(&self, total: u64) -> u64 {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (scanned, stored) = (read(&self.scanned), read(&self.stored));
        let part = match stored {
            0 => 1.0,
            stored => (read(&self.uploaded) as f64 / stored as f64).min(1.0),
        };
        ((scanned as f64 * part) as u64).min(total)
    }
}

/// A disk is followed. Afterwards nobody knows what has to go up, unless it is another machine's.
struct Following<'a>(&'a WriteBack);

impl Drop for Following<'_> {
    fn drop(&mut self) {
        *self.0.followed.lock() = Weak::new();
        let mut progress = self.0.progress.lock();
        if progress.state != UploadState::Lost {
            progress.state = UploadState::Unknown;
        }
    }
}

impl WriteBack {
    /// The write-back of a disk; nothing happens before [`follow`](Self::follow).
    pub fn new(budget: Arc<ByteBudget>, timing: Timing) -> Self {
        let uplink = Arc::new(Uplink {
            budget: Arc::clone(&budget),
            wire: AtomicU64::new(0),
            uploaded: AtomicU64::new(0),
            scanned: AtomicU64::new(0),
            stored: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
        });
        let (progress, followed, asked) =
            (Mutex::default(), Mutex::default(), watch::Sender::new(0));
        Self { budget, timing, uplink, progress, followed, asked }
    }

    /// How far it is, with what was written up to now.
    pub fn progress(&self) -> UploadProgress {
        let followed = self.followed.lock().upgrade();
        let mut progress = self.progress.lock().clone();
        // What was seen last says nothing of what was written since.
        if progress.is_done()
            && let Some(behind) = followed.and_then(|disk| disk.behind())
        {
            progress.state = UploadState::Waiting;
            progress.behind_bytes = behind.bytes;
            progress.behind_since = Some(behind.since);
        }
        progress.wire_bytes = self.uplink.wire.load(Ordering::Relaxed);
        progress
    }

    /// Has everything go up now, and not a little later.
    pub fn hurry(&self) {
        self.asked.send_modify(|asked| *asked += 1);
    }

    /// Publishes what is written to `disk` for ever. Can be dropped at any time. It ends with
    /// [`Fenced`](ErrorKind::Fenced) when another machine took the disk, and with the disk's own error when
    /// that takes no writes until it is opened again.
    pub async fn follow(&self, disk: &Arc<Disk>) -> Error {
        *self.followed.lock() = Arc::downgrade(disk);
        let _following = Following(self);
        let mut asked = self.asked.subscribe();
        let mut dirty: Option<Instant> = None;
        let mut pause = self.timing.retry;
        let mut tick = tokio::time::interval(self.timing.tick);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let hurried = tokio::select! {
                _ = tick.tick() => *asked.borrow() > 0,
                _ = asked.changed() => true,
            };
            if disk.has_failed() {
                return match disk.confirm().await {
                    Err(error) => {
                        if error.kind() == ErrorKind::Fenced {
                            self.lose(&error);
                        }
                        error
                    }
                    Ok(()) => Error::unavailable(
                        "the disk failed on this machine, and is opened again when its client has left",
                    ),
                };
            }
            if !self.look(disk) {
                self.asked.send_if_modified(|asked| std::mem::take(asked) > 0);
                dirty = None;
                continue;
            }
            let since = *dirty.get_or_insert_with(Instant::now);
            if self.budget.is_paused() || (!hurried && since.elapsed() < self.timing.after) {
                continue;
            }
            match self.publish(disk).await {
                Ok(()) => {
                    dirty = None;
                    pause = self.timing.retry;
                    self.look(disk);
                }
                Err(error) => {
                    // A session that was taken for dead says the same of itself.
                    if error.kind() == ErrorKind::Fenced
                        && let Err(error) = disk.confirm().await
                        && error.kind() == ErrorKind::Fenced
                    {
                        self.lose(&error);
                        return error;
                    }
                    tracing::warn!(disk = disk.name(), %error, "write-back is tried again");
                    self.fail(&error);
                    let seen = *asked.borrow_and_update();
                    let again = asked.wait_for(|asked| *asked > seen);
                    let _ = tokio::time::timeout(pause, again).await;
                    pause = (pause * 2).min(self.timing.longest_retry);
                }
            }
        }
    }

    fn fail(&self, error: &Error) {
        let mut progress = self.progress.lock();
        progress.state = UploadState::Offline;
        progress.error = Some(error.message().to_owned());
    }

    /// Another machine took the disk.
    pub(crate) fn lose(&self, error: &Error) {
        let mut progress = self.progress.lock();
        progress.state = UploadState::Lost;
        progress.error = Some(error.message().to_owned());
    }

    /// Notes how far the store is behind; whether it is.
    fn look(&self, disk: &Disk) -> bool {
        let mut progress = self.progress.lock();
        let Some(behind) = disk.behind() else {
            *progress = UploadProgress { state: UploadState::Done, ..UploadProgress::default() };
            return false;
        };
        progress.behind_bytes = behind.bytes;
        progress.behind_since = Some(behind.since);
        progress.sent_bytes = 0;
        progress.remaining_seconds = None;
        if self.budget.is_paused() {
            progress.state = UploadState::Paused;
        } else if progress.state != UploadState::Offline {
            progress.state = UploadState::Waiting;
        }
        true
    }

    async fn publish(&self, disk: &Disk) -> block::Result<()> {
        self.uplink.begin();
        let pack_bytes = match self.budget.rate() {
            0 => PACK,
            rate => usize::try_from(rate.saturating_mul(PACK_SECONDS)).unwrap_or(PACK).min(PACK),
        };
        let pace = Some(Arc::clone(&self.uplink) as Arc<dyn UploadPace>);
        let plan = UploadPlan { pack_bytes, at_once: AT_ONCE, pace, ..UploadPlan::default() };
        let total = self.progress.lock().behind_bytes;
        let begun = Instant::now();
        let publishing = disk.write_back(plan, &*self.uplink);
        tokio::pin!(publishing);
        let mut tick = tokio::time::interval(self.timing.tick);
        let mut last = (self.uplink.uploaded(), begun);
        loop {
            tokio::select! {
                published = &mut publishing => return published.map(drop),
                // It can take hours, and a guest stands still, or somebody drops what would go up.
                () = disk.until_waited_for() => return Ok(()),
                _ = tick.tick() => {
                    let uploaded = self.uplink.uploaded();
                    // What waits for the budget says nothing of the store.
                    let waits = self.uplink.waiting.load(Ordering::Relaxed) > 0;
                    if uploaded != last.0 || waits || self.budget.is_paused() {
                        last = (uploaded, Instant::now());
                    }
                    match last.1.elapsed() < STALL {
                        true => self.note(total, begun.elapsed()),
                        false => self.fail(&Error::unavailable("the store does not answer")),
                    }
                }
            }
        }
    }

    /// Notes how far an upload is that has been going on for a while.
    fn note(&self, total: u64, elapsed: Duration) {
        let sent = self.uplink.sent(total);
        let mut progress = self.progress.lock();
        progress.sent_bytes = sent;
        // Before anything was sent nobody knows whether the store answers.
        if sent > 0 {
            progress.state = UploadState::Sending;
            progress.error = None;
            let left = (total - sent) as f64 / sent as f64;
            progress.remaining_seconds = Some((left * elapsed.as_secs_f64()).ceil() as u64);
        }
        if self.budget.is_paused() {
            progress.state = UploadState::Paused;
        }
    }
}
