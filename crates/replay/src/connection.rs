//! The clients of one connection: what they send when, and what becomes of it.
//!
//! One task carries the connection. Whenever it is woken it takes all replies that are there, sends
//! everything that is due in one go, and sleeps until the next reply or the next due time.

use crate::pattern;
use crate::plan::Pace;
use crate::replies::{Replies, ReplySink};
use crate::script::ScriptStep;
use crate::shared::ReplayState;
use crate::verify::Expected;
use block::{Error, Result};
use nbd::codec::ReplyStyle;
use nbd::codec::constants::{command, command_flags, export_flags};
use nbd::codec::request::RequestHeader;
use nbd::{Address, Stream, Terms};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use trace::Op;

/// Nothing more is sent while so many bytes wait for the server to take them.
const MOST_OUT: usize = 256 << 10;
/// Receives in a row before what is due is sent.
const RECEIVES: u32 = 8;
/// Pauses between attempts to connect to a server whose queue is full.
const PAUSE: Duration = Duration::from_millis(5);

/// A client on its way through its part of the script.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number among all clients, from 0.
    client: u32,
    part: usize,
    next: usize,
    under_way: u32,
    /// The time that its script's time 0 is, in nanoseconds since the start.
    base: u64,
    /// When it may send its next request, for the client's part: it waits for no answer.
    free: u64,
    /// Whether it stands in the queue of due times.
    queued: bool,
    /// Requests left out in a row because the export does not offer them.
    skipped: usize,
    expected: Expected,
}

/// A request under way.
#[derive(Debug)]
struct RequestSlot {
    /// The cookie; 0 marks a free slot.
    cookie: u64,
    lane: usize,
    op: Op,
    offset: u64,
    length: u32,
    sent: u64,
    /// Bytes of a read's data that came.
    got: u64,
    error: u32,
    text: String,
    /// A read's data, when it is verified.
    data: Vec<u8>,
    moment: u64,
}

/// The requests under way of a connection, and its clients.
struct RequestTable {
    shared: Arc<ReplayState>,
    lanes: Vec<Lane>,
    /// Clients that may send, by the time when their next request is due.
    due: BinaryHeap<Reverse<(u64, usize)>>,
    slots: Vec<RequestSlot>,
    free: Vec<usize>,
    under_way: usize,
    /// Requests sent: the upper part of cookies, and the stamp of writes.
    count: u64,
    /// Now, in nanoseconds since the start.
    now: u64,
    export: String,
}

/// A connection.
pub(crate) struct Connection {
    stream: Box<dyn Stream>,
    pub(crate) terms: Terms,
    replies: Replies,
    table: RequestTable,
    number: usize,
    out: Vec<u8>,
    /// How much of `out` was taken by the server.
    taken: usize,
    /// Encryption may still hold back what was taken.
    unflushed: bool,
}

/// Connects to `export` of the plan's server.
///
/// # Errors
/// [`Unavailable`](block::ErrorKind::Unavailable) when the server cannot be reached in the time
/// that the plan gives, and its refusals.
pub(crate) async fn open(shared: &ReplayState, export: &str) -> Result<(Box<dyn Stream>, Terms)> {
    let uri = shared.plan.target.with_export(export);
    let attempt = async {
        let stream = loop {
            match dial(&uri.address).await {
                Ok(stream) => break stream,
                // A server that takes connections more slowly than they come.
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    tokio::time::sleep(PAUSE).await;
                }
                Err(e) => {
                    return Err(Error::unavailable(format!(
                        "cannot connect: {e}: check that the server runs"
                    ))
                    .with_source(e));
                }
            }
        };
        nbd::negotiate(stream, &uri, &shared.plan.options).await
    };
    match tokio::time::timeout(shared.plan.options.connect, attempt).await {
        Ok(result) => result.map_err(|e| e.context(&uri)),
        Err(_) => Err(Error::unavailable(format!(
            "{uri}: no answer in {:?}: check that the server runs and takes so many connections",
            shared.plan.options.connect
        ))),
    }
}

async fn dial(address: &Address) -> std::io::Result<Box<dyn Stream>> {
    Ok(match address {
        Address::Unix(path) => Box::new(UnixStream::connect(path).await?),
        Address::Tcp(host, port) => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Box::new(stream)
        }
    })
}

