//! What a machine says of itself before it has any secret: the address of its network card and the
//! number of its board. Both can be claimed by anybody on the network.

use block::{Error, Result};
use std::fmt;
use std::str::FromStr;

/// The hardware address of an Ethernet card.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MacAddress(pub [u8; 6]);

impl MacAddress {
    /// The twelve hex digits without separators, as they may stand in the name of a disk: `525400123456`.
    pub fn hex_digits(self) -> String {
        self.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// Whether one card can have it: neither zero nor a group of cards.
    pub fn is_unicast(self) -> bool {
        self.0 != [0; 6] && self.0[0] & 1 == 0
    }
}

impl fmt::Display for MacAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for MacAddress {
    type Err = Error;

    /// Reads `52:54:00:12:34:56`, also with `-`, in either case, or without separators.
    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid(format!("{text:?} is not a MAC address: write 52:54:00:12:34:56"));
        let separated = text.len() == 17
            && text.bytes().skip(2).step_by(3).all(|byte| byte == b':' || byte == b'-');
        let digits: Vec<u8> = match (separated, text.len()) {
            (true, _) => {
                text.bytes().enumerate().filter(|(i, _)| i % 3 != 2).map(|(_, b)| b).collect()
            }
            (false, 12) => text.bytes().collect(),
            _ => return Err(wrong()),
        };
        let bytes = hex(&digits).and_then(|bytes| bytes.try_into().ok()).ok_or_else(wrong)?;
        Ok(Self(bytes))
    }
}

/// The number of a machine's board (SMBIOS, type 1), as it is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MachineUuid(pub [u8; 16]);

impl MachineUuid {
    /// Whether it tells machines apart: boards without a number say all zeroes or all ones.
    pub fn is_set(self) -> bool {
        self.0 != [0; 16] && self.0 != [0xff; 16]
    }

    /// Whether both are the number of one board. Firmware sends the first three fields with the
    /// least byte first (SMBIOS 2.6), iPXE and systems with the most significant one first.
    pub fn matches(self, other: Self) -> bool {
        self == other || self.swapped() == other
    }

    fn swapped(self) -> Self {
        let mut bytes = self.0;
        bytes[..4].reverse();
        bytes[4..6].reverse();
        bytes[6..8].reverse();
        Self(bytes)
    }
}

impl fmt::Display for MachineUuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, byte) in self.0.iter().enumerate() {
            let dash = if matches!(index, 4 | 6 | 8 | 10) { "-" } else { "" };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

impl FromStr for MachineUuid {
    type Err = Error;

    /// Reads `00112233-4455-6677-8899-aabbccddeeff` in either case.
    fn from_str(text: &str) -> Result<Self> {
        let wrong =
            || Error::invalid(format!("{text:?} is not a UUID of 32 digits and four dashes"));
        let dashes = [8, 13, 18, 23];
        let digits: Vec<u8> =
            text.bytes().enumerate().filter(|(i, _)| !dashes.contains(i)).map(|(_, b)| b).collect();
        let shaped = text.len() == 36 && dashes.iter().all(|at| text.as_bytes()[*at] == b'-');
        let bytes = hex(&digits).filter(|_| shaped).and_then(|bytes| bytes.try_into().ok());
        bytes.map(Self).ok_or_else(wrong)
    }
}

/// The bytes of pairs of hexadecimal digits.
fn hex(digits: &[u8]) -> Option<Vec<u8>> {
    let pairs = digits.chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16);
    pairs.map(|pair| u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()).collect()
}

/// A machine, as far as it said who it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The card that it asks from.
    pub mac: MacAddress,
    /// The number of its board, when it told a useful one.
    pub uuid: Option<MachineUuid>,
}

/// What a machine asks for over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootRequest {
    /// Who it says it is.
    pub machine: Claim,
    /// The item of its menu that was chosen.
    pub choice: Option<String>,
    /// The secret that was given to its iPXE.
    pub secret: Option<String>,
}

impl BootRequest {
    /// One that says nothing else.
    pub fn of(machine: Claim) -> Self {
        Self { machine, choice: None, secret: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(mac: [u8; 6], uuid: [u8; 16]) {
            let (mac, uuid) = (MacAddress(mac), MachineUuid(uuid));
            prop_assert_eq!(mac.to_string().parse::<MacAddress>().unwrap(), mac);
            prop_assert_eq!(mac.hex_digits().to_uppercase().parse::<MacAddress>().unwrap(), mac);
            prop_assert_eq!(mac.to_string().replace(':', "-").parse::<MacAddress>().unwrap(), mac);
            prop_assert_eq!(uuid.to_string().parse::<MachineUuid>().unwrap(), uuid);
            prop_assert!(uuid.matches(uuid.swapped()) && uuid.swapped().matches(uuid));
        }

        #[test]
        fn no_text_panics(text in ".{0,40}") {
            let _ = (text.parse::<MacAddress>(), text.parse::<MachineUuid>());
        }
    }

    #[test]
    fn what_is_no_address_is_refused() {
        for text in
            ["", "52:54:00:12:34", "52:54:00:12:34:5g", "52-54x00:12:34:56", "5254001234567"]
        {
            text.parse::<MacAddress>().unwrap_err();
        }
        "0011223344556677-8899-aabb-ccddeeff-".parse::<MachineUuid>().unwrap_err();
        assert!(!MacAddress([1, 0, 0, 0, 0, 0]).is_unicast());
    }
}
