//! Comma-separated columns with a line of names. Which columns are understood, and in which units,
//! is in docs/trace.md; others are left alone.

use super::fields::{number, operation, shown, time};
use super::intake::{Intake, Raw, Times};
use super::lines::LineFormat;
use super::{MICROSECOND, MILLISECOND, Parsed, SECOND, SECTOR};
use crate::{Flags, Op, Request};

/// Columns at most.
const COLUMNS: usize = 256;

/// What a column holds, with the unit of its numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Column {
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

fn column(name: &str) -> Parsed<Column> {
    let is_time = |stem: &str| matches!(stem, "time" | "timestamp" | "ts" | "start");
    let is_latency =
        |stem: &str| matches!(stem, "latency" | "dur" | "duration" | "response" | "response_time");
    Ok(match (name, unit(name)) {
        (_, Some((stem, unit))) if is_time(stem) => Column::Time(unit),
        (_, Some((stem, unit))) if is_latency(stem) => Column::Latency(unit),
        (stem, _) if is_time(stem) || is_latency(stem) => {
            return Err(format!("column '{stem}' has no unit; call it {stem}_ns, _us, _ms or _s"));
        }
        ("client" | "host" | "hostname" | "vm", _) => Column::Client,
        ("disk" | "device" | "dev" | "volume", _) => Column::Disk,
        ("op" | "type" | "opcode" | "operation" | "rw", _) => Column::Op,
        ("offset", _) => Column::Offset(1),
        ("sector" | "lba", _) => Column::Offset(SECTOR),
        ("block", _) => Column::Offset(block::BLOCK),
        ("length" | "len" | "size" | "bytes", _) => Column::Length(1),
        ("sectors" | "n_sectors", _) => Column::Length(SECTOR),
        ("flags", _) => Column::Flags,
        _ => Column::Other,
    })
}

/// A trace being read.
#[derive(Debug, Default)]
pub(crate) struct Csv {
    columns: Vec<Column>,
}

impl Csv {
    fn titles(&mut self, line: &[u8], intake: &mut Intake) -> Parsed<()> {
        let line = line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line);
        for title in line.split(|b| *b == b',') {
            let title = String::from_utf8_lossy(title.trim_ascii()).to_ascii_lowercase();
            let column = column(title.trim_matches('"'))?;
            let same = |c: &Column| std::mem::discriminant(c) == std::mem::discriminant(&column);
            if column != Column::Other && self.columns.iter().any(same) {
                return Err(format!("column '{title}' says again what another one says"));
            }
            self.columns.push(column);
        }
        let has = |wanted: fn(&Column) -> bool| self.columns.iter().any(wanted);
        if self.columns.len() > COLUMNS || !has(|c| matches!(c, Column::Offset(_))) {
            return Err(format!(
                "{} names no column 'offset', 'sector', 'lba' or 'block'",
                shown(line)
            ));
        }
        let blocks = has(|c| *c == Column::Offset(block::BLOCK));
        if !blocks && !has(|c| matches!(c, Column::Length(_))) {
            return Err("there is no column 'length', 'size' or 'sectors'".to_owned());
        }
        if !has(|c| matches!(c, Column::Time(_))) {
            intake.times = Times::None;
        }
        intake.header.times = intake.times != Times::None;
        intake.header.ops = has(|c| *c == Column::Op);
        intake.header.latencies = has(|c| matches!(c, Column::Latency(_)));
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
        let mut fields = line.split(|b| *b == b',');
        let scaled = |field, unit: u64, what: &str| {
            number(field, what)?
                .checked_mul(unit)
                .ok_or_else(|| format!("the {what} is too large: {}", shown(field)))
        };
        for column in &self.columns {
            let field = fields.next().ok_or("fewer columns than names")?.trim_ascii();
            match *column {
                Column::Time(unit) => raw.time = time(field, unit, "time")?,
                Column::Client => raw.client = intake.client(field)?,
                Column::Disk => raw.disk = intake.disk(field)?,
                Column::Op => raw.op = operation(field)?,
                Column::Offset(unit) => raw.offset = scaled(field, unit, "offset")?,
                Column::Length(unit) => raw.length = scaled(field, unit, "length")?,
                Column::Latency(_) if field.is_empty() => {}
                Column::Latency(unit) => raw.latency = time(field, unit, "latency")?,
                Column::Flags => raw.flags = flags(field)?,
                Column::Other => {}
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
