//! A suspension that is durable on this host and not in the store yet: the directory `pending` of its machine.
//!
//! | file | content |
//! |---|---|
//! | `pending.json` | the machine, the parcel's number, what its memory is based on, the mark of its disk |
//! | `memory` | pages of guest memory, each at its own offset |
//! | `pages` | which pages these are, and which changed since the last parcel |
//! | `state`, `resume-set` | the state of the devices, the resume set |
//! | `resumed` | there once the machine has gone on from here |
//!
//! The directory is made under another name, synced, and exchanged for what was there: it is whole, or it is the
//! one before. Nothing in it changes then. It goes when the parcel is in the store, or when it was given up. While the
//! disk is made what it was in an older parcel, it is under another name: it comes back if that fails.

use crate::image::{MAX_STATE, MemoryImage, MemoryLayout};
use crate::pages::Pages;
use crate::ram::{EarlierPages, WRITTEN};
use crate::resume_set::{self, FirstReads};
use crate::save::{MachineTail, MemorySource};
use crate::{EXTENT, MachineSpec, PAGE, Parcel};
use async_trait::async_trait;
use block::{Error, Result, Span, offload};
use disk::Loader;
use parking_lot::Mutex;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs::File;
use std::io::{ErrorKind as IoKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{ManifestId, Store};

/// The directory, in that of the machine.
const DIRECTORY: &str = "pending";
/// It is made here.
const FRESH: &str = "pending.new";
/// It is here while it is being given up.
const ASIDE: &str = "pending.aside";
const DESCRIPTION: &str = "pending.json";
const MEMORY: &str = "memory";
const PAGES: &str = "pages";
const STATE: &str = "state";
const RESUME_SET: &str = "resume-set";
const FIRST_PAGES: &str = "first-pages";
const RESUMED: &str = "resumed";
/// The version of the description that is written and read.
const VERSION: u32 = 1;
/// The longest description that is read, in bytes.
const LONGEST: u64 = 64 << 10;

/// What `pending.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PendingSuspension {
    /// The version of this description: 1.
    version: u32,
    /// The number that the parcel gets.
    pub number: u64,
    /// Tells the parcel from another one of that number: 32 hexadecimal digits.
    pub token: String,
    /// When the machine was suspended, in Unix seconds.
    pub created: u64,
    /// By what the disk is recognised.
    pub disk_mark: String,
    /// The memory that the pages are over; `None`: zeroes.
    base: Option<BaseMemory>,
    /// The machine.
    pub machine: MachineSpec,
}

/// The memory image of a parcel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
struct BaseMemory {
    manifest: ManifestId,
    layout: MemoryLayout,
}

/// `pending.json` before its parts are read, each of which has a version of its own.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PendingDocument {
    #[serde(rename = "version")]
    _version: u32,
    number: u64,
    token: String,
    created: u64,
    disk_mark: String,
    base: Option<BaseDocument>,
    machine: Value,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct BaseDocument {
    manifest: ManifestId,
    layout: Value,
}

impl PendingDocument {
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) or [`Invalid`](block::ErrorKind::Invalid) when a part makes no sense,
    /// [`Unsupported`](block::ErrorKind::Unsupported) when a newer build wrote one.
    fn read(self) -> Result<PendingSuspension> {
        let base = self.base.map(|base| {
            let layout = MemoryLayout::decode(&base.layout.to_string())?;
            Ok(BaseMemory { manifest: base.manifest, layout })
        });
        let (base, machine) = (base.transpose()?, MachineSpec::decode(&self.machine.to_string())?);
        if base.is_some_and(|base| base.layout.memory != machine.memory) {
            return Err(Error::corrupt("its memory is another one's"));
        }
        let Self { number, token, created, disk_mark, .. } = self;
        Ok(PendingSuspension { version: VERSION, number, token, created, disk_mark, base, machine })
    }
}

/// Held while what is kept is replaced or given up.
static REPLACING: Mutex<()> = Mutex::new(());

