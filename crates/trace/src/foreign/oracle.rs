//! libCacheSim's "oracleGeneral" records, 24 bytes, little-endian: u32 seconds, u64 object, u32
//! size, i64 number of the next request for the same object, -1 when there is none.
//!
//! Objects are opaque: each becomes one block of a unit of bytes, whatever its size, so that every
//! record stays one reference.

use super::definition::{Alignment, Definition, FormatWriter, Parser};
use super::intake::{Intake, Raw, TimeOrigin};
use super::records::RecordFormat;
use super::writer::Exported;
use super::{Parsed, SECOND};
use crate::bytes::{u32_at, u64_at};
use crate::request::PLACES;
use crate::transform::mix;
use crate::{Op, Request, Source};
use block::{Error, Result};
use std::collections::HashMap;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "oracle-general",
    endings: &["oracleGeneral"],
    reader: Some(|_, unit, _| Parser::Records(Box::new(Oracle::new(unit)))),
    writer: FormatWriter::File(write),
    times: TimeOrigin::Absolute,
    alignment: Alignment::Block,
    ..Definition::READ
};

/// Bytes of a record.
const RECORD: usize = 24;

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

/// libCacheSim's records: one for each block of each read and write, with the number of the next
/// record of the same block, which is filled in from the end.
fn write(source: &mut dyn Source, file: &File, path: &Path, unit: u32) -> Result<Exported> {
    const CHUNK: usize = 64 << 10;
    let failed = |e| Error::io(path.display(), e);
    let unit = u64::from(unit.max(1));
    let mut done = Exported::default();
    let mut out = BufWriter::with_capacity(1 << 20, file);
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        for r in &batch {
            done.requests += 1;
            if !matches!(r.op, Op::Read | Op::Write) {
                done.left_out += 1;
                continue;
            }
            let seconds = u32::try_from(r.time / 1_000_000_000).unwrap_or(u32::MAX);
            // Disks beyond the first lie elsewhere in the range of numbers.
            let disk = if r.disk == 0 { 0 } else { mix(r.disk.into()) << 40 };
            for block in r.offset / unit..r.end().div_ceil(unit) {
                let mut record = [0; RECORD];
                record[..4].copy_from_slice(&seconds.to_le_bytes());
                record[4..12].copy_from_slice(&(block.wrapping_add(disk)).to_le_bytes());
                record[12..16].copy_from_slice(&(unit as u32).to_le_bytes());
                record[16..].copy_from_slice(&(-1i64).to_le_bytes());
                out.write_all(&record).map_err(failed)?;
                done.records += 1;
            }
        }
    }
    out.flush().map_err(failed)?;
    drop(out);
    let mut next: HashMap<u64, i64> = HashMap::new();
    let mut end = done.records;
    let mut buffer = vec![0; CHUNK * RECORD];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let part = &mut buffer[..(end - start) as usize * RECORD];
        let offset = start * RECORD as u64;
        file.read_exact_at(part, offset).map_err(failed)?;
        for (index, record) in part.chunks_exact_mut(RECORD).enumerate().rev() {
            let number = (start + index as u64).cast_signed();
            let id = u64_at(record, 4);
            if let Some(later) = next.insert(id, number) {
                record[16..].copy_from_slice(&later.to_le_bytes());
            }
        }
        file.write_all_at(part, offset).map_err(failed)?;
        end = start;
    }
    Ok(done)
}
