//! Whether the machine has processors to spare: connections may then look for the next request before
//! they sleep ([`nbd::server::BusyPoll`]).
//!
//! What the kernel counts as idle time decides. Before anybody looks much of the time has to be idle;
//! while somebody does, who takes a processor for it, some of it still: else whoever else has work waits
//! for that processor. A machine that had too little is asked again after a while, and ever later.
//! Pressure stall information does not tell: where processors wake late it counts the waking as waiting.

use super::signals::Switch;
use nbd::Server;
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// The longest that is looked for a request: longer than the slowest processor takes to wake up.
pub(crate) const BUSY_POLL: Duration = Duration::from_micros(200);

/// How often is looked while a connection asks for a processor.
const TICK: Duration = Duration::from_millis(100);
/// The share of all processors' time that is idle before anybody looks, in percent, at least.
const BEFORE: u64 = 20;
/// The same while connections look.
const MEANWHILE: u64 = 7;
/// What a hypervisor may have taken, in percent: more is wanted elsewhere.
const STOLEN: u64 = 2;
/// Ticks until it is tried again after there was too little: at first, and at most.
const PAUSES: (u32, u32) = (10, 640);
/// After so many ticks in a row with enough it is as at first.
const CALM: u32 = 100;

/// How long all processors together did what, in ticks of the kernel's, since the machine began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    idle: u64,
    stolen: u64,
    all: u64,
}

impl Times {
    /// Those of a `/proc/stat`; `None` when it is none.
    fn parse(stat: &str) -> Option<Self> {
        let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
        let mut next = || fields.next()?.parse::<u64>().ok();
        // User, nice, system, idle, waiting for disks, interrupts of two kinds; guests are in the first.
        let mut times = [0; 7];
        for time in &mut times {
            *time = next()?;
        }
        let stolen = next().unwrap_or(0);
        let idle = times[3].checked_add(times[4])?;
        let all = times.iter().try_fold(stolen, |sum, time| sum.checked_add(*time))?;
        Some(Self { idle, stolen, all })
    }

    async fn now() -> Option<Self> {
        let stat = tokio::fs::read_to_string("/proc/stat").await.ok()?;
        Self::parse(&stat)
    }

    /// Whether at least `idle` percent of the time since `before` were idle, and little was stolen.
    fn has_idle(&self, before: &Self, idle: u64) -> bool {
        // Times of a processor that is taken away go with it.
        let since = |now: u64, then: u64| now.saturating_sub(then);
        let all = since(self.all, before.all);
        all > 0
            && since(self.idle, before.idle) * 100 >= all * idle
            && since(self.stolen, before.stolen) * 100 <= all * STOLEN
    }
}

/// What was seen so far.
#[derive(Debug)]
struct Spare {
    before: Option<Times>,
    /// There was enough the last time.
    enough: bool,
    /// Ticks until it is tried again.
    pause: u32,
    /// The same the next time that there is too little.
    next_pause: u32,
    /// Ticks in a row with enough.
    calm: u32,
}

impl Spare {
    const fn new() -> Self {
        Self { before: None, enough: false, pause: 0, next_pause: PAUSES.0, calm: 0 }
    }

    /// Nobody asks: what is to spare next is judged from then on.
    fn rest(&mut self) {
        (self.before, self.enough, self.calm) = (None, false, 0);
        self.pause = self.pause.saturating_sub(1);
    }

    /// A tick later, with these times; whether there are processors to spare until the next one.
    fn judge(&mut self, now: Option<Times>) -> bool {
        let before = std::mem::replace(&mut self.before, now);
        if self.pause > 0 {
            self.pause -= 1;
            return false;
        }
        let (Some(before), Some(now)) = (before, now) else {
            self.enough = false;
            return false;
        };
        let had = self.enough;
        self.enough = now.has_idle(&before, if had { MEANWHILE } else { BEFORE });
        if self.enough {
            self.calm += 1;
            if self.calm >= CALM {
                (self.calm, self.next_pause) = (0, PAUSES.0);
            }
        } else {
            self.calm = 0;
            if had {
                self.pause = self.next_pause;
                self.next_pause = (self.next_pause * 2).min(PAUSES.1);
            }
        }
        self.enough
    }
}

