//! Stores of disk images beside each other: what an import costs and takes, what comes back out, and
//! how a machine boots from it.
//!
//! Costs are CPU seconds, user and system, of the tool and all that it starts: other work on the
//! machine moves them little. Every tool does the same thing once in each round; the least of the
//! rounds counts, for all alike.

mod boot;
mod command;
mod peer;

use anyhow::{Context, Result, ensure};
use command::CommandCost;
use peer::{ImportExportCost, Peer};
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};

/// What is measured on.
#[derive(Debug, clap::Args)]
pub(crate) struct Images {
    /// A raw disk image
    image: PathBuf,
    /// The same system, built anew with some more packages
    rebuilt: PathBuf,
    /// What a boot of the first one reads: a line `OFFSET LENGTH` for each request, in bytes
    boot: PathBuf,
}

/// Everything that a run found.
#[derive(Debug, Serialize)]
pub(crate) struct StoreReport {
    format: u32,
    image_bytes: u64,
    data_bytes: u64,
    tools: Vec<ToolRow>,
    left_out: Vec<LeftOut>,
    verify: Verify,
    rebuilt: Rebuilt,
    boot: boot::Boot,
    targets: Vec<StoreGoal>,
}

#[derive(Debug, Serialize)]
struct ToolRow {
    tool: &'static str,
    import: CommandCost,
    /// Bytes of all files of the store.
    stored_bytes: u64,
    export: Option<CommandCost>,
}

#[derive(Debug, Serialize)]
struct LeftOut {
    tool: &'static str,
    reason: String,
}

#[derive(Debug, Serialize)]
struct Verify {
    /// What is stored compared with its checksums.
    cost: CommandCost,
    /// Chunks decompressed and compared with their hashes.
    deep: CommandCost,
    /// Plain bytes of the chunks.
    bytes: u64,
    /// Bytes that were read back.
    stored_bytes: u64,
}

#[derive(Debug, Serialize)]
struct Rebuilt {
    /// Bytes that the second image added to the store of the first.
    added_bytes: u64,
    /// The same with chunks of 64 KiB at fixed places.
    added_fixed_bytes: Option<u64>,
}

/// A figure that is to be reached.
#[derive(Debug, Serialize)]
struct StoreGoal {
    what: String,
    value: f64,
    limit: f64,
    /// Whether more is better.
    at_least: bool,
    reached: bool,
}

impl StoreGoal {
    fn least(what: impl Into<String>, value: f64, limit: f64) -> Self {
        Self { what: what.into(), value, limit, at_least: true, reached: value >= limit }
    }

    fn most(what: impl Into<String>, value: f64, limit: f64) -> Self {
        Self { what: what.into(), value, limit, at_least: false, reached: value <= limit }
    }
}

impl StoreReport {
    /// Whether every target is reached.
    pub(crate) fn all_reached(&self) -> bool {
        self.targets.iter().all(|target| target.reached)
    }
}

/// Measures everything, in a fresh directory below `scratch`.
pub(crate) fn run(
    images: &Images,
    sojourn: &Path,
    scratch: &Path,
    rounds: usize,
) -> Result<StoreReport> {
    let image_bytes = std::fs::metadata(&images.image)
        .with_context(|| format!("cannot use {}", images.image.display()))?
        .len();
    let mut rows: Vec<ToolRow> = Vec::new();
    let mut left_out = Vec::new();
    let mut peers = Vec::new();
    for peer in peer::ALL {
        match peer.ready() {
            Ok(()) => peers.push(peer),
            Err(error) => {
                left_out.push(LeftOut { tool: peer.name(), reason: format!("{error:#}") })
            }
        }
    }
    for round in 0..rounds {
        for peer in &peers {
            eprintln!("round {} of {rounds}: {}", round + 1, peer.name());
            let dir = scratch.join(format!("{}-{round}", peer.name()));
            let outcome = peer.run(sojourn, &images.image, &dir)?;
            match rows.iter_mut().find(|row| row.tool == peer.name()) {
                Some(row) => row.improve(outcome),
                None => rows.push(ToolRow::new(*peer, outcome)),
            }
            if *peer != Peer::Sojourn || round + 1 < rounds {
                std::fs::remove_dir_all(&dir)?;
            }
        }
    }
    let home = scratch.join(format!("{}-{}", Peer::Sojourn.name(), rounds - 1));
    eprintln!("verify, rebuilt image, boots");
    let verify = verify(sojourn, &home, rounds)?;
    let rebuilt = rebuilt(sojourn, images, &home, scratch)?;
    let boot = boot::measure(sojourn, images, &home, scratch, rounds)?;
    let mut report = StoreReport {
        format: 1,
        image_bytes,
        data_bytes: verify.bytes,
        tools: rows,
        left_out,
        verify,
        rebuilt,
        boot,
        targets: Vec::new(),
    };
    report.targets = report.targets();
    Ok(report)
}

