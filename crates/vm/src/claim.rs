//! A claim: the ref of kind `machine` that says which server's home runs a machine, and what it came from.
//!
//! A machine reads what it has not touched yet from its last parcel, and its next parcel shares chunks with that
//! one. The claim names the same memory image as that parcel does, so that a collection keeps it for as long as
//! the machine runs, even if somebody removes the parcel. It does not decide who may run a machine: the lease of
//! its disk does. So whoever has the disk replaces the claim that a host left that died; who has not takes the disk from
//! no host that claims the machine, unless somebody vouches that the host is gone.

use crate::{MachineSpec, Parcel};
use block::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::time::Duration;
use store::machines;
use store::{ManifestId, RefBody, RefKind, RefRecord, ServerId, Session, Store};
use tokio::time::timeout;

/// How long the store may take where somebody waits who can do without it.
pub(crate) const ASKS: Duration = Duration::from_secs(5);

/// The labels of a claim's ref.
const UUID: &str = "uuid";
const PARCEL: &str = "parcel";

/// Says that a machine runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunClaim {
    /// The machine.
    pub machine: String,
    /// Its UUID.
    pub uuid: String,
    /// The server whose home it runs in.
    pub server: ServerId,
    /// The parcel that it came from, or that was made of it last; `None` when it was booted and never stored.
    pub parcel: Option<String>,
    /// The record of its ref.
    sequence: u64,
}

/// Whether a machine runs, as far as the store knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimState {
    /// Nothing says that it does.
    Free,
    /// This home claimed it: its keeper runs, or was killed.
    Own(RunClaim),
    /// Another home claimed it, whose server is at work.
    Elsewhere {
        /// The claim.
        claim: RunClaim,
        /// The host of that server, in its own words.
        host: String,
    },
    /// Another home claimed it, whose server has been silent for longer than its lease.
    Silent {
        /// The claim.
        claim: RunClaim,
        /// The host of that server, or its id.
        host: String,
    },
}

impl RunClaim {
    /// The claim on a machine.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when its ref is damaged; any error from the store.
    pub async fn find(store: &Store, machine: &str) -> Result<Option<Self>> {
        let found = store.refs().get(RefKind::Machine, machine).await?;
        found.map(|found| Self::read(&found)).transpose()
    }

    /// The claim of a ref.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when its labels make no sense.
    pub fn read(found: &RefRecord) -> Result<Self> {
        let label = |name: &str| found.body.labels.get(name);
        match (label(UUID), machines::server_of(&found.body)) {
            (Some(uuid), Some(server)) => Ok(Self {
                machine: found.name.clone(),
                uuid: uuid.clone(),
                server,
                parcel: label(PARCEL).cloned(),
                sequence: found.sequence,
            }),
            _ => Err(Error::corrupt(format!(
                "the claim on machine {:?} does not say who runs it; restore its ref from a backup",
                found.name
            ))),
        }
    }

    /// All claims that can be read, by machine.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// listed.
    pub async fn list(store: &Store) -> Result<Vec<Self>> {
        let listing = store.refs().list(RefKind::Machine).await?;
        Ok(listing.records.iter().filter_map(|found| Self::read(found).ok()).collect())
    }

    /// What the store knows of a machine, for the home of `own`.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) when the ref of the claim is damaged; any error from the store.
    pub async fn state(store: &Store, machine: &str, own: ServerId) -> Result<ClaimState> {
        match Self::find(store, machine).await? {
            Some(claim) => claim.judge(store, own).await,
            None => Ok(ClaimState::Free),
        }
    }

    /// Whether the server of a claim is at work, for the home of `own`.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// read, or its clock cannot be asked by writing an object.
    pub async fn judge(self, store: &Store, own: ServerId) -> Result<ClaimState> {
        if self.server == own {
            return Ok(ClaimState::Own(self));
        }
        let seen = store.servers().seen(&self.server).await?;
        let host = match &seen {
            Some(seen) => seen.host.clone(),
            None => self.server.to_string(),
        };
        Ok(match seen {
            Some(seen) if seen.is_alive() => ClaimState::Elsewhere { claim: self, host },
            _ => ClaimState::Silent { claim: self, host },
        })
    }

