//! `sojourn trace`: traces of block requests: looked at, counted, changed, recorded.
//!
//! | module | verbs |
//! |---|---|
//! | [`info`] | `info` |
//! | [`stats`], [`facts`], [`page`] | `stats`, what it says, and its HTML report |
//! | [`change`] | `convert`, `cut`, `sample`, `merge`, `anonymize` |
//! | [`record`] | `record` |

mod change;
mod facts;
mod info;
mod page;
mod record;
mod stats;

use super::runnable::{Invocation, Runnable};
use crate::output::Output;
use crate::runtime::block_on;
use block::{ByteSize, Result};
use clap::Subcommand;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use trace::{Format, OpenTraceOptions, Source};

/// What to do with a trace.
#[derive(Debug, Subcommand)]
pub(crate) enum TraceCommand {
    /// What a trace is: its format, clients, disks, length
    Info(info::Args),
    /// Count what a trace is like: sizes, mixes, working set, order, distances, sharing
    Stats(stats::Args),
    /// Write a trace in another format
    Convert(change::ConvertArgs),
    /// Take a part of a trace: of its time, clients, disks, operations
    Cut(change::CutArgs),
    /// Take one of N places of a trace, for caches of one Nth of the size
    Sample(change::SampleArgs),
    /// Join traces: as if all began together, or by the clock
    Merge(change::MergeArgs),
    /// Take out names and notes, and places on demand
    Anonymize(change::AnonymizeArgs),
    /// Record what clients ask of any NBD server, from a place between them
    Record(record::Args),
}

impl Runnable for TraceCommand {
    fn run(&self, invocation: &Invocation<'_>) -> Result<ExitCode> {
        run(self, invocation.output)
    }
}

/// Carries a verb out.
fn run(verb: &TraceCommand, output: Output) -> Result<ExitCode> {
    match verb {
        TraceCommand::Info(args) => info::run(args, output),
        TraceCommand::Stats(args) => stats::run(args, output),
        TraceCommand::Convert(args) => change::convert(args, output),
        TraceCommand::Cut(args) => change::cut(args, output),
        TraceCommand::Sample(args) => change::sample(args, output),
        TraceCommand::Merge(args) => change::merge(args, output),
        TraceCommand::Anonymize(args) => change::anonymize(args, output),
        TraceCommand::Record(args) => return block_on(record::run(args, output))?,
    }?;
    Ok(ExitCode::SUCCESS)
}

/// How a trace is read.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Reading {
    #[arg(long, value_name = "FORMAT", help = format_help())]
    format: Option<Format>,
    /// Bytes to add to each offset, so that a partition is aligned again
    #[arg(long, value_name = "SIZE", default_value = "0")]
    shift: ByteSize,
    /// Put the requests of an unsorted trace in order of time; takes 200 MiB of memory
    #[arg(long)]
    sort: bool,
    #[arg(long, value_name = "SIZE", default_value = "4K", value_parser = unit, help = unit_help())]
    unit: u32,
}

/// The names of the formats that are `so`, in the order in which they are tried.
fn formats(so: impl Fn(Format) -> bool) -> String {
    let names: Vec<_> = Format::ALL.into_iter().filter(|f| so(*f)).map(Format::as_str).collect();
    names.join(", ")
}

/// The help of `--format`.
fn format_help() -> String {
    format!("The trace's format: {} [default: guessed]", formats(|_| true))
}

/// The help of `--unit`.
fn unit_help() -> String {
    let numbered = formats(Format::numbers_blocks);
    format!("The size of a block where a format numbers blocks ({numbered})")
}

/// Reads the size of a block.
fn unit(text: &str) -> Result<u32> {
    let size = text.parse::<ByteSize>()?.0;
    u32::try_from(size).ok().filter(|size| (1..=1 << 30).contains(size)).ok_or_else(|| {
        block::Error::invalid(format!("a block of {text}; give 1 byte to 1 GiB, such as 4K"))
    })
}

impl Reading {
    fn options(&self) -> OpenTraceOptions {
        OpenTraceOptions {
            format: self.format,
            shift: self.shift.0,
            sort: self.sort,
            unit: self.unit,
            times: None,
        }
    }

    /// Opens a trace; `-` is standard input.
    pub(crate) fn open(&self, path: &Path) -> Result<Box<dyn Source + Send>> {
        self.open_with(path, &self.options())
    }

    fn open_with(&self, path: &Path, options: &OpenTraceOptions) -> Result<Box<dyn Source + Send>> {
        let source = match path.as_os_str() == "-" {
            true => trace::read(Box::new(std::io::stdin()), "standard input", options)?,
            false => trace::open(path, options)?,
        };
        if !source.header().complete {
            tracing::warn!(
                trace = %path.display(),
                "the trace is not finished: its recorder is at work, or was killed; what it wrote is read"
            );
        }
        Ok(source)
    }
}

/// What a trace is called: its file's name up to the first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    name.split('.').next().unwrap_or_default().to_owned()
}

/// The device and inode of what keeps what is written to it, a file or block device; `-` is the
/// standard input.
fn kept(path: &Path) -> Option<(u64, u64)> {
    let metadata = match path.as_os_str() == "-" {
        true => std::io::stdin()
            .as_fd()
            .try_clone_to_owned()
            .map(File::from)
            .and_then(|file| file.metadata()),
        false => path.metadata(),
    };
    let metadata = metadata.ok()?;
    let kind = metadata.file_type();
    (kind.is_file() || kind.is_block_device()).then(|| (metadata.dev(), metadata.ino()))
}

/// Refuses to write over a trace that is read, whatever its name.
fn must_not_be_read(out: &Path, traces: &[PathBuf]) -> Result<()> {
    let Some(place) = kept(out) else { return Ok(()) };
    match traces.iter().find(|trace| kept(trace) == Some(place)) {
        None => Ok(()),
        Some(trace) => Err(block::Error::invalid(format!(
            "{}: {} is read from there; write to another file",
            out.display(),
            named(trace)
        ))),
    }
}

/// What a trace is called in messages.
fn named(path: &Path) -> String {
    match path.as_os_str() == "-" {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// Writes an HTML report.
fn write_page(path: &PathBuf, page: &report::Report) -> Result<()> {
    std::fs::write(path, page.render()).map_err(|e| block::Error::io(path.display(), e))
}
