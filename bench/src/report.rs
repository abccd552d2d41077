//! The result: tables for people, JSON for programs.

use crate::contender::Role;
use crate::filesystem::FilesystemKind;
use crate::load::Pattern;
use crate::series::{Cell, Series, SeriesOptions};
use serde::Serialize;
use std::fmt;

/// Everything that a run found. Its JSON form is described in docs/benchmarks.md.
#[derive(Debug, Serialize)]
pub(crate) struct ComparisonReport {
    format: u32,
    cores: usize,
    kernel: String,
    window_seconds: f64,
    rounds: usize,
    disk_bytes: u64,
    /// The file system that each server has anew, if one was asked for.
    fresh: Option<&'static str>,
    /// Processes that computed all the time beside the servers.
    hogs: usize,
    /// `unix` or `tcp`.
    socket: &'static str,
    servers: Vec<ComparedServer>,
    left_out: Vec<LeftOut>,
    loads: Vec<LoadTable>,
}

#[derive(Debug, Serialize)]
struct ComparedServer {
    name: &'static str,
    role: Role,
    what: &'static str,
    version: String,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    name: &'static str,
    role: Role,
    reason: String,
}

/// One load on all servers.
#[derive(Debug, Serialize)]
struct LoadTable {
    name: String,
    title: String,
    clients: usize,
    depth: usize,
    request_bytes: u64,
    rows: Vec<ServerRow>,
    #[serde(skip)]
    sequential: bool,
}

#[derive(Debug, Serialize)]
struct ServerRow {
    server: &'static str,
    #[serde(skip)]
    role: Role,
    #[serde(flatten)]
    outcome: RowOutcome,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "outcome")]
enum RowOutcome {
    Measured(Figures),
    Failed { reason: String },
}

#[derive(Debug, Serialize)]
struct Figures {
    /// Requests per second, the median of the windows.
    iops: f64,
    /// The same in 10^6 bytes per second.
    mb_per_s: f64,
    /// The figure of each window, in the order of the rounds.
    iops_of_windows: Vec<f64>,
    cpu_us_per_request: f64,
    p50_us: f64,
    p99_us: f64,
    peak_rss_mib: f64,
    /// `iops` by that of the fastest peer that was measured.
    of_best_peer: Option<f64>,
    /// `iops` by that of the raw ping-pong.
    of_raw: Option<f64>,
    /// Rate by that of the other build (`--before`): the median over the rounds.
    of_before: Option<f64>,
    /// Where that median lies with 95 % confidence, if there are rounds enough to tell.
    of_before_range: Option<[f64; 2]>,
    /// CPU time per request by that of the other build, over all rounds.
    cpu_of_before: Option<f64>,
}

impl Figures {
    fn new(cell: &Cell, bytes: u64) -> Self {
        let mut rates: Vec<f64> = cell.samples.iter().map(|sample| sample.rate.round()).collect();
        let windows = rates.clone();
        let iops = median(&mut rates);
        let cpu: f64 = cell.samples.iter().map(|sample| sample.cpu).sum();
        let peak = cell.samples.iter().map(|sample| sample.peak_memory).max().unwrap_or(0);
        let mut latency = trace::TimeHistogram::default();
        cell.samples.iter().for_each(|sample| latency.merge(&sample.latency));
        Self {
            iops: iops.round(),
            mb_per_s: round(iops * bytes as f64 / 1e6, 1),
            iops_of_windows: windows,
            cpu_us_per_request: round(cpu / latency.count() as f64 * 1e6, 2),
            p50_us: round(latency.quantile_ms(0.5) * 1e3, 1),
            p99_us: round(latency.quantile_ms(0.99) * 1e3, 1),
            peak_rss_mib: round(peak as f64 / f64::from(1 << 20), 1),
            of_best_peer: None,
            of_raw: None,
            of_before: None,
            of_before_range: None,
            cpu_of_before: None,
        }
    }
}

