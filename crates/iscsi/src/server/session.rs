//! The full feature phase: the flow of commands and data (RFC 7143, 4.2 and 11).

mod fast;
mod flow;
mod management;
mod observed;

use super::Inner;
use super::busy_poll::BusyPolling;
use super::input::PduBuffer;
use super::room::SessionRoom;
use super::tasks::{Arrival, Task, TaskStep};
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
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
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

/// The task attribute of a command that all older ones go before and all newer ones behind (SAM-5, 8.6).
const ORDERED: u8 = 2;

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
    /// The server stops, or has no patience with an initiator that only asked for targets.
    Stopped,
}

/// A command that is carried out.
struct RunningCommand {
    came: Arrival,
    wire: CommandPdu,
    command: std::result::Result<Command, Sense>,
    began: Instant,
    /// What it holds of [`IN_FLIGHT`] for the data that it reads.
    holds: usize,
    /// The same for the data that was asked for.
    asked: usize,
    /// What it holds of the session's room for the data that came, in bytes.
    kept: u64,
    /// Nobody waits for the answer any more.
    aborted: bool,
    /// It takes a place of the window, or of those outside of it.
    placed: bool,
}

/// What was waited for.
enum SessionEvent {
    /// A command, by its tag and its number, has ended.
    Command(u32, u64, CommandOutcome),
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
    next_number: u64,
    /// The resets up to this one were heeded.
    epoch: u64,
    collecting: HashMap<u32, Task>,
    /// The ones that wait for room to ask for their first data, by their numbers.
    asking: BTreeMap<u64, u32>,
    asked_bytes: usize,
    next_transfer: u32,
    /// What may be begun, oldest first.
    queue: VecDeque<Task>,
    running: HashMap<u32, RunningCommand>,
    /// Those that a reset aborted while they were under way, by their numbers: their tags may be used again.
    abandoned: HashMap<u64, RunningCommand>,
    /// What both of these hold of [`IN_FLIGHT`].
    running_bytes: usize,
    room: SessionRoom<'a>,
    /// What of that is held by answers on their way, in bytes.
    answered: u64,
    /// The numbers of the ordered commands that are not over.
    ordered: BTreeSet<u64>,
    futures: FuturesUnordered<BoxFuture<'static, SessionEvent>>,
    aborting: Vec<Aborting>,
    /// Resets that are not over.
    resetting: usize,
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
        let room = inner.room.session(&client.identity());
        let target = match &agreed.session {
            crate::login::SessionType::Normal(target) => Some(target.clone()),
            crate::login::SessionType::Discovery => None,
        };
        let epoch = match &phase {
            Phase::Normal { nexus, .. } => nexus.epoch(),
            Phase::Discovery => 0,
        };
        Self {
            inner,
            phase,
            agreed: agreed.parameters.clone(),
            cid: agreed.cid,
            output: Output::new(agreed.parameters.digests),
            stat_sn: counts.stat_sn,
            exp_cmd_sn: counts.exp_cmd_sn,
            windowed: 0,
            immediate: 0,
            next_number: 0,
            epoch,
            collecting: HashMap::new(),
            asking: BTreeMap::new(),
            asked_bytes: 0,
            next_transfer: 0,
            queue: VecDeque::new(),
            running: HashMap::new(),
            abandoned: HashMap::new(),
            running_bytes: 0,
            room,
            answered: 0,
            ordered: BTreeSet::new(),
            futures: FuturesUnordered::new(),
            aborting: Vec::new(),
            resetting: 0,
            answers: Answers::new(client, local, target),
            end: None,
        }
    }

    /// Waits for what was begun and leaves something behind. What was not begun is dropped, and so is what only reads:
    /// nobody takes its answer, and a store that is away may hold it for long.
    pub(super) async fn settle(&mut self) {
        let dropped = self.collecting.drain().map(|(_, task)| task).chain(self.queue.drain(..));
        let unsent = std::mem::take(&mut self.answered);
        self.room.give_back(dropped.map(|task| task.kept).sum::<u64>() + unsent);
        while self.leaves_something_behind()
            && let Some(done) = self.futures.next().await
        {
            self.done(done);
        }
        self.futures.clear();
    }

    /// Whether anything that was begun may still change what others find.
    fn leaves_something_behind(&self) -> bool {
        let mut all = self.running.values().chain(self.abandoned.values());
        let lasts = |running: &RunningCommand| running.command.is_ok_and(|command| command.lasts());
        self.resetting > 0 || all.any(lasts)
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
        let Phase::Normal { nexus, .. } = &self.phase else { return };
        let (block, epoch) = (nexus.block, nexus.epoch());
        let changes_nothing =
            nexus.device.read_only() && command.is_ok_and(|command| command.changes());
        // Nor is what it would write kept.
        let command = if changes_nothing { Err(Sense::WRITE_PROTECTED) } else { command };
        match wire.immediate {
            true => self.immediate += 1,
            false => self.windowed += 1,
        }
        let came = Arrival { number: self.next_number, epoch };
        self.next_number += 1;
        if wire.attribute == ORDERED {
            self.ordered.insert(came.number);
        }
        self.inner.counts.written_bytes.fetch_add(pdu.data.len() as u64, Relaxed);
        let mut task = Task::new(came, wire, command, block, pdu.data, &self.agreed);
        // What comes unasked; the rest is held when it is asked for.
        let first = task.comes_first(pdu.data.len(), &self.agreed);
        if self.room.hold(first) {
            task.kept = first;
        } else {
            task.refuse();
        }
        self.advance(task);
    }

    /// Goes on with a task whose data came or did not.
    fn advance(&mut self, mut task: Task) {
        let (tag, number) = (task.wire.tag, task.came.number);
        match task.next() {
            TaskStep::Ready => {
                if task.failed().is_some() {
                    task.data = Vec::new();
                }
                let older = self.queue.iter().rposition(|queued| queued.came.number < number);
                self.queue.insert(older.map_or(0, |at| at + 1), task);
            }
            TaskStep::Wait => {
                self.collecting.insert(tag, task);
            }
            TaskStep::Ask if task.asks_first() => {
                self.asking.insert(number, tag);
                self.collecting.insert(tag, task);
                self.ask();
            }
            TaskStep::Ask => {
                // Once a task was let in, all of its data is: behind one that waits for room it might wait for ever.
                self.request(&mut task);
                self.collecting.insert(tag, task);
            }
        }
    }

    /// Asks for data, for as many tasks as there is room for, the oldest first.
    fn ask(&mut self) {
        while let Some((number, tag)) = self.asking.first_key_value().map(|(n, tag)| (*n, *tag)) {
            let whole = self.collecting.get(&tag).map_or(0, |task| task.want as usize);
            let is_full = self.asked_bytes > 0 && self.asked_bytes + whole > IN_FLIGHT;
            if is_full && !self.is_waited_for(number) {
                return;
            }
            let kept = self.collecting.get(&tag).map_or(0, |task| task.kept);
            let is_held = self.room.hold((whole as u64).saturating_sub(kept));
            // Other sessions hold what there is. It waits for what this one will give back, and for no other.
            if !is_held && self.gives_room_back() && !self.is_waited_for(number) {
                return;
            }
            self.asking.remove(&number);
            let Some(mut task) = self.collecting.remove(&tag) else { continue };
            if !is_held {
                task.refuse();
                self.advance(task);
                continue;
            }
            task.kept = task.kept.max(whole as u64);
            self.asked_bytes += whole;
            task.holds = whole;
            self.request(&mut task);
            self.collecting.insert(tag, task);
        }
    }

    /// Whether all that holds room waits for this command, as newer ones do for an ordered one, and that for older
    /// ones: then it is let in beyond the bound, alone.
    fn is_waited_for(&self, number: u64) -> bool {
        !self.ordered.is_empty()
            && self.running.is_empty()
            && self.abandoned.is_empty()
            && self.queue.front().is_none_or(|first| first.came.number > number)
            && self.collecting.values().all(|task| task.came.number >= number)
    }

    /// Asks for the next data of a task.
    fn request(&mut self, task: &mut Task) {
        let transfer = task.ask(self.next_transfer, &self.agreed);
        let (lun, tag, length) = (task.wire.lun, task.wire.tag, transfer.end - transfer.offset);
        self.next_transfer =
            if self.next_transfer == NO_TAG - 1 { 0 } else { self.next_transfer + 1 };
        let counts = self.look();
        let (number, offset) = (transfer.number, transfer.offset);
        let header =
            response::ready_to_transfer(lun, tag, transfer.tag, number, offset, length, counts);
        self.output.put(header, &[]);
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
        if self.note_sent() {
            self.ask();
        }
        while let Some(task) = self.queue.front() {
            if !self.may_begin(task.came.number) {
                return None;
            }
            let Phase::Normal { nexus, .. } = &self.phase else { return None };
            let given = task.command().map_or(0, |command| command.data_in(nexus.block));
            let given = usize::try_from(given.min(IN_FLIGHT as u64)).unwrap_or(IN_FLIGHT);
            let held = self.running_bytes + self.output.unsent().len();
            let alone = self.running.is_empty() && self.abandoned.is_empty();
            if !alone && held + given > IN_FLIGHT {
                return None;
            }
            if let Some(wait) = self.held_back() {
                return Some(wait);
            }
            let mut is_refused = task.is_refused();
            if !is_refused && !self.room.hold(given as u64) {
                // Other sessions hold what there is. It waits for what this one will give back, and for no other.
                if !alone || self.answered > 0 {
                    return None;
                }
                is_refused = true;
            }
            let given = if is_refused { 0 } else { given };
            let read = if matches!(task.command(), Ok(Command::Read { .. })) { given } else { 0 };
            self.charge(read as u64 + task.data.len() as u64);
            let nexus = Arc::clone(nexus);
            let task = self.queue.pop_front()?;
            self.running_bytes += given;
            let (command, wire, came) = (task.command(), task.wire, task.came);
            let tag = wire.tag;
            let running = RunningCommand {
                came,
                wire,
                command,
                began: Instant::now(),
                holds: given,
                asked: task.holds,
                kept: task.kept,
                aborted: false,
                placed: true,
            };
            self.running.insert(tag, running);
            let data = task.data;
            let first = is_first(&wire.lun);
            self.futures.push(
                async move {
                    let outcome = if is_refused {
                        CommandOutcome::Full
                    } else if first {
                        nexus.execute(command, &data, came.epoch).await
                    } else {
                        Nexus::absent(command)
                    };
                    SessionEvent::Command(tag, came.number, outcome)
                }
                .boxed(),
            );
        }
        None
    }

    /// Whether the ordered commands that are not over let this one begin, which is the oldest of the queue.
    fn may_begin(&self, number: u64) -> bool {
        match self.ordered.first() {
            Some(first) if *first == number => {
                // Older ones may wait for their data still.
                self.running.is_empty()
                    && self.collecting.values().all(|task| task.came.number > number)
            }
            Some(first) => number < *first,
            None => true,
        }
    }

    fn done(&mut self, done: SessionEvent) {
        let (tag, number, outcome) = match done {
            SessionEvent::Reset(tag) => {
                self.resetting -= 1;
                return self.managed(tag, 0);
            }
            SessionEvent::Command(tag, number, outcome) => (tag, number, outcome),
        };
        let running = match self.running.get(&tag) {
            Some(running) if running.came.number == number => self.running.remove(&tag),
            _ => self.abandoned.remove(&number),
        };
        let Some(running) = running else { return };
        if running.placed {
            self.free_place(&running.wire);
        }
        self.asked_bytes -= running.asked;
        self.running_bytes -= running.holds;
        self.ordered.remove(&number);
        let before = self.output.unsent().len();
        if running.aborted {
            self.note_aborted(number);
        } else if !self.is_stale(running.came) {
            self.answer(&running, outcome);
        }
        // What was read is held until it is sent.
        let put = (self.output.unsent().len() - before).min(running.holds) as u64;
        self.answered += put;
        self.room.give_back(running.kept + running.holds as u64 - put);
        self.ask();
    }

    /// Gives the room back of answers that were sent; says whether there were any.
    fn note_sent(&mut self) -> bool {
        let sent = self.answered.saturating_sub(self.output.unsent().len() as u64);
        if sent > 0 {
            self.answered -= sent;
            self.room.give_back(sent);
        }
        sent > 0
    }

    /// Whether something goes on that holds room: what only waits for room does not.
    fn gives_room_back(&self) -> bool {
        let comes = self.collecting.len() > self.asking.len();
        let goes_on = !self.running.is_empty() || !self.abandoned.is_empty();
        goes_on || comes || !self.queue.is_empty() || self.answered > 0
    }

    /// Whether commands wait that came already: for room, or for their turn.
    fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || !self.asking.is_empty()
    }

    /// Whether the unit was reset since a command came, which nobody waits for then.
    fn is_stale(&self, came: Arrival) -> bool {
        matches!(&self.phase, Phase::Normal { nexus, .. } if nexus.epoch() != came.epoch)
    }

    /// Gives back what a task that was not begun held.
    fn release(&mut self, task: &Task) {
        self.free_place(&task.wire);
        self.asked_bytes -= task.holds;
        self.room.give_back(task.kept);
        self.asking.remove(&task.came.number);
        self.ordered.remove(&task.came.number);
    }

    /// Gives back the place of a command.
    fn free_place(&mut self, wire: &CommandPdu) {
        match wire.immediate {
            true => self.immediate -= 1,
            false => self.windowed -= 1,
        }
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
            CommandOutcome::Full => {
                // SAM-5, 5.3.1.
                let alone =
                    self.running.is_empty() && self.collecting.is_empty() && self.queue.is_empty();
                let status = if alone { Status::Busy } else { Status::TaskSetFull };
                self.status(tag, status, Residual::None, &[]);
            }
            CommandOutcome::Aborted => {}
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
