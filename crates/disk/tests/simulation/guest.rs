//! What guests do with disks.

use crate::life::{At, Home, Life, Wrong};
use crate::model::{self, SECTOR, State};
use block::{Device, Durability, Result, Span, ZeroMode};
use disk::{Disk, Ending};
use std::sync::Arc;
use std::time::Duration;

/// The client of ephemeral disks.
const GUEST: &str = "guest";

/// What a disk shows; none when it shows nothing, or a sector that is not of one piece.
pub(crate) async fn content(disk: &Disk) -> Result<Option<Vec<u64>>> {
    let mut bytes = vec![0; disk.size() as usize];
    disk.read(Span::whole(disk.size()), &mut bytes).await?;
    Ok(model::of_bytes(&bytes))
}

impl Life {
    fn now<'a>(&self, home: &'a mut Home, (server, name): &At) -> &'a mut Vec<u64> {
        &mut home.0[*server].open.get_mut(name).unwrap().now
    }

    /// Has the client of an ephemeral disk come; what it writes is not to be mixed up with what another
    /// one finds.
    async fn come(&mut self, home: &mut Home, at: &At, disk: &Arc<Disk>) -> Result<bool, Wrong> {
        let open = home.0[at.0].open.get_mut(&at.1).unwrap();
        if !self.model.disks[&at.1].is_ephemeral || open.guest.is_some() {
            return Ok(true);
        }
        self.tell(|| format!("a guest comes to {}", at.1));
        match disk.attach(GUEST).await {
            Ok(guest) => open.guest = Some(guest),
            Err(e) => return self.may_fail("attaching", &e).map(|()| false),
        }
        Ok(true)
    }

    pub(crate) async fn write(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        if !self.come(home, &at, &disk).await? {
            return Ok(());
        }
        let all = self.now(home, &at).len();
        let first = self.below(all as u64) as usize;
        let most = (all - first).min(40) as u64;
        let len = self.below(most) as usize + 1;
        let tag = 1000 + self.fresh();
        self.tell(|| format!("write {tag} to {} at {first}, {len} sectors", at.1));
        for sector in first..first + len {
            self.known(&at.1).states.iter_mut().for_each(|state| state.write(sector, tag));
        }
        let span = Span::between((first * SECTOR) as u64, ((first + len) * SECTOR) as u64);
        let bytes = model::to_bytes(&vec![tag; len]);
        let durability = match self.below(8) {
            0 => Durability::Durable,
            _ => Durability::Buffered,
        };
        match disk.write(span, &bytes, durability).await {
            Ok(()) => self.now(home, &at)[first..first + len].fill(tag),
            Err(e) => {
                self.reread(home, &at, &disk).await;
                return self.may_fail("write", &e);
            }
        }
        // A write that is durable takes along what came before.
        if durability == Durability::Durable {
            self.flushed(home, &at);
        }
        Ok(())
    }

    /// After a change that failed: what the disk shows now; closed when it shows nothing.
    pub(crate) async fn reread(&mut self, home: &mut Home, at: &At, disk: &Disk) {
        match content(disk).await {
            Ok(Some(found)) => *self.now(home, at) = found,
            _ => drop(home.0[at.0].open.remove(&at.1)),
        }
    }

    pub(crate) async fn clear(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        if !self.come(home, &at, &disk).await? {
            return Ok(());
        }
        let all = self.now(home, &at).len();
        let first = self.below(all as u64) as usize;
        let len = self.below((all - first) as u64) as usize + 1;
        let mode = ZeroMode { may_punch: self.below(2) == 0, only_if_fast: false };
        self.tell(|| format!("zero {} at {first}, {len} sectors, {mode:?}", at.1));
        for sector in first..first + len {
            self.known(&at.1).states.iter_mut().for_each(|state| state.write(sector, 0));
        }
        let span = Span::between((first * SECTOR) as u64, ((first + len) * SECTOR) as u64);
        match disk.zero(span, mode, Durability::Buffered).await {
            Ok(()) => self.now(home, &at)[first..first + len].fill(0),
            Err(e) => {
                self.reread(home, &at, &disk).await;
                return self.may_fail("zero", &e);
            }
        }
        Ok(())
    }

    pub(crate) async fn flush(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        self.flush_this(home, &at, &disk).await.map(drop)
    }

    /// Whether it was flushed.
    pub(crate) async fn flush_this(
        &mut self,
        home: &mut Home,
        at: &At,
        disk: &Disk,
    ) -> Result<bool, Wrong> {
        self.tell(|| format!("flush {}", at.1));
        match disk.flush().await {
            Ok(()) => {
                self.flushed(home, at);
                Ok(true)
            }
            Err(e) => self.may_fail("flush", &e).map(|()| false),
        }
    }

    fn flushed(&mut self, home: &mut Home, at: &At) {
        let now = Arc::new(self.now(home, at).clone());
        self.known(&at.1).states = vec![State::of(&now)];
    }

    pub(crate) async fn close_any(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, _)) = self.any_open(home) else { return Ok(()) };
        self.close(home, &at).await
    }

    pub(crate) async fn close(&mut self, home: &mut Home, at: &At) -> Result<(), Wrong> {
        self.tell(|| format!("close {}", at.1));
        self.detach(home, at, Ending::Lost).await?;
        let Some(open) = home.0[at.0].open.get(&at.1) else { return Ok(()) };
        let disk = Arc::clone(&open.disk);
        let closed = disk.close().await;
        if closed.is_ok() {
            self.flushed(home, at);
        }
        home.0[at.0].open.remove(&at.1);
        closed.or_else(|e| self.may_fail("close", &e))
    }

    /// Has the guest of an ephemeral disk leave, if there is one.
    pub(crate) async fn detach(
        &mut self,
        home: &mut Home,
        at: &At,
        ending: Ending,
    ) -> Result<(), Wrong> {
        let Some(open) = home.0[at.0].open.get_mut(&at.1) else { return Ok(()) };
        let Some(guest) = open.guest.take() else { return Ok(()) };
        let disk = Arc::clone(&open.disk);
        self.tell(|| format!("the guest of {} leaves, {ending:?}", at.1));
        let outcome = guest.detach(ending).await;
        match ending {
            Ending::Lost => outcome.or_else(|e| self.may_fail("detaching", &e)),
            Ending::Clean => {
                let content = model::resized(&self.image_of(&disk), self.now(home, at).len());
                self.replaced(home, at, &disk, &content, outcome).await
            }
        }
    }

    /// The guest of an ephemeral disk says that it leaves.
    pub(crate) async fn leave(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, _)) = self.any_attached(home) else { return Ok(()) };
        let ending = match self.below(3) {
            1.. if !self.model.disks[&at.1].was_kept => Ending::Clean,
            _ => Ending::Lost,
        };
        self.detach(home, &at, ending).await
    }

    fn any_attached(&mut self, home: &Home) -> Option<(At, Arc<Disk>)> {
        let all = home.0.iter().enumerate().flat_map(|(server, own)| {
            let attached = own.open.iter().filter(|(_, open)| open.guest.is_some());
            attached.map(move |(name, open)| ((server, name.clone()), Arc::clone(&open.disk)))
        });
        self.any_of(all.collect())
    }

    /// A guest that was lost does not come back in time.
    pub(crate) async fn wait_for_guests(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        let attached = home.0[at.0].open[&at.1].guest.is_some();
        if attached || disk.holder().is_none() || self.model.disks[&at.1].was_kept {
            return Ok(());
        }
        self.tell(|| format!("nobody comes to {}", at.1));
        let _ = tokio::time::timeout(Duration::from_secs(31), disk.expire()).await;
        let content = model::resized(&self.image_of(&disk), self.now(home, &at).len());
        let outcome = match disk.holder() {
            None if !disk.has_failed() => Ok(()),
            _ => Err(block::Error::unavailable("it was not reset")),
        };
        self.replaced(home, &at, &disk, &content, outcome).await
    }
}
