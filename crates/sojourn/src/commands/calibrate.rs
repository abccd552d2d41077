//! `sojourn calibrate`: measures a disk with timed reads and writes a profile for `simulate disk`.
//!
//! | module | part |
//! |---|---|
//! | [`probe`] | timed reads of a device or file past the page cache |
//! | [`page`] | the page with the seed's Figure 1 |

mod page;
mod probe;

use super::runnable::{Invocation, Runnable, done};
use crate::commands::simulate::write_page;
use crate::output::{Output, Table, raw};
use crate::progress::Bar;
use block::{Error, Result};
use clap::ValueEnum;
use engine::disk_profile;
use probe::ProbedDevice;
use schedule::Profile;
use schedule::calibrate::flash::{self, Flash};
use schedule::calibrate::rotating::{self, Rotating};
use schedule::calibrate::simulated::SimulatedDisk;
use schedule::calibrate::{FitError, Probe};
use serde::Serialize;
use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tempfile::NamedTempFile;

/// Arguments of `sojourn calibrate`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn calibrate /dev/sda --output sda.toml --html sda.html
  sojourn calibrate /srv/pool/big.file --kind flash
  sojourn calibrate profile:cheetah-15k4-mechanical --output found.toml
  sojourn simulate disk --profile ./sda.toml

It only reads, and bypasses the page cache. A disk that is busy meanwhile looks slower than it is.")]
pub(crate) struct Args {
    /// A block device, a full file of 64 MiB or more, or profile:NAME: a modelled disk, to see what a
    /// calibration finds of it
    #[arg(value_name = "DEVICE|FILE")]
    target: String,
    /// Whether it rotates [default: as the kernel says]
    #[arg(long, value_enum, value_name = "KIND")]
    kind: Option<DiskKind>,
    /// Reads at each distance, or of each size and depth
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(20..=100_000))]
    reads: u32,
    /// The name in the profile [default: the name of the device or file]
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Write the profile to this new file instead of standard output
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also write a page with plots
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The seed of the random offsets
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

/// What kind of disk is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum DiskKind {
    /// A disk with an arm: access times by distance
    Rotating,
    /// Flash, or anything else without an arm: access times by size and queue depth
    Flash,
}

/// The result: a profile, and how well it fits.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum Calibration {
    Rotating(Box<Rotating>),
    Flash(Box<Flash>),
}

impl Calibration {
    fn profile(&self) -> &Profile {
        match self {
            Self::Rotating(found) => &found.profile,
            Self::Flash(found) => &found.profile,
        }
    }

    fn fit(&self) -> &[FitError] {
        match self {
            Self::Rotating(found) => &found.fit,
            Self::Flash(found) => &found.fit,
        }
    }
}

/// A probe with a progress bar.
struct WithProgress<P> {
    probe: P,
    bar: Bar,
}

impl<P: Probe> Probe for WithProgress<P> {
    fn sectors(&self) -> u64 {
        self.probe.sectors()
    }

    fn read(&mut self, start: u64, sectors: u32) -> Result<f64> {
        self.probe.read(start, sectors)
    }

    fn read_many(&mut self, starts: &[u64], sectors: u32, depth: usize) -> Result<f64> {
        self.probe.read_many(starts, sectors, depth)
    }

    fn progress(&mut self, part: f64) {
        self.bar.at((part * 100.0) as u64, 0);
    }
}

impl Runnable for Args {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        done(run(self, invocation.output))
    }
}

/// Calibrates.
fn run(args: &Args, output: Output) -> Result<()> {
    // Before minutes of reading, not after.
    let file = args.output.as_deref().map(OutputFile::create).transpose()?;
    let found = match args.target.strip_prefix("profile:") {
        Some(name) => {
            let profile = disk_profile::load(name)?;
            let kind = if profile.rotates() { DiskKind::Rotating } else { DiskKind::Flash };
            let probe = SimulatedDisk::new(profile.model()?, args.seed);
            calibrate(args, probe, args.kind.unwrap_or(kind), "a modelled disk")?
        }
        None => {
            let device = ProbedDevice::open(Path::new(&args.target))?;
            let kind = match (args.kind, device.rotates()) {
                (Some(kind), _) => kind,
                (None, Some(true)) => DiskKind::Rotating,
                (None, Some(false)) => DiskKind::Flash,
                (None, None) => {
                    return Err(Error::invalid(format!(
                        "{}: the kernel does not say whether it rotates; give --kind",
                        args.target
                    )));
                }
            };
            calibrate(args, device, kind, "this machine")?
        }
    };
    if let Some(path) = &args.html {
        write_page(path, &page::page(&found))?;
    }
    let toml = found.profile().to_toml()?;
    if let Some(file) = file {
        file.write(&toml)?;
        return output.print(&found, || text(&found));
    }
    match output {
        Output::Json => output.print(&found, String::new),
        // The fit goes into comments, so that the output is a profile.
        Output::Text => {
            let comment = |line: &str| format!("# {line}").trim_end().to_owned() + "\n";
            let comments: String = text(&found).lines().map(comment).collect();
            raw(format!("{comments}\n{toml}").as_bytes())
        }
    }
}

