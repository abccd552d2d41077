//! What initiators send.

use super::{HEADER, u16_at, u32_at};

/// A login request's fields (RFC 7143, 11.12).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoginPdu {
    /// The initiator is ready to go to the next stage.
    pub transit: bool,
    /// The text goes on in the next request.
    pub more: bool,
    /// The current stage: 0 security, 1 operational parameters, 3 full feature.
    pub stage: u8,
    /// The stage to go to.
    pub next: u8,
    /// The lowest version that the initiator speaks.
    pub version: u8,
    /// The initiator's part of the session's identity.
    pub isid: [u8; 6],
    /// The target's part; 0 for a new session.
    pub tsih: u16,
    /// The task tag.
    pub tag: u32,
    /// The connection.
    pub cid: u16,
    /// The number of the first command.
    pub cmd_sn: u32,
}

/// A command's fields (11.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommandPdu {
    /// Not counted by the window.
    pub immediate: bool,
    /// No unsolicited data follows.
    pub last: bool,
    /// Data is expected.
    pub reads: bool,
    /// Data is sent.
    pub writes: bool,
    /// How it may be reordered: 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA.
    pub attribute: u8,
    /// The logical unit.
    pub lun: [u8; 8],
    /// The task tag.
    pub tag: u32,
    /// How much data the initiator expects to be moved, in bytes.
    pub expected: u32,
    /// Its number.
    pub cmd_sn: u32,
    /// The command itself.
    pub cdb: [u8; 16],
}

/// A task management request's fields (11.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Manage {
    /// Not counted by the window.
    pub immediate: bool,
    /// What to do: 1 abort task, 2 abort task set, 5 LUN reset, 6 and 7 target resets …
    pub function: u8,
    /// The logical unit.
    pub lun: [u8; 8],
    /// The task tag.
    pub tag: u32,
    /// The task that it is about.
    pub referenced: u32,
    /// Its number.
    pub cmd_sn: u32,
}

/// The fields of a data segment on its way to the target (11.7).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataOut {
    /// The last one of its sequence.
    pub last: bool,
    /// The task that it belongs to.
    pub tag: u32,
    /// The request to transfer that it answers; [`NO_TAG`](super::NO_TAG) for unsolicited data.
    pub transfer: u32,
    /// Its number within the sequence.
    pub data_sn: u32,
    /// Where in the command's data it belongs, in bytes.
    pub offset: u32,
}

/// The fields of requests that carry little else (11.10, 11.14, 11.18).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Simple {
    /// Not counted by the window.
    pub immediate: bool,
    /// The second byte: flags, or the reason of a logout.
    pub flags: u8,
    /// The logical unit, as it came.
    pub lun: [u8; 8],
    /// The task tag.
    pub tag: u32,
    /// The target's tag that it answers.
    pub transfer: u32,
    /// Its number.
    pub cmd_sn: u32,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestPdu {
    /// A ping, or the answer to one.
    NopOut(Simple),
    /// A SCSI command.
    Command(CommandPdu),
    /// A task management function.
    Manage(Manage),
    /// A step of the login.
    Login(LoginPdu),
    /// Keys and values.
    Text(Simple),
    /// Data of a command.
    DataOut(DataOut),
    /// The end of the connection or session.
    Logout(Simple),
    /// Something else, by its opcode.
    Other(u8),
}

fn lun(header: &[u8; HEADER]) -> [u8; 8] {
    let mut lun = [0; 8];
    lun.copy_from_slice(&header[8..16]);
    lun
}

