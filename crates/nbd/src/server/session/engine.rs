//! From requests to the device and back: checks, the fast path, and what waits.

use super::checked::{CheckedRequest, RequestKind};
use super::observing::Observing;
use super::options::ALLOCATION_ID;
use super::replies::Replies;
use crate::codec::constants::command;
use crate::codec::reply::{self, Mark};
use crate::codec::request::RequestHeader;
use crate::codec::{ReplyStyle, fault};
use crate::server::counters::latency::{Meter, Timer};
use crate::server::counters::traffic::Traffic;
use crate::server::schedule::budget::{Budget, ConnectionHolds};
use crate::server::schedule::spare::SpareBuffers;
use block::{Attempt, Device, Durability, Error, ErrorKind, Extent, Observer, Result};
use check::RequestRefusal;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::Semaphore;
use tokio::time::Instant;
use waiting::{Answer, EXTENTS, PIECE, run};

mod check;
mod waiting;

/// Replies of reads up to this length are gathered; longer ones are sent from their own buffer.
const GATHERED: usize = 16 << 10;
/// The longest read that is tried straight into the send queue.
const TRIED_IN_PLACE: u64 = 256 << 10;
/// What a request in flight costs beside its payload, in bytes.
const OVERHEAD: usize = 512;
/// Requests of one connection that wait for the device at a time: one client does not fill the
/// queue of the disk.
const MOST_WAITING: usize = 256;
/// What a block status reply may take, in bytes.
const STATUS_REPLY: usize = EXTENTS * size_of::<Extent>();
/// Surveys of one connection that go on at a time; more wait for these. Each takes the processor for as
/// long as a client has made its disk's map fine, and all that go on are polled in one go.
const SURVEYS: usize = 4;
/// What a survey counts as among the work of a connection: as so many requests.
const SURVEY_WORK: u64 = 32;
/// Requests in flight, of those that change something and of the others, whose answers are taken in one go;
/// surveys count as above.
const ANSWERS: u64 = 128;
/// Faults of the device that one connection may write into the log.
const LOGGED_FAULTS: u32 = 16;

/// What the engine works for.
pub(super) struct EngineSetup {
    pub(super) device: Arc<dyn Device>,
    pub(super) export: String,
    pub(super) style: ReplyStyle,
    pub(super) allocation: bool,
    pub(super) max_request: u32,
    pub(super) in_flight_bytes: usize,
    /// What all connections together may hold, and its client's part of it.
    pub(super) budget: Arc<Budget>,
    pub(super) part: Arc<Budget>,
    pub(super) meter: Arc<Meter>,
    pub(super) observer: Option<Arc<dyn Observer>>,
    /// Whether the client is to look elsewhere for an export that another server took.
    pub(super) goes_on_elsewhere: bool,
}

type InFlight = FuturesUnordered<BoxFuture<'static, Completion>>;

/// The requests of one connection.
pub(super) struct Engine {
    terms: EngineSetup,
    longest: u64,
    minimum: u64,
    read_only: bool,
    pub(super) replies: Replies,
    pub(super) spare: SpareBuffers,
    pub(super) tally: Traffic,
    pub(super) timer: Timer,
    observing: Observing,
    head: Vec<u8>,
    /// Requests in flight that change what later ones find, or make that durable.
    changes: InFlight,
    /// The others: they may be abandoned.
    reads: InFlight,
    /// What these hold of `charged`.
    charged_reads: usize,
    /// Who may survey.
    surveys: Arc<Semaphore>,
    charged: usize,
    held: ConnectionHolds,
    faults: u32,
    /// Another server has the export, and the client finds it there.
    pub(super) is_elsewhere: bool,
}

/// A request that was answered by waiting.
struct Completion {
    work: CheckedRequest,
    /// When it was put in flight.
    since: Instant,
    charge: usize,
    result: Result<Answer>,
    /// A payload buffer that is free again.
    free: Option<Vec<u8>>,
}

/// A request that has been answered, if there is one.
#[inline]
fn poll_one(in_flight: &mut InFlight, cx: &mut Context<'_>) -> Option<Completion> {
    if in_flight.is_empty() {
        return None; // asking costs locked instructions
    }
    match in_flight.poll_next_unpin(cx) {
        Poll::Ready(completion) => completion,
        Poll::Pending => None,
    }
}

