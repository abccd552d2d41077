//! fio's iolog, versions 2 and 3 (fio's `iolog.c`, and "Trace file format" in its manual).
//!
//! Version 2: `FILE ACTION [OFFSET LENGTH]`, with `wait`: fio waits until so many milliseconds
//! after its start (that is what its code does; its manual says otherwise). Version 3 begins each
//! line with microseconds since the start.

use super::fields::{number, shown, time, words};
use super::intake::{Intake, Raw, Times};
use super::lines::LineFormat;
use super::{MICROSECOND, MILLISECOND, Parsed};
use crate::{Op, Request};

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
                intake.times = Times::None;
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
                intake.times = Times::Relative;
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
