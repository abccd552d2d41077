//! One virtqueue, served by a thread of its own: it alone touches the guest's memory.
//!
//! What the device does at once (a cached read, a private write) is done here; what waits for a disk or the
//! network is carried out elsewhere and answered here. The thread sleeps in epoll(7), edge-triggered, so that
//! a kick takes one system call; before, it polls for the next request for a while, as an NBD connection
//! does, and is not kicked then.

use crate::carry::{
    AwaitedOperation, Completion, Mailbox, PIECE, carry_out, first_piece, next_piece,
};
use crate::counters::LiveCounters;
use crate::export_use::ExportUse;
use crate::held::{HeldBytes, HeldShare};
use crate::inflight;
use crate::memory::SharedRam;
use crate::request::{
    Broken, Chain, DescriptorTable, DiscardRange, ID, Operation, SpareChains, Status, grain,
};
use crate::sink::{ReadBuffer, TRIED, ToGuest};
use block::{Action, Answered, Attempt, Device, Durability, Error, Observer, Result, Span};
use nbd::server::{BusyPoll, Processors, Waits};
use rustix::event::epoll;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::num::Wrapping;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use tokio::runtime::Handle;
use tokio::time::Instant;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

/// Requests that are taken before the guest is told of those that were answered.
const BATCH: usize = 64;
/// What requests of one ring that wait may hold, in bytes; more are not taken meanwhile.
const MOST_HELD: u64 = 64 << 20;
/// Faults of the device that one ring may write into the log.
const LOGGED: u32 = 16;

/// Why a ring is not served whose disk was changed as a whole since it was begun.
const OTHER_CONTENT: &str = "the disk was rolled back, reset, rebased or replaced since the guest began to use it; what \
     the guest knows of it is wrong: reset the machine";
/// Why a ring breaks that meets a page which cannot be had.
const TORN: &str = "memory that the front end shares is not there any more";

/// What a ring works with.
pub(crate) struct RingSetup {
    pub(crate) name: String,
    pub(crate) index: u16,
    /// Its size, its addresses, and whether it has event indices.
    pub(crate) queue: Queue,
    /// The first request that is new, where nothing is known of those in flight.
    pub(crate) base: u16,
    pub(crate) memory: Arc<SharedRam>,
    pub(crate) inflight: Option<inflight::RingInflight>,
    pub(crate) kick: OwnedFd,
    pub(crate) mailbox: Arc<Mailbox>,
    pub(crate) device: Arc<dyn Device>,
    /// For whom the ring, and each request that waits, acts.
    pub(crate) usage: Arc<ExportUse>,
    /// Durability of every write: a driver that does not flush has each of them durable.
    pub(crate) durability: Durability,
    pub(crate) id: [u8; ID],
    /// A number for what the disk holds as a whole.
    pub(crate) content: Option<u64>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) counts: Arc<LiveCounters>,
    /// What all rings of its client may hold together.
    pub(crate) held: Arc<HeldBytes>,
    pub(crate) busy_poll: BusyPoll,
    pub(crate) processors: Processors,
    pub(crate) runtime: Handle,
}

/// A ring that is being served. It ends when this is dropped, too, but nobody waits for that.
#[derive(Debug)]
pub(crate) struct RunningRing {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<u16>>,
}

impl RunningRing {
    /// Serves a ring.
    ///
    /// # Errors
    /// When there are too many open files or threads; [`Invalid`](block::ErrorKind::Invalid) for a kick
    /// that cannot be waited for.
    pub(crate) fn start(setup: RingSetup) -> Result<Self> {
        let mailbox = Arc::clone(&setup.mailbox);
        setup.usage.add_ring(&mailbox);
        let ring = Ring::new(setup)?;
        let thread = std::thread::Builder::new()
            .name(format!("vq{} {}", ring.index, ring.name))
            .spawn(move || ring.run())
            .map_err(|e| Error::io("a thread for a virtqueue", e))?;
        Ok(Self { mailbox, thread: Some(thread) })
    }

