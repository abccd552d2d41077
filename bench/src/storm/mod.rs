//! Boot storms: clients with private disks of one image that boot at the same moment, from a server
//! that has just been started, whose store is on a slow disk.
//!
//! A client plays the reads of a recorded boot, one after the other, without the time in which a guest
//! computes: nothing is left to be done ahead of it while it thinks. What it waits for its answers is
//! added up over all clients. Every answer is compared with the image.

pub(crate) mod arm;
pub(crate) mod boots;
pub(crate) mod bucket;
mod export;
mod qemu;

use crate::client::BenchConnection;
use crate::home::Home;
use anyhow::{Context, Result, bail, ensure};
use arm::{Arm, DiskWork};
use boots::Boots;
use bucket::Bucket;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

/// How long a server may take to record a boot after its end.
const RECORDING: Duration = Duration::from_secs(60);
/// How long the boot copy may take, which waits half a minute for the boot that was recorded last.
const COPYING: Duration = Duration::from_secs(60);
/// Boots that the server makes a list of.
const FIRST: usize = 4;
/// What is to be reached of the time without any help, and of qemu-nbd's.
const OF_NOTHING: f64 = 0.15;
const OF_QEMU: f64 = 0.20;

/// What is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct StormArgs {
    /// Recorded boots, which clients take turns with: traces in any format that `sojourn trace`
    /// reads, or files (.txt) with a line `OFFSET LENGTH` for each read, in bytes
    /// [default: one that is made up]
    boot: Vec<PathBuf>,
    /// The raw image that they were recorded on [default: one with data where they read]
    #[arg(long, value_name = "FILE")]
    image: Option<PathBuf>,
    /// Clients that boot at once
    #[arg(long, value_name = "N", default_value_t = 50)]
    clients: usize,
    /// Only so many reads from the start of every boot; 0 is all
    #[arg(long, value_name = "N", default_value_t = 400)]
    reads: usize,
    /// What a movement of the disk's arm takes, milliseconds
    #[arg(long, value_name = "MS", default_value_t = 6.0)]
    seek: f64,
    /// What the disk transfers in a second, megabytes
    #[arg(long, value_name = "MB", default_value_t = 80.0)]
    rate: f64,
    /// Only cases whose name begins with NAME (may be repeated)
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

/// What a server of ours has switched on.
#[derive(Debug, Clone, Copy)]
struct Switches {
    cache: bool,
    single_flight: bool,
    read_ahead: bool,
    boot_lists: bool,
    boot_copies: bool,
    turns: bool,
}

/// Who serves.
#[derive(Debug, Clone, Copy)]
enum DiskServerKind {
    Ours(Switches),
    Qemu { page_cache: bool },
}

struct StormCase {
    name: &'static str,
    kind: DiskServerKind,
}

const NOTHING: Switches = Switches {
    cache: false,
    single_flight: false,
    read_ahead: false,
    boot_lists: false,
    boot_copies: false,
    turns: true,
};
const EVERYTHING: Switches = Switches {
    cache: true,
    single_flight: true,
    read_ahead: true,
    boot_lists: true,
    boot_copies: true,
    turns: true,
};

const fn ours(name: &'static str, switches: Switches) -> StormCase {
    StormCase { name, kind: DiskServerKind::Ours(switches) }
}

/// Each switch alone (reading ahead and boot lists fill the cache, and are nothing without it), all of
/// them, all but one, and the others.
const CASES: [StormCase; 11] = [
    ours("nothing", NOTHING),
    ours("single-flight", Switches { single_flight: true, ..NOTHING }),
    ours("cache", Switches { cache: true, ..NOTHING }),
    ours("cache-read-ahead", Switches { cache: true, read_ahead: true, ..NOTHING }),
    ours("cache-boot-list", Switches { cache: true, boot_lists: true, ..NOTHING }),
    ours("cache-single-flight", Switches { cache: true, single_flight: true, ..NOTHING }),
    ours("all-but-boot-list", Switches { boot_lists: false, ..EVERYTHING }),
    ours("all-but-boot-copy", Switches { boot_copies: false, ..EVERYTHING }),
    ours("everything", EVERYTHING),
    StormCase { name: "qemu-nbd", kind: DiskServerKind::Qemu { page_cache: false } },
    StormCase { name: "qemu-nbd-page-cache", kind: DiskServerKind::Qemu { page_cache: true } },
];

