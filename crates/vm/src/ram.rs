//! The memory of a machine that runs.
//!
//! What the guest wrote lies in a local file; everything else is what the parcel holds that the machine came
//! from, or zero. A write comes when the kernel writes a dirty page back, so that the set of pages that
//! changed since the last parcel needs no help of QEMU.
//!
//! While a parcel is made of a machine that runs on, its memory is *frozen*: before a page that is not stored
//! yet is written over, its content is put aside.

use crate::demand::{ExtentDemand, Fetching};
use crate::image::MemoryImage;
use crate::pages::Pages;
use crate::resume_set::FirstReads;
use crate::{EXTENT, PAGE};
use block::{Error, ErrorKind, Result, Span, offload};
use frozen::FrozenPages;
use parking_lot::Mutex;
use std::fs::{File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use touched::Touched;

mod frozen;
mod touched;

pub use frozen::FrozenRam;

/// The file of what the guest wrote, in the directory of its machine.
pub(crate) const WRITTEN: &str = "written";
/// How often room is looked for while there is none.
const LOOKS: Duration = Duration::from_secs(1);
/// How long it takes until a store is asked again that gave no answer for as long as its readers wait.
const ASKS_AGAIN: Duration = Duration::from_secs(5);

/// The memory of a machine that runs.
pub struct GuestRam {
    size: u64,
    /// What the guest wrote, at its own offset.
    local: Arc<File>,
    /// What was put aside while the memory is frozen, at its own offset.
    aside: Arc<File>,
    /// Pages that the guest wrote before it was suspended here.
    earlier: Option<Pages>,
    /// Whether the machine is being ended: nobody waits for room any more.
    ending: watch::Sender<bool>,
    /// Whether QEMU was killed: nobody needs what is read any more.
    killed: watch::Sender<bool>,
    /// Reads that wait for the store.
    demand: Arc<ExtentDemand>,
    state: Mutex<RamState>,
}

/// Pages of a suspension that is not in the store.
pub(crate) struct EarlierPages {
    /// Their content, each at its own offset.
    pub(crate) file: Arc<File>,
    /// Which they are.
    pub(crate) local: Pages,
    /// Which of them, or of others, changed since the last parcel.
    pub(crate) changed: Pages,
}

/// Where the content of a page is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PagePlace {
    /// In the local file.
    Local,
    /// In the file of a suspension.
    Earlier,
    /// In the parcel, or zero.
    Base,
}

struct RamState {
    /// What the pages hold that are not local.
    base: Option<Arc<MemoryImage>>,
    /// Pages whose content is in the local file.
    local: Pages,
    /// Pages that changed since the last parcel, or since the start.
    changed: Pages,
    /// Pages whose content could not be kept: nobody knows it any more.
    lost: Pages,
    /// A sync of the local file failed: pages of it may be lost, and a sync that succeeds later says nothing of these.
    is_doubtful: bool,
    /// What the guest wrote before it was suspended here, at its own offset, for as long as somebody may read it; it does
    /// not change.
    earlier: Option<Arc<File>>,
    /// All of that is in the local file, too.
    is_taken_over: bool,
    frozen: Option<FrozenPages>,
    touched: Touched,
}

impl GuestRam {
    /// Memory of `size` bytes that holds what `base` does, or zeroes; what the guest writes goes to files in
    /// `directory`, which nobody needs after a crash.
    ///
    /// # Errors
    /// [`NoSpace`](block::ErrorKind::NoSpace), [`Denied`](block::ErrorKind::Denied) or
    /// [`Unavailable`](block::ErrorKind::Unavailable) from the file system.
    pub fn new(directory: &Path, size: u64, base: Option<Arc<MemoryImage>>) -> Result<Arc<Self>> {
        Self::after(directory, size, base, None)
    }

