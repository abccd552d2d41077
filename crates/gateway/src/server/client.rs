//! One client of the gateway: all connections that show the same name.

use super::Gateway;
use super::limits::{ClientUsage, GatewayLimits};
use super::names::KnownNames;
use super::rights::{ReadRights, is_of_machine, may_run, right};
use super::whole::WholeSegments;
use access::{Right, Rules};
use block::{Error, Result};
use nbd::Peer;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::{RefKey, RefKind, WriterId};
use tokio::sync::Notify;
use tokio::time::Instant;

/// What a client may read is looked up again after this long, and when it asks for something else, after
/// [`AT_ONCE`].
const FRESH: Duration = Duration::from_secs(10);
const AT_ONCE: Duration = Duration::from_secs(1);
/// Sessions of one client at the same time, counted by their pins. A process that is killed in the middle of an upload
/// leaves one, and the next one is to get on all the same.
const MOST_PINS: usize = 1024;
/// Pins of one client that are read to see which of its sessions are at work.
const MOST_LOOKED_AT: usize = 16;
/// How long a pin counts that was not deleted: twice the time after which one that lives is renewed, as another one.
const PIN_LIFE: Duration = Duration::from_secs(2 * 3600);

/// A client, by the name in its certificate.
pub(crate) struct Client {
    name: String,
    owner: String,
    peer: Peer,
    pub(crate) usage: ClientUsage,
    pub(crate) rights: ReadRights,
    pub(crate) whole: Mutex<WholeSegments>,
    pins: Mutex<VecDeque<(Instant, WriterId)>>,
    connections: Mutex<VecDeque<Arc<Notify>>>,
}

impl Client {
    pub(crate) fn new(name: &str, peer: Peer, limits: GatewayLimits) -> Self {
        Self {
            name: name.to_owned(),
            owner: format!("cert:{name}"),
            peer,
            usage: ClientUsage::new(limits),
            rights: ReadRights::default(),
            whole: Mutex::default(),
            pins: Mutex::default(),
            connections: Mutex::default(),
        }
    }

    /// The name in its certificate.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The owner of the servers that it announces.
    pub(crate) fn owner(&self) -> &str {
        &self.owner
    }

    /// The client as the rules see it.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Counts a connection in; when there are too many, the oldest has to leave.
    pub(crate) fn connect(&self, most: usize) -> Arc<Notify> {
        let leave = Arc::new(Notify::new());
        let mut connections = self.connections.lock();
        connections.push_back(Arc::clone(&leave));
        while connections.len() > most.max(1) {
            if let Some(oldest) = connections.pop_front() {
                oldest.notify_one();
            }
        }
        leave
    }

    /// Counts a connection out.
    pub(crate) fn disconnect(&self, leave: &Arc<Notify>) {
        self.connections.lock().retain(|other| !Arc::ptr_eq(other, leave));
    }

    /// Whether it has no connection.
    pub(crate) fn is_gone(&self) -> bool {
        self.connections.lock().is_empty()
    }

