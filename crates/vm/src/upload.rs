//! What was kept of a suspension on this host becomes a parcel in the store, while nobody waits.
//!
//! It may be given up at any instant, by dropping the future or killing the process, and begun again: chunks that
//! went up are found in the store, and the parcel is named last.

use crate::disk_pages::{NearbyChunks, StoredDisk, WORTH_A_SEARCH};
use crate::machine::MachineDisk;
use crate::pending::{PendingMemory, PendingSuspension, is_of};
use crate::save::{self, MachineTail};
use crate::{MachineSpec, Parcel, RunClaim, resume_set};
use block::{Error, Result, offload};
use disk::Loader;
use std::path::Path;
use std::sync::Arc;
use store::{Progress, RefKind, ServerId, Session, Store, UploadPlan, machines, sessions};

/// Bytes of chunks that are sent as one pack: what is in flight when the process is killed is sent again.
const PACK: usize = 2 << 20;
/// The level of zstd for memory, which goes up behind everybody's back: of a system's image in blocks of 64 KiB it
/// makes 2 to 3 % less than a store's usual level 2, in a sixth more time.
const LEVEL: i32 = 4;

/// Where a suspension goes up from, and to.
pub struct UploadTarget<'a> {
    /// The directory of the machine.
    pub machine: &'a Path,
    /// The store.
    pub store: &'a Store,
    /// Through which the memory is read that the suspension is based on.
    pub loader: &'a Arc<Loader>,
    /// The server that has the disk.
    pub server: ServerId,
    /// The disk.
    pub disk: &'a dyn MachineDisk,
    /// What of it can be read without a network.
    pub nearby: &'a dyn NearbyChunks,
}

/// What an upload came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UploadReport {
    /// The parcel.
    pub parcel: Parcel,
    /// Bytes of chunks that the memory added to the store in this try.
    pub memory_bytes: u64,
    /// Extents of memory that changed since the parcel before.
    pub changed: u64,
    /// Extents of these that were stored in full.
    pub full: u64,
}

/// Stores what is pending of a machine. It stays on this host until it is [forgotten](PendingSuspension::forget).
///
/// # Errors
/// [`NotFound`](block::ErrorKind::NotFound) when the store does not have the disk: then it may not be mounted;
/// [`Conflict`](block::ErrorKind::Conflict) when the disk was written since, or another machine has the name;
/// [`Fenced`](block::ErrorKind::Fenced) when another home has the machine by now;
/// any error from the disk's server, the store and the file system.
pub async fn upload(
    target: &UploadTarget<'_>,
    pending: &PendingSuspension,
    progress: &dyn Progress,
) -> Result<UploadReport> {
    let spec = &pending.machine;
    must_have_the_disk(target.store, spec).await?;
    // A session's words are short: these fit, and are those of this machine and home alone.
    let server = target.server.to_string();
    let words = [spec.uuid.get(..8), server.get(..8)].map(Option::unwrap_or_default);
    let session = target.store.session(&format!("parcel {}-{}", words[0], words[1])).await?;
    let plan = UploadPlan { pack_bytes: PACK, level: LEVEL, ..UploadPlan::default() };
    let session = session.uploading(plan);
    if let Err(error) = sessions::end_predecessors(&session).await {
        tracing::debug!(machine = spec.name, %error, "pins of earlier uploads stay for a day");
    }
    let stored = upload_in(&session, target, pending, progress).await;
    session.close(stored).await
}

/// Fails for a store that does not have the disk of the machine, before anything is written there: what a mount point
/// holds while nothing is mounted is not the store, and a first suspension would be made anew in it.
async fn must_have_the_disk(store: &Store, spec: &MachineSpec) -> Result<()> {
    match store.refs().get(RefKind::Disk, &spec.disk).await? {
        Some(_) => Ok(()),
        None => Err(Error::not_found(format!(
            "the store does not have disk {:?} of machine {:?}: is it mounted? Mount it if not; if the disk was removed \
             from it, 'sojourn vm discard {}' drops the suspension",
            spec.disk, spec.name, spec.name
        ))),
    }
}

