//! Opening a trace of any format.

use crate::foreign::Foreign;
use crate::foreign::definition::{Alignment, Parser};
use crate::foreign::intake::Intake;
use crate::foreign::lines::{self, LineFormat, Lines};
use crate::foreign::records::{self, Records};
use crate::input::{self, TraceInput};
use crate::native::{MAGIC, reader::NativeReader};
use crate::sort;
use crate::{Format, Header, Request, Source};
use block::{Error, Result};
use std::fs::File;
use std::io::{BufReader, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Bytes read at a time.
const BUFFER: usize = 256 << 10;

/// How to open a trace.
#[derive(Clone, Debug)]
pub struct OpenTraceOptions {
    /// The format; guessed from the content when not given.
    pub format: Option<Format>,
    /// Bytes added to each offset, so that a partition that began in the middle of a block is
    /// aligned again.
    pub shift: u64,
    /// Put requests in order of time, when they are not. Takes about 200 MiB of memory, and room
    /// for a compact copy in the directory for temporary files when there are more than four
    /// million requests.
    pub sort: bool,
    /// Bytes of a block where a format numbers blocks (ids, ids32, oracle-general); 1 or more.
    pub unit: u32,
    /// Only these times (ns) are needed: a file in our own format skips blocks that lie wholly
    /// outside. Others may still be read.
    pub times: Option<Range<u64>>,
}

impl Default for OpenTraceOptions {
    fn default() -> Self {
        Self { format: None, shift: 0, sort: false, unit: block::BLOCK as u32, times: None }
    }
}

/// Opens a trace: format guessed or given; gzip, xz and zstd are taken off.
///
/// # Errors
/// Any error from the file; [`Invalid`](block::ErrorKind::Invalid) when the format is not known, naming
/// what was tried.
pub fn open(path: &Path, options: &OpenTraceOptions) -> Result<Box<dyn Source + Send>> {
    let input = input::open(path)?;
    let named = path.to_path_buf();
    if options.format.is_none_or(|f| f == Format::Sojourn) && is_ours(&input.sample) {
        // What is no file cannot be read twice.
        let once = input.compressed || !path.metadata().is_ok_and(|m| m.is_file());
        let source: Box<dyn Source + Send> = match once {
            true => Box::new(PeekedSource::new(NativeReader::stream(input.reader, named)?)),
            false => {
                let file = File::open(path).map_err(|e| Error::io(path.display(), e))?;
                let buffered = BufReader::with_capacity(BUFFER, file);
                Box::new(PeekedSource::new(NativeReader::file(
                    buffered,
                    named,
                    options.times.clone(),
                )?))
            }
        };
        return Ok(shifted(source, options.shift));
    }
    from_input(input, named, options)
}

/// Reads a trace that is not, or cannot be, a file: a pipe, or bytes in memory. `name` is for
/// messages.
///
/// # Errors
/// Any error from the file; [`Invalid`](block::ErrorKind::Invalid) when the format is not known, naming
/// what was tried.
pub fn read(
    input: Box<dyn Read + Send>,
    name: &str,
    options: &OpenTraceOptions,
) -> Result<Box<dyn Source + Send>> {
    let input = input::of(input).map_err(|e| Error::io(name, e))?;
    let named = PathBuf::from(name);
    if options.format.is_none_or(|f| f == Format::Sojourn) && is_ours(&input.sample) {
        let source = PeekedSource::new(NativeReader::stream(input.reader, named)?);
        return Ok(shifted(Box::new(source), options.shift));
    }
    from_input(input, named, options)
}

/// Which format a file is in.
///
/// # Errors
/// Any error from the file; [`Invalid`](block::ErrorKind::Invalid) when the format is not known, naming
/// what was tried.
pub fn guess(path: &Path, options: &OpenTraceOptions) -> Result<Format> {
    let input = input::open(path)?;
    match options.format {
        Some(format) => Ok(format),
        None => guess_from(&input, path, options),
    }
}

fn is_ours(sample: &[u8]) -> bool {
    sample.starts_with(&MAGIC)
}

fn from_input(
    input: TraceInput,
    path: PathBuf,
    options: &OpenTraceOptions,
) -> Result<Box<dyn Source + Send>> {
    if options.unit == 0 {
        return Err(Error::invalid("blocks of 0 bytes; give a unit of 1 or more"));
    }
    let format = match options.format {
        Some(format) => format,
        None => guess_from(&input, &path, options)?,
    };
    let text = |parser: Box<dyn LineFormat>, input: TraceInput, path: PathBuf| {
        let buffered = BufReader::with_capacity(BUFFER, input.reader);
        Box::new(Lines::new(buffered, path, parser, intake(format, options)))
            as Box<dyn Foreign + Send>
    };
    let source = match parser(format, &input.sample, options) {
        Some(Parser::Lines(parser)) => text(parser, input, path),
        Some(Parser::Records(parser)) => {
            let mut intake = intake(format, options);
            intake.header.ops = format.definition().ops;
            Box::new(Records::new(input.reader, path, parser, intake))
        }
        None => {
            return Err(Error::invalid(format!(
                "{}: not a trace in Sojourn's format",
                path.display()
            )));
        }
    };
    match options.sort {
        true => sort::sorted(source),
        false => Ok(Box::new(PeekedSource::new(source))),
    }
}

/// A source whose first batch was read ahead: what a header says of times, operations and latencies is
/// known of many formats only then, and in our own what disks were made from.
pub struct PeekedSource<S> {
    source: S,
    first: Option<Result<Vec<Request>>>,
}

impl<S: Source> PeekedSource<S> {
    /// Reads the first batch; what is wrong with it is told when it is read again.
    pub fn new(mut source: S) -> Self {
        let mut batch = Vec::new();
        let first = source.read(&mut batch).map(|_| batch);
        Self { source, first: Some(first) }
    }

    /// Whether there is no request in it at all. Tells before anything else is read.
    pub fn is_empty(&self) -> bool {
        matches!(&self.first, Some(Ok(batch)) if batch.is_empty())
    }
}

impl<S: Source> Source for PeekedSource<S> {
    fn header(&self) -> &Header {
        self.source.header()
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        match self.first.take() {
            Some(first) => {
                *batch = first?;
                Ok(!batch.is_empty())
            }
            None => self.source.read(batch),
        }
    }
}

fn parser(format: Format, sample: &[u8], options: &OpenTraceOptions) -> Option<Parser> {
    let reader = format.definition().reader?;
    Some(reader(sample, options.unit, intake(format, options)))
}

fn intake(format: Format, options: &OpenTraceOptions) -> Intake {
    let definition = format.definition();
    let mut intake = Intake::new(definition.times, options.shift, options.sort);
    intake.header.alignment = match definition.alignment {
        Alignment::Block => options.unit,
        Alignment::Bytes(bytes) => bytes,
    };
    if !options.shift.is_multiple_of(u64::from(intake.header.alignment)) {
        intake.header.alignment = 1;
    }
    intake
}

fn guess_from(input: &TraceInput, path: &Path, options: &OpenTraceOptions) -> Result<Format> {
    let sample = &input.sample;
    if is_ours(sample) {
        return Ok(Format::Sojourn);
    }
    if sample.is_empty() {
        return Err(Error::invalid(format!("{}: it is empty, not a trace", path.display())));
    }
    // Order matters only to say which format is meant; requests out of order are no reason not
    // to know a format.
    let relaxed = OpenTraceOptions { sort: true, ..options.clone() };
    let text = !sample.contains(&0);
    let guessed = |format: &&Format| format.definition().guessed;
    let fits = |format: &&Format| match parser(**format, sample, options) {
        None => false,
        Some(Parser::Lines(parser)) => {
            text && lines::understands(sample, input.whole, parser, intake(**format, &relaxed))
        }
        Some(Parser::Records(parser)) => {
            !text && records::understands(sample, parser, intake(**format, &relaxed))
        }
    };
    if let Some(format) = Format::ALL.iter().filter(guessed).find(fits) {
        return Ok(*format);
    }
    // Reading a file of that name says what is wrong with which line.
    if text && is_named_csv(path) {
        return Ok(Format::Csv);
    }
    Err({
        let tried = Format::ALL.iter().filter(guessed).map(|f| f.as_str());
        let tried: Vec<_> = tried.collect();
        Error::invalid(format!(
            "{}: not a trace of a known format (tried {}); if it is one, say which with --format",
            path.display(),
            tried.join(", ")
        ))
    })
}

/// Whether a file is called `.csv`, or that and compressed.
fn is_named_csv(path: &Path) -> bool {
    let name = path.file_name().map(|name| name.to_string_lossy().to_ascii_lowercase());
    let name = name.unwrap_or_default();
    let plain = [".gz", ".xz", ".zst"].iter().find_map(|ending| name.strip_suffix(ending));
    plain.unwrap_or(&name).ends_with(".csv")
}

/// Our own format with a shift.
fn shifted(source: Box<dyn Source + Send>, shift: u64) -> Box<dyn Source + Send> {
    match shift {
        0 => source,
        _ => Box::new(crate::transform::Shifted::new(source, shift)),
    }
}
