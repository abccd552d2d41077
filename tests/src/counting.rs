//! Machines whose guest counts (`counter.s`): it writes each number to its disk and into its memory, and then
//! says it, with the sum of what is in its memory, on the serial line.

use crate::{Home, S3};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The guest's first sector.
const SECTOR: &[u8; 512] = include_bytes!("counter.bin");
/// How long a guest may take to say something.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a guest said: its numbers, one by one.
#[derive(Debug, Clone, Default)]
pub struct Numbers(pub Vec<u32>);

impl Numbers {
    /// Panics unless the numbers are 1, 2, 3 …
    pub fn assert_whole(&self) {
        let expected: Vec<u32> = (1..=self.0.len() as u32).collect();
        assert_eq!(self.0, expected, "a gap or a repetition");
    }

    /// The last one; 0 before the first.
    pub fn last(&self) -> u32 {
        self.0.last().copied().unwrap_or_default()
    }
}

/// A machine in a home. It is ended when this is dropped.
pub struct CountingMachine<'a> {
    /// The home.
    pub home: &'a Home,
    name: String,
}

impl<'a> CountingMachine<'a> {
    /// Makes the image of the guest in a home's store.
    pub fn image(home: &Home) {
        let mut bytes = vec![0; 4 << 20];
        bytes[..SECTOR.len()].copy_from_slice(SECTOR);
        home.import("counter", &bytes);
    }

    /// A home with that image, whose store is a bucket of `s3`.
    pub fn home_in(s3: &S3) -> Home {
        let home = Home::made_in(&s3.environment(None), &["--store", "s3://bucket/lab"]);
        Self::image(&home);
        home
    }

    /// Makes the image of a guest that stands still, and never writes its disk.
    pub fn idle_image(home: &Home) {
        let mut bytes = vec![0; 4 << 20];
        // cli; hlt; and back to hlt
        bytes[..4].copy_from_slice(&[0xfa, 0xf4, 0xeb, 0xfd]);
        bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
        home.import("idle", &bytes);
    }

    /// Describes a machine with a disk of its own.
    pub fn create(home: &'a Home, name: &str) -> Self {
        Self::create_from(home, name, "counter")
    }

    /// The same, of another image.
    pub fn create_from(home: &'a Home, name: &str, image: &str) -> Self {
        home.disk(&format!("{name}-disk"), image);
        let disk = format!("{name}-disk");
        home.run(&["vm", "create", name, "--disk", &disk, "--memory", "32M"]);
        Self::of(home, name)
    }

    /// The same, and it runs, and has counted a little.
    pub fn started(home: &'a Home, name: &str) -> Self {
        let machine = Self::create(home, name);
        machine.vm("start");
        machine.wait_for_numbers(2);
        machine
    }

