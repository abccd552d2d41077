//! CSV of the MSR Cambridge traces (D. Narayanan et al., "Write Off-Loading", FAST 2008):
//! `Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime`, times in Windows' 100 ns since
//! 1601, offset and size in bytes.

use super::Parsed;
use super::definition::{Definition, Parser};
use super::fields::{number, operation, shown, split};
use super::intake::{Intake, Raw, TimeOrigin};
use super::lines::LineFormat;
use crate::Request;

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "msr",
    reader: Some(|_, _, _| Parser::Lines(Box::new(Msr::default()))),
    times: TimeOrigin::Absolute,
    ..Definition::READ
};

/// Nanoseconds of Windows' clock.
const TICK: u64 = 100;

/// A trace being read.
#[derive(Debug, Default)]
pub(crate) struct Msr {
    name: Vec<u8>,
}

impl LineFormat for Msr {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (fields, count) = split::<7>(line, b',');
        if count != 7 {
            return Err(format!("{} is not seven columns", shown(line)));
        }
        if fields[0] == b"Timestamp" {
            return Ok(());
        }
        let ticks = |field, what: &str| {
            number(field, what)?.checked_mul(TICK).ok_or_else(|| format!("the {what} is too large"))
        };
        number(fields[2], "disk number")?;
        let raw = Raw {
            time: ticks(fields[0], "timestamp")?,
            op: operation(fields[3])?,
            offset: number(fields[4], "offset")?,
            length: number(fields[5], "size")?,
            latency: ticks(fields[6], "response time")?,
            ..Raw::default()
        };
        self.name.clear();
        self.name.extend_from_slice(fields[1]);
        self.name.push(b'.');
        self.name.extend_from_slice(fields[2]);
        intake.header.latencies = true;
        let (client, disk) = (intake.client(fields[1])?, intake.disk(&self.name)?);
        intake.accept(&Raw { client, disk, ..raw }, out)
    }
}
