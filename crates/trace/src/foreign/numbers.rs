//! Formats of bare numbers.
//!
//! * `.lis` of the ARC paper's traces: `sector sectors ignored number`, reads without times.
//! * MQSim: `nanoseconds device sector sectors type`, 0 for a write, 1 for a read.
//! * ids: one block number a line; lines of `*` separate parts.

use super::definition::{Alignment, Definition, Parser};
use super::fields::{number, shown, words};
use super::intake::{Intake, Raw, TimeOrigin};
use super::lines::LineFormat;
use super::{Parsed, SECTOR};
use crate::{Op, Request};

/// The line of the ARC paper's format in the table.
pub(crate) const LIS: Definition = Definition {
    name: "lis",
    reader: Some(|_, _, _| Parser::Lines(Box::new(Lis))),
    times: TimeOrigin::None,
    alignment: Alignment::Bytes(512),
    ..Definition::READ
};

/// The line of MQSim's format in the table.
pub(crate) const MQSIM: Definition = Definition {
    name: "mqsim",
    reader: Some(|_, _, _| Parser::Lines(Box::new(Mqsim))),
    alignment: Alignment::Bytes(512),
    ..Definition::READ
};

/// The line of bare block numbers in the table.
pub(crate) const IDS: Definition = Definition {
    name: "ids",
    reader: Some(|_, unit, _| Parser::Lines(Box::new(Ids { unit }))),
    times: TimeOrigin::None,
    alignment: Alignment::Block,
    ..Definition::READ
};

fn sectors(field: &[u8], what: &str) -> Parsed<u64> {
    number(field, what)?.checked_mul(SECTOR).ok_or_else(|| format!("the {what} is too large"))
}

/// The ARC paper's traces.
#[derive(Debug, Default)]
pub(crate) struct Lis;

impl LineFormat for Lis {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (words, count) = words::<4>(line);
        if count != 4 {
            return Err(format!("{} is not four numbers", shown(line)));
        }
        number(words[2], "third number")?;
        number(words[3], "fourth number")?;
        intake.header.ops = false;
        let (offset, length) = (sectors(words[0], "sector")?, sectors(words[1], "length")?);
        intake.accept(&Raw { offset, length, ..Raw::default() }, out)
    }
}

/// MQSim's traces.
#[derive(Debug, Default)]
pub(crate) struct Mqsim;

impl LineFormat for Mqsim {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (words, count) = words::<5>(line);
        if count != 5 {
            return Err(format!("{} is not five numbers", shown(line)));
        }
        let op = match words[4] {
            b"0" => Op::Write,
            b"1" => Op::Read,
            other => return Err(format!("{} is no type (0 write, 1 read)", shown(other))),
        };
        number(words[1], "device")?;
        let raw = Raw {
            time: number(words[0], "time")?,
            op,
            offset: sectors(words[2], "sector")?,
            length: sectors(words[3], "length")?,
            ..Raw::default()
        };
        let disk = intake.disk(words[1])?;
        intake.accept(&Raw { disk, ..raw }, out)
    }
}

/// Block numbers of a unit of bytes.
#[derive(Debug)]
pub(crate) struct Ids {
    pub(crate) unit: u32,
}

impl LineFormat for Ids {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let line = line.trim_ascii_start();
        if line.iter().all(|b| *b == b'*') {
            return Ok(());
        }
        intake.header.ops = false;
        let length = u64::from(self.unit);
        let offset = number(line, "block number")?.checked_mul(length);
        let offset = offset.ok_or("the block number is too large")?;
        intake.accept(&Raw { offset, length, ..Raw::default() }, out)
    }
}