    /// Claims a machine whose disk this home has, and keeps what `parcel` leads to. The session holds it until
    /// then.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when the parcel is gone, [`Conflict`](ErrorKind::Conflict) when another
    /// home claims it at this moment, or another machine has its name; [`Fenced`](ErrorKind::Fenced) when this home has the
    /// disk no more; any error from the session.
    pub async fn make(
        session: &Session,
        spec: &MachineSpec,
        server: ServerId,
        parcel: Option<&Parcel>,
    ) -> Result<Self> {
        let held = async {
            match parcel {
                Some(parcel) => parcel.still_held(session).await,
                None => Ok(()),
            }
        };
        let body = body(session.store(), spec, server, parcel);
        let refs = session.store().refs();
        let ((), before, disk) = tokio::try_join!(
            held,
            refs.look_up(RefKind::Machine, &spec.name),
            refs.get(RefKind::Disk, &spec.disk)
        )?;
        // What is here of a disk goes on for a while after another server took it. One that the store does not know is
        // nobody else's.
        if let Some(disk) = disk
            && disk::holder(&disk)? != Some(server)
        {
            let (machine, disk) = (&spec.name, &spec.disk);
            return Err(Error::fenced(format!(
                "disk {disk:?} was taken from this server, and machine {machine:?} may run elsewhere: make what is here a \
                 disk of its own with 'sojourn disk keep {disk} NEW', or give it up with 'sojourn disk remove {disk}'"
            )));
        }
        if let Some(found) = before.record()
            && Self::read(found)?.uuid != spec.uuid
        {
            return Err(Error::conflict(format!(
                "another home on this store runs a machine {:?}; give one of the two another name, or, if \
                 that home is gone, forget it with 'sojourn vm remove --lost {}'",
                spec.name, spec.name
            )));
        }
        Self::read(&session.publish_over(&before, body).await?)
    }

    /// A claim of which nobody knows whether it was made, to be given up.
    pub(crate) fn sought(spec: &MachineSpec, server: ServerId) -> Self {
        let (machine, uuid) = (spec.name.clone(), spec.uuid.clone());
        Self { machine, uuid, server, parcel: None, sequence: 0 }
    }

    /// The claim of a machine that was suspended in the home of `server`, and is not in the store as it is. When the
    /// store is away or refuses, or somebody removed the claim, it is taken for granted: the lease of the disk says who may
    /// run the machine, and no parcel is made without looking again.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another home has the machine by now; any error from the store.
    pub async fn of_suspension(
        store: &Store,
        spec: &MachineSpec,
        server: ServerId,
    ) -> Result<Self> {
        let own = Self::sought(spec, server);
        let late = || Error::unavailable("the store does not answer");
        match timeout(ASKS, Self::find(store, &spec.name)).await.unwrap_or_else(|_| Err(late())) {
            Ok(Some(found)) if found.is_same(&own) => Ok(found),
            Ok(Some(_)) => Err(own.lost(Error::conflict("its claim was replaced"))),
            Ok(None) => {
                tracing::warn!(machine = spec.name, "somebody removed the claim on the machine");
                Ok(own)
            }
            // A store that refuses, as when a token has expired, is away as well: what is here needs nothing of it.
            Err(error) if matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied) => {
                tracing::warn!(machine = spec.name, %error, "the machine goes on without the store");
                Ok(own)
            }
            Err(e) => Err(e),
        }
    }

    /// Whether both are of the same machine in the same home.
    fn is_same(&self, other: &Self) -> bool {
        self.server == other.server && self.uuid == other.uuid
    }

    /// Moves the claim on to a parcel that was just made in `session`.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another home has the machine by now; any error from the store.
    pub async fn advance(
        &self,
        session: &Session,
        spec: &MachineSpec,
        parcel: &Parcel,
    ) -> Result<Self> {
        let body = body(session.store(), spec, self.server, Some(parcel));
        let refs = session.store().refs();
        let written = refs.update(RefKind::Machine, &self.machine, self.sequence, body).await;
        Self::read(&written.map_err(|e| self.lost(e))?)
    }

    /// Has a session keep what the claim keeps; returns it as it is now. It may have been advanced by a call
    /// that failed.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another home has the machine by now, or the claim was removed; those
    /// of the session.
    pub async fn hold(&self, session: &Session) -> Result<Self> {
        let found = session.hold(RefKind::Machine, &self.machine).await?;
        match found.as_ref().map(Self::read).transpose()? {
            Some(found) if found.is_same(self) => Ok(found),
            _ => Err(self.lost(Error::conflict("its claim was replaced or removed"))),
        }
    }

    /// Has a session keep what the claim of a suspension keeps, whose memory is over that of `base`. A claim that
    /// somebody removed is made anew while a parcel still leads to that memory.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another home has the machine by now; [`NotFound`](ErrorKind::NotFound)
    /// when the claim was removed and no parcel leads to that memory any more; any error from the session.
    pub(crate) async fn hold_or_renew(
        &self,
        session: &Session,
        spec: &MachineSpec,
        base: Option<ManifestId>,
        parcels: &[Parcel],
    ) -> Result<Self> {
        if Self::find(session.store(), &self.machine).await?.is_some() {
            return self.hold(session).await;
        }
        let parcel = parcels.iter().rfind(|parcel| Some(parcel.memory) == base);
        match (base, parcel) {
            (Some(_), None) => Err(Error::not_found(format!(
                "the store has neither the claim on machine {:?} nor a parcel with the memory that its suspension is \
                 over: mount it if it is not mounted; if the machine was removed from it, 'sojourn vm discard {}' \
                 drops the suspension",
                self.machine, self.machine
            ))),
            _ => Self::make(session, spec, self.server, parcel).await,
        }
    }

    /// Gives the claim up. One that somebody replaced stays.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) when the store does not answer within seconds; any error from the store.
    pub async fn end(&self, store: &Store) -> Result<()> {
        let ended = timeout(ASKS, self.end_now(store)).await;
        ended.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer")))
    }

    async fn end_now(&self, store: &Store) -> Result<()> {
        let found = Self::find(store, &self.machine).await?;
        let Some(own) = found.filter(|found| found.is_same(self)) else { return Ok(()) };
        match store.refs().remove(RefKind::Machine, &self.machine, own.sequence).await {
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Conflict) => Ok(()),
            other => other,
        }
    }

    fn lost(&self, e: Error) -> Error {
        match e.kind() {
            ErrorKind::Conflict | ErrorKind::NotFound => Error::fenced(format!(
                "machine {:?} was taken over by another home, or removed: no parcel is made of what runs here; \
                 have a guest that runs save its work elsewhere, and stop it",
                self.machine
            )),
            _ => e,
        }
    }
}