/// Tells the server whether there are processors to spare, until `stop`.
pub(crate) async fn follow(server: Server, stop: Switch) {
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut stopped = std::pin::pin!(stop.wait());
    let mut spare = Spare::new();
    loop {
        tokio::select! {
            () = &mut stopped => return,
            _ = tick.tick() => {}
        }
        if server.wants_processors() {
            server.spare_processors(spare.judge(Times::now().await));
        } else {
            spare.rest();
            server.spare_processors(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Times of a machine that was idle for these percents of so many ticks of 100 each.
    fn ticks(idle: impl IntoIterator<Item = u64>) -> Vec<Option<Times>> {
        let mut now = Times { idle: 0, stolen: 0, all: 0 };
        let mut seen = vec![Some(now)];
        for percent in idle {
            now = Times { idle: now.idle + percent, all: now.all + 100, ..now };
            seen.push(Some(now));
        }
        seen
    }

    /// What is said of them, one after the other.
    fn said(spare: &mut Spare, times: Vec<Option<Times>>) -> Vec<bool> {
        times.into_iter().map(|times| spare.judge(times)).collect()
    }

    #[test]
    fn there_is_something_to_spare_once_much_was_idle_and_while_some_is() {
        let mut spare = Spare::new();
        let said = said(&mut spare, ticks([19, 20, 8, 7, 30]));
        assert_eq!(said, [false, false, true, true, true, true]);
    }

    #[test]
    fn who_had_too_little_is_asked_later_and_later_and_forgiven_when_it_holds() {
        let mut spare = Spare::new();
        for pause in [10, 20, 40, 80, 160, 320, 640, 640] {
            assert_eq!(said(&mut spare, ticks([50, 0])), [false, true, false]);
            let said = said(&mut spare, ticks(vec![50; pause]));
            let (last, paused) = said.split_last().unwrap();
            assert!(paused.iter().all(|enough| !enough) && paused.len() == pause);
            assert!(*last, "after a pause of {pause}");
            spare.rest();
        }
        said(&mut spare, ticks([50; CALM as usize]));
        assert_eq!(spare.next_pause, PAUSES.0);
    }

    #[test]
    fn a_machine_whose_time_is_stolen_has_nothing_to_spare() {
        let before = Times { idle: 0, stolen: 0, all: 0 };
        assert!(Times { idle: 90, stolen: 2, all: 100 }.has_idle(&before, BEFORE));
        assert!(!Times { idle: 90, stolen: 3, all: 100 }.has_idle(&before, BEFORE));
        assert!(!before.has_idle(&before, BEFORE), "no time has passed");
    }

    #[test]
    fn while_nobody_asks_it_begins_anew_but_for_the_pause() {
        let mut spare = Spare::new();
        assert_eq!(said(&mut spare, ticks([50, 0])), [false, true, false]);
        (2..PAUSES.0).for_each(|_| spare.rest());
        assert_eq!(spare.pause, 2);
        assert_eq!(said(&mut spare, ticks([50, 50, 50])), [false, false, true, true]);
        spare.rest();
        assert!(!spare.judge(ticks([])[0]), "nothing to compare with");
    }

    #[test]
    fn the_kernels_times_are_read_with_and_without_the_newer_ones() {
        let stat = "cpu  1 20 300 4000 50000 6 7 8 9 10\ncpu0 1 2 3 4\n";
        assert_eq!(Times::parse(stat), Some(Times { idle: 54000, stolen: 8, all: 54342 }));
        let old = "cpu  1 20 300 4000 50000 6 7\n";
        assert_eq!(Times::parse(old), Some(Times { idle: 54000, stolen: 0, all: 54334 }));
        for bad in ["", "cpu", "cpu  1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 x 5 6 7 8"] {
            assert_eq!(Times::parse(bad), None, "{bad}");
        }
        let most = format!("cpu  1 1 1 {} 1 1 1 1", u64::MAX);
        assert_eq!(Times::parse(&most), None);
    }

    proptest! {
        #[test]
        fn no_times_panic(stat in ".{0,60}", idle in 0u64..=100, a in any::<[u32; 3]>(), b in any::<[u32; 3]>()) {
            let _ = Times::parse(&stat);
            let times = |t: [u32; 3]| Times { idle: t[0].into(), stolen: t[1].into(), all: t[2].into() };
            let _ = times(a).has_idle(&times(b), idle);
        }
    }
}
