//! `sojourn trace convert`, `cut`, `sample`, `merge`, `anonymize`: one trace from others.

use super::{Reading, formats, kept, must_not_be_read, named, stem};
use crate::commands::image::target::exists;
use crate::lists::{Numbers, spoken};
use crate::output::{Output, visible};
use crate::progress::Bar;
use block::{BLOCK, ByteSize, Error, Result};
use engine::config::time::duration;
use serde::Serialize;
use server::descriptors;
use std::path::PathBuf;
use std::slice::from_ref;
use std::time::Duration;
use store::chunker::MAX_CHUNK;
use trace::{
    Anonymous, ExportOptions, Exported, Format, Header, MergeOptions, Merged, Op, PeekedSource,
    Selection, ShuffledPlaces, Source, format_for,
};

/// A sample of fewer requests says little.
const FEW_REQUESTS: u64 = 1000;

/// How a trace is written.
#[derive(Debug, clap::Args)]
struct Writing {
    #[arg(help = out_help())]
    out: PathBuf,
    #[arg(long, value_name = "FORMAT", help = to_help())]
    to: Option<Format>,
    /// Replace the file when it exists
    #[arg(long)]
    force: bool,
}

/// The help of the file to write.
fn out_help() -> String {
    let endings = Format::ALL.into_iter().filter_map(Format::usual_ending);
    let names = spoken(endings.map(|ending| format!(".{ending}")));
    format!(
        "The file to write: NAME{names}, text formats with .gz or .zst behind it; - is the standard output"
    )
}

/// The help of `--to`.
fn to_help() -> String {
    let written = formats(Format::is_written);
    format!(
        "Its format: {written} [default: by its name; sojourn for - and for a name without an ending]"
    )
}

impl Writing {
    /// Refuses, before anything is read, to write over what is read or, unless told, over any file.
    fn check(&self, inputs: &[PathBuf]) -> Result<()> {
        self.format()?;
        if self.to_stdout() {
            return Ok(());
        }
        must_not_be_read(&self.out, inputs)?;
        match kept(&self.out) {
            Some(_) if !self.force => Err(exists(&self.out)),
            _ => Ok(()),
        }
    }

    fn to_stdout(&self) -> bool {
        self.out.as_os_str() == "-"
    }

    fn format(&self) -> Result<Format> {
        match self.to {
            Some(format) => Ok(format),
            None if self.to_stdout() => Ok(Format::Sojourn),
            None => format_for(&self.out),
        }
    }

    /// Writes it, and says so; how many requests were written.
    fn write(&self, source: &mut dyn Source, unit: u32, output: Output) -> Result<u64> {
        let format = self.format()?;
        let bar = Bar::waiting("writing");
        let done = trace::export(source, &self.out, &ExportOptions { format, unit });
        drop(bar);
        let done = match done {
            // Whoever reads it has enough, as `head` does.
            Err(e) if self.to_stdout() && is_broken_pipe(&e) => return Ok(0),
            done => done?,
        };
        if !self.to_stdout() {
            let view = ExportedView { file: self.out.display().to_string(), format, done };
            output.print(&view, || text(&view))?;
        }
        Ok(done.requests)
    }
}

/// Whether the reader of a pipe went away.
fn is_broken_pipe(error: &Error) -> bool {
    let io = std::error::Error::source(error).and_then(|e| e.downcast_ref::<std::io::Error>());
    io.is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}

/// What is printed.
#[derive(Serialize)]
struct ExportedView {
    file: String,
    format: Format,
    #[serde(flatten)]
    done: Exported,
}

fn text(view: &ExportedView) -> String {
    let Exported { requests, records, left_out } = view.done;
    let mut text = format!("{}: {requests} requests as {}", visible(&view.file), view.format);
    if left_out > 0 {
        text.push_str(&format!("; {left_out} left out, which the format has no word for"));
    }
    if records != requests && records + left_out != requests {
        text.push_str(&format!("; {records} records"));
    }
    text
}

/// Arguments of `sojourn trace convert`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace convert web.load.gz web.sjt
  sojourn trace convert P6.lis.zst P6.sjt --shift 2K
  sojourn trace convert boot.sjt boot.iolog
  blkparse -i sda | sojourn trace convert - sda.sjt --sort")]
pub(crate) struct ConvertArgs {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    reading: Reading,
}

pub(super) fn convert(args: &ConvertArgs, output: Output) -> Result<()> {
    args.writing.check(from_ref(&args.trace))?;
    let mut source = args.reading.open(&args.trace)?;
    args.writing.write(&mut source, args.reading.unit, output).map(drop)
}

/// Arguments of `sojourn trace cut`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace cut day.sjt morning.sjt --from 8h --until 10h
  sojourn trace cut day.sjt writes.sjt --op write --client 0-3
  sojourn trace cut day.sjt head.csv --first 1000")]
