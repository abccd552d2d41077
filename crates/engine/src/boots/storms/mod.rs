//! Boots watched: who boots now, how far each guest is and what it waits for; and the last storms, kept in memory.
//!
//! A storm begins when a guest boots and none did, and ends with the last boot that began meanwhile. While it goes on
//! it is looked at once a second; while nobody boots, nothing is done.
//!
//! | module | concept |
//! |---|---|
//! | `storm` | one storm: its boots and what was seen of them, second by second |
//! | [`views`] | what is told of them |

mod storm;
pub mod views;

use self::storm::{Sight, Storm};
use self::views::{BootsView, StormView};
use crate::boots::recording::QUIET;
use block::Result;
use disk::{BootProgress, Image, ListedChunks};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use store::{Clock, ManifestId};
use tokio::time::{Instant, MissedTickBehavior};

/// How often is looked.
const TICK: Duration = Duration::from_secs(1);
/// So many storms are kept.
const KEPT: usize = 4;

/// A guest that begins to boot.
#[derive(Debug, Clone)]
pub struct BootingGuest {
    /// Its disk.
    pub disk: String,
    /// Who uses it.
    pub client: String,
    /// The image version that the disk stands on.
    pub image: String,
}

/// The boot list of an image, looked up once for the boots of a storm. An image that has none may have got one by its
/// first boots: after a while it is looked up again.
#[derive(Debug, Default)]
pub(super) struct SharedList(tokio::sync::Mutex<Option<(Instant, Option<Arc<ListedChunks>>)>>);

impl SharedList {
    /// What is known, or what `look_up` finds.
    pub(super) async fn get(
        &self,
        look_up: impl Future<Output = Result<Option<Arc<ListedChunks>>>>,
    ) -> Result<Option<Arc<ListedChunks>>> {
        let mut known = self.0.lock().await;
        if let Some((at, list)) = &*known
            && (list.is_some() || at.elapsed() < QUIET)
        {
            return Ok(list.clone());
        }
        let list = look_up.await?;
        *known = Some((Instant::now(), list.clone()));
        Ok(list)
    }
}

/// The storms of one server.
pub(super) struct Storms {
    clock: Arc<dyn Clock>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    /// The newest last; it alone may go on.
    storms: VecDeque<Storm>,
    next: u64,
}

/// A boot that is watched; the client has left when this is dropped.
pub struct WatchedBoot {
    storms: Arc<Storms>,
    storm: u64,
    number: usize,
}

impl std::fmt::Debug for WatchedBoot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "WatchedBoot({}.{})", self.storm, self.number)
    }
}

impl Drop for WatchedBoot {
    fn drop(&mut self) {
        let mut kept = self.storms.kept.lock();
        if let Some(storm) = kept.storms.iter_mut().find(|storm| storm.number == self.storm) {
            storm.leave(self.number);
        }
    }
}

/// What follows from the beginning of a boot.
pub(super) struct BegunBoot {
    /// `None` when the storm has too many already.
    pub(super) boot: Option<WatchedBoot>,
    /// The number of its storm, which begins: somebody has to [`follow`](Storms::follow) it.
    pub(super) begins: Option<u64>,
    /// Somebody has to look up what the boot list names, if nobody has.
    pub(super) list: Arc<SharedList>,
    pub(super) progress: Arc<BootProgress>,
}

impl Storms {
    /// Nobody boots yet.
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, kept: Mutex::default() }
    }

    /// A guest begins to boot from an image.
    pub(super) fn begin(self: &Arc<Self>, guest: BootingGuest, image: Arc<Image>) -> BegunBoot {
        let mut kept = self.kept.lock();
        let is_first = kept.storms.back().is_none_or(Storm::is_over);
        if is_first {
            kept.storms.retain(Storm::is_told);
            let number = kept.next;
            kept.next += 1;
            if kept.storms.len() == KEPT {
                kept.storms.pop_front();
            }
            kept.storms.push_back(Storm::new(number, self.clock.now()));
        }
        let progress = Arc::<BootProgress>::default();
        let Some(storm) = kept.storms.back_mut() else {
            return BegunBoot { boot: None, begins: None, list: Arc::default(), progress };
        };
        let list = storm.list(image.manifest().id());
        let (number, storm) = (storm.begin(guest, image, &progress), storm.number);
        let watched = |number| WatchedBoot { storms: Arc::clone(self), storm, number };
        BegunBoot { boot: number.map(watched), begins: is_first.then_some(storm), list, progress }
    }

    /// Looks at a storm until it is over; `stored_bytes` says what was read from the store since the server began.
    pub(super) async fn follow(self: Arc<Self>, storm: u64, stored_bytes: impl Fn() -> u64 + Send) {
        let mut tick = tokio::time::interval_at(Instant::now() + TICK, TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before = stored_bytes();
        loop {
            tick.tick().await;
            let now = stored_bytes();
            let sight = Sight { stored_bytes: now.saturating_sub(before) };
            before = now;
            let mut kept = self.kept.lock();
            // It may have ended between two looks, and another one have begun, which somebody else follows.
            let Some(storm) = kept.storms.back_mut().filter(|newest| newest.number == storm) else {
                return;
            };
            storm.look(sight);
            if storm.is_over() {
                return;
            }
        }
    }

    /// Who boots now, at most so many; and which storms are kept.
    pub(super) fn now(&self, most: usize) -> BootsView {
        let kept = self.kept.lock();
        let told = kept.storms.iter().rev().filter(|storm| storm.is_told());
        let storms = told.map(Storm::summary).collect();
        let last = kept.storms.back().filter(|storm| !storm.is_over());
        let mut boots = last.map(Storm::going_on).unwrap_or_default();
        let booting = boots.len() as u64;
        boots.sort_by(|a, b| a.began_seconds.total_cmp(&b.began_seconds));
        boots.truncate(most);
        let waits = last.map(Storm::waiting).unwrap_or_default();
        BootsView { booting, waits, boots, storms }
    }

    /// A storm that is kept.
    pub(super) fn storm(&self, number: u64) -> Option<StormView> {
        let kept = self.kept.lock();
        kept.storms.iter().find(|storm| storm.number == number).map(Storm::view)
    }
}

/// The list of a storm that an image has, for its boots.
pub(super) fn of_image(
    lists: &mut Vec<(ManifestId, Arc<SharedList>)>,
    id: ManifestId,
) -> Arc<SharedList> {
    match lists.iter().find(|(known, _)| *known == id) {
        Some((_, list)) => Arc::clone(list),
        None => {
            let list = Arc::<SharedList>::default();
            lists.push((id, Arc::clone(&list)));
            list
        }
    }
}

#[cfg(test)]
mod tests;
