//! Who uses an export, in the order in which they attached: what a client left unanswered on an older
//! connection does not land behind what it wrote, and flushed, on a newer one.
//!
//! A client that lost its connection attaches anew and sends again what was not answered. The server
//! may still have the old requests: in the old connection's socket, held back by the client's limits,
//! or at the device. Carried out late, a write among them would replace what was written since. So a
//! new connection takes no request until each older one of its client, and any whose peer has hung up,
//! has *settled*: it has nothing at the device and nothing unread. How an older connection settles,
//! and when it drops what it has not answered, is in `session/connection/supersession.rs`. Other connections of one
//! client, which are in use side by side, settle at once or show that they are alive.
//!
//! What is still in the network when a new connection attaches comes to the server later. A client that
//! says which connections a new one takes the place of ([`Reinstatement`]) is safe from that, too: these
//! take nothing more, whatever comes.
//!
//! A client whose whole system has ended and begun anew, after its power was cut, says so (`INITIAL_CONTACT`). Then
//! nothing can follow on its older connections, and what it left is not to reach the new system: they are ended, and
//! the export is opened for it when they are gone.
//!
//! The order goes along to another process. A connection that is passed keeps its place here until that process has
//! it, so that none behind it goes on here meanwhile; there all that were passed have their places, in the same order,
//! before the first of them is gone on with.

use crate::codec::option::Reinstatement;
use crate::server::sockets::stream::Watch;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// What is [met](AttachedConnection::met) by one that has ended.
const ENDED: u64 = u64::MAX;

/// The connections of one server that may change their export, by the export's name, oldest first.
#[derive(Debug, Default)]
pub(in crate::server) struct Attachments {
    by_export: Mutex<HashMap<String, Vec<Arc<AttachedConnection>>>>,
    /// How many there have been.
    count: AtomicU64,
}