/// Says that whoever asked for something still waits for it.
struct WantedUntilDropped(Arc<AtomicBool>);

impl Default for WantedUntilDropped {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for WantedUntilDropped {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// What is to be kept of a machine that stands still.
pub(crate) struct SuspendedParts<'a> {
    pub(crate) spec: &'a MachineSpec,
    pub(crate) number: u64,
    pub(crate) token: String,
    pub(crate) created: u64,
    pub(crate) disk_mark: String,
    pub(crate) base: Option<&'a MemoryImage>,
    pub(crate) local: Pages,
    pub(crate) changed: &'a Pages,
    pub(crate) tail: MachineTail<'a>,
}

impl PendingSuspension {
    /// The directory of what is kept of a machine.
    pub fn directory(machine: &Path) -> PathBuf {
        machine.join(DIRECTORY)
    }

    /// Keeps a suspension in the directory of its machine, in place of an earlier one. Its memory is already on
    /// stable storage in the file that [`GuestRam`](crate::GuestRam) writes there.
    ///
    /// # Errors
    /// Those of the file system. What was there is there then.
    pub(crate) async fn keep(machine: &Path, parts: SuspendedParts<'_>) -> Result<Self> {
        let SuspendedParts { spec, base, tail, .. } = parts;
        let base = base.map(|base| BaseMemory { manifest: base.id(), layout: *base.layout() });
        let kept = Self {
            version: VERSION,
            number: parts.number,
            token: parts.token,
            created: parts.created,
            disk_mark: parts.disk_mark,
            base,
            machine: spec.clone(),
        };
        let text = serde_json::to_vec(&kept)
            .map_err(|e| Error::internal("a suspension cannot be described").with_source(e))?;
        let pages = [parts.local.encode(), parts.changed.encode()].concat();
        let files = [
            (PAGES, pages),
            (STATE, tail.state.to_vec()),
            (RESUME_SET, tail.resume_set.to_vec()),
            (FIRST_PAGES, resume_set::encode_pages(tail.first_pages)),
            (DESCRIPTION, text),
        ];
        let machine = machine.to_owned();
        // Whoever drops this call has given the suspension up: it must not come to be behind their back.
        let wanted = WantedUntilDropped::default();
        let is_wanted = Arc::clone(&wanted.0);
        offload(move || {
            let _replacing = REPLACING.lock();
            if !is_wanted.load(Ordering::Acquire) {
                return Err(Error::conflict("the suspension was given up"));
            }
            let fresh = machine.join(FRESH);
            let made = write(&machine, &fresh, &files, &sync);
            if made.is_err() {
                let _ = std::fs::remove_dir_all(&fresh);
            }
            made
        })
        .await?;
        Ok(kept)
    }

    /// What is kept of a machine, if anything is.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it cannot be read,
    /// [`Unsupported`](block::ErrorKind::Unsupported) when a newer build wrote it; those of the file system.
    pub fn find(machine: &Path) -> Result<Option<Self>> {
        /// What tells a description of a newer version from a damaged one.
        #[derive(Deserialize)]
        struct Versioned {
            version: u32,
        }
        let path = machine.join(DIRECTORY).join(DESCRIPTION);
        let text = match read(&path, LONGEST) {
            Err(e) if e.kind() == block::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        let damaged = |e| Error::corrupt(format!("{}: {e}", path.display()));
        let Versioned { version } = serde_json::from_slice(&text).map_err(damaged)?;
        if version != VERSION {
            return Err(newer(
                &path,
                &format!("it is of version {version}, and {VERSION} is read here"),
            ));
        }
        let found: PendingDocument = serde_json::from_slice(&text).map_err(damaged)?;
        found.read().map(Some).map_err(|e| match e.kind() {
            block::ErrorKind::Unsupported => newer(&path, e.message()),
            _ => e.context(path.display()),
        })
    }

    /// The name that the parcel gets, such as `work@5`.
    pub fn parcel(&self) -> String {
        format!("{}@{}", self.machine.name, self.number)
    }

    /// Why the machine cannot go on from here: its disk is not what it was.
    pub fn disk_was_written(&self) -> Error {
        let name = &self.machine.name;
        Error::conflict(format!(
            "disk {:?} was written since machine {name:?} was suspended here as {}, which is not in the store: \
             'sojourn vm discard {name}' goes back to the parcel before, 'sojourn vm start --fresh {name}' boots the \
             disk as it is",
            self.machine.disk,
            self.parcel()
        ))
    }

    /// Whether the machine has gone on from here. Its disk may have been written since.
    pub fn was_resumed(&self, machine: &Path) -> bool {
        machine.join(DIRECTORY).join(RESUMED).exists()
    }

    /// Notes that the machine goes on from here, before it does.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) async fn note_resumed(machine: &Path) -> Result<()> {
        let directory = machine.join(DIRECTORY);
        offload(move || {
            let failed = |e| Error::io(directory.display(), e);
            File::create(directory.join(RESUMED))
                .and_then(|file| file.sync_all())
                .map_err(failed)?;
            sync(&directory)
        })
        .await
    }