async fn upload_in(
    session: &Session,
    target: &UploadTarget<'_>,
    pending: &PendingSuspension,
    progress: &dyn Progress,
) -> Result<UploadReport> {
    let UploadTarget { store, disk, .. } = *target;
    let spec = &pending.machine;
    let (parcels, damaged) = Parcel::list(store, Some(&spec.name)).await?;
    if let Some(bad) = damaged.into_iter().next() {
        return Err(bad.error);
    }
    // One that was interrupted when all was done.
    if let Some(done) = parcels.iter().find(|parcel| is_of(parcel, pending)) {
        return Ok(UploadReport { parcel: done.clone(), memory_bytes: 0, changed: 0, full: 0 });
    }
    if let Some(other) = parcels.iter().find(|parcel| parcel.spec.uuid != spec.uuid) {
        return Err(Error::conflict(format!(
            "parcel {} is of another machine that has the same name; remove one of the two",
            other.name()
        )));
    }
    let newest = parcels.last().map_or(0, |parcel| parcel.number);
    let number = pending.number.max(Parcel::number_after(&spec.name, newest)?);
    let claim = RunClaim::of_suspension(store, spec, target.server).await?;
    let claim = claim.hold_or_renew(session, spec, pending.base_id(), &parcels).await?;
    must_hold(disk, pending).await?;
    let snapshot = machines::snapshot_name(&spec.name, number);
    let full = format!("{}@{snapshot}", spec.disk);
    drop_leftovers(store, disk, spec, &parcels).await?;
    disk.snapshot(&spec.disk, &snapshot).await?;
    // Nothing was written before the snapshot was taken, or it would be seen now.
    if let Err(written) = must_hold(disk, pending).await {
        if let Err(error) = disk.remove_snapshot(&spec.disk, &snapshot).await {
            tracing::warn!(disk = spec.disk, snapshot, %error, "a snapshot of a try stays");
        }
        return Err(written);
    }
    let found = session.hold(RefKind::Snapshot, &full).await?;
    let contents = found.and_then(|found| found.body.manifest).ok_or_else(|| {
        Error::conflict(format!(
            "snapshot {full} was removed while machine {:?} was stored",
            spec.name
        ))
    })?;
    let base = pending.base(store, target.loader).await?;
    // A file system that hangs must not keep a keeper from whoever asks it for something.
    let (kept, machine) = (pending.clone(), target.machine.to_owned());
    let read =
        move || Ok((kept.earlier(&machine)?, kept.state(&machine)?, kept.first_reads(&machine)?));
    let (pages, state, first) = offload(read).await?;
    let memory = PendingMemory { size: spec.memory, base: base.clone(), pages };
    let set = resume_set::encode(&first.extents);
    let tail = MachineTail { state: &state, resume_set: &set, first_pages: &first.pages };
    let on_disk = store.manifest(&contents).await?;
    let (loader, nearby) = (target.loader, target.nearby);
    let fewest = WORTH_A_SEARCH;
    let disk_pages = Some(StoredDisk { contents: &on_disk, loader, fewest, nearby });
    let saved = save::memory(session, base.as_deref(), &memory, tail, disk_pages, progress).await?;
    // Others may have taken the machine or its disk meanwhile.
    claim.hold(session).await?;
    must_hold(disk, pending).await?;
    let token = Some(pending.token.as_str());
    let parcel = Parcel::publish(session, spec, number, &saved, contents, token).await?;
    Ok(UploadReport {
        parcel,
        memory_bytes: saved.imported.stats.stored_bytes,
        changed: saved.changed,
        full: saved.full,
    })
}

/// Removes the snapshots of tries that were killed, or given up when the machine went on: no parcel names them.
async fn drop_leftovers(
    store: &Store,
    disk: &dyn MachineDisk,
    spec: &MachineSpec,
    parcels: &[Parcel],
) -> Result<()> {
    let prefix = format!("{}@{}", spec.disk, machines::snapshot_name(&spec.name, 0));
    let prefix = prefix.trim_end_matches('0');
    let ours =
        |name: &str| name.strip_prefix(prefix).is_some_and(|number| number.parse::<u64>().is_ok());
    for found in store.refs().list_some(RefKind::Snapshot, ours).await?.records {
        let snapshot = found.name.rsplit('@').next().unwrap_or_default();
        if !parcels.iter().any(|parcel| parcel.snapshot == snapshot) {
            disk.remove_snapshot(&spec.disk, snapshot).await?;
        }
    }
    Ok(())
}

