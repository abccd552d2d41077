//! Rings, driven as a guest does, in memory of a file.

use super::*;
use crate::export_use::ExportUses;
use crate::inflight::Inflight;
use crate::memory::{GuestRam, RamPart};
use block::{Fault, ScriptedDevice};
use proptest::prelude::*;
use rustix::event::{EventfdFlags, eventfd};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::time::Duration;

pub(crate) const MEMORY: u64 = 1 << 20;
pub(crate) const SIZE: u16 = 16;
pub(crate) const DISK: u64 = 1 << 20;
/// Where the driver has descriptors, rings, and the memory of its requests: 32 KiB for each.
pub(crate) const DESCRIPTORS: u64 = 0;
pub(crate) const AVAILABLE: u64 = 0x1000;
pub(crate) const USED: u64 = 0x2000;
pub(crate) const BUFFERS: u64 = 0x10000;
pub(crate) const BUFFER: u64 = 0x8000;
/// The length of a request that is done in several pieces.
const LONG: u64 = (9 << 20) + 512;

/// A guest's side of a ring.
pub(crate) struct Driver {
    pub(crate) file: File,
    memory: GuestRam,
    pub(crate) kick: OwnedFd,
    /// Told that the ring is broken.
    pub(crate) fault: OwnedFd,
    available: u16,
    seen: u16,
}

impl Driver {
    pub(crate) fn new() -> Self {
        Self::of(MEMORY)
    }

    /// A guest with so much memory.
    fn of(len: u64) -> Self {
        let file = tempfile::tempfile().unwrap();
        file.set_len(len).unwrap();
        let part = RamPart { guest: 0, len, user: 0, offset: 0 };
        let memory = GuestRam::default().with(part, file.try_clone().unwrap()).unwrap();
        let event = || eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        Self { file, memory, kick: event(), fault: event(), available: 0, seen: 0 }
    }

    fn serve(&self, device: Arc<dyn Device>, inflight: Option<&Inflight>) -> RunningRing {
        self.serve_so(device, inflight, 0, BusyPoll::Never, Arc::default())
    }

    /// Serves the ring where the front end says that `base` is the first new request.
    fn serve_from(&self, device: Arc<dyn Device>, base: u16) -> RunningRing {
        self.serve_so(device, None, base, BusyPoll::Never, Arc::default())
    }

    fn serve_so(
        &self,
        device: Arc<dyn Device>,
        inflight: Option<&Inflight>,
        base: u16,
        busy_poll: BusyPoll,
        counts: Arc<LiveCounters>,
    ) -> RunningRing {
        self.serve_holding(HeldBytes::new(1 << 30), device, inflight, base, busy_poll, counts)
    }

    fn serve_holding(
        &self,
        held: Arc<HeldBytes>,
        device: Arc<dyn Device>,
        inflight: Option<&Inflight>,
        base: u16,
        busy_poll: BusyPoll,
        counts: Arc<LiveCounters>,
    ) -> RunningRing {
        let mut queue = Queue::new(SIZE).unwrap();
        queue.try_set_desc_table_address(GuestAddress(DESCRIPTORS)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(AVAILABLE)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(USED)).unwrap();
        let beside = inflight.map(|inflight| Arc::clone(inflight.region()));
        let mailbox = Mailbox::new().unwrap();
        mailbox.set_fault(Some(self.fault.try_clone().unwrap()));
        RunningRing::start(RingSetup {
            name: "test".into(),
            index: 0,
            queue,
            base,
            memory: Arc::new(SharedRam::new(Arc::clone(self.memory.map()), beside, false).unwrap()),
            inflight: inflight.map(|inflight| inflight.ring(0, SIZE).unwrap()),
            kick: self.kick.try_clone().unwrap(),
            mailbox: Arc::new(mailbox),
            device,
            usage: usage(),
            durability: Durability::Buffered,
            id: *b"0123456789abcdef0123",
            content: None,
            observer: None,
            counts,
            held,
            busy_poll,
            processors: Processors::new(2),
            runtime: Handle::current(),
        })
        .unwrap()
    }

