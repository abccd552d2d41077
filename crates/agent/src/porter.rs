//! What the process of attached disks does beside serving: what is written goes up, a disk that another
//! machine took becomes one of its own, and one that is to be given up is given up as soon as that is
//! possible.

use crate::api::{AttachRequest, AttachedDisk, AttachedView};
use crate::budget::ByteBudget;
use crate::hoard::Hoard;
use crate::marks::{self, DiskMark};
use crate::peers::AttachedPeers;
use crate::write_back::{Timing, WriteBack};
use block::{Error, ErrorKind, Result};
use disk::Disk;
use engine::boots::Boots;
use engine::config::Config;
use engine::config::attached::Attach;
use engine::{Engine, Home, devices, parcels};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::RefKind;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// How soon what failed is tried again at first, and at last.
const RETRY: Duration = Duration::from_secs(1);
const LONGEST_RETRY: Duration = Duration::from_secs(60);
/// How often is looked whether all of a disk that is to be given up went up.
const LOOK: Duration = Duration::from_millis(50);
/// Names that are tried for a disk that another machine took.
const NAMES: u32 = 1000;
/// How long attaching a disk waits while that disk is being given up, or kept.
const ENDING: Duration = Duration::from_secs(60);

/// Looks after all attached disks of a home.
pub struct Porter {
    home: Home,
    store: String,
    engine: Arc<Engine>,
    boots: Arc<Boots>,
    up: Arc<ByteBudget>,
    down: Arc<ByteBudget>,
    timing: Timing,
    /// Other machines of the network, if they are asked and answered.
    peers: OnceLock<AttachedPeers>,
    disks: Mutex<BTreeMap<String, Arc<CarriedDisk>>>,
    /// Whether the disks that were here at the start are among them.
    is_listed: watch::Sender<bool>,
    /// One task for each disk; `None` when they have ended for good.
    tasks: Mutex<Option<JoinSet<()>>>,
}

/// An attached disk, and what is being done for it.
struct CarriedDisk {
    name: String,
    write_back: WriteBack,
    hoard: Hoard,
    /// Whether it is to be given up.
    detaching: watch::Sender<bool>,
    /// Held while it is given up, or becomes a disk of its own.
    ending: tokio::sync::Mutex<()>,
    outcome: Mutex<DiskNews>,
}

/// What there is to say of a disk.
#[derive(Default)]
struct DiskNews {
    /// It is not looked after any more.
    has_ended: bool,
    kept_as: Option<String>,
    error: Option<String>,
    in_use: bool,
}

impl Porter {
    /// Looks after nothing yet.
    pub fn new(
        home: &Home,
        store: &str,
        engine: &Arc<Engine>,
        boots: Arc<Boots>,
        config: &Attach,
    ) -> Arc<Self> {
        let after = Duration::from_secs(config.after_seconds);
        let up = ByteBudget::new(config.up.0);
        up.pause(marks::is_paused(home));
        Arc::new(Self {
            home: home.clone(),
            store: store.to_owned(),
            engine: Arc::clone(engine),
            boots,
            up: Arc::new(up),
            down: Arc::new(ByteBudget::new(config.down.0)),
            timing: Timing { after, ..Timing::default() },
            peers: OnceLock::new(),
            disks: Mutex::default(),
            is_listed: watch::Sender::new(false),
            tasks: Mutex::new(Some(JoinSet::new())),
        })
    }

    /// Has peers told what is kept of its disks, and tells of them. The first ones count, and those that come
    /// before [`follow`](Self::follow).
    pub fn set_peers(&self, peers: AttachedPeers) {
        let _ = self.peers.set(peers);
    }

    /// Has peers told, for ever, what is kept of a disk.
    async fn tell_peers(&self, disk: &Disk) -> Infallible {
        match self.peers.get() {
            Some(peers) => peers.shelf.follow(disk).await,
            None => std::future::pending().await,
        }
    }

