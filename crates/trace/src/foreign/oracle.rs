//! libCacheSim's "oracleGeneral" records, 24 bytes, little-endian: u32 seconds, u64 object, u32
//! size, i64 number of the next request for the same object, -1 when there is none.
//!
//! Objects are opaque: each becomes one block of a unit of bytes, whatever its size, so that every
//! record stays one reference.

use super::intake::{Intake, Raw};
use super::records::RecordFormat;
use super::{Parsed, SECOND};
use crate::Request;
use crate::native::frame::{u32_at, u64_at};
use crate::request::PLACES;

/// Bytes of a record.
pub(crate) const RECORD: usize = 24;

/// A trace being read.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// Bytes of a block.
    unit: u64,
    /// How many blocks there can be.
    places: u64,
    number: i64,
}

impl Oracle {
    /// For blocks of `unit` bytes, at least 1.
    pub(crate) fn new(unit: u32) -> Self {
        let unit = u64::from(unit.max(1));
        Self { unit, places: PLACES / unit, number: 0 }
    }
}

impl RecordFormat for Oracle {
    fn size(&self) -> usize {
        RECORD
    }

    #[inline]
    fn record(
        &mut self,
        bytes: &[u8],
        intake: &mut Intake,
        batch: &mut Vec<Request>,
    ) -> Parsed<()> {
        let next = u64_at(bytes, 16).cast_signed();
        self.number += 1;
        // i64::MAX is what some converters write for "never".
        if next < -1 || (next != -1 && next < self.number) {
            return Err(followed(self.number - 1, next));
        }
        let size = u32_at(bytes, 12);
        if size == 0 {
            return Err("an object of no size".to_owned());
        }
        let mut object = u64_at(bytes, 4);
        // Hashed numbers are folded into the range of places. Others need no division.
        if object >= self.places {
            object %= self.places;
        }
        let offset = object * self.unit;
        let time = u64::from(u32_at(bytes, 0)) * SECOND;
        intake.accept(&Raw { time, offset, length: self.unit, ..Raw::default() }, batch)
    }
}

#[cold]
fn followed(number: i64, next: i64) -> String {
    format!("request {number} is followed by request {next}")
}
