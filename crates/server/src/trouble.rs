//! Disks that are full, disks that are slow, a slow store: noticed within a second, told in the log
//! when it begins and when it is over, and by the status in between. Field names are documented in
//! docs/cli.md and do not change.

use super::signals::Switch;
use disk::{DiskHealth, Slow};
use engine::Engine;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

/// How often is looked.
const TICK: Duration = Duration::from_secs(1);
/// How long nothing must have happened before it is over.
const CALM: Duration = Duration::from_secs(5);

/// Something that goes on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TroubleView {
    /// How long.
    pub seconds: u64,
    /// What was seen last.
    pub why: String,
}

/// Something that goes on, and with what.
#[derive(Debug)]
pub(crate) struct Ongoing {
    /// The disk; `None` for the store.
    pub(crate) disk: Option<String>,
    /// `full` or `slow`.
    pub(crate) state: &'static str,
    pub(crate) trouble: TroubleView,
}

/// What goes on.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<OpenTroubles>);

#[derive(Debug, Default)]
struct OpenTroubles {
    full: BTreeMap<String, Trouble>,
    slow: BTreeMap<String, Trouble>,
    store: Option<Trouble>,
}

#[derive(Debug)]
struct Trouble {
    since: Instant,
    /// When it was seen last.
    seen: Instant,
    why: String,
}

/// What was seen at one moment.
#[derive(Debug, Default)]
struct StrainSnapshot {
    /// Health of every open disk; nothing of one that nobody could look at.
    disks: BTreeMap<String, Option<DiskHealth>>,
    store: Option<Slow>,
}

/// Something that began or is over, for the log.
#[derive(Debug, Clone, PartialEq)]
enum TroubleEvent {
    Full(String, String),
    RoomAgain(String, u64),
    Slow(String, String),
    QuickAgain(String, u64),
    StoreSlow(String),
    StoreQuickAgain(u64),
}

impl Trouble {
    fn view(&self) -> TroubleView {
        TroubleView { seconds: self.since.elapsed().as_secs(), why: self.why.clone() }
    }

    fn is_calm(&self, now: Instant) -> bool {
        now.duration_since(self.seen) >= CALM
    }

    fn lasted(&self, now: Instant) -> u64 {
        now.duration_since(self.since).as_secs()
    }
}

/// Notes that something was seen; whether it is new.
fn note(list: &mut BTreeMap<String, Trouble>, name: &str, why: String, now: Instant) -> bool {
    if let Some(known) = list.get_mut(name) {
        (known.seen, known.why) = (now, why);
        return false;
    }
    list.insert(name.to_owned(), Trouble { since: now, seen: now, why });
    true
}

fn slowness(slow: &Slow) -> String {
    let seconds = slow.took.as_secs_f64();
    match slow.under_way {
        true => format!("a {} is under way for {seconds:.1} s", slow.what),
        false => format!("a {} took {seconds:.1} s", slow.what),
    }
}