    /// Waits until what is in flight is done; gives the first request that was not taken. `None` when the
    /// thread was lost by a fault of the program.
    pub(crate) fn stop(mut self) -> Option<u16> {
        self.mailbox.stop();
        self.thread.take()?.join().ok()
    }
}

impl Drop for RunningRing {
    fn drop(&mut self) {
        self.mailbox.stop();
    }
}

/// A request in flight that waits for the device.
struct PendingRequest {
    chain: Chain,
    /// All that is read or written; the device has one piece of it at a time.
    whole: Span,
    began: Option<Instant>,
    _held: HeldShare,
}

/// What became of a request that was taken.
enum TakenRequest {
    Answered,
    /// The device is to do something.
    Waits {
        work: AwaitedOperation,
        whole: Span,
        began: Option<Instant>,
        held: HeldShare,
    },
    /// There is no room for it at the moment. Nothing was done.
    Short,
}

/// What became of a write that was tried.
enum TriedWrite {
    Done(Result<()>),
    /// It waits, with the first piece of what the guest gives.
    Waits(Vec<u8>, HeldShare),
    Short,
}

/// What to do next.
#[derive(PartialEq, Eq)]
enum RingStep {
    /// There may be more to do.
    GoOn,
    /// Sleep until somebody wakes the thread.
    Sleep,
}

struct Ring {
    name: String,
    index: u16,
    queue: Queue,
    base: u16,
    memory: Arc<SharedRam>,
    inflight: Option<inflight::RingInflight>,
    /// Kept open for as long as it is waited for.
    _kick: OwnedFd,
    poll: OwnedFd,
    mailbox: Arc<Mailbox>,
    device: Arc<dyn Device>,
    grain: u64,
    durability: Durability,
    id: [u8; ID],
    content: Option<u64>,
    observer: Option<Arc<dyn Observer>>,
    counts: Arc<LiveCounters>,
    busy_poll: BusyPoll,
    processors: Processors,
    waits: Waits,
    /// Since when there is nothing in flight.
    idle: Option<Instant>,
    runtime: Handle,
    chain: Chain,
    spare: SpareChains,
    room: ReadBuffer,
    /// By their heads.
    pending: Vec<Option<PendingRequest>>,
    waiting: usize,
    /// What those that wait hold.
    held: Arc<HeldBytes>,
    /// There was no room for the next request: somebody wakes the thread when there is.
    short: bool,
    done: Vec<Completion>,
    /// Heads of requests that an earlier server left in flight.
    again: VecDeque<u16>,
    /// Something was answered that the guest may have to be told of.
    answered: bool,
    /// Nothing is done any more: the guest or the front end broke the ring.
    broken: bool,
    logged: u32,
    /// Behind the device: it goes last.
    usage: Arc<ExportUse>,
}

