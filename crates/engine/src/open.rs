//! The disks that are open now. A disk is opened by its first user and stays open for a while
//! after its last one, so that a guest that reboots finds it warm.

use block::{Error, Result};
use disk::{Disk, DiskInfo, DiskLayers, Disks, Mode, OwnershipAnswer, OwnershipQuestion};
use futures::StreamExt;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::sync::{OwnedMutexGuard, Semaphore, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How long a removal waits for connections that have ended their use of the disk.
const GOODBYE: Duration = Duration::from_secs(1);

/// Idle disks that are closed at the same time.
const CLOSINGS: usize = 4;
/// Disks that are closed at the same time when the server ends.
const LAST_CLOSINGS: usize = 32;
/// Disks that are opened at the same time: hundreds of clients that come at once are not to have
/// hundreds of threads.
const OPENINGS: usize = 32;
/// How long an opening waits for its turn: those before it may hang with their storage.
const TURN: Duration = Duration::from_secs(3);

/// How long the store may take to be told of a disk that it does not know.
const TELLING: Duration = Duration::from_secs(5);

/// All open disks of a home.
pub struct OpenDisks {
    disks: Arc<Disks>,
    slots: Mutex<BTreeMap<String, Arc<DiskSlot>>>,
    /// Openings under way. Each is finished even when the client that asked goes away: what is left
    /// of one must not work on the files beside the next one.
    opening: Mutex<JoinSet<()>>,
    turns: Arc<Semaphore>,
    /// Whether all were closed for good.
    closed: AtomicBool,
}

/// The place of one disk. It is in the map while it has users or an open disk.
struct DiskSlot {
    name: String,
    /// Held across opening and closing, so that there is one of either at a time.
    disk: Arc<tokio::sync::Mutex<Option<Opened>>>,
    use_: Mutex<DiskUsers>,
}

/// An open disk, and the timer that resets an ephemeral one whose client was lost.
struct Opened {
    disk: Arc<Disk>,
    timer: JoinSet<()>,
}

impl Opened {
    fn new(disk: Arc<Disk>) -> Self {
        let mut timer = JoinSet::new();
        if disk.mode() == Mode::Ephemeral {
            let disk = Arc::clone(&disk);
            timer.spawn(async move { disk.expire().await });
        }
        Self { disk, timer }
    }

    /// Whether somebody but this and the timer still has a handle, such as a connection that says
    /// its last goodbye: the disk's lock would outlive the closing.
    fn is_shared(&self) -> bool {
        Arc::strong_count(&self.disk) > 1 + self.timer.len()
    }

    /// Whether it takes no writes until it is opened again, and nobody has it. Not so of one that
    /// ends with this process: nothing of it could be opened.
    fn is_failed_and_free(&self) -> bool {
        self.disk.has_failed() && !self.disk.is_away() && !self.is_shared()
    }

    /// Closes the disk; its lock goes with the last handle.
    async fn close(mut self) -> Result<()> {
        self.timer.shutdown().await;
        self.disk.close().await
    }
}

#[derive(Clone, Copy)]
struct DiskUsers {
    users: usize,
    /// When the last user left.
    since: Instant,
}

/// What a disk that cannot be closed properly means for what is done next.
#[derive(Clone, Copy)]
enum OnCloseError {
    /// It is done all the same: what the disk holds goes anyway, and it must not stay for ever.
    Continue,
    /// It is not done.
    Abort,
}

/// A user's hold on an open disk.
pub struct DiskHandle {
    slot: Arc<DiskSlot>,
    disk: Arc<Disk>,
}

impl DiskHandle {
    /// The disk itself.
    pub fn disk(&self) -> &Arc<Disk> {
        &self.disk
    }
}

impl Deref for DiskHandle {
    type Target = Disk;
    fn deref(&self) -> &Disk {
        &self.disk
    }
}

impl Drop for DiskHandle {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

impl DiskSlot {
    fn leave(&self) {
        let mut use_ = self.use_.lock();
        use_.users -= 1;
        use_.since = Instant::now();
    }
}

/// Counts a user out again when opening fails or is cancelled.
struct PendingUser(Option<Arc<DiskSlot>>);

impl Drop for PendingUser {
    fn drop(&mut self) {
        if let Some(slot) = &self.0 {
            slot.leave();
        }
    }
}

impl OpenDisks {
    /// None is open yet.
    pub fn new(disks: Arc<Disks>) -> Self {
        let turns = Arc::new(Semaphore::new(OPENINGS));
        let (slots, opening, closed) = Default::default();
        Self { disks, slots, opening, turns, closed }
    }

    /// Opens a disk, or joins those who have it open.
    ///
    /// # Errors
    /// Any error from [`Disks::open`].
    pub async fn hold(&self, name: &str) -> Result<DiskHandle> {
        self.hold_as(name, false).await
    }

    /// The same; where it is not open yet, a store that is away or refuses is
    /// [done without](Disks::open_offline).
    ///
    /// # Errors
    /// Any error from [`Disks::open_offline`].
    pub async fn hold_offline(&self, name: &str) -> Result<DiskHandle> {
        self.hold_as(name, true).await
    }

    async fn hold_as(&self, name: &str, offline: bool) -> Result<DiskHandle> {
        store::check_name("disk", name)?;
        let slot = {
            let mut slots = self.slots.lock();
            let slot = slots.entry(name.to_owned()).or_insert_with(|| {
                Arc::new(DiskSlot {
                    name: name.to_owned(),
                    disk: Arc::default(),
                    use_: Mutex::new(DiskUsers { users: 0, since: Instant::now() }),
                })
            });
            slot.use_.lock().users += 1;
            Arc::clone(slot)
        };
        let mut entry = PendingUser(Some(Arc::clone(&slot)));
        let mut place = Arc::clone(&slot.disk).lock_owned().await;
        let failed = place.take_if(|opened| opened.is_failed_and_free());
        let present = place.as_ref().map(|opened| Arc::clone(&opened.disk));
        let disk = match present {
            Some(disk) => disk,
            None => match self.open_unless_closed((name, offline), place, failed).await {
                Ok(disk) => disk,
                Err(e) => {
                    drop(entry);
                    self.forget_if_unused(&slot);
                    return Err(e);
                }
            },
        };
        entry.0 = None;
        Ok(DiskHandle { slot, disk })
    }

    /// Opens a disk in its place, unless all were closed.
    async fn open_unless_closed(
        &self,
        wanted: (&str, bool),
        place: OwnedMutexGuard<Option<Opened>>,
        failed: Option<Opened>,
    ) -> Result<Arc<Disk>> {
        // Whoever closes all takes the place after this was set.
        match self.closed.load(Ordering::SeqCst) {
            false => self.open(wanted, place, failed).await,
            true => Err(Error::unavailable("the server is stopping, and opens no disk any more")),
        }
    }

    /// Opens a disk in its place, in a task of its own, after closing it where it `failed`.
    async fn open(
        &self,
        (name, offline): (&str, bool),
        mut place: OwnedMutexGuard<Option<Opened>>,
        failed: Option<Opened>,
    ) -> Result<Arc<Disk>> {
        let (send, receive) = oneshot::channel();
        {
            let (disks, name) = (Arc::clone(&self.disks), name.to_owned());
            let turns = Arc::clone(&self.turns);
            let mut opening = self.opening.lock();
            while opening.try_join_next().is_some() {}
            opening.spawn(async move {
                if let Some(failed) = failed {
                    tracing::warn!(disk = name, "opening the disk again, as it failed");
                    // What is wrong with it was said when it failed.
                    let _ = failed.close().await;
                }
                let turn = tokio::time::timeout(TURN, turns.acquire()).await;
                let opened = match offline {
                    true => disks.open_offline(&name).await,
                    false => disks.open(&name).await,
                };
                drop(turn);
                if let Ok(disk) = &opened {
                    *place = Some(Opened::new(Arc::clone(disk)));
                }
                drop(place);
                let _ = send.send(opened);
            });
        }
        let fault = |_| Error::internal("opening a disk failed inside the program; see the log");
        receive.await.map_err(fault)?
    }

    /// What `look` sees in each open disk, by name. No handle leaves, because the disk's lock goes
    /// with the last one.
    pub fn look<T>(&self, look: impl Fn(&Disk) -> T) -> BTreeMap<String, T> {
        self.try_look(look).into_iter().filter_map(|(name, seen)| Some((name, seen?))).collect()
    }

    /// Looks, as [`look`](Self::look) does, and gives nothing for disks that are being opened, closed or
    /// looked after just now: they may be open.
    pub fn try_look<T>(&self, look: impl Fn(&Disk) -> T) -> BTreeMap<String, Option<T>> {
        let slots: Vec<_> = self.slots.lock().values().map(Arc::clone).collect();
        slots
            .iter()
            .filter_map(|slot| {
                let seen = match slot.disk.try_lock() {
                    Ok(place) => Some(look(&place.as_ref()?.disk)),
                    Err(_) => None,
                };
                Some((slot.name.clone(), seen))
            })
            .collect()
    }

    /// Closes the disks that nobody has used for `idle`, a few at a time: one whose storage hangs
    /// keeps no other open.
    pub async fn close_idle(&self, idle: Duration) {
        let slots: Vec<_> = self.slots.lock().values().map(Arc::clone).collect();
        let is_idle = |slot: &Arc<DiskSlot>| {
            let use_ = *slot.use_.lock();
            use_.users == 0 && use_.since.elapsed() >= idle
        };
        let close = async |slot: Arc<DiskSlot>| {
            // One that is being opened is not idle.
            let Ok(place) = Arc::clone(&slot.disk).try_lock_owned() else { return };
            if let Err(e) = self.close(&slot, place, false).await {
                tracing::error!(disk = slot.name, error = e.message(), "closing the disk failed");
            }
        };
        let idle = slots.into_iter().filter(is_idle);
        futures::stream::iter(idle).for_each_concurrent(CLOSINGS, close).await;
    }

    /// Closes every disk, as [`close_all`](Self::close_all) does, for good: none is opened after that.
    ///
    /// # Errors
    /// Any error from [`Disk::close`].
    pub async fn close_for_good(&self) -> Result<()> {
        self.closed.store(true, Ordering::SeqCst);
        self.close_all().await
    }

    /// Closes every disk, many at a time. All are tried; the first error is returned.
    ///
    /// # Errors
    /// Any error from [`Disk::close`].
    pub async fn close_all(&self) -> Result<()> {
        let slots: Vec<_> = self.slots.lock().values().map(Arc::clone).collect();
        let close = async |slot: Arc<DiskSlot>| {
            let place = Arc::clone(&slot.disk).lock_owned().await;
            self.close(&slot, place, true).await.map_err(|e| {
                let e = e.context(format!("closing disk {}", slot.name));
                tracing::error!(disk = slot.name, error = e.message(), "closing the disk failed");
                e
            })
        };
        let closed = futures::stream::iter(slots).map(close).buffer_unordered(LAST_CLOSINGS);
        closed.fold(Ok(()), async |first, closed| first.and(closed)).await
    }

    /// Removes a disk, closing it first when it is idle.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the disk is in use; any error from
    /// [`Disks::remove`].
    pub async fn remove(&self, name: &str) -> Result<()> {
        self.retire(name, OnCloseError::Continue, self.disks.remove(name)).await
    }

    /// Publishes a disk and gives it up, closing it first when it is idle.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the disk is in use; any error from
    /// [`Disks::release`].
    pub async fn release(&self, name: &str) -> Result<()> {
        self.retire(name, OnCloseError::Abort, self.disks.release(name)).await
    }

    /// Makes what is here of a disk that was taken from this server a disk of its own.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the disk is in use; any error from
    /// [`Disks::keep`].
    pub async fn keep(&self, name: &str, new: &str) -> Result<DiskInfo> {
        // A disk that was taken does not close without an error: it is not written any more.
        self.retire(name, OnCloseError::Continue, self.disks.keep(name, new)).await
    }

    /// Removes what is here of a disk that was taken from this server, when the store has all that was written to it.
    /// Says whether it did.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when the disk is in use; any error from
    /// [`Disks::drop_lost`].
    pub async fn drop_lost(&self, name: &str) -> Result<bool> {
        self.retire(name, OnCloseError::Continue, self.disks.drop_lost(name)).await
    }

    /// The names of the disks that may be open.
    pub fn names(&self) -> Vec<String> {
        self.slots.lock().keys().cloned().collect()
    }

    /// What a disk is made of now. One that is not open is not opened for it: its files are looked at.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when there is none;
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it has been being opened or closed for seconds; any error
    /// from [`Disks::look`] and of the store.
    pub async fn layers(&self, name: &str) -> Result<DiskLayers> {
        store::check_name("disk", name)?;
        loop {
            let slot = self.slots.lock().get(name).map(Arc::clone);
            let Some(slot) = slot else {
                let found = self.disks.look(name).await;
                // Who opens it meanwhile changes its files.
                if self.slots.lock().contains_key(name) {
                    continue;
                }
                return found?.layers().await;
            };
            let place = tokio::time::timeout(TURN, slot.disk.lock()).await;
            let place = place.map_err(|_| {
                Error::unavailable(format!(
                    "disk {name} is being opened or closed, which takes long; ask again"
                ))
            })?;
            if let Some(opened) = &*place {
                return Ok(opened.disk.layers());
            }
            let found = self.disks.look(name).await;
            drop(place);
            return found?.layers().await;
        }
    }

    /// What the store is to be asked about an open disk: whether this server still holds it. `None`
    /// when the disk is not open, or is being opened, closed or looked after just now.
    pub fn question(&self, name: &str) -> Option<OwnershipQuestion> {
        let slot = self.slots.lock().get(name).map(Arc::clone)?;
        let place = slot.disk.try_lock().ok()?;
        Some(place.as_ref()?.disk.question())
    }

    /// Judges the store's answer about a disk: one that was taken from this server is not written any
    /// more, and the store is told again of one that it does not know. A disk that is being opened or closed is
    /// waited for.
    ///
    /// # Errors
    /// Any error from [`Disk::judge`] and [`Disk::tell_store`].
    pub async fn judge(&self, name: &str, answer: OwnershipAnswer) -> Result<()> {
        let slot = self.slots.lock().get(name).map(Arc::clone);
        let Some(slot) = slot else { return Ok(()) };
        // No handle leaves: the disk's lock would go with it.
        let place = slot.disk.lock().await;
        let Some(opened) = &*place else { return Ok(()) };
        if opened.disk.judge(answer)? {
            return Ok(());
        }
        // With the lock, so that nobody removes the disk here meanwhile; not for long, for the same reason.
        let told = tokio::time::timeout(TELLING, opened.disk.tell_store()).await;
        told.unwrap_or_else(|_| Err(Error::unavailable("the store does not answer")))
    }

    /// Closes a disk that nobody uses, and does `then` before anybody can open it again.
    async fn retire<T>(
        &self,
        name: &str,
        on_error: OnCloseError,
        then: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        store::check_name("disk", name)?;
        let slot = self.slots.lock().get(name).map(Arc::clone);
        let Some(slot) = slot else { return then.await };
        let mut place = slot.disk.lock().await;
        if slot.use_.lock().users > 0 {
            return Err(Error::conflict(format!(
                "disk {name} is in use; detach its client first (`sojourn status` shows who it is)"
            )));
        }
        if let Some(opened) = place.take() {
            let deadline = Instant::now() + GOODBYE;
            while opened.is_shared() && Instant::now() < deadline {
                tokio::time::sleep(GOODBYE / 100).await;
            }
            match (opened.close().await, on_error) {
                (Err(e), OnCloseError::Continue) => {
                    tracing::warn!(
                        disk = name,
                        error = e.message(),
                        "closing a disk to give it up"
                    );
                }
                (closed, _) => closed?,
            }
        }
        let result = then.await;
        drop(place);
        self.forget_if_unused(&slot);
        result
    }

    async fn close(
        &self,
        slot: &Arc<DiskSlot>,
        mut place: OwnedMutexGuard<Option<Opened>>,
        stopping: bool,
    ) -> Result<()> {
        // A client that an ephemeral disk waits for finds it open.
        let wanted = slot.use_.lock().users > 0
            || place.as_ref().is_some_and(|o| o.is_shared() || o.disk.holder().is_some());
        if wanted && !stopping {
            return Ok(());
        }
        let result = match place.take() {
            Some(opened) => opened.close().await,
            None => Ok(()),
        };
        drop(place);
        self.forget_if_unused(slot);
        result
    }

    fn forget_if_unused(&self, slot: &Arc<DiskSlot>) {
        let mut slots = self.slots.lock();
        let empty = slot.disk.try_lock().is_ok_and(|place| place.is_none());
        let same = slots.get(&slot.name).is_some_and(|present| Arc::ptr_eq(present, slot));
        if same && empty && slot.use_.lock().users == 0 {
            slots.remove(&slot.name);
        }
    }
}
