//! Disks are made, opened, moved between servers, and removed.

use crate::guest;
use crate::life::{At, Home, Life, Open, Wrong};
use crate::model::{self, Disk as Known, SECTOR, There};
use block::{ErrorKind, Result};
use disk::{CreateOptions, Disk, Mode};
use std::sync::Arc;

impl Life {
    pub(crate) async fn create(&mut self, home: &Home) -> Result<(), Wrong> {
        let Some((image, content)) = self.any_image() else { return Ok(()) };
        let name = format!("disk{}", self.fresh());
        let sectors = content.len() + [0, 0, 9][self.below(3) as usize];
        let is_ephemeral = self.below(4) == 0;
        let server = self.any_server(home);
        self.tell(|| format!("create {name} from {image} on {server}, {is_ephemeral}"));
        let content = model::resized(&content, sectors);
        self.model.disks.insert(name.clone(), Known::new(&content, is_ephemeral, server));
        let mode = if is_ephemeral { Mode::Ephemeral } else { Mode::Persistent };
        let options = CreateOptions { size: Some((sectors * SECTOR) as u64), mode };
        let disks = &home.0[server].disks;
        match disks.create(&name, &image.parse().unwrap(), options).await {
            Ok(_) => self.known(&name).there = There::Yes,
            Err(e) => return self.may_fail("create", &e),
        }
        Ok(())
    }

    /// Most of what happens, happens with the first one.
    fn any_server(&mut self, home: &Home) -> usize {
        match self.below(4) {
            0 => home.0.len() - 1,
            _ => 0,
        }
    }

    /// Any disk that may be there.
    fn any_disk(&mut self) -> Option<String> {
        let there = self.model.disks.iter().filter(|(_, disk)| disk.there != There::No);
        let names = there.map(|(name, _)| name.clone()).collect();
        self.any_of(names)
    }

    pub(crate) async fn open_any(&mut self, home: &mut Home) -> Result<(), Wrong> {
        match self.any_disk() {
            Some(name) if !home.is_open(&name) => self.open(home, &name).await,
            _ => Ok(()),
        }
    }

