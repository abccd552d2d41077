//! The request loop of one connection.
//!
//! One task, and no other per request. Every turn: take the answers that became ready, try every
//! whole request in the receive buffer at once, hand all replies to the system in one call, receive
//! all that is there. What the device cannot answer on the spot waits beside and is answered out of
//! order. When too much is held for the client, its requests stay unread: a client that does not
//! take its replies stops itself, and costs no more than its limit.

use super::counters::Share;
use super::engine::{Engine, Terms, Work};
use super::input::Input;
use super::passing::Rest;
use super::stream::{Hangup, Watch};
use crate::codec::Parsed;
use crate::codec::constants::{command, command_flags, errno};
use crate::codec::request::Request;
use block::{Error, Result};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Unsent bytes at which sending comes before taking more requests.
const SEND_FIRST: usize = 128 << 10;
/// Payloads longer than this get their own buffer, unless they are received whole already.
const OWN_BUFFER: u64 = 64 << 10;
/// How long a connection is quiet before it gives its buffers back.
const QUIET: Duration = Duration::from_secs(5);
/// The longest payload of a bad request that is skipped; a longer one ends the connection.
const SKIPPED: u64 = u32::MAX as u64;

/// What a client that is in the way must take or send until the deadline, in bytes.
const PACE: u64 = 64 << 10;
/// Deadlines after which a client is dropped that takes nothing of its replies, in nobody's way.
const PATIENCE: u32 = 10;
/// The longest that a paced client waits until its limits are asked again: they may have changed.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// Turns of a busy connection before others get theirs.
const TURNS: usize = 16;

/// How a connection ended.
#[derive(Debug)]
pub(super) enum End {
    /// The client said that it is done.
    Done,
    /// The client closed the connection without saying so.
    Vanished,
    /// The server stops.
    Stopped,
    /// It is to go on elsewhere, with what is neither taken nor sent.
    Interrupted(Rest),
    /// The connection failed.
    Broken(Error),
    /// The client broke the protocol.
    Violation(Error),
}

/// What the receive side is doing.
enum Receiving {
    /// At the start of a request.
    Header,
    /// Inside a payload that is to be skipped.
    Skip { left: u64 },
    /// Inside a payload that has its own buffer.
    Payload { request: Request, work: Work, buffer: Vec<u8>, filled: usize },
    /// Nothing more is taken.
    Closed,
}

/// Why the requests received so far were not all taken.
enum Taken {
    /// They were: the rest is not a whole request.
    NeedMore,
    /// Replies have to go out, or requests in flight to end, first.
    Full,
    /// The client's limits hold the next one back for so long.
    Paced(Duration),
    /// They are for another process to take.
    Left,
    /// None will be.
    Closed,
}

