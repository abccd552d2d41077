//! How many processors the machine has to spare for busy polling
//! ([`BusyPoll::WhileSpare`](super::busy_poll::BusyPoll)).
//!
//! The idle time that the kernel counts of the processors that this process may use decides. When too little
//! of it is left, other programs are waiting for processors that poll: half of these are taken back, and after
//! a back-off, which doubles each time, one is tried again. Pressure stall information does not tell: where
//! processors wake late it counts the waking as waiting.

use super::busy_poll::Processors;
use block::offload;
use std::collections::VecDeque;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// How often the kernel is asked while a connection wants to poll.
const TICK: Duration = Duration::from_millis(100);
/// When no connection has asked for so long, the kernel is not asked either.
const REST: Duration = Duration::from_millis(500);
/// Idle time before the first connection polls, in hundredths of a processor: a client and a server that
/// sleep in turns leave as much.
const FIRST: u64 = 40;
/// Idle time before one more polls beside others.
const NEXT: u64 = 100;
/// Idle time below which fewer may poll.
const KEPT: u64 = 15;
/// Steal time above which none is to spare, in percent: the hypervisor needs the processors elsewhere.
const STOLEN: u64 = 2;
/// Ticks that are judged together: the kernel counts in hundredths of a second.
const SPAN: usize = 3;
/// The back-off after processors were taken back: the first, and the longest.
const BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(64));
/// After so many times the back-off without another one, the next one is the first again.
const FORGIVEN: u32 = 10;

/// What processors did since the machine began, in hundredths of a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ProcessorTimes {
    /// How many they are.
    processors: u64,
    idle: u64,
    stolen: u64,
    all: u64,
    /// How often the process was throttled by the quota of its control groups.
    throttled: u64,
}

impl ProcessorTimes {
    /// The times of the processors that are `mine`, from a `/proc/stat`; `None` when it is none.
    fn parse(stat: &str, mine: impl Fn(usize) -> bool) -> Option<Self> {
        let mut sum = Self { processors: 0, idle: 0, stolen: 0, all: 0, throttled: 0 };
        for line in stat.lines() {
            let Some((number, times)) = line.strip_prefix("cpu").and_then(|l| l.split_once(' '))
            else {
                continue;
            };
            // The first line is the sum of all.
            if number.is_empty() || !mine(number.parse().ok()?) {
                continue;
            }
            // User, nice, system, idle, waiting for disks, interrupts of two kinds, stolen; guests are in
            // the first two.
            let mut fields = [0u64; 8];
            for (field, text) in fields.iter_mut().zip(times.split_whitespace()) {
                *field = text.parse().ok()?;
            }
            let all = fields.iter().try_fold(sum.all, |all, field| all.checked_add(*field))?;
            sum.processors += 1;
            sum.idle = sum.idle.checked_add(fields[3])?.checked_add(fields[4])?;
            sum.stolen = sum.stolen.checked_add(fields[7])?;
            sum.all = all;
        }
        (sum.processors > 0).then_some(sum)
    }

    /// Their idle time since `before`, in hundredths of a processor; `None` when that cannot be told, and when
    /// steal time or throttling says that there is none to spare.
    fn idle_since(&self, before: &Self) -> Option<u64> {
        // What a processor did that has gone is not in the sum any more.
        let since = |now: u64, then: u64| now.checked_sub(then);
        let all = since(self.all, before.all).filter(|all| *all > 0)?;
        let stolen = since(self.stolen, before.stolen)?;
        // One that is counted is not yet a share.
        let is_stolen = stolen > 1 && stolen * 100 > all * STOLEN;
        if self.processors != before.processors || self.throttled != before.throttled || is_stolen {
            return None;
        }
        Some(since(self.idle, before.idle)? * self.processors * 100 / all)
    }
}

/// Reads these times from the kernel.
#[derive(Debug)]
struct ProcessorReader {
    /// `cpu.stat` of the process's control group (v2) and of each above it.
    groups: Vec<PathBuf>,
}