impl Connection {
    /// A connection that carries these clients.
    ///
    /// # Errors
    /// When the export does not fit the script.
    pub(crate) fn new(
        shared: &Arc<ReplayState>,
        number: usize,
        export: String,
        clients: &[u32],
        (stream, terms): (Box<dyn Stream>, Terms),
    ) -> Result<Self> {
        let lanes: Vec<Lane> = clients
            .iter()
            .map(|client| Lane {
                client: *client,
                part: shared.plan.part(*client, &shared.script),
                next: 0,
                under_way: 0,
                base: shared.plan.begin(*client),
                free: 0,
                queued: false,
                skipped: 0,
                expected: Expected::default(),
            })
            .collect();
        for lane in &lanes {
            let part = &shared.script.parts[lane.part];
            if part.end > terms.size && !(shared.plan.wrap && terms.size > 0) {
                return Err(Error::invalid(format!(
                    "export {export:?} has {} bytes, but the trace goes up to {}: use a larger \
                     export, or --wrap to move what is beyond into it",
                    terms.size, part.end
                )));
            }
            let longest = u64::from(terms.limits.maximum).min(terms.size);
            if u64::from(part.longest) > longest {
                return Err(Error::unsupported(format!(
                    "export {export:?} takes requests of {longest} bytes, but the trace has one \
                     of {}: leave it out with `sojourn trace cut`",
                    part.longest
                )));
            }
            if part.changes && terms.has(export_flags::READ_ONLY) {
                return Err(Error::denied(format!(
                    "export {export:?} is read-only, but the trace writes: use --reads-only"
                )));
            }
        }
        let mut table = RequestTable {
            shared: Arc::clone(shared),
            lanes,
            due: BinaryHeap::new(),
            slots: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            count: 0,
            now: 0,
            export,
        };
        (0..table.lanes.len()).for_each(|lane| table.queue(lane));
        let replies = Replies::new(terms.style);
        let (out, taken, unflushed) = (Vec::new(), 0, false);
        Ok(Self { stream, terms, replies, table, number, out, taken, unflushed })
    }

    /// Replays, until every client has done all and has its answers.
    ///
    /// # Errors
    /// When the connection is lost, or the server breaks the protocol.
    pub(crate) async fn drive(mut self) -> Result<()> {
        let result = std::future::poll_fn(|context| self.poll(context)).await;
        result.map_err(|e| e.context(format!("export {:?}", self.table.export)))?;
        self.table.shared.left.fetch_add(self.table.left(), Ordering::Relaxed);
        // Ends the session cleanly; a server that is gone already needs no goodbye.
        self.out.clear();
        let goodbye =
            RequestHeader { flags: 0, command: command::DISCONNECT, cookie: 0, offset: 0, len: 0 };
        goodbye.put(self.terms.style, &mut self.out);
        use tokio::io::AsyncWriteExt;
        let _ = self.stream.write_all(&self.out).await;
        let _ = self.stream.shutdown().await;
        Ok(())
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        loop {
            self.table.tick();
            let mut buffer = self.table.shared.take_buffer();
            let received = self.receive(context, &mut buffer);
            self.table.shared.give_buffer(buffer);
            let more = received?;
            self.send(context)?;
            if self.table.under_way == 0 && self.table.due.is_empty() {
                return Poll::Ready(Ok(()));
            }
            if let Some(Reverse((due, _))) = self.table.due.peek()
                && self.out.is_empty()
            {
                let at = self.table.shared.start() + Duration::from_nanos(*due);
                self.table.shared.timer.wake_at(self.number, at, context.waker())?;
            }
            if !more {
                return Poll::Pending;
            }
        }
    }

    /// Takes replies; whether there may be more.
    fn receive(&mut self, context: &mut Context<'_>, buffer: &mut [u8]) -> Result<bool> {
        for _ in 0..RECEIVES {
            let mut into = ReadBuf::new(buffer);
            match Pin::new(&mut self.stream).poll_read(context, &mut into) {
                Poll::Pending => return Ok(false),
                Poll::Ready(Err(e)) => return Err(Error::io("receiving replies", e)),
                Poll::Ready(Ok(())) if into.filled().is_empty() => {
                    return Err(Error::unavailable("the server closed the connection"));
                }
                Poll::Ready(Ok(())) => {
                    self.table.tick();
                    self.replies.take(into.filled(), &mut self.table)?;
                }
            }
        }
        Ok(true)
    }