    /// Opens a disk where it is: what it holds must be what it may hold.
    pub(crate) async fn open(&mut self, home: &mut Home, name: &str) -> Result<(), Wrong> {
        let failed_syncs = self.machine.failed_syncs();
        let opened = self.find(home, name).await;
        if self.machine.failed_syncs() > failed_syncs {
            // What was noted of its last writes counts for nothing from then on: it is what storage has of it.
            self.answered.retain(|(_, disk), _| disk != name);
        }
        let (server, disk) = match opened {
            Ok(found) => found,
            Err(e) => {
                let unknown = self.known(name).there == There::Unknown;
                let gone = matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Conflict);
                self.tell(|| format!("open {name}: {e}"));
                return match self.is_troubled() || unknown && gone {
                    true => Ok(()),
                    false => Err(format!("opening {name}: {e}")),
                };
            }
        };
        let found = match guest::content(&disk).await {
            Ok(found) => found.ok_or_else(|| format!("{name}: a sector is torn"))?,
            Err(e) => return self.may_fail("reading a disk", &e),
        };
        let known = self.known(name);
        let differs = known.states.iter().map(|state| state.differs(&found)).collect::<Vec<_>>();
        known.states.retain(|state| state.differs(&found).is_none());
        if known.states.is_empty() {
            return Err(format!("{name} lost what was flushed: sectors {differs:?}"));
        }
        known.there = There::Yes;
        if let Some(before) = self.answered.remove(&(server, name.to_owned()))
            && before != found
        {
            return Err(format!("{name} lost what was answered, and only its process was killed"));
        }
        // A process that is killed while it opens it has published nothing else than was.
        let open = Open { disk, now: found, guest: None };
        home.0[server].open.insert(name.to_owned(), open);
        Ok(())
    }

    /// Opens a disk where it is, or takes it where it may be taken.
    async fn find(&mut self, home: &Home, name: &str) -> Result<(usize, Arc<Disk>)> {
        let Some(server) = self.known(name).server else {
            let server = self.any_server(home);
            // What is half kept under another name is first to be kept.
            let server = match self.is_half_kept(server, name) {
                true => home.0.len() - 1 - server,
                false => server,
            };
            self.tell(|| format!("take the released {name} for {server}"));
            let disk = self.take_here(home, server, name, false).await;
            // Whoever fails may have it.
            self.known(name).server = Some(server);
            return disk.map(|disk| (server, disk));
        };
        self.tell(|| format!("open {name} on {server}"));
        let error = match home.0[server].disks.open(name).await {
            Ok(disk) => {
                self.known(name).taker = None;
                return Ok((server, disk));
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Fenced) => e,
            Err(e) => return Err(e),
        };
        self.tell(|| format!("open: {error}"));
        if let Some(taker) = self.known(name).taker
            && error.kind() == ErrorKind::Fenced
        {
            let left = self.known(name).taken_by(taker);
            self.model.left.insert((server, name.to_owned()), left);
            return Ok((taker, home.0[taker].disks.open(name).await?));
        }
        // It was released, or is not known to have been; a taking that was interrupted may have left its
        // directory, which another one replaces.
        match self.take_here(home, server, name, true).await {
            Err(other) if other.kind() == ErrorKind::NotFound => Err(error),
            other => other.map(|disk| (server, disk)),
        }
    }

    fn is_half_kept(&self, server: usize, name: &str) -> bool {
        let left = self.model.left.get(&(server, name.to_owned()));
        left.is_some_and(|left| left.new.is_some())
    }

    /// Takes a disk and opens it.
    async fn take_here(
        &mut self,
        home: &Home,
        server: usize,
        name: &str,
        force: bool,
    ) -> Result<Arc<Disk>> {
        let disks = &home.0[server].disks;
        let taken = match disks.take(name, force).await {
            // What is left of an earlier time is not what the store has.
            Err(e) if e.kind() == ErrorKind::Conflict => match disks.open(name).await {
                Err(e) if e.kind() == ErrorKind::Fenced => {
                    self.tell(|| format!("remove what is left of {name}"));
                    self.model.left.remove(&(server, name.to_owned()));
                    disks.remove(name).await?;
                    disks.take(name, force).await
                }
                Err(_) => Err(e),
                Ok(disk) => return Ok(disk),
            },
            other => other,
        };
        taken?;
        disks.open(name).await
    }

    /// Gives a disk up, so that what it holds is in the store alone.
    pub(crate) async fn release(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        drop(disk);
        self.close(home, &at).await?;
        let (server, name) = at;
        self.tell(|| format!("release {name}"));
        let states = self.known(&name).states.clone();
        let left = self.model.left.iter_mut().filter(|((_, of), _)| *of == name);
        left.for_each(|(_, left)| left.is_given_up = true);
        let released = home.0[server].disks.release(&name).await;
        let known = self.known(&name);
        match released {
            Ok(()) => {
                known.server = None;
                known.there = There::Yes;
                known.published = states;
                Ok(())
            }
            Err(e) => {
                // It may have been published: any state that it may have had.
                known.published.extend(states);
                self.may_fail("release", &e)
            }
        }
    }

    /// Another server takes a disk by force: it goes on with what was published.
    pub(crate) async fn take(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        drop(disk);
        let (server, name) = at.clone();
        let other = home.0.len() - 1 - server;
        let left = (other, name.clone());
        if self.model.left.contains_key(&left) {
            return Ok(());
        }
        match self.below(2) {
            0 => self.close(home, &at).await?,
            _ => drop(home.0[server].open.remove(&name)),
        }
        self.tell(|| format!("{other} takes {name} from {server}"));
        let taken = self.take_here(home, other, &name, true).await.map(drop);
        match taken {
            Ok(()) => {
                let left = self.known(&name).taken_by(other);
                self.model.left.insert((server, name.clone()), left);
                self.is_fenced(home, &at).await?;
                self.open(home, &name).await
            }
            Err(e) => {
                self.known(&name).taker = Some(other);
                self.may_fail("take", &e)
            }
        }
    }

    /// A disk that was taken is not opened any more by who lost it.
    async fn is_fenced(&mut self, home: &Home, (server, name): &At) -> Result<(), Wrong> {
        match home.0[*server].disks.open(name).await {
            Ok(_) => Err(format!("{name} is with two servers")),
            Err(e) if e.kind() == ErrorKind::Fenced => Ok(()),
            Err(e) => self.may_fail("opening a disk that was taken", &e),
        }
    }

    /// What is left of a disk that was taken becomes one of its own.
    pub(crate) async fn keep(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let all = self.model.left.keys().cloned().collect();
        let Some((server, name)) = self.any_of(all) else { return Ok(()) };
        let left = self.model.left[&(server, name.clone())].clone();
        let new = match &left.new {
            Some(new) => new.clone(),
            None => format!("disk{}", self.fresh()),
        };
        self.tell(|| format!("keep what {server} has of {name} as {new}"));
        let old = self.model.disks[&name].clone();
        let mut known = old.clone();
        known.there = There::Unknown;
        known.server = Some(server);
        known.states = left.states;
        known.published = left.published;
        known.snapshots.clear();
        known.was_kept = true;
        let kept = home.0[server].disks.keep(&name, &new).await;
        let at = (server, name);
        match kept {
            Ok(_) => {
                known.there = There::Yes;
                self.model.disks.insert(new.clone(), known);
                self.model.left.remove(&at);
                self.open(home, &new).await
            }
            Err(e) => {
                self.tell(|| format!("keep: {e}"));
                // Whoever has the disk keeps in the store what this stands on, as long as it is there.
                let is_held = old.there == There::Yes
                    && !left.is_given_up
                    && old.server.is_some_and(|by| by != at.0);
                // Only who repeats it has it.
                self.model.left.get_mut(&at).unwrap().new = Some(new);
                match self.is_troubled() || !is_held {
                    true => Ok(()),
                    false => Err(format!("keeping {}: {e}", at.1)),
                }
            }
        }
    }

    pub(crate) async fn remove_disk(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some(((server, name), disk)) = self.any_open(home) else { return Ok(()) };
        home.0[server].open.remove(&name);
        drop(disk);
        self.tell(|| format!("remove {name}"));
        let removed = home.0[server].disks.remove(&name).await;
        let known = self.known(&name);
        known.there = if removed.is_ok() { There::No } else { There::Unknown };
        known.snapshots.values_mut().for_each(|(there, _)| *there = There::Unknown);
        removed.or_else(|e| self.may_fail("remove", &e))
    }
}
