//! Identities.
//!
//! Ids of different kinds are hashed under different keys, so that one can never pass for another:
//! see [`Settings`](crate::Settings).

use block::{Error, Result};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;

/// Writes bytes as lower-case hexadecimal digits.
fn write_hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// Reads exactly `N` bytes of lower-case hexadecimal digits.
pub(crate) fn parse_hex<const N: usize>(what: &str, text: &str) -> Result<[u8; N]> {
    let digit = |c: u8| match c {
        b'0'..=b'9' => Some(c - b'0'),
        b'a'..=b'f' => Some(c - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; N];
    let digits = text.as_bytes();
    let valid = digits.len() == 2 * N
        && bytes.iter_mut().zip(digits.chunks_exact(2)).all(|(byte, pair)| {
            match (digit(pair[0]), digit(pair[1])) {
                (Some(high), Some(low)) => {
                    *byte = high << 4 | low;
                    true
                }
                _ => false,
            }
        });
    if valid {
        Ok(bytes)
    } else {
        let shown: String = text.chars().take(80).collect();
        Err(Error::invalid(format!(
            "{what} {shown:?} is not {} lower-case hexadecimal digits",
            2 * N
        )))
    }
}

impl ChunkId {
    /// The first bytes: a keyed hash, so that two chunks hardly ever have the same ones.
    pub(crate) fn short(&self) -> [u8; 8] {
        let mut short = [0; 8];
        short.copy_from_slice(&self.0[..8]);
        short
    }
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident, $len:literal, $what:literal;)*) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub [u8; $len]);

        impl $name {
            /// The bytes.
            pub const fn as_bytes(&self) -> &[u8; $len] {
                &self.0
            }
        }

        impl From<[u8; $len]> for $name {
            fn from(bytes: [u8; $len]) -> Self {
                Self(bytes)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write_hex(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({self})", stringify!($name))
            }
        }

        impl FromStr for $name {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self> {
                parse_hex($what, text).map(Self)
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }
    )* };
}

ids! {
    /// A chunk: the keyed hash of its plain bytes.
    ChunkId, 32, "chunk id";
    /// A pack: the keyed hash of its index.
    PackId, 32, "pack id";
    /// A manifest's segment: the keyed hash of the object.
    SegmentId, 32, "segment id";
    /// A manifest: the keyed hash of its root object.
    ManifestId, 32, "manifest id";
    /// A boot list: the keyed hash of its body.
    BootListId, 32, "boot list";
    /// One attempt to write a ref; random, so that a writer recognises its own record.
    WriterId, 16, "writer id";
    /// A list of condemned objects: the keyed hash of its body.
    CondemnedId, 32, "id of a list of condemned objects";
    /// A server: whose shadows hold the private blocks of its disks.
    ServerId, 16, "server id";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_survives_text_and_json() {
        let id = ChunkId(std::array::from_fn(|i| (i * 9) as u8));
        assert_eq!(id.to_string().parse::<ChunkId>().unwrap(), id);
        let json = serde_json::to_string(&id).unwrap();
        assert_eq!(json, format!("\"{id}\""));
        assert_eq!(serde_json::from_str::<ChunkId>(&json).unwrap(), id);
    }

    #[test]
    fn other_text_is_refused() {
        let good = ChunkId([0xab; 32]).to_string();
        for bad in
            ["", "ab", &good.to_uppercase(), &good[1..], &format!("{good}0"), &"é".repeat(32)]
        {
            assert!(bad.parse::<ChunkId>().is_err(), "{bad:?}");
        }
    }
}