    /// The memory of a machine that was suspended here: some pages are the suspension's.
    ///
    /// # Errors
    /// Any error from the file system.
    pub(crate) fn after(
        directory: &Path,
        size: u64,
        base: Option<Arc<MemoryImage>>,
        earlier: Option<EarlierPages>,
    ) -> Result<Arc<Self>> {
        let open = |name: &str| {
            let path = directory.join(name);
            // A suspension may have another name of the file that was there.
            let file = match std::fs::remove_file(&path) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
                _ => OpenOptions::new()
                    .read(true)
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(&path),
            };
            file.map(|file| (Arc::new(file), path.clone()))
                .map_err(|e| Error::io(path.display(), e))
        };
        let (local, _) = open(WRITTEN)?;
        let (aside, path) = open("aside")?;
        std::fs::remove_file(&path).map_err(|e| Error::io(path.display(), e))?;
        Ok(Arc::new(Self::over(size, base, (local, aside), earlier)))
    }

    /// Memory whose local files are these, which are empty.
    fn over(
        size: u64,
        base: Option<Arc<MemoryImage>>,
        (local, aside): (Arc<File>, Arc<File>),
        earlier: Option<EarlierPages>,
    ) -> Self {
        let none = Pages::none(size / PAGE);
        let noting = base.is_some();
        let (file, earlier, changed) = match earlier {
            Some(EarlierPages { file, local, changed }) => (Some(file), Some(local), changed),
            None => (None, None, none.clone()),
        };
        let state = RamState {
            base,
            local: none.clone(),
            changed,
            lost: none,
            is_doubtful: false,
            earlier: file,
            is_taken_over: false,
            frozen: None,
            touched: Touched::starting(noting),
        };
        Self {
            size,
            local,
            aside,
            earlier,
            ending: watch::Sender::new(false),
            killed: watch::Sender::new(false),
            demand: Arc::default(),
            state: Mutex::new(state),
        }
    }

    /// Its size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes that the guest wrote since the machine started or went on here.
    pub fn written(&self) -> u64 {
        self.state.lock().local.len() * PAGE
    }

    /// The reads that wait for the store.
    pub(crate) fn demand(&self) -> &Arc<ExtentDemand> {
        &self.demand
    }

    /// What was read until now, in order.
    pub(crate) fn noted(&self) -> FirstReads {
        self.state.lock().touched.order.clone()
    }

    /// Notes nothing of what is read, from now on or until now.
    pub(crate) fn note_nothing(&self) {
        self.state.lock().touched = Touched::default();
    }

    /// Notes no more what is read, and returns what was, in order.
    pub fn stop_noting(&self) -> FirstReads {
        let mut state = self.state.lock();
        state.touched.noting = false;
        state.touched.order.clone()
    }

    /// Reads, if that needs nothing from the store; `false` when it does, and nothing was read.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) for a page that could not be kept; any error from the file system.
    pub fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<bool> {
        let state = self.state.lock();
        state.must_know(span)?;
        let pages = span.offset() / PAGE..span.end().div_ceil(PAGE);
        let (end, local) = state.local.run(pages.clone());
        if end < pages.end || (!local && (state.base.is_some() || state.earlier.is_some())) {
            return Ok(false);
        }
        drop(state);
        // Where nothing was written the file has a hole, or ends: both read as zeroes.
        read_padded(&self.local, span.offset(), buf)?;
        Ok(true)
    }

    /// Reads. `span` lies inside the memory and is aligned to pages.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) for a page that could not be kept;
    /// [`Unavailable`](block::ErrorKind::Unavailable) once [`end_reads`](Self::end_reads) was called; any error from
    /// the store and the file system.
    pub async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let (base, earlier, places) = {
            let mut state = self.state.lock();
            state.must_know(span)?;
            state.touched.note(span);
            (state.base.clone(), state.earlier.clone(), self.places(&state.local, span))
        };
        let extents = span.offset() / EXTENT..span.end().div_ceil(EXTENT);
        let needs_store = base.is_some() && places.contains(&PagePlace::Base);
        let waits = needs_store.then(|| self.demand.wait_for(extents));
        let from = (base.as_deref(), earlier.as_ref());
        let done = self.unless_killed(self.compose(span, buf, from, &places)).await;
        if let (Err(_), Some(waits)) = (&done, waits) {
            waits.end_in_vain();
        }
        done
    }

    /// The same, but that the store is asked again while it cannot be reached or refuses, until QEMU is killed.
    ///
    /// # Errors
    /// Any error from [`read`](Self::read).
    pub(crate) async fn read_when_it_can_be_had(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        let extents = span.offset() / EXTENT..span.end().div_ceil(EXTENT);
        let mut waits = None;
        loop {
            match self.read(span, buf).await {
                Err(error) if self.is_asked_again(&error, &extents, &mut waits).await => {}
                other => return other,
            }
        }
    }

    /// Whether a read of extents that failed is to be done again; waits until then, and is known to wait between two
    /// tries, too. A store may also refuse for a while, as with a token that has expired or by a proxy where a link
    /// comes back; a guest that gets an error in place of its memory is lost.
    async fn is_asked_again<'a>(
        &'a self,
        error: &Error,
        extents: &Range<u64>,
        waits: &mut Option<Fetching<'a>>,
    ) -> bool {
        if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied) {
            return false;
        }
        waits.get_or_insert_with(|| self.demand.wait_for(extents.clone()));
        tracing::warn!(%error, "the guest waits for its memory");
        let pause = async {
            sleep(ASKS_AGAIN).await;
            Ok(())
        };
        self.unless_killed(pause).await.is_ok()
    }

    /// Does a read, unless QEMU is killed meanwhile.
    async fn unless_killed(&self, read: impl Future<Output = Result<()>>) -> Result<()> {
        let mut killed = self.killed.subscribe();
        tokio::select! {
            done = read => done,
            // The sender is here: it cannot have gone.
            _ = killed.wait_for(|killed| *killed) => {
                Err(Error::unavailable("the machine was ended while it waited for its memory"))
            }
        }
    }

    /// Where each page of a span is, when these are local.
    fn places(&self, local: &Pages, span: Span) -> Vec<PagePlace> {
        let earlier = |page| self.earlier.as_ref().is_some_and(|earlier| earlier.contains(page));
        let pages = span.offset() / PAGE..span.end().div_ceil(PAGE);
        let place = |page| match (local.contains(page), earlier(page)) {
            (true, _) => PagePlace::Local,
            (false, true) => PagePlace::Earlier,
            (false, false) => PagePlace::Base,
        };
        pages.map(place).collect()
    }

    /// Reads a span whose pages are in these places, out of the parcel and the file of a suspension, if there are these.
    async fn compose(
        &self,
        span: Span,
        buf: &mut [u8],
        (base, earlier): (Option<&MemoryImage>, Option<&Arc<File>>),
        places: &[PagePlace],
    ) -> Result<()> {
        let mut rest = buf;
        let mut at = 0;
        while let Some(place) = places.get(at).copied() {
            let run = places[at..].iter().take_while(|other| **other == place).count();
            let start = span.offset() + at as u64 * PAGE;
            let part = Span::between(start, start + run as u64 * PAGE);
            let (target, behind) = rest.split_at_mut(part.len() as usize);
            let file = match place {
                PagePlace::Local => Some(&self.local),
                PagePlace::Earlier => {
                    let gone = || Error::internal("the pages of a suspension are closed");
                    Some(earlier.ok_or_else(gone)?)
                }
                PagePlace::Base => None,
            };
            match (file, base) {
                (Some(file), _) => {
                    let (file, offset) = (Arc::clone(file), part.offset());
                    let mut bytes = vec![0; target.len()];
                    let read = move || read_padded(&file, offset, &mut bytes).map(|()| bytes);
                    target.copy_from_slice(&offload(read).await?);
                }
                (None, Some(base)) => base.read(part, target).await?,
                (None, None) => target.fill(0),
            }
            (rest, at) = (behind, at + run);
        }
        Ok(())
    }

    /// Copies what the guest wrote before it was suspended here, so that all that is local is in one file. Others may
    /// read and write meanwhile.
    ///
    /// # Errors
    /// Any error from the file system. What was copied stays so.
    pub(crate) async fn take_over(self: &Arc<Self>) -> Result<()> {
        let Some(earlier) = &self.earlier else { return Ok(()) };
        for span in Span::whole(self.size).pieces(EXTENT) {
            let pages = span.offset() / PAGE..span.end() / PAGE;
            if !earlier.any(pages.clone()) {
                continue;
            }
            let ram = Arc::clone(self);
            let copy = move || {
                pages
                    .filter(|page| ram.is_only_earlier(*page))
                    .try_for_each(|page| ram.copy_one(page))
            };
            offload(copy).await?;
        }
        let mut state = self.state.lock();
        state.is_taken_over = true;
        state.close_earlier();
        Ok(())
    }

    fn is_only_earlier(&self, page: u64) -> bool {
        let earlier = self.earlier.as_ref().is_some_and(|earlier| earlier.contains(page));
        earlier && !self.state.lock().local.contains(page)
    }

    fn copy_one(&self, page: u64) -> Result<()> {
        let earlier = self.state.lock().earlier.clone();
        let Some(earlier) = earlier else { return Ok(()) };
        let mut bytes = vec![0; PAGE as usize];
        read_padded(&earlier, page * PAGE, &mut bytes)?;
        // Held while the file is written, as in `write`: what the guest writes goes before.
        let mut state = self.state.lock();
        if !state.local.contains(page) {
            self.local.write_all_at(&bytes, page * PAGE).map_err(not_kept)?;
            state.local.insert(page);
        }
        Ok(())
    }

    /// Has what the guest wrote on stable storage. Once that has failed it fails for good: the kernel tells of pages that
    /// it could not write once, and takes them for written then.
    ///
    /// # Errors
    /// Any error from the file system; [`Corrupt`](block::ErrorKind::Corrupt) when pages could not be kept before.
    pub(crate) async fn sync(&self) -> Result<()> {
        self.sync_by(File::sync_data).await
    }

    async fn sync_by(&self, sync: fn(&File) -> std::io::Result<()>) -> Result<()> {
        self.state.lock().must_be_kept()?;
        let file = Arc::clone(&self.local);
        let synced = offload(move || sync(&file).map_err(not_kept)).await;
        if synced.is_err() {
            self.state.lock().is_doubtful = true;
        }
        synced
    }

    /// Writes whole pages. Waits for the local file.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for parts of pages; any error from the file system, when the write
    /// was not done.
    pub fn write(&self, span: Span, data: &[u8]) -> Result<()> {
        if !span.offset().is_multiple_of(PAGE) || !span.len().is_multiple_of(PAGE) {
            return Err(Error::invalid("guest memory is written in whole pages"));
        }
        let pages = span.offset() / PAGE..span.end() / PAGE;
        // Held while the file is written: a frozen page is put aside and written over in one step.
        let mut state = self.state.lock();
        if let Some(frozen) = &mut state.frozen {
            let mut page_bytes = vec![0; PAGE as usize];
            for page in pages.clone() {
                if frozen.local.contains(page) && !frozen.aside.contains(page) {
                    read_padded(&self.local, page * PAGE, &mut page_bytes)?;
                    self.aside.write_all_at(&page_bytes, page * PAGE).map_err(not_kept)?;
                    frozen.aside.insert(page);
                }
            }
        }
        self.local.write_all_at(data, span.offset()).map_err(not_kept)?;
        for page in pages {
            state.local.insert(page);
            state.changed.insert(page);
            state.lost.remove(page);
        }
        Ok(())
    }

    /// Writes whole pages, and waits for room where there is none: the guest waits, and goes on when some
    /// was made. When the pages cannot be kept, or the machine is being ended meanwhile, they are lost: from
    /// then on reading them fails, and so does making a parcel. A page that is wrong would be worse.
    ///
    /// # Errors
    /// Any error from [`write`](Self::write).
    pub async fn write_when_there_is_room(&self, span: Span, data: &[u8]) -> Result<()> {
        let mut ending = self.ending.subscribe();
        let mut told = false;
        loop {
            match self.write(span, data) {
                Err(error) if error.kind() == ErrorKind::NoSpace && !*ending.borrow() => {
                    if !told {
                        tracing::warn!(%error, "the guest waits for room for its memory");
                        told = true;
                    }
                    let _ = timeout(LOOKS, ending.wait_for(|ending| *ending)).await;
                }
                Err(error) => {
                    let mut state = self.state.lock();
                    for page in span.offset() / PAGE..span.end().div_ceil(PAGE) {
                        state.lost.insert(page);
                    }
                    return Err(error);
                }
                Ok(()) => return Ok(()),
            }
        }
    }

    /// Nobody waits for room any more: the machine is being ended.
    pub fn give_up(&self) {
        self.ending.send_replace(true);
    }

    /// QEMU was killed: reads that wait for the store fail. It cannot die before they have ended.
    pub(crate) fn end_reads(&self) {
        self.killed.send_replace(true);
    }

    /// Freezes the memory as it is now; what changed from here on belongs to the next parcel.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) while it is frozen already;
    /// [`Corrupt`](block::ErrorKind::Corrupt) when pages of it could not be kept.
    pub fn freeze(self: &Arc<Self>) -> Result<FrozenRam> {
        let mut state = self.state.lock();
        state.must_know(Span::whole(self.size))?;
        state.must_be_kept()?;
        if state.frozen.is_some() {
            return Err(Error::conflict(
                "a parcel of this machine is being made already; wait for it",
            ));
        }
        let none = Pages::none(self.size / PAGE);
        let changed = std::mem::replace(&mut state.changed, none.clone());
        state.frozen = Some(FrozenPages {
            local: state.local.clone(),
            aside: none,
            base: state.base.clone(),
            changed: changed.clone(),
        });
        let base = state.base.clone();
        Ok(FrozenRam { ram: Arc::clone(self), base, changed, done: false })
    }
}