    pub(crate) fn put(&self, at: u64, bytes: &[u8]) {
        self.file.write_all_at(bytes, at).unwrap();
    }

    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.file.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    fn descriptor(&self, index: u16, at: u64, len: u32, flags: u16, next: u16) {
        let bytes =
            [&at.to_le_bytes()[..], &len.to_le_bytes(), &flags.to_le_bytes(), &next.to_le_bytes()];
        self.put(DESCRIPTORS + u64::from(index) * 16, &bytes.concat());
    }

    /// Where request `slot` has its data; header and status are before it.
    pub(crate) fn data(slot: u16) -> u64 {
        BUFFERS + u64::from(slot) * BUFFER + 64
    }

    /// Offers a request with three descriptors from `3 * slot` on. What it gives is to be there.
    pub(crate) fn offer(
        &mut self,
        slot: u16,
        kind: u32,
        sector: u64,
        len: u32,
        device_writes: bool,
    ) {
        self.put_request(slot, kind, sector, len, device_writes);
        self.kick();
    }

    /// Offers a write to the first sector whose data lies at `data`; all else is in the memory of slot 0.
    pub(crate) fn offer_data_at(&mut self, data: u64) {
        self.put_request(0, 1, 0, 512, false);
        self.descriptor(1, data, 512, 1, 2);
        self.kick();
    }

    /// Offers a request for [`LONG`] bytes at `data`, in one piece; all else is in the memory of slot 0.
    fn offer_long(&mut self, kind: u32, sector: u64, data: u64) {
        self.put_request(0, kind, sector, 512, false);
        let device_writes = if kind == 0 { 2 } else { 0 };
        self.descriptor(1, data, LONG as u32, 1 | device_writes, 2);
        self.kick();
    }

    /// Waits until it is told that the ring is broken.
    pub(crate) async fn broken(&self) {
        let told = async {
            while rustix::io::read(&self.fault, &mut [0; 8]).is_err() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), told).await.expect("the ring is not broken");
    }

    pub(crate) fn kick(&self) {
        rustix::io::write(&self.kick, &1_u64.to_ne_bytes()).unwrap();
    }

    fn put_request(&mut self, slot: u16, kind: u32, sector: u64, len: u32, device_writes: bool) {
        self.describe(slot, kind, sector, len, device_writes);
        self.put_available(3 * slot);
    }

    /// Puts a request at the beginning of the disk into the ring whose data is in so many pieces, all of them the same
    /// `len` bytes of the memory.
    pub(crate) fn put_in_pieces(&mut self, slot: u16, kind: u32, pieces: u64, len: u32) {
        self.describe(slot, kind, 0, 0, false);
        let (table, data) = (BUFFERS + u64::from(slot) * BUFFER + 0x1000, Self::data(slot));
        let write = if kind == 0 { 2 } else { 0 };
        let mut descriptors = vec![(data - 64, 16, 1)];
        descriptors.extend((0..pieces).map(|_| (MEMORY / 2, len, 1 | write)));
        descriptors.push((data - 1, 1, 2));
        let first = ((table - DESCRIPTORS) / 16) as u16;
        for (index, (at, len, flags)) in (0..).zip(&descriptors) {
            self.descriptor(first + index, *at, *len, *flags, index + 1);
        }
        self.descriptor(3 * slot, table, descriptors.len() as u32 * 16, 4, 0);
        self.put_available(3 * slot);
    }

    fn describe(&self, slot: u16, kind: u32, sector: u64, len: u32, device_writes: bool) {
        let (head, data) = (3 * slot, Self::data(slot));
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.put(data - 64, &header);
        self.put(data - 1, &[0xff]);
        let write = if device_writes { 2 } else { 0 };
        self.descriptor(head, data - 64, 16, 1, head + 1);
        self.descriptor(head + 1, data, len, 1 | write, head + 2);
        self.descriptor(head + 2, data - 1, 1, 2, 0);
    }

    fn put_available(&mut self, head: u16) {
        self.put(AVAILABLE + 4 + u64::from(self.available % SIZE) * 2, &head.to_le_bytes());
        self.available = self.available.wrapping_add(1);
        self.put(AVAILABLE + 2, &self.available.to_le_bytes());
    }

    pub(crate) fn used(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 2))
    }

    /// Waits for the next answer; gives its slot, its length, and its status.
    pub(crate) async fn answer(&mut self) -> (u16, u32, u8) {
        while self.used() == self.seen {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let at = USED + 4 + u64::from(self.seen % SIZE) * 8;
        self.seen = self.seen.wrapping_add(1);
        let slot = u32::from_le_bytes(self.get(at)) as u16 / 3;
        let [status] = self.get(Self::data(slot) - 1);
        (slot, u32::from_le_bytes(self.get(at + 4)), status)
    }
}

