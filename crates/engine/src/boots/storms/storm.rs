//! One storm: its boots and what was seen of them, second by second.

use super::views::{
    BootState, BootView, BootWait, GuestsByWait, RecordedBoot, StormMoment, StormSummary,
    StormView, millis,
};
use super::{BootingGuest, SharedList, of_image};
use crate::boots::recording::{FEWEST, LONGEST, QUIET};
use disk::{BootProgress, Image, ReadSoFar, WaitCause, WaitReading};
use std::sync::Arc;
use std::time::Duration;
use store::ManifestId;
use tokio::time::Instant;

/// So many boots of a storm are watched.
pub(super) const MOST_BOOTS: usize = 4096;
/// So many moments of it are kept; when there are more, every other one goes.
pub(super) const MOST_MOMENTS: usize = 240;

/// What is looked at beside the boots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sight {
    /// Bytes that came from the store since the last look.
    pub(super) stored_bytes: u64,
}

pub(super) struct Storm {
    pub(super) number: u64,
    /// Unix seconds.
    began_unix: u64,
    began: Instant,
    boots: Vec<Boot>,
    /// Boots that are not over.
    going_on: usize,
    unwatched: u64,
    lists: Vec<(ManifestId, Arc<SharedList>)>,
    moments: Vec<StormMoment>,
    /// Looks for each moment.
    every: u32,
    /// Looks since the last moment, and what came from the store meanwhile.
    looks: u32,
    stored_bytes: u64,
    waiting: GuestsByWait,
}

struct Boot {
    guest: BootingGuest,
    began: Instant,
    /// What is looked at; none when the boot is over.
    watched: Option<(Arc<Image>, Arc<BootProgress>)>,
    state: BootState,
    list_chunks: Option<u64>,
    read: ReadSoFar,
    /// When that grew last.
    grew: Instant,
    /// Connections of it: a client may have several to one disk.
    connections: usize,
    /// Its waits when it began, when its reading grew last, at the last moment, and at the last look; since it began.
    before: WaitReading,
    at_growth: WaitReading,
    at_moment: (Instant, WaitReading),
    at_look: (Instant, WaitReading),
    now: BootWait,
    first_moment: usize,
    lane: Vec<BootWait>,
}

/// What a guest waited for most of all in a time.
fn most_of(waited: &WaitReading, passed: Duration) -> BootWait {
    let all: Duration = waited.times.iter().sum();
    let most = WaitCause::ALL.into_iter().max_by_key(|cause| waited.of(*cause));
    match most {
        Some(cause) if all * 2 > passed => match cause {
            WaitCause::Queue => BootWait::Queue,
            WaitCause::Store => BootWait::Store,
            WaitCause::Nearby => BootWait::Nearby,
            WaitCause::Disk => BootWait::Disk,
        },
        _ => BootWait::None,
    }
}

impl Boot {
    fn goes_on(&self) -> bool {
        self.state == BootState::Booting
    }

    /// Looks at it; whether it is over now.
    fn look(&mut self) -> bool {
        let now = Instant::now();
        let Some((image, progress)) = &self.watched else { return true };
        let reading = image.waits().reading().since(&self.before);
        let (then, before) = std::mem::replace(&mut self.at_look, (now, reading));
        self.now = most_of(&reading.since(&before), now - then);
        self.list_chunks = progress.all_listed().map(|all| all as u64);
        let read = progress.read_so_far();
        if read != self.read {
            (self.read, self.grew, self.at_growth) = (read, now, reading);
        }
        if now - self.grew >= QUIET {
            self.end(BootState::Done);
        } else if now - self.began >= LONGEST {
            self.end(BootState::TooLong);
        }
        !self.goes_on()
    }

    /// Notes what it waited for since the last moment.
    fn note_moment(&mut self) -> BootWait {
        let (now, reading) = self.at_look;
        let (then, before) = std::mem::replace(&mut self.at_moment, (now, reading));
        let wait = most_of(&reading.since(&before), now - then);
        self.lane.push(wait);
        wait
    }

    fn end(&mut self, state: BootState) {
        self.state = state;
        if let Some((image, progress)) = self.watched.take() {
            image.stop_watching(&progress);
        }
    }

    /// Whether it is told of: who came, looked at a few blocks and left did not boot.
    fn is_told(&self) -> bool {
        self.goes_on() || (self.read.listed + self.read.others) as usize >= FEWEST
    }

    fn view(&self, storm: Instant) -> BootView {
        // What a guest waits for when it has booted is no part of its boot.
        let waited = if self.goes_on() { self.at_look.1 } else { self.at_growth };
        BootView {
            disk: self.guest.disk.clone(),
            client: self.guest.client.clone(),
            image: self.guest.image.clone(),
            began_seconds: millis((self.began - storm).as_secs_f64()),
            seconds: millis(match self.state {
                BootState::Booting => self.began.elapsed().as_secs_f64(),
                _ => (self.grew - self.began).as_secs_f64(),
            }),
            state: self.state,
            list_chunks: self.list_chunks,
            listed_chunks: self.read.listed,
            other_chunks: self.read.others,
            bytes: self.read.bytes,
            waits: waited.requests,
            waited: waited.into(),
            now: self.goes_on().then_some(self.now),
        }
    }
}

impl Storm {
    pub(super) fn new(number: u64, began_unix: u64) -> Self {
        Self {
            number,
            began_unix,
            began: Instant::now(),
            boots: Vec::new(),
            going_on: 0,
            unwatched: 0,
            lists: Vec::new(),
            moments: Vec::new(),
            every: 1,
            looks: 0,
            stored_bytes: 0,
            waiting: GuestsByWait::default(),
        }
    }

