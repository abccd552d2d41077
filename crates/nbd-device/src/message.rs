//! The messages of the driver's generic netlink family. Source: Linux, `include/uapi/linux/nbd-netlink.h`
//! and `nbd_genl_connect` and its neighbours in `drivers/block/nbd.c`.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NLA_F_NESTED, Nla, NlasIterator, ParseableParametrized,
    parse_u32,
};
use netlink_packet_generic::{GenlFamily, GenlHeader};
use std::os::fd::RawFd;

/// The family's name.
pub(crate) const FAMILY: &str = "nbd";
/// The group that hears of dead connections.
pub(crate) const GROUP: &str = "nbd_mc_group";
/// The family's version.
const VERSION: u8 = 1;

/// What is asked, or told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum NetlinkCommand {
    Connect = 1,
    Disconnect = 2,
    Reconfigure = 3,
    LinkDead = 4,
    Status = 5,
}

impl NetlinkCommand {
    fn of(number: u8) -> Option<Self> {
        [Self::Connect, Self::Disconnect, Self::Reconfigure, Self::LinkDead, Self::Status]
            .into_iter()
            .find(|command| *command as u8 == number)
    }
}

/// `NBD_ATTR_…`, `NBD_SOCK_ITEM` and `NBD_SOCK_FD`.
mod kind {
    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;
    pub(super) const SOCK_ITEM: u16 = 1;
    pub(super) const SOCK_FD: u16 = 1;
}

/// An attribute of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Attribute {
    /// The N of `/dev/nbdN`.
    Index(u32),
    SizeBytes(u64),
    BlockSizeBytes(u64),
    /// Seconds.
    Timeout(u64),
    ServerFlags(u64),
    /// Sent only.
    Sockets(Vec<RawFd>),
    /// Seconds.
    DeadConnTimeout(u64),
    /// Sent only.
    Backend(String),
    /// One that is not needed here.
    Other(u16),
}

/// An attribute of one socket, in the layout that the driver wants: an item with a descriptor in it.
fn sockets(descriptors: &[RawFd]) -> Vec<u8> {
    let mut all = Vec::new();
    for descriptor in descriptors {
        let inner = DefaultNla::new(kind::SOCK_FD, descriptor.to_ne_bytes().to_vec());
        let mut value = vec![0; inner.buffer_len()];
        inner.emit(&mut value);
        let item = DefaultNla::new(kind::SOCK_ITEM | NLA_F_NESTED, value);
        let start = all.len();
        all.resize(start + item.buffer_len(), 0);
        item.emit(&mut all[start..]);
    }
    all
}

impl Attribute {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Index(number) => number.to_ne_bytes().to_vec(),
            Self::SizeBytes(number)
            | Self::BlockSizeBytes(number)
            | Self::Timeout(number)
            | Self::ServerFlags(number)
            | Self::DeadConnTimeout(number) => number.to_ne_bytes().to_vec(),
            Self::Sockets(descriptors) => sockets(descriptors),
            Self::Backend(text) => [text.as_bytes(), &[0]].concat(),
            Self::Other(_) => Vec::new(),
        }
    }

    fn parse(kind: u16, value: &[u8]) -> Result<Self, DecodeError> {
        let wide = || -> Result<u64, DecodeError> {
            let bytes = value.try_into();
            bytes.map(u64::from_ne_bytes).map_err(|_| DecodeError::invalid_number(8, value.len()))
        };
        Ok(match kind {
            kind::INDEX => Self::Index(parse_u32(value)?),
            kind::SIZE_BYTES => Self::SizeBytes(wide()?),
            kind::BLOCK_SIZE_BYTES => Self::BlockSizeBytes(wide()?),
            kind::TIMEOUT => Self::Timeout(wide()?),
            kind::SERVER_FLAGS => Self::ServerFlags(wide()?),
            kind::DEAD_CONN_TIMEOUT => Self::DeadConnTimeout(wide()?),
            other => Self::Other(other),
        })
    }
}

impl Nla for Attribute {
    fn value_len(&self) -> usize {
        self.bytes().len()
    }

    fn kind(&self) -> u16 {
        match self {
            Self::Index(_) => kind::INDEX,
            Self::SizeBytes(_) => kind::SIZE_BYTES,
            Self::BlockSizeBytes(_) => kind::BLOCK_SIZE_BYTES,
            Self::Timeout(_) => kind::TIMEOUT,
            Self::ServerFlags(_) => kind::SERVER_FLAGS,
            Self::Sockets(_) => kind::SOCKETS | NLA_F_NESTED,
            Self::DeadConnTimeout(_) => kind::DEAD_CONN_TIMEOUT,
            Self::Backend(_) => kind::BACKEND_IDENTIFIER,
            Self::Other(kind) => *kind,
        }
    }

