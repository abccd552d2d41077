//! Moving disks between servers: take, release, keep.
//!
//! The private blocks of a disk are with the server that holds it. What was published of it, its
//! newest snapshot or the state it was released in, is in the store, and from there any other server
//! may go on with it. See `fence` for what becomes of the earlier holder.

use crate::disk::{OwnBlocks, describe};
use crate::disks::{Disks, build, clear, from_ref, is_blank, lock_existing, saved, taken};
use crate::fence::{self, Tenure};
use crate::record::{DiskRecord, MOST_LEFT, first_content};
use crate::taking;
use crate::{DiskInfo, Mode, RemoteDisk};
use block::{Error, ErrorKind, Result, offload};
use std::collections::HashMap;
use store::servers::ListedServer;
use store::{RefKind, RefRecord, ServerId, Session, check_name, images};

impl Disks {
    /// Makes a disk this server's that the store knows and that nobody holds any more: it goes on
    /// with what was last published of it. With `force` it is taken from a server that is at work;
    /// that one can publish nothing of it from then on, and what it had not published stays there.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when the store does not know it,
    /// [`Conflict`](ErrorKind::Conflict) when it is here already, when its holder is at work, when it
    /// is being removed, or when another server was quicker; any error from the store and the file system,
    /// which say that it can be taken again: what an interrupted try left is replaced.
    pub async fn take(&self, name: &str, force: bool) -> Result<DiskInfo> {
        check_name("disk", name)?;
        self.try_take(name, force).await.map_err(|error| match error.kind() {
            ErrorKind::Unavailable | ErrorKind::NoSpace => error.context(format!(
                "disk {name:?} could not be taken, and nothing of it is lost: when what follows is \
                 mended, take it again ('sojourn disk take {}{name}')",
                if force { "--force " } else { "" }
            )),
            _ => error,
        })
    }