    /// Looks after the disks that are here, and later ones, until `stop` is done.
    pub async fn follow(self: Arc<Self>, stop: impl Future<Output = ()>) {
        let never = async {
            while let Err(e) = self.look_after_all().await {
                tracing::error!(error = e.message(), "attached disks are not looked after yet");
                self.is_listed.send_replace(true);
                tokio::time::sleep(RETRY).await;
            }
            self.is_listed.send_replace(true);
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            never = never => match never {},
            () = stop => {}
        }
        let tasks = self.tasks.lock().take();
        if let Some(mut tasks) = tasks {
            tasks.shutdown().await;
        }
    }

    /// Begins to look after all disks that are here.
    async fn look_after_all(self: &Arc<Self>) -> Result<()> {
        let disks = self.engine.disks.names().await?;
        disks.iter().for_each(|name| self.look_after(name));
        Ok(())
    }

    /// Begins to look after a disk, unless that is being done.
    fn look_after(self: &Arc<Self>, name: &str) {
        let mut disks = self.disks.lock();
        if disks.contains_key(name) {
            return;
        }
        let carried = Arc::new(CarriedDisk {
            name: name.to_owned(),
            write_back: WriteBack::new(Arc::clone(&self.up), self.timing),
            hoard: Hoard::new(Arc::clone(&self.down), DiskMark::Hoarding.is_set(&self.home, name)),
            detaching: watch::Sender::new(DiskMark::Detaching.is_set(&self.home, name)),
            ending: tokio::sync::Mutex::default(),
            outcome: Mutex::default(),
        });
        disks.insert(name.to_owned(), Arc::clone(&carried));
        if let Some(tasks) = &mut *self.tasks.lock() {
            while tasks.try_join_next().is_some() {}
            let this = Arc::clone(self);
            tasks.spawn(async move { this.carry(&carried).await });
        }
    }

    /// Looks after a disk until it is given up or lost.
    async fn carry(self: &Arc<Self>, disk: &CarriedDisk) {
        let mut pause = RETRY;
        loop {
            let begun = Instant::now();
            match self.carry_on(disk).await {
                Ok(EndReason::GivenUp) => {
                    self.forget(disk);
                    // Somebody may have taken it again at this moment.
                    if self.home.disks().join(&disk.name).is_dir() {
                        self.look_after(&disk.name);
                    }
                    return;
                }
                Ok(EndReason::Recalled) => {}
                // It stays in the list, for whoever asks what became of it.
                Ok(EndReason::Kept) => return,
                Err(e) => {
                    tracing::warn!(disk = disk.name, error = e.message(), "an attached disk waits");
                    disk.outcome.lock().error = Some(e.message().to_owned());
                    // A client that leaves is not waited for longer than need be.
                    if begun.elapsed() > LONGEST_RETRY || disk.outcome.lock().in_use {
                        pause = RETRY;
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_RETRY);
                }
            }
        }
    }

    /// The same, until something fails.
    async fn carry_on(self: &Arc<Self>, carried: &CarriedDisk) -> Result<EndReason> {
        let name = &carried.name;
        if let Some(ended) = self.finish_keep(carried).await? {
            return Ok(ended);
        }
        {
            let _ending = carried.ending.lock().await;
            self.engine.disks.settle_take(name).await?;
        }
        let held = match self.engine.open.hold(name).await {
            Err(e) if e.kind() == ErrorKind::Fenced => return self.keep(carried, &e).await,
            // Somebody else gave it up or removed it.
            Err(e) if e.kind() == ErrorKind::NotFound && !self.home.disks().join(name).exists() => {
                return Ok(EndReason::GivenUp);
            }
            other => other?,
        };
        let ended = {
            let disk = held.disk();
            carried.outcome.lock().error = None;
            let mut detaching = carried.detaching.subscribe();
            let all_up = async {
                let _ = detaching.wait_for(|detaching| *detaching).await;
                carried.write_back.hurry();
                while disk.behind().is_some() && *carried.detaching.borrow() {
                    tokio::time::sleep(LOOK).await;
                }
            };
            tokio::select! {
                error = carried.write_back.follow(disk) => Some(error),
                () = all_up => None,
                never = carried.hoard.follow(disk, &self.engine) => match never {},
                never = self.tell_peers(disk) => match never {},
            }
        };
        drop(held);
        match ended {
            Some(error) if error.kind() == ErrorKind::Fenced => self.keep(carried, &error).await,
            Some(error) => Err(error),
            None => self.give_up(carried).await,
        }
    }