/// Fails when the disk is not what it was.
async fn must_hold(disk: &dyn MachineDisk, pending: &PendingSuspension) -> Result<()> {
    match disk.mark(&pending.machine.disk).await? {
        Some(mark) if mark == pending.disk_mark => Ok(()),
        _ => Err(pending.disk_was_written()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::claim::tests::hold_disk;
    use crate::disk_pages::tests::AllNearby;
    use crate::parcel::tests::{fresh, make};
    use crate::pending::SuspendedParts;
    use crate::spec::tests::spec;
    use crate::{GuestRam, PAGE};
    use async_trait::async_trait;
    use block::{ErrorKind, Span};
    use parking_lot::Mutex;
    use std::collections::BTreeMap;
    use store::{ManifestId, RefBody, import};

    const HERE: ServerId = ServerId([1; 16]);

    /// A disk whose content somebody else may change.
    struct SomeDisk {
        store: Store,
        contents: ManifestId,
        /// One for each question, and the last one for all later ones.
        marks: Mutex<Vec<Option<String>>>,
    }

    #[async_trait]
    impl MachineDisk for SomeDisk {
        async fn holds(&self, _: &str, contents: &ManifestId) -> Result<bool> {
            Ok(*contents == self.contents)
        }

        async fn set_mark(&self, _: &str) -> Result<String> {
            Ok("mark".to_owned())
        }

        async fn mark(&self, _: &str) -> Result<Option<String>> {
            let mut marks = self.marks.lock();
            Ok(if marks.len() > 1 { marks.remove(0) } else { marks[0].clone() })
        }

        async fn snapshot(&self, disk: &str, snapshot: &str) -> Result<()> {
            let manifest = Some(self.contents);
            let body = RefBody { manifest, size: 8192, created: 1, labels: BTreeMap::new() };
            let full = format!("{disk}@{snapshot}");
            self.store.refs().create(RefKind::Snapshot, &full, body).await.map(drop)
        }

        async fn remove_snapshot(&self, disk: &str, snapshot: &str) -> Result<()> {
            let (refs, full) = (self.store.refs(), format!("{disk}@{snapshot}"));
            let found = refs.get(RefKind::Snapshot, &full).await?.unwrap();
            refs.remove(RefKind::Snapshot, &full, found.sequence).await
        }
    }

    struct Lab {
        dir: tempfile::TempDir,
        store: Store,
        loader: Arc<Loader>,
        disk: SomeDisk,
        pending: PendingSuspension,
    }

    impl Lab {
        /// A suspension that is to become `work@5`, claimed by this home.
        async fn new(marks: &[Option<&str>]) -> Self {
            let store = fresh().await;
            let dir = tempfile::tempdir().unwrap();
            let ram = GuestRam::new(dir.path(), spec().memory, None).unwrap();
            ram.write(Span::between(PAGE, 2 * PAGE), &[7; PAGE as usize]).unwrap();
            ram.sync().await.unwrap();
            let frozen = ram.freeze().unwrap();
            let (local, changed) = frozen.pages();
            let parts = SuspendedParts {
                spec: &spec(),
                number: 5,
                token: "a".repeat(32),
                created: 7,
                disk_mark: "mark".into(),
                base: None,
                local,
                changed,
                tail: MachineTail { state: b"devices", ..MachineTail::default() },
            };
            let pending = PendingSuspension::keep(dir.path(), parts).await.unwrap();
            let session = store.session("test").await.unwrap();
            let made = import::from_stream(&session, &[3; 8192][..], &()).await.unwrap();
            RunClaim::make(&session, &spec(), HERE, None).await.unwrap();
            session.close(Ok(())).await.unwrap();
            hold_disk(&store, HERE).await;
            let cache =
                cache::Config { capacity: 1 << 24, policy: cache::PolicyKind::default(), seed: 1 };
            let cache = Arc::new(cache::Cache::new(cache));
            let loader = Loader::new(store.clone(), cache, disk::LoadOptions::default());
            let marks = marks.iter().map(|mark| mark.map(str::to_owned)).collect();
            let disk = SomeDisk {
                store: store.clone(),
                contents: made.manifest,
                marks: Mutex::new(marks),
            };
            Self { dir, store, loader, disk, pending }
        }

        async fn upload(&self) -> Result<UploadReport> {
            let target = UploadTarget {
                machine: self.dir.path(),
                store: &self.store,
                loader: &self.loader,
                server: HERE,
                disk: &self.disk,
                nearby: &AllNearby,
            };
            upload(&target, &self.pending, &()).await
        }
    }

    #[tokio::test]
    async fn what_was_kept_becomes_a_parcel_once_however_often_it_is_sent() {
        let lab = Lab::new(&[Some("mark")]).await;
        // A try that was killed left its snapshot.
        for left in ["vm-work-5", "vm-work-4", "vm-work-x-4"] {
            lab.disk.snapshot("alice", left).await.unwrap();
        }
        let report = lab.upload().await.unwrap();
        assert_eq!(report.parcel.name(), "work@5");
        let snapshots = lab.store.refs().list(RefKind::Snapshot).await.unwrap().records;
        let names: Vec<&str> = snapshots.iter().map(|found| found.name.as_str()).collect();
        assert_eq!(names, ["alice@vm-work-5", "alice@vm-work-x-4"]);
        let image = report.parcel.image(&lab.store, &lab.loader).await.unwrap();
        let mut page = [0; PAGE as usize];
        image.read(Span::between(PAGE, 2 * PAGE), &mut page).await.unwrap();
        assert_eq!((page, image.state().await.unwrap()), ([7; PAGE as usize], b"devices".to_vec()));
        let again = lab.upload().await.unwrap();
        assert_eq!((&again.parcel, again.memory_bytes), (&report.parcel, 0));
        assert_eq!(Parcel::list(&lab.store, None).await.unwrap().0.len(), 1);
    }

    #[tokio::test]
    async fn a_first_suspension_does_not_go_to_a_store_that_has_not_got_its_disk() {
        let lab = Lab::new(&[Some("mark")]).await;
        let refs = lab.store.refs();
        for kind in [RefKind::Disk, RefKind::Machine] {
            let found = refs.list(kind).await.unwrap().records.remove(0);
            refs.remove(kind, &found.name, found.sequence).await.unwrap();
        }
        let error = lab.upload().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        assert!(error.message().contains("is it mounted?"), "{error}");
        for kind in [RefKind::Machine, RefKind::Parcel, RefKind::Snapshot] {
            assert!(refs.list(kind).await.unwrap().is_empty(), "{kind:?}");
        }
    }

    #[tokio::test]
    async fn a_number_that_somebody_took_is_not_used_again() {
        let lab = Lab::new(&[Some("mark")]).await;
        make(&lab.store, 9).await;
        assert_eq!(lab.upload().await.unwrap().parcel.name(), "work@10");
    }

    #[tokio::test]
    async fn a_disk_that_was_written_and_a_machine_that_was_taken_become_no_parcel() {
        // Before the snapshot, and while it was taken.
        for marks in [&[None][..], &[Some("mark"), None], &[Some("another")]] {
            let lab = Lab::new(marks).await;
            let error = lab.upload().await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Conflict);
            assert!(error.message().contains("vm discard work"), "{error}");
            assert!(Parcel::list(&lab.store, None).await.unwrap().0.is_empty());
            assert!(lab.store.refs().list(RefKind::Snapshot).await.unwrap().is_empty());
        }
        let lab = Lab::new(&[Some("mark")]).await;
        let session = lab.store.session("test").await.unwrap();
        let there = ServerId([2; 16]);
        hold_disk(&lab.store, there).await;
        RunClaim::make(&session, &spec(), there, None).await.unwrap();
        session.close(Ok(())).await.unwrap();
        assert_eq!(lab.upload().await.unwrap_err().kind(), ErrorKind::Fenced);
        assert!(PendingSuspension::find(lab.dir.path()).unwrap().is_some(), "it stays here");
    }
}
