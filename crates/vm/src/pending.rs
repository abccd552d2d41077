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

use crate::image::{MAX_STATE, MemoryImage};
use crate::pages::Pages;
use crate::ram::EarlierPages;
use crate::resume_set::{self, FirstReads};
use crate::save::MachineTail;
use crate::{MachineSpec, PAGE, Parcel};
use block::{Error, Result, offload};
use directory::{ASIDE, DIRECTORY, FRESH, MEMORY, REPLACING, give_up, read, sync, write};
use disk::Loader;
use document::{BaseMemory, VERSION};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs::File;
use std::io::ErrorKind as IoKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use store::{ManifestId, Store};

mod directory;
mod document;
mod memory;

pub use document::PendingSuspension;
pub(crate) use memory::PendingMemory;

const DESCRIPTION: &str = "pending.json";
const PAGES: &str = "pages";
const STATE: &str = "state";
const RESUME_SET: &str = "resume-set";
const FIRST_PAGES: &str = "first-pages";
const RESUMED: &str = "resumed";
/// The longest description that is read, in bytes.
const LONGEST: u64 = 64 << 10;

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
    /// Any error from the file system. What was there is there then.
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
    /// [`Unsupported`](block::ErrorKind::Unsupported) when a newer build wrote it; any error from the file system.
    pub fn find(machine: &Path) -> Result<Option<Self>> {
        let path = machine.join(DIRECTORY).join(DESCRIPTION);
        let text = match read(&path, LONGEST) {
            Err(e) if e.kind() == block::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        Self::decode(&path, &text).map(Some)
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
    /// Any error from the file system.
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
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub fn forget(machine: &Path) -> Result<()> {
        let _replacing = REPLACING.lock();
        give_up(machine, &machine.join(DIRECTORY))
    }

    /// Puts what is kept of a machine under another name, where nobody finds it, until it is
    /// [dropped](Self::drop_aside) or [put back](Self::put_back).
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
    /// [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
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
    /// [`Conflict`](block::ErrorKind::Conflict) when something else is kept meanwhile; any error from the file system.
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
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
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
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub fn bytes(&self, machine: &Path) -> Result<u64> {
        let (_, changed) = self.pages(machine)?;
        let state = machine.join(DIRECTORY).join(STATE);
        let state = std::fs::metadata(&state).map_err(|e| Error::io(state.display(), e))?;
        Ok(changed.len() * PAGE + state.len())
    }

    /// The memory of the parcel that the pages are over.
    ///
    /// # Errors
    /// [`Unavailable`](block::ErrorKind::Unavailable) or [`Denied`](block::ErrorKind::Denied) when the store
    /// cannot be read; [`Corrupt`](block::ErrorKind::Corrupt) when what it holds is damaged.
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
    /// Any error from the file system.
    pub(crate) fn state(&self, machine: &Path) -> Result<Vec<u8>> {
        read(&machine.join(DIRECTORY).join(STATE), MAX_STATE)
    }

    /// What a resume reads first.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when that cannot be read; any error from the file system.
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
    /// [`Corrupt`](block::ErrorKind::Corrupt) when they are damaged; any error from the file system.
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

/// Whether a parcel is the one that a suspension became.
pub(crate) fn is_of(parcel: &Parcel, pending: &PendingSuspension) -> bool {
    parcel.spec.uuid == pending.machine.uuid && parcel.token.as_ref() == Some(&pending.token)
}

#[cfg(test)]
mod tests;