/// A use that nothing was before.
fn usage() -> Arc<ExportUse> {
    let (socket, _) = UnixStream::pair().unwrap();
    ExportUses::default().enter("test", socket, Handle::current()).unwrap().0
}

/// Ends a ring away from the runtime's thread, on which its requests may wait.
async fn stop(running: RunningRing) -> Option<u16> {
    block::offload(move || Ok(running.stop())).await.unwrap()
}

/// A device without a fast path, each of whose reads and writes does as planned.
fn slow(disk: &Arc<block::Memory>, fault: Fault) -> Arc<dyn Device> {
    Arc::new(ScriptedDevice::new(Arc::clone(disk), move |_| fault))
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_answered_at_once_and_after_waiting() {
    let disk = Arc::new(block::Memory::new(DISK));
    for device in [Arc::clone(&disk) as Arc<dyn Device>, slow(&disk, Fault::None)] {
        let mut driver = Driver::new();
        let counts = Arc::new(LiveCounters::default());
        let ring = driver.serve_so(device, None, 0, BusyPoll::Never, Arc::clone(&counts));
        driver.put(Driver::data(0), &[7; 4096]);
        driver.offer(0, 1, 8, 4096, false);
        assert_eq!(driver.answer().await, (0, 1, 0), "a write");
        driver.offer(1, 0, 8, 8192, true);
        assert_eq!(driver.answer().await, (1, 8193, 0), "a read");
        let read: [u8; 8192] = driver.get(Driver::data(1));
        assert!(read[..4096] == [7; 4096] && read[4096..] == [0; 4096]);
        driver.offer(2, 4, 0, 0, false);
        assert_eq!(driver.answer().await, (2, 1, 0), "a flush");
        let range = [&8_u64.to_le_bytes()[..], &8_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
        driver.put(Driver::data(3), &range);
        driver.offer(3, 13, 0, 16, false);
        assert_eq!(driver.answer().await, (3, 1, 0), "zeroes");
        assert_eq!(disk.to_vec()[4096..8192], [0; 4096]);
        driver.offer(4, 8, 0, 20, true);
        assert_eq!(driver.answer().await, (4, 21, 0), "its name");
        assert_eq!(driver.get(Driver::data(4)), *b"0123456789abcdef0123");
        driver.offer(0, 0, DISK / 512, 512, true);
        assert_eq!(driver.answer().await, (0, 1, 1), "behind the end");
        driver.offer(0, 99, 0, 512, true);
        assert_eq!(driver.answer().await, (0, 1, 2), "nothing that is known");
        assert_eq!(stop(ring).await, Some(driver.available));
        let counted = counts.read();
        assert_eq!(counted.requests, 7, "of every kind");
        assert_eq!((counted.read_bytes, counted.written_bytes), (8192, 4096));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guest_that_is_polled_for_need_not_kick() {
    let mut driver = Driver::new();
    let counts = Arc::new(LiveCounters::default());
    let disk = Arc::new(block::Memory::new(DISK));
    let polls = BusyPoll::Always(Duration::from_secs(60));
    let ring = driver.serve_so(disk, None, 0, polls, Arc::clone(&counts));
    let mut kicks = 0;
    while counts.read().busy_polled < 3 {
        driver.put_request(0, 0, 0, 512, true);
        // VRING_USED_F_NO_NOTIFY
        if u16::from_le_bytes(driver.get(USED)) & 1 == 0 {
            driver.kick();
            kicks += 1;
        }
        assert_eq!(driver.answer().await, (0, 513, 0));
        assert!(driver.available < 10_000, "nothing is found without a kick");
    }
    assert!(kicks < driver.available);
    assert_eq!(stop(ring).await, Some(driver.available));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_fails_fails_the_request_and_no_other() {
    let disk = Arc::new(block::Memory::new(DISK));
    let mut driver = Driver::new();
    let broken = |operation| match operation {
        block::Operation::Write(_) => Fault::Fail(block::ErrorKind::NoSpace),
        _ => Fault::None,
    };
    let counts = Arc::new(LiveCounters::default());
    let device = Arc::new(ScriptedDevice::new(disk, broken));
    let ring = driver.serve_so(device, None, 0, BusyPoll::Never, Arc::clone(&counts));
    driver.offer(0, 1, 0, 512, false);
    assert_eq!(driver.answer().await, (0, 1, 1));
    driver.offer(1, 0, 0, 512, true);
    assert_eq!(driver.answer().await, (1, 513, 0));
    assert_eq!(stop(ring).await, Some(2));
    let counted = counts.read();
    assert_eq!((counted.requests, counted.read_bytes, counted.written_bytes), (2, 512, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_in_flight_is_answered_before_a_ring_stops() {
    let slow = |_| Fault::Delay(Duration::from_millis(100));
    let device = Arc::new(ScriptedDevice::new(block::Memory::new(DISK), slow));
    let mut driver = Driver::new();
    let ring = driver.serve(Arc::clone(&device) as _, None);
    for slot in 0..5 {
        driver.offer(slot, 0, 0, 512, true);
    }
    device.calls.until(|log| log.asked.len() == 5).await;
    assert_eq!(stop(ring).await, Some(5));
    assert_eq!(driver.used(), 5);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_a_server_left_in_flight_are_done_by_the_next_one() {
    let disk = Arc::new(block::Memory::new(DISK));
    let (inflight, _, _) = Inflight::create(1).unwrap();
    let mut driver = Driver::new();
    let stuck = |operation| match operation {
        block::Operation::Write(span) if span.offset() < 4096 => Fault::Hold,
        _ => Fault::None,
    };
    let device = Arc::new(ScriptedDevice::new(Arc::clone(&disk), stuck));
    // As if killed: nobody waits for its end, and its memory and rings stay as they are.
    let dead = driver.serve(Arc::clone(&device) as _, Some(&inflight));
    driver.put(Driver::data(0), &[1; 512]);
    driver.offer(0, 1, 0, 512, false);
    driver.put(Driver::data(1), &[2; 512]);
    driver.offer(1, 1, 8, 512, false);
    assert_eq!(driver.answer().await, (1, 1, 0), "the second one is done");
    driver.put(Driver::data(2), &[3; 512]);
    driver.offer(2, 1, 1, 512, false);
    device.calls.until(|log| log.held == 2).await;
    std::mem::forget(dead);
    let ring = driver.serve(Arc::clone(&disk) as _, Some(&inflight));
    let mut answered = [driver.answer().await, driver.answer().await];
    answered.sort_unstable();
    assert_eq!(answered, [(0, 1, 0), (2, 1, 0)]);
    let bytes = disk.to_vec();
    assert_eq!((bytes[0], bytes[512], bytes[4096]), (1, 3, 2));
    assert_eq!(stop(ring).await, Some(3));
    assert!(inflight.ring(0, SIZE).unwrap().recover(3).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_answered_after_the_front_end_looked_is_not_done_again() {
    let disk = Arc::new(block::Memory::new(DISK));
    let mut driver = Driver::new();
    let ring = driver.serve(Arc::clone(&disk) as _, None);
    for slot in 0..3 {
        driver.offer(slot, 0, 0, 512, true);
        assert_eq!(driver.answer().await, (slot, 513, 0));
    }
    assert_eq!(stop(ring).await, Some(3));
    // The guest has three answers, the front end saw two, and a fourth request waits.
    let ring = driver.serve_from(Arc::clone(&disk) as _, 2);
    driver.offer(2, 0, 0, 512, true);
    assert_eq!(driver.answer().await, (2, 513, 0));
    assert_eq!(stop(ring).await, Some(4));
    assert_eq!(driver.used(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_that_goes_away_breaks_the_ring_and_nothing_else() {
    let disk = Arc::new(block::Memory::new(DISK));
    let mut driver = Driver::new();
    let ring = driver.serve(Arc::clone(&disk) as _, None);
    driver.offer(0, 0, 0, 512, true);
    assert_eq!(driver.answer().await, (0, 513, 0));
    driver.file.set_len(BUFFERS).unwrap();
    rustix::io::write(&driver.kick, &1_u64.to_ne_bytes()).unwrap();
    // Requests of 16 descriptors, all of them in memory that there is not any more.
    driver.descriptor(0, BUFFERS, 16, 1, 1);
    driver.descriptor(1, BUFFERS + 512, 1, 2, 0);
    driver.put(AVAILABLE + 4 + 2, &0_u16.to_le_bytes());
    driver.put(AVAILABLE + 2, &2_u16.to_le_bytes());
    rustix::io::write(&driver.kick, &1_u64.to_ne_bytes()).unwrap();
    assert!(stop(ring).await.is_some(), "the thread was lost");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_that_is_not_there_is_not_written_to_the_disk() {
    let disk = Arc::new(block::Memory::new(DISK));
    disk.write(Span::between(0, 512), &[9; 512], Durability::Buffered).await.unwrap();
    for device in [Arc::clone(&disk) as Arc<dyn Device>, slow(&disk, Fault::None)] {
        let (inflight, _, _) = Inflight::create(1).unwrap();
        let mut driver = Driver::new();
        let ring = driver.serve(device, Some(&inflight));
        driver.file.set_len(BUFFERS + BUFFER).unwrap();
        driver.offer_data_at(BUFFERS + BUFFER);
        driver.broken().await;
        assert!(stop(ring).await.is_some());
        let [status] = driver.get(Driver::data(0) - 1);
        assert_eq!((driver.used(), status), (0, 0xff), "it was answered");
        assert_eq!(disk.to_vec()[..512], [9; 512]);
        assert_eq!(inflight.ring(0, SIZE).unwrap().recover(0), [0_u16], "it is in flight");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_the_ring_that_cannot_be_read_breaks_it() {
    let mut driver = Driver::new();
    driver.file.set_len(MEMORY + 0x1000).unwrap();
    // The first entry lies in two parts of the memory, one byte in each.
    let cut = AVAILABLE + 5;
    let part = |guest, end, user, offset| RamPart { guest, len: end - guest, user, offset };
    driver.memory =
        [part(0, cut, 0, 0), part(cut, USED, 1 << 32, MEMORY), part(USED, MEMORY, USED, USED)]
            .into_iter()
            .fold(GuestRam::default(), |ram, part| {
                ram.with(part, driver.file.try_clone().unwrap()).unwrap()
            });
    let ring = driver.serve(Arc::new(block::Memory::new(DISK)), None);
    driver.offer(0, 0, 0, 512, true);
    driver.broken().await;
    assert!(stop(ring).await.is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_request_is_done_piece_by_piece() {
    let disk = Arc::new(block::Memory::new(16 << 20));
    let device = Arc::new(ScriptedDevice::new(Arc::clone(&disk), |_| Fault::None));
    let mut driver = Driver::of(MEMORY + LONG);
    let ring = driver.serve(Arc::clone(&device) as _, None);
    let bytes: Vec<u8> = (0..LONG).map(|at| (at / 512 % 251) as u8).collect();
    driver.put(MEMORY, &bytes);
    driver.offer_long(1, 3, MEMORY);
    assert_eq!(driver.answer().await, (0, 1, 0), "a write");
    assert!(disk.to_vec()[3 * 512..][..LONG as usize] == bytes);
    driver.put(MEMORY, &vec![0; LONG as usize]);
    driver.offer_long(0, 3, MEMORY);
    assert_eq!(driver.answer().await, (0, LONG as u32 + 1, 0), "a read");
    let mut read = vec![0; LONG as usize];
    driver.file.read_exact_at(&mut read, MEMORY).unwrap();
    assert!(read == bytes);
    let log = device.calls.log();
    assert_eq!(log.count(|call| matches!(call, block::Operation::Write(_))), 3);
    assert!(
        log.count(|call| matches!(call, block::Operation::Read(span) if span.len() <= PIECE)) == 3
    );
    drop(log);
    assert_eq!(stop(ring).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_piece_that_fails_ends_its_request() {
    let disk = Arc::new(block::Memory::new(16 << 20));
    let broken = |operation| match operation {
        block::Operation::Read(span) | block::Operation::Write(span) => match span.offset() {
            0x40_0000 => Fault::Fail(block::ErrorKind::NoSpace),
            _ => Fault::None,
        },
        _ => Fault::None,
    };
    let device = Arc::new(ScriptedDevice::new(disk, broken));
    let counts = Arc::new(LiveCounters::default());
    let mut driver = Driver::of(MEMORY + LONG);
    let all = BusyPoll::Never;
    let ring = driver.serve_so(Arc::clone(&device) as _, None, 0, all, Arc::clone(&counts));
    for kind in [0, 1] {
        driver.offer_long(kind, 0, MEMORY);
        assert_eq!(driver.answer().await, (0, 1, 1), "{kind}");
    }
    assert_eq!(device.calls.log().asked.len(), 4, "nothing behind the piece that failed");
    assert_eq!(counts.read().read_bytes + counts.read().written_bytes, 0);
    assert_eq!(stop(ring).await, Some(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_wait_hold_a_bounded_amount_of_memory() {
    const LEN: u32 = 32 << 20;
    let disk = Arc::new(block::Memory::new(u64::from(LEN)));
    let device = Arc::new(ScriptedDevice::new(disk, |_| Fault::Hold));
    let mut driver = Driver::new();
    let (held, counts) = (HeldBytes::new(2 * PIECE), Arc::default());
    let disk = Arc::clone(&device) as _;
    let ring = driver.serve_holding(held, disk, None, 0, BusyPoll::Never, counts);
    // Long writes, all of the same half of the memory: a table of pieces for each.
    let pieces = u64::from(LEN) / (MEMORY / 2);
    for slot in 0..SIZE / 3 {
        driver.put_in_pieces(slot, 1, pieces, (MEMORY / 2) as u32);
    }
    driver.kick();
    let most = 2;
    device.calls.until(|log| log.held == most).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    let long = |call: &block::Operation| matches!(call, block::Operation::Write(span) if span.len() > PIECE);
    let log = device.calls.log();
    assert_eq!((log.held, log.count(long)), (most, 0), "more than there is room for");
    drop(log);
    device.calls.release(1000);
    let mut answered = Vec::new();
    for _ in 0..SIZE / 3 {
        answered.push(driver.answer().await);
    }
    answered.sort_unstable();
    assert!((0..SIZE / 3).map(|slot| (slot, 1, 0)).eq(answered));
    assert_eq!(stop(ring).await, Some(SIZE / 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_without_data_hold_what_the_guest_cut_them_into() {
    const PIECES: u64 = 1000;
    // Of one more than a thousand pieces of 16 bytes each.
    const CHAIN: u64 = 16 << 10;
    let disk = Arc::new(block::Memory::new(DISK));
    let device = Arc::new(ScriptedDevice::new(disk, |_| Fault::Hold));
    let mut driver = Driver::new();
    let (all, other) = (HeldBytes::new(PIECE), Arc::new(Mailbox::new().unwrap()));
    let rest = all.take(PIECE - 2 * CHAIN - CHAIN / 2, &other).unwrap();
    let (served, counts) = (Arc::clone(&device) as _, Arc::default());
    let ring = driver.serve_holding(all, served, None, 0, BusyPoll::Never, counts);
    for slot in 0..SIZE / 3 {
        driver.put_in_pieces(slot, 4, PIECES, 1);
    }
    driver.kick();
    device.calls.until(|log| log.held >= 2).await;
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!(device.calls.log().held, 2, "more than there is room for");
    drop(rest);
    device.calls.until(|log| log.held == usize::from(SIZE / 3)).await;
    device.calls.release(1000);
    let mut answered = Vec::new();
    for _ in 0..SIZE / 3 {
        answered.push(driver.answer().await);
    }
    answered.sort_unstable();
    assert!((0..SIZE / 3).map(|slot| (slot, 1, 0)).eq(answered));
    assert_eq!(stop(ring).await, Some(SIZE / 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_found_no_room_are_left_to_whoever_comes_next() {
    let disk = Arc::new(block::Memory::new(16 << 20));
    for tracks in [false, true] {
        let (inflight, _, _) = Inflight::create(1).unwrap();
        let inflight = tracks.then_some(&inflight);
        let device = Arc::new(ScriptedDevice::new(Arc::clone(&disk), |_| Fault::Hold));
        let mut driver = Driver::new();
        let (held, counts) = (HeldBytes::new(PIECE), Arc::default());
        let short = Arc::clone(&device) as _;
        let ring = driver.serve_holding(held, short, inflight, 0, BusyPoll::Never, counts);
        // A read that takes all of the room, in eight parts of the guest's memory, and a write.
        driver.put_request(0, 0, 0, PIECE as u32, true);
        driver.descriptor(1, MEMORY / 2, PIECE as u32 / 8, 3, 3);
        for index in 3..9 {
            driver.descriptor(index, MEMORY / 2, PIECE as u32 / 8, 3, index + 1);
        }
        driver.descriptor(9, MEMORY / 2, PIECE as u32 / 8, 3, 2);
        driver.put_request(4, 1, 0, 512, false);
        driver.kick();
        device.calls.until(|log| log.held == 1).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let mut stopped = tokio::task::JoinSet::new();
        stopped.spawn(stop(ring));
        tokio::time::sleep(Duration::from_millis(100)).await;
        device.calls.release(100);
        assert_eq!(
            stopped.join_next().await.unwrap().unwrap(),
            Some(1),
            "the second one is not taken"
        );
        assert_eq!(driver.used(), 1);
        if let Some(inflight) = inflight {
            assert!(inflight.ring(0, SIZE).unwrap().recover(1).is_empty());
        }
        let ring =
            driver.serve_so(Arc::clone(&disk) as _, inflight, 1, BusyPoll::Never, Arc::default());
        assert_eq!(driver.answer().await, (0, PIECE as u32 + 1, 0));
        assert_eq!(driver.answer().await, (4, 1, 0));
        assert_eq!(stop(ring).await, Some(2));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever a guest has in its memory, the ring can be stopped, and its thread does not fall.
    #[test]
    fn hostile_rings_are_harmless(
        seed in prop::collection::vec(any::<u8>(), 0x3000),
        small in any::<bool>(),
        available in 0_u16..40,
    ) {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let mut driver = Driver::new();
            driver.put(0, &seed);
            if small {
                // Descriptors that point into the memory, and at each other.
                for index in 0..SIZE {
                    let byte = |i: usize| seed[usize::from(index) * 16 + i];
                    let at = u64::from(byte(0)) << 12 | u64::from(byte(1));
                    let len = u32::from(byte(2)) << 4;
                    let next = u16::from(byte(4) % 20);
                    driver.descriptor(index, at, len, u16::from(byte(3) % 8), next);
                    let head = u16::from(byte(5) % 17);
                    driver.put(AVAILABLE + 4 + u64::from(index) * 2, &head.to_le_bytes());
                }
            }
            driver.put(USED + 2, &[0, 0]);
            driver.put(AVAILABLE + 2, &available.to_le_bytes());
            let (inflight, _, _) = Inflight::create(1).unwrap();
            let disk = Arc::new(block::Memory::new(DISK));
            let ring = driver.serve(disk, Some(&inflight));
            driver.available = available;
            rustix::io::write(&driver.kick, &1_u64.to_ne_bytes()).unwrap();
            assert!(stop(ring).await.is_some());
        });
    }
}