impl ToolRow {
    fn new(peer: Peer, outcome: ImportExportCost) -> Self {
        let ImportExportCost { import, stored_bytes, export } = outcome;
        Self { tool: peer.name(), import, stored_bytes, export }
    }

    fn improve(&mut self, outcome: ImportExportCost) {
        self.import = self.import.least(outcome.import);
        self.export = match (self.export, outcome.export) {
            (Some(one), Some(other)) => Some(one.least(other)),
            (one, other) => one.or(other),
        };
    }
}

fn verify(sojourn: &Path, home: &Path, rounds: usize) -> Result<Verify> {
    let mut best: Option<Verify> = None;
    for _ in 0..rounds {
        let run = |more: &[&str]| {
            let mut command = peer::sojourn(sojourn, home);
            command::printed(command.args(["--json", "verify"]).args(more))
        };
        let (deep, _) = run(&["--deep"])?;
        let (cost, printed) = run(&[])?;
        let found: serde_json::Value = serde_json::from_str(&printed)?;
        let count =
            |name: &str| found[name].as_u64().with_context(|| format!("verify says no {name}"));
        let (bytes, stored_bytes) = (count("bytes")?, count("stored_bytes")?);
        let (cost, deep) = best
            .map_or((cost, deep), |best: Verify| (best.cost.least(cost), best.deep.least(deep)));
        best = Some(Verify { cost, deep, bytes, stored_bytes });
    }
    best.context("no rounds")
}

fn rebuilt(sojourn: &Path, images: &Images, home: &Path, scratch: &Path) -> Result<Rebuilt> {
    let store = home.join("store");
    let before = command::room_of(&store)?;
    command::run(
        peer::sojourn(sojourn, home).args(["image", "import"]).arg(&images.rebuilt).arg("b"),
    )?;
    let added_bytes = command::room_of(&store)? - before;
    let added_fixed_bytes = match Peer::Borg.ready() {
        Ok(()) => Some(peer::growth_with_fixed_chunks(
            &images.image,
            &images.rebuilt,
            &scratch.join("fixed"),
        )?),
        Err(_) => None,
    };
    Ok(Rebuilt { added_bytes, added_fixed_bytes })
}

impl StoreReport {
    fn row(&self, tool: Peer) -> Option<&ToolRow> {
        self.tools.iter().find(|row| row.tool == tool.name())
    }

