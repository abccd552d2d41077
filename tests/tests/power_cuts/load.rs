//! The load that is recorded: clients write and flush while images are imported and removed, disks made,
//! frozen, committed and removed, garbage collected, and the server killed and started again.

use crate::dice::Dice;
use crate::dying::Dying;
use crate::history::{Bounds, History};
use crate::ledger::{Content, Disk, Ledger, Life, State};
use crate::recorder::Record;
use crate::writer::Writer;
use rustix::process::{Pid, Signal, kill_process};
use sojourn_tests::tool::texts;
use sojourn_tests::{Home, content};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Disks that are written to all the time.
const DISKS: u64 = 3;
/// MiB of each disk and image.
const MIB: usize = 4;
/// Other disks, image versions and snapshots that there are at most.
const EXTRA: usize = 4;
/// How long a server may take to start or end.
const PATIENCE: Duration = Duration::from_secs(120);

/// What is under load.
pub(crate) struct Load<'a> {
    pub(crate) home: &'a Home,
    pub(crate) record: Arc<Record>,
    /// The device that the home is on.
    pub(crate) device: PathBuf,
    pub(crate) dying: &'a Dying,
    pub(crate) dice: Dice,
    pub(crate) ledger: Ledger,
    next: u64,
    done: BTreeMap<String, u32>,
}

/// How a command ended.
#[derive(PartialEq, Eq, Clone, Copy)]
enum Outcome {
    Done,
    /// It failed, or died: what it was to do may be done or not.
    Unknown,
}

impl<'a> Load<'a> {
    /// Makes the first image and the disks, all before anything dies.
    pub(crate) fn prepare(
        home: &'a Home,
        record: &Arc<Record>,
        device: &Path,
        dying: &'a Dying,
        seed: u64,
    ) -> Self {
        let mut load = Self {
            home,
            record: record.clone(),
            device: device.into(),
            dying,
            dice: Dice::new(seed, 1),
            ledger: Ledger::default(),
            next: 0,
            done: BTreeMap::new(),
        };
        load.import(false);
        (0..DISKS).for_each(|_| load.create(false));
        load
    }

    /// What was done, how often.
    pub(crate) fn summary(&self) -> String {
        let parts: Vec<String> =
            self.done.iter().map(|(what, count)| format!("{what} {count}")).collect();
        parts.join(", ")
    }

    /// How often something was done.
    pub(crate) fn count(&self, what: &str) -> u32 {
        self.done.get(what).copied().unwrap_or(0)
    }

    fn note(&mut self, what: &str) {
        *self.done.entry(what.to_owned()).or_default() += 1;
    }

    /// One life of a server, and what may be done before the next one.
    pub(crate) fn round(&mut self) {
        if let Some(mut server) = self.start() {
            self.unrest(&mut server);
            self.end(server);
        } else {
            self.note("servers that died when they started");
        }
        for _ in 0..self.dice.below(3) {
            match self.dice.below(4) {
                0 | 1 => self.collect("0s", "0s"),
                _ => self.something(None),
            }
        }
    }