    /// Makes sure that what is known of its rights is recent.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn refresh(&self, gateway: &Gateway) -> Result<()> {
        self.update(gateway, FRESH).await
    }

    /// The same, for what was not found; gives whether something was looked up.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn look_again(&self, gateway: &Gateway) -> Result<bool> {
        let older = self.rights.is_older(&gateway.rules(), AT_ONCE);
        if older {
            self.update(gateway, AT_ONCE).await?;
        }
        Ok(older)
    }

    async fn update(&self, gateway: &Gateway, age: Duration) -> Result<()> {
        let rules = gateway.rules();
        if self.rights.is_older(&rules, age) {
            let names = gateway.names(age).await?;
            self.rights.update(&rules, &self.peer, &names);
        }
        Ok(())
    }

    /// What it may do with a name.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn right(
        &self,
        gateway: &Gateway,
        kind: RefKind,
        name: &str,
    ) -> Result<Option<Right>> {
        let names = gateway.names(FRESH).await?;
        Ok(right(&gateway.rules(), &self.peer, &names, kind, name))
    }

    /// The store's names as they are now. For all clients together the store is listed for that once a second at the
    /// most.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn names_now(&self, gateway: &Gateway) -> Result<Arc<KnownNames>> {
        gateway.names_now(AT_ONCE).await
    }

    /// The store's names as they were 10 seconds ago at the most.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn names(&self, gateway: &Gateway) -> Result<Arc<KnownNames>> {
        gateway.names(FRESH).await
    }

    /// The store's names as they were a second ago at the most.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn names_of_just_now(&self, gateway: &Gateway) -> Result<Arc<KnownNames>> {
        gateway.names(AT_ONCE).await
    }

    /// What it may do with a name by these.
    pub(crate) fn right_by(
        &self,
        gateway: &Gateway,
        names: &KnownNames,
        kind: RefKind,
        name: &str,
    ) -> Option<Right> {
        right(&gateway.rules(), &self.peer, names, kind, name)
    }

    /// What it may do with the name that has these records; `known` is a record of the row that is there. Of a parcel
    /// or a claim that is what it may do with this record, and with no other one of the name.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be listed.
    pub(crate) async fn right_on_row(
        &self,
        gateway: &Gateway,
        kind: RefKind,
        row: &str,
        known: Option<&RefKey>,
    ) -> Result<Option<Right>> {
        let is_of_machine = is_of_machine(kind);
        let is_encrypted = gateway.store().settings().is_encrypted();
        if kind == RefKind::Gc || !(is_of_machine || is_encrypted) {
            return self.right(gateway, kind, row).await;
        }
        let names = gateway.names(FRESH).await?;
        if is_of_machine {
            return self.right_on_machine(gateway, &names, (kind, row), known).await;
        }
        if let Some(name) = names.name(kind, row) {
            return Ok(right(&gateway.rules(), &self.peer, &names, kind, name));
        }
        let Some(known) = known else { return Ok(None) };
        match gateway.store().refs().keyed(known).await {
            Ok(record) => self.right(gateway, kind, &record.name).await,
            Err(e) if e.kind() == block::ErrorKind::Unavailable => Err(e),
            Err(_) => Ok(None),
        }
    }

    /// The same of a parcel or a claim, by what that one record says: a rule for its name alone does not show it, and
    /// a name may have been another machine's before.
    async fn right_on_machine(
        &self,
        gateway: &Gateway,
        names: &KnownNames,
        (kind, row): (RefKind, &str),
        known: Option<&RefKey>,
    ) -> Result<Option<Right>> {
        let newest = names.record(kind, row);
        let found = match (newest, known) {
            (Some(newest), None) => Arc::clone(newest),
            (Some(newest), Some(known)) if newest.sequence == known.sequence => Arc::clone(newest),
            (_, Some(known)) => match gateway.store().refs().keyed(known).await {
                Ok(found) => Arc::new(found),
                Err(e) if e.kind() == block::ErrorKind::Unavailable => return Err(e),
                Err(_) => return Ok(None),
            },
            (None, None) => return Ok(None),
        };
        let right = match &found.record {
            Some(record) => may_run(&gateway.rules(), &self.peer, names, kind, record),
            // A removal says no more than that.
            None => self.right_by(gateway, names, kind, &found.name).is_some(),
        };
        Ok(right.then_some(Right::Write))
    }

    /// Fails unless some rule lets it write something.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied).
    pub(crate) fn must_write(&self, rules: &Rules) -> Result<()> {
        match rules.may_write(&self.peer) {
            true => Ok(()),
            false => Err(Error::denied("no access rule lets this client write")),
        }
    }

    /// Counts a session's pin in.
    ///
    /// # Errors
    /// [`Denied`](block::ErrorKind::Denied) when there are too many.
    pub(crate) fn pin(&self, id: WriterId) -> Result<()> {
        let mut pins = self.pins.lock();
        pins.retain(|(since, other)| since.elapsed() < PIN_LIFE && *other != id);
        if pins.len() >= MOST_PINS {
            return Err(Error::denied(format!(
                "this client has {MOST_PINS} sessions under way; end some of them"
            )));
        }
        pins.push_back((Instant::now(), id));
        Ok(())
    }

    /// The pins that were counted in last and not out.
    pub(crate) fn newest_pins(&self) -> Vec<WriterId> {
        self.pins.lock().iter().rev().take(MOST_LOOKED_AT).map(|(_, id)| *id).collect()
    }

    /// Counts a session's pin out.
    pub(crate) fn unpin(&self, id: WriterId) {
        self.pins.lock().retain(|(_, other)| *other != id);
    }
}
