//! Entries that were used and of which the policy does not know yet: a bounded queue that anybody
//! appends to without a lock, and that the holder of the shard's lock empties.

use std::sync::atomic::{AtomicU32, Ordering};

/// How many wait at most. More save work when a few entries are used very often; fewer keep the
/// holder of the lock for a shorter time.
const ROOM: u32 = 128;

/// A queue of slots.
#[derive(Debug)]
pub(crate) struct Recent {
    /// Slots plus one; 0 is a place that is free, or that is about to be filled.
    cells: [AtomicU32; ROOM as usize],
    /// Places taken and places emptied since the beginning, modulo 2^32.
    tail: AtomicU32,
    head: AtomicU32,
}

impl Recent {
    pub(crate) const fn new() -> Self {
        Self {
            cells: [const { AtomicU32::new(0) }; ROOM as usize],
            tail: AtomicU32::new(0),
            head: AtomicU32::new(0),
        }
    }

    fn cell(&self, at: u32) -> &AtomicU32 {
        &self.cells[(at % ROOM) as usize]
    }

    /// Appends a slot; false when there is no room.
    pub(crate) fn push(&self, slot: u32) -> bool {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            if tail.wrapping_sub(self.head.load(Ordering::Acquire)) >= ROOM {
                return false;
            }
            let next = tail.wrapping_add(1);
            match self.tail.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed)
            {
                Ok(_) => break,
                Err(now) => tail = now,
            }
        }
        self.cell(tail).store(slot + 1, Ordering::Release);
        true
    }

    /// Takes out what is there, in order. One caller at a time. A place that is about to be filled
    /// ends it; what is behind stays for the next time.
    pub(crate) fn drain(&self, mut each: impl FnMut(u32)) {
        let mut head = self.head.load(Ordering::Relaxed);
        for _ in 0..ROOM {
            let cell = self.cell(head);
            let Some(slot) = cell.load(Ordering::Acquire).checked_sub(1) else { break };
            cell.store(0, Ordering::Relaxed);
            head = head.wrapping_add(1);
            self.head.store(head, Ordering::Release);
            each(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicU64};

    #[test]
    fn it_gives_back_in_order_what_it_had_room_for() {
        let recent = Recent::new();
        for round in 0..5 {
            for slot in 0..ROOM + 10 {
                assert_eq!(recent.push(slot + round), slot < ROOM);
            }
            let mut seen = Vec::new();
            recent.drain(|slot| seen.push(slot));
            assert_eq!(seen, (round..ROOM + round).collect::<Vec<_>>());
        }
    }

    #[test]
    fn many_threads_lose_nothing_that_was_taken() {
        let recent = Recent::new();
        let (sent, done) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut received = 0;
        std::thread::scope(|scope| {
            let senders: Vec<_> = (0..3u32)
                .map(|thread| {
                    let (recent, sent) = (&recent, &sent);
                    scope.spawn(move || {
                        for number in 0..20_000 {
                            let slot = thread * 20_000 + number;
                            if recent.push(slot) {
                                sent.fetch_add(u64::from(slot), Ordering::Relaxed);
                            }
                        }
                    })
                })
                .collect();
            let (recent, done) = (&recent, &done);
            let receiver = scope.spawn(move || {
                let mut sum = 0;
                loop {
                    let last = done.load(Ordering::Acquire);
                    recent.drain(|slot| sum += u64::from(slot));
                    if last {
                        return sum;
                    }
                    std::thread::yield_now();
                }
            });
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            done.store(true, Ordering::Release);
            received = receiver.join().unwrap();
        });
        assert!(received > 0);
        assert_eq!(received, sent.load(Ordering::Relaxed));
    }
}
