//! The full feature phase: the flow of commands and data (RFC 7143, 4.2 and 11).

use super::Inner;
use super::connection::{End, NO_TAG, SEGMENT, leave_seconds};
use super::input::Input;
use super::registry::Order;
use super::tasks::{Next, Task};
use super::text::Answers;
use crate::codec::request::{Command as Wire, DataOut, Manage, Simple};
use crate::codec::response::{self, Counts, Output, Residual};
use crate::codec::{Cut, Fault, HEADER, Pdu, Request, cut};
use crate::login::{Agreed, Parameters};
use crate::scsi::{Command, Nexus, Outcome, Sense, Status};
use crate::targets::Client;
use block::{Action, Answered, Error, Observer, Result, Span};
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use futures::{FutureExt, future};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::Instant;

/// Commands of a session at a time.
pub(super) const WINDOW: u32 = 64;
/// Commands outside of the window at a time.
const IMMEDIATE: usize = 8;
/// Bytes of data that was asked for, or is on its way back, at a time; more waits.
const IN_FLIGHT: usize = 16 << 20;
/// Bytes on their way to the initiator beyond which nothing more is taken from it.
const UNSENT: usize = 4 << 20;
/// The longest read that is answered at once, in bytes.
const AT_ONCE: u64 = 256 << 10;

/// Why a PDU is rejected (RFC 7143, 11.17.1).
mod reason {
    pub(super) const DATA_DIGEST: u8 = 0x02;
    pub(super) const SNACK: u8 = 0x03;
    pub(super) const PROTOCOL: u8 = 0x04;
    pub(super) const NOT_SUPPORTED: u8 = 0x05;
    pub(super) const TOO_MANY_IMMEDIATE: u8 = 0x06;
}

/// What a session is for.
pub(super) enum Phase {
    /// To be told of targets.
    Discovery,
    /// To use a unit.
    Normal {
        /// The use of it.
        nexus: Arc<Nexus>,
        /// Who is told of requests.
        observer: Option<Arc<dyn Observer>>,
    },
}

/// A command that is carried out.
struct Running {
    wire: Wire,
    command: std::result::Result<Command, Sense>,
    began: Instant,
    /// What it holds of [`IN_FLIGHT`] for the data that it reads.
    holds: usize,
    /// The same for the data that was asked for.
    asked: usize,
    /// Nobody waits for the answer any more.
    aborted: bool,
}

/// What was waited for.
enum Done {
    Command(u32, Outcome),
    /// The unit was reset, for the request of this tag.
    Reset(u32),
}

/// Tasks that an abort waits for.
struct Aborting {
    tag: u32,
    waits: Vec<u32>,
}

/// A session in its full feature phase.
pub(super) struct Session<'a> {
    inner: &'a Inner,
    phase: Phase,
    agreed: Parameters,
    cid: u16,
    output: Output,
    stat_sn: u32,
    exp_cmd_sn: u32,
    /// Commands that take a place of the window, and others.
    windowed: u32,
    immediate: usize,
    collecting: HashMap<u32, Task>,
    /// Those of them that wait for room to ask for data.
    asking: VecDeque<u32>,
    asked_bytes: usize,
    next_transfer: u32,
    queue: VecDeque<Task>,
    running: HashMap<u32, Running>,
    running_bytes: usize,
    /// An ordered command is carried out: nothing else may be.
    ordered: bool,
    futures: FuturesUnordered<BoxFuture<'static, Done>>,
    aborting: Vec<Aborting>,
    answers: Answers,
    end: Option<End>,
}