    /// Sends what is due, as far as the server takes it.
    fn send(&mut self, context: &mut Context<'_>) -> Result<()> {
        loop {
            while self.out.len() - self.taken < MOST_OUT
                && let Some((lane, due)) = self.table.next_due()
            {
                self.launch(lane, due);
            }
            if self.out.len() == self.taken && !self.unflushed {
                return Ok(());
            }
            match self.flush(context) {
                Poll::Pending => return Ok(()),
                Poll::Ready(result) => result?,
            }
        }
    }

    fn flush(&mut self, context: &mut Context<'_>) -> Poll<Result<()>> {
        while self.taken < self.out.len() {
            let rest = &self.out[self.taken..];
            let count = ready!(Pin::new(&mut self.stream).poll_write(context, rest))
                .map_err(|e| Error::io("sending requests", e))?;
            if count == 0 {
                return Poll::Ready(Err(Error::unavailable("the server takes no more requests")));
            }
            self.taken += count;
            self.unflushed = true;
        }
        self.out.clear();
        self.out.shrink_to(64 << 10);
        self.taken = 0;
        ready!(Pin::new(&mut self.stream).poll_flush(context))
            .map_err(|e| Error::io("sending requests", e))?;
        self.unflushed = false;
        Poll::Ready(Ok(()))
    }

    /// Puts a client's next request into what is sent.
    fn launch(&mut self, lane: usize, due: u64) {
        let step = self.table.step(lane);
        let Some((command, mut flags)) = self.command(step) else {
            self.table.skip(lane);
            return;
        };
        let (offset, length) = self.place(step);
        if step.op == Op::Write && self.terms.style == ReplyStyle::Extended {
            flags |= command_flags::PAYLOAD_LEN;
        }
        let (cookie, stamp) = self.table.launch(lane, due, step.op, offset, length);
        let request = RequestHeader { flags, command, cookie, offset, len: u64::from(length) };
        request.put(self.terms.style, &mut self.out);
        if step.op == Op::Write {
            let from = self.out.len();
            self.out.resize(from + length as usize, 0);
            pattern::fill(&mut self.out[from..], offset, stamp);
        }
    }

    /// The command and its flags; `None` when the export does not offer it.
    fn command(&self, step: ScriptStep) -> Option<(u16, u16)> {
        let (command, needed) = match step.op {
            Op::Read => (command::READ, 0),
            Op::Write => (command::WRITE, 0),
            Op::Flush => (command::FLUSH, export_flags::SEND_FLUSH),
            Op::Trim => (command::TRIM, export_flags::SEND_TRIM),
            Op::Zero => (command::WRITE_ZEROES, export_flags::SEND_WRITE_ZEROES),
        };
        let durable = step.durable
            && matches!(step.op, Op::Write | Op::Trim | Op::Zero)
            && self.terms.has(export_flags::SEND_FUA);
        let flags = if durable { command_flags::FUA } else { 0 };
        (self.terms.flags & needed == needed).then_some((command, flags))
    }

    /// Where a request goes: moved into the export, and rounded outwards to what it takes.
    fn place(&self, step: ScriptStep) -> (u64, u32) {
        if step.op == Op::Flush {
            return (0, 0);
        }
        let (size, grain) = (self.terms.size, u64::from(self.terms.limits.minimum));
        let length = u64::from(step.length).min(size);
        let mut offset = step.offset;
        if offset.saturating_add(length) > size {
            // Keep the alignment, up to a block.
            let aligned = 1u64 << offset.trailing_zeros().min(12);
            offset = offset % (size - length + 1) / aligned * aligned;
        }
        let from = offset / grain * grain;
        let to = (offset + length).next_multiple_of(grain).min(size);
        (from, (to - from) as u32)
    }
}

impl RequestTable {
    /// Looks at the clock.
    fn tick(&mut self) {
        self.now = (Instant::now() - self.shared.start()).as_nanos() as u64;
    }