impl Engine {
    pub(super) fn new(terms: EngineSetup) -> Self {
        Self {
            longest: u64::from(terms.device.limits().maximum),
            minimum: u64::from(terms.device.limits().minimum),
            read_only: terms.device.read_only(),
            held: ConnectionHolds::new(&terms.part, &terms.budget),
            observing: Observing::new(terms.observer.clone()),
            spare: SpareBuffers::of(terms.budget.spare()),
            terms,
            replies: Replies::new(),
            tally: Traffic::default(),
            timer: Timer::new(),
            head: Vec::with_capacity(64),
            changes: FuturesUnordered::new(),
            reads: FuturesUnordered::new(),
            charged_reads: 0,
            surveys: Arc::new(Semaphore::new(SURVEYS)),
            charged: 0,
            faults: 0,
            is_elsewhere: false,
        }
    }

    pub(super) fn style(&self) -> ReplyStyle {
        self.terms.style
    }

    /// The name of the export.
    pub(super) fn export(&self) -> &str {
        &self.terms.export
    }

    /// How many requests are in flight.
    pub(super) fn in_flight(&self) -> usize {
        self.changes.len() + self.reads.len()
    }

    /// Whether a request in flight may still change something behind what others do.
    pub(super) fn has_changes_in_flight(&self) -> bool {
        !self.changes.is_empty()
    }

    /// Gives up the requests in flight that change nothing: nobody takes their answers, and a store that is away may
    /// hold them for long.
    pub(super) fn abandon_reads(&mut self) {
        if !self.reads.is_empty() {
            self.reads = FuturesUnordered::new();
            self.charged -= std::mem::take(&mut self.charged_reads);
        }
    }

    /// Whether this request may be let in now.
    #[inline]
    pub(super) fn has_room(&mut self, request: &RequestHeader, payload: u64) -> bool {
        let payload = match request.command {
            command::READ => request.len,
            command::BLOCK_STATUS => STATUS_REPLY as u64,
            _ => payload,
        };
        let held = self.charged + self.replies.unsent();
        let needed = (held as u64).saturating_add(payload.min(self.max_payload()));
        (held == 0 || needed <= self.terms.in_flight_bytes as u64)
            && self.in_flight() < MOST_WAITING
            && self.held.covers(needed)
    }

    /// Takes over answers of another process that the client has not taken: what they hold is charged
    /// whether there is room for it or not.
    pub(super) fn owe(&mut self, unsent: &[u8]) {
        self.replies.push(unsent);
        self.held.owe(self.replies.unsent() as u64);
    }