    /// Takes a disk that is not looked after any more off the list.
    fn forget(&self, ended: &CarriedDisk) {
        let mut disks = self.disks.lock();
        if disks.get(&ended.name).is_some_and(|listed| std::ptr::eq(&**listed, ended)) {
            disks.remove(&ended.name);
        }
    }

    /// Gives up a disk of which everything is in the store, unless somebody attached it again.
    async fn give_up(&self, carried: &CarriedDisk) -> Result<EndReason> {
        let _ending = carried.ending.lock().await;
        if !*carried.detaching.borrow() {
            return Ok(EndReason::Recalled);
        }
        // A machine may have been suspended with it since.
        parcels::must_not_be_suspended(&self.engine, &carried.name).await?;
        let released = self.engine.open.release(&carried.name).await;
        carried.outcome.lock().in_use =
            released.as_ref().is_err_and(|e| e.kind() == ErrorKind::Conflict);
        released?;
        DiskMark::Hoarding.set(&self.home, &carried.name, false)?;
        DiskMark::Detaching.set(&self.home, &carried.name, false)?;
        carried.outcome.lock().has_ended = true;
        Ok(EndReason::GivenUp)
    }

    /// Makes what is here of a disk that another machine took a disk of its own.
    async fn keep(self: &Arc<Self>, carried: &CarriedDisk, why: &Error) -> Result<EndReason> {
        let _ending = carried.ending.lock().await;
        let name = &carried.name;
        tracing::warn!(disk = name, error = why.message(), "another machine took the disk");
        // Also where it was found out when the disk was opened.
        carried.write_back.lose(why);
        carried.outcome.lock().error = Some(why.message().to_owned());
        if self.engine.open.drop_lost(name).await? {
            tracing::warn!(disk = name, "the store has all that was written");
            DiskMark::Hoarding.set(&self.home, name, false)?;
            DiskMark::Detaching.set(&self.home, name, false)?;
            carried.outcome.lock().has_ended = true;
            return Ok(EndReason::GivenUp);
        }
        for number in 1..NAMES {
            let new = format!("{name}-kept-{number}");
            if self.home.disks().join(&new).exists() {
                continue;
            }
            match self.engine.open.keep(name, &new).await {
                Ok(kept) => return self.kept(carried, kept.name),
                // It is another disk's name; an interrupted try of our own does not fail.
                Err(e)
                    if e.kind() == ErrorKind::Conflict
                        && self.engine.disks.interrupted_keep(name).await?.is_none()
                        && self.engine.store.refs().get(RefKind::Disk, &new).await?.is_some() => {}
                Err(e) => return Err(e),
            }
        }
        Err(Error::conflict(format!("there are {NAMES} kept disks of {name}; remove some")))
    }

    /// Goes on where an earlier process was killed while it made a lost disk one of its own.
    async fn finish_keep(self: &Arc<Self>, carried: &CarriedDisk) -> Result<Option<EndReason>> {
        let _ending = carried.ending.lock().await;
        match self.engine.disks.interrupted_keep(&carried.name).await? {
            Some(new) => {
                let kept = self.engine.open.keep(&carried.name, &new).await?;
                self.kept(carried, kept.name).map(Some)
            }
            None => Ok(None),
        }
    }