    /// Puts a client that may send into the queue of due times, if it has anything left to do.
    fn queue(&mut self, at: usize) {
        let (plan, script) = (&self.shared.plan, &self.shared.script);
        let lane = &mut self.lanes[at];
        if lane.queued || lane.under_way >= plan.depth {
            return;
        }
        let steps = &script.parts[lane.part].steps;
        if lane.next == steps.len() && plan.repeat {
            lane.next = 0;
            if let Pace::Times(speed) = plan.pace {
                // A trace without duration would begin again at the same time for ever.
                let round = ((script.duration as f64 / speed) as u64).max(1000);
                lane.base = lane.base.saturating_add(round);
            }
        }
        let Some(step) = steps.get(lane.next) else { return };
        let due = match plan.pace {
            Pace::Fast => lane.base,
            Pace::Times(speed) => lane.base.saturating_add((step.time as f64 / speed) as u64),
        };
        let over = plan.until.is_some_and(|until| due.max(self.now) >= until.as_nanos() as u64);
        if over || self.shared.stopping.load(Ordering::Relaxed) {
            return;
        }
        lane.queued = true;
        self.due.push(Reverse((due, at)));
    }

    /// The client whose request is due and was due longest, and since when.
    fn next_due(&mut self) -> Option<(usize, u64)> {
        if self.shared.stopping.load(Ordering::Relaxed) {
            self.due.clear();
            return None;
        }
        let Reverse((due, lane)) = *self.due.peek()?;
        if due > self.now {
            return None;
        }
        self.due.pop();
        self.lanes[lane].queued = false;
        Some((lane, due))
    }

    fn step(&self, lane: usize) -> ScriptStep {
        let lane = &self.lanes[lane];
        self.shared.script.parts[lane.part].steps[lane.next]
    }

    /// Leaves out a client's next request.
    fn skip(&mut self, at: usize) {
        self.shared.tally().unsupported += 1;
        let lane = &mut self.lanes[at];
        lane.next += 1;
        lane.skipped += 1;
        // A script of nothing else must not go round for ever.
        if lane.skipped < self.shared.script.parts[lane.part].steps.len() {
            self.queue(at);
        }
    }

    /// Notes a client's next request as sent; gives its cookie and the stamp of its content.
    fn launch(&mut self, at: usize, due: u64, op: Op, offset: u64, length: u32) -> (u64, u64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(RequestSlot {
                cookie: 0,
                lane: 0,
                op,
                offset: 0,
                length: 0,
                sent: 0,
                got: 0,
                error: 0,
                text: String::new(),
                data: Vec::new(),
                moment: 0,
            });
            self.slots.len() - 1
        });
        self.count += 1;
        self.under_way += 1;
        let cookie = self.count << 20 | slot as u64;
        let verify = self.shared.plan.verify;
        let lane = &mut self.lanes[at];
        let stamp = u64::from(lane.client) << 40 | self.count;
        lane.next += 1;
        lane.skipped = 0;
        lane.under_way += 1;
        let request = &mut self.slots[slot];
        (request.cookie, request.lane, request.op) = (cookie, at, op);
        (request.offset, request.length, request.sent) = (offset, length, self.now);
        (request.got, request.error) = (0, 0);
        if verify {
            match op {
                Op::Read => {
                    request.data = vec![0; length as usize];
                    request.moment = lane.expected.moment();
                }
                Op::Write => lane.expected.begin(offset, length as usize, Some(stamp)),
                Op::Trim | Op::Zero => lane.expected.begin(offset, length as usize, None),
                Op::Flush => {}
            }
        }
        let mut tally = self.shared.tally();
        tally.sent += 1;
        if self.now >= self.shared.plan.warm_up.as_nanos() as u64 {
            let free = lane.free.max(due);
            tally.late.record(self.now.saturating_sub(due));
            tally.own.record(self.now.saturating_sub(free));
        }
        drop(tally);
        self.queue(at);
        (cookie, stamp)
    }

    fn slot(&self, cookie: u64) -> Result<usize> {
        let slot = (cookie & 0xf_ffff) as usize;
        match self.slots.get(slot) {
            Some(request) if request.cookie == cookie => Ok(slot),
            _ => Err(Error::invalid("the server answered a request that was not made")),
        }
    }

    /// A part of a read's data came.
    fn cover(&mut self, cookie: u64, offset: u64, length: u64) -> Result<(usize, usize)> {
        let slot = self.slot(cookie)?;
        let request = &mut self.slots[slot];
        let from = offset.checked_sub(request.offset);
        let inside = from.is_some_and(|from| {
            from.checked_add(length).is_some_and(|end| end <= u64::from(request.length))
        });
        request.got = request.got.saturating_add(length);
        if request.op != Op::Read || !inside || request.got > u64::from(request.length) {
            return Err(Error::invalid("the server sent data outside of the request"));
        }
        Ok((slot, from.unwrap_or(0) as usize))
    }

    /// Clients that have not done everything: a replay that was cut short.
    fn left(&self) -> u64 {
        let parts = &self.shared.script.parts;
        self.lanes.iter().filter(|lane| lane.next < parts[lane.part].steps.len()).count() as u64
    }

    /// Checks what a read got and notes what a change did.
    fn verify(&mut self, slot: usize) {
        let request = &mut self.slots[slot];
        let done = request.error == 0;
        let lane = &mut self.lanes[request.lane];
        match request.op {
            Op::Read => {
                let data = std::mem::take(&mut request.data);
                if !done {
                    return;
                }
                let checked = lane.expected.check(request.offset, &data, request.moment);
                let mut tally = self.shared.tally();
                tally.verified += checked.grains;
                if let Some(at) = checked.wrong {
                    tally.wrong += 1;
                    let export = &self.export;
                    tally.first_wrong.get_or_insert_with(|| format!("export {export:?} at {at}"));
                }
            }
            Op::Flush => {}
            _ => lane.expected.end(request.offset, request.length as usize, done),
        }
    }
}