impl<'a> Session<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        agreed: &Agreed,
        client: Client,
        local: SocketAddr,
        counts: Counts,
        phase: Phase,
    ) -> Self {
        let target = match &agreed.session {
            crate::login::Session::Normal(target) => Some(target.clone()),
            crate::login::Session::Discovery => None,
        };
        Self {
            inner,
            phase,
            agreed: agreed.parameters.clone(),
            cid: agreed.cid,
            output: Output::new(agreed.parameters.digests),
            stat_sn: counts.stat_sn.wrapping_add(1),
            exp_cmd_sn: counts.exp_cmd_sn,
            windowed: 0,
            immediate: 0,
            collecting: HashMap::new(),
            asking: VecDeque::new(),
            asked_bytes: 0,
            next_transfer: 0,
            queue: VecDeque::new(),
            running: HashMap::new(),
            running_bytes: 0,
            ordered: false,
            futures: FuturesUnordered::new(),
            aborting: Vec::new(),
            answers: Answers::new(client, local, target),
            end: None,
        }
    }

    /// Serves the initiator until the session ends. Commands may be under way still.
    ///
    /// # Errors
    /// When the connection or the protocol is broken.
    pub(super) async fn run(
        &mut self,
        stream: &mut TcpStream,
        input: &mut Input,
        mut stop: watch::Receiver<Order>,
        orders: Option<watch::Receiver<Order>>,
    ) -> Result<End> {
        let broken = |e| Error::io("the connection", e);
        let (mut from, to) = stream.split();
        let nexus = match &self.phase {
            Phase::Normal { nexus, .. } => Some(Arc::clone(nexus)),
            Phase::Discovery => None,
        };
        let reset = || async {
            match &nexus {
                Some(nexus) => nexus.resets.notified().await,
                None => future::pending().await,
            }
        };
        let mut orders = orders.unwrap_or_else(|| stop.clone());
        let mut leave_by = None;
        loop {
            let full = self.output.unsent().len() > UNSENT;
            if self.end.is_none() && !full {
                self.take(input).await?;
            }
            self.start();
            while !self.output.unsent().is_empty() {
                match to.try_write(self.output.unsent()) {
                    Ok(count) => self.output.consume(count),
                    Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(e) => return Err(broken(e)),
                }
            }
            let unsent = self.output.unsent().len();
            if let (Some(end), 0) = (self.end, unsent) {
                return Ok(end);
            }
            let reads = self.end.is_none() && unsent <= UNSENT;
            tokio::select! {
                biased;
                Some(done) = self.futures.next(), if !self.futures.is_empty() => {
                    self.done(done);
                    while let Some(Some(done)) = self.futures.next().now_or_never() {
                        self.done(done);
                    }
                }
                ended = orders.wait_for(|order| *order == Order::End) => {
                    // An error says that the server has gone.
                    let end = if ended.is_ok() { End::Reinstated } else { End::Stopped };
                    return Ok(end);
                }
                _ = stop.wait_for(|order| *order != Order::Go), if leave_by.is_none() => {
                    let seconds = leave_seconds();
                    let counts = self.counts();
                    self.output.put(response::please_log_out(seconds, counts), &[]);
                    leave_by = Some(Instant::now() + Duration::from_secs(seconds.into()));
                }
                () = tokio::time::sleep_until(leave_by.unwrap_or_else(Instant::now)),
                    if leave_by.is_some() => return Ok(End::Stopped),
                () = reset() => {
                    let _ = self.abort(|_, _| true);
                }
                writable = to.writable(), if unsent > 0 => writable.map_err(broken)?,
                count = from.read(input.room()), if reads => match count.map_err(broken)? {
                    0 if leave_by.is_some() => return Ok(End::Stopped),
                    0 => return Ok(End::Closed),
                    count => input.came(count),
                },
            }
        }
    }

    /// Waits for what was begun. What was not begun is dropped.
    pub(super) async fn settle(&mut self) {
        self.collecting.clear();
        self.queue.clear();
        while let Some(done) = self.futures.next().await {
            self.done(done);
        }
    }

    /// The numbers of an answer, which counts.
    fn counts(&mut self) -> Counts {
        let counts = self.look();
        self.stat_sn = self.stat_sn.wrapping_add(1);
        counts
    }

    /// The numbers of what is no answer.
    fn look(&self) -> Counts {
        let free = WINDOW - self.windowed.min(WINDOW);
        Counts {
            stat_sn: self.stat_sn,
            exp_cmd_sn: self.exp_cmd_sn,
            max_cmd_sn: self.exp_cmd_sn.wrapping_add(free).wrapping_sub(1),
        }
    }

    /// Takes the PDUs that are there.
    async fn take(&mut self, input: &mut Input) -> Result<()> {
        while self.end.is_none() && self.output.unsent().len() <= UNSENT {
            let length = match cut(input.bytes(), self.agreed.digests, SEGMENT) {
                Ok(Cut::Short(whole)) => {
                    input.make_room(whole);
                    return Ok(());
                }
                Ok(Cut::Whole(pdu, length)) => {
                    self.receive(pdu).await?;
                    length
                }
                Err(fault) => {
                    if fault == Fault::DataDigest
                        && let Some(header) = input.bytes().first_chunk::<HEADER>()
                    {
                        self.reject(reason::DATA_DIGEST, header);
                    }
                    return Err(Error::invalid(fault.to_string()));
                }
            };
            input.consume(length);
        }
        Ok(())
    }

    fn reject(&mut self, reason: u8, header: &[u8; HEADER]) {
        let counts = self.counts();
        self.output.put(response::reject(reason, counts), header);
    }

    /// Whether a request is the next one; others are ignored, as the standard has it.
    fn is_next(&mut self, immediate: bool, cmd_sn: u32) -> bool {
        if immediate {
            return true;
        }
        let next = cmd_sn == self.exp_cmd_sn && self.windowed < WINDOW;
        if next {
            self.exp_cmd_sn = self.exp_cmd_sn.wrapping_add(1);
        }
        next
    }

    async fn receive(&mut self, pdu: Pdu<'_>) -> Result<()> {
        let discovery = matches!(self.phase, Phase::Discovery);
        match Request::decode(pdu.header) {
            Request::NopOut(ping) => self.ping(&ping, pdu.data),
            Request::Text(text) => self.text(&text, pdu).await,
            Request::Logout(logout) => self.logout(&logout),
            Request::Command(_) | Request::Manage(_) | Request::DataOut(_) if discovery => {
                self.reject(reason::PROTOCOL, pdu.header);
            }
            Request::Command(wire) => self.command(wire, pdu),
            Request::Manage(manage) => self.manage(&manage),
            Request::DataOut(header) => self.data_out(&header, pdu.data),
            Request::Login(_) => return Err(Error::invalid("a login within a session")),
            Request::Other(0x10) => self.reject(reason::SNACK, pdu.header),
            Request::Other(_) => self.reject(reason::NOT_SUPPORTED, pdu.header),
        }
        Ok(())
    }

    fn ping(&mut self, ping: &Simple, data: &[u8]) {
        if !self.is_next(ping.immediate, ping.cmd_sn) || ping.tag == NO_TAG {
            return;
        }
        let length = data.len().min(self.agreed.initiator_segment as usize);
        let counts = self.counts();
        self.output.put(response::nop_in(ping.lun, ping.tag, counts), &data[..length]);
    }

    async fn text(&mut self, text: &Simple, pdu: Pdu<'_>) {
        if !self.is_next(text.immediate, text.cmd_sn) {
            return;
        }
        let targets = self.inner.targets.as_ref();
        let answered = self.answers.answer(text, pdu.data, targets, &mut self.agreed).await;
        match answered {
            Ok((transfer, data)) => {
                let counts = self.counts();
                self.output.put(response::text(text.lun, text.tag, transfer, counts), &data);
            }
            Err(why) => {
                tracing::debug!(why, "a text request is rejected");
                self.reject(reason::PROTOCOL, pdu.header);
            }
        }
    }

    fn logout(&mut self, logout: &Simple) {
        if !self.is_next(logout.immediate, logout.cmd_sn) {
            return;
        }
        let cid = (logout.transfer >> 16) as u16;
        let response = match logout.flags & 0x7f {
            0 => 0,
            1 if cid == self.cid => 0,
            1 => 1,
            _ => 2, // no recovery of connections
        };
        let counts = self.counts();
        self.output.put(response::logout(logout.tag, response, counts), &[]);
        if response == 0 {
            self.end = Some(End::LoggedOut);
        }
    }

    fn command(&mut self, wire: Wire, pdu: Pdu<'_>) {
        if !self.is_next(wire.immediate, wire.cmd_sn) {
            return;
        }
        let known = self.collecting.contains_key(&wire.tag)
            || self.running.contains_key(&wire.tag)
            || self.queue.iter().any(|task| task.wire.tag == wire.tag);
        if known || wire.tag == NO_TAG || wire.reads && wire.writes {
            return self.reject(reason::PROTOCOL, pdu.header);
        }
        if wire.immediate && self.immediate >= IMMEDIATE {
            return self.reject(reason::TOO_MANY_IMMEDIATE, pdu.header);
        }
        let command = Command::decode(&wire.cdb);
        if self.at_once(&wire, &command, pdu.data) {
            return;
        }
        match wire.immediate {
            true => self.immediate += 1,
            false => self.windowed += 1,
        }
        let Phase::Normal { nexus, .. } = &self.phase else { return };
        self.inner.counts.written_bytes.fetch_add(pdu.data.len() as u64, Relaxed);
        let task = Task::new(wire, command, nexus.block, pdu.data, &self.agreed);
        self.advance(task);
    }

    /// Answers a command in the connection's own task, if that needs no waiting.
    fn at_once(
        &mut self,
        wire: &Wire,
        command: &std::result::Result<Command, Sense>,
        data: &[u8],
    ) -> bool {
        let (Phase::Normal { nexus, observer }, Ok(command)) = (&self.phase, command) else {
            return false;
        };
        let simple = !self.ordered && self.queue.is_empty() && wire.attribute <= 1;
        if !simple || !is_first(&wire.lun) {
            return false;
        }
        let whole = wire.expected as usize == data.len() && wire.last && self.agreed.immediate_data;
        if wire.writes
            && whole
            && let Some(span) = nexus.try_write(command, data)
        {
            if let Some(observer) = observer {
                tell(observer.as_ref(), Instant::now(), *command, Some(span), false);
            }
            self.inner.counts.commands.fetch_add(1, Relaxed);
            self.inner.counts.written_bytes.fetch_add(span.len(), Relaxed);
            let counts = self.counts();
            let status = Status::Good.code();
            self.output.put(response::command(wire.tag, status, Residual::None, 0, counts), &[]);
            return true;
        }
        if !wire.reads {
            return false;
        }
        let exact = |span: &Span| span.len() == u64::from(wire.expected) && span.len() <= AT_ONCE;
        let Some(span) = nexus.plain_read(command).filter(exact).filter(|span| !span.is_empty())
        else {
            return false;
        };
        let (nexus, observer) = (Arc::clone(nexus), observer.clone());
        let (mark, before) = (self.output.mark(), self.stat_sn);
        let read = |at: u64, buffer: &mut [u8]| {
            let from = span.offset() + at;
            let part = Span::between(from, from + buffer.len() as u64);
            if nexus.try_read(part, buffer) { Ok(()) } else { Err(()) }
        };
        if self.data_in(wire.tag, span.len(), Residual::None, read).is_err() {
            self.output.take_back(mark);
            self.stat_sn = before;
            return false;
        }
        if let Some(observer) = observer {
            tell(observer.as_ref(), Instant::now(), *command, Some(span), false);
        }
        self.inner.counts.commands.fetch_add(1, Relaxed);
        true
    }

    /// Sends data, and with its last piece that the command is done.
    fn data_in(
        &mut self,
        tag: u32,
        length: u64,
        residual: Residual,
        fill: impl Fn(u64, &mut [u8]) -> std::result::Result<(), ()>,
    ) -> std::result::Result<(), ()> {
        let (segment, burst) =
            (u64::from(self.agreed.initiator_segment), u64::from(self.agreed.max_burst));
        let (mut at, mut data_sn, mut sequence) = (0, 0, 0);
        while at < length {
            let piece = segment.min(length - at).min(burst - sequence);
            sequence += piece;
            let last = at + piece == length;
            let ends = last || sequence == burst;
            if ends {
                sequence = 0;
            }
            let status = last.then_some((Status::Good.code(), residual));
            let counts = if last { self.counts() } else { self.look() };
            let offset = u32::try_from(at).unwrap_or(u32::MAX);
            let header = response::data_in(tag, ends, status, data_sn, offset, counts);
            self.output.put_with(header, piece as usize, |buffer| fill(at, buffer))?;
            at += piece;
            data_sn += 1;
        }
        self.inner.counts.read_bytes.fetch_add(length, Relaxed);
        Ok(())
    }

    /// Goes on with a task whose data came or did not.
    fn advance(&mut self, mut task: Task) {
        match task.next() {
            Next::Ready => {
                if task.failed().is_some() {
                    task.data = Vec::new();
                }
                self.queue.push_back(task);
            }
            Next::Wait => {
                self.collecting.insert(task.wire.tag, task);
            }
            Next::Ask => {
                self.asking.push_back(task.wire.tag);
                self.collecting.insert(task.wire.tag, task);
                self.ask();
            }
        }
    }

    /// Asks for data, for as many tasks as there is room for.
    fn ask(&mut self) {
        while let Some(tag) = self.asking.front().copied() {
            let Some(task) = self.collecting.get_mut(&tag) else {
                self.asking.pop_front();
                continue;
            };
            // Once a task was let in, all of its data is.
            let whole = task.want as usize;
            let fresh = task.asks_first();
            if fresh && self.asked_bytes > 0 && self.asked_bytes + whole > IN_FLIGHT {
                return;
            }
            if fresh {
                self.asked_bytes += whole;
                task.holds = whole;
            }
            self.asking.pop_front();
            let transfer = task.ask(self.next_transfer, &self.agreed);
            let (lun, length) = (task.wire.lun, transfer.end - transfer.offset);
            self.next_transfer =
                if self.next_transfer == NO_TAG - 1 { 0 } else { self.next_transfer + 1 };
            let counts = self.look();
            let (number, offset) = (transfer.number, transfer.offset);
            let header =
                response::ready_to_transfer(lun, tag, transfer.tag, number, offset, length, counts);
            self.output.put(header, &[]);
        }
    }

    fn data_out(&mut self, header: &DataOut, data: &[u8]) {
        // Data of a task that was aborted is on its way still.
        let Some(mut task) = self.collecting.remove(&header.tag) else { return };
        self.inner.counts.written_bytes.fetch_add(data.len() as u64, Relaxed);
        task.receive(header, data, &self.agreed);
        self.advance(task);
    }

    /// Begins what may be begun.
    fn start(&mut self) {
        while let Some(task) = self.queue.front() {
            let ordered = task.wire.attribute == 2;
            if self.ordered || ordered && !self.running.is_empty() {
                return;
            }
            let Phase::Normal { nexus, observer: _ } = &self.phase else { return };
            let given = task.command().map_or(0, |command| command.data_in(nexus.block));
            let given = usize::try_from(given.min(IN_FLIGHT as u64)).unwrap_or(IN_FLIGHT);
            let held = self.running_bytes + self.output.unsent().len();
            if !self.running.is_empty() && held + given > IN_FLIGHT {
                return;
            }
            let nexus = Arc::clone(nexus);
            let Some(task) = self.queue.pop_front() else { return };
            self.ordered = ordered;
            self.running_bytes += given;
            let (command, wire, tag) = (task.command(), task.wire, task.wire.tag);
            let (began, holds) = (Instant::now(), given);
            let asked = task.holds;
            let running = Running { wire, command, began, holds, asked, aborted: false };
            self.running.insert(tag, running);
            let data = task.data;
            let first = is_first(&wire.lun);
            self.futures.push(
                async move {
                    let outcome = if first {
                        nexus.execute(command, &data).await
                    } else {
                        Nexus::absent(command)
                    };
                    Done::Command(tag, outcome)
                }
                .boxed(),
            );
        }
    }

    fn done(&mut self, done: Done) {
        match done {
            Done::Reset(tag) => self.managed(tag, 0),
            Done::Command(tag, outcome) => {
                let Some(running) = self.running.remove(&tag) else { return };
                self.release(&running.wire, running.asked);
                self.running_bytes -= running.holds;
                self.ordered = false;
                if running.aborted {
                    let mut ready = Vec::new();
                    self.aborting.retain_mut(|aborting| {
                        aborting.waits.retain(|wait| *wait != tag);
                        if aborting.waits.is_empty() {
                            ready.push(aborting.tag);
                        }
                        !aborting.waits.is_empty()
                    });
                    ready.into_iter().for_each(|tag| self.managed(tag, 0));
                } else {
                    self.answer(&running, outcome);
                }
                self.ask();
            }
        }
    }

    /// Gives back what a task held of the window, and of the data that is asked for.
    fn release(&mut self, wire: &Wire, asked: usize) {
        match wire.immediate {
            true => self.immediate -= 1,
            false => self.windowed -= 1,
        }
        self.asked_bytes -= asked;
    }

    fn answer(&mut self, running: &Running, outcome: Outcome) {
        let Phase::Normal { nexus, observer } = &self.phase else { return };
        let (wire, tag) = (&running.wire, running.wire.tag);
        let failed = !matches!(outcome, Outcome::Good(_));
        if let (Some(observer), Ok(command)) = (observer, running.command) {
            tell(observer.as_ref(), running.began, command, span(&command, nexus), failed);
        }
        self.inner.counts.commands.fetch_add(1, Relaxed);
        let block = nexus.block;
        match outcome {
            Outcome::Good(data) if wire.reads && !data.is_empty() => {
                let sent = (wire.expected as usize).min(data.len());
                let residual = Residual::of(wire.expected, data.len() as u64);
                if sent == 0 {
                    return self.status(tag, Status::Good, residual, &[]);
                }
                let read = |at: u64, buffer: &mut [u8]| {
                    let at = at as usize;
                    buffer.copy_from_slice(&data[at..at + buffer.len()]);
                    Ok(())
                };
                // Copying does not fail.
                let _ = self.data_in(tag, sent as u64, residual, read);
            }
            Outcome::Good(data) => {
                let needs = running.command.map_or(0, |command| command.data_out(block));
                let moved = if data.is_empty() { needs } else { data.len() as u64 };
                let expected = if wire.reads || wire.writes { wire.expected } else { 0 };
                self.status(tag, Status::Good, Residual::of(expected, moved), &[]);
            }
            Outcome::Failed(sense) => {
                tracing::debug!(?sense, command = ?running.command, "an iSCSI command failed");
                let mut data = vec![0, 18];
                data.extend_from_slice(&sense.fixed());
                let residual = match running.command {
                    Ok(_) if wire.reads => Residual::of(wire.expected, 0),
                    _ => Residual::None,
                };
                self.status(tag, Status::CheckCondition, residual, &data);
            }
            Outcome::Conflict => {
                self.status(tag, Status::ReservationConflict, Residual::None, &[]);
            }
        }
    }

    fn status(&mut self, tag: u32, status: Status, residual: Residual, data: &[u8]) {
        let counts = self.counts();
        self.output.put(response::command(tag, status.code(), residual, 0, counts), data);
    }

    fn managed(&mut self, tag: u32, response: u8) {
        let counts = self.counts();
        self.output.put(response::manage(tag, response, counts), &[]);
    }

    fn manage(&mut self, manage: &Manage) {
        if !self.is_next(manage.immediate, manage.cmd_sn) {
            return;
        }
        let Phase::Normal { nexus, .. } = &self.phase else { return };
        let nexus = Arc::clone(nexus);
        let (tag, of_unit) = (manage.tag, manage.function <= 5);
        if of_unit && !is_first(&manage.lun) {
            return self.managed(tag, 2);
        }
        match manage.function {
            1 => {
                let wanted = manage.referenced;
                let found = self.collecting.contains_key(&wanted)
                    || self.running.contains_key(&wanted)
                    || self.queue.iter().any(|task| task.wire.tag == wanted);
                let waits = self.abort(|tag, _| tag == wanted);
                self.wait_for(tag, waits, if found { 0 } else { 1 });
            }
            2 | 4 => {
                let waits = self.abort(|_, lun| is_first(lun));
                self.wait_for(tag, waits, 0);
            }
            5..=7 => {
                // Its own commands hold the reset up as others' do.
                let _ = self.abort(|_, _| true);
                let reset = async move {
                    nexus.unit.reset(&nexus).await;
                    Done::Reset(tag)
                };
                self.futures.push(reset.boxed());
            }
            8 => self.managed(tag, 4),
            _ => self.managed(tag, 5),
        }
    }

    fn wait_for(&mut self, tag: u32, waits: Vec<u32>, response: u8) {
        if waits.is_empty() {
            self.managed(tag, response)
        } else {
            self.aborting.push(Aborting { tag, waits })
        }
    }

    /// Aborts tasks by their tag and unit; those that are under way and have to be waited for.
    fn abort(&mut self, which: impl Fn(u32, &[u8; 8]) -> bool) -> Vec<u32> {
        let collected = self.collecting.extract_if(|tag, task| which(*tag, &task.wire.lun));
        let mut dropped: Vec<Task> = collected.map(|(_, task)| task).collect();
        let queue = std::mem::take(&mut self.queue);
        for task in queue {
            if which(task.wire.tag, &task.wire.lun) {
                dropped.push(task)
            } else {
                self.queue.push_back(task)
            }
        }
        for task in dropped {
            self.release(&task.wire, task.holds);
        }
        let mut waits = Vec::new();
        for (tag, running) in &mut self.running {
            if which(*tag, &running.wire.lun) {
                running.aborted = true;
                waits.push(*tag);
            }
        }
        self.ask();
        waits
    }
}