impl RamState {
    /// Fails when a page of a span could not be kept.
    fn must_know(&self, span: Span) -> Result<()> {
        match self.lost.any(span.offset() / PAGE..span.end().div_ceil(PAGE)) {
            true => Err(not_whole()),
            false => Ok(()),
        }
    }

    /// Closes the file of a suspension that nobody reads any more: once its directory is gone, that gives its room back.
    /// What is frozen may be of a moment before all of it was copied.
    fn close_earlier(&mut self) {
        if self.is_taken_over && self.frozen.is_none() {
            self.earlier = None;
        }
    }

    /// Fails when a sync has failed.
    fn must_be_kept(&self) -> Result<()> {
        if self.is_doubtful { Err(not_whole()) } else { Ok(()) }
    }
}

fn not_whole() -> Error {
    Error::corrupt(
        "pages of the guest's memory could not be kept on the local disk (see the keeper's log): it cannot be stored; \
         stop the machine, and go on from an older parcel",
    )
}

fn not_kept(e: std::io::Error) -> Error {
    Error::io("the file of what a guest wrote to its memory", e)
}

/// Reads a file that may end before; the rest is zero. What cannot be read is lost: nobody else has it, and asking
/// again does not help.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when the file system gives an error.
fn read_padded(file: &File, offset: u64, buf: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < buf.len() {
        match file.read_at(&mut buf[filled..], offset + filled as u64) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => {
                let what = "the file of what a guest wrote to its memory cannot be read";
                return Err(Error::corrupt(format!("{what}: {e}")).with_source(e));
            }
        }
    }
    buf[filled..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests;
