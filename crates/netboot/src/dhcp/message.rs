//! A message as bytes. Total: whatever is no message is `None`.
//!
//! Why not a crate: the one that is kept well brings a DNS library with it, and what is needed here
//! is one structure and a list of options.

use super::{MessageType, option};
use crate::MacAddress;
use std::net::Ipv4Addr;

/// The bytes before the options.
const FIXED: usize = 236;
const COOKIE: [u8; 4] = [99, 130, 83, 99];
/// The least length of an answer, in bytes: some relays and firmware drop shorter ones (RFC 1542, 2.1).
const SHORTEST: usize = 300;
/// The most options of one message that are looked at.
const MOST_OPTIONS: usize = 128;

/// A DHCP message over Ethernet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Whether it is a client's (`BOOTREQUEST`).
    pub request: bool,
    /// What ties an answer to its question.
    pub transaction: u32,
    /// Seconds since the client began.
    pub seconds: u16,
    /// The client cannot receive what is sent to its address before it has that.
    pub broadcast: bool,
    /// The address that the client has and can be reached at.
    pub client: Ipv4Addr,
    /// The address that the client is given.
    pub yours: Ipv4Addr,
    /// The server that the boot file is on.
    pub next_server: Ipv4Addr,
    /// The relay that forwarded it; unspecified when none did.
    pub relay: Ipv4Addr,
    /// The client's card.
    pub mac: MacAddress,
    /// The boot file, at most 127 bytes.
    pub file: Vec<u8>,
    /// Options by number; those that came in parts are whole.
    options: Vec<(u8, Vec<u8>)>,
}

impl Message {
    /// An answer to `question`, of this kind.
    pub fn answer(question: &Self, kind: MessageType) -> Self {
        Self {
            request: false,
            transaction: question.transaction,
            seconds: 0,
            broadcast: question.broadcast,
            client: Ipv4Addr::UNSPECIFIED,
            yours: Ipv4Addr::UNSPECIFIED,
            next_server: Ipv4Addr::UNSPECIFIED,
            relay: question.relay,
            mac: question.mac,
            file: Vec::new(),
            options: vec![(option::KIND, vec![kind as u8])],
        }
    }

    /// Reads a message of an Ethernet client; `None` when it is none.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (fixed, rest) = bytes.split_at_checked(FIXED)?;
        let rest = rest.strip_prefix(&COOKIE)?;
        let request = match fixed[0] {
            1 => true,
            2 => false,
            _ => return None,
        };
        // Ethernet, addresses of six bytes.
        if (fixed[1], fixed[2]) != (1, 6) {
            return None;
        }
        let address =
            |at: usize| Ipv4Addr::from(<[u8; 4]>::try_from(&fixed[at..at + 4]).unwrap_or_default());
        let mut options = Vec::new();
        read_options(rest, &mut options)?;
        let overload =
            get(&options, option::OVERLOAD).and_then(|value| value.first().copied()).unwrap_or(0);
        let mut file = Vec::new();
        match overload & 1 {
            1 => read_options(&fixed[108..236], &mut options)?,
            _ => file = until_zero(&fixed[108..236]).to_vec(),
        }
        if overload & 2 != 0 {
            read_options(&fixed[44..108], &mut options)?;
        }
        Some(Self {
            request,
            transaction: u32::from_be_bytes(fixed[4..8].try_into().ok()?),
            seconds: u16::from_be_bytes([fixed[8], fixed[9]]),
            broadcast: fixed[10] & 0x80 != 0,
            client: address(12),
            yours: address(16),
            next_server: address(20),
            relay: address(24),
            mac: MacAddress(fixed[28..34].try_into().ok()?),
            file,
            options,
        })
    }

    /// The message as bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; FIXED];
        bytes[0] = if self.request { 1 } else { 2 };
        (bytes[1], bytes[2]) = (1, 6);
        bytes[4..8].copy_from_slice(&self.transaction.to_be_bytes());
        bytes[8..10].copy_from_slice(&self.seconds.to_be_bytes());
        bytes[10] = if self.broadcast { 0x80 } else { 0 };
        let addresses = [self.client, self.yours, self.next_server, self.relay];
        for (at, address) in [12, 16, 20, 24].into_iter().zip(addresses) {
            bytes[at..at + 4].copy_from_slice(&address.octets());
        }
        bytes[28..34].copy_from_slice(&self.mac.0);
        let file = &self.file[..self.file.len().min(127)];
        bytes[108..108 + file.len()].copy_from_slice(file);
        bytes.extend(COOKIE);
        for (number, value) in &self.options {
            // RFC 3396: what is longer comes in parts.
            let mut parts = value.chunks(255);
            let first = parts.next().unwrap_or_default();
            for part in std::iter::once(first).chain(parts) {
                bytes.extend([*number, part.len() as u8]);
                bytes.extend(part);
            }
        }
        bytes.push(option::END);
        bytes.resize(bytes.len().max(SHORTEST), option::PAD);
        bytes
    }

    /// The value of an option.
    pub fn option(&self, number: u8) -> Option<&[u8]> {
        get(&self.options, number)
    }

    /// Its kind; `None` for one of BOOTP, the protocol before DHCP.
    pub fn kind(&self) -> Option<MessageType> {
        match self.option(option::KIND)? {
            [number] => MessageType::of(*number),
            _ => None,
        }
    }

    /// An option that is one address.
    pub(crate) fn address(&self, number: u8) -> Option<Ipv4Addr> {
        let bytes: [u8; 4] = self.option(number)?.try_into().ok()?;
        Some(Ipv4Addr::from(bytes))
    }

    /// Adds an option that is not there yet.
    #[must_use]
    pub fn with(mut self, number: u8, value: impl Into<Vec<u8>>) -> Self {
        self.options.push((number, value.into()));
        self
    }
}