fn body(store: &Store, spec: &MachineSpec, server: ServerId, parcel: Option<&Parcel>) -> RefBody {
    let mut labels = BTreeMap::from([
        (UUID.to_owned(), spec.uuid.clone()),
        (machines::SERVER.to_owned(), server.to_string()),
        (machines::DISK.to_owned(), spec.disk.clone()),
    ]);
    if let Some(parcel) = parcel {
        labels.insert(PARCEL.to_owned(), parcel.name());
    }
    RefBody {
        manifest: parcel.map(|parcel| parcel.memory),
        size: parcel.map_or(0, |parcel| parcel.layout.memory),
        created: store.world().clock.now(),
        labels,
    }
}

impl ClaimState {
    /// The claim, whoever has it.
    pub fn claim(&self) -> Option<&RunClaim> {
        match self {
            Self::Free => None,
            Self::Own(claim) | Self::Elsewhere { claim, .. } | Self::Silent { claim, .. } => {
                Some(claim)
            }
        }
    }

    /// The same for a home whose machine has this UUID: the claim on another machine of that name is none.
    #[must_use]
    pub fn of_machine(self, uuid: &str) -> Self {
        match self.claim() {
            Some(claim) if claim.uuid != uuid => Self::Free,
            _ => self,
        }
    }

    /// Refuses to take the disk of a machine that another home has, to go on with a parcel: what that home has since
    /// would be lost. Nothing of that is there any more once it has given the disk up, or somebody took it. `lost`
    /// vouches that a host which fell silent is gone. Says whether that home has the disk still, whose memory is given up.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict), with the host and the remedy; any error from the store.
    pub async fn must_allow_taking(&self, store: &Store, disk: &str, lost: bool) -> Result<bool> {
        let (claim, host, is_alive) = match self {
            Self::Free | Self::Own(_) => return Ok(false),
            Self::Elsewhere { claim, host } => (claim, host, true),
            Self::Silent { claim, host } => (claim, host, false),
        };
        let found = store.refs().get(RefKind::Disk, disk).await?;
        let holder = found.as_ref().map(disk::holder).transpose()?.flatten();
        if holder != Some(claim.server) {
            return Ok(false);
        }
        let name = &claim.machine;
        let what = format!(
            "machine {name:?} runs on {host}, or has not all gone up from there ('sojourn vm list' there says which)"
        );
        match is_alive {
            true => Err(Error::conflict(format!(
                "{what}; suspend it there first ('sojourn vm suspend --wait {name}'), or, if that is done, release its \
                 disk there ('sojourn disk release {disk}')"
            ))),
            false if lost => Ok(true),
            false => Err(Error::conflict(format!(
                "{what}, which has fallen silent; suspend it there ('sojourn vm suspend --wait {name}'), or, if that \
                 host is gone for good, repeat this with --lost: what the machine did there is lost then"
            ))),
        }
    }

