//! Changes of a disk as a whole.

use crate::guest;
use crate::life::{At, Home, Life, Wrong};
use crate::model::{self, BLOCK, Content, SECTOR, State, There};
use async_trait::async_trait;
use block::{ErrorKind, Result};
use disk::{Disk, Ending, Rebase};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{UploadPace, UploadPlan};

/// Lets so many objects through, and then none.
struct Gate(AtomicU64);

#[async_trait]
impl UploadPace for Gate {
    async fn admit(&self, _: u64) {
        let left = |left: u64| left.checked_sub(1);
        if self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left).is_err() {
            std::future::pending::<()>().await;
        }
    }

    fn uploaded(&self, _: u64) {}
}

impl Life {
    /// Any disk that is open and has no guest.
    async fn any_free(&mut self, home: &mut Home) -> Result<Option<(At, Arc<Disk>)>, Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(None) };
        self.detach(home, &at, Ending::Lost).await?;
        Ok(home.0[at.0].open.contains_key(&at.1).then_some((at, disk)))
    }

    fn visible(&self, home: &Home, (server, name): &At) -> Content {
        Arc::new(home.0[*server].open[name].now.clone())
    }

    /// Something was published of a disk, or may have been.
    fn published(&mut self, name: &str, content: &Content, surely: bool) {
        let troubled = self.is_troubled();
        let known = self.known(name);
        // What follows the answer may have failed: the next opening publishes what was before.
        if surely && !troubled {
            known.published.clear();
        }
        known.published.push(State::of(content));
    }

    pub(crate) async fn snapshot(&mut self, home: &Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        let snapshot = format!("s{}", self.fresh());
        self.tell(|| format!("snapshot {}@{snapshot}", at.1));
        let now = self.visible(home, &at);
        let made = disk.snapshot(&snapshot, &()).await;
        self.published(&at.1, &now, made.is_ok());
        let there = if made.is_ok() { There::Yes } else { There::Unknown };
        self.known(&at.1).snapshots.insert(snapshot, (there, now));
        made.map_or_else(|e| self.may_fail("snapshot", &e), |_| Ok(()))
    }

    /// What is written goes up, now and then without an end: then it goes on the next time.
    pub(crate) async fn write_back(&mut self, home: &Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        let given_up_after = self.below(3);
        self.tell(|| format!("write {} back, {given_up_after}", at.1));
        let now = self.visible(home, &at);
        let gate = Arc::new(Gate(AtomicU64::new(match given_up_after {
            0 => 1 + self.below(4),
            _ => u64::MAX,
        })));
        let plan = UploadPlan {
            pack_bytes: 64 << 10,
            at_once: 1 + self.below(2) as usize,
            pace: Some(gate),
            ..UploadPlan::default()
        };
        let done = disk.write_back(plan, &());
        let done = tokio::time::timeout(Duration::from_secs(1), done).await;
        let Ok(done) = done else { return Ok(()) };
        if !matches!(done, Ok(false)) {
            self.published(&at.1, &now, done.is_ok());
        }
        match done {
            Ok(_) if disk.behind().is_some() => Err(format!("{} is behind", at.1)),
            Ok(_) => Ok(()),
            Err(e) => self.may_fail("write-back", &e),
        }
    }

    pub(crate) async fn commit(&mut self, home: &Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        let image = format!("image:{}", self.fresh());
        self.tell(|| format!("commit {} as {image}", at.1));
        let now = self.visible(home, &at);
        let made = disk.commit(&image.parse().unwrap(), &()).await;
        self.published(&at.1, &now, made.is_ok());
        let there = if made.is_ok() { There::Yes } else { There::Unknown };
        self.model.images.insert(image, (there, now));
        made.map_or_else(|e| self.may_fail("commit", &e), |_| Ok(()))
    }

    pub(crate) async fn rollback(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_free(home).await? else { return Ok(()) };
        let sure = self.known(&at.1).snapshots.clone().into_iter();
        let sure = sure.filter(|(_, (there, _))| *there == There::Yes).collect();
        let Some((snapshot, (_, content))) = self.any_of(sure) else { return Ok(()) };
        self.tell(|| format!("roll {} back to {snapshot}", at.1));
        let outcome = disk.rollback(&snapshot).await;
        self.replaced(home, &at, &disk, &content, outcome).await
    }

    pub(crate) async fn reset(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_free(home).await? else { return Ok(()) };
        if self.model.disks[&at.1].was_kept {
            return Ok(());
        }
        self.tell(|| format!("reset {}", at.1));
        let image = self.image_of(&disk);
        let sectors = self.visible(home, &at).len().max(image.len());
        let outcome = disk.reset().await;
        self.replaced(home, &at, &disk, &model::resized(&image, sectors), outcome).await
    }

    /// The whole content of a disk was to become another one.
    pub(crate) async fn replaced(
        &mut self,
        home: &mut Home,
        at: &At,
        disk: &Disk,
        content: &Content,
        outcome: Result<()>,
    ) -> Result<(), Wrong> {
        self.published(&at.1, content, outcome.is_ok());
        let new = State::of(content);
        match outcome {
            Ok(()) => {
                self.known(&at.1).states = vec![new];
                self.reread(home, at, disk).await;
                match home.0[at.0].open.get(&at.1) {
                    Some(open) if open.now != **content => {
                        Err(format!("{} does not show what it was replaced by", at.1))
                    }
                    None if !self.is_troubled() => Err(format!("{} shows nothing", at.1)),
                    _ => Ok(()),
                }
            }
            Err(e) => {
                self.known(&at.1).states.push(new);
                self.reread(home, at, disk).await;
                self.may_fail("rollback or reset", &e)
            }
        }
    }

    pub(crate) async fn grow(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_open(home) else { return Ok(()) };
        let sectors = self.visible(home, &at).len() + 1 + self.below(40) as usize;
        self.tell(|| format!("grow {} to {sectors} sectors", at.1));
        let outcome = disk.grow((sectors * SECTOR) as u64).await;
        let known = self.known(&at.1);
        let states: Vec<_> = known.states.iter().map(|state| state.resized(sectors)).collect();
        let published: Vec<_> =
            known.published.iter().map(|state| state.resized(sectors)).collect();
        known.published.extend(published);
        match outcome {
            Ok(()) => known.states = states,
            Err(_) => known.states.extend(states),
        }
        self.reread(home, &at, &disk).await;
        outcome.or_else(|e| self.may_fail("grow", &e))
    }

    pub(crate) async fn rebase(&mut self, home: &mut Home) -> Result<(), Wrong> {
        let Some((at, disk)) = self.any_free(home).await? else { return Ok(()) };
        let Some((image, new)) = self.any_image() else { return Ok(()) };
        if self.model.disks[&at.1].was_kept {
            return Ok(());
        }
        // What is flushed stays so.
        if !self.flush_this(home, &at, &disk).await? {
            return Ok(());
        }
        let how = if self.below(2) == 0 { Rebase::Refuse } else { Rebase::KeepMine };
        self.tell(|| format!("rebase {} onto {image}, {how:?}", at.1));
        let (old, mine) = (self.image_of(&disk), self.visible(home, &at));
        let sectors = mine.len().max(new.len());
        let [old, mine, new] = [&old, &mine, &new].map(|content| model::resized(content, sectors));
        let outcome = disk.rebase(&image.parse().unwrap(), how).await;
        let is_refused = outcome.as_ref().is_err_and(|e| e.kind() == ErrorKind::Conflict);
        if how == Rebase::Refuse && is_refused && model::may_be_refused(&old, &mine, &new) {
            self.reread(home, &at, &disk).await;
            return Ok(());
        }
        self.published(&at.1, &new, outcome.is_ok());
        // A block that the disk has not changed becomes that of the image; whether it wrote one that is
        // as it was before, nobody remembers here.
        let mut state = State::of(&mine);
        for first in (0..sectors).step_by(BLOCK) {
            let block = first..sectors.min(first + BLOCK);
            if mine[block.clone()] == old[block.clone()] {
                block.for_each(|sector| state.write(sector, new[sector]));
            }
        }
        if how == Rebase::Refuse && outcome.is_ok() {
            match model::rebased(&old, &mine, &new) {
                Some(merged) => state = State::of(&merged),
                None => return Err(format!("{} was rebased in spite of a conflict", at.1)),
            }
        }
        match outcome {
            Ok(_) => {
                let found = guest::content(&disk).await;
                match found {
                    Ok(Some(found)) if state.differs(&found).is_none() => {
                        self.known(&at.1).states = vec![State::of(&Arc::new(found))];
                    }
                    Ok(_) => return Err(format!("{} does not hold what a rebase leaves", at.1)),
                    Err(e) => {
                        self.known(&at.1).states = vec![state];
                        home.0[at.0].open.remove(&at.1);
                        return self.may_fail("reading after a rebase", &e);
                    }
                }
                self.reread(home, &at, &disk).await;
                Ok(())
            }
            Err(e) => {
                self.known(&at.1).states.push(state);
                self.reread(home, &at, &disk).await;
                self.may_fail("rebase", &e)
            }
        }
    }
}