    async fn try_take(&self, name: &str, force: bool) -> Result<DiskInfo> {
        let server = self.server().await?;
        self.settle_take(name).await?;
        let refs = self.store.refs();
        let looked_up = refs.look_up(RefKind::Disk, name).await?;
        let found = looked_up.record().ok_or_else(|| {
            Error::not_found(format!(
                "the store knows no disk {name:?}; see 'sojourn disk list --elsewhere'"
            ))
        })?;
        fence::check_stays(found)?;
        let held = fence::held(found)?;
        let left = match held.by {
            Some(holder) => {
                if !force {
                    self.check_gone(found, holder, server).await?;
                }
                // Its record may be one step behind the ref, and so name any of these.
                let mut roots = found.body.roots()?;
                roots.truncate(MOST_LEFT);
                roots
            }
            None => Vec::new(),
        };
        let epoch = held.epoch.saturating_add(1);
        let published = Some(self.store.world().clock.now());
        let mut from = from_ref(found)?;
        if held.by.is_some() && from.mode != Mode::WriteThrough {
            // What that server had not published is not here.
            from.content = first_content(epoch);
        }
        let record = DiskRecord { layers: vec![1], next_layer: 2, epoch, left, published, ..from };
        // What it stands on is here before anybody loses anything.
        self.store.stored_manifest(&record.base).await?;
        let (home, copy) = (self.directory.clone(), record.clone());
        // A directory that an interrupted try of an earlier program left has the same epoch and no private blocks.
        let replaces = move |left: &DiskRecord| left.uuid == copy.uuid && left.epoch == copy.epoch;
        let made = record.clone();
        let lock = offload(move || build(&home, &made, replaces, taking::begin)).await?;
        let body = fence::body(&record, server, &[]);
        let (home, own) = (self.directory.clone(), name.to_owned());
        if let Err(error) = refs.write_over(&looked_up, body).await {
            // It was refused. Of what was not answered nobody knows: that is asked for when the disk is needed.
            if !matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::NoSpace) {
                // Another process of this home may have been quicker: then the directory, blank as its own was, is its.
                let is_taken = taking::came_through(&self.store, &record, server).await?;
                offload(
                    move || {
                        if is_taken { taking::end(&home.join(&own)) } else { clear(&home, &own) }
                    },
                )
                .await?;
            }
            return Err(error);
        }
        if let Err(error) = offload(move || taking::end(&home.join(&own))).await {
            tracing::warn!(disk = name, %error, "that the disk was taken is asked for again when it is opened");
        }
        drop(lock);
        Ok(describe(&record, OwnBlocks::NONE))
    }

    /// Finds out what came of a take that was interrupted: what it left of a disk that is not this server's goes.
    /// Nothing is asked where none was.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store does not say;
    /// [`Conflict`](ErrorKind::Conflict) while somebody is at it; any error from the file system.
    pub async fn settle_take(&self, name: &str) -> Result<()> {
        check_name("disk", name)?;
        let (at, own) = (self.directory.join(name), name.to_owned());
        let left = offload(move || {
            if !taking::is_open(&at) {
                return Ok(None);
            }
            let lock = lock_existing(&at, &own)?;
            // Whoever had the lock may have ended it.
            Ok(if taking::is_open(&at) { Some((lock, DiskRecord::load(&at)?)) } else { None })
        });
        let Some((_lock, record)) = left.await? else { return Ok(()) };
        let is_taken = taking::came_through(&self.store, &record, self.server().await?).await?;
        let (home, name) = (self.directory.clone(), name.to_owned());
        offload(move || if is_taken { taking::end(&home.join(&name)) } else { clear(&home, &name) })
            .await
    }

    /// Takes a disk whose writes are answered when the store has them, for a client that looks for it here: it was
    /// released, or the server that held it has been silent for longer than its lease. Nothing that was answered is
    /// lost by that. `false` for any other disk, which is taken by [`take`](Self::take) alone.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) while its holder is at work; any error from [`take`](Self::take).
    pub async fn take_over(&self, name: &str) -> Result<bool> {
        check_name("disk", name)?;
        let Some(found) = self.store.refs().get(RefKind::Disk, name).await? else {
            return Ok(false);
        };
        if from_ref(&found)?.mode != Mode::WriteThrough {
            return Ok(false);
        }
        if self.directory.join(name).exists() {
            self.drop_lost(name).await?;
        }
        self.take(name, false).await.map(|_| true)
    }

    /// Removes what is here of a disk that another server took, when nothing was written to it that the store does not
    /// have. Says whether it did.
    ///
    /// # Errors
    /// Any error from the store and the file system.
    pub async fn drop_lost(&self, name: &str) -> Result<bool> {
        check_name("disk", name)?;
        let (at, own) = (self.directory.join(name), name.to_owned());
        let blank = offload(move || {
            let lock = lock_existing(&at, &own)?;
            let record = DiskRecord::load(&at)?;
            // What was written through and answered is in the store.
            let has_all = record.mode == Mode::WriteThrough || is_blank(&at, &record);
            let goes = record.name == own && has_all;
            Ok(goes.then_some((lock, record)))
        });
        let Some((_lock, record)) = blank.await? else { return Ok(false) };
        if !self.is_lost(&record, self.server().await?).await? {
            return Ok(false);
        }
        let (home, name) = (self.directory.clone(), name.to_owned());
        offload(move || clear(&home, &name)).await?;
        Ok(true)
    }

    /// Fails while the holder of a disk is at work, or when it is this very server.
    async fn check_gone(&self, found: &RefRecord, holder: ServerId, own: ServerId) -> Result<()> {
        let name = &found.name;
        if holder == own {
            return Err(if self.directory.join(name).exists() {
                Error::conflict(format!("disk {name:?} is here already"))
            } else {
                Error::conflict(format!(
                    "disk {name:?} is held by this server, but its directory is not in {}; with \
                     --force it goes on with what was last published of it",
                    self.directory.display()
                ))
            });
        }
        match self.store.servers().seen(&holder).await? {
            Some(seen) if seen.is_alive() => Err(Error::conflict(format!(
                "disk {name:?} is held by the server on {} ({holder}), which was at work {} s ago; \
                 release it there ('sojourn disk release {name}'), or take it with --force: what \
                 that server has not published of it stays there then",
                seen.host,
                seen.silent.as_secs()
            ))),
            _ => Ok(()),
        }
    }

    /// Publishes all that a disk holds and gives it up: its directory is gone then, and any server
    /// may take it.
    ///
    /// # Errors
    /// Any error from [`open`](Self::open); any error from the store and the file system. The disk is still here
    /// then.
    pub async fn release(&self, name: &str) -> Result<()> {
        let disk = self.open(name).await?;
        disk.publish_all(&()).await?;
        // Here first: what the store gives up now must not be named again after a crash.
        disk.change(|record| record.left.clear()).await?;
        disk.close().await?;
        let record = disk.record();
        let refs = self.store.refs();
        let found = refs.get(RefKind::Disk, name).await?.ok_or_else(|| {
            Error::conflict(format!("disk {name:?} was removed from the store just now"))
        })?;
        let tenure = Tenure { server: self.server().await?, epoch: record.epoch };
        fence::check(&found, record.uuid, tenure, &self.directory.join(name))?;
        let body = fence::released(&record, tenure.server);
        refs.update(RefKind::Disk, name, found.sequence, body).await?;
        let (home, name) = (self.directory.clone(), name.to_owned());
        // The lock goes with the disk, after its directory.
        offload(move || clear(&home, &name)).await
    }

    /// Makes what is here of a disk that another server took, or of which the store has a state that did not come of
    /// this directory, a disk of its own, called `new`. When that is done already, it is made durable and described.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when nobody took the disk, when there is a disk `new`, and while a collection is
    /// at work that may delete what no name keeps;
    /// [`NotFound`](ErrorKind::NotFound) when the disk is not here, or when what it stood on is no
    /// longer in the store; any error from the store and the file system.
    pub async fn keep(&self, name: &str, new: &str) -> Result<DiskInfo> {
        check_name("disk", name)?;
        check_name("disk", new)?;
        let session = self.store.session(&format!("keeping disk {name} as {new}")).await?;
        let outcome = self.keep_in(&session, name, new).await;
        session.close(outcome).await
    }

    /// The name that the disk `name` is to have, when a [`keep`](Self::keep) was interrupted after it wrote
    /// that down: the same call finishes it, and nothing else can be done with the disk.
    ///
    /// # Errors
    /// [`Corrupt`](ErrorKind::Corrupt) for a record that is damaged; any error from the file system.
    pub async fn interrupted_keep(&self, name: &str) -> Result<Option<String>> {
        check_name("disk", name)?;
        let directory = self.directory.join(name);
        let found = offload(move || match directory.exists() {
            true => DiskRecord::load(&directory).map(|record| Some(record.name)),
            false => Ok(None),
        });
        Ok(found.await?.filter(|found| found != name))
    }

    async fn keep_in(&self, session: &Session, name: &str, new: &str) -> Result<DiskInfo> {
        let server = self.server().await?;
        if let Some(kept) = self.kept(name, new).await? {
            return Ok(kept);
        }
        // What the taken disk keeps for this one stays until this one has its own ref.
        let held = session.hold(RefKind::Disk, name).await?;
        let (directory, own) = (self.directory.join(name), name.to_owned());
        let at = directory.clone();
        let (_lock, record) = offload(move || {
            let lock = lock_existing(&at, &own)?;
            Ok((lock, DiskRecord::load(&at)?))
        })
        .await?;
        let refs = self.store.refs();
        // A try that was interrupted has changed the name in the record already.
        let again = record.name == new;
        let is_lost = again || self.is_lost(&record, server).await?;
        let is_set_back = !is_lost && self.is_set_back(&record).await?;
        if !is_lost && !is_set_back {
            return Err(Error::conflict(format!(
                "disk {name:?} is held by this server: there is nothing to save from another one"
            )));
        }
        let place = self.directory.join(new);
        let known = refs.get(RefKind::Disk, new).await?;
        // What is here of it alone is not written through.
        let mode = if record.mode == Mode::WriteThrough { Mode::Persistent } else { record.mode };
        let left = Vec::new();
        // Machines that see both disks must not take them for two ways to one.
        let identity = if again { record.identity } else { Some(record.kept_identity(new)) };
        let mut record =
            DiskRecord { name: new.to_owned(), mode, epoch: 1, left, identity, ..record };
        let roots = held.map_or(Ok(Vec::new()), |held| held.body.roots())?;
        // Nothing keeps it any more where whoever took the disk has given it up, or published since it was put back.
        if is_set_back || !roots.contains(&record.base) {
            hold_unnamed(session, name, &mut record).await?;
        }
        // The image version may be gone with whoever took the disk: then what was published last takes
        // its place, for a name must not stand on what is not there.
        match self.store.stored_manifest(&record.origin).await {
            Err(e) if e.kind() == ErrorKind::NotFound => record.origin = record.base,
            // A damaged one can be healed.
            Err(e) if e.kind() != ErrorKind::Corrupt => return Err(e),
            _ => {}
        }
        let body = fence::body(&record, server, &[]);
        if place.exists() || known.as_ref().is_some_and(|known| known.body != body) {
            return Err(taken(new));
        }
        self.store.stored_manifest(&record.base).await.map_err(|e| {
            e.context(format!("disk {name:?}: what its private blocks stand on cannot be read"))
        })?;
        if known.is_none() {
            session.publish(RefKind::Disk, new, body).await?;
        }
        let (home, copy) = (self.directory.clone(), record.clone());
        let private = offload(move || {
            saved(copy.save(&directory))?;
            directory.rename(&place).map_err(|e| place.error(e))?;
            home.sync_directory()?;
            Ok(OwnBlocks::of_closed(&place, &copy))
        })
        .await?;
        Ok(describe(&record, private))
    }

    /// What an earlier [`keep`](Self::keep) of the disk `name` made of it, made durable: the rename can
    /// have been its last step, and the sync of the directory after it have failed.
    async fn kept(&self, name: &str, new: &str) -> Result<Option<DiskInfo>> {
        let (old, place) = (self.directory.join(name), self.directory.join(new));
        let home = self.directory.clone();
        let found = offload(move || {
            if old.exists() || !place.is_dir() {
                return Ok(None);
            }
            home.sync_directory()?;
            let record = DiskRecord::load(&place)?;
            let private = OwnBlocks::of_closed(&place, &record);
            Ok(Some((record, private)))
        });
        let Some((record, private)) = found.await? else { return Ok(None) };
        let taken = self.store.refs().get(RefKind::Disk, name).await?;
        let is_of_it = taken.is_some_and(|taken| fence::is_disk(&taken, record.uuid));
        Ok((is_of_it && record.name == new).then(|| describe(&record, private)))
    }

    /// Whether another server holds the disk of a record, or the store knows another disk of its
    /// name.
    async fn is_lost(&self, record: &DiskRecord, server: ServerId) -> Result<bool> {
        let Some(found) = self.store.refs().get(RefKind::Disk, &record.name).await? else {
            return Ok(false);
        };
        let tenure = Tenure { server, epoch: record.epoch };
        fence::is_held(&found, record.uuid, tenure).map(|held| !held)
    }

    /// Whether the store has a state of the disk of a record, which this server holds, that did not come of it.
    async fn is_set_back(&self, record: &DiskRecord) -> Result<bool> {
        match self.store.refs().get(RefKind::Disk, &record.name).await? {
            Some(found) => fence::is_set_back(&found, record.base),
            None => Ok(false),
        }
    }

    /// The disks that the store knows and that are not here, by name; those whose ref cannot be read
    /// say why.
    ///
    /// # Errors
    /// [`Unavailable`](ErrorKind::Unavailable) or [`Denied`](ErrorKind::Denied) when the store cannot be
    /// listed or the directory cannot be read.
    pub async fn elsewhere(&self) -> Result<Vec<RemoteDisk>> {
        let server = self.server().await?;
        let listing = self.store.refs().list(RefKind::Disk).await?;
        let damaged = |name, error: &Error| RemoteDisk {
            name,
            error: Some(error.message().to_owned()),
            image: String::new(),
            size: 0,
            created: 0,
            holder: None,
            host: None,
            alive: false,
        };
        let mut others: Vec<RemoteDisk> =
            listing.damaged.into_iter().map(|bad| damaged(bad.name, &bad.error)).collect();
        // Each server is asked after once, however many disks it holds.
        let mut servers: HashMap<ServerId, Option<ListedServer>> = HashMap::new();
        for found in listing.records {
            let held = match fence::held(&found) {
                Ok(held) => held,
                Err(error) => {
                    others.push(damaged(found.name, &error));
                    continue;
                }
            };
            if held.by == Some(server) && self.directory.join(&found.name).exists() {
                continue;
            }
            let seen = match held.by {
                None => None,
                Some(holder) => match servers.get(&holder) {
                    Some(seen) => seen.clone(),
                    None => {
                        let seen = self.store.servers().seen(&holder).await?;
                        servers.insert(holder, seen.clone());
                        seen
                    }
                },
            };
            others.push(RemoteDisk {
                error: None,
                image: found.body.labels.get("image").cloned().unwrap_or_default(),
                name: found.name,
                size: found.body.size,
                created: found.body.created,
                holder: held.by.map(|id| id.to_string()),
                host: seen.as_ref().map(|seen| seen.host.clone()),
                alive: seen.is_some_and(|seen| seen.is_alive()),
            });
        }
        others.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(others)
    }
}

/// Keeps in the store, until the session ends, what a record names and no ref may keep any more.
///
/// # Errors
/// [`NotFound`](ErrorKind::NotFound) when something of its base is gone; any error from
/// [`images::hold_whole`].
async fn hold_unnamed(session: &Session, name: &str, record: &mut DiskRecord) -> Result<()> {
    if !images::hold_whole(session, record.base).await? {
        return Err(Error::not_found(format!(
            "disk {name:?}: a collection has deleted what its private blocks stand on; give up what is here \
             ('sojourn disk remove {name}'), and go on with what the store has ('sojourn disk take --force {name}')"
        )));
    }
    if !images::hold_whole(session, record.origin).await? {
        record.origin = record.base;
    }
    Ok(())
}
