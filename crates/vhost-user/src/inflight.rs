//! Which requests are in flight, in memory that the front end keeps: a server that comes after this one, be
//! it killed, does them again (vhost-user, *Inflight I/O tracking*, split virtqueues).

use crate::config::QUEUE_SIZE;
use block::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Where a ring's part has what: the format's version, its length, the last batch, the used index.
const VERSION: usize = 8;
const DESCRIPTORS: usize = 10;
const LAST_HEAD: usize = 12;
const USED: usize = 14;
/// What stands before the descriptors, and what each of them takes: whether it is in flight, the next of its
/// batch, when it came.
const HEADER: usize = 16;
const ENTRY: usize = 16;
const NEXT: usize = 6;
const COUNTER: usize = 8;

/// The part of a ring begins at a multiple of this.
const ALIGNMENT: usize = 64;

/// What the disk held when the ring was begun, behind the descriptors; 0 where that is not noted. The format has
/// nothing there: it is what the alignment leaves.
const CONTENT: usize = size_of::<u64>();

/// A number for what a disk holds as a whole, of the text that tells it. FNV-1a, the same in every program.
pub(crate) fn content_number(content: &str) -> u64 {
    let step = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    content.bytes().fold(0xcbf2_9ce4_8422_2325, step).max(1)
}

/// The memory of all rings.
#[derive(Debug, Clone)]
pub(crate) struct Inflight {
    region: Arc<MmapRegion>,
    start: usize,
    queues: u16,
    /// The descriptors of each ring that there is room for.
    room: u16,
}

fn part_len(queue_size: u16) -> usize {
    (HEADER + ENTRY * usize::from(queue_size)).next_multiple_of(ALIGNMENT)
}

fn whole_len(queues: u16, queue_size: u16) -> u64 {
    (part_len(queue_size) * usize::from(queues)) as u64
}

impl Inflight {
    /// New memory for so many rings of any size, and its file: a driver may make its ring longer than
    /// the front end foresees (SeaBIOS has 256 descriptors where QEMU asks for room for 128).
    ///
    /// # Errors
    /// When the system has none.
    pub(crate) fn create(queues: u16) -> Result<(Self, File, u64)> {
        let fail = |e: rustix::io::Errno| Error::io("memory for requests in flight", e.into());
        let len = whole_len(queues, QUEUE_SIZE);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("vhost-user in flight", flags).map_err(fail)?;
        ftruncate(&file, len).map_err(fail)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(fail)?;
        let file = File::from(file);
        let again = file.try_clone().map_err(|e| Error::io("memory for requests in flight", e))?;
        Ok((Self::open(again, 0, len, queues, QUEUE_SIZE)?, file, len))
    }

    /// Memory that an earlier server made, for rings of `queue_size` descriptors as the front end has it:
    /// its length tells whether there is room for more in each.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is too short, begins where no such memory does, or cannot be
    /// mapped.
    pub(crate) fn open(
        file: File,
        offset: u64,
        len: u64,
        queues: u16,
        queue_size: u16,
    ) -> Result<Self> {
        let wrong = |why: String| Error::invalid(format!("the memory of requests in flight {why}"));
        if whole_len(queues, queue_size) > len {
            return Err(wrong(format!("is too short for {queues} rings of {queue_size}")));
        }
        let room = if len == whole_len(queues, QUEUE_SIZE) { QUEUE_SIZE } else { queue_size };
        if !offset.is_multiple_of(ALIGNMENT as u64) {
            return Err(wrong(format!("does not begin at a multiple of {ALIGNMENT} bytes")));
        }
        // mmap(2) wants a multiple of a page. The front end may name any length; no more than the rings take of
        // it is mapped.
        let start = offset % 4096;
        let len = (start + whole_len(queues, room)) as usize;
        let region = MmapRegion::from_file(FileOffset::new(file, offset - start), len)
            .map_err(|e| wrong(format!("cannot be mapped: {e}")))?;
        Ok(Self { region: Arc::new(region), start: start as usize, queues, room })
    }

    /// The same memory, mapped anew.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it cannot be mapped any more.
    pub(crate) fn map_again(&self) -> Result<Self> {
        let wrong = |why: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "the memory of requests in flight cannot be mapped again: {why}"
            ))
        };
        let file = self.region.file_offset().ok_or_else(|| wrong(&"it has no file"))?;
        let region =
            MmapRegion::from_file(file.clone(), self.region.size()).map_err(|e| wrong(&e))?;
        Ok(Self { region: Arc::new(region), ..self.clone() })
    }

    /// The mapping, to be guarded.
    pub(crate) fn region(&self) -> &Arc<MmapRegion> {
        &self.region
    }

    /// The part of a ring of so many descriptors; `None` when it has none.
    pub(crate) fn ring(&self, index: u16, size: u16) -> Option<RingInflight> {
        let fits = index < self.queues && size <= self.room;
        let (len, used) = (part_len(self.room), HEADER + ENTRY * usize::from(self.room));
        fits.then(|| RingInflight {
            region: Arc::clone(&self.region),
            start: self.start + len * usize::from(index),
            content: (len - used >= CONTENT).then_some(len - CONTENT),
            size,
            counter: 0,
        })
    }
}