impl ComparisonReport {
    /// The report of a run.
    pub(crate) fn new(options: &SeriesOptions, series: &Series) -> Self {
        let mut loads = Vec::new();
        for (index, load) in options.loads.iter().enumerate() {
            let rows = series.runs.iter().map(|run| {
                let cell = &run.cells[index];
                let outcome = match &cell.failure {
                    Some(reason) => RowOutcome::Failed { reason: reason.clone() },
                    None => RowOutcome::Measured(Figures::new(cell, load.bytes())),
                };
                ServerRow { server: run.contender.name, role: run.contender.role, outcome }
            });
            let mut rows: Vec<ServerRow> = rows.collect();
            compare(&mut rows);
            loads.push(LoadTable {
                name: load.name(),
                title: load.title(),
                clients: load.clients,
                depth: load.depth,
                request_bytes: load.bytes(),
                rows,
                sequential: load.pattern == Pattern::Sequential,
            });
        }
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Self {
            format: 1,
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            kernel: kernel.trim().to_owned(),
            window_seconds: options.window.as_secs_f64(),
            rounds: options.rounds,
            disk_bytes: options.size,
            fresh: options.fresh.map(FilesystemKind::name),
            hogs: options.hogs,
            socket: if options.tcp { "tcp" } else { "unix" },
            servers: series
                .runs
                .iter()
                .map(|run| ComparedServer {
                    name: run.contender.name,
                    role: run.contender.role,
                    what: run.contender.what,
                    version: run.version.clone(),
                })
                .collect(),
            left_out: series
                .left_out
                .iter()
                .map(|(contender, reason)| LeftOut {
                    name: contender.name,
                    role: contender.role,
                    reason: reason.clone(),
                })
                .collect(),
            loads,
        }
    }

    /// Whether there is a figure for everything of ours that was asked for.
    pub(crate) fn ours_complete(&self) -> bool {
        let ours = |role| matches!(role, Role::Ours | Role::Before);
        let failed =
            |row: &ServerRow| ours(row.role) && matches!(row.outcome, RowOutcome::Failed { .. });
        !self.loads.iter().any(|table| table.rows.iter().any(failed))
            && !self.left_out.iter().any(|server| ours(server.role))
    }
}

/// Fills in the ratios.
fn compare(rows: &mut [ServerRow]) {
    let fastest = |rows: &[ServerRow], role: Role| {
        rows.iter()
            .filter(|row| row.role == role)
            .filter_map(|row| match &row.outcome {
                RowOutcome::Measured(figures) => Some(figures.iops),
                RowOutcome::Failed { .. } => None,
            })
            .fold(None, |best: Option<f64>, iops| Some(best.map_or(iops, |best| best.max(iops))))
    };
    let (peer, raw) = (fastest(rows, Role::Peer), fastest(rows, Role::Limit));
    for index in 1..rows.len() {
        let (ours, before) = rows.split_at_mut(index);
        let (ours, before) = (&mut ours[index - 1], &before[0]);
        if before.role == Role::Before
            && let (RowOutcome::Measured(ours), RowOutcome::Measured(before)) =
                (&mut ours.outcome, &before.outcome)
        {
            let rounds = ours.iops_of_windows.iter().zip(&before.iops_of_windows);
            let mut ratios: Vec<f64> = rounds.map(|(now, then)| now / then).collect();
            ours.of_before = Some(round(median(&mut ratios), 3));
            ours.of_before_range =
                range_of_median(&ratios).map(|range| range.map(|end| round(end, 3)));
            let cpu = ours.cpu_us_per_request / before.cpu_us_per_request;
            ours.cpu_of_before = cpu.is_finite().then(|| round(cpu, 3));
        }
    }
    for row in rows {
        if let RowOutcome::Measured(figures) = &mut row.outcome {
            figures.of_best_peer = peer.map(|peer| round(figures.iops / peer, 3));
            figures.of_raw = raw.map(|raw| round(figures.iops / raw, 3));
        }
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        length if length % 2 == 1 => values[middle],
        _ => (values[middle - 1] + values[middle]) / 2.0,
    }
}