    /// Gives up what is kept of a machine, or removes it when it is in the store.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn forget(machine: &Path) -> Result<()> {
        let _replacing = REPLACING.lock();
        give_up(machine, &machine.join(DIRECTORY))
    }

    /// Puts what is kept of a machine under another name, where nobody finds it, until it is
    /// [dropped](Self::drop_aside) or [put back](Self::put_back).
    ///
    /// # Errors
    /// Those of the file system.
    pub fn set_aside(machine: &Path) -> Result<()> {
        let _replacing = REPLACING.lock();
        let (directory, aside) = (machine.join(DIRECTORY), machine.join(ASIDE));
        match std::fs::rename(&directory, &aside) {
            Err(e) if e.kind() == IoKind::NotFound => Ok(()),
            Err(e) => Err(Error::io(directory.display(), e)),
            Ok(()) => sync(machine),
        }
    }

    /// Whether something was set aside and neither dropped nor put back.
    pub fn is_set_aside(machine: &Path) -> bool {
        machine.join(ASIDE).exists()
    }

    /// Puts back what was set aside, if anything was.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when something else is kept meanwhile; those of the file system.
    pub fn put_back(machine: &Path) -> Result<()> {
        let _replacing = REPLACING.lock();
        let (directory, aside) = (machine.join(DIRECTORY), machine.join(ASIDE));
        match renameat_with(CWD, &aside, CWD, &directory, RenameFlags::NOREPLACE) {
            Err(rustix::io::Errno::NOENT) => Ok(()),
            Err(e) => Err(Error::io(aside.display(), e.into())),
            Ok(()) => sync(machine),
        }
    }

