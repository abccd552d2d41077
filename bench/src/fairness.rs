//! Whether a storm of others is felt by a client that asks for little: its 99th percentile alone and
//! beside 49 clients that ask for all they can get, each on a disk of its own; once where every read is
//! answered from memory, and once where every read comes from a store on a slow disk.
//!
//! In memory the server has half of the cores, and the clients the others, the light one before the
//! storm, as if it were on a machine of its own; and the same is shown where all share the cores, and
//! a client that waits for one passes for a server that is slow.
//!
//! The client reads 4 KiB anywhere, one at a time, and pauses between two reads: on the slow disk for
//! so long that it asks for less than a fiftieth of what the disk can do, even when its chunks are long.

use crate::client::{BenchConnection, Job};
use crate::content::{GRAIN, write_image};
use crate::cores::{Cores, run_at_once};
use crate::home::{Home, Serving};
use crate::storm::arm::Arm;
use crate::storm::bucket::Bucket;
use anyhow::{Result, bail, ensure};
use replay::Summary;
use serde::Serialize;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trace::TimeHistogram;

/// What the storm may make of the 99th percentile.
const AT_MOST: f64 = 3.0;
const CACHED: u64 = 128 << 20;
const STORED: u64 = 512 << 20;
/// The slow disk: a movement of its arm, and bytes in a second.
const SEEK: Duration = Duration::from_millis(6);
const RATE: f64 = 80e6;

/// How it is measured.
#[derive(Debug, clap::Args)]
pub(crate) struct FairnessArgs {
    /// How long each measurement takes, seconds; on the slow disk ten times as long
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0)]
    time: f64,
    /// Clients of the storm
    #[arg(long, value_name = "N", default_value_t = 49)]
    storm: usize,
    /// Requests that each of them has in flight; on the slow disk a quarter of that
    #[arg(long, value_name = "N", default_value_t = 16)]
    depth: usize,
    /// Only where this is looked for: memory or disk
    #[arg(long, value_name = "PLACE")]
    only: Option<String>,
}

/// The light client in one place.
#[derive(Debug, Serialize)]
struct FairnessRow {
    place: &'static str,
    /// Whether this is what the server is measured by; else it is shown beside that.
    counts: bool,
    /// Whether the light client's thread ran before the storm's, where it was to.
    ahead: Option<bool>,
    alone: LightClientTimes,
    beside: LightClientTimes,
    /// The 99th percentile beside the storm, of that alone.
    ratio: f64,
    /// Requests of the storm in a second.
    storm_iops: f64,
}

/// What the light client saw, microseconds.
#[derive(Debug, Serialize)]
struct LightClientTimes {
    reads: u64,
    p50_us: f64,
    p99_us: f64,
    longest_us: f64,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct FairnessReport {
    format: u32,
    storm: usize,
    depth: usize,
    at_most: f64,
    rows: Vec<FairnessRow>,
}

impl FairnessReport {
    /// Whether the storm is felt no more than it may be, in the rows that count; without such a row
    /// nothing was shown.
    pub(crate) fn all_reached(&self) -> bool {
        let mut rows = self.rows.iter().filter(|row| row.counts).peekable();
        rows.peek().is_some() && rows.all(|row| row.ratio <= self.at_most)
    }
}

impl fmt::Display for FairnessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "a light client alone and beside {} clients with {} requests in flight each\n\n\
             {:<28} {:>10} {:>10} {:>12} {:>12} {:>7} {:>11}",
            self.storm,
            self.depth,
            "where",
            "p50, us",
            "p99, us",
            "p50, storm",
            "p99, storm",
            "times",
            "storm/s",
        )?;
        for row in &self.rows {
            writeln!(
                f,
                "{:<28} {:>10.0} {:>10.0} {:>12.0} {:>12.0} {:>7.2} {:>11.0}",
                row.place,
                row.alone.p50_us,
                row.alone.p99_us,
                row.beside.p50_us,
                row.beside.p99_us,
                row.ratio,
                row.storm_iops,
            )?;
        }
        writeln!(f)?;
        for row in self.rows.iter().filter(|row| row.ahead == Some(false)) {
            writeln!(
                f,
                "{}: the light client's thread waited its turn behind those of the storm, which passes \
                 for a slow server: chrt is not there, or not allowed",
                row.place
            )?;
        }
        for row in self.rows.iter().filter(|row| row.counts) {
            let verdict = if row.ratio <= self.at_most { "ok  " } else { "MISS" };
            writeln!(
                f,
                "{verdict} p99 beside the storm, {:<28} {:>6.2} (at most {})",
                row.place, row.ratio, self.at_most
            )?;
        }
        Ok(())
    }
}

