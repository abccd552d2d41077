//! Command descriptor blocks, decoded. Pure.

use super::Sense;
use crate::codec::{u16_at, u24_at, u32_at, u64_at};

/// Blocks that a command is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockRange {
    /// The first one.
    pub first: u64,
    /// How many.
    pub count: u32,
}

/// What is compared in a verification.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compare {
    /// Nothing: the blocks are read.
    Nothing,
    /// All blocks, with as much data.
    All,
    /// Each block with the same one.
    One,
}

/// A command with its fields. `room` is how many bytes the initiator takes, `length` how many it sends;
/// the rest is called as in the standard.
#[allow(missing_docs, reason = "fields")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Whether the unit is ready.
    TestUnitReady,
    /// The sense data of what is pending.
    RequestSense { descriptors: bool, room: u32 },
    /// Who the unit is; a page of its vital product data.
    Inquiry { page: Option<u8>, room: u32 },
    /// Mode pages.
    ModeSense { long: bool, no_descriptor: bool, control: u8, page: u8, subpage: u8, room: u32 },
    /// Changes mode pages.
    ModeSelect { long: bool, save: bool, length: u32 },
    /// The size, in 32 bits.
    ReadCapacity10,
    /// The size, and more.
    ReadCapacity16 { room: u32 },
    /// Reads.
    Read { blocks: BlockRange },
    /// Writes; durably when it is `forced`.
    Write { blocks: BlockRange, forced: bool },
    /// Writes, and verifies.
    WriteAndVerify { blocks: BlockRange, compare: Compare },
    /// Verifies.
    Verify { blocks: BlockRange, compare: Compare },
    /// Reads ahead.
    Prefetch { blocks: BlockRange },
    /// Makes what was written durable.
    SynchronizeCache { blocks: BlockRange },
    /// Gives room back.
    Unmap { anchor: bool, length: u32 },
    /// Writes one block everywhere; `unmap` allows to give the room of zeroes back, `no_data` means
    /// zeroes.
    WriteSame { blocks: BlockRange, unmap: bool, anchor: bool, no_data: bool },
    /// Writes what comes second when what is there is what comes first.
    CompareAndWrite { blocks: BlockRange, forced: bool },
    /// Sets the bits that are set in the data.
    OrWrite { blocks: BlockRange, forced: bool },
    /// The logical units.
    ReportLuns { select: u8, room: u32 },
    /// Which commands there are.
    ReportOpcodes { timeouts: bool, options: u8, opcode: u8, action: u16, room: u32 },
    /// Which blocks have room.
    GetLbaStatus { first: u64, room: u32 },
    /// Starts and stops.
    StartStop { eject: bool, start: bool, power: u8 },
    /// Keeps the medium in, or does not.
    PreventRemoval,
    /// Reserves the unit (SPC-2).
    Reserve { third_party: bool, extent: bool },
    /// Releases it.
    Release { third_party: bool, extent: bool },
    /// Tells of registrations and reservations.
    PersistentIn { action: u8, room: u32 },
    /// Changes them.
    PersistentOut { action: u8, scope: u8, kind: u8, length: u32 },
}

impl Command {
    /// Decodes a command.
    ///
    /// # Errors
    /// The sense data for a command that is not known, or whose fields ask for what is not offered.
    pub fn decode(cdb: &[u8; 16]) -> Result<Self, Sense> {
        let control = match cdb[0] >> 5 {
            0 => 5,
            1 | 2 => 9,
            4 => 15,
            5 => 11,
            _ => return Err(Sense::INVALID_OPCODE),
        };
        let command = match Self::on_blocks(cdb)? {
            Some(command) => command,
            None => Self::on_unit(cdb)?,
        };
        if cdb[control] & 0x04 != 0 {
            return Err(Sense::field(control as u16)); // NACA
        }
        Ok(command)
    }

