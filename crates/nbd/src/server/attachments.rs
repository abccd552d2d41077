//! Who uses an export, in the order in which they attached: what a client left unanswered on an older
//! connection does not land behind what it wrote, and flushed, on a newer one.
//!
//! A client that lost its connection attaches anew and sends again what was not answered. The server
//! may still have the old requests: in the old connection's socket, held back by the client's limits,
//! or at the device. Carried out late, a write among them would replace what was written since. So a
//! new connection takes no request until each older one of its client, and any whose peer has hung up,
//! has *settled*: it has nothing at the device and nothing unread. How an older connection settles,
//! and when it drops what it has not answered, is in `connection/doubt.rs`. Other connections of one
//! client, which are in use side by side, settle at once or show that they are alive.

use super::stream::{Hangup, Watch};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{Notify, watch};

/// The connections of one server that may change their export, by the export's name, oldest first.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    by_export: Mutex<HashMap<String, Vec<Arc<Attachment>>>>,
}

/// One connection as newer ones see it.
#[derive(Debug)]
pub(super) struct Attachment {
    client: String,
    watch: Option<Watch>,
    /// How often a newer connection asked this one to settle.
    asked: AtomicU64,
    asks: Notify,
    /// Which of these it has met. Closed when the connection has ended.
    met: watch::Sender<u64>,
}

impl Attachment {
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
pub(super) struct Demand {
    of: Arc<Attachment>,
    number: u64,
}

impl Demand {
    /// The connection has settled, or goes on beside the newer one.
    pub(super) fn meet(self) {
        self.of.met.send_replace(self.number);
    }
}

/// Waits until a newer connection asks this one to settle.
pub(super) async fn demand(attached: Option<&Attached>) -> Demand {
    match attached {
        None => std::future::pending().await,
        Some(Attached { own, .. }) => {
            own.asks.notified().await;
            Demand { of: Arc::clone(own), number: own.asked.load(Relaxed) }
        }
    }
}

impl Attachments {
    fn by_export(&self) -> MutexGuard<'_, HashMap<String, Vec<Arc<Attachment>>>> {
        self.by_export.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a connection of `client`, and asks those that it follows to settle. Gives its place in the
    /// order and what it has to wait for, if anything.
    pub(super) fn attach(
        self: &Arc<Self>,
        export: &str,
        client: &str,
        watch: Option<Watch>,
    ) -> (Attached, Option<BoxFuture<'static, ()>>) {
        let mut by_export = self.by_export();
        let older = by_export.entry(export.to_owned()).or_default();
        let follows = |older: &&Arc<Attachment>| {
            let hangup = older.watch.as_ref().map_or(Hangup::Nothing, Watch::hangup);
            older.client == client || hangup != Hangup::Nothing
        };
        let asked: Vec<_> = older.iter().filter(follows).map(|older| older.ask()).collect();
        let own = Arc::new(Attachment {
            client: client.to_owned(),
            watch,
            asked: AtomicU64::new(0),
            asks: Notify::new(),
            met: watch::Sender::new(0),
        });
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
}

/// A connection's place in the order, up to its end.
#[derive(Debug)]
pub(super) struct Attached {
    all: Arc<Attachments>,
    export: String,
    own: Arc<Attachment>,
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
        self.own.met.send_replace(u64::MAX); // whoever waits holds no share of it
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attach(all: &Arc<Attachments>, client: &str) -> (Attached, Option<BoxFuture<'static, ()>>) {
        all.attach("disk", client, None)
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
    fn nothing_is_kept_of_exports_that_nobody_uses() {
        let all = Arc::default();
        drop((attach(&all, "a"), attach(&all, "b")));
        assert!(all.by_export().is_empty());
    }
}