/// A connection's place in the order, and what it has to wait for, if anything.
pub(in crate::server) type PlaceInOrder = (Attached, Option<BoxFuture<'static, ()>>);

/// One connection as newer ones see it.
#[derive(Debug)]
pub(in crate::server) struct AttachedConnection {
    client: String,
    /// Its number among all connections of the server.
    number: u64,
    reinstates: Option<Reinstatement>,
    watch: Option<Watch>,
    /// Another one takes its place.
    replaced: AtomicBool,
    /// How often a newer connection asked this one to settle.
    asked: AtomicU64,
    asks: Notify,
    /// Which of these it has met. Closed when the connection has ended.
    met: watch::Sender<u64>,
}

impl AttachedConnection {
    /// Whether a connection of `client` takes its place.
    fn is_replaced_by(&self, client: &str, by: Option<Reinstatement>) -> bool {
        let Some((old, new)) = self.reinstates.zip(by) else { return false };
        self.client == client && old.is_before(&new)
    }

    /// Has it take nothing more; what comes out is ready when it has ended.
    fn end(&self) -> impl Future<Output = ()> + Send + use<> {
        self.replaced.store(true, Relaxed); // the demand is made behind it
        drop(self.ask());
        let mut met = self.met.subscribe();
        async move {
            let _ = met.wait_for(|met| *met == ENDED).await;
        }
    }

    /// Asks it to settle; what comes out is ready when it has, or has ended.
    fn ask(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut met = self.met.subscribe();
        let number = self.asked.fetch_add(1, Relaxed) + 1;
        self.asks.notify_one();
        async move {
            // An error says that it has ended.
            let _ = met.wait_for(|met| *met >= number).await;
        }
    }
}

/// That a connection settle, as a newer one asks.
#[derive(Debug)]
pub(in crate::server) struct SettleRequest {
    of: Arc<AttachedConnection>,
    number: u64,
}

impl SettleRequest {
    /// Whether the newer one takes the place of the connection: then it takes nothing more.
    pub(in crate::server) fn is_to_end(&self) -> bool {
        self.of.replaced.load(Relaxed)
    }

    /// The connection has settled, or goes on beside the newer one.
    pub(in crate::server) fn meet(self) {
        self.of.met.send_replace(self.number);
    }
}

/// Waits until a newer connection asks this one to settle.
pub(in crate::server) async fn demand(attached: Option<&Attached>) -> SettleRequest {
    match attached {
        None => std::future::pending().await,
        Some(Attached { own, .. }) => {
            own.asks.notified().await;
            SettleRequest { of: Arc::clone(own), number: own.asked.load(Relaxed) }
        }
    }
}

impl Attachments {
    fn by_export(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<AttachedConnection>>>> {
        self.by_export.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection of `client`, and asks those that it follows to settle. Gives its place in the
    /// order and what it has to wait for, if anything.
    pub(in crate::server) fn attach(
        self: &Arc<Self>,
        export: &str,
        client: &str,
        reinstates: Option<Reinstatement>,
        watch: Option<Watch>,
    ) -> PlaceInOrder {
        let mut by_export = self.by_export();
        let older = by_export.entry(export.to_owned()).or_default();
        let follows = |older: &&Arc<AttachedConnection>| {
            older.client == client || older.watch.as_ref().is_some_and(Watch::has_hung_up)
        };
        let ask = |older: &Arc<AttachedConnection>| {
            if older.is_replaced_by(client, reinstates) {
                older.replaced.store(true, Relaxed); // the demand is made behind it
            }
            older.ask()
        };
        let asked: Vec<_> = older.iter().filter(follows).map(ask).collect();
        // One that another process passed may come behind the one that takes its place.
        let replaced = older.iter().any(|other| {
            let mine = reinstates.zip(other.reinstates);
            other.client == client && mine.is_some_and(|(own, other)| own.is_before(&other))
        });
        let own = Arc::new(AttachedConnection {
            client: client.to_owned(),
            number: self.count.fetch_add(1, Relaxed),
            reinstates,
            watch,
            replaced: AtomicBool::new(replaced),
            asked: AtomicU64::new(0),
            asks: Notify::new(),
            met: watch::Sender::new(0),
        });
        if replaced {
            drop(own.ask());
        }
        older.push(Arc::clone(&own));
        drop(by_export);
        let attached = Attached { all: Arc::clone(self), export: export.to_owned(), own };
        if asked.is_empty() {
            return (attached, None);
        }
        let settled = async move {
            for older in asked {
                older.await;
            }
        };
        (attached, Some(settled.boxed()))
    }

    /// Has every connection of `client` take nothing more that is not of this `run` of its system; what comes out is
    /// ready when they have ended.
    pub(in crate::server) fn end_earlier_runs(
        &self,
        export: &str,
        client: &str,
        run: &[u8; 16],
    ) -> impl Future<Output = ()> + Send + use<> {
        let by_export = self.by_export();
        let earlier = |older: &&Arc<AttachedConnection>| {
            older.client == client && older.reinstates.is_none_or(|one| one.id != *run)
        };
        let all = by_export.get(export).into_iter().flatten().filter(earlier);
        let ended: Vec<_> = all.map(|older| older.end()).collect();
        async move {
            for ended in ended {
                ended.await;
            }
        }
    }
}

/// A connection's place in the order, up to its end.
#[derive(Debug)]
pub(in crate::server) struct Attached {
    all: Arc<Attachments>,
    export: String,
    own: Arc<AttachedConnection>,
}

impl Attached {
    /// Greater than that of every connection that attached before it.
    pub(in crate::server) fn number(&self) -> u64 {
        self.own.number
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let mut by_export = self.all.by_export();
        if let Some(list) = by_export.get_mut(&self.export) {
            list.retain(|other| !Arc::ptr_eq(other, &self.own));
            if list.is_empty() {
                by_export.remove(&self.export);
            }
        }
        self.own.met.send_replace(ENDED); // whoever waits holds no share of it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(all: &Arc<Attachments>, client: &str) -> PlaceInOrder {
        all.attach("disk", client, None, None)
    }

    #[test]
    fn a_connection_waits_for_the_older_ones_of_its_client_and_for_no_other() {
        let all = Arc::default();
        let (first, alone) = attach(&all, "a");
        let (_other, free) = attach(&all, "b");
        assert!(alone.is_none() && free.is_none());
        let (second, follows) = attach(&all, "a");
        let mut follows = follows.unwrap();
        assert_eq!((&mut follows).now_or_never(), None);
        assert!(demand(Some(&second)).now_or_never().is_none(), "nobody follows it");
        demand(Some(&first)).now_or_never().unwrap().meet();
        assert_eq!(follows.now_or_never(), Some(()));
    }

    #[test]
    fn a_connection_that_ended_is_waited_for_by_nobody() {
        let all = Arc::default();
        let (first, _) = attach(&all, "a");
        let (_second, follows) = attach(&all, "a");
        drop(first);
        assert_eq!(follows.unwrap().now_or_never(), Some(()));
        let (_third, follows) = attach(&all, "a");
        assert_eq!(follows.unwrap().now_or_never(), None, "the second is there");
    }

    #[test]
    fn a_connection_takes_the_place_of_older_ones_of_its_client_and_id_with_lower_numbers() {
        let all = Arc::default();
        let attach = |client: &str, id: u8, number| {
            let reinstates = Some(Reinstatement { id: [id; 16], number });
            Attachments::attach(&all, "disk", client, reinstates, None).0
        };
        let old = [("a", 1, 5), ("a", 1, 6), ("a", 1, 7), ("a", 2, 1), ("b", 1, 1)]
            .map(|(client, id, number)| attach(client, id, number));
        let ends = |of: &Attached| {
            demand(Some(of)).now_or_never().is_some_and(|demand| demand.is_to_end())
        };
        assert_eq!([ends(&old[0]), ends(&old[1]), ends(&old[2])], [true, true, false]);
        let late = attach("a", 1, 6);
        assert!(
            !ends(&old[2]) && ends(&late),
            "a passed one comes behind the one that replaced it"
        );
        let _new = attach("a", 1, 8);
        assert_eq!([ends(&old[2]), ends(&old[3]), ends(&old[4])], [true, false, false]);
    }

    #[test]
    fn a_system_that_begins_waits_for_the_end_of_what_its_client_had_before_and_of_nothing_else() {
        let all = Arc::default();
        let attach = |client: &str, id: Option<u8>| {
            let reinstates = id.map(|id| Reinstatement { id: [id; 16], number: 9 });
            Attachments::attach(&all, "disk", client, reinstates, None).0
        };
        let mut old = vec![attach("a", Some(1)), attach("a", None)];
        let others = [attach("a", Some(2)), attach("b", Some(1)), attach("b", None)];
        let elsewhere = Attachments::attach(&all, "other", "a", None, None).0;
        let mut ended = std::pin::pin!(all.end_earlier_runs("disk", "a", &[2; 16]));
        while let Some(one) = old.pop() {
            assert_eq!(ended.as_mut().now_or_never(), None, "one is there");
            let told = demand(Some(&one)).now_or_never().unwrap();
            assert!(told.is_to_end());
            // It may have nothing under way: it is there until it has ended all the same.
            told.meet();
            assert_eq!(ended.as_mut().now_or_never(), None);
        }
        assert_eq!(ended.now_or_never(), Some(()));
        for other in others.iter().chain([&elsewhere]) {
            let told = demand(Some(other)).now_or_never();
            assert!(told.is_none_or(|told| !told.is_to_end()));
        }
        assert_eq!(all.end_earlier_runs("no such", "a", &[2; 16]).now_or_never(), Some(()));
    }

    #[test]
    fn nothing_is_kept_of_exports_that_nobody_uses() {
        let all = Arc::default();
        drop((attach(&all, "a"), attach(&all, "b")));
        assert!(all.by_export().is_empty());
    }
}