impl ReplySink for RequestTable {
    fn expects(&self, cookie: u64) -> Result<(u64, u64)> {
        let request = &self.slots[self.slot(cookie)?];
        let length = if request.op == Op::Read { u64::from(request.length) } else { 0 };
        Ok((request.offset, length))
    }

    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let (slot, from) = self.cover(cookie, offset, bytes.len() as u64)?;
        if let Some(place) = self.slots[slot].data.get_mut(from..from + bytes.len()) {
            place.copy_from_slice(bytes);
        }
        Ok(())
    }

    fn hole(&mut self, cookie: u64, offset: u64, length: u64) -> Result<()> {
        self.cover(cookie, offset, length).map(|_| ()) // its data is zero already
    }

    fn fail(&mut self, cookie: u64, error: u32, text: &str) -> Result<()> {
        let slot = self.slot(cookie)?;
        self.slots[slot].error = error;
        text.clone_into(&mut self.slots[slot].text);
        Ok(())
    }

    fn done(&mut self, cookie: u64) -> Result<()> {
        let slot = self.slot(cookie)?;
        let request = &self.slots[slot];
        let failed = request.error != 0;
        if request.op == Op::Read && !failed && request.got != u64::from(request.length) {
            return Err(Error::invalid("the server left out a part of the data"));
        }
        let shared = Arc::clone(&self.shared);
        {
            let mut tally = shared.tally();
            let carried = matches!(request.op, Op::Read | Op::Write) && !failed;
            let bytes = if carried { u64::from(request.length) } else { 0 };
            tally.answers += 1;
            tally.bytes += bytes;
            tally.last = tally.last.max(self.now);
            if failed {
                tally.errors += 1;
                let (op, offset) = (request.op.as_str(), request.offset);
                let (export, text, error) = (&self.export, &request.text, request.error);
                tally.first_error.get_or_insert_with(|| {
                    format!("export {export:?}: {op} at {offset}: error {error} {text}")
                });
            }
            if shared.in_window(self.now) {
                let one = &mut tally.ops[request.op as usize];
                one.bytes += bytes;
                one.errors += u64::from(failed);
                let latency = self.now.saturating_sub(request.sent);
                one.latency.record(latency);
                let client = self.lanes[request.lane].client;
                tally.detail.add(client, self.now, bytes, failed, latency);
            }
        }
        if shared.plan.verify {
            self.verify(slot);
        }
        let at = self.slots[slot].lane;
        self.slots[slot].cookie = 0;
        self.free.push(slot);
        self.under_way -= 1;
        let lane = &mut self.lanes[at];
        lane.under_way -= 1;
        if !lane.queued {
            // It waited for this answer.
            lane.free = self.now;
            self.queue(at);
        }
        Ok(())
    }
}
