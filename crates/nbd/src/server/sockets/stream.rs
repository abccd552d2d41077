//! A connected socket that wakes its task for what the task waits for, and for nothing else.
//!
//! A unix socket reports room to write each time that its peer takes something. A socket that is
//! registered for reading and writing alike, as tokio's are, so wakes its thread once more for every
//! answer, to find nothing to do: on an idle machine that doubles the cost of a small request. Here
//! room to write is asked for only after some was missing: the socket is registered anew, for both. A
//! second registration beside the first would take a descriptor more, and clients that take nothing of
//! their answers would so take what others need.
//!
//! In the same way a unix socket wakes its peer each time that something it sent is taken, a peer
//! that sleeps until its answer comes too. So short requests are peeked at (MSG_PEEK) first, and taken when
//! the answers were sent: by then the peer is awake. A single one is taken at once: its peer is better woken
//! early, while the answer is made.
//!
//! A connection that expects the next request soon has the socket polled for a while before its task sleeps
//! ([`Watch::busy_poll`]). Where that finds one request after another the socket is not registered for reading
//! any more, until it fails: no other thread is woken to learn what is known already.
//!
//! It is registered with the runtime that polls it first, and has to stay there.

#[cfg(test)]
mod tests;

use super::registered::{Registered, register};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::time::Instant;

/// Sends without a lack of room until the room is no longer asked for.
const CALM: u32 = 64;
/// What is received is peeked at first while it is shorter than this, in bytes: as many requests
/// without payload as a client usually has in flight.
const SHORT: usize = 2048;
/// But not while it is no longer than this, in bytes: a single request.
const SINGLE: usize = 32;
/// Requests in a row that were found by busy polling until the socket is no longer registered for reading.
const FOUND: u32 = 16;
/// Tries to receive between two readings of the clock.
const TRIES: u32 = 8;

/// A connected stream socket, unix or TCP.
#[derive(Debug)]
pub struct ConnectedSocket {
    socket: Arc<OwnedFd>,
    /// While its task sleeps until something comes, or room is asked for.
    registration: Option<Registration>,
    /// For how long the next read polls before it waits, in nanoseconds.
    busy_poll: Arc<AtomicU64>,
    /// Reads in a row that found something by polling.
    found: u32,
    seen: PeekedBytes,
}

/// Bytes that were peeked at, and are still to be taken out of the socket.
#[derive(Debug)]
struct PeekedBytes {
    socket: Arc<OwnedFd>,
    bytes: usize,
    /// The next ones are peeked at: those before were short, and several requests.
    peeks: bool,
    /// Only there is peeking worth something.
    is_unix: bool,
}