impl Switches {
    fn configuration(&self) -> String {
        let on = |on: bool, text: &'static str, off: &'static str| if on { text } else { off };
        format!(
            "[cache]\nsize = {}\nsingle_flight = {}\n[pieces]\nsize = 0\n[serve]\n\
             read_ahead = {}\nboot_lists = {}\nboot_copies = {}\nloads = {}\n",
            on(self.cache, "\"256MiB\"", "0"),
            self.single_flight,
            on(self.read_ahead, "\"2MiB\"", "0"),
            self.boot_lists,
            self.boot_copies,
            on(self.turns, "64", "0"),
        )
    }
}

/// What one case took.
#[derive(Debug, Serialize)]
struct StormRow {
    case: &'static str,
    /// What all clients waited for their answers, seconds.
    waited: f64,
    /// From the first read to the last answer, seconds.
    took: f64,
    /// The longest wait for one answer, milliseconds.
    longest_ms: f64,
    /// What the disk did.
    disk: DiskWork,
    /// `waited`, of the case with nothing.
    of_nothing: Option<f64>,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct StormReport {
    format: u32,
    clients: usize,
    boots: usize,
    reads: usize,
    read_bytes: u64,
    seek_ms: f64,
    rate_mb: f64,
    rows: Vec<StormRow>,
    left_out: Vec<String>,
    targets: Vec<StormGoal>,
}

#[derive(Debug, Serialize)]
struct StormGoal {
    what: &'static str,
    value: f64,
    at_most: f64,
}

impl StormReport {
    /// Whether everything is reached that was measured.
    pub(crate) fn all_reached(&self) -> bool {
        self.targets.iter().all(|target| target.value <= target.at_most)
    }

    fn waited(&self, case: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.case == case).map(|row| row.waited)
    }

    fn compare(&mut self) {
        let nothing = self.waited("nothing");
        for row in &mut self.rows {
            row.of_nothing = nothing.map(|nothing| row.waited / nothing);
        }
        let Some(everything) = self.waited("everything") else { return };
        for (what, case, at_most) in [
            ("waiting, of the same server with nothing", "nothing", OF_NOTHING),
            ("waiting, of qemu-nbd with a qcow2 for each client", "qemu-nbd", OF_QEMU),
            (
                "waiting, of the same through the kernel's page cache",
                "qemu-nbd-page-cache",
                OF_QEMU,
            ),
        ] {
            if let Some(other) = self.waited(case) {
                self.targets.push(StormGoal { what, value: everything / other, at_most });
            }
        }
    }
}

impl fmt::Display for StormReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} clients at once, {} recorded boots, {} reads and {:.1} MB each on average; a disk of \
             {} ms and {} MB/s\n\n{:<20} {:>10} {:>9} {:>11} {:>9} {:>9} {:>9} {:>10}",
            self.clients,
            self.boots,
            self.reads / self.clients,
            self.read_bytes as f64 / self.clients as f64 / 1e6,
            self.seek_ms,
            self.rate_mb,
            "case",
            "waited, s",
            "took, s",
            "longest, ms",
            "disk, s",
            "reads",
            "MB",
            "of nothing",
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<20} {:>10.1} {:>9.2} {:>11.0} {:>9.2} {:>9} {:>9.1} {:>10}",
                row.case,
                row.waited,
                row.took,
                row.longest_ms,
                row.disk.seconds,
                row.disk.reads,
                row.disk.bytes as f64 / 1e6,
                row.of_nothing.map_or("-".to_owned(), |part| format!("{part:.4}")),
            )?;
        }
        for left in &self.left_out {
            writeln!(f, "left out: {left}")?;
        }
        writeln!(f)?;
        for target in &self.targets {
            let verdict = if target.value <= target.at_most { "ok  " } else { "MISS" };
            writeln!(
                f,
                "{verdict} {:<54} {:>8.4} (at most {})",
                target.what, target.value, target.at_most
            )?;
        }
        Ok(())
    }
}

