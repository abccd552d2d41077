//! Which connection alone receives on its thread: it may look for its next request, as nobody there waits
//! meanwhile.
//!
//! Who received last is a thread-local, and the numbers that tell connections apart are the process's: it is
//! noted with every receive, without a lock, and a thread polls connections of several servers, iSCSI's too.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Receives in a row until a connection counts as alone on its thread.
const ALONE: u32 = 16;

/// What happened on this thread.
struct LastReceiver {
    number: Cell<u64>,
    /// How many times in a row it received.
    row: Cell<u32>,
}

thread_local! {
    static LAST: LastReceiver = const { LastReceiver { number: Cell::new(0), row: Cell::new(0) } };
}

/// One connection, as it is told from others of its thread.
#[derive(Debug)]
pub struct LoneReceiver {
    number: u64,
}

impl LoneReceiver {
    /// A connection that has received nothing yet.
    #[allow(clippy::new_without_default, reason = "each one is another connection's")]
    pub fn new() -> Self {
        static CONNECTIONS: AtomicU64 = AtomicU64::new(1);
        Self { number: CONNECTIONS.fetch_add(1, Relaxed) }
    }

    /// Notes that the connection received something, on the thread that polls it.
    pub fn received(&self) {
        LAST.with(|last| {
            let again = last.number.replace(self.number) == self.number;
            let row = if again { last.row.get() } else { 0 };
            last.row.set(row.saturating_add(1));
        });
    }

    /// Whether it was the only one on this thread that received anything of late.
    pub fn is_alone(&self) -> bool {
        LAST.with(|last| last.number.get() == self.number && last.row.get() >= ALONE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_receives_alone_is_alone_until_another_one_does() {
        let (one, two) = (LoneReceiver::new(), LoneReceiver::new());
        for _ in 0..2 {
            (1..ALONE).for_each(|_| one.received());
            assert!(!one.is_alone());
            one.received();
            assert!(one.is_alone());
            two.received();
            assert!(!one.is_alone() && !two.is_alone());
        }
    }
}
