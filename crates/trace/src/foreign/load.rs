//! blkreplay's `.load`: text up to a line that begins with `start ;`, then
//! `seconds ; sector ; sectors ; R|W ; replay delay ; replay duration`.
//!
//! Published traces have text and titles twice where a script put its own in front of a file that had some.

use super::blkparse::kind;
use super::definition::{Alignment, Definition, FormatWriter, Parser};
use super::fields::{number, seconds, shown, split};
use super::intake::{Intake, Raw};
use super::lines::LineFormat;
use super::writer::TextWriter;
use super::{Parsed, SECTOR};
use crate::{Header, Op, Request};
use std::io::{self, Write};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "load",
    endings: &["load"],
    reader: Some(|_, _, _| Parser::Lines(Box::new(LoadReader::default()))),
    writer: FormatWriter::Text(|| Box::new(LoadWriter::default())),
    alignment: Alignment::Bytes(512),
    ..Definition::READ
};

/// Lines before the table at most.
const PREAMBLE: usize = 1000;

/// A load being read.
#[derive(Debug, Default)]
pub(crate) struct LoadReader {
    preamble: usize,
    begun: bool,
    /// Whether a request was read.
    requests: bool,
}

impl LineFormat for LoadReader {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (fields, count) = split::<4>(line, b';');
        let titles = line.trim_ascii_start().starts_with(b"start") && count >= 4;
        let numbers = count >= 4 && seconds(fields[0], "time").is_ok();
        if titles && !self.requests {
            self.begun = true;
            return Ok(());
        }
        // Before the first request any text may stand, also behind titles.
        if !numbers && !self.requests {
            self.preamble += 1;
            return match (self.preamble > PREAMBLE, self.begun) {
                (false, _) => Ok(()),
                (true, false) => Err("no line that begins with 'start ;' so far".to_owned()),
                (true, true) => Err("no request behind 'start ;' so far".to_owned()),
            };
        }
        self.requests = true;
        if line.trim_ascii_start().starts_with(b"#") {
            return Ok(());
        }
        if count < 4 {
            return Err(format!("{} is not 'seconds ; sector ; sectors ; R|W ; …'", shown(line)));
        }
        let sectors = |field, what: &str| {
            number(field, what)?
                .checked_mul(SECTOR)
                .ok_or_else(|| format!("the {what} is too large"))
        };
        // Converted from blktrace, whose letters it keeps: RA is a read ahead.
        let word = fields[3].trim_ascii();
        let (op, flags) = kind(word).ok_or_else(|| format!("{} is no operation", shown(word)))?;
        let raw = Raw {
            time: seconds(fields[0], "time")?,
            offset: sectors(fields[1], "sector")?,
            length: sectors(fields[2], "number of sectors")?,
            op,
            flags,
            ..Raw::default()
        };
        intake.accept(&raw, out)
    }
}

/// blkreplay's `.load`: reads and writes of one disk, in sectors.
#[derive(Default)]
struct LoadWriter {
    disk: Option<u32>,
}

impl TextWriter for LoadWriter {
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
