//! A connected socket that wakes its task for what the task waits for, and for nothing else.
//!
//! A unix socket reports room to write each time that its peer takes something. A socket that is
//! registered for reading and writing alike, as tokio's are, so wakes its thread once more for every
//! answer, to find nothing to do: on an idle machine that doubles the cost of a small request. Here
//! room to write is asked for only after some was missing.
//!
//! In the same way a unix socket wakes its peer each time that something it sent is taken, a peer
//! that sleeps until its answer comes too. So short requests are looked at first, and taken when the
//! answers were sent: by then the peer is awake. But for a single one: its peer is better woken early,
//! while the answer is made.
//!
//! It is registered with the runtime that polls it first, and has to stay there.

use super::registered::{Registered, register};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown, sockopt};
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};

/// Sends without a lack of room until the room is no longer asked for.
const CALM: u32 = 64;
/// What is received is looked at first while it is shorter than this, in bytes: as many requests
/// without payload as a client usually has in flight.
const SHORT: usize = 2048;
/// But not while it is no longer than this, in bytes: a single request.
const SINGLE: usize = 32;

/// A connected stream socket, unix or TCP.
#[derive(Debug)]
pub(super) struct Stream {
    socket: Arc<OwnedFd>,
    /// Registered for reading, once it was read from.
    input: Option<Registered>,
    /// Registered for writing, while room is asked for.
    room: Option<Room>,
    seen: Seen,
}

/// Bytes that were looked at, and are still to be taken out of the socket.
#[derive(Debug)]
struct Seen {
    socket: Arc<OwnedFd>,
    bytes: usize,
    /// The next ones are looked at: those before were short, and several requests.
    looks: bool,
    /// Looking is worth something.
    is_unix: bool,
}

impl Seen {
    /// Receives what is there, by looking at it or by taking it.
    fn receive(&mut self, room: &mut [u8]) -> rustix::io::Result<usize> {
        self.take()?;
        if self.looks && self.is_unix {
            let most = room.len().min(SHORT);
            let flags = RecvFlags::DONTWAIT | RecvFlags::PEEK;
            let (got, _) = rustix::net::recv(&self.socket, &mut room[..most], flags)?;
            if got < SHORT {
                (self.bytes, self.looks) = (got, got > SINGLE);
                return Ok(got);
            }
        }
        let (got, _) = rustix::net::recv(&self.socket, &mut *room, RecvFlags::DONTWAIT)?;
        self.looks = (SINGLE + 1..SHORT).contains(&got);
        Ok(got)
    }

    /// Takes what was looked at.
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

impl Drop for Seen {
    /// A unix socket that is closed with something left in it resets its peer.
    fn drop(&mut self) {
        let _ = self.take();
    }
}

#[derive(Debug)]
struct Room {
    socket: Registered,
    /// Sends since there was none.
    calm: u32,
}

/// What the peer of a connection has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hangup {
    Nothing,
    /// It sends nothing more; it may still take what is sent, or be gone.
    ItsSide,
    /// It is gone.
    All,
}

/// Looks at a connection without using it.
#[derive(Debug, Clone)]
pub(super) struct Watch(Weak<OwnedFd>);