/// Places on a disk, all over it, none twice in a long time.
struct OffsetSequence {
    state: u64,
    blocks: u64,
}

impl OffsetSequence {
    fn new(seed: u64, size: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, blocks: size / GRAIN as u64 }
    }

    fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state % self.blocks * GRAIN as u64
    }
}

/// Measures both places.
pub(crate) fn run(
    options: &FairnessArgs,
    sojourn: &Path,
    scratch: &Path,
) -> Result<FairnessReport> {
    ensure!((0.1..=600.0).contains(&options.time), "--time must be 0.1 to 600");
    ensure!((1..=500).contains(&options.storm), "--storm must be 1 to 500");
    ensure!((1..=256).contains(&options.depth), "--depth must be 1 to 256");
    let mut report = FairnessReport {
        format: 1,
        storm: options.storm,
        depth: options.depth,
        at_most: AT_MOST,
        rows: Vec::new(),
    };
    let wanted = |place: &str| options.only.as_deref().is_none_or(|only| only == place);
    if wanted("memory") {
        report.rows.extend(in_memory(options, sojourn, &scratch.join("memory"))?);
    }
    if wanted("disk") {
        report.rows.extend(on_disk(options, sojourn, &scratch.join("disk"))?);
    }
    ensure!(!report.rows.is_empty(), "--only is memory or disk");
    Ok(report)
}

fn in_memory(options: &FairnessArgs, sojourn: &Path, dir: &Path) -> Result<Vec<FairnessRow>> {
    std::fs::create_dir_all(dir)?;
    let image = dir.join("image.raw");
    write_image(&image, CACHED)?;
    let home = Home::make(
        sojourn,
        &dir.join("home"),
        &dir.join("store").display().to_string(),
        Vec::new(),
    )?;
    home.import(&image, "golden:1")?;
    home.disks("d", options.storm + 1, "golden:1")?;
    let load = StormLoad {
        storm: options.storm,
        depth: options.depth,
        size: CACHED,
        time: Duration::from_secs_f64(options.time),
        pause: Duration::from_millis(1),
        ahead: true,
    };
    let start = || {
        let serving = home.serve("[cache]\nsize = \"256MiB\"\n", None)?;
        let mut all = serving.connect("d0")?;
        for offset in (0..CACHED).step_by(1 << 20) {
            all.read(offset, &mut vec![0; 1 << 20])?;
        }
        all.close();
        Ok(serving)
    };
    let mut rows = Vec::new();
    if let Some(cores) = Cores::split()? {
        let serving = cores.serve(start)?;
        rows.push(measure("memory", true, &load, &serving)?);
    } else {
        eprintln!("with one core the server cannot have cores of its own");
    }
    let load = StormLoad { ahead: false, ..load };
    rows.push(measure("memory, cores shared", false, &load, &start()?)?);
    Ok(rows)
}

fn on_disk(options: &FairnessArgs, sojourn: &Path, dir: &Path) -> Result<Vec<FairnessRow>> {
    std::fs::create_dir_all(dir)?;
    let image = dir.join("image.raw");
    write_image(&image, STORED)?;
    let arm = Arc::new(Arm::new(SEEK, RATE));
    let bucket = Bucket::start(&dir.join("bucket"), Arc::clone(&arm))?;
    let home = Home::make(sojourn, &dir.join("home"), bucket.url(), bucket.environment())?;
    home.import(&image, "golden:1")?;
    home.disks("d", options.storm + 1, "golden:1")?;
    let load = StormLoad {
        storm: options.storm,
        depth: (options.depth / 4).max(1),
        size: STORED,
        time: Duration::from_secs_f64(10.0 * options.time),
        pause: Duration::from_secs(1),
        ahead: false,
    };
    let mut rows = Vec::new();
    for turns in [true, false] {
        // Next to nothing of the image is kept: every read is of the disk.
        let configuration = format!(
            "[cache]\nsize = \"16MiB\"\n[pieces]\nsize = 0\n[serve]\nboot_lists = false\nloads = {}\n",
            if turns { 64 } else { 0 }
        );
        let serving = home.serve(&configuration, None)?;
        arm.start();
        let place = if turns { "disk" } else { "disk, without turns" };
        rows.push(measure(place, turns, &load, &serving)?);
        arm.stop();
    }
    Ok(rows)
}