    /// A machine that another home described, or that is yet to be made.
    pub fn of(home: &'a Home, name: &str) -> Self {
        Self { home, name: name.to_owned() }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A verb on it.
    pub fn vm(&self, verb: &str) -> Value {
        self.home.json(&["vm", verb, &self.name])
    }

    /// Suspends it, and waits until its parcel is in the store.
    pub fn suspend(&self) -> Value {
        self.home.json(&["vm", "suspend", "--wait", &self.name])
    }

    /// What the home knows of it.
    pub fn show(&self) -> Value {
        self.vm("show")
    }

    /// What its console said in this home, as text.
    pub fn console(&self) -> String {
        let path = self.home.home().join("machines").join(&self.name).join("console.log");
        String::from_utf8_lossy(&std::fs::read(path).unwrap_or_default()).into_owned()
    }

    /// The numbers that it said in this home. The sum of each must be that of all numbers before.
    pub fn numbers(&self) -> Numbers {
        numbers(&self.console())
    }

    /// Waits until its console says something in this home, from byte `from` on.
    pub fn wait_for(&self, what: &str, from: usize) {
        self.wait(what, || self.console().get(from..).is_some_and(|said| said.contains(what)));
    }

    /// Waits until its console says a number in this home, from byte `from` on.
    pub fn wait_for_number_after(&self, from: usize) {
        self.wait("number", || !numbers(&self.console()[from..]).0.is_empty());
    }

    /// Types on its console, and waits for the guest's answer.
    pub fn type_in(&self, keys: &str) {
        // Closing would lose what QEMU has not read yet.
        let _console = self.press(keys);
        let end = keys.chars().last().map(|key| format!("[{key}]")).unwrap_or_default();
        self.wait_for(&end, 0);
    }

    /// Types on its console; keys that QEMU has not read yet are lost when the connection is dropped.
    pub fn press(&self, keys: &str) -> UnixStream {
        let path = self.home.home().join("machines").join(&self.name).join("console.sock");
        let mut console = UnixStream::connect(path).expect("the console");
        console.write_all(keys.as_bytes()).expect("keys");
        console
    }

    /// Waits until it has said so many more numbers in this home.
    pub fn wait_for_numbers(&self, more: usize) {
        let before = self.numbers().0.len();
        self.wait("numbers", || self.numbers().0.len() >= before + more);
    }

    /// Waits until something is so.
    pub fn wait(&self, what: &str, so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !so() {
            assert!(Instant::now() < end, "no {what}\n{}\n{}", self.console(), self.logs());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// The process ids of its keeper and of QEMU, while it runs.
    pub fn processes(&self) -> (i32, i32) {
        let running = self.show()["running"].clone();
        let id = |what: &str| running[what].as_i64().expect("a process id") as i32;
        (id("keeper"), id("qemu"))
    }

    /// Kills its keeper as a crash would, and waits for QEMU's end.
    pub fn kill_keeper(&self) {
        self.end_keeper(self.processes(), Signal::KILL);
    }

    /// Has its keeper end by a signal, and waits until it and QEMU have.
    pub fn end_keeper(&self, (keeper, qemu): (i32, i32), signal: Signal) {
        kill_process(Pid::from_raw(keeper).expect("a process id"), signal).expect("signal");
        self.wait("end of keeper and QEMU", || !is_alive(keeper) && !is_alive(qemu));
    }

    /// The directory of what was kept of it when it was suspended here.
    pub fn pending(&self) -> PathBuf {
        self.home.home().join("machines").join(&self.name).join("pending")
    }

    /// What keeper and QEMU logged.
    pub fn logs(&self) -> String {
        let output = self.home.command().args(["vm", "log", "--qemu", &self.name]).output();
        output
            .map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
            .unwrap_or_default()
    }
}

impl Drop for CountingMachine<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- machine {}\n{}\n{}", self.name, self.console(), self.logs());
        }
        let _ = self.home.command().args(["vm", "stop", "--force", &self.name]).output();
        // A server stays when the keeper that started it was killed.
        let _ = self.home.command().args(["drain", "--timeout", "5"]).output();
    }
}

/// The numbers in what a console said, whole lines only. Panics on a wrong sum.
pub fn numbers(said: &str) -> Numbers {
    let mut numbers = Vec::new();
    for line in said.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Some(at) = line.find("TICK ") else { continue };
        let words: Vec<&str> =
            line[at..].trim_end_matches(&['.', '\r', '\n'][..]).split(' ').collect();
        let [_, count, sum] = words.as_slice() else { continue };
        let hex = |word: &str| u32::from_str_radix(word, 16);
        let (Ok(count), Ok(sum)) = (hex(count), hex(sum)) else { continue };
        let all = u64::from(count) * (u64::from(count) + 1) / 2;
        assert_eq!(u64::from(sum), all, "the memory of the guest at {count}\n{said}");
        numbers.push(count);
    }
    Numbers(numbers)
}

/// Whether a process runs. A zombie does not, once the last of its threads has let go of its files and locks.
pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    state.is_some_and(|state| state != 'Z' || threads() > 1)
}