/// What the clients of one case waited.
struct Waited {
    sum: Duration,
    longest: Duration,
    took: Duration,
}

/// Measures every case, one after the other.
pub(crate) fn run(options: &StormArgs, sojourn: &Path, scratch: &Path) -> Result<StormReport> {
    ensure!((1..=1000).contains(&options.clients), "--clients must be 1 to 1000");
    ensure!((0.0..=1000.0).contains(&options.seek), "--seek must be 0 to 1000");
    ensure!((0.1..=1e6).contains(&options.rate), "--rate must be 0.1 to 1000000");
    let cases: Vec<_> = CASES
        .iter()
        .filter(|case| {
            options.cases.is_empty() || options.cases.iter().any(|name| case.name.starts_with(name))
        })
        .collect();
    ensure!(!cases.is_empty(), "no case is called {:?}", options.cases);
    let most = if options.reads == 0 { usize::MAX } else { options.reads };
    let boots = Boots::load(&options.boot, options.image.as_deref(), most, scratch)?;
    let arm = Arc::new(Arm::new(Duration::from_secs_f64(options.seek / 1e3), options.rate * 1e6));
    let all = (0..options.clients).flat_map(|number| boots.of(number));
    let mut report = StormReport {
        format: 1,
        clients: options.clients,
        boots: boots.reads.len(),
        reads: all.clone().count(),
        read_bytes: all.map(|(_, length)| u64::from(*length)).sum(),
        seek_ms: options.seek,
        rate_mb: options.rate,
        rows: Vec::new(),
        left_out: Vec::new(),
        targets: Vec::new(),
    };
    let mut home = None;
    for (number, case) in cases.into_iter().enumerate() {
        eprintln!("{} …", case.name);
        let row = match case.kind {
            DiskServerKind::Ours(switches) => {
                let home = match &home {
                    Some(home) => home,
                    None => home.insert(prepare(sojourn, scratch, &boots, options.clients, &arm)?),
                };
                measure_ours(home, case.name, switches, &boots, options.clients, &arm)
            }
            DiskServerKind::Qemu { page_cache } => {
                let dir = scratch.join(format!("qemu-{number}"));
                measure_qemu(case.name, page_cache, &boots, options.clients, &arm, &dir)
            }
        };
        match (row, case.kind) {
            (Ok(row), _) => report.rows.push(row),
            (Err(error), DiskServerKind::Qemu { .. }) => {
                report.left_out.push(format!("{}: {error:#}", case.name));
            }
            (Err(error), DiskServerKind::Ours(_)) => return Err(error.context(case.name)),
        }
    }
    report.compare();
    Ok(report)
}

/// A home with the image, a disk for each client and, from first boots, its boot list and boot copy.
fn prepare(
    sojourn: &Path,
    scratch: &Path,
    boots: &Boots,
    clients: usize,
    arm: &Arc<Arm>,
) -> Result<Home> {
    let bucket = Bucket::start(&scratch.join("bucket"), Arc::clone(arm))?;
    let home = Home::make(sojourn, &scratch.join("home"), bucket.url(), bucket.environment())?;
    home.import(&boots.image, "golden:1")?;
    home.disks("d", clients, "golden:1")?;
    // The first boots of all, each recording in its turn: by one client, from a disk that takes no time.
    for number in 0..FIRST {
        let serving = home.serve(&EVERYTHING.configuration(), None)?;
        storm(1, &boots.only(number % boots.reads.len())?, |_| serving.connect("d0"))?;
        let end = Instant::now() + RECORDING;
        while boot_list(&home)?["boots"].as_u64().unwrap_or(0) <= number as u64 {
            ensure!(Instant::now() < end, "the server records no boot list");
            std::thread::sleep(Duration::from_millis(500));
        }
        // The last one brings the copy a little later; a list that lies in few places gets none.
        let end = Instant::now() + COPYING;
        while number + 1 == FIRST
            && boot_list(&home)?["copy_stored_bytes"].is_null()
            && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(500));
        }
    }
    Ok(home)
}

