//! Columns with a line of names, between commas, semicolons or tabs; fields may stand in quotes. Which
//! columns are understood, and in which units, is in docs/trace.md; others are left alone.

use super::definition::{Definition, FormatWriter, Parser};
use super::fields::{number, operation, shown, time};
use super::intake::{Intake, Raw, TimeOrigin};
use super::lines::LineFormat;
use super::writer::{ColumnNames, TextWriter};
use super::{MICROSECOND, MILLISECOND, Parsed, SECOND, SECTOR};
use crate::{Flags, Header, Op, Request};
use std::borrow::Cow;
use std::io::{self, Write};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "csv",
    endings: &["csv"],
    reader: Some(|_, _, _| Parser::Lines(Box::new(Csv::default()))),
    writer: FormatWriter::Text(|| Box::new(CsvWriter::default())),
    ..Definition::READ
};

/// Columns at most.
const COLUMNS: usize = 256;

/// What a column holds, with the unit of its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum CsvColumn {
    Time(u64),
    Client,
    Disk,
    Op,
    Offset(u64),
    Length(u64),
    Latency(u64),
    Flags,
    Other,
}

/// The nanoseconds that a name's last part says.
fn unit(name: &str) -> Option<(&str, u64)> {
    let (stem, unit) = name.rsplit_once('_')?;
    let unit = match unit {
        "ns" => 1,
        "us" => MICROSECOND,
        "ms" => MILLISECOND,
        "s" => SECOND,
        _ => return None,
    };
    Some((stem, unit))
}

fn column(name: &str) -> Parsed<CsvColumn> {
    let is_time = |stem: &str| matches!(stem, "time" | "timestamp" | "ts" | "start");
    let is_latency =
        |stem: &str| matches!(stem, "latency" | "dur" | "duration" | "response" | "response_time");
    Ok(match (name, unit(name)) {
        (_, Some((stem, unit))) if is_time(stem) => CsvColumn::Time(unit),
        (_, Some((stem, unit))) if is_latency(stem) => CsvColumn::Latency(unit),
        (stem, _) if is_time(stem) || is_latency(stem) => {
            return Err(format!("column '{stem}' has no unit; call it {stem}_ns, _us, _ms or _s"));
        }
        ("client" | "host" | "hostname" | "vm", _) => CsvColumn::Client,
        ("disk" | "device" | "dev" | "volume", _) => CsvColumn::Disk,
        ("op" | "type" | "opcode" | "operation" | "rw", _) => CsvColumn::Op,
        ("offset", _) => CsvColumn::Offset(1),
        ("sector" | "lba", _) => CsvColumn::Offset(SECTOR),
        ("block", _) => CsvColumn::Offset(block::BLOCK),
        ("length" | "len" | "size" | "bytes", _) => CsvColumn::Length(1),
        ("sectors" | "n_sectors", _) => CsvColumn::Length(SECTOR),
        ("flags", _) => CsvColumn::Flags,
        _ => CsvColumn::Other,
    })
}

/// A trace being read.
#[derive(Debug, Default)]
pub(crate) struct Csv {
    columns: Vec<CsvColumn>,
    separator: u8,
}

/// The fields of a line, without the quotes (RFC 4180, but for line ends in quotes).
struct CsvFields<'a> {
    rest: Option<&'a [u8]>,
    separator: u8,
}

impl<'a> CsvFields<'a> {
    fn of(line: &'a [u8], separator: u8) -> Self {
        Self { rest: Some(line), separator }
    }

    /// The field that begins with a quote, the rest of whose line this is, and what follows it.
    fn quoted(&mut self, text: &'a [u8]) -> Parsed<Cow<'a, [u8]>> {
        let mut field = Vec::new();
        let mut at = 0;
        loop {
            let Some(quote) = text[at..].iter().position(|b| *b == b'"') else {
                return Err(format!("the quote before {} never ends", shown(text)));
            };
            field.extend_from_slice(&text[at..at + quote]);
            at += quote + 1;
            if text.get(at) != Some(&b'"') {
                break;
            }
            field.push(b'"'); // two of them stand for one
            at += 1;
        }
        let behind = text[at..].trim_ascii_start();
        self.rest = match behind.split_first() {
            None => None,
            Some((byte, rest)) if *byte == self.separator => Some(rest),
            // Where the separator is white space it was trimmed away.
            Some(_) if text.get(at) == Some(&self.separator) => Some(&text[at + 1..]),
            Some(_) => return Err(format!("{} stands behind a quoted field", shown(behind))),
        };
        Ok(Cow::Owned(field))
    }
}

impl<'a> Iterator for CsvFields<'a> {
    type Item = Parsed<Cow<'a, [u8]>>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.rest.take()?;
        let trimmed = match self.separator {
            b'\t' => rest.strip_prefix(b" ").unwrap_or(rest),
            _ => rest.trim_ascii_start(),
        };
        if let Some(text) = trimmed.strip_prefix(b"\"") {
            return Some(self.quoted(text));
        }
        let field = match rest.iter().position(|b| *b == self.separator) {
            Some(end) => {
                self.rest = Some(&rest[end + 1..]);
                &rest[..end]
            }
            None => rest,
        };
        Some(Ok(Cow::Borrowed(field.trim_ascii())))
    }
}

