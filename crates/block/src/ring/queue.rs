//! One submission queue, and the operations that the kernel works on: the one module with `unsafe`.
//!
//! The kernel uses the memory of an operation from when it sees its entry until it has posted its
//! completion, whatever becomes of the future that waits for it. So:
//!
//! * The memory belongs to the operation's slot all that time. It is on the heap and neither moves nor
//!   is touched, and nobody else has a reference to it: a slot gives it away in [`SubmissionQueue::land`]
//!   alone, which is called with the completion. A future that is dropped (or forgotten) leaves it there.
//! * A slot takes no other operation before that. Each operation is one entry, which has one completion,
//!   and names its slot in it.
//! * A queue that is dropped while operations are in flight leaks their memory.
//! * The file of an operation is open that long, so that its descriptor is no other's.
//! * There are as many entries in the submission queue as slots, and twice as many in the completion
//!   queue: neither overflows. Each of them is looked at under a lock of its own.

#![allow(unsafe_code)]

use io_uring::{IoUring, Probe, opcode, squeue, types};
use parking_lot::Mutex;
use rustix::event::EventfdFlags;
use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::sync::Semaphore;

/// The longest part of a read, in bytes; the kernel itself reads at most 2 GiB at a time.
const LONGEST: usize = 1 << 30;

/// What is read; it stays open while an operation is in flight.
pub(crate) type ReadTarget = Arc<dyn AsFd + Send + Sync>;

/// A read, and all that it needs.
pub(super) struct RingRead {
    pub(super) target: ReadTarget,
    /// Where to read; no negative number to the kernel.
    pub(super) offset: u64,
    /// What is read goes into these, from the index `from` on.
    pub(super) bytes: Vec<u8>,
    pub(super) from: usize,
}

/// What an operation gives: its bytes, and the result as the kernel tells it.
pub(super) type ReadResult = (Vec<u8>, i32);

enum OperationSlot {
    Free,
    Flying {
        operation: RingRead,
        waker: Option<Waker>,
        /// Nobody waits for it.
        abandoned: bool,
    },
    Landed(ReadResult),
}

/// A submission queue.
pub(super) struct SubmissionQueue {
    ring: IoUring,
    submitting: Mutex<()>,
    completing: Mutex<()>,
    slots: Box<[Mutex<OperationSlot>]>,
    /// The slots that are free, as many as `room` has permits, and those that a permit was just taken
    /// for.
    free: Mutex<Vec<u32>>,
    /// Closed when nobody completes operations any more.
    room: Semaphore,
    events: Arc<OwnedFd>,
}

/// What tells of completions.
#[derive(Debug)]
pub(super) struct Events(AsyncFd<Arc<OwnedFd>>);

impl Events {
    /// Registers with the runtime of the caller.
    pub(super) fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let events = Arc::new(rustix::event::eventfd(0, flags)?);
        // SAFETY: the descriptor must be open, and the same, as long as the registration lives. That
        // owns a share of the `OwnedFd`, which nobody can take out of a share or change.
        let registered = unsafe { AsyncFd::register_with_interest(events, Interest::READABLE) };
        Ok(Self(registered.map_err(io::Error::from)?))
    }

    /// Waits until something may have completed since the last call; `false` when the runtime ends.
    pub(super) async fn next(&self) -> bool {
        // Not read: each time that something is added is an event of its own.
        self.0.readable().await.map(|mut ready| ready.clear_ready()).is_ok()
    }
}

impl SubmissionQueue {
    /// A queue for `depth` operations at a time.
    ///
    /// # Errors
    /// When the kernel has no such queues, or forbids them, or they cannot do what is needed.
    pub(super) fn new(depth: u32, events: &Events) -> io::Result<Self> {
        let mut ring = IoUring::builder().dontfork().build(depth)?;
        // Before Linux 5.12 what blocks is done by threads that are not the process's own.
        if !ring.params().is_feature_native_workers() {
            return Err(io::Error::other("the kernel is older than 5.12"));
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        if !probe.is_supported(opcode::Read::CODE) {
            return Err(io::Error::other("the kernel's io_uring cannot read"));
        }
        check(&mut ring)?;
        let events = Arc::clone(events.0.get_ref());
        ring.submitter().register_eventfd(events.as_raw_fd())?;
        Ok(Self {
            ring,
            submitting: Mutex::new(()),
            completing: Mutex::new(()),
            slots: (0..depth).map(|_| Mutex::new(OperationSlot::Free)).collect(),
            free: Mutex::new((0..depth).rev().collect()),
            room: Semaphore::new(depth as usize),
            events,
        })
    }

    /// Whether operations are completed.
    pub(super) fn is_open(&self) -> bool {
        !self.room.is_closed()
    }

    /// Begins an operation. `None` when it cannot be done here, for want of room too: a disk that does
    /// not answer may have all of it.
    pub(super) fn start(&self, operation: RingRead) -> Option<PendingRead<'_>> {
        self.room.try_acquire().ok()?.forget();
        let index = self.free.lock().pop()?;
        // Has the slot from here on, however this ends.
        let flight = PendingRead { queue: self, index, landed: false };
        let entry = {
            let mut slot = self.slots[index as usize].lock();
            *slot = OperationSlot::Flying { operation, waker: None, abandoned: false };
            let OperationSlot::Flying { operation, .. } = &mut *slot else { return None };
            entry(operation).user_data(index.into())
        };
        let queued = {
            let _submitting = self.submitting.lock();
            // SAFETY: there is no other `SubmissionQueue` of this ring, as that needs the lock.
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: what the entry points to lives, and is nobody else's, until its completion; the
            // module's text says why.
            unsafe { queue.push(&entry) }.is_ok()
        };
        if !queued {
            // The kernel has not seen it.
            *self.slots[index as usize].lock() = OperationSlot::Landed((Vec::new(), 0));
            return None;
        }
        if self.ring.submit().is_err() {
            // It stays in the queue. The driver tries again.
            let _ = rustix::io::write(&self.events, &1u64.to_ne_bytes());
        }
        Some(flight)
    }

