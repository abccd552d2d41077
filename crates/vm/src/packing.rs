//! A machine that runs is stored: as a parcel, or here at first, to go up behind its back.

use crate::disk_pages::{StoredDisk, WORTH_A_SEARCH};
use crate::machine::{MachineDisk, MappedMemory, RunningMachine, StoppedGuest};
use crate::pending::{PendingSuspension, SuspendedParts};
use crate::resume_set::FirstReads;
use crate::save::{self, MachineTail};
use crate::{MemoryImage, Parcel, RunClaim, device_state, memory_file, mount, resume_set};
use block::{Error, ErrorKind, Result};
use std::sync::atomic::Ordering;
use std::time::Duration;
use store::{Progress, RefKind, Session, Store, machines};
use tokio::time::{Instant, timeout};

/// How long the store may take to answer before a suspension does without.
const ASKS: Duration = Duration::from_secs(2);

/// How long a disk may take to be marked while the guest stands still.
const MARKS: Duration = Duration::from_secs(20);

/// What making a parcel came to.
#[derive(Debug, Clone, PartialEq)]
pub struct ParcelReport {
    /// The parcel.
    pub parcel: Parcel,
    /// For how long the guest stood still, in seconds; of a suspend, until all was stored.
    pub paused: f64,
    /// Until the parcel was in the store, in seconds.
    pub stored: f64,
    /// Bytes of chunks that the memory added to the store.
    pub memory_bytes: u64,
    /// Extents of memory that changed.
    pub changed: u64,
    /// Extents of these that were stored in full.
    pub full: u64,
}

/// What suspending a machine on this host came to.
#[derive(Debug, Clone, PartialEq)]
pub struct KeptReport {
    /// What is to go up.
    pub pending: PendingSuspension,
    /// From the guest's stop until all was on stable storage here, in seconds.
    pub paused: f64,
    /// The same from the request.
    pub kept: f64,
}

/// What came of suspending a machine on this host.
#[derive(Debug)]
pub enum SuspendedHere {
    /// It stands still, and this is to go up.
    Kept(Box<KeptReport>),
    /// It runs on: what its disk holds cannot wait here, such as that of an ephemeral one, for this reason.
    DiskCannotWait(Error),
}

impl RunningMachine {
    /// Makes a parcel of the machine as it is now, and lets it run on.
    ///
    /// # Errors
    /// Any error from the disk's server, the store and QEMU; the machine runs on then, too.
    pub async fn checkpoint(
        &self,
        disk: &dyn MachineDisk,
        progress: &dyn Progress,
    ) -> Result<ParcelReport> {
        self.pack(disk, progress, true).await
    }

    /// Makes a parcel of the machine, which stands still from then on; [`end`](Self::end) it.
    ///
    /// # Errors
    /// Any error from the disk's server, the store and QEMU; the machine runs on then.
    pub async fn freeze_and_store(
        &self,
        disk: &dyn MachineDisk,
        progress: &dyn Progress,
    ) -> Result<ParcelReport> {
        self.pack(disk, progress, false).await
    }

    /// Keeps the machine on this host as it is now; it stands still from then on. [`park`](Self::park) it, and
    /// [`upload`](crate::upload::upload) what was kept. Most of its memory is written while it runs on. A machine whose
    /// disk cannot be marked, as an ephemeral one, runs on.
    ///
    /// # Errors
    /// [`Fenced`](ErrorKind::Fenced) when another home has the machine by now; any error from QEMU and
    /// the file system. The machine runs on then.
    pub async fn suspend_here(&self, disk: &dyn MachineDisk) -> Result<SuspendedHere> {
        let began = Instant::now();
        // What is suspended without a claim could neither go up nor go on.
        RunClaim::of_suspension(&self.host.store, &self.spec, self.host.server).await?;
        self.ram.take_over().await?;
        if let Some(MappedMemory::Mounted(mounted)) = &self.memory {
            mount::write_back(&mounted.file()).await?;
            self.ram.sync().await?;
        }
        let known = self.last_number.load(Ordering::Relaxed);
        let newest = timeout(ASKS, Parcel::newest(&self.host.store, &self.spec.name)).await;
        // Without an answer the parcel gets another number when it is stored, should it have to.
        let newest = newest.ok().and_then(Result::ok).flatten().map_or(0, |parcel| parcel.number);
        let number = Parcel::number_after(&self.spec.name, newest.max(known))?;
        let token = token(&self.host.store)?;
        let _pause = self.ram.demand().pause_ahead();
        let guest = self.stop_guest().await?;
        match self.keep_here(&guest, disk, number, token).await {
            Ok(Ok(pending)) => Ok(SuspendedHere::Kept(Box::new(KeptReport {
                pending,
                paused: guest.since.elapsed().as_secs_f64(),
                kept: began.elapsed().as_secs_f64(),
            }))),
            Ok(Err(why)) => {
                guest.go_on_after_failure().await;
                Ok(SuspendedHere::DiskCannotWait(why))
            }
            Err(e) => {
                guest.go_on_after_failure().await;
                Err(e)
            }
        }
    }