impl RequestPdu {
    /// Decodes a header. Every header is a request of some kind.
    pub fn decode(header: &[u8; HEADER]) -> Self {
        let (immediate, flags) = (header[0] & 0x40 != 0, header[1]);
        let (tag, cmd_sn) = (u32_at(header, 16), u32_at(header, 24));
        let simple = || Simple {
            immediate,
            flags,
            lun: lun(header),
            tag,
            transfer: u32_at(header, 20),
            cmd_sn,
        };
        match header[0] & 0x3f {
            0x00 => Self::NopOut(simple()),
            0x01 => {
                let mut cdb = [0; 16];
                cdb.copy_from_slice(&header[32..]);
                Self::Command(CommandPdu {
                    immediate,
                    last: flags & 0x80 != 0,
                    reads: flags & 0x40 != 0,
                    writes: flags & 0x20 != 0,
                    attribute: flags & 0x07,
                    lun: lun(header),
                    tag,
                    expected: u32_at(header, 20),
                    cmd_sn,
                    cdb,
                })
            }
            0x02 => Self::Manage(Manage {
                immediate,
                function: flags & 0x7f,
                lun: lun(header),
                tag,
                referenced: u32_at(header, 20),
                cmd_sn,
            }),
            0x03 => {
                let mut isid = [0; 6];
                isid.copy_from_slice(&header[8..14]);
                Self::Login(LoginPdu {
                    transit: flags & 0x80 != 0,
                    more: flags & 0x40 != 0,
                    stage: flags >> 2 & 3,
                    next: flags & 3,
                    version: header[3],
                    isid,
                    tsih: u16_at(header, 14),
                    tag,
                    cid: u16_at(header, 20),
                    cmd_sn,
                })
            }
            0x04 => Self::Text(simple()),
            0x05 => Self::DataOut(DataOut {
                last: flags & 0x80 != 0,
                tag,
                transfer: u32_at(header, 20),
                data_sn: u32_at(header, 36),
                offset: u32_at(header, 40),
            }),
            0x06 => Self::Logout(simple()),
            other => Self::Other(other),
        }
    }

    /// The header of the request, as an initiator sends it: the other side of
    /// [`decode`](Self::decode). The length of the data is not set.
    pub fn encode(&self) -> [u8; HEADER] {
        let mut header = [0; HEADER];
        let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
        let opcode = |code: u8, immediate: bool| code | if immediate { 0x40 } else { 0 };
        let bit = |set: bool, bit: u8| if set { bit } else { 0 };
        match self {
            Self::NopOut(s) | Self::Text(s) | Self::Logout(s) => {
                let code = match self {
                    Self::NopOut(_) => 0x00,
                    Self::Text(_) => 0x04,
                    _ => 0x06,
                };
                put(0, &[opcode(code, s.immediate), s.flags]);
                put(8, &s.lun);
                put(16, &s.tag.to_be_bytes());
                put(20, &s.transfer.to_be_bytes());
                put(24, &s.cmd_sn.to_be_bytes());
            }
            Self::Command(c) => {
                let flags = bit(c.last, 0x80) | bit(c.reads, 0x40) | bit(c.writes, 0x20);
                put(0, &[opcode(0x01, c.immediate), flags | c.attribute & 7]);
                put(8, &c.lun);
                put(16, &c.tag.to_be_bytes());
                put(20, &c.expected.to_be_bytes());
                put(24, &c.cmd_sn.to_be_bytes());
                put(32, &c.cdb);
            }
            Self::Manage(m) => {
                put(0, &[opcode(0x02, m.immediate), 0x80 | m.function & 0x7f]);
                put(8, &m.lun);
                put(16, &m.tag.to_be_bytes());
                put(20, &m.referenced.to_be_bytes());
                put(24, &m.cmd_sn.to_be_bytes());
            }
            Self::Login(l) => {
                let flags = bit(l.transit, 0x80) | bit(l.more, 0x40);
                put(0, &[0x43, flags | (l.stage & 3) << 2 | l.next & 3, 0, l.version]);
                put(8, &l.isid);
                put(14, &l.tsih.to_be_bytes());
                put(16, &l.tag.to_be_bytes());
                put(20, &l.cid.to_be_bytes());
                put(24, &l.cmd_sn.to_be_bytes());
            }
            Self::DataOut(d) => {
                put(0, &[0x05, bit(d.last, 0x80)]);
                put(16, &d.tag.to_be_bytes());
                put(20, &d.transfer.to_be_bytes());
                put(36, &d.data_sn.to_be_bytes());
                put(40, &d.offset.to_be_bytes());
            }
            Self::Other(code) => put(0, &[*code]),
        }
        header
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_request_that_was_decoded_is_the_same_when_encoded_and_decoded_again(
            opcode in 0u8..=0x3f,
            immediate in any::<bool>(),
            rest in prop::collection::vec(any::<u8>(), HEADER - 1),
        ) {
            let mut header = [0; HEADER];
            header[0] = opcode | if immediate { 0x40 } else { 0 };
            header[1..].copy_from_slice(&rest);
            let request = RequestPdu::decode(&header);
            prop_assert_eq!(RequestPdu::decode(&request.encode()), request);
        }
    }
}
