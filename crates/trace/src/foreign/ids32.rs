//! An array of little-endian 32-bit block numbers. Any file could be one, so it is never guessed.

use super::Parsed;
use super::definition::{Alignment, Definition, Parser};
use super::intake::{Intake, Raw, TimeOrigin};
use super::records::RecordFormat;
use crate::Request;
use crate::bytes::u32_at;

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "ids32",
    reader: Some(|_, unit, _| Parser::Records(Box::new(Ids32 { unit }))),
    times: TimeOrigin::None,
    alignment: Alignment::Block,
    guessed: false,
    ..Definition::READ
};

/// A trace being read.
#[derive(Debug)]
pub(crate) struct Ids32 {
    /// Bytes of a block.
    pub(crate) unit: u32,
}

impl RecordFormat for Ids32 {
    fn size(&self) -> usize {
        4
    }

    fn record(
        &mut self,
        bytes: &[u8],
        intake: &mut Intake,
        batch: &mut Vec<Request>,
    ) -> Parsed<()> {
        let unit = u64::from(self.unit);
        let offset = u64::from(u32_at(bytes, 0)) * unit;
        intake.accept(&Raw { offset, length: unit, ..Raw::default() }, batch)
    }
}