    /// Drops what was set aside, if anything was.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn drop_aside(machine: &Path) -> Result<()> {
        let _replacing = REPLACING.lock();
        give_up(machine, &machine.join(ASIDE))
    }

    /// The memory of the parcel that its pages are over.
    pub(crate) fn base_id(&self) -> Option<ManifestId> {
        self.base.map(|base| base.manifest)
    }

    /// Bytes that the store does not have, before they are compressed: an upper bound.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn bytes(&self, machine: &Path) -> Result<u64> {
        let (_, changed) = self.pages(machine)?;
        let state = machine.join(DIRECTORY).join(STATE);
        let state = std::fs::metadata(&state).map_err(|e| Error::io(state.display(), e))?;
        Ok(changed.len() * PAGE + state.len())
    }

    /// The memory of the parcel that the pages are over.
    ///
    /// # Errors
    /// Those of the store.
    pub(crate) async fn base(
        &self,
        store: &Store,
        loader: &Arc<Loader>,
    ) -> Result<Option<Arc<MemoryImage>>> {
        let Some(BaseMemory { manifest, layout }) = self.base else { return Ok(None) };
        let manifest = store.manifest(&manifest).await;
        let manifest = manifest
            .map_err(|e| e.context(format!("the memory that {} is based on", self.parcel())))?;
        MemoryImage::new(loader, manifest, layout).map(|image| Some(Arc::new(image)))
    }

    /// The state of the devices.
    ///
    /// # Errors
    /// Those of the file system.
    pub(crate) fn state(&self, machine: &Path) -> Result<Vec<u8>> {
        read(&machine.join(DIRECTORY).join(STATE), MAX_STATE)
    }

    /// What a resume reads first.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when that cannot be read; those of the file system.
    pub(crate) fn first_reads(&self, machine: &Path) -> Result<FirstReads> {
        let (place, memory) = (machine.join(DIRECTORY), self.machine.memory);
        let extents = read(&place.join(RESUME_SET), (resume_set::MAX_EXTENTS * 4) as u64)?;
        let pages = match read(&place.join(FIRST_PAGES), (resume_set::MAX_PAGES * 4) as u64) {
            // An older build kept it.
            Err(e) if e.kind() == block::ErrorKind::NotFound => Vec::new(),
            other => other?,
        };
        Ok(FirstReads {
            extents: resume_set::decode(&extents, memory)?,
            pages: resume_set::decode_pages(&pages, memory)?,
        })
    }

    /// Its pages, for a machine that goes on.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when they are damaged; those of the file system.
    pub(crate) fn earlier(&self, machine: &Path) -> Result<EarlierPages> {
        let (local, changed) = self.pages(machine)?;
        let path = machine.join(DIRECTORY).join(MEMORY);
        let file = File::open(&path).map_err(|e| Error::io(path.display(), e))?;
        Ok(EarlierPages { file: Arc::new(file), local, changed })
    }

    fn pages(&self, machine: &Path) -> Result<(Pages, Pages)> {
        let pages = self.machine.memory / PAGE;
        let each = Pages::encoded_len(pages);
        let path = machine.join(DIRECTORY).join(PAGES);
        let bytes = read(&path, 2 * each)?;
        let (local, changed) = bytes.split_at((each as usize).min(bytes.len()));
        let decode = |bytes| Pages::decode(bytes, pages).map_err(|e| e.context(path.display()));
        Ok((decode(local)?, decode(changed)?))
    }
}

/// The error of a suspension that this build cannot read.
fn newer(path: &Path, why: &str) -> Error {
    Error::unsupported(format!(
        "{}: a suspension that a newer sojourn made, which stays as it is: use that one ({why})",
        path.display()
    ))
}

/// Writes the directory, and puts it in its place; `sync` puts the names in a directory on stable storage.
fn write(
    machine: &Path,
    fresh: &Path,
    files: &[(&str, Vec<u8>)],
    sync: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    remove(fresh)?;
    let failed = |e| Error::io(fresh.display(), e);
    std::fs::DirBuilder::new().mode(0o700).create(fresh).map_err(failed)?;
    std::fs::hard_link(machine.join(WRITTEN), fresh.join(MEMORY)).map_err(failed)?;
    for (name, bytes) in files {
        let mut file = File::create(fresh.join(name)).map_err(failed)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(failed)?;
    }
    sync(fresh)?;
    let place = machine.join(DIRECTORY);
    let flags = if place.exists() { RenameFlags::EXCHANGE } else { RenameFlags::NOREPLACE };
    renameat_with(CWD, fresh, CWD, &place, flags).map_err(|e| failed(e.into()))?;
    if let Err(error) = sync(machine) {
        // The guest goes on then, and writes into that memory: it must not be found by its name.
        let undone = match flags {
            RenameFlags::EXCHANGE => renameat_with(CWD, fresh, CWD, &place, flags),
            _ => renameat_with(CWD, &place, CWD, fresh, flags),
        };
        undone.map_err(|e| failed(e.into()))?;
        return Err(error);
    }
    // What was there before is of no use any more; what stays of it is removed by the next one.
    let _ = remove(fresh);
    Ok(())
}

