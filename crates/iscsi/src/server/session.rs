//! The full feature phase: the flow of commands and data (RFC 7143, 4.2 and 11).

mod fast;
mod flow;
mod management;
mod observed;

use super::Inner;
use super::busy_poll::BusyPolling;
use super::input::PduBuffer;
use super::tasks::{Task, TaskStep};
use super::text::Answers;
use crate::codec::request::{CommandPdu, DataOut, Simple};
use crate::codec::response::{self, Counts, Output, Residual};
use crate::codec::{HEADER, NO_TAG, Pdu, PduCut, RequestPdu, StreamFault, cut};
use crate::login::{Agreed, Parameters, RECEIVE};
use crate::scsi::{Command, CommandOutcome, Nexus, Sense, Status};
use crate::targets::Initiator;
use block::{Error, Observer, Result};
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use management::Aborting;
use nbd::server::ClientPace;
use observed::{span, tell};
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tokio::time::Instant;

/// Commands of a session at a time.
pub(super) const WINDOW: u32 = 64;
/// Commands outside of the window at a time.
const IMMEDIATE: usize = 8;
/// The longest data segment that is taken, in bytes.
const SEGMENT: usize = RECEIVE as usize;
/// Bytes of data that was asked for, or is on its way back, at a time; more waits.
const IN_FLIGHT: usize = 16 << 20;
/// Bytes on their way to the initiator beyond which nothing more is taken from it.
const UNSENT: usize = 4 << 20;

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
        /// How fast its client may go.
        pace: Option<ClientPace>,
    },
}

/// How a session came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionEnd {
    /// The initiator logged out.
    LoggedOut,
    /// It closed its connection.
    Closed,
    /// It began the session anew.
    Reinstated,
    /// The server stops.
    Stopped,
}

/// A command that is carried out.
struct RunningCommand {
    wire: CommandPdu,
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
enum SessionEvent {
    Command(u32, CommandOutcome),
    /// The unit was reset, for the request of this tag.
    Reset(u32),
}

/// A session in its full feature phase.
pub(super) struct FullFeatureSession<'a> {
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
    /// The ones that wait for room to ask for data.
    asking: VecDeque<u32>,
    asked_bytes: usize,
    next_transfer: u32,
    queue: VecDeque<Task>,
    running: HashMap<u32, RunningCommand>,
    running_bytes: usize,
    /// An ordered command is carried out: nothing else may be.
    ordered: bool,
    futures: FuturesUnordered<BoxFuture<'static, SessionEvent>>,
    aborting: Vec<Aborting>,
    answers: Answers,
    end: Option<SessionEnd>,
}