    /// Submits what is in the queue still; `false` when the kernel does not take it now.
    ///
    /// Whoever queues an operation submits at least one, so that there is something left only when the
    /// kernel refused.
    pub(super) fn submit_rest(&self) -> bool {
        let is_empty = {
            let _submitting = self.submitting.lock();
            // SAFETY: as in `start`.
            unsafe { self.ring.submission_shared() }.is_empty()
        };
        is_empty || self.ring.submit().is_ok()
    }

    /// Takes what has completed.
    pub(super) fn reap(&self) {
        let _completing = self.completing.lock();
        // SAFETY: there is no other `CompletionQueue` of this ring, as that needs the lock.
        let completions = unsafe { self.ring.completion_shared() };
        for completion in completions {
            self.land(completion.user_data(), completion.result());
        }
    }

    /// The operation in a slot has ended.
    fn land(&self, index: u64, result: i32) {
        let Some(place) = self.slots.get(index as usize) else { return };
        let mut slot = place.lock();
        let OperationSlot::Flying { operation, waker, abandoned } =
            std::mem::replace(&mut *slot, OperationSlot::Free)
        else {
            return;
        };
        if abandoned {
            drop(slot);
            self.release(index as u32);
            return;
        }
        *slot = OperationSlot::Landed((operation.bytes, result));
        drop(slot);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// A slot is free again.
    fn release(&self, index: u32) {
        self.free.lock().push(index);
        self.room.add_permits(1);
    }

    /// Nobody will complete operations any more. Those that wait for one are told.
    pub(super) fn close(&self) {
        self.room.close();
        self.reap();
        for slot in &self.slots {
            let waker = match &mut *slot.lock() {
                OperationSlot::Flying { waker, .. } => waker.take(),
                _ => None,
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }
}

/// The entry of an operation in a slot, whose memory stays where it is.
fn entry(operation: &mut RingRead) -> squeue::Entry {
    let file = types::Fd(operation.target.as_fd().as_raw_fd());
    let part = &mut operation.bytes[operation.from..];
    let len = part.len().min(LONGEST) as u32;
    opcode::Read::new(file, part.as_mut_ptr(), len).offset(operation.offset).build()
}

/// Does nothing by a new ring: entering it may be forbidden although making it is not.
fn check(ring: &mut IoUring) -> io::Result<()> {
    // SAFETY: the entry points to nothing.
    unsafe { ring.submission().push(&opcode::Nop::new().build()) }.map_err(io::Error::other)?;
    ring.submit_and_wait(1)?;
    match ring.completion().next() {
        Some(done) if done.result() == 0 => Ok(()),
        _ => Err(io::Error::other("the kernel's io_uring does not answer")),
    }
}

/// An operation in flight; dropped, it is nobody's.
pub(super) struct PendingRead<'a> {
    queue: &'a SubmissionQueue,
    index: u32,
    /// The slot was given back.
    landed: bool,
}

impl Future for PendingRead<'_> {
    /// `None` when nobody will complete it.
    type Output = Option<ReadResult>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<ReadResult>> {
        let queue = self.queue;
        let mut slot = queue.slots[self.index as usize].lock();
        if let OperationSlot::Flying { waker, .. } = &mut *slot {
            if !waker.as_ref().is_some_and(|waker| waker.will_wake(context.waker())) {
                *waker = Some(context.waker().clone());
            }
            // Looked at under the lock: whoever closes the queue takes the waker after that.
            return if queue.is_open() { Poll::Pending } else { Poll::Ready(None) };
        }
        let ended = std::mem::replace(&mut *slot, OperationSlot::Free);
        drop(slot);
        self.landed = true;
        queue.release(self.index);
        match ended {
            OperationSlot::Landed(landed) => Poll::Ready(Some(landed)),
            OperationSlot::Flying { .. } | OperationSlot::Free => Poll::Ready(None),
        }
    }
}

impl Drop for PendingRead<'_> {
    fn drop(&mut self) {
        if self.landed {
            return;
        }
        let mut slot = self.queue.slots[self.index as usize].lock();
        if let OperationSlot::Flying { waker, abandoned, .. } = &mut *slot {
            (*waker, *abandoned) = (None, true);
            return;
        }
        *slot = OperationSlot::Free;
        drop(slot);
        self.queue.release(self.index);
    }
}

impl Drop for SubmissionQueue {
    fn drop(&mut self) {
        self.reap();
        for slot in &mut self.slots {
            if let OperationSlot::Flying { operation, .. } =
                std::mem::replace(slot.get_mut(), OperationSlot::Free)
            {
                std::mem::forget(operation.bytes);
            }
        }
    }
}

impl fmt::Debug for SubmissionQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("depth", &self.slots.len())
            .field("room", &self.room.available_permits())
            .finish_non_exhaustive()
    }
}
