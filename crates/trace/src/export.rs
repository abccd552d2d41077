//! Writing traces: our own format, and those that others read.

use crate::native::column::Effort;
use crate::native::writer::Writer;
use crate::transform::mix;
use crate::{Flags, Format, Header, Op, Request, Source};
use block::{Error, Result};
use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// How to write a trace.
#[derive(Clone, Debug)]
pub struct ExportOptions {
    /// The format: Sojourn, Fio, Load, Csv or OracleGeneral.
    pub format: Format,
    /// Bytes of a block where the format numbers blocks (oracle-general); 1 or more.
    pub unit: u32,
}

/// What was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize)]
pub struct Exported {
    /// Requests read.
    pub requests: u64,
    /// Records or lines written for them.
    pub records: u64,
    /// Requests that the format has no word for, and that were left out.
    pub left_out: u64,
}

/// The format that a file's name asks for: `.sjt`, `.iolog`, `.load`, `.csv`, `.oracleGeneral`,
/// with `.gz` or `.zst` behind it (which [`export`] refuses for `.oracleGeneral`).
pub fn format_of(path: &Path) -> Option<Format> {
    let name = plain_name(path)?;
    let (_, extension) = name.rsplit_once('.')?;
    match extension {
        "sjt" => Some(Format::Sojourn),
        "iolog" | "fio" => Some(Format::Fio),
        "load" => Some(Format::Load),
        "csv" => Some(Format::Csv),
        "oraclegeneral" => Some(Format::OracleGeneral),
        _ => None,
    }
}

/// The format to write a file in when nobody says it: that of its name, our own for a name that
/// ends in nothing.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when the name ends in something else.
pub fn format_for(path: &Path) -> Result<Format> {
    Packing::of(path)?;
    let name = plain_name(path).unwrap_or_default();
    match (format_of(path), name.rsplit_once('.')) {
        (Some(format), _) => Ok(format),
        (None, None) => Ok(Format::Sojourn),
        (None, Some((_, extension))) => Err(Error::unsupported(format!(
            "{}: no format that is written ends in .{extension}; call it .sjt, .iolog, .load, .csv \
             or .oracleGeneral, or say the format with --to",
            path.display()
        ))),
    }
}

/// A file's name in small letters, without what says that it is compressed.
fn plain_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_string_lossy().to_lowercase();
    Some(name.trim_end_matches(".gz").trim_end_matches(".zst").to_owned())
}

/// What a file is compressed with while it is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Packing {
    None,
    Gzip,
    Zstd,
}

impl Packing {
    /// What the name of a file asks for.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for what is not written.
    fn of(path: &Path) -> Result<Self> {
        let extension = path.extension().map(|e| e.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("gz") => Ok(Self::Gzip),
            Some("zst") => Ok(Self::Zstd),
            Some(other @ ("xz" | "bz2" | "lz4" | "lzma" | "zip" | "7z")) => {
                Err(Error::unsupported(format!(
                    "{}: traces are written with .gz or .zst behind the name, not with .{other}; \
                     choose one of them",
                    path.display()
                )))
            }
            _ => Ok(Self::None),
        }
    }
}

/// Writes all of a source to a file, which is there under its name only when it is whole, in place
/// of what was there; where the name is a link, the file that it leads to. `-` is the standard
/// output; into what is no file, such as a pipe, it is written directly.
///
/// # Errors
/// Those of the source and of the file; [`Unsupported`](block::ErrorKind::Unsupported) for a format
/// that is only read, and for a compression that is not written.
pub fn export(source: &mut dyn Source, path: &Path, options: &ExportOptions) -> Result<Exported> {
    let direct = path.as_os_str() == "-" || path.metadata().is_ok_and(|m| !m.is_file());
    if direct && options.format == Format::OracleGeneral {
        return Err(Error::unsupported("oracle-general is written to a file alone, not to a pipe"));
    }
    let packing = Packing::of(path)?;
    if packing != Packing::None && options.format == Format::OracleGeneral {
        return Err(Error::unsupported(format!(
            "{}: oracle-general is not compressed while it is written; leave the last part of the \
             name out, and compress the file then",
            path.display()
        )));
    }
    if path.as_os_str() == "-" {
        return write(source, Box::new(io::stdout()), path, options);
    }
    let failed = |e| Error::io(path.display(), e);
    if direct {
        let file = File::options().write(true).open(path).map_err(failed)?;
        return write(source, Box::new(file), path, options);
    }
    let partial = Partial::beside(path)?;
    let file = partial.create().map_err(failed)?;
    let done = match options.format {
        Format::OracleGeneral => oracle(source, &file, path, options.unit)?,
        _ => write(source, packing.sink(file).map_err(failed)?, path, options)?,
    };
    partial.finish().map_err(failed)?;
    Ok(done)
}

