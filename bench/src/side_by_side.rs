//! Front ends beside each other: 4 KiB requests of one client on a disk in memory, all servers in turn, and
//! what is to be reached.

use crate::client::{self, BenchConnection, ConnectionResult, Job};
use crate::process::Tree;
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::fmt;
use std::process::Child;
use std::time::{Duration, Instant};

/// Length of a request, bytes.
pub(crate) const REQUEST: usize = 4096;
/// What is read and written, bytes; it is in memory.
pub(crate) const SIZE: u64 = 256 << 20;
/// Blocks that are written again and again, bytes.
const REWRITTEN: u64 = 64 << 20;
/// Length of the requests that warm a server up, bytes.
const LARGE: usize = 128 << 10;
/// Unmeasured running before a window.
pub(crate) const WARM_UP: Duration = Duration::from_millis(100);

/// Reads and writes at these depths.
const fn job(writes: bool, depth: usize) -> Job {
    Job { writes, bytes: REQUEST, depth }
}

/// The loads, in the order in which they run.
pub(crate) const LOADS: [Job; 5] =
    [job(false, 1), job(false, 8), job(false, 32), job(true, 1), job(true, 32)];

/// A client of a server.
pub(crate) trait Driven {
    /// Keeps `job.depth` requests in flight, at the offsets that `next` gives, until it gives none or
    /// `until` has come; returns when all are answered.
    ///
    /// # Errors
    /// When a request fails, or an answer is wrong.
    fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<ConnectionResult>;

    /// The longest write that it can drive, bytes.
    fn longest_write(&self) -> usize {
        LARGE
    }

    /// Leaves the server, which can serve another client then.
    ///
    /// # Errors
    /// When the server does not let it go.
    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Driven for BenchConnection {
    fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<ConnectionResult> {
        Self::drive(self, job, until, next)
    }

    fn close(self: Box<Self>) -> Result<()> {
        Self::close(*self);
        Ok(())
    }
}

/// Connects a client that is to do this job.
pub(crate) type Connect = Box<dyn Fn(Job) -> Result<Box<dyn Driven>>>;

/// A server that is measured.
pub(crate) struct Served {
    /// Its name in tables; goals choose servers by how it begins.
    pub(crate) name: &'static str,
    /// Connects a client.
    pub(crate) open: Connect,
    /// Its processes.
    pub(crate) tree: Tree,
    /// Stopped when the last server that holds it is dropped.
    pub(crate) _process: std::rc::Rc<dyn std::any::Any>,
}

/// A process that is killed when this is dropped.
pub(crate) struct Killed(pub(crate) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The window in the middle of all of one load at one server.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cell {
    server: &'static str,
    writes: bool,
    depth: usize,
    per_second: f64,
    p50_us: f64,
    p99_us: f64,
    /// CPU time of the server, per request.
    cpu_us: f64,
}

/// What a goal compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Figure {
    /// Requests per second: at least so many times the other's.
    Rate,
    /// Median latency: at most so many times the other's.
    Median,
    /// The server's CPU time per request: at most so many times the other's.
    Cpu,
}

/// Something that is to be reached: the best of `ours` in relation to the best of `peer`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Comparison {
    pub(crate) ours: &'static str,
    pub(crate) peer: &'static str,
    pub(crate) writes: bool,
    pub(crate) depth: usize,
    pub(crate) figure: Figure,
    pub(crate) ratio: f64,
}

/// What came of it.
#[derive(Debug, Serialize)]
struct Goal {
    what: String,
    found: f64,
    wanted: f64,
    reached: bool,
}

impl Comparison {
    /// `None` when one of the two was not measured.
    fn look(&self, rows: &[Cell]) -> Option<Goal> {
        let best = |of: &str| {
            let cells = rows.iter().filter(|row| row.server.starts_with(of));
            let cells = cells.filter(|row| (row.writes, row.depth) == (self.writes, self.depth));
            match self.figure {
                Figure::Rate => cells.map(|cell| cell.per_second).reduce(f64::max),
                Figure::Median => cells.map(|cell| cell.p50_us).reduce(f64::min),
                Figure::Cpu => cells.map(|cell| cell.cpu_us).reduce(f64::min),
            }
        };
        let found = best(self.ours)? / best(self.peer)?;
        let (figure, reached) = match self.figure {
            Figure::Rate => ("rate", found >= self.ratio),
            Figure::Median => ("p50", found <= self.ratio),
            Figure::Cpu => ("CPU", found <= self.ratio),
        };
        let load = load_name(self.writes, self.depth);
        let what = format!("{load}, {figure} of {}'s", self.peer);
        Some(Goal { what, found, wanted: self.ratio, reached })
    }
}

