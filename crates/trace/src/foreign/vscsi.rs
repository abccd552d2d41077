//! vSCSI records, as VMware's `vscsiStats` writes and CloudPhysics collected them; little-endian.
//!
//! Version 1, 32 bytes: u32 serial, u32 length, u32 segments, u16 command, u16 version 0x01xx,
//! u64 sector, u64 microseconds. Version 2, 40 bytes: u16 command, u16 version 0x02xx, u32 serial,
//! u32 length, u32 segments, u64 sector, u64 microseconds, u64 response time in microseconds.

use super::definition::{Definition, Parser};
use super::intake::{Intake, Raw, TimeOrigin};
use super::records::{self, RecordFormat};
use super::{MICROSECOND, Parsed, SECTOR};
use crate::bytes::{u32_at, u64_at};
use crate::{Op, Request};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "vscsi",
    reader: Some(|sample, _, intake| {
        let two =
            records::understands(&sample[..sample.len().min(40)], Box::new(Vscsi::Two), intake);
        Parser::Records(Box::new(if two { Vscsi::Two } else { Vscsi::One }))
    }),
    times: TimeOrigin::Absolute,
    ops: true,
    ..Definition::READ
};

/// A version of the format.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Vscsi {
    One,
    Two,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The operations of SCSI commands that have a place (SBC-3); others are left out.
fn operation(command: u16) -> Option<Op> {
    match command {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a => Some(Op::Write),
        0x35 | 0x91 => Some(Op::Flush),
        0x42 => Some(Op::Trim),
        0x41 | 0x93 => Some(Op::Zero),
        _ => None,
    }
}

impl RecordFormat for Vscsi {
    fn size(&self) -> usize {
        match self {
            Self::One => 32,
            Self::Two => 40,
        }
    }

    fn record(
        &mut self,
        bytes: &[u8],
        intake: &mut Intake,
        batch: &mut Vec<Request>,
    ) -> Parsed<()> {
        let (command, version, length, place, wanted) = match self {
            Self::One => (u16_at(bytes, 12), u16_at(bytes, 14), u32_at(bytes, 4), 16, 1),
            Self::Two => (u16_at(bytes, 0), u16_at(bytes, 2), u32_at(bytes, 8), 16, 2),
        };
        if version >> 8 != wanted {
            return Err(format!("a record of version {version:#06x}, not {wanted:#04x}xx"));
        }
        let Some(op) = operation(command) else { return Ok(()) };
        let wide = |at: usize, unit: u64, what: &str| {
            u64_at(bytes, at).checked_mul(unit).ok_or_else(|| format!("the {what} is too large"))
        };
        intake.header.latencies = matches!(self, Self::Two);
        let latency = match self {
            Self::One => 0,
            Self::Two => wide(32, MICROSECOND, "response time")?,
        };
        let mut raw = Raw {
            time: wide(place + 8, MICROSECOND, "time")?,
            op,
            offset: wide(place, SECTOR, "sector")?,
            length: length.into(),
            latency,
            ..Raw::default()
        };
        if op == Op::Flush {
            (raw.offset, raw.length) = (0, 0);
        }
        intake.accept(&raw, batch)
    }
}