/// A file that is written beside the one that it then replaces; it goes when it does not.
struct Partial {
    path: PathBuf,
    target: PathBuf,
}

impl Partial {
    /// The one for a file, or for the file that a link leads to.
    fn beside(path: &Path) -> Result<Self> {
        let target = block::file::behind_links(path);
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("{} is not a file's name", path.display())));
        };
        let mut partial = OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        Ok(Self { path: target.with_file_name(partial), target })
    }

    /// Makes it anew, whatever an earlier export left.
    fn create(&self) -> io::Result<File> {
        let _ = std::fs::remove_file(&self.path);
        File::options().read(true).write(true).create_new(true).open(&self.path)
    }

    /// Gives it its name.
    fn finish(&self) -> io::Result<()> {
        std::fs::rename(&self.path, &self.target)
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Where bytes go, and what has to be done at the end.
trait Sink: Write {
    fn finish(self: Box<Self>) -> io::Result<()>;
}

impl Sink for File {
    fn finish(self: Box<Self>) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for io::Stdout {
    fn finish(mut self: Box<Self>) -> io::Result<()> {
        self.flush()
    }
}

impl Sink for flate2::write::GzEncoder<File> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        (*self).finish().map(drop)
    }
}

impl Sink for zstd::Encoder<'static, File> {
    fn finish(self: Box<Self>) -> io::Result<()> {
        (*self).finish().map(drop)
    }
}

impl Packing {
    /// Compresses on the way.
    fn sink(self, file: File) -> io::Result<Box<dyn Sink>> {
        Ok(match self {
            Self::None => Box::new(file),
            Self::Gzip => {
                Box::new(flate2::write::GzEncoder::new(file, flate2::Compression::default()))
            }
            Self::Zstd => Box::new(zstd::Encoder::new(file, 3)?),
        })
    }
}

fn write(
    source: &mut dyn Source,
    out: Box<dyn Sink>,
    path: &Path,
    options: &ExportOptions,
) -> Result<Exported> {
    let mut out = BufWriter::with_capacity(256 << 10, out);
    let done = match options.format {
        Format::Sojourn => native(source, &mut out, path)?,
        Format::Fio => text(source, &mut out, path, &mut Fio::default())?,
        Format::Load => text(source, &mut out, path, &mut Load::default())?,
        Format::Csv => text(source, &mut out, path, &mut Csv::default())?,
        format => {
            return Err(Error::unsupported(format!(
                "{format} is only read; write sojourn, fio, load, csv or oracle-general"
            )));
        }
    };
    let out = out.into_inner().map_err(io::IntoInnerError::into_error);
    out.and_then(Sink::finish).map_err(|e| Error::io(path.display(), e))?;
    Ok(done)
}

fn native(source: &mut dyn Source, out: &mut dyn Write, path: &Path) -> Result<Exported> {
    let mut writer = Writer::new(out, path, source.header().clone(), Effort::Normal)?;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for request in &batch {
            writer.push(request)?;
        }
    }
    *writer.header_mut() = source.header().clone();
    let requests = writer.requests();
    writer.finish()?;
    Ok(Exported { requests, records: requests, left_out: 0 })
}

/// A text format that is written.
trait TextWriter {
    /// What comes before the requests.
    fn begin(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()>;

    /// Writes a request; `false` when the format has no word for it.
    fn request(
        &mut self,
        header: &Header,
        request: &Request,
        out: &mut dyn Write,
    ) -> io::Result<bool>;

    /// What comes behind them.
    fn end(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()> {
        let _ = (header, out);
        Ok(())
    }
}

fn text(
    source: &mut dyn Source,
    out: &mut dyn Write,
    path: &Path,
    format: &mut dyn TextWriter,
) -> Result<Exported> {
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::Unsupported => Error::unsupported(format!("{}: {e}", path.display())),
        _ => Error::io(path.display(), e),
    };
    let mut done = Exported::default();
    format.begin(source.header(), out).map_err(failed)?;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for request in &batch {
            let written = format.request(source.header(), request, out).map_err(failed)?;
            done.requests += 1;
            done.records += u64::from(written);
            done.left_out += u64::from(!written);
        }
    }
    format.end(source.header(), out).map_err(failed)?;
    Ok(done)
}