    /// What was written to a disk is now the disk `kept`.
    fn kept(self: &Arc<Self>, carried: &CarriedDisk, kept: String) -> Result<EndReason> {
        let name = &carried.name;
        tracing::warn!(disk = name, kept, "what was written is kept");
        DiskMark::Hoarding.set(&self.home, name, false)?;
        DiskMark::Detaching.set(&self.home, name, false)?;
        self.look_after(&kept);
        let kept_as = Some(kept);
        *carried.outcome.lock() = DiskNews { has_ended: true, kept_as, ..DiskNews::default() };
        Ok(EndReason::Kept)
    }

    fn carried(&self, name: &str) -> Result<Arc<CarriedDisk>> {
        self.disks.lock().get(name).map(Arc::clone).ok_or_else(|| {
            Error::not_found(format!(
                "disk {name:?} is not attached here; see `sojourn attach status`"
            ))
        })
    }

    /// Carries out a verb.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) for a disk that is not attached; any error from the verb: for `Attach`
    /// any error from [`Disks::take`](disk::Disks::take) and from opening the disk, and unless it is forced
    /// [`Conflict`](ErrorKind::Conflict) while another home has a machine with the disk; for `Discard`
    /// [`Conflict`](ErrorKind::Conflict) while a client uses it, for `Discard` and `Detach` while a machine can go on
    /// with it that was suspended in this home and is not in the store.
    pub async fn perform(self: &Arc<Self>, request: AttachRequest) -> Result<AttachedView> {
        let _ = self.is_listed.subscribe().wait_for(|is_listed| *is_listed).await;
        match request {
            AttachRequest::Attach { name, force } => self.attach(&name, force).await?,
            AttachRequest::Status => {}
            AttachRequest::Sync { name } => self.carried(&name)?.write_back.hurry(),
            AttachRequest::Discard { name } => {
                self.carried(&name)?;
                // What is mounted of it would go on over another content.
                devices::must_be_none(&self.home, &name)?;
                parcels::must_not_be_suspended(&self.engine, &name).await?;
                self.engine.open.hold(&name).await?.discard_unpublished().await?;
            }
            AttachRequest::Detach { name } => {
                let carried = self.carried(&name)?;
                if !carried.outcome.lock().has_ended {
                    parcels::must_not_be_suspended(&self.engine, &name).await?;
                }
                DiskMark::Detaching.set(&self.home, &name, true)?;
                carried.detaching.send_replace(true);
            }
            AttachRequest::Hoard { name, wanted } => {
                let carried = self.carried(&name)?;
                DiskMark::Hoarding.set(&self.home, &name, wanted)?;
                carried.hoard.want(wanted);
            }
            AttachRequest::Device { name, device } => {
                // One that another machine took is no device any more, either.
                if device.is_some() {
                    self.carried(&name)?;
                }
                devices::set(&self.home, &name, device.as_deref())?;
            }
            AttachRequest::Budget { up, down } => {
                up.into_iter().for_each(|rate| self.up.set_rate(rate));
                down.into_iter().for_each(|rate| self.down.set_rate(rate));
            }
            AttachRequest::Pause { paused } => {
                marks::set_paused(&self.home, paused)?;
                self.up.pause(paused);
            }
            AttachRequest::Sources { places } => {
                let config = Config::load(&self.home.config())?;
                let adding =
                    places.iter().map(|place| self.engine.add_source(place, &self.home, &config));
                // One that is away, or hangs, keeps none of the others from being asked.
                let added = futures::future::join_all(adding).await;
                let failures: Vec<_> = added.into_iter().filter_map(Result::err).collect();
                if let Some(first) = failures.first() {
                    let why: Vec<_> = failures.iter().map(ToString::to_string).collect();
                    return Err(Error::new(first.kind(), why.join("; ")));
                }
            }
        }
        Ok(self.view())
    }