impl PeekedBytes {
    /// Receives what is there, by peeking at it or by taking it.
    fn receive(&mut self, room: &mut [u8]) -> rustix::io::Result<usize> {
        self.take()?;
        if self.peeks && self.is_unix {
            let most = room.len().min(SHORT);
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            let (got, _) = rustix::net::recv(&self.socket, &mut room[..most], flags)?;
            if got < SHORT {
                (self.bytes, self.peeks) = (got, got > SINGLE);
                return Ok(got);
            }
        }
        let (got, _) = rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)?;
        self.peeks = (SINGLE + 1..SHORT).contains(&got);
        Ok(got)
    }

    /// Receives what is there, or comes within `time`.
    fn poll(&mut self, room: &mut [u8], time: Duration) -> rustix::io::Result<usize> {
        let end = Instant::now() + time;
        // A try takes longer than a tenth of a microsecond: it also ends when the clock stands.
        for _ in 0..=time.as_micros() {
            for _ in 0..TRIES {
                match self.receive(room) {
                    Err(Errno::AGAIN | Errno::INTR) => std::hint::spin_loop(),
                    done => return done,
                }
            }
            if Instant::now() >= end {
                break;
            }
        }
        Err(Errno::AGAIN)
    }

    /// Takes what was peeked at.
    #[inline]
    fn take(&mut self) -> rustix::io::Result<()> {
        while self.bytes > 0 {
            let mut scratch = [0; 512];
            let rest = &mut scratch[..self.bytes.min(512)];
            match rustix::net::recv(&self.socket, rest, RecvFlags::DONTWAIT) {
                Ok((0, _)) => self.bytes = 0,
                Ok((got, _)) => self.bytes -= got,
                Err(Errno::INTR) => {}
                Err(error) => {
                    self.bytes = 0;
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

impl Drop for PeekedBytes {
    /// A unix socket that is closed with something left in it resets its peer.
    fn drop(&mut self) {
        let _ = self.take();
    }
}

/// What the system reports of the socket: that there is something to read, at least.
#[derive(Debug)]
struct Registration {
    socket: Registered,
    /// Sends since there was no room, while it is asked for.
    calm: Option<u32>,
}

impl Registration {
    fn asks_for_room(&self) -> bool {
        self.calm.is_some()
    }
}

/// What the peer of a connection has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::server) enum Hangup {
    Nothing,
    /// It sends nothing more; it may still take what is sent, or be gone.
    ItsSide,
    /// It is gone.
    All,
}

/// Tells the state of a connection's socket, and has it polled.
#[derive(Debug, Clone)]
pub struct Watch {
    socket: Weak<OwnedFd>,
    busy_poll: Arc<AtomicU64>,
}

impl Watch {
    /// Has the next read, if it finds nothing, poll for so long whether something comes; that takes the
    /// processor meanwhile.
    pub fn busy_poll(&self, time: Duration) {
        self.busy_poll.store(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    /// Whether the next step is the peer's: there is nothing of it to receive, or it does not take what is
    /// sent.
    pub(in crate::server) fn is_waited_for(&self) -> bool {
        let Some(socket) = self.socket.upgrade() else { return false };
        let both = PollFlags::IN | PollFlags::OUT;
        let mut polled = [PollFd::new(&socket, both)];
        poll(&mut polled, Some(&Timespec::default())).is_ok() && !polled[0].revents().contains(both)
    }

    /// How many bytes of the peer are in the socket, to be received.
    pub(in crate::server) fn unread(&self) -> u64 {
        let socket = self.socket.upgrade();
        socket.and_then(|socket| rustix::io::ioctl_fionread(&*socket).ok()).unwrap_or(0)
    }

    /// Whether the peer sends nothing more, also behind bytes that nobody has received yet.
    pub fn has_hung_up(&self) -> bool {
        self.hangup() != Hangup::Nothing
    }

    /// What the peer has closed, also behind bytes that nobody has received yet.
    pub(in crate::server) fn hangup(&self) -> Hangup {
        let Some(socket) = self.socket.upgrade() else { return Hangup::Nothing };
        let mut polled = [PollFd::new(&socket, PollFlags::RDHUP)];
        if poll(&mut polled, Some(&Timespec::default())).is_err() {
            return Hangup::Nothing;
        }
        let seen = polled[0].revents();
        if seen.intersects(PollFlags::HUP | PollFlags::ERR) {
            Hangup::All
        } else if seen.contains(PollFlags::RDHUP) {
            Hangup::ItsSide
        } else {
            Hangup::Nothing
        }
    }
}

impl ConnectedSocket {
    /// Uses `socket`, which is connected and does not block.
    pub fn new(socket: OwnedFd) -> Self {
        let is_unix = sockopt::socket_domain(&socket).is_ok_and(|f| f == AddressFamily::UNIX);
        let socket = Arc::new(socket);
        let seen = PeekedBytes { socket: Arc::clone(&socket), bytes: 0, peeks: false, is_unix };
        Self { socket, registration: None, busy_poll: Arc::default(), found: 0, seen }
    }

    /// A handle on its socket for others than its task.
    pub fn watch(&self) -> Watch {
        Watch { socket: Arc::downgrade(&self.socket), busy_poll: Arc::clone(&self.busy_poll) }
    }

    /// The socket alone.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(in crate::server) fn into_fd(self) -> io::Result<OwnedFd> {
        let Self { socket, registration, seen, .. } = self;
        drop((registration, seen));
        // Nobody else has a share of it any more.
        Arc::try_unwrap(socket).or_else(|shared| shared.try_clone())
    }

    /// Registers it for reading and writing.
    ///
    /// # Errors
    /// The kinds of [`register`].
    fn ask_for_room(&mut self, cx: &Context<'_>) -> io::Result<()> {
        self.unregister(cx);
        let socket = register(Arc::clone(&self.socket), Interest::READABLE | Interest::WRITABLE)?;
        self.registration = Some(Registration { socket, calm: Some(0) });
        Ok(())
    }

    /// Something was sent; after a while without a lack of room it is not asked for any more.
    #[inline]
    fn had_room(&mut self, cx: &Context<'_>) {
        if let Some(Registration { calm: Some(calm), .. }) = &mut self.registration {
            *calm += 1;
            if *calm >= CALM {
                self.unregister(cx);
            }
        }
    }

    /// Gives the registration up: a socket can have only one. The task, which may wait for something to
    /// read, has to ask for that anew.
    fn unregister(&mut self, cx: &Context<'_>) {
        if self.registration.take().is_some() {
            cx.waker().wake_by_ref();
        }
    }

    /// Sends what the socket takes now; asks for room first when it takes nothing.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let ready = match self.registration.as_ref().filter(|held| held.asks_for_room()) {
                Some(held) => Some(ready!(held.socket.poll_write_ready(cx))?),
                None => None,
            };
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, slices, &mut control, flags) {
                Ok(sent) => {
                    // Should it fail, the next receive will tell.
                    let _ = self.seen.take();
                    self.had_room(cx);
                    return Poll::Ready(Ok(sent));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match ready {
                    Some(mut ready) => {
                        ready.clear_ready();
                        if let Some(held) = &mut self.registration {
                            held.calm = Some(0);
                        }
                    }
                    None => self.ask_for_room(cx)?,
                },
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncRead for ConnectedSocket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, registration, busy_poll, found, seen } = self.get_mut();
        // More is wanted before there was an answer: what was peeked at must not keep it out.
        seen.take()?;
        if busy_poll.load(Relaxed) > 0 {
            let time = Duration::from_nanos(busy_poll.swap(0, Relaxed));
            let asks_for_room = registration.as_ref().is_some_and(Registration::asks_for_room);
            match seen.poll(buf.initialize_unfilled(), time) {
                Ok(got) => {
                    buf.advance(got);
                    *found = found.saturating_add(1);
                    if *found >= FOUND && !asks_for_room {
                        *registration = None;
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::AGAIN) => *found = 0,
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
        let held = match registration {
            Some(held) => held,
            None => {
                let socket = register(Arc::clone(socket), Interest::READABLE)?;
                registration.insert(Registration { socket, calm: None })
            }
        };
        loop {
            let mut ready = ready!(held.socket.poll_read_ready(cx))?;
            let room = buf.initialize_unfilled();
            let wanted = room.len();
            match seen.receive(room) {
                Ok(got) => {
                    // Less than there was room for: that was all, and more will be reported.
                    if 0 < got && got < wanted {
                        ready.clear_ready();
                    }
                    buf.advance(got);
                    return Poll::Ready(Ok(()));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => ready.clear_ready(),
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncWrite for ConnectedSocket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().poll_send(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        match rustix::net::shutdown(&self.socket, Shutdown::Write) {
            // The peer was quicker.
            Ok(()) | Err(Errno::NOTCONN) => Poll::Ready(Ok(())),
            Err(error) => Poll::Ready(Err(error.into())),
        }
    }
}
