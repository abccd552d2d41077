//! Sense data: why a command failed (SPC-4, 4.5).

use block::{Error, ErrorKind};

/// The sense key and the additional sense code with its qualifier, and where the fault is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sense {
    /// What an initiator can do about it.
    pub key: u8,
    /// The cause.
    pub code: (u8, u8),
    /// The block, or the offset, that it is about.
    pub information: Option<u32>,
    /// The byte that is wrong; `true` in the command, `false` in its parameters.
    pub field: Option<(u16, bool)>,
}

const NOT_READY: u8 = 0x2;
const MEDIUM_ERROR: u8 = 0x3;
const HARDWARE_ERROR: u8 = 0x4;
const ILLEGAL_REQUEST: u8 = 0x5;
const UNIT_ATTENTION: u8 = 0x6;
const DATA_PROTECT: u8 = 0x7;
const ABORTED_COMMAND: u8 = 0xb;
const MISCOMPARE: u8 = 0xe;

impl Sense {
    const fn new(key: u8, code: u8, qualifier: u8) -> Self {
        Self { key, code: (code, qualifier), information: None, field: None }
    }

    /// Nothing to tell.
    pub const NONE: Self = Self::new(0, 0, 0);
    /// There is no such command.
    pub const INVALID_OPCODE: Self = Self::new(ILLEGAL_REQUEST, 0x20, 0x00);
    /// Blocks beyond the end.
    pub const OUT_OF_RANGE: Self = Self::new(ILLEGAL_REQUEST, 0x21, 0x00);
    /// A field of the command is wrong, where it is not said which one.
    pub const INVALID_FIELD: Self = Self::new(ILLEGAL_REQUEST, 0x24, 0x00);
    /// There is no such logical unit.
    pub const NO_UNIT: Self = Self::new(ILLEGAL_REQUEST, 0x25, 0x00);
    /// A field of the parameters is wrong.
    pub const INVALID_PARAMETER: Self = Self::new(ILLEGAL_REQUEST, 0x26, 0x00);
    /// A reservation that is not held is released.
    pub const INVALID_RELEASE: Self = Self::new(ILLEGAL_REQUEST, 0x26, 0x04);
    /// The parameters are shorter than they say.
    pub const PARAMETER_LENGTH: Self = Self::new(ILLEGAL_REQUEST, 0x1a, 0x00);
    /// No values are saved.
    pub const NOT_SAVED: Self = Self::new(ILLEGAL_REQUEST, 0x39, 0x00);
    /// No room for another registration.
    pub const NO_REGISTRATIONS: Self = Self::new(ILLEGAL_REQUEST, 0x55, 0x04);
    /// The disk is read-only.
    pub const WRITE_PROTECTED: Self = Self::new(DATA_PROTECT, 0x27, 0x00);
    /// A session began.
    pub const POWER_ON: Self = Self::new(UNIT_ATTENTION, 0x29, 0x00);
    /// The unit was reset.
    pub const RESET: Self = Self::new(UNIT_ATTENTION, 0x29, 0x03);
    /// The disk grew.
    pub const CAPACITY_CHANGED: Self = Self::new(UNIT_ATTENTION, 0x2a, 0x09);
    /// Another initiator cleared the task set.
    pub const COMMANDS_CLEARED: Self = Self::new(UNIT_ATTENTION, 0x2f, 0x00);
    /// Another initiator took the reservation.
    pub const RESERVATIONS_PREEMPTED: Self = Self::new(UNIT_ATTENTION, 0x2a, 0x03);
    /// The reservation was released.
    pub const RESERVATIONS_RELEASED: Self = Self::new(UNIT_ATTENTION, 0x2a, 0x04);
    /// Another initiator removed the registration.
    pub const REGISTRATIONS_PREEMPTED: Self = Self::new(UNIT_ATTENTION, 0x2a, 0x05);
    /// Fewer data came than the initiator said.
    pub const TOO_LITTLE_DATA: Self = Self::new(ABORTED_COMMAND, 0x0c, 0x0d);
    /// Unsolicited data that was not agreed on.
    pub const UNEXPECTED_DATA: Self = Self::new(ABORTED_COMMAND, 0x0c, 0x0c);
    /// Data at the wrong place, or out of order.
    pub const DATA_OFFSET: Self = Self::new(ABORTED_COMMAND, 0x4b, 0x05);
    /// More data came than was asked for.
    pub const TOO_MUCH_DATA: Self = Self::new(ABORTED_COMMAND, 0x4b, 0x02);