impl Ring {
    fn new(setup: RingSetup) -> Result<Self> {
        let RingSetup { kick, mailbox, queue, device, .. } = setup;
        let failed = |e: Errno| Error::io("waiting for a virtqueue", e.into());
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&poll, &kick, epoll::EventData::new_u64(0), flags)
            .map_err(|_| Error::invalid("what the front end kicks with cannot be waited for"))?;
        epoll::add(&poll, mailbox.wakes(), epoll::EventData::new_u64(1), flags).map_err(failed)?;
        let pending = (0..queue.size()).map(|_| None).collect();
        Ok(Self {
            name: setup.name,
            index: setup.index,
            queue,
            base: setup.base,
            memory: setup.memory,
            inflight: setup.inflight,
            _kick: kick,
            poll,
            mailbox,
            grain: grain(device.limits()),
            device,
            durability: setup.durability,
            id: setup.id,
            content: setup.content,
            observer: setup.observer,
            counts: setup.counts,
            busy_poll: setup.busy_poll,
            processors: setup.processors,
            waits: Waits::new(setup.busy_poll.most()),
            idle: None,
            runtime: setup.runtime,
            chain: Chain::default(),
            spare: SpareChains::default(),
            room: ReadBuffer::new(),
            pending,
            waiting: 0,
            held: setup.held.part(MOST_HELD),
            short: false,
            done: Vec::new(),
            again: VecDeque::new(),
            answered: false,
            broken: false,
            logged: 0,
            usage: setup.usage,
        })
    }

    fn run(mut self) -> u16 {
        while !self.usage.has_begun() {
            if self.mailbox.is_stopped() {
                return self.base;
            }
            self.sleep();
        }
        let memory = Arc::clone(&self.memory);
        memory.access(|map| self.begin(map));
        loop {
            if self.mailbox.is_given_up() {
                return self.queue.next_avail();
            }
            let next = memory.access(|map| self.turn(map));
            if memory.is_torn() && !self.broken {
                self.breaks(TORN);
            }
            if self.mailbox.is_stopped() && self.waiting == 0 {
                return self.queue.next_avail();
            }
            if next == RingStep::Sleep {
                self.sleep();
            }
        }
    }

    fn sleep(&mut self) {
        let mut events = Vec::with_capacity(2);
        match epoll::wait(&self.poll, rustix::buffer::spare_capacity(&mut events), None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => self.breaks("it cannot be waited for"),
        }
    }

    /// Nothing of the ring is touched any more.
    fn breaks(&mut self, why: &str) {
        self.broken = true;
        // Whatever seemed wrong then may have been read from what was not there.
        let why = if self.memory.is_torn() { TORN } else { why };
        tracing::warn!(export = self.name, ring = self.index, why, "a virtqueue is broken");
        self.mailbox.tell_fault();
    }

    /// Takes up the ring where it stands.
    fn begin(&mut self, memory: &GuestMemoryMmap) {
        // Where it stays if it breaks here.
        self.queue.set_next_avail(self.base);
        if let (Some(inflight), Some(content)) = (&self.inflight, self.content)
            && !inflight.is_of(content)
        {
            return self.breaks(OTHER_CONTENT);
        }
        let Ok(used) = self.queue.used_idx(memory, Ordering::Acquire) else {
            return self.breaks("its used ring is not in the guest's memory");
        };
        self.queue.set_next_used(used.0);
        let next = match &mut self.inflight {
            Some(inflight) => {
                self.again = inflight.recover(used.0).into();
                used.0.wrapping_add(self.again.len() as u16)
            }
            // A front end that lost its server takes the used ring's index for the base; what was in flight
            // may have been answered after it looked.
            None if (1..=self.queue.size()).contains(&used.0.wrapping_sub(self.base)) => used.0,
            None => self.base,
        };
        self.queue.set_next_avail(next);
        if !self.again.is_empty() {
            let requests = self.again.len();
            tracing::info!(export = self.name, requests, "requests in flight are done again");
        }
        self.queue.set_ready(true);
        if !self.queue.is_valid(memory) {
            self.breaks("it does not lie in the guest's memory");
        }
    }

    /// Answers what is done and takes what is new, for one batch.
    fn turn(&mut self, memory: &GuestMemoryMmap) -> RingStep {
        self.finish_done(memory);
        let stopped = self.mailbox.is_stopped();
        let mut taken = 0;
        let _ = self.queue.disable_notification(memory);
        self.short = false;
        while taken < BATCH && !self.broken && !stopped && !self.short {
            let Some((head, again)) = self.next_head(memory) else { break };
            if let Some(idle) = self.idle.take() {
                self.waits.waited(idle.elapsed());
            }
            self.take(memory, head, again);
            taken += 1;
        }
        if self.answered && !self.broken {
            self.answered = false;
            match self.queue.needs_notification(memory) {
                Ok(true) => self.mailbox.call(),
                Ok(false) => {}
                Err(_) => self.breaks("its rings are not in the guest's memory"),
            }
        }
        if self.broken || stopped || self.short {
            return RingStep::Sleep;
        }
        if taken == BATCH || !self.again.is_empty() || self.poll_before_sleep(memory) {
            return RingStep::GoOn;
        }
        match self.queue.enable_notification(memory) {
            Ok(true) => RingStep::GoOn,
            Ok(false) => RingStep::Sleep,
            Err(_) => {
                self.breaks("its rings are not in the guest's memory");
                RingStep::Sleep
            }
        }
    }

    /// Polls for the guest's next request before the thread sleeps, if that is worth it; whether there is
    /// something to do. The guest does not kick meanwhile.
    fn poll_before_sleep(&mut self, memory: &GuestMemoryMmap) -> bool {
        // Where requests wait, the device keeps the guest waiting.
        if self.waiting > 0 || self.busy_poll == BusyPoll::Never {
            return false;
        }
        let idle = *self.idle.get_or_insert_with(Instant::now);
        if self.waits.window().is_zero() {
            return false;
        }
        let Some(_poller) = self.processors.take(self.busy_poll) else { return false };
        let end = idle + self.waits.poll();
        let next = self.queue.next_avail();
        loop {
            // What cannot be read is found when it is taken.
            if self.queue.avail_idx(memory, Ordering::Acquire).ok() != Some(Wrapping(next)) {
                self.counts.busy_polled.fetch_add(1, Ordering::Relaxed);
                return true;
            }
            if self.mailbox.is_stopped() || Instant::now() >= end {
                return false;
            }
            (0..8).for_each(|_| std::hint::spin_loop());
        }
    }

    /// The next request, and whether it was begun by an earlier server.
    fn next_head(&mut self, memory: &GuestMemoryMmap) -> Option<(u16, bool)> {
        if let Some(head) = self.again.pop_front() {
            return Some((head, true));
        }
        // Not virtio-queue's own iterator, which says of an entry that it cannot read that there is none.
        let (next, size) = (self.queue.next_avail(), self.queue.size());
        let Ok(Wrapping(end)) = self.queue.avail_idx(memory, Ordering::Acquire) else {
            self.breaks("its rings are not in the guest's memory");
            return None;
        };
        if end == next {
            return None;
        }
        if end.wrapping_sub(next) > size {
            self.breaks("the guest offers more requests than it has room for");
            return None;
        }
        let entry = self.queue.avail_ring() + 4 + 2 * u64::from(next % size);
        let Ok(head) = memory.load(GuestAddress(entry), Ordering::Acquire).map(u16::from_le) else {
            self.breaks("its rings are not in the guest's memory");
            return None;
        };
        self.queue.set_next_avail(next.wrapping_add(1));
        Some((head, false))
    }

    fn take(&mut self, memory: &GuestMemoryMmap, head: u16, again: bool) {
        match self.pending.get(usize::from(head)) {
            Some(None) => {}
            Some(Some(_)) => return self.breaks("the guest offers a request that is in flight"),
            None => return self.breaks("the guest offers a descriptor that there is not"),
        }
        // Not even noted as in flight: there may be no such request.
        if self.memory.is_torn() {
            return self.breaks(TORN);
        }
        if let (Some(inflight), false) = (&mut self.inflight, again) {
            inflight.begin(head);
        }
        let table =
            DescriptorTable { at: GuestAddress(self.queue.desc_table()), size: self.queue.size() };
        let mut chain = std::mem::take(&mut self.chain);
        let served = match chain.take(memory, table, head) {
            Ok(()) => self.serve(memory, &chain, head),
            Err(Broken) => Err(Broken),
        };
        match served {
            Ok(TakenRequest::Answered) => self.chain = chain,
            Ok(TakenRequest::Waits { work, whole, began, held }) => {
                self.chain = self.spare.take();
                self.wait(head, PendingRequest { chain, whole, began, _held: held }, work);
            }
            Ok(TakenRequest::Short) => {
                self.chain = chain;
                self.put_back(head, again);
            }
            Err(Broken) => {
                self.chain = chain;
                self.breaks("a request points outside the guest's memory, or has no end");
            }
        }
    }

    /// Leaves a request for which there is no room to be taken later.
    fn put_back(&mut self, head: u16, again: bool) {
        self.short = true;
        if again {
            return self.again.push_front(head);
        }
        self.queue.set_next_avail(self.queue.next_avail().wrapping_sub(1));
        if let Some(inflight) = &self.inflight {
            inflight.put_back(head);
        }
    }

    /// Takes room for a request with so many bytes of data: for its first piece, and for what the guest cut it into.
    fn hold(&self, data: u64, chain: &Chain) -> Option<HeldShare> {
        // Beside a whole piece the chain is little.
        let bytes = data.saturating_add(chain.footprint()).min(PIECE);
        self.held.take(bytes, &self.mailbox)
    }

    /// Serves a request at once, or gives what it waits for.
    fn serve(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        head: u16,
    ) -> Result<TakenRequest, Broken> {
        let began = self.observer.is_some().then(Instant::now);
        let size = self.device.size();
        let operation = match chain.operation(size, self.grain) {
            Ok(operation) => operation,
            Err(status) => return self.refuse(memory, chain, head, status),
        };
        let (whole, held, work) = match operation {
            Operation::Read(span) => match self.try_read(memory, chain, span)? {
                Some(result) => {
                    let what = (span, Action::Read);
                    self.end(memory, chain, head, what, result, began)?;
                    return Ok(TakenRequest::Answered);
                }
                None => {
                    let held = self.hold(span.len(), chain);
                    let Some(held) = held else { return Ok(TakenRequest::Short) };
                    let first = first_piece(span);
                    (span, held, AwaitedOperation::Read(first, vec![0; first.len() as usize]))
                }
            },
            Operation::Write(span) => match self.try_write(memory, chain, span)? {
                TriedWrite::Done(result) => {
                    let what = (span, Action::Write);
                    self.end(memory, chain, head, what, result, began)?;
                    return Ok(TakenRequest::Answered);
                }
                TriedWrite::Short => return Ok(TakenRequest::Short),
                TriedWrite::Waits(data, held) => {
                    (span, held, AwaitedOperation::Write(first_piece(span), data, self.durability))
                }
            },
            Operation::Flush => {
                let Some(held) = self.hold(0, chain) else { return Ok(TakenRequest::Short) };
                (Span::whole(0), held, AwaitedOperation::Flush)
            }
            Operation::Discard | Operation::Zero => {
                let zero = operation == Operation::Zero;
                let ranges = match chain.ranges(memory, size, self.grain, zero) {
                    Ok(ranges) if !self.device.read_only() => ranges,
                    Ok(_) => return self.refuse(memory, chain, head, Status::IoError),
                    Err(status) => return self.refuse(memory, chain, head, status),
                };
                let held = self.hold(size_of_val(&ranges[..]) as u64, chain);
                let Some(held) = held else { return Ok(TakenRequest::Short) };
                let work = if zero { AwaitedOperation::Zero } else { AwaitedOperation::Discard };
                (Span::whole(0), held, work(ranges, self.durability))
            }
            Operation::Id => {
                let written = chain.put_id(memory, &self.id)?;
                self.answer(memory, chain, head, Status::Ok, written)?;
                return Ok(TakenRequest::Answered);
            }
        };
        self.intact()?;
        Ok(TakenRequest::Waits { work, whole, began, held })
    }

    /// Answers a request that is wrong.
    fn refuse(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        head: u16,
        status: Status,
    ) -> Result<TakenRequest, Broken> {
        self.answer(memory, chain, head, status, 0).map(|()| TakenRequest::Answered)
    }

    /// Makes sure that what was read of the guest's memory up to now was there, and what was written is.
    ///
    /// # Errors
    /// [`Broken`] where a page was missing.
    fn intact(&self) -> Result<(), Broken> {
        if self.memory.is_torn() { Err(Broken) } else { Ok(()) }
    }

    /// Reads for the guest if that needs no waiting; `None` when it does.
    fn try_read(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        span: Span,
    ) -> Result<Option<Result<()>>, Broken> {
        if span.len() > TRIED as u64 {
            return Ok(None);
        }
        let mut sink = ToGuest::new(memory, chain, &mut self.room);
        match self.device.try_read_to(span, &mut sink) {
            Ok(Attempt::Done) if sink.finish() => Ok(Some(Ok(()))),
            Ok(Attempt::Done) => Err(Broken),
            Ok(Attempt::WouldWait) => Ok(None),
            Err(e) => Ok(Some(Err(e))),
        }
    }

    /// Writes what the guest gives if that needs no waiting; else gives the first piece of it.
    fn try_write(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        span: Span,
    ) -> Result<TriedWrite, Broken> {
        let (len, first) = (span.len() as usize, first_piece(span).len() as usize);
        if len > TRIED || self.durability == Durability::Durable {
            let Some(held) = self.hold(span.len(), chain) else { return Ok(TriedWrite::Short) };
            let mut data = vec![0; first];
            chain.gather(memory, 0, &mut data)?;
            return Ok(TriedWrite::Waits(data, held));
        }
        let data = self.room.bytes(len);
        chain.gather(memory, 0, data)?;
        if self.memory.is_torn() {
            return Err(Broken);
        }
        Ok(match self.device.try_write(span, data) {
            Ok(Attempt::Done) => TriedWrite::Done(Ok(())),
            Ok(Attempt::WouldWait) => match self.hold(span.len(), chain) {
                Some(held) => TriedWrite::Waits(self.room.bytes(first).to_vec(), held),
                None => TriedWrite::Short,
            },
            Err(e) => TriedWrite::Done(Err(e)),
        })
    }

    /// Has a request wait for the device.
    fn wait(&mut self, head: u16, request: PendingRequest, work: AwaitedOperation) {
        self.pending[usize::from(head)] = Some(request);
        self.waiting += 1;
        let (device, mailbox) = (Arc::clone(&self.device), Arc::clone(&self.mailbox));
        self.runtime.spawn(carry_out(device, Arc::clone(&self.usage), mailbox, head, work));
    }

    /// Answers what the device has done.
    fn finish_done(&mut self, memory: &GuestMemoryMmap) {
        let mut done = std::mem::take(&mut self.done);
        self.mailbox.take_done(&mut done);
        for Completion { head, outcome } in done.drain(..) {
            let Some(request) = self.pending[usize::from(head)].take() else { continue };
            self.waiting -= 1;
            if self.broken {
                continue;
            }
            let Some((work, result)) = outcome else {
                self.breaks("the server ends; requests in flight are the next one's");
                continue;
            };
            if self.go_on(memory, head, request, work, result).is_err() {
                self.breaks("a request points outside the guest's memory");
            }
        }
        self.done = done;
    }

    /// Has the device do the next piece of a request, or answers it.
    fn go_on(
        &mut self,
        memory: &GuestMemoryMmap,
        head: u16,
        request: PendingRequest,
        mut work: AwaitedOperation,
        result: Result<()>,
    ) -> Result<(), Broken> {
        if result.is_ok() && self.turn_over(memory, &request, &mut work)? {
            self.wait(head, request, work);
            return Ok(());
        }
        self.finish(memory, head, &request, &work, result)?;
        self.spare.give(request.chain);
        Ok(())
    }

    /// Gives the guest the piece that was read, and takes the next one that it writes; whether there is another piece
    /// to do.
    fn turn_over(
        &self,
        memory: &GuestMemoryMmap,
        PendingRequest { chain, whole, .. }: &PendingRequest,
        work: &mut AwaitedOperation,
    ) -> Result<bool, Broken> {
        match work {
            AwaitedOperation::Read(piece, data) => {
                chain.scatter(memory, piece.index_in(*whole).start, data)?;
                let Some(next) = next_piece(*whole, *piece) else { return Ok(false) };
                data.resize(next.len() as usize, 0);
                *piece = next;
            }
            AwaitedOperation::Write(piece, data, _) => {
                let Some(next) = next_piece(*whole, *piece) else { return Ok(false) };
                data.resize(next.len() as usize, 0);
                chain.gather(memory, next.index_in(*whole).start, data)?;
                *piece = next;
            }
            _ => return Ok(false),
        }
        self.intact()?;
        Ok(true)
    }

    /// Answers what the device has done, or has failed to do.
    fn finish(
        &mut self,
        memory: &GuestMemoryMmap,
        head: u16,
        PendingRequest { chain, whole, began, .. }: &PendingRequest,
        work: &AwaitedOperation,
        result: Result<()>,
    ) -> Result<(), Broken> {
        let began = *began;
        let of_many = |ranges: &[DiscardRange], action: Action| {
            let spans = ranges.iter().map(|range| range.span);
            self.observe(spans, action, result.is_err(), began);
        };
        let what = match work {
            AwaitedOperation::Read(..) => (*whole, Action::Read),
            AwaitedOperation::Write(..) => (*whole, Action::Write),
            AwaitedOperation::Flush => (Span::whole(0), Action::Flush),
            AwaitedOperation::Discard(ranges, _) => {
                of_many(ranges, Action::Trim);
                return self.settle(memory, chain, head, result, 0);
            }
            AwaitedOperation::Zero(ranges, _) => {
                of_many(ranges, Action::Zero);
                return self.settle(memory, chain, head, result, 0);
            }
        };
        self.end(memory, chain, head, what, result, began)
    }

    /// Answers a request, and tells who observes it.
    fn end(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        head: u16,
        (span, action): (Span, Action),
        result: Result<()>,
        began: Option<Instant>,
    ) -> Result<(), Broken> {
        let failed = result.is_err();
        let read = if action == Action::Read && !failed { span.len() as u32 } else { 0 };
        self.settle(memory, chain, head, result, read)?;
        if !failed {
            match action {
                Action::Read => &self.counts.read_bytes,
                _ => &self.counts.written_bytes,
            }
            .fetch_add(span.len(), Ordering::Relaxed);
        }
        self.observe(std::iter::once(span), action, failed, began);
        Ok(())
    }

    fn observe(
        &self,
        spans: impl Iterator<Item = Span>,
        action: Action,
        failed: bool,
        began: Option<Instant>,
    ) {
        let (Some(observer), Some(began)) = (&self.observer, began) else { return };
        let durable = action == Action::Flush
            || (action != Action::Read && self.durability == Durability::Durable);
        for span in spans {
            let answered = Answered { span, action, durable, failed };
            observer.answered(began, began.elapsed(), &[answered]);
        }
    }

    /// Answers as the device did.
    fn settle(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        head: u16,
        result: Result<()>,
        written: u32,
    ) -> Result<(), Broken> {
        let status = match result {
            Ok(()) => Status::Ok,
            Err(e) => {
                if self.logged < LOGGED {
                    self.logged += 1;
                    tracing::warn!(export = self.name, error = e.message(), "a request failed");
                }
                Status::IoError
            }
        };
        self.answer(memory, chain, head, status, written)
    }

    /// Gives a request back to the guest, with so many bytes `written` beside its status.
    fn answer(
        &mut self,
        memory: &GuestMemoryMmap,
        chain: &Chain,
        head: u16,
        status: Status,
        written: u32,
    ) -> Result<(), Broken> {
        chain.put_status(memory, status)?;
        self.intact()?;
        if let Some(inflight) = &self.inflight {
            inflight.answer(head);
        }
        self.queue.add_used(memory, head, written.saturating_add(1)).map_err(|_| Broken)?;
        self.intact()?;
        if let Some(inflight) = &self.inflight {
            inflight.end(head, self.queue.next_used());
        }
        self.counts.requests.fetch_add(1, Ordering::Relaxed);
        self.answered = true;
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests;
