//! Requests that wait for the device, away from the ring's thread. They never touch guest memory.

use crate::notifier::{Notifier, signal};
use crate::request::DiscardRange;
use block::{Device, Durability, Error, Result, Span};
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most bytes that a read or a write is carried out with at a time. A longer request is done piece by piece: it
/// holds no more than one, and others have their turn between.
pub(crate) const PIECE: u64 = 4 << 20;
/// Longer ranges are discarded and zeroed in pieces of this length: a file system may lock the whole file
/// for each.
const EFFECT: u64 = 256 << 20;

/// What a request waits for.
#[derive(Debug)]
pub(crate) enum AwaitedOperation {
    /// Fill the buffer, which is as long as the span: [`PIECE`] at most, here and for a write.
    Read(Span, Vec<u8>),
    Write(Span, Vec<u8>, Durability),
    Flush,
    Discard(Vec<DiscardRange>, Durability),
    Zero(Vec<DiscardRange>, Durability),
}

impl AwaitedOperation {
    async fn run(&mut self, device: &dyn Device) -> Result<()> {
        match self {
            Self::Read(span, buf) => {
                for piece in span.pieces(most(device)) {
                    device.read(piece, &mut buf[piece.index_in(*span)]).await?;
                }
            }
            Self::Write(span, data, durability) => {
                for piece in span.pieces(most(device)) {
                    device.write(piece, &data[piece.index_in(*span)], *durability).await?;
                }
            }
            Self::Flush => device.flush().await?,
            Self::Discard(ranges, durability) => {
                for piece in ranges.iter().flat_map(|range| range.span.pieces(EFFECT)) {
                    device.discard(piece, *durability).await?;
                }
            }
            Self::Zero(ranges, durability) => {
                for range in ranges {
                    for piece in range.span.pieces(EFFECT) {
                        device.zero(piece, range.mode, *durability).await?;
                    }
                }
            }
        }
        Ok(())
    }
}

fn most(device: &dyn Device) -> u64 {
    u64::from(device.limits().maximum).max(1)
}

/// The first piece of a read or a write. The next ones begin at multiples of [`PIECE`].
pub(crate) fn first_piece(whole: Span) -> Span {
    whole.pieces(PIECE).next().unwrap_or(whole)
}

/// The piece behind the one that is done; `None` when that was the last one.
pub(crate) fn next_piece(whole: Span, done: Span) -> Option<Span> {
    (done.end() < whole.end()).then(|| first_piece(Span::between(done.end(), whole.end())))
}

/// What became of a request.
#[derive(Debug)]
pub(crate) struct Completion {
    pub(crate) head: u16,
    /// `None` when it was given up, as the process ends: whoever comes after this one does it again.
    pub(crate) outcome: Option<(AwaitedOperation, Result<()>)>,
}

/// Where a ring's thread is told of things.
#[derive(Debug)]
pub(crate) struct Mailbox {
    done: Mutex<Vec<Completion>>,
    stop: AtomicBool,
    given_up: AtomicBool,
    /// Wakes the thread.
    wake: OwnedFd,
    /// Interrupts the guest.
    call: Mutex<Option<Arc<Notifier>>>,
    /// Tells the front end that the ring is broken.
    fault: Mutex<Option<Arc<Notifier>>>,
}

impl Mailbox {
    /// An empty one.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(crate) fn new() -> Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("waking a thread", e.into()))?;
        Ok(Self {
            done: Mutex::default(),
            stop: AtomicBool::new(false),
            given_up: AtomicBool::new(false),
            wake,
            call: Mutex::default(),
            fault: Mutex::default(),
        })
    }

    /// What is readable once for each time that the thread is to wake.
    pub(crate) fn wakes(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Moves what is done to the end of `list`.
    pub(crate) fn take_done(&self, list: &mut Vec<Completion>) {
        list.append(&mut self.done.lock());
    }

    /// Has the thread look what there is to do.
    pub(crate) fn wake(&self) {
        signal(&self.wake);
    }

    /// Has the ring end once what is in flight is done.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.wake();
        // The front end may have gone, and left nobody to make room.
        let told_by = [self.call.lock().clone(), self.fault.lock().clone()];
        told_by.iter().flatten().for_each(|notifier| notifier.free());
    }

    /// Has the ring end as it is: what is in flight is not answered any more.
    pub(crate) fn give_up(&self) {
        self.given_up.store(true, Ordering::Release);
        self.stop();
    }

    /// Whether it is to end as it is.
    pub(crate) fn is_given_up(&self) -> bool {
        self.given_up.load(Ordering::Acquire)
    }

    /// Whether it is to end.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// The guest is interrupted by this from now on, and once at once: an interrupt may have got lost.
    pub(crate) fn set_call(&self, call: Option<OwnedFd>) {
        let call = call.map(|call| Arc::new(Notifier::new(call)));
        if let Some(call) = &call {
            call.tell_if_there_is_room();
        }
        let old = std::mem::replace(&mut *self.call.lock(), call);
        if let Some(old) = old {
            old.free();
        }
    }

    /// Interrupts the guest, without a lock while that may wait.
    #[inline]
    pub(crate) fn call(&self) {
        let call = self.call.lock().clone();
        match call {
            Some(call) if self.is_stopped() => call.tell_if_there_is_room(),
            Some(call) => call.tell(),
            None => {}
        }
    }

    /// Tells by what `other` told by.
    pub(crate) fn take_over(&self, other: &Self) {
        *self.call.lock() = other.call.lock().take();
        *self.fault.lock() = other.fault.lock().take();
    }

    /// The front end is told by this that the ring is broken.
    pub(crate) fn set_fault(&self, fault: Option<OwnedFd>) {
        *self.fault.lock() = fault.map(|fault| Arc::new(Notifier::new(fault)));
    }

    /// Tells the front end that the ring is broken.
    pub(crate) fn tell_fault(&self) {
        let fault = self.fault.lock().clone();
        if let Some(fault) = fault {
            fault.tell_if_there_is_room();
        }
    }
}

