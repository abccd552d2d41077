//! What happens to the server: everything that operators and accidents do.

use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::counting::is_alive;
use sojourn_tests::tool::texts;
use sojourn_tests::{Home, Server, SmallFileSystem};
use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// How long a server may take to follow or to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// What a snapshot holds while it is stored, MiB: five batches in work, each as it is and compressed, eight
/// of them for reuse, and packs on their way, which have no more in them than the disk.
const SNAPSHOT: u64 = 5 * 2 + 8 + super::MIB as u64;
/// What there is for each processor, and for two at the least, MiB: an arena of the C library with what was
/// given back and is not yet returned at its end (1) or between others (3), and the tables and the room to
/// compress and decompress a chunk (2).
const PROCESSOR: u64 = 6;
/// What all connections keep for reuse together, MiB.
const SPARE: u64 = 16;
/// What one connection holds, KiB: what was received, and the answer to the longest read that a client here
/// asks for, while its disk is checked.
const CONNECTION: u64 = 256 + super::client::LONGEST as u64 / 1024;
/// Growth of descriptors, besides the clients', that is no leak yet.
const DESCRIPTORS: u64 = 16;
/// How long garbage waits, longer than a read of a disk that stalls takes, and how long a server that was killed counts
/// as one that still writes.
const GRACE: &str = "30s";
const STALE: &str = "2m";
/// Snapshots that are kept.
const SNAPSHOTS: usize = 8;

/// The server, and those who look after it.
pub(crate) struct Operator<'a> {
    home: &'a Home,
    room: &'a SmallFileSystem,
    /// `None` when the one that runs is not our child.
    server: Option<Server>,
    state: u64,
    done: BTreeMap<&'static str, u32>,
    /// What the process held before there was a client, MiB.
    idle_mib: u64,
    snapshots: u32,
    /// Snapshots that were not removed, the oldest first.
    kept: VecDeque<String>,
}

/// What the server's process holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Level {
    pid: u64,
    /// Resident memory that is no file's, beside the block cache.
    own_mib: u64,
    descriptors: u64,
    connections: u64,
}

