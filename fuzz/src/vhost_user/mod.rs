//! A virtual machine's side of vhost-user: its memory, its driver and its front end, all of which may
//! mean harm; and the disk that they use, which checks what it is asked for.

mod disk;
mod front_end;
mod memory;

pub use disk::{CheckedDisk, DISK_SIZE, DiskPlan, ONE, OneDisk};
pub use front_end::{AnyFile, FrontEnd, message};
pub use memory::{
    AVAILABLE, DESCRIPTORS, GuestMemory, PART, QUEUE_SIZE, SECOND, SLOTS, USED, USER, data,
};

use std::time::{Duration, Instant};

/// How long there may be something to do.
const PATIENCE: Duration = Duration::from_secs(10);

/// What an input says, taken bit by bit; nothing but zeroes behind its end.
pub struct InputBytes<'a>(pub &'a [u8]);

impl<'a> InputBytes<'a> {
    /// Whether there is more.
    pub fn is_over(&self) -> bool {
        self.0.is_empty()
    }

    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next `len` bytes, or what is left.
    pub fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// The next two bytes as a number.
    pub fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// A number: one that means something here, near one, or any.
    pub fn number(&mut self) -> u64 {
        const NUMBERS: [u64; 15] = [
            0,
            1,
            AVAILABLE,
            USED,
            PART - 2,
            PART,
            2 * PART,
            USER,
            USER + SECOND,
            u32::MAX as u64,
            1 << 32,
            1 << 46,
            i64::MAX as u64,
            u64::MAX - 0xfff,
            u64::MAX,
        ];
        let how = self.byte();
        let Some(number) = NUMBERS.get(usize::from(how & 15)) else {
            let mut any = [0; 8];
            let given = self.bytes(8);
            any[..given.len()].copy_from_slice(given);
            return u64::from_le_bytes(any);
        };
        match how >> 4 {
            0 => *number,
            1..8 => number.wrapping_add(u64::from(self.byte())),
            _ => number.wrapping_sub(u64::from(self.byte())),
        }
    }
}

/// Waits until no thread of this process but this one has anything to do.
///
/// # Panics
/// When that does not come.
pub fn rest() {
    let (mut quiet, began) = (0, Instant::now());
    while quiet < 2 {
        quiet = if others_sleep() { quiet + 1 } else { 0 };
        assert!(began.elapsed() < PATIENCE, "a thread has something to do for ever");
        if quiet == 0 {
            std::thread::sleep(Duration::from_micros(20));
        }
    }
}

/// Whether all threads but one sleep. On a busy machine one that has something to do need not run, but it does not
/// sleep either.
fn others_sleep() -> bool {
    let awake = |thread: std::io::Result<std::fs::DirEntry>| {
        // A thread that has ended has no such file.
        let state = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
        state
            .is_ok_and(|state| state.rsplit(") ").next().is_some_and(|rest| !rest.starts_with('S')))
    };
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    threads.map(awake).filter(|awake| *awake).count() <= 1
}