    /// Whether none of its boots goes on.
    pub(super) fn is_over(&self) -> bool {
        self.going_on == 0
    }

    pub(super) fn list(&mut self, id: ManifestId) -> Arc<SharedList> {
        of_image(&mut self.lists, id)
    }

    /// A guest begins to boot; gives its number unless there are too many. Another connection to a disk whose guest
    /// boots is one of that guest.
    pub(super) fn begin(
        &mut self,
        guest: BootingGuest,
        image: Arc<Image>,
        progress: &Arc<BootProgress>,
    ) -> Option<usize> {
        let same =
            |boot: &Boot| boot.watched.as_ref().is_some_and(|(of, _)| Arc::ptr_eq(of, &image));
        if let Some(number) = self.boots.iter().position(same) {
            self.boots[number].connections += 1;
            return Some(number);
        }
        if self.boots.len() >= MOST_BOOTS {
            self.unwatched += 1;
            return None;
        }
        image.watch(progress);
        let (now, reading) = (Instant::now(), WaitReading::default());
        self.boots.push(Boot {
            guest,
            began: now,
            connections: 1,
            before: image.waits().reading(),
            at_growth: reading,
            watched: Some((image, Arc::clone(progress))),
            state: BootState::Booting,
            list_chunks: None,
            read: ReadSoFar::default(),
            grew: now,
            at_moment: (now, reading),
            at_look: (now, reading),
            now: BootWait::None,
            first_moment: self.moments.len(),
            lane: Vec::new(),
        });
        self.going_on += 1;
        Some(self.boots.len() - 1)
    }

    /// A client of a boot has left: with its last connection the guest has.
    pub(super) fn leave(&mut self, number: usize) {
        let Some(boot) = self.boots.get_mut(number) else { return };
        boot.connections = boot.connections.saturating_sub(1);
        if boot.connections == 0 && boot.goes_on() && !boot.look() {
            boot.end(BootState::Left);
        }
        self.count();
    }

    fn count(&mut self) {
        self.going_on = self.boots.iter().filter(|boot| boot.goes_on()).count();
        if self.is_over() {
            self.lists = Vec::new();
        }
    }

    /// Looks at all boots that go on.
    pub(super) fn look(&mut self, sight: Sight) {
        self.stored_bytes += sight.stored_bytes;
        self.looks += 1;
        let is_moment = self.looks >= self.every;
        let (mut waiting, mut noted) = (GuestsByWait::default(), GuestsByWait::default());
        for boot in self.boots.iter_mut().filter(|boot| boot.goes_on()) {
            let is_over = boot.look();
            if is_moment {
                noted.count(boot.note_moment());
            }
            if !is_over {
                waiting.count(boot.now);
            }
        }
        self.waiting = waiting;
        self.count();
        if is_moment {
            self.looks = 0;
            self.moments.push(StormMoment {
                at: millis(self.began.elapsed().as_secs_f64()),
                waits: noted,
                stored_bytes: std::mem::take(&mut self.stored_bytes),
            });
            if self.moments.len() >= MOST_MOMENTS {
                self.thin();
            }
        }
    }

    /// Joins every two moments: what was seen in the second stands for both.
    fn thin(&mut self) {
        self.every *= 2;
        let pairs = self.moments.chunks(2);
        self.moments = pairs
            .filter_map(|pair| {
                let last = pair.last()?;
                let stored_bytes = pair.iter().map(|moment| moment.stored_bytes).sum();
                Some(StormMoment { stored_bytes, ..last.clone() })
            })
            .collect();
        for boot in &mut self.boots {
            let first = boot.first_moment;
            let odd = |(at, wait): (usize, &BootWait)| ((first + at) % 2 == 1).then_some(*wait);
            boot.lane = boot.lane.iter().enumerate().filter_map(odd).collect();
            boot.first_moment = first / 2;
        }
    }

    /// What guests waited for at the last look.
    pub(super) fn waiting(&self) -> GuestsByWait {
        self.waiting
    }

    /// The boots that go on.
    pub(super) fn going_on(&self) -> Vec<BootView> {
        let boots = self.boots.iter().filter(|boot| boot.goes_on());
        boots.map(|boot| boot.view(self.began)).collect()
    }

    /// The boots that are told of.
    fn told(&self) -> impl Iterator<Item = &Boot> {
        self.boots.iter().filter(|boot| boot.is_told())
    }

    /// Whether there is anything to tell of it.
    pub(super) fn is_told(&self) -> bool {
        self.told().next().is_some()
    }

    pub(super) fn summary(&self) -> StormSummary {
        let end = |boot: &Boot| boot.grew - self.began;
        let seconds = match self.is_over() {
            true => self.told().map(end).max().unwrap_or_default(),
            false => self.began.elapsed(),
        };
        StormSummary {
            storm: self.number,
            began: self.began_unix,
            seconds: millis(seconds.as_secs_f64()),
            over: self.is_over(),
            watched: self.told().count() as u64,
            unwatched: self.unwatched,
        }
    }

    /// All that is known of it.
    pub(super) fn view(&self) -> StormView {
        let boot = |boot: &Boot| RecordedBoot {
            boot: boot.view(self.began),
            first_moment: boot.first_moment as u32,
            lane: boot.lane.iter().map(|wait| wait.letter()).collect(),
        };
        StormView {
            storm: self.summary(),
            moments: self.moments.clone(),
            boots: self.told().map(boot).collect(),
        }
    }
}