    async fn attach(self: &Arc<Self>, name: &str, force: bool) -> Result<()> {
        store::check_name("disk", name)?;
        let recalled = tokio::time::timeout(ENDING, self.recall(name)).await;
        let is_carried = recalled.unwrap_or_else(|_| {
            Err(Error::unavailable(format!(
                "disk {name:?} is being given up, and the store does not answer; try again"
            )))
        })?;
        self.engine.disks.settle_take(name).await?;
        let is_here = self.home.disks().join(name).is_dir();
        if !is_here {
            devices::must_be_none(&self.home, name)?;
            if !force {
                parcels::must_not_run_elsewhere(&self.engine, name).await?;
            }
            self.engine.disks.take(name, force).await?;
        }
        if !is_carried || !is_here {
            DiskMark::Detaching.set(&self.home, name, false)?;
            self.look_after(name);
        }
        // Whoever asked learns now whether it can be used.
        let held = self.engine.open.hold(name).await?;
        // Until the guest's firmware asks for the first block, the link has nothing else to do.
        if let (false, Some(image)) = (is_here, held.disk().pristine_base()) {
            self.boots.expect(image);
        }
        Ok(())
    }

    /// Has a disk that is looked after stay; whether there is one. One that is being given up, or kept
    /// under another name, is waited for: it is none.
    async fn recall(self: &Arc<Self>, name: &str) -> Result<bool> {
        loop {
            let listed = self.disks.lock().get(name).map(Arc::clone);
            let Some(carried) = listed else { return Ok(false) };
            self.finish_keep(&carried).await?;
            let _ending = carried.ending.lock().await;
            if carried.outcome.lock().has_ended {
                self.forget(&carried);
                continue;
            }
            DiskMark::Detaching.set(&self.home, name, false)?;
            carried.detaching.send_replace(false);
            return Ok(true);
        }
    }

    fn view(&self) -> AttachedView {
        let disks = self.disks.lock().values().map(|disk| disk.view(&self.home)).collect();
        AttachedView {
            store: self.store.clone(),
            home: self.home.dir().display().to_string(),
            socket: self.home.nbd_socket().display().to_string(),
            running: true,
            paused: self.up.is_paused(),
            up_bytes_per_second: self.up.rate(),
            down_bytes_per_second: self.down.rate(),
            sources: self.engine.sources(),
            peers: self.peers.get().map(AttachedPeers::view),
            disks,
        }
    }
}

/// Why a disk is not looked after any more.
enum EndReason {
    /// The store has everything, and any machine can go on with it.
    GivenUp,
    /// Another machine took it; what was written here is a disk of its own.
    Kept,
    /// It was to be given up, and is not any more: it is looked after on.
    Recalled,
}

impl CarriedDisk {
    fn view(&self, home: &Home) -> AttachedDisk {
        let (upload, hoard) = (self.write_back.progress(), self.hoard.progress());
        let detaching = *self.detaching.borrow();
        let outcome = self.outcome.lock();
        let (kept_as, error) = (outcome.kept_as.clone(), outcome.error.clone());
        let device = devices::of(home, &self.name).ok().flatten();
        let mut text = vec![match (&kept_as, &device) {
            (Some(kept), _) => {
                format!("taken by another machine; what was written here is disk {kept}")
            }
            (None, Some(device)) => upload.text_of_device(device),
            (None, None) => upload.text(),
        }];
        if kept_as.is_none() {
            text.push(hoard.text());
        }
        if detaching && kept_as.is_none() {
            text.push("is given up when all is in the store and its client has left".to_owned());
        }
        text.extend([&upload.error, &hoard.error, &error].into_iter().flatten().cloned());
        text.extend(device.as_ref().map(|device| format!("is {device}")));
        let (name, in_use) = (self.name.clone(), outcome.in_use);
        AttachedDisk { name, detaching, upload, hoard, kept_as, error, in_use, device, text }
    }
}