/// Removes a directory of a suspension as a whole: it is under another name before the first file of it goes.
fn give_up(machine: &Path, directory: &Path) -> Result<()> {
    let gone = machine.join(FRESH);
    remove(&gone)?;
    match std::fs::rename(directory, &gone) {
        Err(e) if e.kind() == IoKind::NotFound => return Ok(()),
        other => other.map_err(|e| Error::io(directory.display(), e))?,
    }
    sync(machine)?;
    remove(&gone)
}

fn remove(directory: &Path) -> Result<()> {
    match std::fs::remove_dir_all(directory) {
        Err(e) if e.kind() != IoKind::NotFound => Err(Error::io(directory.display(), e)),
        _ => Ok(()),
    }
}

fn sync(directory: &Path) -> Result<()> {
    let synced = File::open(directory).and_then(|directory| directory.sync_all());
    synced.map_err(|e| Error::io(directory.display(), e))
}

/// A file of at most so many bytes.
fn read(path: &Path, most: u64) -> Result<Vec<u8>> {
    let failed = |e| Error::io(path.display(), e);
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
        .map_err(failed)?;
    if bytes.len() as u64 > most {
        return Err(Error::corrupt(format!("{} is longer than it can be", path.display())));
    }
    Ok(bytes)
}

/// The memory of a suspension, to be stored.
pub(crate) struct PendingMemory {
    pub(crate) size: u64,
    pub(crate) base: Option<Arc<MemoryImage>>,
    pub(crate) pages: EarlierPages,
}

#[async_trait]
impl MemorySource for PendingMemory {
    fn size(&self) -> u64 {
        self.size
    }

    fn changed(&self, extent: u64) -> bool {
        let last = self.size / PAGE;
        self.pages.changed.any(extent * EXTENT / PAGE..((extent + 1) * EXTENT / PAGE).min(last))
    }

    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut rest = buf;
        let (mut page, last) = (span.offset() / PAGE, span.end() / PAGE);
        while page < last {
            let (end, local) = self.pages.local.run(page..last);
            let part = Span::between(page * PAGE, end * PAGE);
            let (target, behind) = rest.split_at_mut(part.len() as usize);
            match (local, &self.base) {
                (true, _) => {
                    let (file, mut bytes) = (Arc::clone(&self.pages.file), vec![0; target.len()]);
                    let read = move || {
                        let outcome = file.read_exact_at(&mut bytes, part.offset());
                        outcome
                            .map(|()| bytes)
                            .map_err(|e| Error::io("the memory of a suspension", e))
                    };
                    target.copy_from_slice(&offload(read).await?);
                }
                (false, Some(base)) => base.read(part, target).await?,
                (false, None) => target.fill(0),
            }
            (rest, page) = (behind, end);
        }
        Ok(())
    }
}