impl ProcessorReader {
    fn new() -> Self {
        const ALL: &str = "/sys/fs/cgroup";
        let own = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let own = Path::new(ALL).join(own);
        let groups = own.ancestors().take_while(|path| path.starts_with(ALL));
        Self { groups: groups.map(|path| path.join("cpu.stat")).collect() }
    }

    fn now(&self) -> Option<ProcessorTimes> {
        let mine = rustix::thread::sched_getaffinity(None).ok()?;
        let is_mine = |number| number < rustix::thread::CpuSet::MAX_CPU && mine.is_set(number);
        let times = ProcessorTimes::parse(&std::fs::read_to_string("/proc/stat").ok()?, is_mine)?;
        let stats = self.groups.iter().filter_map(|path| std::fs::read_to_string(path).ok());
        let throttled = stats.map(|stat| throttled(&stat)).fold(0, u64::wrapping_add);
        // In a container they may be numbered otherwise.
        (times.processors == u64::from(mine.count()))
            .then_some(ProcessorTimes { throttled, ..times })
    }
}

/// `nr_throttled` of a control group, in its `cpu.stat`.
fn throttled(stat: &str) -> u64 {
    let count = stat.lines().find_map(|line| line.strip_prefix("nr_throttled "));
    count.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
}

/// How many may poll, and what that was judged by.
#[derive(Debug)]
struct SpareProcessors {
    /// So many at most, however many are idle.
    most: usize,
    /// So many now.
    spare: usize,
    /// The times of the last ticks with this number.
    seen: VecDeque<ProcessorTimes>,
    /// When processors were taken back last, and the back-off from then on.
    refused: Option<(Instant, Duration)>,
    /// More were allowed since.
    tried: bool,
}

impl SpareProcessors {
    const fn new(most: usize) -> Self {
        Self { most, spare: 0, seen: VecDeque::new(), refused: None, tried: false }
    }

    /// Nobody polls: begins anew when somebody wants to.
    fn rest(&mut self) {
        self.spare = 0;
        self.seen.clear();
    }

    fn change(&mut self, spare: usize, now: ProcessorTimes) {
        self.spare = spare;
        self.seen.clear();
        self.seen.push_back(now);
    }

    /// Judges the times of a tick: gives how many processors are to spare until the next one.
    fn judge(&mut self, at: Instant, now: Option<ProcessorTimes>) -> usize {
        let Some(now) = now else {
            self.rest();
            return 0;
        };
        if let Some(before) = self.seen.front() {
            let ticks = self.seen.len();
            let idle = now.idle_since(before);
            if self.spare > 0 && ticks == SPAN && idle.is_none_or(|idle| idle < KEPT) {
                self.refuse(at);
                self.change(self.spare / 2, now);
                return self.spare;
            }
            let wanted = if self.spare == 0 { FIRST } else { NEXT };
            let waited = self.refused.is_none_or(|(since, pause)| at - since >= pause);
            if self.spare < self.most && waited && idle.is_some_and(|idle| idle >= wanted) {
                self.tried = true;
                self.change(self.spare + 1, now);
                return self.spare;
            }
            if ticks == SPAN {
                self.seen.pop_front();
            }
        }
        self.seen.push_back(now);
        self.spare
    }

    fn refuse(&mut self, at: Instant) {
        let pause = match self.refused {
            Some((_, pause)) if !self.tried => pause,
            Some((since, pause)) if at - since < pause * FORGIVEN => (pause * 2).min(BACK_OFF.1),
            _ => BACK_OFF.0,
        };
        (self.refused, self.tried) = (Some((at, pause)), false);
    }
}

/// Says how many of the `processors` are to spare, by the idle time that the kernel counts, until `stop`; from
/// then on none.
pub async fn spare_while_idle(processors: Processors, stop: impl Future<Output = ()>) {
    let source = Arc::new(ProcessorReader::new());
    let now = move || {
        let source = Arc::clone(&source);
        async move { offload(move || Ok(source.now())).await.ok().flatten() }
    };
    tokio::select! {
        () = stop => processors.set_spare(0),
        () = watch(&processors, now) => {}
    }
}