/// The range that holds the median of what these sorted values are a sample of with at least 95 % confidence,
/// whatever their distribution: between two of them as far from either end. `None` below six values.
fn range_of_median(sorted: &[f64]) -> Option<[f64; 2]> {
    let count = sorted.len();
    // How likely it is that at most `below` of the values lie below the median.
    let (mut below, mut chance, mut likelihood) = (0, 0.0, 0.5f64.powi(i32::try_from(count).ok()?));
    while chance + likelihood <= 0.025 {
        chance += likelihood;
        likelihood *= (count - below) as f64 / (below + 1) as f64;
        below += 1;
    }
    let first = below.checked_sub(1)?;
    Some([*sorted.get(first)?, *sorted.get(count - below)?])
}

fn round(value: f64, digits: i32) -> f64 {
    let scale = 10f64.powi(digits);
    (value * scale).round() / scale
}

const COLUMNS: [&str; 6] = ["CPU us/req", "p50 us", "p99 us", "RSS MiB", "of best peer", "of raw"];

impl fmt::Display for ComparisonReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} cores, Linux {}; medians of {} windows of {} s; disk of {} MiB, in memory{}; {}{}",
            self.cores,
            self.kernel,
            self.rounds,
            self.window_seconds,
            self.disk_bytes >> 20,
            self.fresh.map_or(String::new(), |kind| format!(", on a new {kind} for each server")),
            if self.socket == "tcp" { "TCP on this machine" } else { "unix socket" },
            match self.hogs {
                0 => String::new(),
                hogs => format!("; beside {hogs} processes that compute all the time"),
            }
        )?;
        for server in &self.servers {
            writeln!(f, "  {:<16} {} ({})", server.name, server.what, server.version)?;
        }
        for server in &self.left_out {
            writeln!(f, "  {:<16} left out: {}", server.name, server.reason)?;
        }
        for table in &self.loads {
            writeln!(f, "\n{}  [{}]", table.title, table.name)?;
            table.fmt(f)?;
        }
        Ok(())
    }
}

impl fmt::Display for LoadTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = if self.sequential { "MB/s" } else { "IOPS" };
        write!(f, "{:<16} {rate:>10}", "")?;
        for column in COLUMNS {
            write!(f, "  {column:>12}")?;
        }
        let beside_another_build = self.rows.iter().any(|row| row.role == Role::Before);
        if beside_another_build {
            write!(f, "  {:>12}  {:>14}  {:>12}", "of before", "95 % range", "CPU of it")?;
        }
        writeln!(f)?;
        for row in &self.rows {
            write!(f, "{:<16} ", row.server)?;
            match &row.outcome {
                RowOutcome::Failed { reason } => writeln!(f, "{:>10}  {reason}", "failed")?,
                RowOutcome::Measured(figures) => {
                    let rate = if self.sequential { figures.mb_per_s } else { figures.iops };
                    let ratio = |ratio: Option<f64>| match ratio {
                        Some(ratio) => format!("{ratio:.2}"),
                        None => "-".to_owned(),
                    };
                    write!(
                        f,
                        "{:>10}  {:>12.2}  {:>12.1}  {:>12.1}  {:>12.1}  {:>12}  {:>12}",
                        thousands(rate),
                        figures.cpu_us_per_request,
                        figures.p50_us,
                        figures.p99_us,
                        figures.peak_rss_mib,
                        ratio(figures.of_best_peer),
                        ratio(figures.of_raw)
                    )?;
                    if beside_another_build {
                        let (rate, cpu) = (figures.of_before, figures.cpu_of_before);
                        let range = figures.of_before_range;
                        let range = range.map_or("-".to_owned(), |[least, most]| {
                            format!("{least:.2} to {most:.2}")
                        });
                        write!(f, "  {:>12}  {range:>14}  {:>12}", ratio(rate), ratio(cpu))?;
                    }
                    writeln!(f)?;
                }
            }
        }
        Ok(())
    }
}