    /// Starts a server that will die in some sync, or one that will not.
    fn start(&mut self) -> Option<Child> {
        let (data, names) = [(0, 0), (0, 15), (2000, 40), (300, 10)][self.dice.below(4) as usize];
        let seed = self.dice.next() >> 16;
        let socket = self.home.path("nbd.sock");
        let _ = std::fs::remove_file(&socket);
        let log = File::options().create(true).append(true).open(self.home.path("log"));
        let mut command = self.home.command();
        command.envs(self.dying.environment(seed, data, names));
        command.arg("serve").arg("--nbd").arg(format!("unix:{}", socket.display()));
        command.stdout(Stdio::null()).stderr(log.expect("server log"));
        let mut server = command.spawn().expect("sojourn");
        let end = Instant::now() + PATIENCE;
        while UnixStream::connect(&socket).is_err() {
            if let Some(status) = server.try_wait().expect("server") {
                assert!(status.code().is_none(), "the server ended: {status}\n{}", self.log());
                return None;
            }
            assert!(Instant::now() < end, "the server does not listen\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        Some(server)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.home.path("log")).unwrap_or_default()
    }

    /// Writers, the kernel's writeback and an operator at once.
    fn unrest(&mut self, server: &mut Child) {
        let stop = AtomicBool::new(false);
        let socket = self.home.path("nbd.sock");
        let record = self.record.clone();
        let disks: Vec<Arc<Disk>> =
            self.ledger.disks.iter().take(DISKS as usize).cloned().collect();
        std::thread::scope(|scope| {
            let (stop, socket, record) = (&stop, &socket, &record);
            let _stop = StopAtTheEnd(stop);
            for disk in &disks {
                let dice = Dice::new(self.dice.next(), 2);
                scope.spawn(move || Writer { disk, record, dice }.work(socket, stop));
            }
            let (device, home) = (self.device.clone(), self.home.home().to_owned());
            let dice = Dice::new(self.dice.next(), 3);
            scope.spawn(move || write_back(&device, &home, dice, stop));
            for _ in 0..1 + self.dice.below(6) {
                if server.try_wait().expect("server").is_some() {
                    break;
                }
                self.something(Some(socket));
                std::thread::sleep(Duration::from_millis(self.dice.below(150)));
            }
            if self.dice.below(2) == 0 {
                // In the middle of everything.
                let _ = server.kill();
            }
        });
    }

    /// Ends a server by a kill or in its own time.
    fn end(&mut self, mut server: Child) {
        if self.dice.below(2) == 0 {
            let _ = server.kill();
        } else {
            let _ = kill_process(Pid::from_child(&server), Signal::TERM);
        }
        let end = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = server.try_wait().expect("server") {
                break status;
            }
            assert!(Instant::now() < end, "the server does not end\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        };
        match status.code() {
            Some(0) => self.note("servers that ended"),
            Some(code) => panic!("the server ended with {code}\n{}", self.log()),
            None => self.note("servers killed"),
        }
    }

    /// Something that an operator does; with a server, it is there.
    fn something(&mut self, server: Option<&Path>) {
        match self.dice.below(12) {
            0..=3 => self.snapshot(),
            4 | 5 => self.commit(),
            6 => self.import(true),
            7 => {
                self.create(true);
                if let (Some(socket), Some(disk)) = (server, self.ledger.disks.last()) {
                    let dice = Dice::new(self.dice.next(), 4);
                    Writer { disk, record: &self.record, dice }.write_some(socket, 4);
                }
            }
            8 | 9 => self.remove(),
            _ if server.is_some() => self.collect("1s", "2m"),
            _ => self.collect("0s", "0s"),
        }
    }

    fn fresh(&mut self, letter: char) -> String {
        self.next += 1;
        format!("{letter}{}", self.next)
    }

    fn import(&mut self, may_die: bool) {
        self.next += 1;
        let name = format!("golden:{}", self.next);
        let bytes = Arc::new(content::image(self.dice.below(6), MIB));
        let path = self.home.path("import.raw");
        content::write_sparse(&path, &bytes);
        let path = path.to_string_lossy().into_owned();
        let begun = self.record.position();
        let made = self.make(&["image", "import", &path, &name], may_die);
        let life = Life { begun, made, ..Life::default() };
        self.ledger.images.push(State { name, life, content: Content::Bytes(bytes) });
    }

    fn create(&mut self, may_die: bool) {
        let name = self.fresh('d');
        // The first image is never removed.
        let (image, Content::Bytes(bytes)) =
            (self.ledger.images[0].name.clone(), &self.ledger.images[0].content)
        else {
            unreachable!("the first image was imported")
        };
        let history = History::new(self.next, bytes.clone());
        let begun = self.record.position();
        let made = self.make(&["disk", "create", &name, "--from", &image], may_die);
        let life = Mutex::new(Life { begun, made, ..Life::default() });
        self.ledger.disks.push(Arc::new(Disk { name, history: Mutex::new(history), life }));
    }

    /// One of the disks that are written to all the time, and what it holds at least.
    fn busy_disk(&mut self) -> (Arc<Disk>, Vec<usize>) {
        let disk = self.ledger.disks[self.dice.below(DISKS) as usize].clone();
        let floors = disk.history.lock().expect("history").floors();
        (disk, floors)
    }

    fn snapshot(&mut self) {
        let (disk, floors) = self.busy_disk();
        let snapshot = self.fresh('s');
        let begun = self.record.position();
        let made = self.make(&["disk", "snapshot", &disk.name, &snapshot], true);
        let name = format!("{}@{snapshot}", disk.name);
        let content = Content::Of(disk.clone(), between(&disk, floors));
        let life = Life { begun, made, ..Life::default() };
        self.ledger.snapshots.push(State { name, life, content });
    }

    fn commit(&mut self) {
        let (disk, floors) = self.busy_disk();
        self.next += 1;
        let name = format!("golden:{}", self.next);
        let begun = self.record.position();
        let made = self.make(&["disk", "commit", &disk.name, &name], true);
        let content = Content::Of(disk.clone(), between(&disk, floors));
        let life = Life { begun, made, ..Life::default() };
        self.ledger.images.push(State { name, life, content });
    }

    /// Removes what there is too much of: snapshots, images, disks.
    fn remove(&mut self) {
        match self.dice.below(3) {
            0 => {
                let there =
                    |state: &State| state.life.removing.is_none() && state.life.made.is_some();
                if self.ledger.snapshots.iter().filter(|state| there(state)).count() > EXTRA {
                    let index = self.ledger.snapshots.iter().position(there).expect("a snapshot");
                    let name = self.ledger.snapshots[index].name.clone();
                    self.ledger.snapshots[index].life.removing = Some(self.record.position());
                    let removed = self.make(&["disk", "remove", &name], true);
                    self.ledger.snapshots[index].life.removed = removed;
                }
            }
            1 => {
                let there =
                    |state: &State| state.life.removing.is_none() && state.life.made.is_some();
                let images = &self.ledger.images[1..]; // disks stand on the first one
                if images.iter().filter(|state| there(state)).count() > EXTRA {
                    let index = 1 + images.iter().position(there).expect("an image");
                    let name = self.ledger.images[index].name.clone();
                    self.ledger.images[index].life.removing = Some(self.record.position());
                    let removed = self.make(&["image", "remove", &name], true);
                    self.ledger.images[index].life.removed = removed;
                }
            }
            _ => {
                let extra = &self.ledger.disks[DISKS as usize..];
                let there = |disk: &&Arc<Disk>| {
                    let life = disk.life.lock().expect("life");
                    life.removing.is_none() && life.made.is_some()
                };
                if extra.iter().filter(there).count() > EXTRA / 2 {
                    let disk = extra.iter().find(there).expect("a disk").clone();
                    disk.life.lock().expect("life").removing = Some(self.record.position());
                    let removed = self.make(&["disk", "remove", &disk.name], true);
                    disk.life.lock().expect("life").removed = removed;
                }
            }
        }
    }

    fn collect(&mut self, grace: &str, stale: &str) {
        self.make(&["gc", "--grace", grace, "--stale", stale], true);
    }

    /// Runs a command; gives the position at which it was answered that it is done.
    fn make(&mut self, args: &[&str], may_die: bool) -> Option<usize> {
        let names = if may_die { [0, 0, 20, 60][self.dice.below(4) as usize] } else { 0 };
        let seed = self.dice.next() >> 16;
        let mut command = self.home.command();
        command.envs(self.dying.environment(seed, 0, names)).args(args);
        let output = command.output().expect("sojourn");
        let (out, err) = texts(&output);
        let outcome = match output.status.code() {
            Some(0) => Outcome::Done,
            // In use, not there because an earlier command died, cut off by the server's end.
            None | Some(3..=6) if may_die => Outcome::Unknown,
            _ => panic!("{args:?}: {}\n{out}{err}\n{}", output.status, self.log()),
        };
        let verb = if args[0] == "gc" { "gc".to_owned() } else { args[..2].join(" ") };
        match outcome {
            Outcome::Done => self.note(&verb),
            Outcome::Unknown => {
                let how =
                    output.status.code().map_or("died".to_owned(), |c| format!("failed ({c})"));
                self.note(&format!("{verb} {how}"));
            }
        }
        (outcome == Outcome::Done).then(|| self.record.position())
    }
}

/// What a state that was taken by now holds: at least `floors`.
fn between(disk: &Disk, floors: Vec<usize>) -> Bounds {
    let newest = disk.history.lock().expect("history").newest();
    floors.into_iter().zip(newest).collect()
}

/// Writes dirty pages of the home's files, and of the file system's own blocks, to the disk in any order
/// and without a barrier, as the kernel does some seconds later.
fn write_back(device: &Path, home: &Path, mut dice: Dice, stop: &AtomicBool) {
    while !stop.load(SeqCst) {
        // sync_file_range(2), to begin writeback and wait for nothing.
        let (path, range) = match dice.below(2) {
            0 => {
                let part = crate::SIZE >> dice.below(8);
                (
                    Some(device.to_owned()),
                    format!("{} {part}", dice.below(crate::SIZE / part) * part),
                )
            }
            _ => (some_file(home, &mut dice), "0 0".to_owned()),
        };
        if let Some(path) = path {
            // The file may be gone by now.
            let command = format!("sync_range -w {range}");
            let _ = Command::new("xfs_io").args(["-r", "-x", "-c", &command]).arg(path).output();
        }
        std::thread::sleep(Duration::from_millis(dice.below(60)));
    }
}

/// A file below `directory`.
fn some_file(directory: &Path, dice: &mut Dice) -> Option<PathBuf> {
    let entries: Vec<_> = std::fs::read_dir(directory).ok()?.filter_map(Result::ok).collect();
    if entries.is_empty() {
        return None;
    }
    let path = entries[dice.below(entries.len() as u64) as usize].path();
    let kind = std::fs::symlink_metadata(&path).ok()?.file_type();
    match () {
        () if kind.is_dir() => some_file(&path, dice),
        () if kind.is_file() => Some(path),
        () => None,
    }
}

struct StopAtTheEnd<'a>(&'a AtomicBool);

impl Drop for StopAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}