/// The names of clients or disks as a column has them: without separators, never empty, and no two
/// the same, whatever they are called.
struct Names {
    /// What those are called that have no name.
    what: &'static str,
    /// By number; empty where it was not asked for yet.
    given: Vec<String>,
    taken: HashSet<String>,
    /// Of a name that more than one has: the least number that was not put behind it yet.
    again: HashMap<String, u64>,
}

impl Names {
    fn new(what: &'static str) -> Self {
        Self { what, given: Vec::new(), taken: HashSet::new(), again: HashMap::new() }
    }

    fn of(&mut self, known: Option<&String>, number: u32) -> &str {
        let index = number as usize;
        if self.given.len() <= index {
            self.given.resize(index + 1, String::new());
        }
        if self.given[index].is_empty() {
            let special = |c: char| c.is_whitespace() || c.is_control() || ",;\"#".contains(c);
            let plain: String = match known.filter(|name| !name.is_empty()) {
                None => format!("{}{number}", self.what),
                Some(name) => name.chars().map(|c| if special(c) { '_' } else { c }).collect(),
            };
            let mut name = plain.clone();
            if !self.taken.insert(name.clone()) {
                // Each number is tried once, however many are called the same.
                let next = self.again.entry(plain).or_default();
                let mut more = u64::from(number).max(*next);
                loop {
                    let numbered = format!("{name}~{more}");
                    more += 1;
                    if self.taken.insert(numbered.clone()) {
                        name = numbered;
                        break;
                    }
                }
                *next = more;
            }
            self.given[index] = name;
        }
        &self.given[index]
    }

    fn disk(&mut self, header: &Header, number: u32) -> &str {
        self.of(header.disks.get(number as usize).map(|disk| &disk.name), number)
    }
}

/// All that we know, in columns.
struct Csv {
    clients: Names,
    disks: Names,
}

impl Default for Csv {
    fn default() -> Self {
        Self { clients: Names::new("client"), disks: Names::new("disk") }
    }
}

impl TextWriter for Csv {
    fn begin(&mut self, _: &Header, out: &mut dyn Write) -> io::Result<()> {
        writeln!(out, "time_ns,client,disk,op,offset,length,latency_ns,flags")
    }

    fn request(&mut self, header: &Header, r: &Request, out: &mut dyn Write) -> io::Result<bool> {
        let client = self.clients.of(header.clients.get(r.client as usize), r.client);
        let disk = self.disks.disk(header, r.disk);
        let (time, op, offset, length) = (r.time, r.op.letter(), r.offset, r.length);
        write!(out, "{time},{client},{disk},{op},{offset},{length},{},", r.latency)?;
        let words = [(Flags::FUA, "FUA"), (Flags::FAILED, "FAILED"), (Flags::LATE, "LATE")];
        let set: Vec<_> = words.iter().filter(|(f, _)| r.flags.has(*f)).map(|(_, w)| *w).collect();
        writeln!(out, "{}", set.join("|"))?;
        Ok(true)
    }
}

/// fio's iolog: version 3, or version 2 for a trace without times. fio knows no zeroing: that is
/// written as a trim.
struct Fio {
    version: u8,
    opened: Vec<bool>,
    disks: Names,
}

impl Default for Fio {
    fn default() -> Self {
        Self { version: 0, opened: Vec::new(), disks: Names::new("disk") }
    }
}

