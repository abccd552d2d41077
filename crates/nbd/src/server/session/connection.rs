//! The request loop of one connection.
//!
//! One task, and no other per request. Every turn: take the answers that became ready, try every
//! whole request in the receive buffer at once, hand all replies to the system in one call, receive
//! all that is there. What the device cannot answer on the spot waits beside and is answered out of
//! order. When too much is held for the client, its requests stay unread: a client that does not
//! take its replies stops itself, and costs no more than its limit.
//!
//! After the answer of a single request the task polls for the next one before it sleeps, for as long as its
//! client's waits of late suggest. Where connections are ready at a time, those go first that
//! usually have little to do.

mod deadlines;
mod polling;
mod supersession;

#[cfg(test)]
mod tests;

use super::checked::CheckedRequest;
use super::engine::{Engine, EngineSetup};
use super::input::ReceiveBuffer;
use super::remainder::ConnectionRemainder;
use crate::codec::constants::{command, command_flags, errno};
use crate::codec::names::command_name;
use crate::codec::request::RequestHeader;
use crate::codec::{Parsed, ReplyStyle};
use crate::server::counters::registry::Share;
use crate::server::schedule::busy_poll::{BusyPoll, Processors, Waits};
use crate::server::schedule::lone_receiver::LoneReceiver;
use crate::server::schedule::order::TurnOrder;
use crate::server::sockets::stream::{Hangup, Watch};
use block::{Error, Result};
use futures::future::BoxFuture;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use supersession::Supersession;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// Unsent bytes at which sending comes before taking more requests.
const SEND_FIRST: usize = 128 << 10;
/// Payloads longer than this get their own buffer, unless they are received whole already.
const OWN_BUFFER: u64 = 64 << 10;
/// The longest payload of a bad request that is skipped; a longer one ends the connection.
const SKIPPED: u64 = u32::MAX as u64;

/// Turns of a busy connection before others get theirs.
const TURNS: usize = 16;
/// Work of a busy connection before others get theirs: requests, and 4 KiB that they read or write; a
/// block status or read-ahead more when it was answered.
const WORK: u64 = 128;
/// How long a connection may answer and poll for more before the runtime has to be asked whether there
/// is anything else.
const ATTENTION: Duration = Duration::from_micros(200);

/// How a connection ended.
#[derive(Debug)]
pub(super) enum ConnectionEnd {
    /// The client said that it is done.
    Done,
    /// The client closed the connection without saying so.
    Vanished,
    /// The client attached anew: what was not answered here is dropped.
    Replaced,
    /// The server stops.
    Stopped,
    /// It is to go on elsewhere, with what is neither taken nor sent.
    Interrupted(ConnectionRemainder),
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
    Payload { request: RequestHeader, work: CheckedRequest, buffer: Vec<u8>, filled: usize },
    /// Nothing more is taken.
    Closed,
}

/// Why the requests received so far were not all taken.
enum ReceiveStop {
    /// They were: the rest is not a whole request.
    NeedMore,
    /// Replies have to go out, or requests in flight to end, first.
    Full,
    /// The client's limits hold the next one back for so long.
    Paced(Duration),
    /// Older connections have to settle first.
    Held,
    /// They are for another process to take.
    Left,
    /// None will be.
    Closed,
}

pub(super) struct Connection<'a, S> {
    stream: &'a mut S,
    input: ReceiveBuffer,
    engine: Engine,
    receiving: Receiving,
    share: &'a Share,
    end: Option<ConnectionEnd>,
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
    /// Ready when the older connections that this one follows have settled.
    older: Option<BoxFuture<'static, ()>>,
    /// Whether a newer one follows this one.
    supersession: Supersession,
    /// There was nothing more to receive.
    drained: bool,
    /// When the client was seen to have closed its side while it is held back.
    side_closed: Option<Instant>,
    order: TurnOrder,
    receiver: LoneReceiver,
    /// Requests that were taken since something was received.
    taken: u32,
    /// Work that was taken since the connection was polled.
    work: u64,
    waits: Waits,
    processors: Option<(&'a Processors, BusyPoll)>,
    /// When the connection was polled.
    polled: Instant,
    /// When the answer of a single request was sent, until the next one comes.
    answered: Option<Instant>,
    /// And it was sent just now.
    fresh: bool,
}