impl<'a> Operator<'a> {
    /// Starts a server.
    pub(crate) fn start(home: &'a Home, room: &'a SmallFileSystem) -> Self {
        let server = Some(home.serve());
        let mut operator = Self {
            home,
            room,
            server,
            state: 0x2545_f491_4f6c_dd1d,
            done: BTreeMap::new(),
            idle_mib: 0,
            snapshots: 0,
            kept: VecDeque::new(),
        };
        operator.idle_mib = operator.level().own_mib;
        operator
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state >> 11) % bound
    }

    /// What was done, how often.
    pub(crate) fn summary(&self) -> String {
        let mut text = String::new();
        for (what, count) in &self.done {
            let _ = write!(text, "{what} {count}, ");
        }
        text
    }

    fn note(&mut self, what: &'static str) {
        *self.done.entry(what).or_default() += 1;
    }

    /// One thing of all that may happen.
    pub(crate) fn do_something(&mut self) {
        match self.below(10) {
            0 | 1 => self.kill(),
            2 => self.restart(),
            3 | 4 => self.follow(),
            _ => self.do_something_quiet(),
        }
    }

    /// One thing that leaves the process as it is.
    pub(crate) fn do_something_quiet(&mut self) {
        match self.below(8) {
            0 | 1 => self.snapshot(),
            2 | 3 => self.reload(),
            4 => self.collect(),
            5 => self.fill_up(),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(300 + self.below(700)));
    }

    /// The process that serves now.
    fn pid(&self) -> u64 {
        let end = Instant::now() + PATIENCE;
        loop {
            let status = self.home.json(&["status"]);
            if let Some(pid) = status["pid"].as_u64() {
                return pid;
            }
            assert!(Instant::now() < end, "no server runs: {status}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn signal(&self, signal: Signal) {
        let pid = self.pid();
        let process = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        kill_process(process, signal).expect("the server's process");
        let end = Instant::now() + PATIENCE;
        while is_alive(process.as_raw_nonzero().get()) {
            assert!(Instant::now() < end, "the server does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn kill(&mut self) {
        self.note("killed");
        self.signal(Signal::KILL);
        self.server = None;
        self.server = Some(self.home.serve());
    }

    fn restart(&mut self) {
        self.note("restarted");
        self.signal(Signal::TERM);
        self.server = None;
        self.server = Some(self.home.serve());
    }

    fn follow(&mut self) {
        let pid = self.pid();
        if self.command(&["drain", "--to-successor"]) {
            self.note("followed");
            let end = Instant::now() + PATIENCE;
            while self.pid() == pid {
                assert!(Instant::now() < end, "no server follows");
            }
        }
    }

    /// Runs a command that may find things in use, away, or full, and nothing worse.
    fn command(&self, args: &[&str]) -> bool {
        let output = self.home.command().args(args).output().expect("sojourn");
        let (out, err) = texts(&output);
        let expected = matches!(output.status.code(), Some(0 | 4 | 6 | 8));
        assert!(expected, "{args:?}: {}\n{out}{err}", output.status);
        output.status.success()
    }

    fn snapshot(&mut self) {
        let disk = format!("d{}", self.below(super::CLIENTS as u64));
        self.snapshots += 1;
        let snapshot = format!("s{}", self.snapshots);
        if self.command(&["disk", "snapshot", &disk, &snapshot]) {
            self.note("snapshots");
            self.kept.push_back(format!("{disk}@{snapshot}"));
            // What is kept must not fill the disk up.
            if self.kept.len() > SNAPSHOTS
                && let Some(oldest) = self.kept.pop_front()
                && !self.command(&["disk", "remove", &oldest])
            {
                self.kept.push_front(oldest);
            }
        }
    }

    fn reload(&mut self) {
        let rate = [0, 400, 2000][self.below(3) as usize];
        let text = format!(
            "[limits]\nclient_iops = {}\nconnections = {}\n[serve]\nidle_seconds = {}\n",
            rate * super::CLIENTS,
            200 + self.below(100),
            1 + self.below(30)
        );
        std::fs::write(self.room.path().join("home/sojourn.toml"), text).expect("configuration");
        if self.command(&["reload"]) {
            self.note("reloads");
        }
    }

    fn collect(&mut self) {
        // What is garbage goes soon, as it does in a day: a read that is under way is over by then.
        if self.command(&["gc", "--grace", GRACE, "--stale", STALE]) {
            self.note("collections");
        }
    }

    /// The disk is full for a while.
    fn fill_up(&mut self) {
        self.note("full");
        let room = rustix::fs::statvfs(self.room.path()).expect("file system");
        let used = (room.f_blocks - room.f_bfree) * room.f_frsize;
        // Whoever writes at this moment may need more: then it stays as large as it was.
        self.room.try_resize((used >> 20) as u32 + 2);
        std::thread::sleep(Duration::from_millis(500 + self.below(1500)));
        self.room.resize(super::ROOM);
    }

    /// Waits until the server has its ordinary load again.
    pub(crate) fn settle(&mut self) {
        let end = Instant::now() + PATIENCE;
        while self.level().connections < super::CLIENTS as u64 {
            assert!(Instant::now() < end, "the clients do not come back");
            std::thread::sleep(Duration::from_millis(200));
        }
        std::thread::sleep(Duration::from_secs(2));
    }

    /// What the process holds now.
    pub(crate) fn level(&self) -> Level {
        let status = self.home.json(&["status"]);
        let pid = status["pid"].as_u64().expect("a server");
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its memory");
        let line = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).expect("its memory");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number");
        // What the block cache holds has a limit of its own.
        let cached = status["cache"]["bytes"].as_u64().expect("the cache") >> 20;
        let descriptors =
            std::fs::read_dir(format!("/proc/{pid}/fd")).expect("files").count() as u64;
        let connections = status["connections"].as_u64().expect("connections");
        let own_mib = (kib >> 10).saturating_sub(cached);
        Level { pid, own_mib, descriptors, connections }
    }

    /// Looks at the levels of the last part of the load, in which there was one process: what it holds in
    /// memory stays within what its buffers are bounded by, and its descriptors do not become more.
    pub(crate) fn assert_no_leak(&self, levels: &[Level]) {
        let third = levels.len() / 3;
        let (early, late) = (&levels[third..2 * third], &levels[levels.len() - third..]);
        assert!(levels.iter().all(|level| level.pid == levels[0].pid), "one process: {levels:?}");
        let processors = std::thread::available_parallelism().map_or(2, |n| n.get().max(2)) as u64;
        let fixed = self.idle_mib + SNAPSHOT + PROCESSOR * processors + SPARE;
        let most = |level: &Level| fixed + level.connections * CONNECTION / 1024;
        let memory = |of: &[Level]| median(of.iter().map(|level| level.own_mib));
        let files = |of: &[Level]| {
            let own = |level: &Level| level.descriptors.saturating_sub(level.connections);
            median(of.iter().map(own))
        };
        println!(
            "beside the cache: {} MiB idle, {} and then {} with the load, {} at the most, where {} \
             are allowed; {} descriptors, then {}; in {} looks",
            self.idle_mib,
            memory(early),
            memory(late),
            levels.iter().map(|level| level.own_mib).max().unwrap_or(0),
            levels.iter().map(most).max().unwrap_or(0),
            files(early),
            files(late),
            levels.len()
        );
        let above = levels.iter().find(|level| level.own_mib > most(level));
        assert!(above.is_none(), "more memory than there are buffers: {above:?} of {levels:?}");
        assert!(files(late) <= files(early) + DESCRIPTORS, "descriptors grow: {levels:?}");
    }

    /// Stops the server; it must end well.
    pub(crate) fn stop(mut self) {
        self.signal(Signal::TERM);
        self.server = None;
    }
}

fn median(numbers: impl Iterator<Item = u64>) -> u64 {
    let mut numbers: Vec<u64> = numbers.collect();
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

impl Drop for Operator<'_> {
    fn drop(&mut self) {
        // A successor is not our child.
        let _ = self.home.command().args(["drain", "--timeout", "0"]).output();
    }
}