pub(super) struct Connection<'a, S> {
    stream: &'a mut S,
    input: Input,
    engine: Engine,
    receiving: Receiving,
    share: &'a Share,
    end: Option<End>,
    quiet: Option<Pin<Box<Sleep>>>,
    /// Something was received since `quiet` was set.
    active: bool,
    stall_deadline: Duration,
    stall: Option<Pin<Box<Sleep>>>,
    /// Bytes received and sent since `stall` was set.
    moved: u64,
    /// The client owed nothing for a moment since `stall` was set.
    calm: bool,
    /// Deadlines that passed without a byte.
    silent: u32,
    /// Ends when the client's limits are to be asked again.
    pause: Option<Pin<Box<Sleep>>>,
    /// The limits hold the next request back.
    paced: bool,
    /// No more requests are taken: another process goes on.
    leaving: bool,
    watch: Option<Watch>,
    /// When the client was seen to have closed its side while it is held back.
    side_closed: Option<Instant>,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// A connection behind its negotiation, or behind its time at another process: there is this
    /// left of it.
    pub(super) fn new(
        stream: &'a mut S,
        terms: Terms,
        stall_deadline: Duration,
        share: &'a Share,
        rest: Rest,
    ) -> Self {
        let mut engine = Engine::new(terms);
        engine.replies.push(&rest.unsent);
        Self {
            stream,
            input: Input::new(&rest.received),
            engine,
            receiving: match rest.skip {
                0 => Receiving::Header,
                left => Receiving::Skip { left },
            },
            share,
            end: None,
            quiet: None,
            active: false,
            stall_deadline,
            stall: None,
            moved: 0,
            calm: false,
            silent: 0,
            pause: None,
            paced: false,
            leaving: false,
            watch: None,
            side_closed: None,
        }
    }

    /// Has it notice by `watch` that its client has left while its limits hold it back, when
    /// nothing is received.
    pub(super) fn notice(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    /// From now on new requests are refused; the connection ends when the others are answered.
    pub(super) fn stop(&mut self) {
        (self.engine.stopping, self.leaving) = (true, false);
    }

    /// From now on no request is taken; the connection ends when the device has answered those that
    /// were, so that another process can go on with it.
    pub(super) fn interrupt(&mut self) {
        self.leaving = true;
    }

    /// Runs until the connection ends. No request is in flight then, and the replies were handed
    /// to the system if the client took them.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        self.engine.timer.begin();
        let mut ended = self.turns(cx);
        if ended.is_pending() && self.is_stalled(cx) {
            self.lose(Error::unavailable("the client takes no replies: it was dropped"));
            ended = self.turns(cx);
        }
        self.share.settle(&mut self.engine.tally);
        self.engine.settle(cx);
        if ended.is_pending() {
            self.rest(cx);
        }
        ended
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        for _ in 0..TURNS {
            let mut progress = self.engine.poll_waiting(cx);
            let before = self.engine.in_flight();
            let taken = self.take();
            progress |= self.engine.in_flight() > before; // new ones want their first poll
            match self.engine.replies.poll_send(cx, self.stream, &mut self.engine.spare) {
                Ok(sent) => {
                    self.moved += sent as u64;
                    progress |= sent > 0 && matches!(taken, Taken::Full);
                }
                Err(e) => self.lose(Error::io("sending replies", e)),
            }
            self.engine.answered();
            if let Taken::Paced(wait) = taken {
                progress |= self.pause(cx, wait);
            } else if self.paced {
                (self.paced, self.pause) = (false, None);
            }
            if self.leaving
                && self.engine.in_flight() == 0
                && let Some(rest) = self.take_rest()
            {
                return Poll::Ready(End::Interrupted(rest));
            }
            if matches!(self.receiving, Receiving::Closed) {
                self.drop_replies_nobody_reads();
                if self.engine.in_flight() == 0 && self.engine.replies.is_empty() {
                    return Poll::Ready(self.end.take().unwrap_or(End::Vanished));
                }
            } else if matches!(taken, Taken::NeedMore) {
                if self.engine.stopping
                    && self.engine.in_flight() == 0
                    && self.engine.replies.is_empty()
                {
                    return Poll::Ready(End::Stopped);
                }
                match self.receive(cx) {
                    Poll::Pending => {}
                    Poll::Ready(Ok(n)) => {
                        progress = true;
                        self.active = true;
                        self.moved += n as u64;
                        if n == 0 {
                            self.close(End::Vanished); // its replies are still delivered
                        }
                    }
                    Poll::Ready(Err(e)) => {
                        progress = true;
                        self.lose(Error::io("receiving requests", e));
                    }
                }
            }
            if !progress {
                return Poll::Pending;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Has the task woken when the client's limits may let the next request in, or may have
    /// changed; true when that is now.
    fn pause(&mut self, cx: &mut Context<'_>, wait: Duration) -> bool {
        if !std::mem::replace(&mut self.paced, true) {
            self.engine.tally.paced += 1;
        }
        if self.pause.is_none() && self.has_left() {
            self.lose(Error::unavailable("the client left while its limits held it back"));
            return true;
        }
        let pause =
            self.pause.get_or_insert_with(|| Box::pin(tokio::time::sleep(wait.min(LONGEST_PAUSE))));
        let over = pause.as_mut().poll(cx).is_ready();
        if over {
            self.pause = None;
            self.engine.timer.begin_anew();
        }
        over
    }

    /// Whether the client is gone; one that has closed its side alone still gets its answers for a
    /// while.
    fn has_left(&mut self) -> bool {
        match self.watch.as_ref().map(Watch::hangup) {
            Some(Hangup::All) => true,
            Some(Hangup::ItsSide) => {
                let since = *self.side_closed.get_or_insert_with(Instant::now);
                since.elapsed() >= self.stall_deadline
            }
            Some(Hangup::Nothing) | None => false,
        }
    }

    /// What another process has to go on with, unless the connection is at its end.
    fn take_rest(&mut self) -> Option<Rest> {
        let (mut received, mut skip) = (Vec::new(), 0);
        match std::mem::replace(&mut self.receiving, Receiving::Closed) {
            Receiving::Header => {}
            Receiving::Skip { left } => skip = left,
            Receiving::Payload { request, buffer, filled, .. } => {
                self.engine.discharge(buffer.len());
                request.put(self.engine.style(), &mut received);
                received.extend_from_slice(&buffer[..filled]);
            }
            Receiving::Closed => {
                if self.engine.replies.is_empty() {
                    return None;
                }
                match self.end {
                    Some(End::Done) => {
                        let command = command::DISCONNECT;
                        let bye = Request { flags: 0, command, cookie: 0, offset: 0, len: 0 };
                        bye.put(self.engine.style(), &mut received);
                    }
                    Some(End::Vanished) => {} // the other one will see it, too
                    _ => return None,
                }
            }
        }
        received.extend_from_slice(self.input.data());
        Some(Rest { received, unsent: self.engine.replies.take_rest(), skip })
    }

    fn close(&mut self, end: End) {
        if let Receiving::Payload { buffer, .. } = &self.receiving {
            self.engine.discharge(buffer.len());
        }
        self.receiving = Receiving::Closed;
        if self.end.is_none() {
            self.end = Some(end);
        }
    }

    /// The connection is of no use any more. What is in flight is finished all the same: it may
    /// not land after somebody else opened the export.
    fn lose(&mut self, error: Error) {
        self.close(End::Broken(error));
        self.engine.replies.clear();
    }

    fn drop_replies_nobody_reads(&mut self) {
        if matches!(self.end, Some(End::Broken(_) | End::Violation(_))) {
            self.engine.replies.clear();
        }
    }

    /// Takes every whole request that was received.
    fn take(&mut self) -> Taken {
        match self.try_take() {
            Ok(taken) => taken,
            Err(violation) => {
                self.close(End::Violation(violation));
                Taken::Closed
            }
        }
    }

    fn try_take(&mut self) -> Result<Taken> {
        loop {
            match &mut self.receiving {
                Receiving::Closed => return Ok(Taken::Closed),
                _ if self.leaving => return Ok(Taken::Left),
                Receiving::Skip { left } => {
                    let part = (*left).min(self.input.data().len() as u64);
                    self.input.consume(part as usize);
                    *left -= part;
                    if *left > 0 {
                        return Ok(Taken::NeedMore);
                    }
                    self.receiving = Receiving::Header;
                }
                Receiving::Payload { work, buffer, filled, .. } => {
                    let part = self.input.data().len().min(buffer.len() - *filled);
                    buffer[*filled..*filled + part].copy_from_slice(&self.input.data()[..part]);
                    self.input.consume(part);
                    *filled += part;
                    if *filled < buffer.len() {
                        return Ok(Taken::NeedMore);
                    }
                    let (work, buffer) = (*work, std::mem::take(buffer));
                    self.receiving = Receiving::Header;
                    self.engine.discharge(buffer.len());
                    self.engine.write_owned(work, buffer);
                }
                Receiving::Header => {
                    if self.engine.replies.unsent() >= SEND_FIRST {
                        return Ok(Taken::Full);
                    }
                    let data = self.input.data();
                    let (request, header) = match Request::parse(self.engine.style(), data)? {
                        Parsed::Complete(request, header) => (request, header),
                        Parsed::Incomplete(needed) => {
                            self.input.reserve(needed);
                            return Ok(Taken::NeedMore);
                        }
                    };
                    if let Some(wait) = self.held_back() {
                        return Ok(Taken::Paced(wait));
                    }
                    if let Some(stopped_at) = self.request(&request, header)? {
                        return Ok(stopped_at);
                    }
                    self.charge(&request);
                }
            }
        }
    }

    /// How long the client's limits hold the next request back.
    #[inline]
    fn held_back(&self) -> Option<Duration> {
        if self.engine.stopping {
            return None; // it is refused anyhow
        }
        let (pace, now) = self.share.pace(self.engine.timer.now());
        pace.wait(now)
    }

    #[inline]
    fn charge(&self, request: &Request) {
        let bytes = match request.command {
            command::READ | command::WRITE => request.len,
            _ => 0,
        };
        let (pace, now) = self.share.pace(self.engine.timer.now());
        pace.charge(now, bytes.min(self.engine.max_payload()));
    }

    /// Takes one request whose header is at the front of the input; says why when it cannot.
    #[inline]
    fn request(&mut self, request: &Request, header: usize) -> Result<Option<Taken>> {
        let payload = self.payload(request);
        if !self.engine.has_room(request, payload) {
            return Ok(Some(Taken::Full));
        }
        if request.command == command::WRITE && (payload > 0 || request.len == 0) {
            return self.write(request, header, payload);
        }
        self.input.consume(header);
        match request.command {
            command::DISCONNECT => self.close(End::Done),
            command::WRITE => {
                self.engine.reject(request, errno::EINVAL, "a write without the payload flag");
            }
            _ if payload > 0 => {
                self.engine.reject(request, errno::EINVAL, "this command takes no payload");
                self.skip(payload)?;
            }
            _ => self.engine.take(request),
        }
        Ok(None)
    }

    #[inline]
    fn write(&mut self, request: &Request, header: usize, payload: u64) -> Result<Option<Taken>> {
        let Some(work) = self.engine.admit(request) else {
            self.input.consume(header);
            self.skip(payload)?;
            return Ok(None);
        };
        let len = payload as usize; // admitted: at most `max_request`
        if let Some(whole) = self.input.data().get(header..header + len) {
            self.engine.write(work, whole);
            self.input.consume(header + len);
        } else if payload <= OWN_BUFFER {
            self.input.reserve(header + len);
            return Ok(Some(Taken::NeedMore));
        } else {
            self.input.consume(header);
            let buffer = self.engine.spare.take(len);
            self.engine.charge(len);
            self.receiving = Receiving::Payload { request: *request, work, buffer, filled: 0 };
        }
        Ok(None)
    }

    fn skip(&mut self, payload: u64) -> Result<()> {
        if payload > SKIPPED {
            return Err(Error::invalid(format!("a payload of {payload} bytes cannot be skipped")));
        }
        self.receiving = Receiving::Skip { left: payload };
        Ok(())
    }

    /// How many bytes follow the header.
    fn payload(&self, request: &Request) -> u64 {
        let announced = match self.engine.style() {
            crate::codec::ReplyStyle::Extended => request.flags & command_flags::PAYLOAD_LEN != 0,
            _ => request.command == command::WRITE,
        };
        if announced { request.len } else { 0 }
    }

    /// Receives once, straight into a payload's own buffer if there is one.
    fn receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let Receiving::Payload { buffer, filled, .. } = &mut self.receiving else {
            return self.input.poll_receive(cx, self.stream);
        };
        let mut buf = ReadBuf::new(&mut buffer[*filled..]);
        ready!(Pin::new(&mut *self.stream).poll_read(cx, &mut buf))?;
        let got = buf.filled().len();
        *filled += got;
        Poll::Ready(Ok(got))
    }

    /// Whether the client was in the way for too long. The device's time is not the client's.
    fn is_stalled(&mut self, cx: &mut Context<'_>) -> bool {
        let closed = matches!(self.receiving, Receiving::Closed);
        let owes = closed || self.engine.replies.unsent() > 0 || self.engine.holds_budget();
        let owes = owes && self.engine.in_flight() == 0;
        if !owes {
            (self.calm, self.silent) = (true, 0);
            if self.stall.is_none() {
                return false;
            }
        }
        let stall = self.stall.get_or_insert_with(|| {
            (self.calm, self.silent, self.moved) = (false, 0, 0);
            Box::pin(tokio::time::sleep(self.stall_deadline))
        });
        while stall.as_mut().poll(cx).is_ready() {
            if !owes {
                self.stall = None;
                return false;
            }
            if !std::mem::take(&mut self.calm) {
                self.silent = if self.moved == 0 { self.silent + 1 } else { 0 };
                let slow = self.moved < PACE && (closed || self.engine.is_in_the_way());
                if slow || self.silent >= PATIENCE {
                    return true;
                }
            }
            self.moved = 0;
            stall.as_mut().reset(Instant::now() + self.stall_deadline);
        }
        false
    }

    /// Gives memory back after a while of quiet.
    fn rest(&mut self, cx: &mut Context<'_>) {
        let grown =
            self.input.is_grown() || self.engine.replies.is_grown() || self.engine.spare.is_grown();
        if !grown {
            self.quiet = None;
            return;
        }
        loop {
            let quiet = self.quiet.get_or_insert_with(|| {
                self.active = false;
                Box::pin(tokio::time::sleep(QUIET))
            });
            if quiet.as_mut().poll(cx).is_pending() {
                return;
            }
            if !std::mem::take(&mut self.active) {
                self.input.shrink();
                self.engine.replies.shrink();
                self.engine.spare.shrink();
                self.quiet = None;
                return;
            }
            quiet.as_mut().reset(Instant::now() + QUIET);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::ReplyStyle;
    use crate::server::budget::Budget;
    use crate::server::counters::Registry;
    use crate::server::pace::Rates;
    use std::sync::Arc;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_falls_quiet_gives_its_buffers_back() {
        let (mut client, mut stream) = tokio::io::duplex(1 << 20);
        let terms = Terms {
            device: Arc::new(block::Memory::new(1 << 20)),
            export: "disk".to_owned(),
            style: ReplyStyle::Simple,
            allocation: false,
            max_request: 32 << 20,
            in_flight_bytes: 16 << 20,
            budget: Budget::new(1 << 30),
            meter: Arc::default(),
            observer: None,
        };
        let share = Registry::new(Rates::default()).join("disk", "client");
        let mut connection =
            Connection::new(&mut stream, terms, Duration::from_secs(30), &share, Rest::default());
        let mut out = Vec::new();
        for i in 0..3000 {
            let request =
                Request { flags: 0, command: command::READ, cookie: i, offset: 0, len: 200 };
            request.put(ReplyStyle::Simple, &mut out);
        }
        client.write_all(&out).await.unwrap();
        let mut replies = vec![0; 3000 * 216];
        for (time, grown) in [(1, true), (3, true), (2, false)] {
            let poll = std::future::poll_fn(|cx| connection.poll(cx));
            assert!(tokio::time::timeout(Duration::from_secs(time), poll).await.is_err());
            assert_eq!(connection.input.is_grown(), grown);
            assert_eq!(connection.engine.replies.is_grown(), grown);
        }
        client.read_exact(&mut replies).await.unwrap();
        assert_eq!(replies[2999 * 216 + 8..2999 * 216 + 16], 2999u64.to_be_bytes());
    }
}