pub(crate) struct CutArgs {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    reading: Reading,
    /// Leave out what is before this time; times then begin there
    #[arg(long, value_name = "TIME", value_parser = duration)]
    from: Option<Duration>,
    /// Leave out what is at this time or later
    #[arg(long, value_name = "TIME", value_parser = duration)]
    until: Option<Duration>,
    /// Only these clients, by number: 0, 1-5, 2,7
    #[arg(long, value_name = "LIST")]
    client: Option<Numbers>,
    /// Only these disks, by number
    #[arg(long, value_name = "LIST")]
    disk: Option<Numbers>,
    /// Only these operations: read, write, flush, trim, zero; may be repeated
    #[arg(long, value_name = "OP", value_parser = operation)]
    op: Vec<Op>,
    /// Only so many requests
    #[arg(long, value_name = "N")]
    first: Option<u64>,
}

fn operation(text: &str) -> Result<Op> {
    Op::ALL.into_iter().find(|op| op.as_str() == text).ok_or_else(|| {
        Error::invalid(format!(
            "{text:?} is no operation; there are read, write, flush, trim, zero"
        ))
    })
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) fn cut(args: &CutArgs, output: Output) -> Result<()> {
    args.writing.check(from_ref(&args.trace))?;
    let times = (args.from.is_some() || args.until.is_some())
        .then(|| args.from.map_or(0, nanoseconds)..args.until.map_or(u64::MAX, nanoseconds));
    let options = trace::OpenTraceOptions { times: times.clone(), ..args.reading.options() };
    let source = args.reading.open_with(&args.trace, &options)?;
    if times.is_some() && !source.header().times {
        return Err(Error::invalid(format!(
            "{}: a trace without times cannot be cut by time; give --first",
            args.trace.display()
        )));
    }
    let selection = Selection {
        times,
        clients: args.client.clone().map(|list| list.0).unwrap_or_default(),
        disks: args.disk.clone().map(|list| list.0).unwrap_or_default(),
        ops: args.op.clone(),
        requests: args.first,
    };
    let mut cut = PeekedSource::new(trace::Cut::new(source, selection));
    if cut.is_empty() {
        return Err(Error::invalid(format!(
            "{}: nothing in it is asked for, so nothing is written; `sojourn trace stats` shows what it \
             holds",
            args.trace.display()
        )));
    }
    args.writing.write(&mut cut, args.reading.unit, output).map(drop)
}

/// Arguments of `sojourn trace sample`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace sample huge.sjt small.sjt --one-in 64

Places are chosen by hash, so that a block is in the sample always or never, and on all disks that
were made from the same image. A cache of one 64th of the size sees in it about the hit ratio that
the whole cache sees in the whole trace.")]
pub(crate) struct SampleArgs {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    reading: Reading,
    /// Keep one place of so many
    #[arg(long, value_name = "N")]
    one_in: u64,
    /// The size of a place; 4K unless given, 1M where disks were made from images
    #[arg(long, value_name = "SIZE")]
    place: Option<ByteSize>,
}

/// The size of a place where nobody says it. What is made from an image is cached by the chunk, and a chunk that a
/// place has a part of is in the sample: the longer the place, the fewer of those.
fn usual_place(header: &Header) -> ByteSize {
    let is_chunked = header.disks.iter().any(|disk| !disk.base.is_empty());
    ByteSize(if is_chunked { 4 * u64::from(MAX_CHUNK) } else { BLOCK })
}

pub(super) fn sample(args: &SampleArgs, output: Output) -> Result<()> {
    args.writing.check(from_ref(&args.trace))?;
    // Our own format says what disks were made from with the first batch.
    let source = PeekedSource::new(args.reading.open(&args.trace)?);
    let place = args.place.unwrap_or_else(|| usual_place(source.header()));
    let mut sample = PeekedSource::new(trace::Sample::new(source, args.one_in, place.0)?);
    if sample.is_empty() {
        return Err(Error::invalid(format!(
            "{}: a sample of one place in {} is empty; give a smaller --one-in",
            args.trace.display(),
            args.one_in
        )));
    }
    let requests = args.writing.write(&mut sample, args.reading.unit, output)?;
    if args.one_in > 1 && (1..FEW_REQUESTS).contains(&requests) {
        tracing::warn!(
            requests,
            one_in = args.one_in,
            "the sample is small, and what it shows may be far from the whole; give a smaller --one-in"
        );
    }
    Ok(())
}

