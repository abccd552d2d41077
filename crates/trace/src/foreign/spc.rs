//! CSV of the Storage Performance Council ("SPC Trace File Format Specification", revision 1.0.1):
//! `ASU,LBA,size,opcode,timestamp[,…]`: application-specific unit, sector, bytes, r or w, seconds.

use super::definition::{Definition, Parser};
use super::fields::{number, operation, seconds, shown, split};
use super::intake::{Intake, Raw};
use super::lines::LineFormat;
use super::{Parsed, SECTOR};
use crate::Request;

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "spc",
    reader: Some(|_, _, _| Parser::Lines(Box::new(Spc))),
    ..Definition::READ
};

/// A trace being read.
#[derive(Debug, Default)]
pub(crate) struct Spc;

impl LineFormat for Spc {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (fields, count) = split::<5>(line, b',');
        if count < 5 {
            return Err(format!("{} is not five columns or more", shown(line)));
        }
        number(fields[0], "unit")?;
        let sector = number(fields[1], "address")?;
        let raw = Raw {
            offset: sector.checked_mul(SECTOR).ok_or("the address is too large")?,
            length: number(fields[2], "size")?,
            op: operation(fields[3])?,
            time: seconds(fields[4], "timestamp")?,
            ..Raw::default()
        };
        let disk = intake.disk(fields[0].trim_ascii())?;
        intake.accept(&Raw { disk, ..raw }, out)
    }
}