/// The file of `--output`. It appears under its name when it is complete, and replaces nothing.
struct OutputFile {
    temporary: NamedTempFile,
    path: PathBuf,
}

impl OutputFile {
    /// Makes sure that the file can be written.
    fn create(path: &Path) -> Result<Self> {
        if path.exists() {
            return Err(Error::conflict(format!(
                "{} exists; give another --output, or remove it",
                path.display()
            )));
        }
        let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
        let temporary = tempfile::Builder::new()
            .prefix(".calibrate-")
            .permissions(Permissions::from_mode(0o644))
            .tempfile_in(dir.unwrap_or(Path::new(".")))
            .map_err(|e| Error::io(path.display(), e))?;
        Ok(Self { temporary, path: path.to_owned() })
    }

    fn write(mut self, text: &str) -> Result<()> {
        let fault = |e| Error::io(self.path.display(), e);
        self.temporary.write_all(text.as_bytes()).map_err(fault)?;
        self.temporary.persist_noclobber(&self.path).map_err(|e| fault(e.error))?;
        Ok(())
    }
}

fn calibrate(args: &Args, probe: impl Probe, kind: DiskKind, on: &str) -> Result<Calibration> {
    let stem = Path::new(&args.target).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let name = args.name.clone().or(stem).unwrap_or_else(|| "disk".to_owned());
    let name = name.trim_start_matches("profile:").to_owned();
    let source = format!("sojourn calibrate of {} on {on}, {} reads each", args.target, args.reads);
    let bar = Bar::percent("reading");
    let mut probe = WithProgress { probe, bar };
    let reads = args.reads as usize;
    let found = match kind {
        DiskKind::Rotating => {
            let found = rotating::calibrate(&mut probe, &name, &source, reads, args.seed);
            found.map(Box::new).map(Calibration::Rotating)
        }
        DiskKind::Flash => {
            let found = flash::calibrate(&mut probe, &name, &source, reads, args.seed);
            found.map(Box::new).map(Calibration::Flash)
        }
    };
    found.map_err(|e| e.context(&args.target))
}

/// The result as text.
fn text(found: &Calibration) -> String {
    let mut text = String::new();
    match found {
        Calibration::Rotating(found) => {
            let line = &found.line;
            text.push_str(&format!(
                "least-squares line: {:.3} ms + {:.3} ms d/D, R2 {:.3} ({:.3} for the moving average of 1001 \
                 points)\n",
                line.base_ms,
                line.seek_ms,
                line.r2,
                found.smooth_line.r2
            ));
            match &found.profile.cache {
                Some(cache) => text.push_str(&format!(
                    "cache on board: {} segments of {} sectors, {} read ahead\n",
                    cache.segments, cache.segment_sectors, cache.prefetch_sectors
                )),
                None => text.push_str("cache on board: none found\n"),
            }
        }
        Calibration::Flash(found) => {
            if let Some(ssd) = &found.profile.ssd {
                text.push_str(&format!(
                    "reads: {:.1} us + {:.3} us per KiB, {} at a time; writes were not measured\n",
                    ssd.read.base_us, ssd.read.kib_us, ssd.servers
                ));
            }
        }
    }
    text.push_str("fit to further reads, which the profile was not made from:\n");
    let mut table = Table::new(&[">percentile", ">measured ms", ">profile ms", ">error %"]);
    for fit in found.fit() {
        table.row([
            format!("{}", fit.percentile),
            format!("{:.3}", fit.measured_ms),
            format!("{:.3}", fit.model_ms),
            format!("{:+.1}", (fit.model_ms / fit.measured_ms.max(1e-9) - 1.0) * 100.0),
        ]);
    }
    text.push_str(&table.render());
    text
}