impl TextWriter for Fio {
    fn begin(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()> {
        self.version = if header.times { 3 } else { 2 };
        writeln!(out, "fio version {} iolog", self.version)
    }

    fn request(&mut self, header: &Header, r: &Request, out: &mut dyn Write) -> io::Result<bool> {
        let file = self.disks.disk(header, r.disk);
        let at = match self.version {
            3 => format!("{} ", r.time / 1000),
            _ => String::new(),
        };
        let index = r.disk as usize;
        if self.opened.len() <= index {
            self.opened.resize(index + 1, false);
        }
        if !std::mem::replace(&mut self.opened[index], true) {
            writeln!(out, "{at}{file} add\n{at}{file} open")?;
        }
        let action = match r.op {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "sync",
            Op::Trim | Op::Zero => "trim",
        };
        writeln!(out, "{at}{file} {action} {} {}", r.offset, r.length)?;
        Ok(true)
    }

    fn end(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()> {
        // fio takes the time before a close as time to wait.
        for (index, _) in self.opened.iter().enumerate().filter(|(_, opened)| **opened) {
            let at = if self.version == 3 { "0 " } else { "" };
            writeln!(out, "{at}{} close", self.disks.disk(header, index as u32))?;
        }
        Ok(())
    }
}

/// blkreplay's `.load`: reads and writes of one disk, in sectors.
#[derive(Default)]
struct Load {
    disk: Option<u32>,
}

impl TextWriter for Load {
    fn begin(&mut self, header: &Header, out: &mut dyn Write) -> io::Result<()> {
        for line in header.notes.lines() {
            writeln!(out, "{}", line.replace(';', ","))?;
        }
        writeln!(out, "start ; sector; length ; op ;  replay_delay=0 ; replay_duration=0")
    }

    fn request(&mut self, _: &Header, r: &Request, out: &mut dyn Write) -> io::Result<bool> {
        if *self.disk.get_or_insert(r.disk) != r.disk {
            let why = "a .load has one disk, this trace several; cut one out with --disk";
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let op = match r.op {
            Op::Read => 'R',
            Op::Write => 'W',
            _ => return Ok(false),
        };
        let (first, behind) = (r.offset / 512, r.end().div_ceil(512));
        let (seconds, rest) = (r.time / 1_000_000_000, r.time % 1_000_000_000);
        writeln!(out, "{seconds}.{rest:09} ; {first} ; {} ; {op} ; 0.0 ; 0.0", behind - first)?;
        Ok(true)
    }
}

/// libCacheSim's records: one for each block of each read and write, with the number of the next
/// record of the same block, which is filled in from the end.
fn oracle(source: &mut dyn Source, file: &File, path: &Path, unit: u32) -> Result<Exported> {
    const RECORD: usize = crate::foreign::oracle::RECORD;
    const CHUNK: usize = 64 << 10;
    let failed = |e| Error::io(path.display(), e);
    let unit = u64::from(unit.max(1));
    let mut done = Exported::default();
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for r in &batch {
            done.requests += 1;
            if !matches!(r.op, Op::Read | Op::Write) {
                done.left_out += 1;
                continue;
            }
            let seconds = u32::try_from(r.time / 1_000_000_000).unwrap_or(u32::MAX);
            // Disks beyond the first lie elsewhere in the range of numbers.
            let disk = if r.disk == 0 { 0 } else { mix(r.disk.into()) << 40 };
            for block in r.offset / unit..r.end().div_ceil(unit) {
                let mut record = [0; RECORD];
                record[..4].copy_from_slice(&seconds.to_le_bytes());
                record[4..12].copy_from_slice(&(block.wrapping_add(disk)).to_le_bytes());
                record[12..16].copy_from_slice(&(unit as u32).to_le_bytes());
                record[16..].copy_from_slice(&(-1i64).to_le_bytes());
                out.write_all(&record).map_err(failed)?;
                done.records += 1;
            }
        }
    }
    out.flush().map_err(failed)?;
    drop(out);
    let mut next: HashMap<u64, i64> = HashMap::new();
    let mut end = done.records;
    let mut buffer = vec![0; CHUNK * RECORD];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let part = &mut buffer[..(end - start) as usize * RECORD];
        let offset = start * RECORD as u64;
        file.read_exact_at(part, offset).map_err(failed)?;
        for (index, record) in part.chunks_exact_mut(RECORD).enumerate().rev() {
            let number = (start + index as u64).cast_signed();
            let id = crate::native::frame::u64_at(record, 4);
            if let Some(later) = next.insert(id, number) {
                record[16..].copy_from_slice(&later.to_le_bytes());
            }
        }
        file.write_all_at(part, offset).map_err(failed)?;
        end = start;
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_parties_are_called_the_same() {
        let known = ["a b", "a_b", "", "disk2", "a b", "disk2~3"].map(String::from);
        let mut names = Names::new("disk");
        let mut seen = HashSet::new();
        for (number, name) in known.iter().enumerate() {
            let given = names.of(Some(name), number as u32).to_owned();
            assert!(!given.contains(' ') && seen.insert(given.clone()), "{given}");
            assert_eq!(names.of(Some(name), number as u32), given, "the same again");
        }
        assert_eq!(names.of(None, 9), "disk9");
    }

    /// Half of the names are those that the other half would get: looking for a free one from the
    /// beginning each time would take 2^36 steps.
    #[test]
    fn names_made_to_collide_are_told_apart_in_passing() {
        let count = 1u32 << 19;
        let mut names = Names::new("disk");
        for number in 0..count / 2 {
            let taken = format!("d~{}", number + count / 2);
            assert_eq!(names.of(Some(&taken), number), taken);
        }
        let same = "d".to_owned();
        let given: HashSet<String> =
            (count / 2..count).map(|number| names.of(Some(&same), number).to_owned()).collect();
        assert_eq!(given.len(), count as usize / 2);
        assert_eq!(names.taken.len(), count as usize);
    }
}
