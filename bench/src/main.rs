//! `sojourn-bench`: Sojourn beside the NBD servers people run today, and beside the limit of the
//! machine, all measured in one run with one load generator.
//!
//! It may know NBD's wire format (its own small client, so that a fault of the server's codec
//! cannot hide in the measurement), how to start every server, and `/proc`. It must not link any
//! part of the engine: the server under test is the released binary, as users run it.
//!
//! | module | concept |
//! |---|---|
//! | [`content`] | what every disk holds, so that each reply can be checked |
//! | [`wire`] | the NBD messages that the load needs |
//! | [`client`] | one connection, driven at a fixed depth |
//! | [`place`] | where a server listens |
//! | [`scratch`] | the directory of a run: room, and what killed runs left |
//! | [`filesystem`] | a file system made anew for a server |
//! | [`tool`] | programs of the system |
//! | [`hogs`] | processes that compete for the processors |
//! | [`load`] | the loads, and one measured window of one load |
//! | [`raw`] | the raw ping-pong: the least any server can do with these messages |
//! | [`process`] | CPU time and memory of a server's process tree |
//! | [`contender`] | the servers, and how each is started |
//! | [`series`] | all windows of a run, their medians |
//! | [`report`] | tables and JSON |
//! | [`store`] | stores of images: imports, exports, boots, beside other tools |
//! | [`record`] | what recording a trace costs a server |
//! | [`reopen`] | opening a disk after a crash |
//! | [`home`] | a home and its server, as users run them |
//! | [`storm`] | boot storms on a slow disk, beside qemu-nbd |
//! | [`fairness`] | what a light client feels of a storm of others |
//! | [`clients`] | connecting in the same instant, and memory |
//! | [`tls`] | what encryption costs |
//! | [`iscsi`] | iSCSI, beside tgt and our NBD |
//! | [`side_by_side`] | front ends beside each other, and what is to be reached |
//! | [`vhost_user`] | virtual machines on the same host, beside qemu-storage-daemon |

// Threads, sleeping and the real clock are what a load generator is made of.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time on real threads")]
#![allow(clippy::print_stdout, reason = "the table is this program's result")]
#![allow(clippy::print_stderr, reason = "progress and left-out servers go to stderr")]

mod client;
mod clients;
mod contender;
mod content;
mod cores;
mod fairness;
mod filesystem;
mod hogs;
mod home;
mod iscsi;
mod load;
mod place;
mod process;
mod raw;
mod record;
mod reopen;
mod report;
mod scratch;
mod series;
mod side_by_side;
mod store;
mod storm;
mod tls;
mod tool;
mod vhost_user;
mod wire;

use anyhow::{Context, Result, ensure};
use block::ByteSize;
use clap::{Parser, Subcommand};
use serde::Serialize;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures Sojourn, other NBD servers and the raw limit of the socket, one after the other.
#[derive(Debug, Parser)]
#[command(name = "sojourn-bench", version, after_help = EXAMPLES)]
struct Arguments {
    #[command(subcommand)]
    command: Option<BenchCommand>,

    /// Short windows and fewer loads: a look in about a minute.
    #[arg(long)]
    quick: bool,

    /// Only servers whose name begins with NAME (may be repeated); raw is always measured.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,

    /// Only loads whose name begins with NAME (may be repeated), as in the JSON: read-8x16.
    #[arg(long, value_name = "NAME")]
    load: Vec<String>,

    /// Length of one measured window, in seconds [default: 0.5, quick: 0.2]. One of first writes ends when the
    /// disk is written.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<f64>,

    /// Windows of each cell, one in every round over all servers; the median is printed.
    #[arg(long, value_name = "N", default_value_t = 3)]
    rounds: usize,

    /// Size of the disk that is served.
    #[arg(long, value_name = "SIZE", default_value = "256MiB")]
    size: ByteSize,

    /// Where the disks are put (a fresh directory in it) [default: the temporary directory].
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,

    /// A new file system for each server, on a loop device in a file of DIR: earlier writes are in no figure.
    /// Needs root.
    #[arg(long, value_name = "KIND")]
    fresh: Option<filesystem::FilesystemKind>,

    /// The sojourn binary [default: the one beside this program].
    #[arg(long, value_name = "PATH")]
    sojourn: Option<PathBuf>,

    /// Another build's sojourn binary, measured beside this one: what a change costs or gains.
    #[arg(long, value_name = "PATH")]
    before: Option<PathBuf>,