    /// Refuses to remove parcels of a machine that runs elsewhere: all of it, or the parcel that it came from.
    /// `removed` says of a parcel's name whether it would go; `lost` vouches that a host which fell silent
    /// is gone.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict), with the host and the remedy.
    pub fn must_allow(
        &self,
        whole: bool,
        removed: &dyn Fn(&str) -> bool,
        lost: bool,
    ) -> Result<()> {
        let (claim, host, alive) = match self {
            Self::Free | Self::Own(_) => return Ok(()),
            Self::Elsewhere { claim, host } => (claim, host, true),
            Self::Silent { claim, host } => (claim, host, false),
        };
        let name = &claim.machine;
        let used = claim.parcel.as_deref().filter(|parcel| removed(parcel));
        let what = match used {
            Some(parcel) => {
                format!("parcel {parcel} is in use: machine {name:?} runs from it on {host}")
            }
            None if whole => format!("machine {name:?} runs on {host}"),
            None => return Ok(()),
        };
        match alive {
            true => Err(Error::conflict(format!(
                "{what}; suspend it there first ('sojourn vm suspend {name}'), or stop it"
            ))),
            false if lost => Ok(()),
            false => Err(Error::conflict(format!(
                "{what}, which has fallen silent; if that host is gone for good, remove it with --lost: what the \
                 machine did there is lost then"
            ))),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::parcel::tests::{collect, fresh, make};
    use crate::spec::tests::spec;
    use object_store::memory::InMemory;
    use objects::testing::{ScriptedStore, StoreCall, StoreFault};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;
    use store::testing;

    const HERE: ServerId = ServerId([1; 16]);
    const THERE: ServerId = ServerId([2; 16]);

    /// Has a server hold the disk of the machine.
    pub(crate) async fn hold_disk(store: &Store, server: ServerId) {
        let labels = [("holder", server.to_string()), ("epoch", "1".to_owned())];
        let labels = labels.map(|(label, value)| (label.to_owned(), value)).into();
        let body = RefBody { manifest: None, size: 8192, created: 1, labels };
        let refs = store.refs();
        let before = refs.look_up(RefKind::Disk, &spec().disk).await.unwrap();
        refs.write_over(&before, body).await.unwrap();
    }

    async fn claim(store: &Store, server: ServerId, parcel: Option<&Parcel>) -> Result<RunClaim> {
        let session = store.session("test").await.unwrap();
        let made = RunClaim::make(&session, &spec(), server, parcel).await;
        session.close(made).await
    }

    #[tokio::test]
    async fn a_collection_keeps_the_memory_that_a_machine_runs_from_though_its_parcel_was_removed()
    {
        let store = fresh().await;
        let parcel = make(&store, 1).await;
        let claim = claim(&store, HERE, Some(&parcel)).await.unwrap();
        parcel.remove(&store).await.unwrap();
        collect(&store).await;
        store.stored_manifest(&parcel.memory).await.unwrap();
        let session = store.session("test").await.unwrap();
        assert_eq!(claim.hold(&session).await.unwrap(), claim);
        claim.end(&store).await.unwrap();
        collect(&store).await;
        store.stored_manifest(&parcel.memory).await.unwrap();
        session.close(Ok(())).await.unwrap();
        collect(&store).await;
        let gone = store.stored_manifest(&parcel.memory).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }

    #[tokio::test]
    async fn what_runs_elsewhere_is_not_removed_and_a_host_that_died_only_when_told_so() {
        let store = fresh().await;
        let parcel = make(&store, 1).await;
        claim(&store, THERE, Some(&parcel)).await.unwrap();
        let named = |name: &str| name == "work@1";
        store.servers().announce(THERE, "lab-3", Duration::from_secs(60)).await.unwrap();
        let state = RunClaim::state(&store, "work", HERE).await.unwrap();
        for (whole, removed, lost) in
            [(true, true, false), (false, true, true), (true, false, true)]
        {
            let refused =
                state.must_allow(whole, &|name| removed && named(name), lost).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Conflict);
            assert!(refused.message().contains("lab-3"), "{refused}");
        }
        state.must_allow(false, &|name| name == "work@2", false).unwrap();
        let own = RunClaim::state(&store, "work", THERE).await.unwrap();
        own.must_allow(true, &|_| true, false).unwrap();
        store.servers().announce(THERE, "lab-3", Duration::ZERO).await.unwrap();
        let state = RunClaim::state(&store, "work", HERE).await.unwrap();
        let refused = state.must_allow(false, &named, false).unwrap_err();
        assert!(refused.message().contains("--lost"), "{refused}");
        state.must_allow(true, &|_| true, true).unwrap();
    }

    #[tokio::test]
    async fn who_lost_a_machine_makes_no_parcel_of_it_and_does_not_end_the_claim_of_the_other() {
        let store = fresh().await;
        let parcel = make(&store, 1).await;
        let first = claim(&store, HERE, None).await.unwrap();
        let session = store.session("test").await.unwrap();
        let first = first.advance(&session, &spec(), &parcel).await.unwrap();
        assert_eq!(first.parcel.as_deref(), Some("work@1"));
        let second = claim(&store, THERE, Some(&parcel)).await.unwrap();
        assert_eq!(first.hold(&session).await.unwrap_err().kind(), ErrorKind::Fenced);
        let late = first.advance(&session, &spec(), &parcel).await;
        assert_eq!(late.unwrap_err().kind(), ErrorKind::Fenced);
        first.end(&store).await.unwrap();
        assert_eq!(RunClaim::find(&store, "work").await.unwrap(), Some(second));
        parcel.remove(&store).await.unwrap();
        let gone = claim(&store, HERE, Some(&parcel)).await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound);
        session.close(Ok(())).await.unwrap();
    }

