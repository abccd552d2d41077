//! What a person keeps to open an encrypted store: a passphrase or a key file.

use block::{Error, Result};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// The context of the key that a key file gives.
const KEY_FILE: &str = "sojourn 2026-11-21 key file v1";
/// The shortest key file, in bytes.
const SHORTEST: usize = 32;
/// The longest key file, in bytes.
pub const LONGEST_KEY_FILE: usize = 1 << 20;

/// A passphrase, or the content of a key file. It is not shown, and wiped when it is dropped.
#[derive(Clone)]
pub struct Secret(SecretKind);

#[derive(Clone)]
enum SecretKind {
    Passphrase(Zeroizing<String>),
    KeyFile(Zeroizing<Vec<u8>>),
}

impl Secret {
    /// A passphrase.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is empty or longer than 4096 bytes.
    pub fn passphrase(text: String) -> Result<Self> {
        let text = Zeroizing::new(text);
        match text.len() {
            0 => Err(Error::invalid("the passphrase is empty; give one")),
            1..=4096 => Ok(Self(SecretKind::Passphrase(text))),
            _ => Err(Error::invalid("the passphrase is longer than 4096 bytes; use a key file")),
        }
    }

    /// The content of a key file.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it has fewer than 32 bytes or more than 1 MiB.
    pub fn key_file(bytes: Vec<u8>) -> Result<Self> {
        let bytes = Zeroizing::new(bytes);
        match bytes.len() {
            ..SHORTEST => Err(Error::invalid(format!(
                "the key file has {} bytes, fewer than {SHORTEST}; make one with \
                 \"head -c 32 /dev/urandom\"",
                bytes.len()
            ))),
            SHORTEST..=LONGEST_KEY_FILE => Ok(Self(SecretKind::KeyFile(bytes))),
            _ => Err(Error::invalid("the key file is longer than 1 MiB; is it the right file?")),
        }
    }

    /// Whether it is a passphrase.
    pub(crate) fn is_passphrase(&self) -> bool {
        matches!(self.0, SecretKind::Passphrase(_))
    }

    /// The key that wraps a master key. Slow for a passphrase, as its cost says.
    pub(crate) fn stretch(
        &self,
        salt: &[u8; 16],
        cost: Option<Argon2Cost>,
    ) -> Result<Zeroizing<[u8; 32]>> {
        let mut key = Zeroizing::new([0; 32]);
        match (&self.0, cost) {
            (SecretKind::Passphrase(text), Some(cost)) => {
                let Argon2Cost { memory, passes, lanes } = cost;
                let failed = |e: argon2::Error| {
                    Error::unavailable(format!(
                        "the passphrase cannot be stretched in {memory} KiB of memory: {e}"
                    ))
                };
                let params =
                    argon2::Params::new(memory, passes, lanes, Some(32)).map_err(failed)?;
                let (kind, version) = (argon2::Algorithm::Argon2id, argon2::Version::V0x13);
                argon2::Argon2::new(kind, version, params)
                    .hash_password_into(text.as_bytes(), salt, &mut *key)
                    .map_err(failed)?;
            }
            (SecretKind::KeyFile(bytes), None) => {
                let mut hasher = blake3::Hasher::new_derive_key(KEY_FILE);
                let mut hash = *hasher.update(salt).update(bytes).finalize().as_bytes();
                key.copy_from_slice(&hash);
                hash.zeroize();
            }
            _ => return Err(Error::internal("a key slot was tried with the wrong kind of secret")),
        }
        Ok(key)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_passphrase() { "Secret(passphrase)" } else { "Secret(key file)" })
    }
}

/// What one try of a passphrase costs: the parameters of Argon2id (RFC 9106), version 0x13.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Argon2Cost {
    /// Memory in KiB.
    pub(crate) memory: u32,
    /// Passes over it.
    pub(crate) passes: u32,
    /// Lanes.
    pub(crate) lanes: u32,
}

impl Argon2Cost {
    /// The second choice that RFC 9106, section 4, recommends: 64 MiB, some tenths of a second.
    pub const NORMAL: Self = Self { memory: 64 << 10, passes: 3, lanes: 4 };

    /// The cheapest there is: for tests only.
    pub const TRIVIAL: Self = Self { memory: 64, passes: 1, lanes: 1 };

    /// Parameters that a store names; those that would take too much memory or time are refused.
    pub(crate) fn checked(memory: u32, passes: u32, lanes: u32) -> Result<Self, &'static str> {
        let lanes_fit = (1..=16).contains(&lanes) && memory >= 8 * lanes;
        // At most 256 MiB, and at most as much work as 4 GiB.
        let work = u64::from(memory) * u64::from(passes);
        if lanes_fit && memory <= 256 << 10 && passes >= 1 && work <= 4 << 20 {
            Ok(Self { memory, passes, lanes })
        } else {
            Err("the cost of its passphrase is out of bounds (at most 256 MiB and 4 GiB of work)")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn argon2id_is_that_of_the_reference_implementation() {
        // echo -n password | argon2 somesaltsomesalt -id -t 2 -k 256 -p 1 -l 32 -r, on Debian.
        let expected = "cab746b4621993fdc91ec50787980b414a90a692f0bc68dfe19f9c25b3cba9ec";
        let secret = Secret::passphrase("password".into()).unwrap();
        let cost = Argon2Cost::checked(256, 2, 1).unwrap();
        let key = secret.stretch(b"somesaltsomesalt", Some(cost)).unwrap();
        assert_eq!(blake3::Hash::from_bytes(*key).to_hex().as_str(), expected);
    }

    #[test]
    fn secrets_of_impossible_length_are_refused_and_none_is_shown() {
        assert!(Secret::passphrase(String::new()).is_err());
        assert!(Secret::passphrase("x".repeat(5000)).is_err());
        assert!(Secret::key_file(vec![1; 31]).is_err());
        assert!(Secret::key_file(vec![1; LONGEST_KEY_FILE + 1]).is_err());
        let shown = format!("{:?}", Secret::passphrase("hunter2".into()).unwrap());
        assert!(!shown.contains("hunter2"));
    }

    #[test]
    fn hostile_costs_are_refused() {
        for (memory, passes, lanes) in [
            (u32::MAX, 1, 1),
            (64 << 10, u32::MAX, 4),
            (256 << 10, 17, 1),
            (1024, 0, 1),
            (1024, 1, 0),
            (1024, 1, 17),
            (7, 1, 1),
            (8, 1, 2),
        ] {
            assert!(
                Argon2Cost::checked(memory, passes, lanes).is_err(),
                "{memory} {passes} {lanes}"
            );
        }
        let Argon2Cost { memory, passes, lanes } = Argon2Cost::NORMAL;
        assert_eq!(Argon2Cost::checked(memory, passes, lanes), Ok(Argon2Cost::NORMAL));
    }
}