/// What stands between the names of columns: the first of these that is there at all.
fn separator(titles: &[u8]) -> u8 {
    *[b',', b';', b'\t'].iter().find(|byte| titles.contains(byte)).unwrap_or(&b',')
}

impl Csv {
    fn titles(&mut self, line: &[u8], intake: &mut Intake) -> Parsed<()> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        self.separator = separator(line);
        for title in CsvFields::of(line, self.separator) {
            let title = String::from_utf8_lossy(title?.trim_ascii()).to_ascii_lowercase();
            let column = column(&title)?;
            let same = |c: &CsvColumn| std::mem::discriminant(c) == std::mem::discriminant(&column);
            if column != CsvColumn::Other && self.columns.iter().any(same) {
                return Err(format!("column '{title}' says again what another one says"));
            }
            self.columns.push(column);
        }
        let has = |wanted: fn(&CsvColumn) -> bool| self.columns.iter().any(wanted);
        if self.columns.len() > COLUMNS || !has(|c| matches!(c, CsvColumn::Offset(_))) {
            return Err(format!(
                "{} names no column 'offset', 'sector', 'lba' or 'block'",
                shown(line)
            ));
        }
        let blocks = has(|c| *c == CsvColumn::Offset(block::BLOCK));
        if !blocks && !has(|c| matches!(c, CsvColumn::Length(_))) {
            return Err("there is no column 'length', 'size' or 'sectors'".to_owned());
        }
        if !has(|c| matches!(c, CsvColumn::Time(_))) {
            intake.times = TimeOrigin::None;
        }
        intake.header.times = intake.times != TimeOrigin::None;
        intake.header.ops = has(|c| *c == CsvColumn::Op);
        intake.header.latencies = has(|c| matches!(c, CsvColumn::Latency(_)));
        Ok(())
    }
}

/// Flags as we write them: FUA, FAILED, LATE, joined by `|`; or nothing.
fn flags(field: &[u8]) -> Parsed<Flags> {
    let mut flags = Flags::NONE;
    for word in field.split(|b| *b == b'|').map(<[u8]>::trim_ascii).filter(|w| !w.is_empty()) {
        flags = flags.with(match word.to_ascii_uppercase().as_slice() {
            b"FUA" => Flags::FUA,
            b"FAILED" => Flags::FAILED,
            b"LATE" => Flags::LATE,
            _ => return Err(format!("{} is no flag (FUA, FAILED, LATE)", shown(word))),
        });
    }
    Ok(flags)
}

impl LineFormat for Csv {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        if line.starts_with(b"#") {
            return Ok(());
        }
        if self.columns.is_empty() {
            return self.titles(line, intake);
        }
        let mut raw = Raw { length: block::BLOCK, ..Raw::default() };
        let mut fields = CsvFields::of(line, self.separator);
        let scaled = |field: &[u8], unit: u64, what: &str| {
            number(field, what)?
                .checked_mul(unit)
                .ok_or_else(|| format!("the {what} is too large: {}", shown(field)))
        };
        for column in &self.columns {
            let field = match fields.next() {
                Some(field) => field?,
                // Empty fields at the end of a line look like white space there.
                None if self.separator == b'\t' => Cow::Borrowed(&[][..]),
                None => return Err("fewer columns than names".to_owned()),
            };
            let field = field.as_ref();
            match *column {
                CsvColumn::Time(unit) => raw.time = time(field, unit, "time")?,
                CsvColumn::Client => raw.client = intake.client(field)?,
                CsvColumn::Disk => raw.disk = intake.disk(field)?,
                CsvColumn::Op => raw.op = operation(field)?,
                CsvColumn::Offset(unit) => raw.offset = scaled(field, unit, "offset")?,
                CsvColumn::Length(unit) => raw.length = scaled(field, unit, "length")?,
                CsvColumn::Latency(_) if field.is_empty() => {}
                CsvColumn::Latency(unit) => raw.latency = time(field, unit, "latency")?,
                CsvColumn::Flags => raw.flags = flags(field)?,
                CsvColumn::Other => {}
            }
        }
        if fields.next().is_some() {
            return Err("more columns than names".to_owned());
        }
        if raw.op == Op::Flush {
            (raw.offset, raw.length) = (0, 0);
        }
        intake.accept(&raw, out)
    }
}

/// All that we know, in columns.
struct CsvWriter {
    clients: ColumnNames,
    disks: ColumnNames,
}

impl Default for CsvWriter {
    fn default() -> Self {
        Self { clients: ColumnNames::new("client"), disks: ColumnNames::new("disk") }
    }
}

impl TextWriter for CsvWriter {
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