/// The same for ever, with times from `now`.
async fn watch<T: Future<Output = Option<ProcessorTimes>>>(
    processors: &Processors,
    now: impl Fn() -> T,
) {
    let mut spare = SpareProcessors::new(processors.most());
    loop {
        processors.asked().await;
        let mut asked = Instant::now();
        while asked.elapsed() < REST {
            processors.set_spare(spare.judge(Instant::now(), now().await));
            tokio::time::sleep(TICK).await;
            if tokio::time::timeout(Duration::ZERO, processors.asked()).await.is_ok() {
                asked = Instant::now();
            }
        }
        spare.rest();
        processors.set_spare(0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::busy_poll::BusyPoll;
    use super::*;
    use proptest::prelude::*;

    /// A machine whose idle time a test sets.
    struct Machine {
        at: Instant,
        times: ProcessorTimes,
        spare: SpareProcessors,
    }

    impl Machine {
        fn new(processors: u64) -> Self {
            let times = ProcessorTimes { processors, idle: 0, stolen: 0, all: 0, throttled: 0 };
            Self { at: Instant::now(), times, spare: SpareProcessors::new(processors as usize / 2) }
        }

        /// A tick with so much idle time, in hundredths of a processor; gives how many may poll.
        fn tick(&mut self, idle: u64) -> usize {
            let judged = self.spare.judge(self.at, Some(self.times));
            self.at += TICK;
            // In counts of a hundredth of a second.
            self.times.idle += idle / 10;
            self.times.all += self.times.processors * 10;
            judged
        }

        /// Many such ticks; gives the last number.
        fn ticks(&mut self, idle: u64, count: usize) -> usize {
            (0..count).fold(0, |_, _| self.tick(idle))
        }
    }

    #[test]
    fn one_may_poll_once_enough_is_idle_and_while_something_is() {
        let mut machine = Machine::new(2);
        assert_eq!(machine.ticks(30, 20), 0, "too little");
        assert_eq!(machine.ticks(100, 20), 1);
        assert_eq!(machine.ticks(20, 100), 1, "something is left, and half of all is the most");
        machine.ticks(0, 10);
        assert_eq!(machine.tick(0), 0);
    }

    #[test]
    fn as_many_poll_as_leave_something_idle() {
        let mut machine = Machine::new(64);
        // Each takes one of the twelve that are idle.
        let mut may = 0;
        for _ in 0..100 {
            may = machine.tick(1200u64.saturating_sub(may as u64 * 100));
        }
        assert!((6..=12).contains(&may), "{may}");
    }

    #[test]
    fn the_back_off_doubles_and_is_forgotten_when_a_try_holds() {
        let mut machine = Machine::new(2);
        let refuse = |machine: &mut Machine| {
            while machine.tick(100) == 0 {}
            while machine.tick(0) == 1 {}
            let refused = machine.at;
            while machine.tick(100) == 0 {}
            (machine.at - refused).as_secs_f64().round() as u64
        };
        for pause in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(refuse(&mut machine), pause);
        }
        machine.ticks(100, 6400);
        assert_eq!(refuse(&mut machine), 1);
    }

    #[test]
    fn processors_that_are_wanted_elsewhere_are_not_to_spare() {
        let before = ProcessorTimes { processors: 2, idle: 0, stolen: 0, all: 0, throttled: 3 };
        let idle = |change: fn(&mut ProcessorTimes)| {
            let mut now = ProcessorTimes { idle: 10, all: 20, ..before };
            change(&mut now);
            now.idle_since(&before)
        };
        assert_eq!(idle(|_| ()), Some(100));
        assert_eq!(idle(|now| now.stolen = 1), Some(100), "no more than the kernel can count");
        assert_eq!(idle(|now| now.stolen = 2), None, "a hypervisor took them");
        assert_eq!(idle(|now| now.throttled = 4), None, "this process may use no more");
        assert_eq!(idle(|now| now.processors = 3), None, "they are others");
        assert_eq!(idle(|now| now.all = 0), None, "no time has passed");
    }

    #[test]
    fn the_kernels_times_are_those_of_this_process_own_processors() {
        let stat = "cpu  9 9 9 9 9 9 9 9 9 9\ncpu0 1 20 300 4000 50000 6 7 8 9 10\n\
            cpu1 1 1 1 1 1 1 1 1 0 0\ncpu2 5 5 5 5 5 5 5\nintr 1 2 3\n";
        let times = |mine: &[usize]| ProcessorTimes::parse(stat, |number| mine.contains(&number));
        let first =
            ProcessorTimes { processors: 1, idle: 54000, stolen: 8, all: 54342, throttled: 0 };
        assert_eq!(times(&[0]), Some(first));
        let both =
            ProcessorTimes { processors: 2, idle: 54010, stolen: 8, all: 54377, throttled: 0 };
        assert_eq!(times(&[0, 2]), Some(both), "an older kernel tells less");
        assert_eq!(times(&[7]), None);
        for bad in ["", "cpu", "cpu  1 2 3", "cpux 1 2", "cpu0 1 2 3 x 5 6 7 8"] {
            assert_eq!(ProcessorTimes::parse(bad, |_| true), None, "{bad}");
        }
        let most = format!("cpu0 1 1 1 {} 1 1 1 1", u64::MAX);
        assert_eq!(ProcessorTimes::parse(&most, |_| true), None);
        assert_eq!(throttled("usage_usec 7\nnr_periods 5\nnr_throttled 12\n"), 12);
        assert_eq!(throttled("usage_usec 7\n"), 0);
    }

    #[test]
    fn this_machine_tells_its_times() {
        let Some(times) = ProcessorReader::new().now() else {
            return eprintln!("skipped: /proc/stat does not tell of this process' processors here");
        };
        let processors = std::thread::available_parallelism().unwrap().get() as u64;
        assert!(times.processors >= processors && times.all >= times.idle, "{times:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn processors_are_given_while_they_are_asked_for_and_idle() {
        let processors = Processors::new(4);
        let start = Instant::now();
        // Of four processors three are idle, but for the third second, in which none is.
        let now = || {
            let passed = start.elapsed().as_millis() as u64 / 10;
            let idle = 3 * (passed.min(200) + passed.saturating_sub(300));
            let all = 4 * passed;
            std::future::ready(Some(ProcessorTimes {
                processors: 4,
                idle,
                stolen: 0,
                all,
                throttled: 0,
            }))
        };
        let follow = watch(&processors, now);
        let client = async {
            let mut given = [0; 6];
            for tick in 0..5000 {
                // Nobody asks in the fifth second.
                let second = tick / 1000;
                if second != 4 && processors.take(BusyPoll::DEFAULT).is_some() {
                    given[second] += 1;
                }
                if second == 4 && tick % 1000 == 999 {
                    given[5] = i32::from(processors.may(BusyPoll::DEFAULT));
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            given
        };
        let given = tokio::select! { given = client => given, () = follow => unreachable!() };
        assert!(given[0] > 500 && given[1] == 1000, "{given:?}");
        assert!(given[2] < 900, "nothing is idle: {given:?}");
        assert!(given[3] > 0, "again: {given:?}");
        assert_eq!(given[4..], [0, 0], "nobody asks");
    }

    proptest! {
        #[test]
        fn no_times_panic(stat in "(cpu[0-9]{0,3} [0-9 ]{0,40}\n|.{0,20}\n){0,4}", a in any::<[u32; 5]>(), b in any::<[u32; 5]>()) {
            let _ = ProcessorTimes::parse(&stat, |number| number % 2 == 0);
            let times = |[processors, idle, stolen, all, throttled]: [u32; 5]| ProcessorTimes {
                processors: u64::from(processors % 1024),
                idle: idle.into(),
                stolen: stolen.into(),
                all: all.into(),
                throttled: throttled.into(),
            };
            let _ = times(a).idle_since(&times(b));
        }
    }
}