/// A whole number with commas between the thousands.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index) % 3 == 0 {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contender;
    use crate::load::{self, WindowSample};
    use crate::series::ServerRun;
    use std::time::Duration;
    use trace::TimeHistogram;

    fn sample(rate: f64) -> WindowSample {
        let mut latency = TimeHistogram::default();
        (0..1000).for_each(|_| latency.add(20_000));
        WindowSample { rate, cpu: 0.002, peak_memory: 3 << 20, latency }
    }

    fn cell(rates: &[f64]) -> Cell {
        Cell { samples: rates.iter().map(|rate| sample(*rate)).collect(), failure: None }
    }

    fn report(ours: Cell) -> ComparisonReport {
        let run = |name: &str, cell| {
            let contender = contender::ALL.into_iter().find(|c| c.name == name).unwrap();
            ServerRun { contender, version: "1".to_owned(), cells: vec![cell] }
        };
        let series = Series {
            runs: vec![
                run("raw", cell(&[1e6, 2e6, 3e6])),
                run("sojourn-file", ours),
                run("nbdkit-file", cell(&[250e3])),
                run("qemu-nbd-raw", cell(&[50e3, 60e3])),
            ],
            left_out: Vec::new(),
        };
        let options = SeriesOptions {
            window: Duration::from_millis(500),
            rounds: 3,
            size: 256 << 20,
            only: Vec::new(),
            tcp: false,
            sojourn: "sojourn".into(),
            before: None,
            fresh: None,
            hogs: 0,
            loads: vec![load::ALL[1]],
        };
        ComparisonReport::new(&options, &series)
    }

    #[test]
    fn another_build_is_compared_round_by_round() {
        let mut rows = [("sojourn-file", Role::Ours, [900e3, 330e3, 1e6]), {
            ("before-file", Role::Before, [1e6, 300e3, 1e6])
        }]
        .map(|(server, role, rates)| {
            let figures = Figures::new(&cell(&rates), 4096);
            ServerRow { server, role, outcome: RowOutcome::Measured(figures) }
        });
        compare(&mut rows);
        let RowOutcome::Measured(ours) = &rows[0].outcome else { unreachable!() };
        assert_eq!((ours.of_before, ours.cpu_of_before), (Some(1.0), Some(1.0)));
        assert_eq!(ours.of_before_range, None, "three rounds tell nothing");
        let RowOutcome::Measured(before) = &rows[1].outcome else { unreachable!() };
        assert_eq!(before.of_before, None);
    }

    #[test]
    fn the_range_of_a_median_is_that_of_the_sign_test() {
        let values = |count: u32| (1..=count).map(f64::from).collect::<Vec<_>>();
        assert_eq!(range_of_median(&values(5)), None);
        // Tables of the sign test: the 1st and 6th of 6, the 2nd and 9th of 10, the 6th and 15th of 20.
        for (count, range) in [(6, [1.0, 6.0]), (10, [2.0, 9.0]), (20, [6.0, 15.0])] {
            assert_eq!(range_of_median(&values(count)), Some(range), "{count}");
        }
    }

    #[test]
    fn figures_are_medians_and_ratios_to_the_fastest_peer_and_to_raw() {
        let report = report(cell(&[900e3, 1e6, 100.0]));
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["loads"][0]["rows"][1];
        assert_eq!(row["outcome"], "measured");
        assert_eq!(row["iops"], 900e3);
        assert_eq!(row["of_best_peer"], 3.6);
        assert_eq!(row["of_raw"], 0.45);
        assert_eq!(row["cpu_us_per_request"], 2.0);
        assert_eq!(row["peak_rss_mib"], 3.0);
        assert!(report.ours_complete());
        let text = report.to_string();
        let line = text.lines().find(|line| line.starts_with("sojourn-file ")).unwrap();
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(columns[..3], ["sojourn-file", "900,000", "2.00"]);
        assert_eq!(columns[5..], ["3.0", "3.60", "0.45"]);
        let qemu = &json["loads"][0]["rows"][3];
        assert_eq!(qemu["iops"], 55e3, "the median of two is their mean");
    }

    #[test]
    fn one_failed_round_is_a_failure_and_no_number() {
        let mut ours = cell(&[900e3]);
        ours.failure = Some("served 22 of 50 clients".to_owned());
        let report = report(ours);
        assert!(!report.ours_complete());
        let json = serde_json::to_value(&report).unwrap();
        let row = &json["loads"][0]["rows"][1];
        assert_eq!(row["outcome"], "failed");
        assert!(row.get("iops").is_none());
        assert!(report.to_string().contains("failed  served 22 of 50 clients"));
    }
}
