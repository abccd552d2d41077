//! Files that a store's users keep outside of it, such as media and indexes of trees: framed, bound to
//! the store's key, and sealed if the store is.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic of the kind |
//! | 8 | 2 | version |
//! | 10 | 2 | flags: 1 when the body is sealed |
//! | 12 | 4 | CRC-32C of all bytes from 16 on; in any other version than 1, or with another flag, of bytes 8 to 11 before them |
//! | 16 | 8 | key check: says which store's it is |
//! | 24 | … | body |

use crate::encoding::TAG;
use crate::wire::{self, FRAME, Frame, SEALED};
use crate::{ChunkId, Settings};
use block::{Error, ErrorKind, Result};
use zerocopy::{FromBytes, IntoBytes};

const VERSION: u16 = 1;
/// Bytes of the key check.
const CHECK: usize = 8;
/// Bytes before the body.
pub const HEAD: usize = FRAME + CHECK;
/// The context from which the key check is derived.
const CONTEXT: &str = "sojourn 2026-11-24 key check v1";

impl Settings {
    /// Says which store's a file outside of it is, and nothing of the key.
    pub fn key_check(&self) -> [u8; CHECK] {
        let hash = blake3::derive_key(CONTEXT, self.chunk_key());
        std::array::from_fn(|i| hash[i])
    }

    /// The id of a chunk with these plain bytes.
    pub fn chunk_id(&self, plain: &[u8]) -> ChunkId {
        crate::chunk::id_of(self, plain)
    }

    /// What stands for a name in the name of a file: 32 bits that say nothing of it without the key.
    pub fn file_number(&self, name: &str) -> u32 {
        let hash = blake3::keyed_hash(self.chunk_key(), name.as_bytes());
        let [a, b, c, d, ..] = *hash.as_bytes();
        u32::from_le_bytes([a, b, c, d])
    }
}

/// The file that holds `body`. `name` says what it is, and is bound to a sealed body.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when the cipher fails.
pub fn encode(settings: &Settings, magic: [u8; 8], name: &str, body: &[u8]) -> Result<Vec<u8>> {
    encode_version(settings, (magic, VERSION), name, body)
}

/// The file that holds `body`, in a given version of the format of this magic.
///
/// # Errors
/// [`Internal`](block::ErrorKind::Internal) when the cipher fails.
pub fn encode_version(
    settings: &Settings,
    (magic, version): ([u8; 8], u16),
    name: &str,
    body: &[u8],
) -> Result<Vec<u8>> {
    let mut rest = Vec::with_capacity(CHECK + body.len() + TAG);
    rest.extend_from_slice(&settings.key_check());
    let flags = match settings.sealer() {
        None => {
            rest.extend_from_slice(body);
            0
        }
        Some(sealer) => {
            let mut sealed = body.to_vec();
            sealer.seal_object(name, &magic, &mut sealed)?;
            rest.extend_from_slice(&sealed);
            SEALED
        }
    };
    let frame = match version {
        VERSION => Frame::of(magic, VERSION, flags, &rest),
        later => Frame::of_later(magic, later, flags, &rest),
    };
    let mut bytes = frame.as_bytes().to_vec();
    bytes.extend_from_slice(&rest);
    Ok(bytes)
}

/// The body of a file that [`encode`] made under the same name.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written,
/// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version or unknown flags,
/// [`Invalid`](block::ErrorKind::Invalid) when it is another store's, of whatever version.
pub fn decode(settings: &Settings, magic: [u8; 8], name: &str, bytes: &[u8]) -> Result<Vec<u8>> {
    decode_versions(settings, (magic, VERSION), name, bytes).map(|(_, body)| body)
}

/// The body of a file of any version up to this one that was made under the same name, and its version.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written,
/// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version or unknown flags,
/// [`Invalid`](block::ErrorKind::Invalid) when it is another store's, of whatever version.
pub fn decode_versions(
    settings: &Settings,
    (magic, newest): ([u8; 8], u16),
    name: &str,
    bytes: &[u8],
) -> Result<(u16, Vec<u8>)> {
    let short = || Error::corrupt(format!("{name} is damaged: it is too short"));
    let (frame, rest) = Frame::ref_from_prefix(bytes).map_err(|_| short())?;
    let foreign = || Error::invalid(format!("{name} belongs to another store"));
    let key_check = settings.key_check();
    let version = frame.check_versions(name, magic, newest, rest).map_err(|e| {
        // The key check is where it is in every version.
        let is_foreign = !rest.starts_with(&key_check);
        if e.kind() == ErrorKind::Unsupported && is_foreign { foreign() } else { e }
    })?;
    let (check, body) = rest.split_at_checked(CHECK).ok_or_else(short)?;
    if check != key_check {
        return Err(foreign());
    }
    wire::check_sealed(name, frame.flags.get(), settings.is_encrypted())?;
    let body = match settings.sealer() {
        None => body.to_vec(),
        Some(sealer) => sealer
            .open_object(name, &magic, body)
            .map_err(|_| Error::corrupt(format!("{name} is damaged: it is not what was sealed")))?,
    };
    Ok((version, body))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_file_comes_back_under_its_own_name_and_key_only_and_no_flipped_bit_passes() {
        let magic = *b"SOJTEST\n";
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let bytes = encode(&settings, magic, "index", b"what it says").unwrap();
            assert_eq!(decode(&settings, magic, "index", &bytes).unwrap(), b"what it says");
            assert!(decode(&settings, *b"SOJELSE\n", "index", &bytes).is_err());
            let renamed = decode(&settings, magic, "other", &bytes);
            assert_eq!(renamed.is_err(), settings.is_encrypted());
            for bit in 0..bytes.len() * 8 {
                let mut bad = bytes.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(decode(&settings, magic, "index", &bad).is_err(), "bit {bit}");
            }
            for len in 0..bytes.len() {
                assert!(decode(&settings, magic, "index", &bytes[..len]).is_err());
            }
        }
        for settings in [testing::settings(), testing::encrypted_settings()] {
            let of = |version| encode_version(&settings, (magic, version), "index", b"x").unwrap();
            for version in [1, 2] {
                let read = decode_versions(&settings, (magic, 2), "index", &of(version)).unwrap();
                assert_eq!(read, (version, b"x".to_vec()));
            }
            for bit in 0..of(2).len() * 8 {
                let mut bad = of(2);
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(
                    decode_versions(&settings, (magic, 2), "index", &bad).is_err(),
                    "bit {bit}"
                );
            }
            let newer = decode(&settings, magic, "index", &of(2)).unwrap_err();
            assert_eq!(newer.kind(), ErrorKind::Unsupported);
        }
        let bytes = encode(&testing::settings(), magic, "index", b"what it says").unwrap();
        let other = Settings::generate(&testing::FixedEntropy::new(99)).unwrap();
        let foreign = decode(&other, magic, "index", &bytes).unwrap_err();
        assert_eq!(foreign.kind(), ErrorKind::Invalid);
    }
}