/// Whether a parcel is the one that a suspension became.
pub(crate) fn is_of(parcel: &Parcel, pending: &PendingSuspension) -> bool {
    parcel.spec.uuid == pending.machine.uuid && parcel.token.as_ref() == Some(&pending.token)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GuestRam;
    use crate::spec::tests::spec;
    use block::ErrorKind;

    fn parts<'a>(
        spec: &'a MachineSpec,
        local: &Pages,
        changed: &'a Pages,
        number: u64,
    ) -> SuspendedParts<'a> {
        SuspendedParts {
            spec,
            number,
            token: "0".repeat(32),
            created: 7,
            disk_mark: "mark".into(),
            base: None,
            local: local.clone(),
            changed,
            tail: MachineTail {
                state: b"devices",
                resume_set: &[3, 0, 0, 0],
                first_pages: &[50, 48],
            },
        }
    }

    async fn memory(machine: &Path, byte: u8) -> (Pages, Pages) {
        let ram = GuestRam::new(machine, spec().memory, None).unwrap();
        ram.write(Span::between(PAGE, 2 * PAGE), &[byte; PAGE as usize]).unwrap();
        ram.sync().await.unwrap();
        let frozen = ram.freeze().unwrap();
        let (local, changed) = frozen.pages();
        (local, changed.clone())
    }

    async fn first_byte(found: &PendingSuspension, machine: &Path, page: u64) -> u8 {
        let pages = found.earlier(machine).unwrap();
        let memory = PendingMemory { size: found.machine.memory, base: None, pages };
        let mut buf = vec![1; 2 * PAGE as usize];
        memory.read(Span::between(page * PAGE, (page + 2) * PAGE), &mut buf).await.unwrap();
        buf[0]
    }

    #[tokio::test]
    async fn a_suspension_is_found_as_it_was_kept_and_replaced_as_a_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, spec) = (dir.path(), spec());
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
        PendingSuspension::forget(machine).unwrap();
        let (local, changed) = memory(machine, 7).await;
        let kept =
            PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
        let found = PendingSuspension::find(machine).unwrap().unwrap();
        assert_eq!((&found, found.parcel().as_str()), (&kept, "work@5"));
        assert_eq!(found.state(machine).unwrap(), b"devices");
        let first = FirstReads { extents: vec![3], pages: vec![50, 48] };
        assert_eq!(found.first_reads(machine).unwrap(), first);
        // An older build does not keep which pages these are.
        std::fs::remove_file(PendingSuspension::directory(machine).join(FIRST_PAGES)).unwrap();
        assert!(found.first_reads(machine).unwrap().pages.is_empty());
        assert_eq!(found.bytes(machine).unwrap(), PAGE + 7);
        assert_eq!(
            (first_byte(&found, machine, 1).await, first_byte(&found, machine, 2).await),
            (7, 0)
        );
        PendingSuspension::note_resumed(machine).await.unwrap();
        assert!(found.was_resumed(machine));
        // A machine that goes on has another file; what is kept does not change.
        let (local, changed) = memory(machine, 8).await;
        assert_eq!(first_byte(&found, machine, 1).await, 7);
        // One that cannot be kept leaves the one before.
        std::fs::remove_file(machine.join(WRITTEN)).unwrap();
        let failed = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 6)).await;
        assert!(failed.is_err() && !machine.join(FRESH).exists());
        assert_eq!(PendingSuspension::find(machine).unwrap().unwrap(), kept);
        let (local, changed) = memory(machine, 9).await;
        PendingSuspension::keep(machine, parts(&spec, &local, &changed, 6)).await.unwrap();
        let found = PendingSuspension::find(machine).unwrap().unwrap();
        assert!(found.number == 6 && !found.was_resumed(machine) && !machine.join(FRESH).exists());
        assert_eq!(first_byte(&found, machine, 1).await, 9);
        PendingSuspension::forget(machine).unwrap();
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
    }

    #[tokio::test]
    async fn what_is_set_aside_is_not_found_until_it_is_put_back() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, spec) = (dir.path(), spec());
        PendingSuspension::set_aside(machine).unwrap();
        PendingSuspension::put_back(machine).unwrap();
        PendingSuspension::drop_aside(machine).unwrap();
        let (local, changed) = memory(machine, 7).await;
        let kept =
            PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
        PendingSuspension::set_aside(machine).unwrap();
        assert!(PendingSuspension::is_set_aside(machine));
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
        PendingSuspension::put_back(machine).unwrap();
        assert!(!PendingSuspension::is_set_aside(machine));
        assert_eq!(PendingSuspension::find(machine).unwrap(), Some(kept));
        PendingSuspension::set_aside(machine).unwrap();
        PendingSuspension::drop_aside(machine).unwrap();
        PendingSuspension::put_back(machine).unwrap();
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
        assert!(!machine.join(FRESH).exists());
    }

    #[tokio::test]
    async fn a_suspension_whose_name_cannot_be_synced_is_not_found_and_the_one_before_is() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, spec) = (dir.path(), spec());
        let (local, changed) = memory(machine, 7).await;
        let failing = |directory: &Path| match directory == machine {
            true => Err(Error::unavailable("the disk failed")),
            false => sync(directory),
        };
        let files = [(DESCRIPTION, b"of a guest that runs on".to_vec())];
        let fresh = machine.join(FRESH);
        write(machine, &fresh, &files, &failing).unwrap_err();
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
        let kept =
            PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
        write(machine, &fresh, &files, &failing).unwrap_err();
        assert_eq!(PendingSuspension::find(machine).unwrap(), Some(kept));
    }

    #[test]
    fn a_suspension_that_was_given_up_before_it_was_kept_does_not_come_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, spec) = (dir.path(), spec());
        // One thread for what waits for the disk: it does one thing after the other.
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().max_blocking_threads(1).build().unwrap();
        let (local, changed) = runtime.block_on(memory(machine, 7));
        let replacing = REPLACING.lock();
        runtime.block_on(async {
            let keeping = PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5));
            let given_up = tokio::time::timeout(std::time::Duration::ZERO, keeping).await;
            assert!(given_up.is_err(), "it was kept while somebody else was at it");
        });
        drop(replacing);
        runtime.block_on(offload(|| Ok(()))).unwrap();
        assert_eq!(PendingSuspension::find(machine).unwrap(), None);
        assert!(!machine.join(FRESH).exists());
    }

    #[tokio::test]
    async fn what_is_damaged_or_newer_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, spec) = (dir.path(), spec());
        let (local, changed) = memory(machine, 7).await;
        let kept =
            PendingSuspension::keep(machine, parts(&spec, &local, &changed, 5)).await.unwrap();
        let place = PendingSuspension::directory(machine);
        for (file, len) in [(PAGES, 100), (RESUME_SET, 3), (FIRST_PAGES, 3), (STATE, MAX_STATE + 1)]
        {
            let path = place.join(file);
            let before = std::fs::read(&path).unwrap();
            File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
            let read = match file {
                PAGES => kept.earlier(machine).map(drop),
                RESUME_SET | FIRST_PAGES => kept.first_reads(machine).map(drop),
                _ => kept.state(machine).map(drop),
            };
            assert_eq!(read.unwrap_err().kind(), ErrorKind::Corrupt, "{file}");
            std::fs::write(&path, before).unwrap();
        }
        let text = std::fs::read_to_string(place.join(DESCRIPTION)).unwrap();
        // Of another machine's memory where the layout can be read.
        let base = |version: u32, more: &str| {
            let layout = format!(
                "{{\"version\":{version},{more}\"memory\":1048576,\"state\":7,\"resume_set\":4}}"
            );
            format!("\"base\":{{\"manifest\":\"{}\",\"layout\":{layout}}}", "ab".repeat(32))
        };
        for (bad, kind) in [
            (
                text.replace("\"version\":1,\"number\"", "\"version\":2,\"number\""),
                ErrorKind::Unsupported,
            ),
            (text.replace("\"token\"", "\"taken\""), ErrorKind::Corrupt),
            (
                text.replace("{\"version\":1,\"name\"", "{\"version\":3,\"more\":[],\"name\""),
                ErrorKind::Unsupported,
            ),
            (text.replace("\"base\":null", &base(3, "\"more\":[],")), ErrorKind::Unsupported),
            (text.replace("\"base\":null", &base(1, "\"more\":[],")), ErrorKind::Corrupt),
            (text.replace("\"base\":null", &base(1, "")), ErrorKind::Corrupt),
            (text.replace("\"cpus\":2", "\"cpus\":0"), ErrorKind::Invalid),
            ("{}".to_owned(), ErrorKind::Corrupt),
        ] {
            assert_ne!(bad, text);
            std::fs::write(place.join(DESCRIPTION), bad).unwrap();
            let refused = PendingSuspension::find(machine).unwrap_err();
            assert_eq!(refused.kind(), kind, "{refused}");
            let is_newer = refused.message().contains("a newer sojourn made");
            assert_eq!(is_newer, kind == ErrorKind::Unsupported, "{refused}");
        }
    }
}
