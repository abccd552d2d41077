//! Changes of a disk as a whole (snapshots, rollbacks, growth, write-back): one at a time.
//!
//! A write-back can take hours, or stand still for as long as its link is cut, and can be given up at any time. Who
//! does one looks whether somebody else waits meanwhile, and makes way.

use tokio::sync::{Mutex, MutexGuard, watch};

/// Whose turn it is to change a disk as a whole.
#[derive(Debug, Default)]
pub(crate) struct WholeChanges {
    turn: Mutex<()>,
    waiting: watch::Sender<usize>,
}

/// One more waits, until this is dropped.
struct Waiting<'a>(&'a watch::Sender<usize>);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|waiting| *waiting -= 1);
    }
}

impl WholeChanges {
    /// Waits until nobody else changes the disk; nobody does until what it returns is dropped.
    pub(crate) async fn begin(&self) -> MutexGuard<'_, ()> {
        if let Ok(turn) = self.turn.try_lock() {
            return turn;
        }
        self.waiting.send_modify(|waiting| *waiting += 1);
        let _waiting = Waiting(&self.waiting);
        self.turn.lock().await
    }

    /// Waits until somebody waits.
    pub(crate) async fn until_waited_for(&self) {
        // The sender is here: it cannot have gone.
        let _ = self.waiting.subscribe().wait_for(|waiting| *waiting > 0).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::time::timeout;

    #[tokio::test(start_paused = true)]
    async fn who_has_the_turn_learns_of_those_who_wait_and_of_nobody_else() {
        let changes = WholeChanges::default();
        let hears =
            async || timeout(Duration::from_secs(60), changes.until_waited_for()).await.is_ok();
        let turn = changes.begin().await;
        assert!(!hears().await, "nobody waits");
        let gives_up = timeout(Duration::from_secs(30), changes.begin());
        let (given_up, heard) = tokio::join!(gives_up, hears());
        assert!(given_up.is_err() && heard);
        assert!(!hears().await, "who waited gave up");
        let makes_way = async {
            changes.until_waited_for().await;
            drop(turn);
        };
        let (_turn, ()) = tokio::join!(changes.begin(), makes_way);
        assert!(!hears().await, "who waited has the turn");
    }
}