impl OpenTroubles {
    /// Takes in what was seen; gives what began and what is over.
    fn look(&mut self, seen: &StrainSnapshot, now: Instant) -> Vec<TroubleEvent> {
        let mut changes = Vec::new();
        for (name, strain) in &seen.disks {
            let Some(strain) = strain else {
                // What went on may go on.
                if let Some(known) = self.slow.get_mut(name) {
                    known.seen = now;
                }
                continue;
            };
            if let Some(why) = &strain.refused
                && note(&mut self.full, name, why.clone(), now)
            {
                changes.push(TroubleEvent::Full(name.clone(), why.clone()));
            }
            if let Some(slow) = &strain.slow {
                let why = slowness(slow);
                if note(&mut self.slow, name, why.clone(), now) {
                    changes.push(TroubleEvent::Slow(name.clone(), why));
                }
            }
        }
        self.slow.retain(|name, trouble| {
            let over = trouble.is_calm(now);
            if over {
                changes.push(TroubleEvent::QuickAgain(name.clone(), trouble.lasted(now)));
            }
            !over
        });
        // Nobody writes a disk that is not open.
        let closed: Vec<String> = self
            .full
            .iter()
            .filter(|(name, trouble)| trouble.is_calm(now) && !seen.disks.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        changes.extend(closed.iter().filter_map(|name| self.has_room(name, now)));
        match (&seen.store, &mut self.store) {
            (Some(slow), Some(known)) => (known.seen, known.why) = (now, slowness(slow)),
            (Some(slow), None) => {
                let why = slowness(slow);
                self.store = Some(Trouble { since: now, seen: now, why: why.clone() });
                changes.push(TroubleEvent::StoreSlow(why));
            }
            (None, Some(known)) if known.is_calm(now) => {
                changes.push(TroubleEvent::StoreQuickAgain(known.lasted(now)));
                self.store = None;
            }
            (None, _) => {}
        }
        changes
    }

    /// The disks that may have room again.
    fn to_probe(&self, now: Instant) -> Vec<String> {
        let calm = self.full.iter().filter(|(_, trouble)| trouble.is_calm(now));
        calm.map(|(name, _)| name.clone()).collect()
    }

    /// A disk has room again.
    fn has_room(&mut self, name: &str, now: Instant) -> Option<TroubleEvent> {
        // Unless a write was refused meanwhile.
        self.full.get(name).filter(|trouble| trouble.is_calm(now))?;
        let trouble = self.full.remove(name)?;
        Some(TroubleEvent::RoomAgain(name.to_owned(), trouble.lasted(now)))
    }
}

impl TroubleEvent {
    fn log(&self) {
        match self {
            Self::Full(disk, why) => {
                tracing::warn!(disk, why, "the disk is full: its client's writes fail");
            }
            Self::RoomAgain(disk, seconds) => {
                tracing::info!(disk, seconds, "the disk is no longer full");
            }
            Self::Slow(disk, why) => tracing::warn!(disk, why, "the disk is slow"),
            Self::QuickAgain(disk, seconds) => {
                tracing::info!(disk, seconds, "the disk is no longer slow");
            }
            Self::StoreSlow(why) => tracing::warn!(why, "the store is slow"),
            Self::StoreQuickAgain(seconds) => {
                tracing::info!(seconds, "the store is no longer slow");
            }
        }
    }
}

impl Troubles {
    /// Why a disk is full, and why it is slow.
    pub(crate) fn of(&self, disk: &str) -> (Option<TroubleView>, Option<TroubleView>) {
        let state = self.0.lock();
        (state.full.get(disk).map(Trouble::view), state.slow.get(disk).map(Trouble::view))
    }

    /// All that goes on: the store, then what is full, then what is slow.
    pub(crate) fn all(&self) -> Vec<Ongoing> {
        let state = self.0.lock();
        let store = state.store.as_ref().map(|store| (None, "slow", store));
        let full = state.full.iter().map(|(disk, trouble)| (Some(disk), "full", trouble));
        let slow = state.slow.iter().map(|(disk, trouble)| (Some(disk), "slow", trouble));
        let all = store.into_iter().chain(full).chain(slow);
        all.map(|(disk, state, trouble)| Ongoing {
            disk: disk.cloned(),
            state,
            trouble: trouble.view(),
        })
        .collect()
    }