impl<'a, S: AsyncRead + AsyncWrite + Unpin> Connection<'a, S> {
    /// A connection behind its negotiation, or behind its time at another process: there is this
    /// left of it.
    pub(super) fn new(
        stream: &'a mut S,
        terms: EngineSetup,
        stall_deadline: Duration,
        share: &'a Share,
        rest: ConnectionRemainder,
        order: TurnOrder,
    ) -> Self {
        let mut engine = Engine::new(terms);
        engine.owe(&rest.unsent);
        Self {
            stream,
            input: ReceiveBuffer::new(&rest.received),
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
            older: None,
            supersession: Supersession::None,
            drained: false,
            side_closed: None,
            order,
            receiver: LoneReceiver::new(),
            taken: 0,
            work: 0,
            waits: Waits::new(Duration::ZERO),
            processors: None,
            polled: Instant::now(),
            answered: None,
            fresh: false,
        }
    }

    /// Has it notice by `watch` that its client has left while its limits hold it back, when
    /// nothing is received.
    pub(super) fn notice(&mut self, watch: Option<Watch>) {
        self.watch = watch;
    }

    /// Has it take no request before `older` is ready.
    pub(super) fn follow(&mut self, older: Option<BoxFuture<'static, ()>>) {
        self.older = older;
    }

    fn is_held(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(older) = &mut self.older else { return false };
        let held = older.as_mut().poll(cx).is_pending();
        if !held {
            self.older = None;
        }
        held
    }

    /// Has it poll for the next request before it sleeps, when it may, on one of these.
    pub(super) fn set_busy_poll(&mut self, when: BusyPoll, processors: &'a Processors) {
        (self.waits, self.processors) = (Waits::new(when.most()), Some((processors, when)));
    }

    /// From now on no request is taken; the connection ends when those that were are answered. The others stay unread:
    /// to Linux's driver every error is a request's last word, while after a lost connection it sends again what was
    /// not answered, as every client does that connects again.
    pub(super) fn stop(&mut self) {
        self.leaving = false;
        self.close(ConnectionEnd::Stopped);
    }

    /// From now on no request is taken; the connection ends when the device has answered those that
    /// were, so that another process can go on with it.
    pub(super) fn interrupt(&mut self) {
        self.leaving = true;
    }