/// Whether these are the eight bytes of logical unit 0, in either simple form.
fn is_first(lun: &[u8; 8]) -> bool {
    matches!(lun, [0 | 0x40, 0, 0, 0, 0, 0, 0, 0])
}

/// Where a command reads, writes or flushes.
fn span(command: &Command, nexus: &Nexus) -> Option<Span> {
    match command {
        Command::Read { blocks }
        | Command::Write { blocks, .. }
        | Command::WriteAndVerify { blocks, .. }
        | Command::WriteSame { blocks, .. } => {
            let block = u64::from(nexus.block);
            let offset = blocks.first.checked_mul(block)?;
            Span::within(offset, u64::from(blocks.count) * block, nexus.device.size()).ok()
        }
        Command::SynchronizeCache { .. } => Some(Span::between(0, 0)),
        _ => None,
    }
}

/// Tells of a command that reads, writes or flushes.
fn tell(
    observer: &dyn Observer,
    began: Instant,
    command: Command,
    span: Option<Span>,
    failed: bool,
) {
    let (action, durable) = match command {
        Command::Read { .. } => (Action::Read, false),
        Command::Write { forced, .. } => (Action::Write, forced),
        Command::WriteAndVerify { .. } => (Action::Write, true),
        Command::WriteSame { .. } => (Action::Zero, false),
        Command::SynchronizeCache { .. } => (Action::Flush, false),
        _ => return,
    };
    if let Some(span) = span {
        observer.answered(began, began.elapsed(), &[Answered { span, action, durable, failed }]);
    }
}