    fn emit_value(&self, buffer: &mut [u8]) {
        buffer.copy_from_slice(&self.bytes());
    }
}

/// A message of the family.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct NbdMessage {
    pub(crate) command: NetlinkCommand,
    pub(crate) attributes: Vec<Attribute>,
}

impl NbdMessage {
    /// The device that it is about.
    pub(crate) fn index(&self) -> Option<u32> {
        self.attributes.iter().find_map(|attribute| match attribute {
            Attribute::Index(index) => Some(*index),
            _ => None,
        })
    }
}

impl GenlFamily for NbdMessage {
    fn family_name() -> &'static str {
        FAMILY
    }

    fn command(&self) -> u8 {
        self.command as u8
    }

    fn version(&self) -> u8 {
        VERSION
    }
}

impl Emitable for NbdMessage {
    fn buffer_len(&self) -> usize {
        self.attributes.as_slice().buffer_len()
    }

    fn emit(&self, buffer: &mut [u8]) {
        self.attributes.as_slice().emit(buffer);
    }
}

impl ParseableParametrized<[u8], GenlHeader> for NbdMessage {
    fn parse_with_param(body: &[u8], header: GenlHeader) -> Result<Self, DecodeError> {
        let command = NetlinkCommand::of(header.cmd)
            .ok_or_else(|| DecodeError::from(format!("unknown NBD command {}", header.cmd)))?;
        let attributes = NlasIterator::new(body)
            .map(|attribute| attribute.and_then(|a| Attribute::parse(a.kind(), a.value())))
            .collect::<Result<_, _>>()?;
        Ok(Self { command, attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn emitted(message: &NbdMessage) -> Vec<u8> {
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        bytes
    }

    #[test]
    fn sockets_are_nested_as_the_driver_parses_them() {
        let message = NbdMessage {
            command: NetlinkCommand::Reconfigure,
            attributes: vec![Attribute::Index(3), Attribute::Sockets(vec![7, 9])],
        };
        let expected: Vec<u8> = [
            [8u16, 1].map(u16::to_ne_bytes).concat(),
            3u32.to_ne_bytes().to_vec(),
            // NBD_ATTR_SOCKETS, two times NBD_SOCK_ITEM with an NBD_SOCK_FD.
            [28u16, 0x8007, 12, 0x8001, 8, 1].map(u16::to_ne_bytes).concat(),
            7u32.to_ne_bytes().to_vec(),
            [12u16, 0x8001, 8, 1].map(u16::to_ne_bytes).concat(),
            9u32.to_ne_bytes().to_vec(),
        ]
        .concat();
        assert_eq!(emitted(&message), expected);
    }

    #[test]
    fn a_backend_ends_with_a_zero_and_is_padded() {
        let attributes = vec![Attribute::Backend("nbd".into()), Attribute::Index(1)];
        let bytes = emitted(&NbdMessage { command: NetlinkCommand::Connect, attributes });
        assert_eq!(&bytes[..8], [&8u16.to_ne_bytes()[..], &10u16.to_ne_bytes(), b"nbd\0"].concat());
        assert_eq!(bytes.len(), 16);
    }

    proptest! {
        #[test]
        fn numbers_come_back(index: u32, size: u64, block: u64, times: (u64, u64), flags: u64) {
            let message = NbdMessage {
                command: NetlinkCommand::Connect,
                attributes: vec![
                    Attribute::Index(index),
                    Attribute::SizeBytes(size),
                    Attribute::BlockSizeBytes(block),
                    Attribute::Timeout(times.0),
                    Attribute::DeadConnTimeout(times.1),
                    Attribute::ServerFlags(flags),
                ],
            };
            let header = GenlHeader { cmd: message.command(), version: 1 };
            let parsed = NbdMessage::parse_with_param(&emitted(&message), header).unwrap();
            prop_assert_eq!(parsed.index(), Some(index));
            prop_assert_eq!(parsed, message);
        }

        #[test]
        fn no_bytes_panic(bytes: Vec<u8>, cmd: u8) {
            let _ = NbdMessage::parse_with_param(&bytes, GenlHeader { cmd, version: 1 });
        }
    }
}