    /// Runs until the connection ends. No request is in flight then, and the replies were handed
    /// to the system if the client took them.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let waker = self.order.waker(cx);
        if self.order.steps_aside() {
            return Poll::Pending;
        }
        let cx = &mut Context::from_waker(&waker);
        self.engine.timer.begin();
        (self.polled, self.work) = (self.engine.timer.now(), 0);
        let mut ended = self.turns(cx);
        if ended.is_pending() && self.is_stalled(cx) {
            self.lose(Error::unavailable("the client takes no replies: it was dropped"));
            ended = self.turns(cx);
        }
        if ended.is_pending() {
            self.settle(cx);
        }
        self.order.worked(self.work);
        self.share.settle(&mut self.engine.tally);
        self.engine.settle(cx);
        if ended.is_pending() {
            self.rest(cx);
        }
        ended
    }

    fn turns(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        for _ in 0..TURNS {
            let waited = self.engine.poll_waiting(cx);
            self.work += waited.unwrap_or(0);
            let mut progress = waited.is_some();
            let before = self.engine.in_flight();
            self.drained = false;
            self.cut_off_who_goes_on_elsewhere();
            self.drop_what_a_lost_client_left();
            let taken = if self.is_held(cx) { ReceiveStop::Held } else { self.take() };
            progress |= self.engine.in_flight() > before; // new ones want their first poll
            match self.engine.replies.poll_send(cx, self.stream, &mut self.engine.spare) {
                Ok(sent) => {
                    self.moved += sent as u64;
                    progress |= sent > 0 && matches!(taken, ReceiveStop::Full);
                    if sent > 0 {
                        self.note_sent_while_asked();
                    }
                }
                Err(e) => self.lose(Error::io("sending replies", e)),
            }
            self.engine.answered();
            self.note_answered();
            if let ReceiveStop::Paced(wait) = taken {
                progress |= self.pause(cx, wait);
            } else if self.paced {
                (self.paced, self.pause) = (false, None);
            }
            if self.leaving
                && self.engine.in_flight() == 0
                && let Some(rest) = self.take_rest()
            {
                return Poll::Ready(ConnectionEnd::Interrupted(rest));
            }
            if matches!(self.receiving, Receiving::Closed) {
                self.drop_answers_nobody_takes();
                if self.engine.in_flight() == 0 && self.engine.replies.is_empty() {
                    return Poll::Ready(self.end.take().unwrap_or(ConnectionEnd::Vanished));
                }
            } else if matches!(taken, ReceiveStop::NeedMore) {
                if self.busy_polls() && self.polled.elapsed() >= ATTENTION {
                    polling::yield_now(cx);
                    return Poll::Pending;
                }
                match self.receive_or_poll(cx) {
                    Poll::Pending => self.drained = true,
                    Poll::Ready(Ok(n)) => {
                        progress = true;
                        self.active = true;
                        self.moved += n as u64;
                        self.note_received_while_asked();
                        if n == 0 {
                            self.close(ConnectionEnd::Vanished); // its replies are still delivered
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
            if self.work >= WORK {
                break;
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// What another process has to go on with, unless the connection is at its end.
    fn take_rest(&mut self) -> Option<ConnectionRemainder> {
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
                    Some(ConnectionEnd::Done) => {
                        let command = command::DISCONNECT;
                        let bye = RequestHeader { flags: 0, command, cookie: 0, offset: 0, len: 0 };
                        bye.put(self.engine.style(), &mut received);
                    }
                    Some(ConnectionEnd::Vanished) => {} // the other one will see it, too
                    _ => return None,
                }
            }
        }
        received.extend_from_slice(self.input.data());
        Some(ConnectionRemainder { received, unsent: self.engine.replies.take_rest(), skip })
    }

    fn close(&mut self, end: ConnectionEnd) {
        if let Receiving::Payload { buffer, .. } = &self.receiving {
            self.engine.discharge(buffer.len());
        }
        self.receiving = Receiving::Closed;
        if self.end.is_none() {
            self.end = Some(end);
        }
    }

    /// A client whose request was not answered, as another server has its export now, does not wait for that.
    fn cut_off_who_goes_on_elsewhere(&mut self) {
        if self.engine.is_elsewhere && !matches!(self.receiving, Receiving::Closed) {
            self.lose(Error::fenced("another server has the export: its client is to look there"));
        }
    }

    /// The connection is of no use any more. What changes something is finished all the same: it may
    /// not land after somebody else opened the export.
    fn lose(&mut self, error: Error) {
        self.close(ConnectionEnd::Broken(error));
        self.drop_answers();
    }

    /// Nobody takes answers any more.
    fn drop_answers(&mut self) {
        self.engine.replies.clear();
        self.engine.abandon_reads();
    }

    fn drop_answers_nobody_takes(&mut self) {
        let is_bad =
            matches!(self.end, Some(ConnectionEnd::Broken(_) | ConnectionEnd::Violation(_)));
        if is_bad || self.engine.in_flight() > 0 && self.is_gone() {
            self.drop_answers();
        }
    }

    /// Whether the client has closed both directions.
    fn is_gone(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.hangup() == Hangup::All)
    }

    /// Takes every whole request that was received.
    fn take(&mut self) -> ReceiveStop {
        match self.try_take() {
            Ok(taken) => taken,
            Err(violation) => {
                self.close(ConnectionEnd::Violation(violation));
                ReceiveStop::Closed
            }
        }
    }

    fn try_take(&mut self) -> Result<ReceiveStop> {
        loop {
            match &mut self.receiving {
                Receiving::Closed => return Ok(ReceiveStop::Closed),
                _ if self.leaving => return Ok(ReceiveStop::Left),
                Receiving::Skip { left } => {
                    let part = (*left).min(self.input.data().len() as u64);
                    self.input.consume(part as usize);
                    *left -= part;
                    if *left > 0 {
                        return Ok(ReceiveStop::NeedMore);
                    }
                    self.receiving = Receiving::Header;
                }
                Receiving::Payload { work, buffer, filled, .. } => {
                    let part = self.input.data().len().min(buffer.len() - *filled);
                    buffer[*filled..*filled + part].copy_from_slice(&self.input.data()[..part]);
                    self.input.consume(part);
                    *filled += part;
                    if *filled < buffer.len() {
                        return Ok(ReceiveStop::NeedMore);
                    }
                    let (work, buffer) = (*work, std::mem::take(buffer));
                    self.receiving = Receiving::Header;
                    self.engine.discharge(buffer.len());
                    self.engine.write_owned(work, buffer);
                }
                Receiving::Header => {
                    if self.engine.replies.unsent() >= SEND_FIRST {
                        return Ok(ReceiveStop::Full);
                    }
                    let data = self.input.data();
                    let (request, header) = match RequestHeader::parse(self.engine.style(), data)? {
                        Parsed::Complete(request, header) => (request, header),
                        Parsed::Incomplete(needed) => {
                            self.input.reserve(needed);
                            return Ok(ReceiveStop::NeedMore);
                        }
                    };
                    if let Some(wait) = self.held_back() {
                        return Ok(ReceiveStop::Paced(wait));
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
        let (pace, now) = self.share.pace(self.engine.timer.now());
        pace.wait(now)
    }

    #[inline]
    fn charge(&mut self, request: &RequestHeader) {
        let bytes = match request.command {
            command::READ | command::WRITE => request.len,
            _ => 0,
        };
        let bytes = bytes.min(self.engine.max_payload());
        self.taken = self.taken.saturating_add(1);
        self.work += 1 + bytes / 4096;
        let (pace, now) = self.share.pace(self.engine.timer.now());
        pace.charge(now, bytes);
    }

    /// Takes one request whose header is at the front of the input; says why when it cannot.
    #[inline]
    fn request(&mut self, request: &RequestHeader, header: usize) -> Result<Option<ReceiveStop>> {
        let payload = self.payload(request);
        if !self.engine.has_room(request, payload) {
            return Ok(Some(ReceiveStop::Full));
        }
        if request.command == command::WRITE {
            return self.write(request, header, payload);
        }
        self.input.consume(header);
        match request.command {
            command::DISCONNECT => self.close(ConnectionEnd::Done),
            _ if payload > 0 => {
                let why = format!(
                    "{} takes no payload, and PAYLOAD_LEN announces one",
                    command_name(request.command)
                );
                self.engine.reject(request, errno::EINVAL, why);
                self.skip(request, payload)?;
            }
            _ => self.engine.take(request),
        }
        Ok(None)
    }

    #[inline]
    fn write(
        &mut self,
        request: &RequestHeader,
        header: usize,
        payload: u64,
    ) -> Result<Option<ReceiveStop>> {
        let Some(work) = self.engine.admit(request) else {
            self.input.consume(header);
            self.skip(request, payload)?;
            return Ok(None);
        };
        let len = payload as usize; // admitted: at most `max_request`
        if let Some(whole) = self.input.data().get(header..header + len) {
            self.engine.write(work, whole);
            self.input.consume(header + len);
        } else if payload <= OWN_BUFFER {
            self.input.reserve(header + len);
            return Ok(Some(ReceiveStop::NeedMore));
        } else {
            self.input.consume(header);
            let buffer = self.engine.spare.take(len);
            self.engine.charge(len);
            self.receiving = Receiving::Payload { request: *request, work, buffer, filled: 0 };
        }
        Ok(None)
    }

    fn skip(&mut self, request: &RequestHeader, payload: u64) -> Result<()> {
        if payload > SKIPPED {
            return Err(Error::invalid(format!(
                "a refused {} has a payload of {payload} bytes, too long to be skipped",
                command_name(request.command)
            )));
        }
        self.receiving = Receiving::Skip { left: payload };
        Ok(())
    }

    /// How many bytes follow the header: those of a write always, whether or not it says so (QEMU
    /// never sets `PAYLOAD_LEN`), and of another command those that an extended header announces.
    fn payload(&self, request: &RequestHeader) -> u64 {
        let announces = request.flags & command_flags::PAYLOAD_LEN != 0
            && self.engine.style() == ReplyStyle::Extended;
        if request.command == command::WRITE || announces { request.len } else { 0 }
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
}
