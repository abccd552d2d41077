//! fio's iolog, versions 2 and 3 (fio's `iolog.c`, and "Trace file format" in its manual).
//!
//! Version 2: `FILE ACTION [OFFSET LENGTH]`, with `wait`: fio waits until so many milliseconds
//! after its start (that is what its code does; its manual says otherwise). Version 3 begins each
//! line with microseconds since the start.

use super::definition::{Definition, FormatWriter, Parser};
use super::fields::{number, shown, time, words};
use super::intake::{Intake, Raw, TimeOrigin};
use super::lines::LineFormat;
use super::writer::{ColumnNames, TextWriter};
use super::{MICROSECOND, MILLISECOND, Parsed};
use crate::{Header, Op, Request};
use std::io::{self, Write};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "fio",
    endings: &["iolog", "fio"],
    reader: Some(|_, _, _| Parser::Lines(Box::new(Fio::default()))),
    writer: FormatWriter::Text(|| Box::new(FioWriter::default())),
    ..Definition::READ
};

/// An iolog being read.
#[derive(Debug, Default)]
pub(crate) struct Fio {
    version: u8,
    /// When the last `wait` ends, in nanoseconds.
    waited: u64,
}

impl LineFormat for Fio {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        if self.version == 0 {
            self.version = match line {
                b"fio version 2 iolog" => 2,
                b"fio version 3 iolog" => 3,
                _ => {
                    return Err(format!(
                        "{} where 'fio version 2 iolog' or '… 3 …' is expected",
                        shown(line)
                    ));
                }
            };
            if self.version == 2 {
                // Until the first wait there is no time.
                intake.times = TimeOrigin::None;
                intake.header.times = false;
            }
            return Ok(());
        }
        let (words, mut count) = words::<5>(line);
        let mut fields = &words[..count.min(5)];
        let mut at = self.waited;
        if self.version == 3 {
            at = time(fields.first().copied().unwrap_or_default(), MICROSECOND, "time")?;
            fields = fields.get(1..).unwrap_or_default();
            count = count.saturating_sub(1);
        }
        let (file, action, offset, length) = match (fields, count) {
            ([_, b"add" | b"open" | b"close" | b"unlink"], 2) => return Ok(()),
            ([file, action, offset, length], 4) => {
                (*file, *action, number(offset, "offset")?, *length)
            }
            // fio writes a length with it, its manual says that there need not be one.
            ([file, b"wait", offset], 3) => {
                (*file, &b"wait"[..], number(offset, "time to wait")?, &b"0"[..])
            }
            _ => return Err(format!("{} is no line of an iolog", shown(line))),
        };
        let op = match action {
            b"read" => Op::Read,
            b"write" => Op::Write,
            b"sync" | b"datasync" | b"syncfs" | b"sync_file_range" => Op::Flush,
            b"trim" => Op::Trim,
            b"wait" if self.version == 2 => {
                let until = offset.checked_mul(MILLISECOND).ok_or("it waits for too long")?;
                self.waited = self.waited.max(until);
                intake.times = TimeOrigin::Relative;
                intake.header.times = true;
                // Requests before the first wait were counted.
                self.waited = self.waited.max(intake.last);
                return Ok(());
            }
            b"wait" => return Ok(()),
            other => return Err(format!("{} is no action of an iolog", shown(other))),
        };
        let disk = intake.disk(file)?;
        let (offset, length) = match op {
            Op::Flush => (0, 0),
            _ => (offset, number(length, "length")?),
        };
        intake.accept(&Raw { time: at, disk, op, offset, length, ..Raw::default() }, out)
    }
}

/// fio's iolog: version 3, or version 2 for a trace without times. fio knows no zeroing: that is
/// written as a trim.
struct FioWriter {
    version: u8,
    opened: Vec<bool>,
    disks: ColumnNames,
}

impl Default for FioWriter {
    fn default() -> Self {
        Self { version: 0, opened: Vec::new(), disks: ColumnNames::new("disk") }
    }
}

impl TextWriter for FioWriter {
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