    /// Keeps a machine that stands still; the error within says why its disk cannot wait.
    async fn keep_here(
        &self,
        guest: &StoppedGuest<'_>,
        disk: &dyn MachineDisk,
        number: u64,
        token: String,
    ) -> Result<Result<PendingSuspension>> {
        // Only this waits for QEMU. What follows is not given up in the middle: who waits for memory now is no
        // processor of the guest, and a suspension that came to be must not be of a guest that has gone on.
        let state = guest.do_while_memory_comes(self.save_devices()).await?;
        let frozen = self.ram.freeze()?;
        let (marked, synced) = tokio::join!(set_mark(disk, &self.spec.disk), self.ram.sync());
        synced?;
        let disk_mark = match marked {
            Err(e) if matches!(e.kind(), ErrorKind::Denied | ErrorKind::Conflict) => {
                return Ok(Err(e));
            }
            marked => marked?,
        };
        let base = frozen.base().map(AsRef::as_ref);
        let first = self.first_reads(base).await;
        let set = resume_set::encode(&first.extents);
        let (local, changed) = frozen.pages();
        let parts = SuspendedParts {
            spec: &self.spec,
            number,
            token,
            created: self.host.store.world().clock.now(),
            disk_mark,
            base,
            local,
            changed,
            tail: MachineTail { state: &state, resume_set: &set, first_pages: &first.pages },
        };
        PendingSuspension::keep(&self.host.directory, parts).await.map(Ok)
    }

    /// Makes a parcel. The guest stands still until its memory is frozen and its disk is stored, and goes on
    /// then if it is to run on.
    async fn pack(
        &self,
        disk: &dyn MachineDisk,
        progress: &dyn Progress,
        run_on: bool,
    ) -> Result<ParcelReport> {
        let store = &self.host.store;
        let name = &self.spec.name;
        let began = Instant::now();
        let session = store.session(&format!("parcel of machine {name}")).await?;
        let mut guest = None;
        let (how, until) = ((run_on, began), &mut guest);
        let outcome = self.pack_in(&session, disk, progress, how, until).await;
        let goes_on = async {
            if let Some(guest) = guest {
                guest.go_on_after_failure().await;
            }
        };
        close(session, outcome, goes_on).await
    }

