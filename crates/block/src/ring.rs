//! Reads that wait for the disk, by the kernel's submission ring (io_uring): no thread waits for them.
//!
//! Whoever has a runtime [starts](Ring::start) a ring there, runs its [`RingDriver`] and
//! [installs](Ring::install) it; then the files of this process use it. Where the kernel has none or
//! forbids it, and in a process that starts none, threads wait ([`offload`](crate::offload())), which is
//! the portable way. Writes and syncs always go that way: a ring was no better at them
//! (docs/benchmarks.md).
//!
//! A ring has a queue for each of several threads, so that they do not wait for each other while the
//! kernel starts a read. What completes is told to one eventfd, which the driver waits for as for any
//! socket: a ring without work costs nothing. An operation that nobody waits for any more goes on, and
//! keeps its memory, its file and its room in the queue until it has ended (the argument is in the
//! module `queue`).
//!
//! | module | concept |
//! |---|---|
//! | `queue` | operations and the memory that they work on; the one module with `unsafe` |

mod queue;
#[cfg(test)]
mod tests;

pub(crate) use self::queue::ReadTarget;
use self::queue::{Events, RingRead, SubmissionQueue};
use crate::{Error, ErrorKind, Result};
use rustix::io::Errno;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Operations that one queue holds at a time; more are done in another way.
const DEPTH: u32 = 256;

/// More queues than this help nobody.
const MOST_QUEUES: usize = 16;

/// How long the driver waits before it submits again what the kernel had no memory for.
const PAUSE: Duration = Duration::from_millis(1);

/// The ring that the files of this process use.
static INSTALLED: OnceLock<Ring> = OnceLock::new();

/// The number that the next thread gets.
static THREADS: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    /// The number of this thread, which says what queue it uses.
    static THREAD: usize = THREADS.fetch_add(1, Ordering::Relaxed);
}

/// A submission ring.
#[derive(Debug, Clone)]
pub struct Ring(Arc<[SubmissionQueue]>);

/// What completes the operations of a [`Ring`]: run it in the runtime that the ring was started in.
/// Without it the ring is closed, and files wait in the portable way again.
#[derive(Debug)]
pub struct RingDriver {
    queues: Arc<[SubmissionQueue]>,
    events: Events,
}

impl Ring {
    /// Tries what is needed, and makes a ring for as many `threads` as use it at the same time. To be
    /// called in a runtime.
    ///
    /// # Errors
    /// [`Unsupported`](ErrorKind::Unsupported) where the kernel has no such rings, or too old ones, or
    /// forbids them; the message says which.
    pub fn start(threads: usize) -> Result<(Self, RingDriver)> {
        Self::with_depth(threads, DEPTH)
    }

    fn with_depth(threads: usize, depth: u32) -> Result<(Self, RingDriver)> {
        let not = |e: std::io::Error| {
            let message = format!("io_uring cannot be used: {e}");
            Error::new(ErrorKind::Unsupported, message).with_source(e)
        };
        let events = Events::new().map_err(not)?;
        let count = threads.clamp(1, MOST_QUEUES);
        let queues = (0..count).map(|_| SubmissionQueue::new(depth, &events));
        let queues: Arc<[SubmissionQueue]> = queues.collect::<std::io::Result<_>>().map_err(not)?;
        Ok((Self(Arc::clone(&queues)), RingDriver { queues, events }))
    }

    /// Lets the files of this process use the ring from now on. There can be one in the life of a
    /// process: a later one is not taken, and the answer is `false`.
    pub fn install(self) -> bool {
        INSTALLED.set(self).is_ok()
    }

    /// The ring that files use, if one is installed and its driver runs.
    pub fn installed() -> Option<&'static Self> {
        INSTALLED.get().filter(|ring| ring.is_open())
    }

    fn is_open(&self) -> bool {
        self.0.iter().all(SubmissionQueue::is_open)
    }

    /// Reads from `offset` of `target` into `bytes`, from the index `from` on, and gives them back with
    /// the number of bytes that were read. `None`: to be done in another way.
    pub(crate) async fn read(
        &self,
        target: ReadTarget,
        offset: u64,
        bytes: Vec<u8>,
        from: usize,
    ) -> Option<(Vec<u8>, Result<usize, Errno>)> {
        // The largest number would mean where the file was read last.
        i64::try_from(offset).ok()?;
        let queue = &self.0[THREAD.with(|thread| *thread) % self.0.len()];
        let operation = RingRead { target, offset, bytes, from };
        let (bytes, result) = queue.start(operation)?.await?;
        match usize::try_from(result).map_err(|_| Errno::from_raw_os_error(-result)) {
            // The thread that submitted it has ended, or the kernel or the file cannot do it so.
            Err(Errno::CANCELED | Errno::INTR | Errno::AGAIN | Errno::INVAL | Errno::OPNOTSUPP) => {
                None
            }
            result => Some((bytes, result)),
        }
    }
}

impl RingDriver {
    /// Completes operations until the runtime ends, or it is dropped.
    pub async fn run(self) {
        while self.events.next().await {
            loop {
                self.queues.iter().for_each(SubmissionQueue::reap);
                // All of them, whichever is refused.
                let refused = self.queues.iter().filter(|queue| !queue.submit_rest()).count();
                if refused == 0 {
                    break;
                }
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

impl Drop for RingDriver {
    fn drop(&mut self) {
        self.queues.iter().for_each(SubmissionQueue::close);
    }
}
