//! The memory of a virtual machine, and its driver, which knows the rules and may break them.

use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;

/// The length of each of the two parts of the guest's memory, which lie side by side for the guest.
pub const PART: u64 = 0x20000;
/// Where the front end has the first part; and how far behind that the second one.
pub const USER: u64 = 0x7000_0000;
/// How far behind the first part the front end has the second one.
pub const SECOND: u64 = 0x100_0000;
/// Where the parts are in the file. Nothing else in it is the server's.
const FIRST_AT: u64 = 0x1000;
const SECOND_AT: u64 = 0x22000;
const FILE_LEN: u64 = 0x43000;
const CANARY: u8 = 0xa5;

/// The length of the ring, and where it is.
pub const QUEUE_SIZE: u16 = 16;
/// Where the descriptors are.
pub const DESCRIPTORS: u64 = 0;
/// Where the available ring is.
pub const AVAILABLE: u64 = 0x1000;
/// Where the used ring is.
pub const USED: u64 = 0x2000;
/// Requests at a time of a driver that keeps the rules, each with three descriptors.
pub const SLOTS: u16 = 5;

/// Where a request of a driver that keeps the rules has its data: header and status are before it. Those of the
/// third one lie across both parts.
pub fn data(slot: u16) -> u64 {
    0x6000 + u64::from(slot) * 0xc000 + 64
}

/// Where in the file an address of the guest's is, and how much there is from there on.
fn in_file(at: u64) -> Option<(u64, usize)> {
    match at {
        0..PART => Some((FIRST_AT + at, (PART - at) as usize)),
        _ if at < 2 * PART => Some((SECOND_AT + at - PART, (2 * PART - at) as usize)),
        _ => None,
    }
}

/// The guest's memory.
pub struct GuestMemory {
    /// All of it, and more than it.
    pub file: File,
    available: Mutex<u16>,
    /// Heads that are offered and not answered, by a driver that keeps the rules.
    offered: Mutex<BTreeSet<u32>>,
    seen: Mutex<u16>,
}

impl GuestMemory {
    /// GuestMemory of zeroes.
    pub fn new() -> Self {
        let file = File::from(memfd_create("guest", MemfdFlags::CLOEXEC).expect("a memfd"));
        file.set_len(FILE_LEN).expect("room");
        for canary in [0..FIRST_AT, FIRST_AT + PART..SECOND_AT, SECOND_AT + PART..FILE_LEN] {
            let bytes = vec![CANARY; (canary.end - canary.start) as usize];
            file.write_all_at(&bytes, canary.start).expect("a write");
        }
        let (available, offered, seen) = Default::default();
        Self { file, available, offered, seen }
    }

    /// Both parts, as a front end tells them: the guest's address, the length, its own address, where in the file.
    pub fn parts() -> [[u64; 4]; 2] {
        [[0, PART, USER, FIRST_AT], [PART, PART, USER + SECOND, SECOND_AT]]
    }

    /// Cuts the file short behind so many pages of it, or makes it as long as it was.
    pub fn cut(&self, pages: Option<u8>) {
        let len = pages.map_or(FILE_LEN, |pages| FILE_LEN.min(u64::from(pages) << 12));
        self.file.set_len(len).expect("room");
    }

    /// Makes sure that nobody wrote where there is no memory of the guest; not for a file that was cut short.
    pub fn check(&self) {
        for canary in [0..FIRST_AT, FIRST_AT + PART..SECOND_AT, SECOND_AT + PART..FILE_LEN] {
            let mut bytes = vec![0; (canary.end - canary.start) as usize];
            self.file.read_exact_at(&mut bytes, canary.start).expect("a read");
            assert!(bytes.iter().all(|byte| *byte == CANARY), "memory that is not the guest's");
        }
    }

    /// Writes at an address of the guest's; what does not fit there is not written.
    pub fn put(&self, at: u64, bytes: &[u8]) {
        let Some((offset, left)) = in_file(at) else { return };
        let (now, later) = bytes.split_at(bytes.len().min(left));
        self.file.write_all_at(now, offset).expect("a write");
        if !later.is_empty() {
            self.put(at + left as u64, later);
        }
    }

    /// Reads at an address of the guest's.
    fn get<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        if let Some((offset, _)) = in_file(at) {
            // What was cut off is zeroes.
            let _ = self.file.read_at(&mut bytes, offset);
        }
        bytes
    }

    /// Writes a descriptor.
    pub fn descriptor(&self, at: u64, address: u64, len: u32, flags: u16, next: u16) {
        let fields = [
            &address.to_le_bytes()[..],
            &len.to_le_bytes(),
            &flags.to_le_bytes(),
            &next.to_le_bytes(),
        ];
        self.put(at, &fields.concat());
    }

    /// Offers a chain.
    pub fn offer(&self, head: u16) {
        let mut available = self.available.lock().expect("a lock");
        self.put(AVAILABLE + 4 + u64::from(*available % QUEUE_SIZE) * 2, &head.to_le_bytes());
        *available = available.wrapping_add(1);
        self.put(AVAILABLE + 2, &available.to_le_bytes());
    }

    /// Writes a request with three descriptors, and gives its head.
    pub fn request(&self, slot: u16, kind: u32, sector: u64, len: u32, device_writes: bool) -> u16 {
        let (head, data) = (3 * slot, data(slot));
        let header = [&kind.to_le_bytes()[..], &[0; 4], &sector.to_le_bytes()].concat();
        self.put(data - 64, &header);
        self.put(data - 1, &[0xff]);
        let of = |index: u16| DESCRIPTORS + u64::from(index) * 16;
        self.descriptor(of(head), data - 64, 16, 1, head + 1);
        self.descriptor(of(head + 1), data, len, if device_writes { 3 } else { 1 }, head + 2);
        self.descriptor(of(head + 2), data - 1, 1, 2, 0);
        head
    }

    /// Offers a request as the rules have it, if the one before in its place was answered.
    pub fn offer_by_the_rules(&self, slot: u16, kind: u32, sector: u64, len: u32) {
        if self.offered.lock().expect("a lock").insert(u32::from(3 * slot)) {
            let head = self.request(slot, kind, sector, len, kind == 0 || kind == 8);
            self.offer(head);
        }
    }

    /// Where the used ring is.
    pub fn used(&self) -> u16 {
        u16::from_le_bytes(self.get(USED + 2))
    }

    /// Takes the answers to a driver that keeps the rules; whether all has been answered.
    ///
    /// # Panics
    /// For an answer to what was not asked, or was answered before.
    pub fn take_answers(&self) -> bool {
        let (mut seen, mut offered) =
            (self.seen.lock().expect("a lock"), self.offered.lock().expect("a lock"));
        while *seen != self.used() {
            let head = u32::from_le_bytes(self.get(USED + 4 + u64::from(*seen % QUEUE_SIZE) * 8));
            assert!(offered.remove(&head), "an answer to nothing that was asked: {head}");
            let [status] = self.get::<1>(data(head as u16 / 3) - 1);
            assert!(status <= 2, "answered without a status");
            *seen = seen.wrapping_add(1);
        }
        offered.is_empty()
    }
}

impl Default for GuestMemory {
    fn default() -> Self {
        Self::new()
    }
}