    /// All servers and clients talk over TCP on this machine, and not over unix sockets.
    #[arg(long)]
    tcp: bool,

    /// Processes of the same priority that compute all the time beside the servers and their clients.
    #[arg(long, value_name = "N", default_value_t = 0)]
    hogs: usize,

    /// Also write everything as JSON to FILE.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum BenchCommand {
    /// Measures how long a disk takes to open after the server was killed.
    Reopen {
        /// Size of the disk.
        #[arg(long, value_name = "SIZE", default_value = "10GiB")]
        disk: ByteSize,
        /// How much of it is private: scattered blocks of 4 KiB.
        #[arg(long, value_name = "SIZE", default_value = "1GiB")]
        private: ByteSize,
    },
    /// Measures what recording a trace costs: one server that records and one that does not, in
    /// turn. Fails when requests were not recorded.
    Record,
    /// Measures importing, storing, exporting, verifying and booting an image, beside other tools.
    Store(store::Images),
    /// Measures boot storms: clients that boot at the same moment from a slow disk, with each of the
    /// server's helps alone and with all, beside qemu-nbd.
    Storm(storm::StormArgs),
    /// Measures what a light client feels of a storm of others.
    Fairness(fairness::FairnessArgs),
    /// Measures 50, 500 and 2,000 clients that connect in the same instant, and the server's memory.
    Clients,
    /// Measures large reads with TLS and without; fails when TLS has less than half the throughput.
    Tls,
    /// Measures 4 KiB requests by vhost-user, beside qemu-storage-daemon and NBD.
    VhostUser,
    /// Measures 4 KiB requests by iSCSI over TCP, beside tgt and NBD.
    Iscsi,
    /// The raw ping-pong server, started by the benchmark itself.
    #[command(hide = true)]
    RawServer {
        /// Where to listen: the path of a unix socket, or an address with its port.
        place: PathBuf,
        /// Size of the disk, bytes.
        size: u64,
    },
    /// One of `--hogs`, started by the benchmark itself.
    #[command(hide = true, name = hogs::COMMAND)]
    Hog,
}

const EXAMPLES: &str = "\
Examples:
  sojourn-bench                                  the whole table, about five minutes
  sojourn-bench --quick --json /tmp/bench.json   a look, and the figures as data
  sojourn-bench --tcp                            the same over TCP
  sojourn-bench --hogs 2 --load read-1x1 --load write-1x1
                                                 one request in flight on a busy machine
  sojourn-bench --only sojourn --before old/sojourn --rounds 9
                                                 two builds, in turn
  sojourn-bench --before old/sojourn --only sojourn-private --load first --fresh ext4 --dir /dev/shm
                                                 their first writes, without a disk's own noise
  sojourn-bench store A.raw B.raw boot.txt       stores of images; `make bench-store` makes the files
  sojourn-bench storm --image A.raw boot.txt     50 clients boot A from a slow disk
  sojourn-bench fairness                         a light client beside 49 others
  sojourn-bench clients                          connecting at once; memory
  sojourn-bench --rounds 15 record               what recording a trace costs
  sojourn-bench reopen                           a disk of 10 GiB with 1 GiB of private blocks
  sojourn-bench tls                              large reads with TLS and without
  sojourn-bench vhost-user                       as a virtual machine on the same host has it
  sojourn-bench iscsi                            as a machine with an iSCSI initiator has it
  sojourn-bench --only sojourn-file --load read-8x16 --seconds 10 --rounds 1
                                                 one long window, to be profiled";