    fn targets(&self) -> Vec<StoreGoal> {
        let mut targets = Vec::new();
        let Some(ours) = self.row(Peer::Sojourn) else { return targets };
        let rate = |cost: CommandCost| self.image_bytes as f64 / 1e6 / cost.cpu;
        let stored = ours.stored_bytes as f64;
        let import = "import, MB of image per CPU second";
        targets.push(StoreGoal::least(import, rate(ours.import), 500.0));
        if let Some(casync) = self.row(Peer::Casync) {
            let times = casync.import.cpu / ours.import.cpu;
            targets.push(StoreGoal::least("import, times casync", times, 3.0));
            let part = stored / casync.stored_bytes as f64;
            targets.push(StoreGoal::most("stored bytes, of casync's", part, 0.90));
            if let (Some(mine), Some(other)) = (ours.export, casync.export) {
                targets.push(StoreGoal::least("export, times casync", other.cpu / mine.cpu, 1.0));
            }
        }
        if let Some(desync) = self.row(Peer::Desync) {
            let times = desync.import.cpu / ours.import.cpu;
            targets.push(StoreGoal::least("import, times desync", times, 4.0));
        }
        if let Some(qemu) = self.row(Peer::QemuImg) {
            let part = stored / qemu.stored_bytes as f64;
            targets.push(StoreGoal::most("stored bytes, of qcow2's with zstd", part, 1.0));
        }
        let verified = self.verify.stored_bytes as f64 / 1e6 / self.verify.cost.cpu;
        targets.push(StoreGoal::least("verify, MB of the store per CPU second", verified, 1000.0));
        if let Some(fixed) = self.rebuilt.added_fixed_bytes {
            let part = self.rebuilt.added_bytes as f64 / fixed as f64;
            targets.push(StoreGoal::most("rebuilt image adds, of fixed 64 KiB", part, 0.30));
        }
        targets.push(StoreGoal::most(
            "first byte after process start, ms",
            self.boot.first_byte_ms,
            25.0,
        ));
        if let Some(qemu) = self.boot.qemu_ms {
            let part = self.boot.ahead_ms / qemu;
            targets.push(StoreGoal::most("boot from a cold cache, of qemu-nbd's time", part, 1.0));
        }
        targets
    }
}

impl fmt::Display for StoreReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mb = |bytes: u64| bytes as f64 / 1e6;
        writeln!(
            f,
            "an image of {:.0} MB, {:.0} MB of it distinct data; the least of the rounds\n",
            mb(self.image_bytes),
            mb(self.data_bytes)
        )?;
        writeln!(
            f,
            "{:<10} {:>12} {:>12} {:>12} {:>12} {:>12}",
            "tool", "import CPU s", "MB/CPU s", "stored MB", "export CPU s", "MB/CPU s"
        )?;
        for row in &self.tools {
            let rate = |cost: CommandCost| format!("{:.0}", mb(self.image_bytes) / cost.cpu);
            let (export, back) = match row.export {
                Some(cost) => (format!("{:.2}", cost.cpu), rate(cost)),
                None => ("-".into(), "-".into()),
            };
            writeln!(
                f,
                "{:<10} {:>12.2} {:>12} {:>12.1} {export:>12} {back:>12}",
                row.tool,
                row.import.cpu,
                rate(row.import),
                mb(row.stored_bytes)
            )?;
        }
        for left in &self.left_out {
            writeln!(f, "{:<10} left out: {}", left.tool, left.reason)?;
        }
        writeln!(
            f,
            "\nverify: {:.0} MB stored, {:.0} MB of data, in {:.2} CPU s; deep in {:.2}",
            mb(self.verify.stored_bytes),
            mb(self.verify.bytes),
            self.verify.cost.cpu,
            self.verify.deep.cpu
        )?;
        write!(f, "the rebuilt image adds {:.1} MB", mb(self.rebuilt.added_bytes))?;
        match self.rebuilt.added_fixed_bytes {
            Some(fixed) => writeln!(f, "; with fixed chunks of 64 KiB {:.1} MB", mb(fixed))?,
            None => writeln!(f)?,
        }
        writeln!(f, "{}\n", self.boot)?;
        for target in &self.targets {
            writeln!(
                f,
                "{} {:<44} {:>9.3} ({} {})",
                if target.reached { "ok  " } else { "MISS" },
                target.what,
                target.value,
                if target.at_least { "at least" } else { "at most" },
                target.limit
            )?;
        }
        Ok(())
    }
}

/// Reads a list of ranges.
pub(crate) fn ranges(path: &Path) -> Result<Vec<(u64, usize)>> {
    let text =
        std::fs::read_to_string(path).with_context(|| format!("cannot use {}", path.display()))?;
    let mut list = Vec::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let (offset, length) = line
            .split_once(' ')
            .with_context(|| format!("{}: {line:?} is not a range", path.display()))?;
        list.push((offset.parse()?, length.parse()?));
    }
    ensure!(!list.is_empty(), "{} names no range", path.display());
    Ok(list)
}