/// What the image's boot list is.
fn boot_list(home: &Home) -> Result<serde_json::Value> {
    let shown = home.run(&["--json", "image", "show", "golden:1"])?;
    let mut shown: serde_json::Value = serde_json::from_str(&shown)?;
    Ok(shown["boot_list"].take())
}

fn measure_ours(
    home: &Home,
    case: &'static str,
    switches: Switches,
    boots: &Boots,
    clients: usize,
    arm: &Arm,
) -> Result<StormRow> {
    let serving = home.serve(&switches.configuration(), None)?;
    row(case, boots, clients, arm, |number| serving.connect(&format!("d{number}")))
}

fn measure_qemu(
    case: &'static str,
    page_cache: bool,
    boots: &Boots,
    clients: usize,
    arm: &Arc<Arm>,
    dir: &Path,
) -> Result<StormRow> {
    std::fs::create_dir_all(dir)?;
    let socket = dir.join("image.sock");
    export::start(&boots.image, &socket, Arc::clone(arm))?;
    let servers = qemu::QemuServers::start(&socket, clients, page_cache, dir)?;
    row(case, boots, clients, arm, |number| servers.connect(number))
}

fn row(
    case: &'static str,
    boots: &Boots,
    clients: usize,
    arm: &Arm,
    connect: impl Fn(usize) -> Result<BenchConnection> + Sync,
) -> Result<StormRow> {
    arm.start();
    let waited = storm(clients, boots, connect);
    let disk = arm.stop();
    let waited = waited?;
    Ok(StormRow {
        case,
        waited: waited.sum.as_secs_f64(),
        took: waited.took.as_secs_f64(),
        longest_ms: waited.longest.as_secs_f64() * 1e3,
        disk,
        of_nothing: None,
    })
}

/// Connects all clients, then has them boot at the same moment.
fn storm(
    clients: usize,
    boots: &Boots,
    connect: impl Fn(usize) -> Result<BenchConnection> + Sync,
) -> Result<Waited> {
    let ready = Barrier::new(clients);
    let each = |number: usize| -> Result<(Duration, Duration, Duration)> {
        let connected = connect(number);
        ready.wait();
        let mut connection =
            connected.with_context(|| format!("client {number} cannot connect"))?;
        let start = Instant::now();
        let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
        let longest_read = boots.of(number).iter().map(|(_, length)| *length).max().unwrap_or(0);
        let mut buffers = [0, 1].map(|_| vec![0; longest_read as usize]);
        for (offset, length) in boots.of(number) {
            let [read, expected] = buffers.each_mut().map(|buffer| &mut buffer[..*length as usize]);
            let asked = Instant::now();
            connection.read(*offset, read)?;
            let waited = asked.elapsed();
            sum += waited;
            longest = longest.max(waited);
            boots.check(*offset, read, expected)?;
        }
        let took = start.elapsed();
        connection.close();
        Ok((sum, longest, took))
    };
    let mut all = Waited { sum: Duration::ZERO, longest: Duration::ZERO, took: Duration::ZERO };
    std::thread::scope(|scope| {
        let each = &each;
        let threads: Vec<_> =
            (0..clients).map(|number| scope.spawn(move || each(number))).collect();
        for thread in threads {
            let Ok(outcome) = thread.join() else { bail!("a client's thread failed") };
            let (sum, longest, took) = outcome?;
            all.sum += sum;
            all.longest = all.longest.max(longest);
            all.took = all.took.max(took);
        }
        Ok(())
    })?;
    Ok(all)
}