fn get(options: &[(u8, Vec<u8>)], number: u8) -> Option<&[u8]> {
    options.iter().find(|(own, _)| *own == number).map(|(_, value)| value.as_slice())
}

/// Adds the options of one field; `None` when they do not fit into it or are too many.
fn read_options(mut bytes: &[u8], options: &mut Vec<(u8, Vec<u8>)>) -> Option<()> {
    loop {
        match bytes {
            // Some clients send no end.
            [] | [option::END, ..] => return Some(()),
            [option::PAD, rest @ ..] => bytes = rest,
            [number, length, rest @ ..] => {
                let (value, rest) = rest.split_at_checked(usize::from(*length))?;
                match options.iter().position(|(own, _)| own == number) {
                    Some(at) => options[at].1.extend(value),
                    None if options.len() < MOST_OPTIONS => options.push((*number, value.to_vec())),
                    None => return None,
                }
                bytes = rest;
            }
            [_] => return None,
        }
    }
}

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn message() -> impl Strategy<Value = Message> {
        let options = proptest::collection::btree_map(1u8..255, vec(any::<u8>(), 0..600), 0..20);
        let head = (any::<bool>(), any::<u32>(), any::<u16>(), any::<bool>());
        (head, any::<[u32; 4]>(), any::<[u8; 6]>(), vec(1u8.., 0..128), options).prop_map(
            |((request, transaction, seconds, broadcast), [a, b, c, d], mac, file, options)| {
                Message {
                    request,
                    transaction,
                    seconds,
                    broadcast,
                    client: a.into(),
                    yours: b.into(),
                    next_server: c.into(),
                    relay: d.into(),
                    mac: MacAddress(mac),
                    file,
                    options: options
                        .into_iter()
                        .filter(|(number, _)| *number != option::OVERLOAD)
                        .collect(),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(message in message()) {
            let bytes = message.encode();
            prop_assert!(bytes.len() >= SHORTEST);
            prop_assert_eq!(Message::decode(&bytes), Some(message));
        }

        #[test]
        fn no_bytes_panic(mut bytes in vec(any::<u8>(), 0..700), message in message(), at in 0..600usize, by: u8) {
            let _ = Message::decode(&bytes);
            bytes = message.encode();
            let at = at % bytes.len();
            bytes[at] ^= by;
            let _ = Message::decode(&bytes);
            let _ = Message::decode(&bytes[..at]);
        }
    }

    #[test]
    fn options_in_the_file_field_are_read() {
        let message = Message::answer(&question(), MessageType::Ack).with(option::OVERLOAD, [1]);
        let mut bytes = message.encode();
        bytes[108..113].copy_from_slice(&[option::USER_CLASS, 3, b'a', b'b', b'c']);
        let read = Message::decode(&bytes).unwrap();
        assert_eq!(read.option(option::USER_CLASS), Some(&b"abc"[..]));
        assert!(read.file.is_empty());
    }

    fn question() -> Message {
        let mut bytes = vec![0; FIXED];
        (bytes[0], bytes[1], bytes[2]) = (1, 1, 6);
        bytes.extend(COOKIE);
        Message::decode(&bytes).unwrap()
    }

    #[test]
    fn other_networks_and_cut_options_are_no_messages() {
        let bytes = Message::answer(&question(), MessageType::Ack).with(60, vec![1; 80]).encode();
        for (at, value) in [(0, 3), (1, 6), (2, 16), (236, 0)] {
            let mut bytes = bytes.clone();
            bytes[at] = value;
            assert_eq!(Message::decode(&bytes), None, "byte {at}");
        }
        assert_eq!(Message::decode(&bytes[..FIXED + 4 + 20]), None);
        assert_eq!(Message::decode(&bytes[..FIXED + 2]), None);
    }
}