    /// A command that names blocks; `None` for any other.
    fn on_blocks(cdb: &[u8; 16]) -> Result<Option<Self>, Sense> {
        let forced = cdb[1] & 0x08 != 0;
        let unprotected = || if cdb[1] & 0xe0 == 0 { Ok(()) } else { Err(Sense::field(1)) };
        let six = || {
            let count = if cdb[4] == 0 { 256 } else { u32::from(cdb[4]) };
            BlockRange { first: u64::from(u24_at(cdb, 1) & 0x1f_ffff), count }
        };
        let ten = || BlockRange { first: u32_at(cdb, 2).into(), count: u16_at(cdb, 7).into() };
        let twelve = || BlockRange { first: u32_at(cdb, 2).into(), count: u32_at(cdb, 6) };
        let sixteen = || BlockRange { first: u64_at(cdb, 2), count: u32_at(cdb, 10) };
        let compare = || match cdb[1] >> 1 & 3 {
            0 => Ok(Compare::Nothing),
            1 => Ok(Compare::All),
            3 => Ok(Compare::One),
            _ => Err(Sense::field(1)),
        };
        let read = |blocks| unprotected().map(|()| Self::Read { blocks });
        let write = |blocks| unprotected().map(|()| Self::Write { blocks, forced });
        let verify = |blocks| {
            unprotected()?;
            Ok(Self::Verify { blocks, compare: compare()? })
        };
        let write_and_verify = |blocks| {
            unprotected()?;
            // There is no third way to compare here.
            match compare()? {
                Compare::One => Err(Sense::field(1)),
                compare => Ok(Self::WriteAndVerify { blocks, compare }),
            }
        };
        let write_same = |blocks, no_data| {
            unprotected()?;
            let (anchor, unmap) = (cdb[1] & 0x10 != 0, cdb[1] & 0x08 != 0);
            if anchor && !unmap {
                return Err(Sense::field(1));
            }
            Ok(Self::WriteSame { blocks, unmap, anchor, no_data })
        };
        Ok(Some(match cdb[0] {
            0x08 => Self::Read { blocks: six() },
            0x0a => Self::Write { blocks: six(), forced: false },
            0x28 => read(ten())?,
            0xa8 => read(twelve())?,
            0x88 => read(sixteen())?,
            0x2a => write(ten())?,
            0xaa => write(twelve())?,
            0x8a => write(sixteen())?,
            0x2e => write_and_verify(ten())?,
            0xae => write_and_verify(twelve())?,
            0x8e => write_and_verify(sixteen())?,
            0x2f => verify(ten())?,
            0xaf => verify(twelve())?,
            0x8f => verify(sixteen())?,
            0x34 => Self::Prefetch { blocks: ten() },
            0x90 => Self::Prefetch { blocks: sixteen() },
            0x35 => Self::SynchronizeCache { blocks: ten() },
            0x91 => Self::SynchronizeCache { blocks: sixteen() },
            0x41 => write_same(ten(), false)?,
            0x93 => write_same(sixteen(), cdb[1] & 1 != 0)?,
            0x89 => {
                unprotected()?;
                let blocks = BlockRange { first: u64_at(cdb, 2), count: cdb[13].into() };
                Self::CompareAndWrite { blocks, forced }
            }
            0x8b => {
                unprotected()?;
                Self::OrWrite { blocks: sixteen(), forced }
            }
            _ => return Ok(None),
        }))
    }

    /// A command on the unit itself, or on what is known of it.
    fn on_unit(cdb: &[u8; 16]) -> Result<Self, Sense> {
        let room16 = u32::from(u16_at(cdb, 7));
        Ok(match cdb[0] {
            0x00 => Self::TestUnitReady,
            0x03 => Self::RequestSense { descriptors: cdb[1] & 1 != 0, room: cdb[4].into() },
            0x12 => {
                let page = (cdb[1] & 1 != 0).then_some(cdb[2]);
                if page.is_none() && cdb[2] != 0 {
                    return Err(Sense::field(2));
                }
                if cdb[1] & 0x02 != 0 {
                    return Err(Sense::field(1)); // the obsolete CMDDT
                }
                Self::Inquiry { page, room: u16_at(cdb, 3).into() }
            }
            0x15 => Self::ModeSelect { long: false, save: cdb[1] & 1 != 0, length: cdb[4].into() },
            0x55 => Self::ModeSelect { long: true, save: cdb[1] & 1 != 0, length: room16 },
            0x1a | 0x5a => Self::ModeSense {
                long: cdb[0] == 0x5a,
                no_descriptor: cdb[1] & 0x08 != 0,
                control: cdb[2] >> 6,
                page: cdb[2] & 0x3f,
                subpage: cdb[3],
                room: if cdb[0] == 0x5a { room16 } else { cdb[4].into() },
            },
            0x16 | 0x56 => {
                Self::Reserve { third_party: cdb[1] & 0x10 != 0, extent: cdb[1] & 1 != 0 }
            }
            0x17 | 0x57 => {
                Self::Release { third_party: cdb[1] & 0x10 != 0, extent: cdb[1] & 1 != 0 }
            }
            0x1b => Self::StartStop {
                eject: cdb[4] & 2 != 0,
                start: cdb[4] & 1 != 0,
                power: cdb[4] >> 4,
            },
            0x1e => Self::PreventRemoval,
            0x25 => Self::ReadCapacity10,
            0x42 => Self::Unmap { anchor: cdb[1] & 1 != 0, length: room16 },
            0x5e => Self::PersistentIn { action: cdb[1] & 0x1f, room: room16 },
            0x5f => Self::PersistentOut {
                action: cdb[1] & 0x1f,
                scope: cdb[2] >> 4,
                kind: cdb[2] & 0x0f,
                length: u32_at(cdb, 5),
            },
            0x9e => match cdb[1] & 0x1f {
                0x10 => Self::ReadCapacity16 { room: u32_at(cdb, 10) },
                0x12 => Self::GetLbaStatus { first: u64_at(cdb, 2), room: u32_at(cdb, 10) },
                _ => return Err(Sense::field(1)),
            },
            0xa0 => Self::ReportLuns { select: cdb[2], room: u32_at(cdb, 6) },
            0xa3 => match cdb[1] & 0x1f {
                0x0c => Self::ReportOpcodes {
                    timeouts: cdb[2] & 0x80 != 0,
                    options: cdb[2] & 7,
                    opcode: cdb[3],
                    action: u16_at(cdb, 4),
                    room: u32_at(cdb, 6),
                },
                _ => return Err(Sense::field(1)),
            },
            _ => return Err(Sense::INVALID_OPCODE),
        })
    }

