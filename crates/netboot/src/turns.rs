//! How often somebody is answered in a second.

use parking_lot::Mutex;

/// Senders that are told apart; two that share a slot share its turns.
const SLOTS: usize = 1024;

/// So many answers to a sender in a second, in memory that does not grow.
#[derive(Debug)]
pub(crate) struct AnswerTurns {
    most: u32,
    /// The second of the last answer, and how many were asked for in it.
    slots: Mutex<Box<[(u64, u32)]>>,
}

impl AnswerTurns {
    pub(crate) fn new(most: u32) -> Self {
        Self { most, slots: Mutex::new(vec![(0, 0); SLOTS].into_boxed_slice()) }
    }

    /// Whether a sender, who is told by these bytes, is answered in this second.
    pub(crate) fn take(&self, sender: &[u8], second: u64) -> bool {
        let mut slots = self.slots.lock();
        let slot = &mut slots[slot_of(sender)];
        if slot.0 != second {
            *slot = (second, 0);
        }
        slot.1 = slot.1.saturating_add(1);
        slot.1 <= self.most
    }
}

/// The slot of a sender.
pub(crate) fn slot_of(sender: &[u8]) -> usize {
    sender.iter().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(usize::from(*byte)))
        % SLOTS
}