    /// A wrong field of the command, by its byte.
    pub const fn field(byte: u16) -> Self {
        let mut sense = Self::INVALID_FIELD;
        sense.field = Some((byte, true));
        sense
    }

    /// A wrong field of the parameters, by its byte.
    pub const fn parameter(byte: u16) -> Self {
        let mut sense = Self::INVALID_PARAMETER;
        sense.field = Some((byte, false));
        sense
    }

    /// The data differs from what it was compared with, first at this byte.
    pub const fn miscompare(offset: u32) -> Self {
        let mut sense = Self::new(MISCOMPARE, 0x1d, 0x00);
        sense.information = Some(offset);
        sense
    }

    /// That of a device's error while it `reads` or writes.
    pub fn of(error: &Error, reads: bool) -> Self {
        match error.kind() {
            ErrorKind::Invalid => Self::INVALID_FIELD,
            ErrorKind::Denied => Self::WRITE_PROTECTED,
            // Space allocation failed: initiators report a full disk.
            ErrorKind::NoSpace => Self::new(DATA_PROTECT, 0x27, 0x07),
            ErrorKind::Corrupt if reads => Self::new(MEDIUM_ERROR, 0x11, 0x00),
            ErrorKind::Corrupt => Self::new(MEDIUM_ERROR, 0x0c, 0x00),
            // Communication with the logical unit failed.
            ErrorKind::Unavailable => Self::new(HARDWARE_ERROR, 0x08, 0x00),
            // Somebody has to see to it.
            ErrorKind::Fenced | ErrorKind::Conflict | ErrorKind::NotFound => {
                Self::new(NOT_READY, 0x04, 0x03)
            }
            ErrorKind::Unsupported => Self::INVALID_OPCODE,
            _ => Self::new(HARDWARE_ERROR, 0x44, 0x00),
        }
    }

    /// The bytes of it in fixed format.
    pub fn fixed(&self) -> [u8; 18] {
        let mut bytes = [0; 18];
        (bytes[0], bytes[2], bytes[7]) = (0x70, self.key, 10);
        if let Some(information) = self.information {
            bytes[0] |= 0x80;
            bytes[3..7].copy_from_slice(&information.to_be_bytes());
        }
        (bytes[12], bytes[13]) = self.code;
        bytes[15..18].copy_from_slice(&self.specific());
        bytes
    }

    /// The bytes of it in descriptor format.
    pub fn descriptors(&self) -> Vec<u8> {
        let mut bytes = vec![0x72, self.key, self.code.0, self.code.1, 0, 0, 0, 0];
        if let Some(information) = self.information {
            bytes.extend_from_slice(&[0x00, 0x0a, 0x80, 0x00]);
            bytes.extend_from_slice(&u64::from(information).to_be_bytes());
        }
        if self.field.is_some() {
            bytes.extend_from_slice(&[0x02, 0x06, 0x00, 0x00]);
            bytes.extend_from_slice(&self.specific());
            bytes.push(0);
        }
        bytes[7] = u8::try_from(bytes.len() - 8).unwrap_or(0);
        bytes
    }

    /// The pointer to the wrong field.
    fn specific(&self) -> [u8; 3] {
        let Some((byte, in_command)) = self.field else { return [0; 3] };
        let [high, low] = byte.to_be_bytes();
        [0x80 | if in_command { 0x40 } else { 0 }, high, low]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_tell_the_same() {
        let sense = Sense::miscompare(0x0102_0304);
        let (fixed, descriptors) = (sense.fixed(), sense.descriptors());
        assert_eq!(fixed[..8], [0xf0, 0, 0x0e, 1, 2, 3, 4, 10]);
        assert_eq!(fixed[12..14], [0x1d, 0]);
        assert_eq!(descriptors[..8], [0x72, 0x0e, 0x1d, 0, 0, 0, 0, 12]);
        assert_eq!(descriptors[16..20], [1, 2, 3, 4]);
        let wrong = Sense::field(3);
        assert_eq!(wrong.fixed()[15..], [0xc0, 0, 3]);
        assert_eq!(wrong.descriptors()[8..], [2, 6, 0, 0, 0xc0, 0, 3, 0]);
    }

    #[test]
    fn a_full_disk_and_damaged_data_are_told_apart() {
        assert_eq!(Sense::of(&Error::no_space("x"), false).code, (0x27, 0x07));
        assert_eq!(Sense::of(&Error::corrupt("x"), true).code, (0x11, 0x00));
        assert_eq!(Sense::of(&Error::unavailable("x"), true).key, HARDWARE_ERROR);
        assert_eq!(Sense::of(&Error::denied("x"), false), Sense::WRITE_PROTECTED);
    }
}