fn load_name(writes: bool, depth: usize) -> String {
    format!("{}-{depth}", if writes { "write" } else { "read" })
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
pub(crate) struct SideBySideReport {
    #[serde(skip)]
    title: &'static str,
    rows: Vec<Cell>,
    left_out: Vec<String>,
    goals: Vec<Goal>,
}

impl SideBySideReport {
    /// Whether all goals that could be measured are reached.
    pub(crate) fn all_reached(&self) -> bool {
        self.goals.iter().all(|goal| goal.reached)
    }
}

impl fmt::Display for SideBySideReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.title)?;
        writeln!(
            f,
            "load        server                            IOPS   p50 us   p99 us  CPU us"
        )?;
        for row in &self.rows {
            let load = load_name(row.writes, row.depth);
            let Cell { server, per_second, p50_us, p99_us, cpu_us, .. } = row;
            writeln!(
                f,
                "{load:<11} {server:<28} {per_second:9.0} {p50_us:8.1} {p99_us:8.1} {cpu_us:7.2}"
            )?;
        }
        for left_out in &self.left_out {
            writeln!(f, "left out: {left_out}")?;
        }
        for Goal { what, found, wanted, reached } in &self.goals {
            let verdict = if *reached { "reached" } else { "MISSED" };
            writeln!(f, "{what}: {found:.2} (wanted {wanted:.2}): {verdict}")?;
        }
        Ok(())
    }
}

/// Measures `rounds` windows of each load at each server, in turn.
///
/// # Errors
/// When a server does not answer, or gives a wrong answer.
pub(crate) fn run(
    title: &'static str,
    mut servers: Vec<Served>,
    left_out: Vec<String>,
    wanted: &[Comparison],
    window: Duration,
    rounds: usize,
) -> Result<SideBySideReport> {
    let mut rows = Vec::new();
    for job in LOADS {
        let mut samples = vec![Vec::new(); servers.len()];
        for round in 1..=rounds {
            for (server, samples) in servers.iter_mut().zip(&mut samples) {
                let load = load_name(job.writes, job.depth);
                eprintln!("{load}, round {round} of {rounds}: {}", server.name);
                let cell = measure(server, job, window);
                samples.push(cell.with_context(|| format!("{load} at {}", server.name))?);
            }
        }
        rows.extend(samples.into_iter().filter_map(median));
    }
    let goals = wanted.iter().filter_map(|wanted| wanted.look(&rows)).collect();
    Ok(SideBySideReport { title, rows, left_out, goals })
}

/// The window in the middle, by rate.
fn median(mut samples: Vec<Cell>) -> Option<Cell> {
    samples.sort_by(|a, b| a.per_second.total_cmp(&b.per_second));
    let middle = samples.len() / 2;
    samples.into_iter().nth(middle)
}

/// One window of one load.
///
/// # Errors
/// When the server does not answer, or gives a wrong answer.
pub(crate) fn measure(server: &mut Served, job: Job, window: Duration) -> Result<Cell> {
    let mut driven = (server.open)(job)?;
    // What is read was read before; what is written was written. Written blocks are apart from those whose
    // content is checked: behind them.
    let (base, len) = match job.writes {
        true => (SIZE - REWRITTEN, REWRITTEN),
        false => (0, SIZE - REWRITTEN),
    };
    let bytes = if job.writes { driven.longest_write().min(LARGE) } else { LARGE };
    let large = Job { writes: job.writes, bytes, depth: 8 };
    let mut offsets = (base..base + len).step_by(large.bytes);
    driven.drive(large, None, &mut || offsets.next()).context("warm-up")?;
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        Some(base + state % (len / REQUEST as u64) * REQUEST as u64)
    };
    driven.drive(job, Some(Instant::now() + WARM_UP), &mut next).context("warm-up")?;
    server.tree.refresh();
    let before = server.tree.usage();
    let start = Instant::now();
    let tally = driven.drive(job, Some(start + window), &mut next)?;
    server.tree.refresh();
    let cpu = server.tree.usage().since(&before);
    driven.close()?;
    let requests = tally.latency.count();
    ensure!(requests > 0, "no request was answered");
    let quantile = |part: f64| tally.latency.quantile_ms(part) * 1e3;
    Ok(Cell {
        server: server.name,
        writes: job.writes,
        depth: job.depth,
        per_second: client::rate(start, std::iter::once(&tally)),
        p50_us: quantile(0.5),
        p99_us: quantile(0.99),
        cpu_us: cpu / requests as f64 * 1e6,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(server: &'static str, per_second: f64, cpu_us: f64) -> Cell {
        Cell {
            server,
            writes: false,
            depth: 1,
            per_second,
            p50_us: 1e6 / per_second,
            p99_us: 0.0,
            cpu_us,
        }
    }

    #[test]
    fn goals_compare_the_best_of_each_and_skip_what_was_not_measured() {
        let rows = [cell("a 1", 100.0, 4.0), cell("a 2", 300.0, 5.0), cell("b", 100.0, 8.0)];
        let wanted = |peer, figure, ratio| Comparison {
            ours: "a",
            peer,
            writes: false,
            depth: 1,
            figure,
            ratio,
        };
        for (figure, ratio, found, reached) in [
            (Figure::Rate, 3.0, 3.0, true),
            (Figure::Rate, 3.1, 3.0, false),
            (Figure::Cpu, 0.5, 0.5, true),
            (Figure::Cpu, 0.4, 0.5, false),
            (Figure::Median, 0.4, 1.0 / 3.0, true),
        ] {
            let goal = wanted("b", figure, ratio).look(&rows).unwrap();
            assert!((goal.found - found).abs() < 1e-9, "{goal:?}");
            assert_eq!(goal.reached, reached, "{goal:?}");
        }
        assert!(wanted("c", Figure::Rate, 1.0).look(&rows).is_none());
    }
}