    #[tokio::test]
    async fn who_lost_the_disk_does_not_replace_the_claim_of_who_has_it() {
        let store = fresh().await;
        hold_disk(&store, THERE).await;
        let theirs = claim(&store, THERE, None).await.unwrap();
        let refused = claim(&store, HERE, None).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Fenced);
        assert!(refused.message().contains("was taken from this server"), "{refused}");
        assert_eq!(RunClaim::find(&store, "work").await.unwrap(), Some(theirs));
        hold_disk(&store, HERE).await;
        claim(&store, HERE, None).await.unwrap();
    }

    #[tokio::test]
    async fn a_claim_of_which_nobody_knows_is_given_up_if_it_is_there_and_that_of_another_home_stays()
     {
        let store = fresh().await;
        let sought = RunClaim::sought(&spec(), HERE);
        sought.end(&store).await.unwrap();
        claim(&store, HERE, None).await.unwrap();
        sought.end(&store).await.unwrap();
        assert_eq!(RunClaim::find(&store, "work").await.unwrap(), None);
        let other = claim(&store, THERE, None).await.unwrap();
        sought.end(&store).await.unwrap();
        assert_eq!(RunClaim::find(&store, "work").await.unwrap(), Some(other));
    }

    #[tokio::test]
    async fn what_is_here_needs_nothing_of_a_store_that_refuses() {
        let refuses = Arc::new(AtomicBool::new(false));
        let asked = Arc::clone(&refuses);
        let script = move |_: &StoreCall| match asked.load(Ordering::Relaxed) {
            true => StoreFault::Fail(std::io::ErrorKind::PermissionDenied),
            false => StoreFault::None,
        };
        let backend = Arc::new(ScriptedStore::new(Arc::new(InMemory::new()), script));
        let store = Store::create(backend, testing::settings(), testing::world(1)).await.unwrap();
        let made = claim(&store, HERE, None).await.unwrap();
        refuses.store(true, Ordering::Relaxed);
        let refused = RunClaim::find(&store, "work").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Denied);
        let own = RunClaim::of_suspension(&store, &spec(), HERE).await.unwrap();
        assert!(own.is_same(&made));
    }

    #[tokio::test]
    async fn another_machine_of_the_same_name_does_not_replace_the_claim() {
        let store = fresh().await;
        let first = claim(&store, HERE, None).await.unwrap();
        let other = MachineSpec { uuid: "of-another-machine".into(), ..spec() };
        let session = store.session("test").await.unwrap();
        let refused = RunClaim::make(&session, &other, THERE, None).await.unwrap_err();
        session.close(Ok(())).await.unwrap();
        assert_eq!(refused.kind(), ErrorKind::Conflict);
        assert!(refused.message().contains("vm remove --lost work"), "{refused}");
        assert_eq!(RunClaim::find(&store, "work").await.unwrap(), Some(first));
    }
}
