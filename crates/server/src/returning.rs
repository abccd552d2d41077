//! Clients that the server before has passed get their disks back before others may have them. Only
//! who asks for one of those waits. A client that connects once more meanwhile does not count as a
//! connection that returned.

use async_trait::async_trait;
use block::Result;
use nbd::server::PassedConnection;
use nbd::{ExportSummary, Exports, Peer, Purpose, Session};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// The longest that a new client waits for a disk's own one.
const LONGEST: Duration = Duration::from_secs(5);

/// Exports of which some have clients on their way.
pub(crate) struct Returning {
    inner: Arc<dyn Exports>,
    expected: watch::Sender<Expected>,
}

#[derive(Default)]
struct Expected {
    /// The clients of the connections that are still to come, by export.
    peers: HashMap<String, Vec<Peer>>,
    /// Whether they come by now: before that, those who wait for them do so without end.
    under_way: bool,
}

/// A passed connection's way back to its export, whatever comes of it.
struct ReturnGuard<'a>(&'a Returning, &'a str, &'a Peer);

impl Drop for ReturnGuard<'_> {
    fn drop(&mut self) {
        let Self(returning, name, peer) = self;
        returning.expected.send_if_modified(|expected| {
            let Some(peers) = expected.peers.get_mut(*name) else { return false };
            let Some(at) = peers.iter().position(|one| one == *peer) else { return false };
            peers.swap_remove(at);
            if peers.is_empty() {
                expected.peers.remove(*name);
            }
            true
        });
    }
}

impl Returning {
    /// `inner`, to which nobody returns yet.
    pub(crate) fn new(inner: Arc<dyn Exports>) -> Self {
        Self { inner, expected: watch::Sender::default() }
    }

    /// These clients are to return, as soon as this server can go on with them. Said before anybody else can ask for
    /// their disks, by whatever protocol.
    pub(crate) fn expect(&self, passed: &[PassedConnection]) {
        self.expected.send_modify(|expected| {
            expected.under_way = false;
            for PassedConnection { session, .. } in passed {
                let peers = expected.peers.entry(session.export.clone()).or_default();
                peers.push(session.peer.clone());
            }
        });
    }

    /// The clients that are expected are on their way.
    pub(crate) fn begin(&self) {
        self.expected.send_modify(|expected| expected.under_way = true);
    }

    /// Nobody is on the way any more: who has not returned never will.
    pub(crate) fn all_came(&self) {
        self.expected.send_modify(|expected| expected.peers.clear());
    }

    /// Waits until the export's own clients are there, unless `peer` is one of them.
    async fn turn(&self, name: &str, peer: &Peer) {
        let own = |peers: &Vec<Peer>| peers.contains(peer);
        if self.expected.borrow().peers.get(name).is_none_or(own) {
            return;
        }
        let mut expected = self.expected.subscribe();
        let is_free = |expected: &Expected| !expected.peers.contains_key(name);
        let _ = expected.wait_for(|expected| expected.under_way || is_free(expected)).await;
        let _ = tokio::time::timeout(LONGEST, expected.wait_for(is_free)).await;
    }
}

#[async_trait]
impl Exports for Returning {
    async fn list(&self, peer: &Peer) -> Result<Vec<ExportSummary>> {
        self.inner.list(peer).await
    }