    /// Why the store is slow.
    pub(crate) fn of_store(&self) -> Option<TroubleView> {
        self.0.lock().store.as_ref().map(Trouble::view)
    }
}

/// Looks after the disks of `engine` until `stop`.
pub(crate) async fn follow(troubles: Arc<Troubles>, engine: Arc<Engine>, stop: Switch) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.wait());
    // They may hang with the file system that they ask; looking goes on.
    let mut probes: JoinSet<Vec<String>> = JoinSet::new();
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = tick.tick() => {}
            Some(probed) = probes.join_next() => {
                for name in probed.unwrap_or_default() {
                    let change = troubles.0.lock().has_room(&name, Instant::now());
                    change.iter().for_each(TroubleEvent::log);
                }
                continue;
            }
        }
        let now = Instant::now();
        let wanted = troubles.0.lock().to_probe(now);
        let disks = engine.open.try_look(|disk| {
            let probe = wanted.iter().any(|name| name == disk.name()).then(|| disk.room_probe());
            (disk.strain(), probe)
        });
        let mut seen = StrainSnapshot { store: engine.slow_store(), ..StrainSnapshot::default() };
        let mut to_probe = Vec::new();
        for (name, looked) in disks {
            let (strain, probe) = looked.unzip();
            to_probe.extend(probe.flatten().map(|probe| (name.clone(), probe)));
            seen.disks.insert(name, strain);
        }
        if probes.is_empty() && !to_probe.is_empty() {
            // One after the other: together they would take the room that they look for.
            probes.spawn(async move {
                let mut found = Vec::new();
                for (name, probe) in to_probe {
                    if probe.has_room().await {
                        found.push(name);
                    }
                }
                found
            });
        }
        let changes = troubles.0.lock().look(&seen, now);
        changes.iter().for_each(TroubleEvent::log);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(refused: Option<&str>, slow: Option<u64>) -> StrainSnapshot {
        let slow = slow.map(|seconds| Slow {
            what: "flush",
            took: Duration::from_secs(seconds),
            under_way: seconds > 2,
        });
        let strain = DiskHealth { refused: refused.map(str::to_owned), slow };
        StrainSnapshot { disks: BTreeMap::from([("d".to_owned(), Some(strain))]), store: slow }
    }

    #[test]
    fn a_disk_that_nobody_can_look_at_stays_as_it_was() {
        let (mut state, start) = (OpenTroubles::default(), Instant::now());
        let busy =
            || StrainSnapshot { disks: BTreeMap::from([("d".to_owned(), None)]), store: None };
        state.look(&seen(Some("no room"), Some(2)), start);
        for second in 1..20 {
            let changes = state.look(&busy(), start + Duration::from_secs(second));
            assert!(!changes.iter().any(|change| matches!(change, TroubleEvent::RoomAgain(..))));
            assert!(!changes.iter().any(|change| matches!(change, TroubleEvent::QuickAgain(..))));
        }
        let later = start + Duration::from_secs(19) + CALM;
        let over = TroubleEvent::QuickAgain("d".into(), 24);
        assert_eq!(state.look(&seen(None, None), later), [over]);
    }

    #[test]
    fn a_full_disk_is_told_once_and_again_when_there_is_room() {
        let (mut state, start) = (OpenTroubles::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(state.look(&seen(None, None), start), []);
        let full = TroubleEvent::Full("d".into(), "no room".into());
        assert_eq!(state.look(&seen(Some("no room"), None), at(1)), [full]);
        assert_eq!(state.look(&seen(Some("still none"), None), at(2)), []);
        assert_eq!(state.full["d"].why, "still none");
        // Five seconds without a refusal, then a probe decides.
        assert_eq!(state.look(&seen(None, None), at(6)), []);
        assert!(state.to_probe(at(6)).is_empty() && state.has_room("d", at(6)).is_none());
        assert_eq!(state.look(&seen(None, None), at(7)), []);
        assert_eq!(state.to_probe(at(7)), ["d"]);
        // Refused while it was probed: the answer is out of date.
        assert_eq!(state.look(&seen(Some("no room"), None), at(8)), []);
        assert_eq!(state.has_room("d", at(8)), None);
        let again = TroubleEvent::RoomAgain("d".into(), 12);
        assert_eq!(state.has_room("d", at(13)), Some(again));
        assert!(state.full.is_empty());
        assert_eq!(state.has_room("d", at(14)), None);
    }

    #[test]
    fn a_full_disk_that_is_closed_is_full_no_longer() {
        let (mut state, start) = (OpenTroubles::default(), Instant::now());
        state.look(&seen(Some("no room"), None), start);
        assert_eq!(state.look(&StrainSnapshot::default(), start + CALM / 2), []);
        let again = TroubleEvent::RoomAgain("d".into(), 5);
        assert_eq!(state.look(&StrainSnapshot::default(), start + CALM), [again]);
    }

    #[test]
    fn slowness_is_over_after_a_while_without_it() {
        let (mut state, start) = (OpenTroubles::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        let began = [
            TroubleEvent::Slow("d".into(), "a flush took 2.0 s".into()),
            TroubleEvent::StoreSlow("a flush took 2.0 s".into()),
        ];
        assert_eq!(state.look(&seen(None, Some(2)), start), began);
        assert_eq!(state.look(&seen(None, Some(3)), at(3)), []);
        assert_eq!(state.slow["d"].why, "a flush is under way for 3.0 s");
        assert_eq!(state.look(&seen(None, None), at(7)), []);
        let over = [TroubleEvent::QuickAgain("d".into(), 8), TroubleEvent::StoreQuickAgain(8)];
        assert_eq!(state.look(&seen(None, None), at(8)), over);
        assert_eq!(state.look(&seen(None, None), at(9)), []);
    }
}