    /// Leaves the guest in `stopped` if it stands still.
    async fn pack_in<'a>(
        &'a self,
        session: &Session,
        disk: &dyn MachineDisk,
        progress: &dyn Progress,
        (run_on, began): (bool, Instant),
        stopped: &mut Option<StoppedGuest<'a>>,
    ) -> Result<ParcelReport> {
        let (store, spec) = (&self.host.store, &self.spec);
        let mut claim = self.claim.lock().await;
        let claimed = claim.as_mut().ok_or_else(|| Error::conflict("the machine has ended"))?;
        // The new parcel shares chunks with the one that the machine came from.
        *claimed = claimed.hold(session).await?;
        let before = Parcel::newest(store, &spec.name).await?;
        if let Some(before) = before.as_ref().filter(|before| before.spec.uuid != spec.uuid) {
            return Err(Error::conflict(format!(
                "parcel {} is of another machine that has the same name; remove one of the two",
                before.name()
            )));
        }
        let known = self.last_number.load(Ordering::Relaxed);
        let newest = before.map_or(0, |before| before.number).max(known);
        let number = Parcel::number_after(&spec.name, newest)?;
        let snapshot = machines::snapshot_name(&spec.name, number);
        let full = format!("{}@{snapshot}", spec.disk);
        // A try that was killed may have left its snapshot; no parcel names it.
        if store.refs().get(RefKind::Snapshot, &full).await?.is_some() {
            disk.remove_snapshot(&spec.disk, &snapshot).await?;
        }
        // A guest that stands still needs no more of its memory; what is stored has the link.
        let _pause = (!run_on).then(|| self.ram.demand().pause_ahead());
        let guest = stopped.insert(self.stop_guest().await?);
        let since = guest.since;
        let state = guest.do_while_memory_comes(self.save_devices()).await?;
        let frozen = self.ram.freeze()?;
        disk.snapshot(&spec.disk, &snapshot).await?;
        let found = session.hold(RefKind::Snapshot, &full).await?;
        let contents = found.and_then(|found| found.body.manifest).ok_or_else(|| {
            Error::conflict(format!(
                "snapshot {full} was removed while machine {:?} was saved",
                spec.name
            ))
        })?;
        if run_on && let Some(guest) = stopped.take() {
            guest.go_on().await?;
        }
        let mut paused = since.elapsed().as_secs_f64();
        let base = frozen.base().cloned();
        let first = self.first_reads(base.as_deref()).await;
        let set = resume_set::encode(&first.extents);
        let tail = MachineTail { state: &state, resume_set: &set, first_pages: &first.pages };
        let on_disk = store.manifest(&contents).await?;
        let (loader, nearby) = (&self.host.loader, &*self.host.nearby);
        let fewest = WORTH_A_SEARCH;
        let on_disk = Some(StoredDisk { contents: &on_disk, loader, fewest, nearby });
        let saved =
            save::memory(session, base.as_deref(), &frozen, tail, on_disk, progress).await?;
        // Others may have taken the machine while its memory went up.
        *claimed = claimed.hold(session).await?;
        let parcel = Parcel::publish(session, spec, number, &saved, contents, None).await?;
        self.last_number.store(number, Ordering::Relaxed);
        // Before the claim moves on: it keeps what the guest reads its memory from.
        let image = parcel.image(store, &self.host.loader).await?;
        *claimed = match claimed.advance(session, spec, &parcel).await {
            Ok(advanced) => advanced,
            // The answer alone may have been lost.
            Err(e) => match claimed.hold(session).await {
                Ok(found) if found.parcel.as_ref() == Some(&parcel.name()) => found,
                _ => return Err(e),
            },
        };
        frozen.stored(image);
        // What was kept here of an earlier suspension is behind this parcel.
        if let Err(error) = PendingSuspension::forget(&self.host.directory) {
            tracing::warn!(machine = spec.name, %error, "an earlier suspension stays here");
        }
        if !run_on {
            paused = since.elapsed().as_secs_f64();
        }
        Ok(ParcelReport {
            parcel,
            paused,
            stored: began.elapsed().as_secs_f64(),
            memory_bytes: saved.imported.stats.stored_bytes,
            changed: saved.changed,
            full: saved.full,
        })
    }

    /// What the next resume should have fetched ahead: what the last one read first, or what the one before it did if
    /// this one was not noted to its end, be it known from a suspension that did not go up or from a parcel; what was
    /// noted of it is better than nothing.
    async fn first_reads(&self, base: Option<&MemoryImage>) -> FirstReads {
        let known = [self.touched.lock().clone(), self.resumed_by.clone()];
        let of_base = base.map(MemoryImage::first_reads);
        let mut first = first_known(known, of_base, || self.ram.noted()).await;
        if let Some(base) = base
            && let Ok(Ok(copied)) = timeout(ASKS, base.list_of_copies()).await
        {
            first.pages = resume_set::settle(first.pages, copied);
        }
        first
    }

    /// The state of the devices; all that the guest changed in its memory is in our hands then. The guest is stopped.
    async fn save_devices(&self) -> Result<Vec<u8>> {
        let state = device_state::save(&self.monitor, &self.host.directory).await?;
        self.collect().await?;
        Ok(state)
    }

    /// Has all that the guest changed in its memory in our hands. The guest is stopped.
    async fn collect(&self) -> Result<()> {
        match &self.memory {
            Some(MappedMemory::Mounted(mounted)) => mount::write_back(&mounted.file()).await,
            Some(MappedMemory::File(path)) => memory_file::collect(&self.ram, path).await,
            None => Err(Error::conflict("the machine has ended")),
        }
    }
}