/// Arguments of `sojourn trace merge`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace merge storm.sjt office-a.csv.zst office-b.csv.zst --same-disks
  sojourn trace merge week.sjt traces/*.sjt --by-clock --same-disks --same-clients
  sojourn trace merge desktops.sjt P3.sjt P6.sjt P12.sjt --in-proportion")]
pub(crate) struct MergeArgs {
    #[command(flatten)]
    writing: Writing,
    /// The traces
    #[arg(required = true)]
    traces: Vec<PathBuf>,
    #[command(flatten)]
    reading: Reading,
    /// Disks of the same name are the same disk, and so are all that have none; otherwise each
    /// trace has its own
    #[arg(long)]
    same_disks: bool,
    /// Clients of the same name are the same client, and so are all that have none; otherwise each
    /// trace has its own, named after the trace
    #[arg(long)]
    same_clients: bool,
    /// By the time of day, for recordings: each trace begins as much later than the first as it was
    /// recorded later; otherwise all begin together
    #[arg(long, conflicts_with = "in_proportion")]
    by_clock: bool,
    /// Spread each trace evenly over the whole, so that all end together, instead of by time: for
    /// traces without times
    #[arg(long)]
    in_proportion: bool,
}

pub(super) fn merge(args: &MergeArgs, output: Output) -> Result<()> {
    args.writing.check(&args.traces)?;
    let open = |path: &PathBuf| match args.reading.open(path) {
        Ok(source) => Ok((stem(path), source)),
        Err(e) if descriptors::are_lacking(&e) => Err(Error::unavailable(format!(
            "{} traces are read at the same time, and this process may have {} files open: allow \
             more (ulimit -n), or merge some of them first, and then what came of that",
            args.traces.len(),
            descriptors::limit(),
        ))
        .with_source(e)),
        Err(e) => Err(e),
    };
    let traces: Vec<_> = args.traces.iter().map(open).collect::<Result<_>>()?;
    let same = MergeOptions { disks: args.same_disks, clients: args.same_clients };
    let mut merged = if args.in_proportion {
        Merged::in_proportion(traces, same)?
    } else if args.by_clock {
        Merged::by_clock(traces, same)?
    } else {
        Merged::new(traces, same)
    };
    args.writing.write(&mut merged, args.reading.unit, output).map(drop)
}

/// Arguments of `sojourn trace anonymize`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sojourn trace anonymize ours.sjt public.sjt
  sojourn trace anonymize ours.sjt public.sjt --places

Names of clients, disks and images go, and notes; which disks were made from the same image stays.
With --places what lies where goes, too: each MiB of a disk, with those that a request joins to it,
is moved to another place by a random key that is not kept, and alike on all disks of an image. For
that the trace is read twice, so that it must be a file.")]
pub(crate) struct AnonymizeArgs {
    /// The trace; - is the standard input
    trace: PathBuf,
    #[command(flatten)]
    writing: Writing,
    #[command(flatten)]
    reading: Reading,
    /// Shuffle places too
    #[arg(long)]
    places: bool,
}

pub(super) fn anonymize(args: &AnonymizeArgs, output: Output) -> Result<()> {
    args.writing.check(from_ref(&args.trace))?;
    let places = if args.places { Some(places(args)?) } else { None };
    let mut anonymous = Anonymous::new(args.reading.open(&args.trace)?, places);
    args.writing.write(&mut anonymous, args.reading.unit, output).map(drop)
}

/// Where everything goes: the trace is read once for that, and then again.
fn places(args: &AnonymizeArgs) -> Result<ShuffledPlaces> {
    if !args.trace.is_file() {
        return Err(Error::invalid(format!(
            "{}: --places reads a trace twice, and this is no file: write it to one first, with `sojourn \
             trace convert`",
            named(&args.trace)
        )));
    }
    ShuffledPlaces::of(&mut *args.reading.open(&args.trace)?, key()?)
}

/// A random number.
fn key() -> Result<u64> {
    let mut bytes = [0; 8];
    engine::world::system().entropy.fill(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;
    use trace::format_of;

    #[test]
    fn a_file_says_its_format_by_its_name() {
        for (name, format) in [
            ("a/b.sjt", Some(Format::Sojourn)),
            ("x.y.iolog", Some(Format::Fio)),
            ("x.load.gz", Some(Format::Load)),
            ("x.CSV.zst", Some(Format::Csv)),
            ("x.oracleGeneral", Some(Format::OracleGeneral)),
            ("x.bin", None),
            ("-", None),
        ] {
            assert_eq!(format_of(Path::new(name)), format, "{name}");
        }
    }

    #[test]
    fn a_name_that_asks_for_what_is_not_written_is_refused() {
        for name in ["day", "a.b/day", "day.gz", "/dev/fd/3"] {
            assert_eq!(format_for(Path::new(name)).unwrap(), Format::Sojourn, "{name}");
        }
        for name in ["x.txt", "x.csv.xz", "x.lis", "x.vscsi.zst"] {
            let error = format_for(Path::new(name)).unwrap_err();
            assert_eq!(error.kind(), block::ErrorKind::Unsupported, "{name}");
            assert!(error.message().contains(name), "{error}");
        }
    }
}
