//! Refused requests in the log: who wants what, and no flood of it.

use nbd::{Peer, Transport};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::JoinSet;

/// So many refusals of one client are logged one by one in a period.
const LINES: u64 = 16;
/// How long a period lasts, from the first refusal. At its end the others are told by their number.
const PERIOD: Duration = Duration::from_secs(60);
/// So many clients are told apart in a period; those beyond them share one tally.
const CLIENTS: usize = 256;

/// Who is refused, and how often. Every refusal is either to be logged by itself, or in the count that
/// is logged at the end of its period.
#[derive(Debug, Default)]
pub struct Refusals {
    period: Arc<Mutex<Period>>,
    /// Ends the period.
    end: Mutex<JoinSet<()>>,
}

/// Refusals since the first one of this period, by client.
#[derive(Debug, Default)]
struct Period {
    clients: HashMap<String, u64>,
    /// Refusals of clients that are not told apart.
    others: u64,
}

impl Period {
    /// Counts a refusal; gives whether it is to be logged by itself.
    fn note(&mut self, client: String) -> bool {
        let room = self.clients.len() < CLIENTS;
        let refusals = match self.clients.get_mut(&client) {
            Some(refusals) => refusals,
            None if room => self.clients.entry(client).or_default(),
            None => &mut self.others,
        };
        *refusals += 1;
        *refusals <= LINES
    }

    /// Begins a new one. Gives the refusals that were not logged by themselves, by client.
    fn end(&mut self) -> Vec<(String, u64)> {
        let Self { clients, others } = std::mem::take(self);
        let all = clients.into_iter().chain([("other clients".to_owned(), others)]);
        all.filter(|(_, refusals)| *refusals > LINES).map(|(who, n)| (who, n - LINES)).collect()
    }

    fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

impl Refusals {
    /// Counts a request of `peer` that is refused. Gives whether the caller is to log it.
    pub fn note(&self, peer: &Peer) -> bool {
        let mut period = lock(&self.period);
        if period.is_empty() {
            let ending = Arc::clone(&self.period);
            let mut end = lock(&self.end);
            while end.try_join_next().is_some() {}
            end.spawn(async move {
                tokio::time::sleep(PERIOD).await;
                tell(&mut lock(&ending));
            });
        }
        period.note(key(peer))
    }
}

impl Drop for Refusals {
    fn drop(&mut self) {
        tell(&mut lock(&self.period));
    }
}

/// Ends a period, and logs what was left out in it.
fn tell(period: &mut Period) {
    for (client, left_out) in period.end() {
        tracing::warn!(client, left_out, "refused: more requests than are logged one by one");
    }
}

/// Whose refusals are counted together: a process is made in no time, a user is not.
fn key(peer: &Peer) -> String {
    match (&peer.transport, &peer.certificate) {
        (Transport::Unix { uid, .. }, None) => format!("uid:{uid}"),
        (Transport::Unix { uid, .. }, Some(name)) => format!("cert:{name}@uid:{uid}"),
        _ => peer.identity.clone(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn user(uid: u32, pid: i32) -> Peer {
        Peer::unix(uid, Some(pid))
    }

    /// How many of so many refusals are to be logged.
    fn logged(refusals: &Refusals, count: u64, peer: impl Fn(u64) -> Peer) -> u64 {
        (0..count).filter(|n| refusals.note(&peer(*n))).count() as u64
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_out_of_the_log_is_counted_and_the_next_period_begins_anew() {
        let refusals = Refusals::default();
        assert_eq!(logged(&refusals, 1000, |_| user(7, 1)), LINES);
        assert_eq!(logged(&refusals, 3, |_| user(8, 1)), 3, "of another user");
        let left_out = lock(&refusals.period).clients["uid:7"] - LINES;
        assert_eq!(left_out, 1000 - LINES);
        tokio::time::sleep(PERIOD * 2).await;
        assert!(lock(&refusals.period).is_empty(), "it was told");
        assert_eq!(logged(&refusals, 1000, |_| user(7, 1)), LINES);
        assert_eq!(lock(&refusals.period).end(), [("uid:7".to_owned(), 1000 - LINES)]);
    }

    #[tokio::test]
    async fn new_processes_and_connections_give_no_further_lines() {
        let refusals = Refusals::default();
        assert_eq!(logged(&refusals, 100, |n| user(7, n as i32 + 1)), LINES);
        let unseen = || Peer::unix(8, None);
        assert_eq!(logged(&refusals, 100, |_| unseen()), LINES);
        assert_eq!(logged(&refusals, 100, |_| unseen().certified("alice".into())), LINES);
    }

    #[tokio::test]
    async fn any_number_of_clients_takes_a_bounded_room_in_memory_and_log() {
        let refusals = Refusals::default();
        let logged = logged(&refusals, 100_000, |n| user(n as u32, 1));
        assert_eq!(logged, CLIENTS as u64 + LINES);
        let mut period = lock(&refusals.period);
        assert_eq!(period.clients.len(), CLIENTS);
        let rest = 100_000 - CLIENTS as u64 - LINES;
        assert_eq!(period.end(), [("other clients".to_owned(), rest)]);
    }
}