    /// Gives the part of the server's budget back that is not needed any more.
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        self.held.settle((self.charged + self.replies.unsent()) as u64, cx.waker());
    }

    /// How much of the server's budget the connection holds, in bytes.
    pub(super) fn budget_held(&self) -> u64 {
        self.held.bytes()
    }

    /// Whether others wait for what it holds.
    pub(super) fn is_in_the_way(&self) -> bool {
        self.held.is_in_the_way()
    }

    /// The longest payload of a write.
    pub(super) fn max_payload(&self) -> u64 {
        u64::from(self.terms.max_request)
    }

    /// The answers of a batch were handed to the system.
    #[inline]
    pub(super) fn answered(&mut self) {
        let began = self.timer.now();
        let took = self.timer.answered(&self.terms.meter, &self.tally);
        self.observing.answered(began, took);
    }

    /// Counts bytes of a payload that is being received.
    pub(super) fn charge(&mut self, bytes: usize) {
        self.charged += bytes;
    }

    /// Takes [`charge`](Self::charge) back.
    pub(super) fn discharge(&mut self, bytes: usize) {
        self.charged -= bytes;
    }

    /// Answers a request that has no payload, or puts it in flight.
    #[inline]
    pub(super) fn take(&mut self, request: &RequestHeader) {
        match self.check(request) {
            Ok(work) if work.is_nothing() => self.done(work),
            Ok(work) => match work.kind {
                RequestKind::Read => self.read(work),
                _ => self.wait(work, None),
            },
            Err(refusal) => self.refuse(request, &refusal),
        }
    }

    /// Looks at a write before its payload is there; `None` when it was refused, so that its
    /// payload is to be skipped.
    #[inline]
    pub(super) fn admit(&mut self, request: &RequestHeader) -> Option<CheckedRequest> {
        match self.check(request) {
            Ok(work) => Some(work),
            Err(refusal) => {
                self.refuse(request, &refusal);
                None
            }
        }
    }

    /// Answers a write whose payload lies in the receive buffer, or puts it in flight with a copy.
    #[inline]
    pub(super) fn write(&mut self, work: CheckedRequest, payload: &[u8]) {
        if work.is_nothing() {
            self.done(work);
        } else if !self.tried(work, payload) {
            let mut copy = self.spare.take(payload.len());
            copy.copy_from_slice(payload);
            self.wait(work, Some(copy));
        }
    }

    /// Answers a write whose payload has its own buffer, or puts it in flight.
    pub(super) fn write_owned(&mut self, work: CheckedRequest, payload: Vec<u8>) {
        if self.tried(work, &payload) {
            self.spare.give(payload);
        } else {
            self.wait(work, Some(payload));
        }
    }

    /// Refuses a request outright.
    pub(super) fn reject(&mut self, request: &RequestHeader, number: u32, message: String) {
        self.refuse(request, &RequestRefusal { number, message });
    }

    #[inline]
    fn read(&mut self, work: CheckedRequest) {
        let len = work.span.len();
        self.head.clear();
        reply::put_read_head(self.terms.style, work.mark, len as u32, &mut self.head);
        if len > TRIED_IN_PLACE.min(self.longest) {
            return self.wait(work, None);
        }
        let before = self.replies.mark();
        self.replies.push(&self.head);
        let promised = self.replies.unsent() + len as usize;
        match self.terms.device.try_read_to(work.span, &mut self.replies) {
            Ok(Attempt::Done) if self.replies.unsent() == promised => {
                self.observing.note(work, false);
                self.count(work);
            }
            Ok(Attempt::Done) => {
                self.replies.take_back(before);
                self.observing.note(work, true);
                self.fail(work, &Error::internal("a device gave a read of another length"));
            }
            Ok(Attempt::WouldWait) => {
                self.replies.take_back(before);
                self.wait(work, None);
            }
            Err(e) => {
                self.replies.take_back(before);
                self.observing.note(work, true);
                self.fail(work, &e);
            }
        }
    }

    /// Tries a write on the spot; false when it has to wait.
    #[inline]
    fn tried(&mut self, work: CheckedRequest, payload: &[u8]) -> bool {
        if work.durability == Durability::Durable || work.span.len() > self.longest.min(PIECE) {
            return false;
        }
        match self.terms.device.try_write(work.span, payload) {
            Ok(Attempt::Done) => {
                self.observing.note(work, false);
                self.done(work);
            }
            Ok(Attempt::WouldWait) => return false,
            Err(e) => {
                self.observing.note(work, true);
                self.fail(work, &e);
            }
        }
        true
    }

    /// Puts a request in flight.
    fn wait(&mut self, work: CheckedRequest, payload: Option<Vec<u8>>) {
        let data = match (payload, work.kind) {
            (Some(payload), _) => payload,
            (None, RequestKind::Read) => self.spare.take(work.span.len() as usize),
            (None, _) => Vec::new(),
        };
        let reply = if matches!(work.kind, RequestKind::Status { .. }) { STATUS_REPLY } else { 0 };
        let charge = OVERHEAD + data.len() + reply;
        self.charged += charge;
        self.tally.waited += 1;
        let device = Arc::clone(&self.terms.device);
        let (longest, since) = (self.longest, self.timer.now());
        let surveys = work.is_survey().then(|| Arc::clone(&self.surveys));
        let in_flight = if work.changes() {
            &mut self.changes
        } else {
            self.charged_reads += charge;
            &mut self.reads
        };
        in_flight.push(Box::pin(async move {
            let _turn = match &surveys {
                Some(surveys) => surveys.acquire().await.ok(),
                None => None,
            };
            let (result, free) = run(&*device, work, data, longest).await;
            Completion { work, since, charge, result, free }
        }));
    }

    /// Takes the answers of requests in flight, up to a bound; `None` when there was none, and else
    /// there may be more. Gives the work of those that did not count as any when they were taken.
    pub(super) fn poll_waiting(&mut self, cx: &mut Context<'_>) -> Option<u64> {
        let (mut answers, mut surveyed) = (0, None);
        while answers < ANSWERS
            && let Some(completion) = poll_one(&mut self.changes, cx)
        {
            answers += 1;
            surveyed = Some(0);
            self.complete(completion);
        }
        answers = 0;
        while answers < ANSWERS
            && let Some(completion) = poll_one(&mut self.reads, cx)
        {
            let work = if completion.work.is_survey() { SURVEY_WORK } else { 0 };
            answers += work.max(1);
            surveyed = Some(surveyed.unwrap_or(0) + work);
            self.complete(completion);
        }
        surveyed
    }

    fn complete(&mut self, completion: Completion) {
        let Completion { work, since, charge, result, free } = completion;
        self.charged -= charge;
        if !work.changes() {
            self.charged_reads -= charge;
        }
        let timed = work.kind.operation().filter(|_| result.is_ok());
        let took = timed.map(|operation| self.timer.waited(&self.terms.meter, operation, since));
        self.observing.waited(since, took, work, result.is_err());
        if let Some(buffer) = free {
            self.spare.give(buffer);
        }
        match result {
            Ok(Answer::Done) => self.done(work),
            Ok(Answer::Data(data)) => {
                self.head.clear();
                let len = data.len() as u32;
                reply::put_read_head(self.terms.style, work.mark, len, &mut self.head);
                self.replies.push(&self.head);
                if data.len() <= GATHERED {
                    self.replies.push(&data);
                    self.spare.give(data);
                } else {
                    self.replies.push_long(data);
                }
                self.count(work);
            }
            Ok(Answer::Extents(list)) => {
                self.head.clear();
                let style = self.terms.style;
                reply::put_extents(style, work.mark, ALLOCATION_ID, &list, &mut self.head);
                self.replies.push(&self.head);
                self.count(work);
            }
            Err(e) => self.fail(work, &e),
        }
    }

    #[inline]
    fn done(&mut self, work: CheckedRequest) {
        self.head.clear();
        reply::put_done(self.terms.style, work.mark, &mut self.head);
        self.replies.push(&self.head);
        self.count(work);
    }

    #[inline]
    fn count(&mut self, work: CheckedRequest) {
        let (tally, bytes) = (&mut self.tally, work.span.len());
        match work.kind {
            RequestKind::Read => {
                tally.reads += 1;
                tally.read_bytes += bytes;
            }
            RequestKind::Write => {
                tally.writes += 1;
                tally.written_bytes += bytes;
            }
            RequestKind::Flush => tally.flushes += 1,
            RequestKind::Trim => {
                tally.trims += 1;
                tally.trimmed_bytes += bytes;
            }
            RequestKind::Zero(_) => {
                tally.zeroes += 1;
                tally.zeroed_bytes += bytes;
            }
            RequestKind::Cache => tally.prefetches += 1,
            RequestKind::Status { .. } => tally.block_statuses += 1,
        }
    }

    /// Answers with a device's error.
    #[cold]
    fn fail(&mut self, work: CheckedRequest, error: &Error) {
        let expected = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported);
        if !expected && self.faults < LOGGED_FAULTS {
            self.faults += 1;
            let last = self.faults == LOGGED_FAULTS;
            tracing::warn!(
                export = %self.terms.export, offset = work.span.offset(), len = work.span.len(),
                %error, last, "a request failed"
            );
        }
        if error.kind() == ErrorKind::Fenced && self.terms.goes_on_elsewhere {
            self.is_elsewhere = true;
            return;
        }
        self.error(work.mark, fault::number(error.kind()), error.message());
    }

    #[cold]
    fn refuse(&mut self, request: &RequestHeader, refusal: &RequestRefusal) {
        tracing::debug!(export = %self.terms.export, message = refusal.message, "refused");
        let mark = Mark { cookie: request.cookie, offset: request.offset };
        self.error(mark, refusal.number, &refusal.message);
    }

    fn error(&mut self, mark: Mark, number: u32, message: &str) {
        self.head.clear();
        reply::put_error(self.terms.style, mark, number, message, &mut self.head);
        self.replies.push(&self.head);
        self.head.shrink_to(64); // a text may be long
        self.tally.errors += 1;
    }
}