/// The part of one ring. Its memory is only to be touched where it is guarded.
#[derive(Debug)]
pub(crate) struct RingInflight {
    region: Arc<MmapRegion>,
    start: usize,
    /// Where what the disk holds is noted, if there is room.
    content: Option<usize>,
    size: u16,
    /// When the next request comes.
    counter: u64,
}

impl RingInflight {
    fn load<T: vm_memory::AtomicAccess + Default>(&self, at: usize) -> T {
        let slice = self.region.as_volatile_slice();
        slice.load(self.start + at, Ordering::Acquire).unwrap_or_default()
    }

    fn store<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) {
        let slice = self.region.as_volatile_slice();
        // In bounds: the whole part was checked to be.
        let _ = slice.store(value, self.start + at, Ordering::Release);
    }

    fn entry(head: u16) -> usize {
        HEADER + ENTRY * usize::from(head)
    }

    /// Whether the disk holds what it held when the ring was begun, as far as that is known. If it is begun now, that
    /// is noted. To be asked before [`recover`](Self::recover).
    pub(crate) fn is_of(&self, content: u64) -> bool {
        let Some(at) = self.content else { return true };
        let noted = if self.load::<u16>(VERSION) == 1 { self.load::<u64>(at) } else { 0 };
        if noted == 0 {
            self.store(at, content);
        }
        noted == 0 || noted == content
    }

    /// Takes up what an earlier server left, where the used ring stands at `used`: the heads of the requests
    /// that were in flight, in the order in which they came.
    pub(crate) fn recover(&mut self, used: u16) -> Vec<u16> {
        if self.load::<u16>(VERSION) != 1 {
            (0..self.size).for_each(|head| self.store(Self::entry(head), 0_u8));
            self.store(DESCRIPTORS, self.size);
            self.store(USED, used);
            self.store(VERSION, 1_u16);
            return Vec::new();
        }
        // What was used, but killed before it was noted here.
        let mut head = self.load::<u16>(LAST_HEAD);
        let batch = used.wrapping_sub(self.load(USED));
        for _ in 0..batch.min(self.size) {
            if head >= self.size {
                break;
            }
            self.store(Self::entry(head), 0_u8);
            head = self.load(Self::entry(head) + NEXT);
        }
        self.store(USED, used);
        let mut found: Vec<(u64, u16)> = (0..self.size)
            .filter(|head| self.load::<u8>(Self::entry(*head)) == 1)
            .map(|head| (self.load(Self::entry(head) + COUNTER), head))
            .collect();
        found.sort_unstable();
        self.counter = found.last().map_or(0, |(counter, _)| counter.wrapping_add(1));
        found.into_iter().map(|(_, head)| head).collect()
    }

    /// Notes that a request came.
    pub(crate) fn begin(&mut self, head: u16) {
        if head < self.size {
            self.store(Self::entry(head) + COUNTER, self.counter);
            self.counter = self.counter.wrapping_add(1);
            self.store(Self::entry(head), 1_u8);
        }
    }

    /// Notes that it was not taken after all.
    pub(crate) fn put_back(&self, head: u16) {
        if head < self.size {
            self.store(Self::entry(head), 0_u8);
        }
    }

    /// Notes that it is about to be used; [`end`](Self::end) comes when it was.
    pub(crate) fn answer(&self, head: u16) {
        if head < self.size {
            self.store(Self::entry(head) + NEXT, self.load::<u16>(LAST_HEAD));
            self.store(LAST_HEAD, head);
        }
    }

    /// Notes that it was used, where the used ring stands at `used` now.
    pub(crate) fn end(&self, head: u16, used: u16) {
        if head < self.size {
            self.store(Self::entry(head), 0_u8);
        }
        self.store(USED, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ring() -> (Inflight, RingInflight) {
        let (inflight, _, _) = Inflight::create(2).unwrap();
        let ring = inflight.ring(1, 64).unwrap();
        (inflight, ring)
    }

    #[test]
    fn what_is_in_flight_is_found_in_the_order_in_which_it_came() {
        let (inflight, mut ring) = ring();
        assert!(ring.recover(9).is_empty());
        for head in [5, 3, 60, 7] {
            ring.begin(head);
        }
        ring.answer(3);
        ring.end(3, 10);
        ring.begin(1);
        let mut next = inflight.ring(1, 64).unwrap();
        assert_eq!(next.recover(10), vec![5_u16, 60, 7, 1]);
        next.begin(3);
        assert_eq!(inflight.ring(1, 64).unwrap().recover(10), vec![5_u16, 60, 7, 1, 3]);
        assert!(inflight.ring(0, 64).unwrap().recover(0).is_empty(), "another ring");
    }

    #[test]
    fn a_ring_is_of_what_the_disk_held_when_it_was_begun() {
        let (inflight, mut ring) = ring();
        let [one, other] = ["disk 7 1", "disk 7 2"].map(content_number);
        assert!(ring.is_of(one), "it is new");
        ring.recover(0);
        assert!(ring.is_of(one) && !ring.is_of(other));
        let last = inflight.ring(1, QUEUE_SIZE).unwrap();
        assert!(last.is_of(one) && !last.is_of(other));
        ring.begin(63);
        assert_eq!(inflight.ring(1, 64).unwrap().recover(0), [63_u16]);
        // Another ring, one of an earlier version of us, and memory without room for it.
        let mut earlier = inflight.ring(0, 64).unwrap();
        earlier.recover(0);
        assert!(earlier.is_of(other) && !earlier.is_of(one));
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let tight = Inflight::open(file, 0, 4096, 1, 63).unwrap().ring(0, 63).unwrap();
        assert!(tight.is_of(one) && tight.is_of(other));
    }

    #[test]
    fn what_was_used_before_a_kill_is_not_done_again() {
        let (inflight, mut ring) = ring();
        ring.recover(u16::MAX);
        ring.begin(5);
        ring.begin(6);
        ring.answer(6);
        // Killed between the used ring and the note.
        assert_eq!(inflight.ring(1, 64).unwrap().recover(0), vec![5_u16]);
        // Killed before the used ring: it is done again.
        ring.answer(5);
        assert_eq!(inflight.ring(1, 64).unwrap().recover(0), vec![5_u16]);
        assert!(inflight.ring(1, 64).unwrap().recover(1).is_empty());
    }

    #[test]
    fn memory_that_is_too_short_is_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let again = || file.try_clone().unwrap();
        assert!(Inflight::open(again(), 0, 4096, 4, 60).is_ok());
        assert!(Inflight::open(again(), 0, 4096, 5, 60).is_err());
        assert!(Inflight::open(again(), 0, 4096, 1, 1024).is_err());
        assert!(Inflight::open(again(), u64::MAX - 8, 4096, 1, 16).is_err());
        assert!(Inflight::open(again(), 1, 4095, 1, 16).is_err(), "not aligned");
        let inflight = Inflight::open(again(), 0, 4096, 4, 60).unwrap();
        assert!(inflight.ring(4, 60).is_none() && inflight.ring(0, 61).is_none());
    }

    #[test]
    fn no_more_is_mapped_than_the_rings_take() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        for (offset, len) in [(64, 1 << 46), (64, u64::MAX), (4096 - 64, u64::MAX - 63)] {
            let inflight = Inflight::open(file.try_clone().unwrap(), offset, len, 2, 64).unwrap();
            assert!(inflight.region.size() <= 8192, "{offset} {len:x}");
            let mut ring = inflight.ring(1, 64).unwrap();
            ring.recover(0);
            ring.begin(63);
            assert_eq!(inflight.ring(1, 64).unwrap().recover(0), [63_u16]);
        }
    }

    #[test]
    fn a_ring_may_be_longer_than_the_front_end_foresees() {
        let (inflight, file, len) = Inflight::create(2).unwrap();
        let mut ring = inflight.ring(1, 256).unwrap();
        ring.recover(0);
        ring.begin(200);
        // The front end knows of 128.
        let next = Inflight::open(file, 0, len, 2, 128).unwrap();
        assert_eq!(next.ring(1, 256).unwrap().recover(0), vec![200_u16]);
        assert!(next.ring(0, 256).unwrap().recover(0).is_empty(), "another ring");
    }

    proptest! {
        /// Whatever somebody wrote there, recovery ends, and gives heads of the ring, none twice.
        #[test]
        fn hostile_memory_is_harmless(
            bytes in prop::collection::vec(any::<u8>(), 4096),
            used in any::<u16>(),
            version in 0_u16..3,
        ) {
            let (inflight, _, _) = Inflight::create(1).unwrap();
            let slice = inflight.region.as_volatile_slice();
            slice.write(&bytes[..part_len(32)], 0).unwrap();
            slice.write_obj(version, VERSION).unwrap();
            let mut ring = inflight.ring(0, 32).unwrap();
            let found = ring.recover(used);
            let distinct: std::collections::BTreeSet<_> = found.iter().collect();
            prop_assert_eq!(distinct.len(), found.len());
            prop_assert!(found.iter().all(|head| *head < 32));
            prop_assert_eq!(inflight.ring(0, 32).unwrap().recover(used), found, "twice is once");
        }
    }
}