/// Ends the session of a parcel. Where nothing came of that the guest goes on before: the store may be what failed, and
/// takes minutes then to let go of the session.
async fn close<T>(
    session: Session,
    outcome: Result<T>,
    goes_on: impl Future<Output = ()>,
) -> Result<T> {
    if outcome.is_err() {
        goes_on.await;
    }
    session.close(outcome).await
}

/// The first set that has something in it: of those that are known, the one of the base, what was noted. Nothing of a
/// machine that neither came from a parcel nor knows a set.
async fn first_known(
    known: [FirstReads; 2],
    of_base: Option<impl Future<Output = Result<FirstReads>>>,
    noted: impl FnOnce() -> FirstReads,
) -> FirstReads {
    if let Some(set) = known.into_iter().find(|set| !set.extents.is_empty()) {
        return set;
    }
    let Some(of_base) = of_base else { return FirstReads::default() };
    // The guest stands still meanwhile.
    match timeout(ASKS, of_base).await {
        Ok(Ok(set)) if !set.extents.is_empty() => set,
        _ => noted(),
    }
}

/// Marks a disk. What changes or publishes it as a whole may take hours, and the guest stands still meanwhile.
async fn set_mark(disk: &dyn MachineDisk, name: &str) -> Result<String> {
    let late = |_| {
        Error::unavailable(format!(
            "disk {name:?} is being published, committed, rebased or put into a snapshot; wait for that, and suspend the \
             machine again"
        ))
    };
    timeout(MARKS, disk.set_mark(name)).await.map_err(late)?
}

/// Tells a parcel from another one of its number.
fn token(store: &Store) -> Result<String> {
    let mut random = [0; 16];
    store.world().entropy.fill(&mut random)?;
    Ok(random.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parcel::tests::session_that_stays;
    use async_trait::async_trait;
    use std::future::{pending, ready};
    use store::ManifestId;

    /// A disk that somebody publishes, over a link that is cut.
    struct BusyDisk;

    #[async_trait]
    impl MachineDisk for BusyDisk {
        async fn holds(&self, _: &str, _: &ManifestId) -> Result<bool> {
            pending().await
        }

        async fn set_mark(&self, _: &str) -> Result<String> {
            pending().await
        }

        async fn mark(&self, _: &str) -> Result<Option<String>> {
            pending().await
        }

        async fn snapshot(&self, _: &str, _: &str) -> Result<()> {
            pending().await
        }

        async fn remove_snapshot(&self, _: &str, _: &str) -> Result<()> {
            pending().await
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_stands_still_behind_a_disk_that_is_published_for_half_a_minute_at_the_most() {
        let began = Instant::now();
        let late = set_mark(&BusyDisk, "alice").await.unwrap_err();
        assert!(began.elapsed() < Duration::from_secs(30));
        assert!(late.message().contains("disk \"alice\" is being published"), "{late}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_of_which_no_parcel_was_made_goes_on_before_the_store_lets_go_of_that() {
        let session = session_that_stays().await;
        let mut runs = false;
        let goes_on = async { runs = true };
        let failed = Err::<(), _>(Error::unavailable("the store is away"));
        let closing = timeout(Duration::from_secs(60), close(session, failed, goes_on)).await;
        assert!(closing.is_err(), "the store gives no answer");
        assert!(runs);
    }

    #[tokio::test(start_paused = true)]
    async fn a_resume_that_was_not_noted_to_its_end_passes_on_the_set_it_had_itself() {
        let reads = |set: &[u32]| FirstReads { extents: set.to_vec(), pages: Vec::new() };
        let older = || Some(ready(Ok(reads(&[3]))));
        let noted = || reads(&[4]);
        let set = async |seen: &[u32], own: &[u32]| {
            first_known([reads(seen), reads(own)], older(), noted).await.extents
        };
        assert_eq!(set(&[1], &[2]).await, [1]);
        assert_eq!(set(&[], &[2]).await, [2], "that of the parcel before is older");
        assert_eq!(set(&[], &[]).await, [3]);
        let nobody = <[FirstReads; 2]>::default;
        let away = Some(pending::<Result<FirstReads>>());
        assert_eq!(first_known(nobody(), away, noted).await.extents, [4], "the store is away");
        let none = None::<std::future::Ready<Result<FirstReads>>>;
        let booted = first_known(nobody(), none, noted).await;
        assert_eq!(booted, FirstReads::default(), "it was booted");
    }
}