    async fn open(&self, name: &str, peer: &Peer, purpose: Purpose) -> Result<Box<dyn Session>> {
        let _way = match purpose {
            Purpose::Info | Purpose::Look => None,
            Purpose::Use => {
                self.turn(name, peer).await;
                None
            }
            Purpose::Resume => Some(ReturnGuard(self, name, peer)),
        };
        self.inner.open(name, peer, purpose).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::{Error, ErrorKind};
    use nbd::server::{ConnectionRemainder, Interrupted};
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    /// Opens one export at each permit, and then says no: that is enough of an answer.
    struct Slow(Semaphore);

    #[async_trait]
    impl Exports for Slow {
        async fn list(&self, _: &Peer) -> Result<Vec<ExportSummary>> {
            Ok(Vec::new())
        }
        async fn open(&self, _: &str, peer: &Peer, _: Purpose) -> Result<Box<dyn Session>> {
            if *peer == own() {
                self.0.acquire().await.unwrap().forget();
            }
            Err(Error::not_found("nothing"))
        }
    }

    fn own() -> Peer {
        Peer::unix(7, Some(9))
    }

    fn returning(count: usize) -> (Arc<Slow>, Returning) {
        let slow = Arc::new(Slow(Semaphore::new(0)));
        let returning = Returning::new(Arc::clone(&slow) as _);
        let passed = |_| PassedConnection {
            stream: std::os::unix::net::UnixStream::pair().unwrap().0.into(),
            session: Interrupted {
                peer: own(),
                export: "d".to_owned(),
                style: nbd::codec::ReplyStyle::Simple,
                allocation: false,
                size: 512,
                read_only: false,
                content: None,
                order: None,
                reinstates: None,
                rest: ConnectionRemainder::default(),
            },
            carrier: None,
            place: None,
        };
        returning.expect(&(0..count).map(passed).collect::<Vec<_>>());
        returning.begin();
        (slow, returning)
    }

    /// How long another client waits for an export, in seconds.
    async fn waits(returning: &Returning, name: &str, purpose: Purpose) -> u64 {
        let began = Instant::now();
        let opened = returning.open(name, &Peer::unix(7, Some(10)), purpose).await;
        assert_eq!(opened.err().unwrap().kind(), ErrorKind::NotFound);
        began.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn only_who_wants_the_disk_of_another_that_returns_waits_for_it() {
        let (slow, returning) = returning(2);
        assert_eq!(waits(&returning, "e", Purpose::Use).await, 0);
        assert_eq!(waits(&returning, "d", Purpose::Info).await, 0);
        let back = async {
            for _ in 0..2 {
                tokio::time::sleep(Duration::from_secs(1)).await;
                slow.0.add_permits(1);
                returning.open("d", &own(), Purpose::Resume).await.err().unwrap();
            }
        };
        let (waited, ()) = tokio::join!(waits(&returning, "d", Purpose::Use), back);
        assert_eq!(waited, 2, "until both connections are there");
        assert_eq!(waits(&returning, "d", Purpose::Use).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn clients_are_waited_for_that_cannot_be_gone_on_with_yet() {
        let (_slow, returning) = returning(1);
        returning.expect(&[]);
        let start = async {
            tokio::time::sleep(LONGEST * 10).await;
            returning.begin();
        };
        let (waited, ()) = tokio::join!(waits(&returning, "d", Purpose::Use), start);
        assert_eq!(waited, (LONGEST * 11).as_secs());
        assert_eq!(waits(&returning, "e", Purpose::Use).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn another_connection_of_the_same_client_counts_for_none_that_was_passed() {
        let (slow, returning) = returning(1);
        slow.0.add_permits(2);
        for _ in 0..2 {
            returning.open("d", &own(), Purpose::Use).await.err().unwrap();
        }
        assert_eq!(waits(&returning, "d", Purpose::Use).await, LONGEST.as_secs());
        slow.0.add_permits(1);
        returning.open("d", &own(), Purpose::Resume).await.err().unwrap();
        assert_eq!(waits(&returning, "d", Purpose::Use).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_return_is_not_waited_for_long() {
        let (_slow, returning) = returning(1);
        let waited = waits(&returning, "d", Purpose::Use).await;
        assert_eq!(waited, LONGEST.as_secs());
        // One that gives up on the way is not waited for either.
        let own = own();
        let given_up = returning.open("d", &own, Purpose::Resume);
        tokio::time::timeout(Duration::from_secs(1), given_up).await.err().unwrap();
        assert_eq!(waits(&returning, "d", Purpose::Use).await, 0);
        let (_slow, returning) = self::returning(1);
        returning.all_came();
        assert_eq!(waits(&returning, "d", Purpose::Use).await, 0);
    }
}