impl Watch {
    /// What the peer has closed, also behind bytes that nobody has received yet.
    pub(super) fn hangup(&self) -> Hangup {
        let Some(socket) = self.0.upgrade() else { return Hangup::Nothing };
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

impl Stream {
    /// Uses `socket`, which is connected and does not block.
    pub(super) fn new(socket: OwnedFd) -> Self {
        let is_unix = sockopt::socket_domain(&socket).is_ok_and(|f| f == AddressFamily::UNIX);
        let socket = Arc::new(socket);
        let seen = Seen { socket: Arc::clone(&socket), bytes: 0, looks: false, is_unix };
        Self { socket, input: None, room: None, seen }
    }

    /// For somebody who looks at it from beside.
    pub(super) fn watch(&self) -> Watch {
        Watch(Arc::downgrade(&self.socket))
    }

    /// The socket alone.
    ///
    /// # Errors
    /// When there are too many open files.
    pub(super) fn into_fd(self) -> io::Result<OwnedFd> {
        let Self { socket, input, room, seen } = self;
        drop((input, room, seen));
        // Nobody else has a share of it any more.
        Arc::try_unwrap(socket).or_else(|shared| shared.try_clone())
    }

    /// Sends what the socket takes now; asks for room first when it takes nothing.
    fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        loop {
            let ready = match &self.room {
                Some(room) => Some(ready!(room.socket.poll_write_ready(cx))?),
                None => None,
            };
            let mut control = SendAncillaryBuffer::default();
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::sendmsg(&self.socket, slices, &mut control, flags) {
                Ok(sent) => {
                    // Should it fail, the next receive will tell.
                    let _ = self.seen.take();
                    if let Some(room) = &mut self.room {
                        room.calm += 1;
                        if room.calm >= CALM {
                            self.room = None;
                        }
                    }
                    return Poll::Ready(Ok(sent));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => match ready {
                    Some(mut ready) => {
                        ready.clear_ready();
                        if let Some(room) = &mut self.room {
                            room.calm = 0;
                        }
                    }
                    None => {
                        // A number of its own: one can be registered only once.
                        let socket = Arc::new(self.socket.try_clone()?);
                        let socket = register(socket, Interest::WRITABLE)?;
                        self.room = Some(Room { socket, calm: 0 });
                    }
                },
                Err(error) => return Poll::Ready(Err(error.into())),
            }
        }
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Self { socket, input, seen, .. } = self.get_mut();
        let input = match input {
            Some(input) => input,
            None => input.insert(register(Arc::clone(socket), Interest::READABLE)?),
        };
        // More is wanted before there was an answer: what was looked at must not keep it out.
        seen.take()?;
        loop {
            let mut ready = ready!(input.poll_read_ready(cx))?;
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

impl AsyncWrite for Stream {
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::UnixStream;

    fn pair() -> (UnixStream, Stream) {
        let (peer, socket) = UnixStream::pair().unwrap();
        (peer, Stream::new(socket.into_std().unwrap().into()))
    }

    /// What the system was asked to report of the socket, as epoll's masks.
    fn asked(socket: &Stream) -> Vec<u32> {
        let mut masks = Vec::new();
        for entry in std::fs::read_dir("/proc/self/fdinfo").unwrap().flatten() {
            let info = std::fs::read_to_string(entry.path()).unwrap_or_default();
            for line in info.lines().filter_map(|line| line.strip_prefix("tfd:")) {
                let words: Vec<_> = line.split_whitespace().collect();
                if words[0].parse() == Ok(socket.socket.as_raw_fd()) {
                    masks.push(u32::from_str_radix(words[2], 16).unwrap());
                }
            }
        }
        masks
    }

    const IN: u32 = 1;
    const OUT: u32 = 4;

    #[tokio::test]
    async fn room_is_asked_for_only_while_it_is_missing() {
        let (mut peer, mut stream) = pair();
        peer.write_all(b"ask").await.unwrap();
        let mut buf = [0; 8];
        assert_eq!(stream.read(&mut buf).await.unwrap(), 3);
        stream.write_all(b"answer").await.unwrap();
        let masks = asked(&stream);
        assert!(!masks.is_empty());
        assert!(masks.iter().all(|mask| mask & IN != 0 && mask & OUT == 0), "{masks:x?}");

        // More than the socket holds, so that there is no room until the peer takes some.
        let long = vec![7; 4 << 20];
        let mut got = vec![0; 6 + long.len()];
        let (sent, received) = tokio::join!(stream.write_all(&long), peer.read_exact(&mut got));
        assert!(sent.is_ok() && received.is_ok());
        assert!(got[6..] == long);
        assert!(stream.room.is_some());
        for _ in 0..CALM {
            stream.write_all(b"a").await.unwrap();
            peer.read_exact(&mut buf[..1]).await.unwrap();
        }
        assert!(stream.room.is_none(), "room is asked for long after it was missing");
    }

    /// What is received and not taken out of the socket.
    fn left(socket: &OwnedFd) -> u64 {
        rustix::io::ioctl_fionread(socket).unwrap()
    }

    #[tokio::test]
    async fn several_requests_are_taken_when_their_answers_were_sent_and_others_at_once() {
        let (mut peer, mut stream) = pair();
        let mut buf = vec![0; 8 * SHORT];
        let several = 2 * SINGLE;
        // What stays in the socket is decided by what came before.
        let cases = [(several, 0), (several, several), (SINGLE, SINGLE), (SINGLE, 0), (several, 0)];
        for (sent, stays) in cases {
            peer.write_all(&vec![7; sent]).await.unwrap();
            assert_eq!(stream.read(&mut buf).await.unwrap(), sent);
            assert_eq!(left(&stream.socket), stays as u64);
            stream.write_all(b"answer").await.unwrap();
            assert_eq!(left(&stream.socket), 0);
        }
        // Without an answer in between, and in more pieces than one.
        for byte in [1, 2] {
            peer.write_all(&vec![byte; several + 1]).await.unwrap();
            assert_eq!(stream.read(&mut buf[..several]).await.unwrap(), several);
            assert_eq!(stream.read(&mut buf[several..]).await.unwrap(), 1);
            assert_eq!(buf[..=several], vec![byte; several + 1]);
        }
        peer.write_all(&vec![7; 3 * SHORT]).await.unwrap();
        assert_eq!(stream.read(&mut buf).await.unwrap(), 3 * SHORT);
        assert_eq!(left(&stream.socket), 0);
    }

    #[tokio::test]
    async fn what_was_looked_at_does_not_stay_for_the_next_owner_nor_reset_the_peer() {
        for passed in [false, true] {
            let (mut peer, mut stream) = pair();
            for _ in 0..2 {
                peer.write_all(&[7; 60]).await.unwrap();
                assert_eq!(stream.read(&mut [0; 100]).await.unwrap(), 60);
            }
            assert_eq!(left(&stream.socket), 60);
            match passed {
                true => assert_eq!(left(&stream.into_fd().unwrap()), 0),
                false => drop(stream),
            }
            assert_eq!(peer.read(&mut [0; 100]).await.unwrap(), 0);
        }
    }

    #[tokio::test]
    async fn what_was_looked_at_does_not_keep_the_rest_of_a_request_out() {
        let (mut peer, mut stream) = pair();
        // Room for a few pieces only, until they are taken.
        sockopt::set_socket_send_buffer_size(&peer, 4608).unwrap();
        let send = async {
            for _ in 0..64 {
                peer.write_all(&[7; 40]).await.unwrap();
            }
        };
        let receive = async {
            let (mut got, mut buf) = (0, [0; 4096]);
            while got < 64 * 40 {
                got += stream.read(&mut buf).await.unwrap();
            }
        };
        let both = async { tokio::join!(send, receive) };
        tokio::time::timeout(std::time::Duration::from_secs(20), both).await.unwrap();
    }

    #[tokio::test]
    async fn a_peer_that_goes_away_ends_reading_and_writing() {
        let (mut peer, mut stream) = pair();
        let long = vec![7; 4 << 20];
        let leave = async move { peer.read_exact(&mut [0; 1000]).await.map(|_| drop(peer)) };
        let (sent, left) = tokio::join!(stream.write_all(&long), leave);
        assert_eq!(sent.unwrap_err().kind(), io::ErrorKind::BrokenPipe);
        left.unwrap();
        let ended = stream.read(&mut [0; 10]).await;
        assert!(matches!(&ended, Ok(0)) || ended.is_err(), "{ended:?}");
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_in_both_directions_however_they_are_cut() {
        let (mut peer, stream) = pair();
        let (mut input, mut output) = tokio::io::split(stream);
        let bytes: Vec<u8> = (0..3u32 << 20).map(|i| (i % 251) as u8).collect();
        let echo = async {
            let mut buf = vec![0; 50_021];
            loop {
                match peer.read(&mut buf).await.unwrap() {
                    0 => break peer.shutdown().await.unwrap(),
                    n => peer.write_all(&buf[..n]).await.unwrap(),
                }
            }
        };
        let send = async {
            for piece in bytes.chunks(70_001) {
                output.write_all(piece).await.unwrap();
            }
            output.shutdown().await.unwrap();
        };
        let receive = async {
            let mut got = Vec::new();
            input.read_to_end(&mut got).await.unwrap();
            got
        };
        let ((), got, ()) = tokio::join!(send, receive, echo);
        assert!(got == bytes);
    }
}