    /// How many bytes an initiator sends with it, on a unit with blocks of so many bytes.
    pub fn data_out(&self, block: u32) -> u64 {
        let of = |blocks: &BlockRange| u64::from(blocks.count) * u64::from(block);
        match self {
            Self::Write { blocks, .. }
            | Self::OrWrite { blocks, .. }
            | Self::WriteAndVerify { blocks, .. }
            | Self::Verify { blocks, compare: Compare::All } => of(blocks),
            Self::Verify { blocks, compare: Compare::One } if blocks.count > 0 => block.into(),
            Self::CompareAndWrite { blocks, .. } => 2 * of(blocks),
            Self::WriteSame { no_data: false, .. } => block.into(),
            Self::Unmap { length, .. }
            | Self::ModeSelect { length, .. }
            | Self::PersistentOut { length, .. } => u64::from(*length),
            _ => 0,
        }
    }

    /// Whether it makes no sense with more or less data than it needs.
    pub const fn needs_all_data(&self) -> bool {
        matches!(
            self,
            Self::CompareAndWrite { .. }
                | Self::OrWrite { .. }
                | Self::WriteSame { no_data: false, .. }
        )
    }

    /// How many bytes an initiator gets at the most.
    pub fn data_in(&self, block: u32) -> u64 {
        match self {
            Self::Read { blocks } => u64::from(blocks.count) * u64::from(block),
            Self::ReadCapacity10 => 8,
            Self::RequestSense { room, .. }
            | Self::Inquiry { room, .. }
            | Self::ModeSense { room, .. }
            | Self::ReadCapacity16 { room }
            | Self::ReportLuns { room, .. }
            | Self::ReportOpcodes { room, .. }
            | Self::GetLbaStatus { room, .. }
            | Self::PersistentIn { room, .. } => (*room).into(),
            _ => 0,
        }
    }

    /// Whether it reserves the unit, or changes who has.
    pub fn reserves(&self) -> bool {
        matches!(self, Self::Reserve { .. } | Self::PersistentOut { .. })
    }

    /// Whether it changes what the disk holds.
    pub const fn changes(&self) -> bool {
        matches!(
            self,
            Self::Write { .. }
                | Self::WriteAndVerify { .. }
                | Self::Unmap { .. }
                | Self::WriteSame { .. }
                | Self::CompareAndWrite { .. }
                | Self::OrWrite { .. }
        )
    }

    /// Whether it leaves anything behind that others find: what the disk holds, what of that is durable, and who has
    /// reserved it.
    pub fn lasts(&self) -> bool {
        let releases = matches!(self, Self::Release { .. } | Self::SynchronizeCache { .. });
        self.changes() || self.reserves() || releases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_fields_are_where_the_standard_has_them() {
        let cdb = |bytes: &[u8]| {
            let mut cdb = [0; 16];
            cdb[..bytes.len()].copy_from_slice(bytes);
            Command::decode(&cdb)
        };
        let blocks = |first, count| BlockRange { first, count };
        assert_eq!(
            cdb(&[0x08, 0xff, 1, 2, 0]),
            Ok(Command::Read { blocks: blocks(0x1f_0102, 256) })
        );
        let write = Command::Write { blocks: blocks(0x0102_0304, 0x0506), forced: true };
        assert_eq!(cdb(&[0x2a, 0x08, 1, 2, 3, 4, 0, 5, 6]), Ok(write));
        let long = blocks(0x0102_0304_0506_0708, 0x090a_0b0c);
        let same = Command::WriteSame { blocks: long, unmap: true, anchor: false, no_data: true };
        let bytes = [0x93, 0x09, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        assert_eq!(cdb(&bytes), Ok(same));
        assert_eq!(cdb(&[0x28, 0x20]), Err(Sense::field(1)), "protection");
        assert_eq!(cdb(&[0x00, 0, 0, 0, 0, 4]), Err(Sense::field(5)), "NACA");
        assert_eq!(cdb(&[0xc0]), Err(Sense::INVALID_OPCODE));
    }

    proptest! {
        #[test]
        fn no_command_is_too_strange(cdb in prop::array::uniform16(any::<u8>())) {
            if let Ok(command) = Command::decode(&cdb) {
                let _ = (command.data_out(4096), command.data_in(4096), command.changes());
            }
        }
    }
}