/// A request that is being carried out. However that ends, the ring hears of it.
#[derive(Debug)]
struct Ticket<S> {
    mailbox: Arc<Mailbox>,
    done: Option<Completion>,
    /// A share of the use of the export. It goes before the ring hears: the ring is the last to act then.
    share: Option<S>,
}

impl<S> Drop for Ticket<S> {
    fn drop(&mut self) {
        self.share = None;
        if let Some(done) = self.done.take() {
            self.mailbox.done.lock().push(done);
            self.mailbox.wake();
        }
    }
}

/// Does `work`, and tells the mailbox. The `share` of the use of the export goes when the device can be asked
/// for nothing more.
pub(crate) fn carry_out<S: Send>(
    device: Arc<dyn Device>,
    share: S,
    mailbox: Arc<Mailbox>,
    head: u16,
    mut work: AwaitedOperation,
) -> impl Future<Output = ()> + Send {
    let done = Some(Completion { head, outcome: None });
    let mut ticket = Ticket { mailbox, done, share: Some(share) };
    async move {
        let result = work.run(&*device).await;
        drop(device);
        if let Some(done) = &mut ticket.done {
            done.outcome = Some((work, result));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{ErrorKind, Fault, Memory, Operation, ScriptedDevice};

    #[tokio::test]
    async fn a_request_that_is_dropped_is_told_as_given_up() {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let device = Arc::new(Memory::new(1 << 20));
        let flush = |head| {
            carry_out(
                Arc::clone(&device) as _,
                (),
                Arc::clone(&mailbox),
                head,
                AwaitedOperation::Flush,
            )
        };
        drop(flush(7));
        flush(8).await;
        let mut done = Vec::new();
        mailbox.take_done(&mut done);
        let told: Vec<_> = done.iter().map(|done| (done.head, done.outcome.is_some())).collect();
        assert_eq!(told, [(7, false), (8, true)]);
    }

    /// A pipe whose front end reads nothing, full.
    fn full_pipe() -> (OwnedFd, OwnedFd) {
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        let flags = rustix::fs::fcntl_getfl(&writes).unwrap();
        let nonblocking = flags | rustix::fs::OFlags::NONBLOCK;
        rustix::fs::fcntl_setfl(&writes, nonblocking).unwrap();
        while rustix::io::write(&writes, &[0; 4096]).is_ok() {}
        rustix::fs::fcntl_setfl(&writes, flags).unwrap();
        (reads, writes)
    }

    /// An eventfd that waits, full.
    fn full_eventfd() -> OwnedFd {
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&event, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        event
    }

    #[test]
    #[allow(clippy::disallowed_methods, reason = "threads that may wait for ever, in real time")]
    fn nobody_waits_for_a_front_end_that_does_not_look() {
        let (_reads, pipe) = full_pipe();
        for (event, change) in [
            (pipe.try_clone().unwrap(), false),
            (pipe, true),
            (full_eventfd(), false),
            (full_eventfd(), true),
        ] {
            let (told, done) = std::sync::mpsc::channel();
            std::thread::spawn(move || {
                let mailbox = Arc::new(Mailbox::new().unwrap());
                mailbox.set_fault(Some(event.try_clone().unwrap()));
                mailbox.set_call(Some(event));
                mailbox.tell_fault();
                let ring = Arc::clone(&mailbox);
                let ring = std::thread::spawn(move || ring.call());
                // Where the ring waits, it does so without the lock until it is stopped or told otherwise.
                std::thread::sleep(std::time::Duration::from_millis(50));
                match change {
                    true => mailbox.set_call(None),
                    false => mailbox.stop(),
                }
                told.send(ring.join()).unwrap();
            });
            let ended = done.recv_timeout(std::time::Duration::from_secs(60));
            ended.expect("somebody waits").unwrap();
        }
    }

    #[test]
    fn an_event_is_counted_by_whatever_takes_it() {
        let mailbox = Mailbox::new().unwrap();
        let event = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        mailbox.set_call(Some(event.try_clone().unwrap()));
        mailbox.call();
        mailbox.stop();
        mailbox.call();
        let mut count = [0; 8];
        rustix::io::read(&event, &mut count).unwrap();
        assert_eq!(u64::from_ne_bytes(count), 3, "once when it is set");
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        mailbox.set_call(Some(writes));
        mailbox.call();
        let mut counts = [0; 64];
        assert_eq!(rustix::io::read(&reads, &mut counts), Ok(16));
    }

    #[tokio::test]
    async fn what_the_device_refuses_is_told() {
        let mailbox = Arc::new(Mailbox::new().unwrap());
        let full = |operation| match operation {
            Operation::Write(_) => Fault::Fail(ErrorKind::NoSpace),
            _ => Fault::None,
        };
        let device = ScriptedDevice::new(Memory::new(1 << 20), full);
        let work =
            AwaitedOperation::Write(Span::between(0, 4096), vec![1; 4096], Durability::Buffered);
        carry_out(Arc::new(device), (), Arc::clone(&mailbox), 1, work).await;
        let mut done = Vec::new();
        mailbox.take_done(&mut done);
        let (_, result) = done[0].outcome.as_ref().unwrap();
        assert_eq!(result.as_ref().unwrap_err().kind(), ErrorKind::NoSpace);
    }
}