/// What is asked of a server.
struct StormLoad {
    storm: usize,
    depth: usize,
    /// Bytes of every disk.
    size: u64,
    time: Duration,
    /// Between two reads of the light client.
    pause: Duration,
    /// Whether the light client's thread runs before the storm's.
    ahead: bool,
}

fn measure(
    place: &'static str,
    counts: bool,
    load: &StormLoad,
    serving: &Serving,
) -> Result<FairnessRow> {
    let StormLoad { storm, depth, size, .. } = *load;
    eprintln!("{place}, alone …");
    let mut light = serving.connect("d0")?;
    let mut places = OffsetSequence::new(1, size);
    let (alone, alone_ahead) = read_now_and_then(&mut light, &mut places, load)?;
    eprintln!("{place}, beside {storm} …");
    let over = AtomicBool::new(false);
    let (beside, requests, took) = std::thread::scope(|scope| {
        let over = &over;
        let threads: Vec<_> = (1..=storm)
            .map(|number| {
                scope.spawn(move || -> Result<u64> {
                    let mut connection = serving.connect(&format!("d{number}"))?;
                    let mut places = OffsetSequence::new(number as u64 + 1, size);
                    let job = Job { writes: false, bytes: GRAIN, depth };
                    let next = || (!over.load(Ordering::Relaxed)).then(|| places.next());
                    let tally = connection.drive(job, None, next)?;
                    connection.close();
                    Ok(tally.latency.count())
                })
            })
            .collect();
        // The storm has begun, and the server has found out how much the store can take.
        let began = Instant::now();
        std::thread::sleep(Duration::from_secs(2).min(load.time));
        let beside = read_now_and_then(&mut light, &mut places, load);
        over.store(true, Ordering::Relaxed);
        let took = began.elapsed();
        let mut requests = 0;
        for thread in threads {
            match thread.join() {
                Ok(count) => requests += count?,
                Err(_) => bail!("a client's thread failed"),
            }
        }
        Ok((beside?, requests, took))
    })?;
    light.close();
    let (beside, beside_ahead) = beside;
    Ok(FairnessRow {
        place,
        counts,
        ahead: load.ahead.then_some(alone_ahead && beside_ahead),
        ratio: beside.p99_us / alone.p99_us,
        alone,
        beside,
        storm_iops: requests as f64 / took.as_secs_f64(),
    })
}

/// Reads as the light client; also says whether its thread ran before the others.
fn read_now_and_then(
    connection: &mut BenchConnection,
    places: &mut OffsetSequence,
    load: &StormLoad,
) -> Result<(LightClientTimes, bool)> {
    let ahead = load.ahead && run_at_once(true);
    let seen = read_until(connection, places, load.time, load.pause);
    if ahead {
        run_at_once(false);
    }
    Ok((seen?, ahead))
}

fn read_until(
    connection: &mut BenchConnection,
    places: &mut OffsetSequence,
    time: Duration,
    pause: Duration,
) -> Result<LightClientTimes> {
    let mut latency = TimeHistogram::default();
    let mut buffer = vec![0; GRAIN];
    let end = Instant::now() + time;
    while Instant::now() < end {
        let offset = places.next();
        let asked = Instant::now();
        connection.read(offset, &mut buffer)?;
        latency.add(u64::try_from(asked.elapsed().as_nanos()).unwrap_or(u64::MAX));
        crate::content::check(&buffer, offset)?;
        std::thread::sleep(pause);
    }
    let summary = Summary::of(&latency);
    Ok(LightClientTimes {
        reads: latency.count(),
        p50_us: summary.p50_us,
        p99_us: summary.p99_us,
        longest_us: summary.max_us,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen() -> LightClientTimes {
        LightClientTimes { reads: 1000, p50_us: 40.0, p99_us: 80.0, longest_us: 90.0 }
    }

    fn report(ahead: Option<bool>) -> FairnessReport {
        let row = FairnessRow {
            place: "memory",
            counts: true,
            ahead,
            alone: seen(),
            beside: seen(),
            ratio: 1.0,
            storm_iops: 1e6,
        };
        FairnessReport { format: 1, storm: 49, depth: 16, at_most: AT_MOST, rows: vec![row] }
    }

    #[test]
    fn a_report_says_where_the_light_clients_thread_had_to_wait_its_turn() {
        for (ahead, told) in [(Some(false), true), (Some(true), false), (None, false)] {
            let report = report(ahead);
            assert_eq!(report.to_string().contains("memory: the light client's thread"), told);
            let json = serde_json::to_value(&report).unwrap();
            assert_eq!(json["rows"][0]["ahead"], serde_json::json!(ahead));
        }
    }
}