impl<'a> FullFeatureSession<'a> {
    pub(super) fn new(
        inner: &'a Inner,
        agreed: &Agreed,
        client: Initiator,
        local: SocketAddr,
        counts: Counts,
        phase: Phase,
    ) -> Self {
        let target = match &agreed.session {
            crate::login::SessionType::Normal(target) => Some(target.clone()),
            crate::login::SessionType::Discovery => None,
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

    /// Takes the PDUs that are there; `false` when the initiator has to take answers before the rest of them.
    async fn take(&mut self, input: &mut PduBuffer, looking: &mut BusyPolling<'_>) -> Result<bool> {
        while self.end.is_none() {
            if self.output.unsent().len() > UNSENT {
                return Ok(false);
            }
            let length = match cut(input.bytes(), self.agreed.digests, SEGMENT) {
                Ok(PduCut::Short(whole)) => {
                    input.make_room(whole);
                    return Ok(true);
                }
                Ok(PduCut::Whole(pdu, length)) => {
                    looking.take();
                    self.receive(pdu).await?;
                    length
                }
                Err(fault) => {
                    if fault == StreamFault::DataDigest
                        && let Some(header) = input.bytes().first_chunk::<HEADER>()
                    {
                        self.reject(reason::DATA_DIGEST, header);
                    }
                    return Err(Error::invalid(fault.to_string()));
                }
            };
            input.consume(length);
        }
        Ok(true)
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
        match RequestPdu::decode(pdu.header) {
            RequestPdu::NopOut(ping) => self.ping(&ping, pdu.data),
            RequestPdu::Text(text) => self.text(&text, pdu).await,
            RequestPdu::Logout(logout) => self.logout(&logout),
            RequestPdu::Command(_) | RequestPdu::Manage(_) | RequestPdu::DataOut(_)
                if discovery =>
            {
                self.reject(reason::PROTOCOL, pdu.header);
            }
            RequestPdu::Command(wire) => self.command(wire, pdu),
            RequestPdu::Manage(manage) => self.manage(&manage),
            RequestPdu::DataOut(header) => self.data_out(&header, pdu.data),
            RequestPdu::Login(_) => return Err(Error::invalid("a login within a session")),
            RequestPdu::Other(0x10) => self.reject(reason::SNACK, pdu.header),
            RequestPdu::Other(_) => self.reject(reason::NOT_SUPPORTED, pdu.header),
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
            self.end = Some(SessionEnd::LoggedOut);
        }
    }

    fn command(&mut self, wire: CommandPdu, pdu: Pdu<'_>) {
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

    /// Goes on with a task whose data came or did not.
    fn advance(&mut self, mut task: Task) {
        match task.next() {
            TaskStep::Ready => {
                if task.failed().is_some() {
                    task.data = Vec::new();
                }
                self.queue.push_back(task);
            }
            TaskStep::Wait => {
                self.collecting.insert(task.wire.tag, task);
            }
            TaskStep::Ask => {
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

    /// Begins what may be begun; how long the limits of the client hold the next command back. Pings and the like are
    /// not held back.
    fn start(&mut self) -> Option<Duration> {
        while let Some(task) = self.queue.front() {
            let ordered = task.wire.attribute == 2;
            if self.ordered || ordered && !self.running.is_empty() {
                return None;
            }
            let Phase::Normal { nexus, .. } = &self.phase else { return None };
            let given = task.command().map_or(0, |command| command.data_in(nexus.block));
            let given = usize::try_from(given.min(IN_FLIGHT as u64)).unwrap_or(IN_FLIGHT);
            let held = self.running_bytes + self.output.unsent().len();
            if !self.running.is_empty() && held + given > IN_FLIGHT {
                return None;
            }
            if let Some(wait) = self.held_back() {
                return Some(wait);
            }
            let read = if matches!(task.command(), Ok(Command::Read { .. })) { given } else { 0 };
            self.charge(read as u64 + task.data.len() as u64);
            let nexus = Arc::clone(nexus);
            let task = self.queue.pop_front()?;
            self.ordered = ordered;
            self.running_bytes += given;
            let (command, wire, tag) = (task.command(), task.wire, task.wire.tag);
            let (began, holds) = (Instant::now(), given);
            let asked = task.holds;
            let running = RunningCommand { wire, command, began, holds, asked, aborted: false };
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
                    SessionEvent::Command(tag, outcome)
                }
                .boxed(),
            );
        }
        None
    }

    fn done(&mut self, done: SessionEvent) {
        match done {
            SessionEvent::Reset(tag) => self.managed(tag, 0),
            SessionEvent::Command(tag, outcome) => {
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
    fn release(&mut self, wire: &CommandPdu, asked: usize) {
        match wire.immediate {
            true => self.immediate -= 1,
            false => self.windowed -= 1,
        }
        self.asked_bytes -= asked;
    }

    fn answer(&mut self, running: &RunningCommand, outcome: CommandOutcome) {
        let Phase::Normal { nexus, observer, .. } = &self.phase else { return };
        let (wire, tag) = (&running.wire, running.wire.tag);
        let failed = !matches!(outcome, CommandOutcome::Good(_));
        if let (Some(observer), Ok(command)) = (observer, running.command) {
            tell(observer.as_ref(), running.began, command, span(&command, nexus), failed);
        }
        self.inner.counts.commands.fetch_add(1, Relaxed);
        let block = nexus.block;
        match outcome {
            CommandOutcome::Good(data) if wire.reads && !data.is_empty() => {
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
            CommandOutcome::Good(data) => {
                let needs = running.command.map_or(0, |command| command.data_out(block));
                let moved = if data.is_empty() { needs } else { data.len() as u64 };
                let expected = if wire.reads || wire.writes { wire.expected } else { 0 };
                self.status(tag, Status::Good, Residual::of(expected, moved), &[]);
            }
            CommandOutcome::Failed(sense) => {
                tracing::debug!(?sense, command = ?running.command, "an iSCSI command failed");
                let mut data = vec![0, 18];
                data.extend_from_slice(&sense.fixed());
                let residual = match running.command {
                    Ok(_) if wire.reads => Residual::of(wire.expected, 0),
                    _ => Residual::None,
                };
                self.status(tag, Status::CheckCondition, residual, &data);
            }
            CommandOutcome::Conflict => {
                self.status(tag, Status::ReservationConflict, Residual::None, &[]);
            }
        }
    }

    fn status(&mut self, tag: u32, status: Status, residual: Residual, data: &[u8]) {
        let counts = self.counts();
        self.output.put(response::command(tag, status.code(), residual, 0, counts), data);
    }
}

/// Whether these are the eight bytes of logical unit 0, in either simple form.
fn is_first(lun: &[u8; 8]) -> bool {
    matches!(lun, [0 | 0x40, 0, 0, 0, 0, 0, 0, 0])
}
