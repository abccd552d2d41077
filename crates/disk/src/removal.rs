//! Removing disks: first what the store knows of them, their directory last.
//!
//! The ref of a disk is marked before its first snapshot goes. That is a compare-and-swap, so of a
//! removal and a taking that meet, one comes too late. Nobody takes a disk that is marked: what is
//! removed then is nobody else's. A crash leaves the mark, or a directory without a ref; another
//! removal begins anew and finds less to do. A disk that is opened instead loses the mark.

use crate::disks::{Disks, clear, lock_existing};
use crate::fence::{self, Tenure, UUID};
use crate::record::{DiskRecord, Uuid};
use block::{Error, ErrorKind, Result, offload};
use store::{ManifestId, RefKind, RefRecord, check_name};

/// What is known of a disk whose names are to go.
enum RemovedState {
    /// Its directory is here, with a record that says so.
    Here { uuid: Uuid, epoch: u64, base: ManifestId },
    /// Its directory is here, and its record damaged.
    Damaged,
    /// Somebody vouches that no home has it.
    Lost,
}

impl RemovedState {
    fn here(record: &DiskRecord) -> Self {
        Self::Here { uuid: record.uuid, epoch: record.epoch, base: record.base }
    }
}

impl Disks {
    /// Removes a disk with its snapshots. Images stay, also those committed from it. One that another
    /// server took is only removed here, and so is a directory that was set back, of which the store has a later
    /// state.
    ///
    /// # Errors
    /// [`NotFound`](ErrorKind::NotFound) when there is none,
    /// [`Conflict`](ErrorKind::Conflict) while it is in use, when another server takes it at this
    /// moment, and when only the store knows it: then it may be of another home; any error from the store
    /// and the file system. What an interrupted removal left is removed by the next one.
    pub async fn remove(&self, name: &str) -> Result<()> {
        check_name("disk", name)?;
        let (directory, own) = (self.directory.join(name), name.to_owned());
        let locked = offload(move || {
            let lock = lock_existing(&directory, &own)?;
            let known = DiskRecord::load(&directory);
            Ok((lock, known.map_or(RemovedState::Damaged, |record| RemovedState::here(&record))))
        });
        let (_lock, known) = match locked.await {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return match self.store.refs().get(RefKind::Disk, name).await? {
                    None => Err(error),
                    Some(_) => Err(Error::conflict(format!(
                        "disk {name:?} has no directory in {}, but the store knows it: another \
                         home on this store may have it; remove it there, take it with 'sojourn \
                         disk take {name}', or, if its directory is lost, give it up with 'sojourn \
                         disk remove --lost {name}'",
                        self.directory.display()
                    ))),
                };
            }
            other => other?,
        };
        self.forget(name, &known).await?;
        let (home, name) = (self.directory.clone(), name.to_owned());
        offload(move || clear(&home, &name)).await
    }

    /// Removes what the store knows of a disk whose directory is lost, its snapshots included. The
    /// caller vouches that no other home has it.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) when its directory is here, while another server that has it is at work,
    /// and when somebody else changes the disk at this moment; [`NotFound`](ErrorKind::NotFound) when the store does not know it;
    /// any error from the store.
    pub async fn remove_lost(&self, name: &str) -> Result<()> {
        check_name("disk", name)?;
        let place = self.directory.join(name);
        if place.exists() {
            return Err(Error::conflict(format!(
                "disk {name:?} is not lost, it is in {}; remove it without --lost",
                place.display()
            )));
        }
        let Some(found) = self.store.refs().get(RefKind::Disk, name).await? else {
            return Err(Error::not_found(format!("the store knows no disk {name:?}")));
        };
        self.must_not_be_used(&found).await?;
        self.forget(name, &RemovedState::Lost).await
    }

    /// Fails while another server that has a disk is at work: whose directory is lost is not a matter of opinion then.
    /// A ref that does not say who has the disk is in nobody's way.
    async fn must_not_be_used(&self, found: &RefRecord) -> Result<()> {
        let own = self.server().await?;
        let Some(holder) = fence::held(found).ok().and_then(|held| held.by) else { return Ok(()) };
        if holder == own {
            return Ok(());
        }
        let name = &found.name;
        match self.store.servers().seen(&holder).await? {
            Some(seen) if seen.is_alive() => Err(Error::conflict(format!(
                "disk {name:?} is not lost: the server on {} ({holder}) has it, and was at work {} s ago; remove \
                 it there, or take it here with 'sojourn disk take --force {name}' and remove it then",
                seen.host,
                seen.silent.as_secs()
            ))),
            _ => Ok(()),
        }
    }

    /// Whether what is here of a disk is not the store's disk of that name any more: another server took that, and may
    /// have released it since, or it is another one, or the directory here was set back. Then [`remove`](Self::remove) removes what is here alone.
    ///
    /// # Errors
    /// [`Invalid`](ErrorKind::Invalid) for what is no name; [`Unavailable`](ErrorKind::Unavailable) or
    /// [`Denied`](ErrorKind::Denied) when the store or the directory cannot be read;
    /// [`Corrupt`](ErrorKind::Corrupt) when a record in one of them is damaged.
    pub async fn is_here_only(&self, name: &str) -> Result<bool> {
        check_name("disk", name)?;
        let directory = self.directory.join(name);
        let record = offload(move || {
            Ok(if directory.exists() { DiskRecord::load(&directory).ok() } else { None })
        });
        let Some(record) = record.await? else { return Ok(false) };
        match self.store.refs().get(RefKind::Disk, name).await? {
            Some(found) => Ok(!self.is_same(&found, &RemovedState::here(&record)).await?),
            None => Ok(false),
        }
    }

    /// Removes the names of a disk and of its snapshots, unless they are of another one.
    async fn forget(&self, name: &str, known: &RemovedState) -> Result<()> {
        match self.store.refs().get(RefKind::Disk, name).await? {
            Some(found) if self.is_same(&found, known).await? => self.forget_names(found).await,
            // It goes last, so nothing else is left where there is none.
            _ => Ok(()),
        }
    }

    /// Whether the disk of a ref is the one that is known here, and not one that another server took
    /// or made, nor what another copy of the directory here made of it.
    async fn is_same(&self, found: &RefRecord, known: &RemovedState) -> Result<bool> {
        let server = self.server().await?;
        let (uuid, epoch, base) = match *known {
            RemovedState::Here { uuid, epoch, base } => (uuid, epoch, base),
            // Only the ref says who has it.
            RemovedState::Damaged => return Ok(fence::held(found)?.is_of(server)),
            RemovedState::Lost => return Ok(true),
        };
        Ok(fence::is_held(found, uuid, Tenure { server, epoch })?
            && !fence::is_set_back(found, base)?)
    }

    /// Removes the disk of a ref from the store.
    async fn forget_names(&self, found: RefRecord) -> Result<()> {
        let refs = self.store.refs();
        // Before the mark, so that a damaged one leaves the disk as it was. None is added in between:
        // this server has the disk locked, and whoever takes it changes the ref.
        let snapshots = self.snapshots_of(&found.name).await?;
        let body = fence::removing(&found, self.server().await?);
        let marked = refs.update(RefKind::Disk, &found.name, found.sequence, body).await?;
        for snapshot in snapshots {
            refs.remove(RefKind::Snapshot, &snapshot.name, snapshot.sequence).await?;
        }
        refs.remove(RefKind::Disk, &found.name, marked.sequence).await
    }

    /// Removes the snapshots that earlier disks of this name left. Those of this one stay: another
    /// server may have taken it by now.
    pub(crate) async fn forget_earlier_snapshots(&self, record: &DiskRecord) -> Result<()> {
        let own = record.uuid.to_string();
        for found in self.snapshots_of(&record.name).await? {
            if found.body.labels.get(UUID) != Some(&own) {
                self.store.refs().remove(RefKind::Snapshot, &found.name, found.sequence).await?;
            }
        }
        Ok(())
    }

    /// The refs of all snapshots of disks of this name. Fails when one of them is damaged.
    async fn snapshots_of(&self, disk: &str) -> Result<Vec<RefRecord>> {
        let of_disk = |name: &str| name.split_once('@').is_some_and(|(of, _)| of == disk);
        let listing = self.store.refs().list_some(RefKind::Snapshot, of_disk).await?;
        if let Some(bad) = listing.damaged.into_iter().find(|bad| of_disk(&bad.name)) {
            return Err(bad.error.context(format!("snapshot {}", bad.name)));
        }
        Ok(listing.records)
    }
}
