//! Who uses an export, until nothing of the use can change the disk or the guest's memory any more.
//!
//! A front end that lost its connection makes another one, and has its requests in flight done again. The
//! server may still have the first ones: in a ring that ends, or at the device, also after the connection
//! was cut off by a deadline. Carried out beside the new ones, a write among them would land behind what the
//! guest wrote since, and their answers would go to a used ring that has moved on. So what belongs to a
//! connection (its rings, each request that waits for the device) holds its [`ExportUse`]; the rings of
//! the next connection begin when those of the uses that are over have gone. The session with the disk ends
//! with the use, not with the connection: until then nobody else gets the disk, and it is not changed.

use crate::carry::Mailbox;
use block::{Error, Result};
use nbd::{Session, SessionEnding};
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// Connections of one export at a time: front ends have one, and another one for a while after they lost that.
const CONNECTIONS: usize = 4;

/// All uses, by the export's name, in the order in which they came.
#[derive(Default)]
pub(crate) struct ExportUses {
    by_export: Mutex<HashMap<String, Vec<Weak<ExportUse>>>>,
}

impl ExportUses {
    /// Notes a use by the connection at `socket`, which goes by `runtime`. Its rings wait for those of the
    /// older ones that are over; others are in use beside it.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) when there are too many.
    pub(crate) fn enter(
        &self,
        export: &str,
        socket: UnixStream,
        runtime: Handle,
    ) -> Result<(Arc<ExportUse>, OlderUses)> {
        let mut by_export = self.by_export.lock();
        by_export.retain(|_, uses| {
            uses.retain(|other| other.strong_count() > 0);
            !uses.is_empty()
        });
        let uses = by_export.entry(export.to_owned()).or_default();
        if uses.len() >= CONNECTIONS {
            let why = format!("there are {CONNECTIONS} vhost-user connections to it already");
            return Err(Error::unavailable(why));
        }
        let over: Vec<_> = uses
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|other| other.is_over())
            .filter_map(|other| other.end.as_ref().map(watch::Sender::subscribe))
            .collect();
        let own = Arc::new(ExportUse {
            begun: AtomicBool::new(over.is_empty()),
            state: Mutex::default(),
            socket,
            runtime,
            end: Some(watch::Sender::new(())),
        });
        uses.push(Arc::downgrade(&own));
        Ok((own, OlderUses(over)))
    }

    /// Has all rings end as they are; what they have in flight is the next server's.
    pub(crate) fn give_up(&self) {
        let uses: Vec<_> = {
            let by_export = self.by_export.lock();
            by_export.values().flatten().filter_map(Weak::upgrade).collect()
        };
        uses.iter().for_each(|own| own.give_up());
    }
}

/// Uses that are over but have not ended.
pub(crate) struct OlderUses(Vec<watch::Receiver<()>>);

impl OlderUses {
    /// Whether there are any.
    pub(crate) fn are_there(&self) -> bool {
        !self.0.is_empty()
    }

    /// Waits until they have ended.
    pub(crate) async fn ended(self) {
        for mut older in self.0 {
            // An error says that it has.
            while older.changed().await.is_ok() {}
        }
    }
}

/// A connection's use of an export. Whoever acts for it holds a share; the last one ends the session.
pub(crate) struct ExportUse {
    begun: AtomicBool,
    state: Mutex<ExportUseState>,
    socket: UnixStream,
    runtime: Handle,
    /// Closed when the session has ended.
    end: Option<watch::Sender<()>>,
}

#[derive(Default)]
struct ExportUseState {
    session: Option<Box<dyn Session>>,
    clean: bool,
    given_up: bool,
    /// Where the rings that are being served are told of things.
    rings: Vec<Weak<Mailbox>>,
}

impl ExportUse {
    /// Ends `session` at its own end.
    pub(crate) fn keep(&self, session: Box<dyn Session>) {
        self.state.lock().session = Some(session);
    }

    /// Whether its rings are to be served.
    pub(crate) fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Acquire)
    }

    /// Has its rings served.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Release);
        self.state.lock().rings.iter().filter_map(Weak::upgrade).for_each(|ring| ring.wake());
    }

    /// Notes a ring, by where its thread is told of things.
    pub(crate) fn add_ring(&self, ring: &Arc<Mailbox>) {
        let mut state = self.state.lock();
        if state.given_up {
            ring.give_up();
        }
        state.rings.retain(|other| other.strong_count() > 0);
        state.rings.push(Arc::downgrade(ring));
    }

    fn give_up(&self) {
        let mut state = self.state.lock();
        state.given_up = true;
        state.rings.iter().filter_map(Weak::upgrade).for_each(|ring| ring.give_up());
    }

    /// Whether its rings were told to end as they are.
    pub(crate) fn is_given_up(&self) -> bool {
        self.state.lock().given_up
    }

    /// Closes the connection.
    pub(crate) fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Whether the front end, or the server, has closed the connection.
    fn is_over(&self) -> bool {
        let mut polled = [PollFd::new(&self.socket, PollFlags::RDHUP)];
        let closed = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        match poll(&mut polled, Some(&Timespec::default())) {
            Ok(_) => polled[0].revents().intersects(closed),
            // Nobody knows: it is waited for.
            Err(_) => true,
        }
    }

    /// Gives a share up, and waits until the session has ended, which it does with the last one.
    pub(crate) async fn end(self: Arc<Self>, ending: SessionEnding) {
        self.state.lock().clean = ending == SessionEnding::Clean;
        let ended = OlderUses(self.end.iter().map(watch::Sender::subscribe).collect());
        drop(self);
        ended.ended().await;
    }
}

impl Drop for ExportUse {
    fn drop(&mut self) {
        let ExportUseState { session, clean, .. } = std::mem::take(self.state.get_mut());
        let end = self.end.take();
        let Some(session) = session else { return };
        let ending = if clean { SessionEnding::Clean } else { SessionEnding::Lost };
        self.runtime.spawn(async move {
            session.close(ending).await;
            drop(end);
        });
    }
}