fn main() -> ExitCode {
    let outcome = Arguments::parse().run();
    match outcome {
        Ok(all_served) if all_served => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(1),
        Err(error) => {
            eprintln!("sojourn-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

impl Arguments {
    /// Does what was asked for; whether every cell of every server of ours was measured, and every goal reached.
    fn run(self) -> Result<bool> {
        match &self.command {
            Some(BenchCommand::RawServer { place, size }) => {
                raw::serve(&place::Endpoint::parse(place), *size)?;
                return Ok(true);
            }
            Some(BenchCommand::Hog) => {
                hogs::compute();
                return Ok(true);
            }
            _ => {}
        }
        let parent = self.dir.clone().unwrap_or_else(std::env::temp_dir);
        let scratch = scratch::Scratch::make(&parent)?;
        let sojourn = match &self.sojourn {
            Some(path) => path.clone(),
            None => std::env::current_exe()?.with_file_name("sojourn"),
        };
        match &self.command {
            Some(command) => self.measure(command, &sojourn, scratch.path()),
            None => self.compare(sojourn, &scratch),
        }
    }

    /// Carries out the measurement of a command; whether it reached its goals.
    fn measure(&self, command: &BenchCommand, sojourn: &Path, dir: &Path) -> Result<bool> {
        let window =
            |usual: f64| Duration::from_secs_f64(self.seconds.unwrap_or(usual).clamp(0.05, 600.0));
        let rounds = self.rounds.clamp(1, 100);
        match command {
            BenchCommand::Store(images) => {
                let report = store::run(images, sojourn, dir, self.rounds)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            BenchCommand::Storm(options) => {
                let report = storm::run(options, sojourn, dir)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            BenchCommand::Fairness(options) => {
                let report = fairness::run(options, sojourn, dir)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            BenchCommand::Clients => {
                let report = clients::run(sojourn, dir)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            BenchCommand::Record => {
                let window = Duration::from_secs_f64(self.seconds.unwrap_or(1.0));
                self.show(&record::run(sojourn, dir, window, self.rounds)?)?;
                Ok(true)
            }
            BenchCommand::Reopen { disk, private } => {
                self.show(&reopen::run(sojourn, dir, disk.0, private.0)?)?;
                Ok(true)
            }
            BenchCommand::Tls => {
                let report = tls::run(sojourn, dir, window(2.0), rounds)?;
                self.show(&report)?;
                Ok(report.is_reached())
            }
            BenchCommand::VhostUser => {
                let report = vhost_user::run(sojourn, dir, window(1.0), rounds)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            BenchCommand::Iscsi => {
                let report = iscsi::run(sojourn, dir, window(1.0), rounds)?;
                self.show(&report)?;
                Ok(report.all_reached())
            }
            // They measure nothing: they are what is started beside.
            BenchCommand::RawServer { .. } | BenchCommand::Hog => Ok(true),
        }
    }

    /// Compares the servers; whether every cell of every server of ours was measured.
    fn compare(self, sojourn: PathBuf, scratch: &scratch::Scratch) -> Result<bool> {
        let window = self.seconds.unwrap_or(if self.quick { 0.2 } else { 0.5 });
        ensure!(
            (0.05..=600.0).contains(&window),
            "--seconds {window} is out of range; use 0.05 to 600"
        );
        ensure!((1..=100).contains(&self.rounds), "--rounds must be 1 to 100");
        ensure!(self.hogs <= 1000, "--hogs must be 0 to 1000");
        let size = self.size.0;
        ensure!(
            (64 << 20..=64 << 30).contains(&size) && size.is_multiple_of(1 << 20),
            "--size {} is out of range; use whole MiB from 64MiB to 64GiB",
            self.size
        );
        let loads = self.loads()?;
        let json = self.json;
        let options = series::SeriesOptions {
            window: Duration::from_secs_f64(window),
            rounds: self.rounds,
            size,
            only: self.only,
            tcp: self.tcp,
            sojourn,
            before: self.before,
            fresh: self.fresh,
            hogs: self.hogs,
            loads,
        };
        scratch.must_hold(options.room())?;
        let series = series::run(&options, scratch.path())?;
        let report = report::ComparisonReport::new(&options, &series);
        show(&report, json.as_deref())?;
        Ok(report.ours_complete())
    }

    /// The loads to compare under.
    fn loads(&self) -> Result<Vec<load::PatternLoad>> {
        let loads: Vec<load::PatternLoad> = load::ALL
            .iter()
            .filter(|load| if self.load.is_empty() { !self.quick || load.quick } else { true })
            .filter(|load| {
                self.load.is_empty() || self.load.iter().any(|name| load.name().starts_with(name))
            })
            .copied()
            .collect();
        ensure!(
            !loads.is_empty(),
            "no load is called {:?}; the loads are {}",
            self.load,
            load::ALL.map(|load| load.name()).join(", ")
        );
        Ok(loads)
    }

    /// Prints a report, and writes it where the command line says.
    fn show(&self, report: &(impl Display + Serialize)) -> Result<()> {
        show(report, self.json.as_deref())
    }
}

/// Prints a report, and writes it as JSON into a file.
fn show(report: &(impl Display + Serialize), json: Option<&Path>) -> Result<()> {
    print!("{report}");
    let Some(path) = json else { return Ok(()) };
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))
}
