//! `store.json`: the settings that every user of a store shares.

use crate::id::parse_hex;
use crate::object::ObjectKind;
use crate::world::Entropy;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The key of the settings object.
pub const KEY: &str = "store.json";

/// The format version that this build writes and reads.
pub const VERSION: u16 = 1;

const FORMAT: &str = "sojourn-store";
const CHUNKING: &str = "page-cdc-16-64-256";
const COMPRESSION: &str = "zstd";
/// The longest settings object that is read.
pub(crate) const MAX_LEN: u64 = 64 << 10;
const CHECKSUM: &str = "  \"checksum\": \"";

/// What all users of a store agree on. Made once, by [`Settings::generate`]; never changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    hash_key: [u8; 32],
    level: i32,
    keys: Keys,
}

/// The keys of the hashes, derived from the store's, one for each kind of id.
#[derive(Clone, PartialEq, Eq)]
struct Keys {
    chunk: [u8; 32],
    pack: [u8; 32],
    /// By [`ObjectKind`].
    objects: [[u8; 32]; ObjectKind::ALL.len()],
}

/// The contexts of the derived keys.
pub(crate) mod context {
    pub(crate) const CHUNK: &str = "sojourn 2026-11-21 chunk id v1";
    pub(crate) const PACK: &str = "sojourn 2026-11-21 pack id v1";
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Document {
    format: String,
    version: u16,
    chunking: String,
    compression: Compression,
    hash_key: String,
    encryption: Option<serde_json::Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compression {
    algorithm: String,
    level: i32,
}

/// What is read first, whatever the version says of the rest.
#[derive(Deserialize)]
struct Opening {
    format: String,
    version: u64,
}

impl Settings {
    /// The compression level of zstd unless told otherwise.
    pub const LEVEL: i32 = 3;

    /// Settings for a new store, with a fresh hash key.
    ///
    /// # Errors
    /// That of `entropy`.
    pub fn generate(entropy: &dyn Entropy) -> Result<Self> {
        let mut key = [0; 32];
        entropy.fill(&mut key)?;
        Ok(Self::new(key, Self::LEVEL))
    }

    fn new(hash_key: [u8; 32], level: i32) -> Self {
        let keys = Keys {
            chunk: blake3::derive_key(context::CHUNK, &hash_key),
            pack: blake3::derive_key(context::PACK, &hash_key),
            objects: ObjectKind::ALL.map(|kind| blake3::derive_key(kind.id_context(), &hash_key)),
        };
        Self { hash_key, level, keys }
    }

    /// The same with another compression level of zstd, 1 to 19.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for another level.
    pub fn with_compression_level(self, level: i32) -> Result<Self> {
        check_level(level)?;
        Ok(Self { level, ..self })
    }

    /// Whether what the store holds is encrypted.
    pub const fn is_encrypted(&self) -> bool {
        false
    }

    /// The format version.
    pub const fn version(&self) -> u16 {
        VERSION
    }

    /// How images are cut into chunks.
    pub const fn chunking(&self) -> &'static str {
        CHUNKING
    }

    /// The compression level of zstd.
    pub const fn compression_level(&self) -> i32 {
        self.level
    }

    pub(crate) const fn chunk_key(&self) -> &[u8; 32] {
        &self.keys.chunk
    }

    pub(crate) const fn pack_key(&self) -> &[u8; 32] {
        &self.keys.pack
    }

    /// The key of the ids of this kind.
    pub(crate) const fn object_key(&self, kind: ObjectKind) -> &[u8; 32] {
        &self.keys.objects[kind as usize]
    }

    /// The settings object: JSON whose last member is a checksum of all bytes before its line.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let document = Document {
            format: FORMAT.to_owned(),
            version: VERSION,
            chunking: CHUNKING.to_owned(),
            compression: Compression { algorithm: COMPRESSION.to_owned(), level: self.level },
            hash_key: blake3::Hash::from_bytes(self.hash_key).to_hex().to_string(),
            encryption: None,
        };
        let text = serde_json::to_string_pretty(&document).map_err(|e| {
            Error::internal("the store's settings cannot be written").with_source(e)
        })?;
        let body = text.strip_suffix("\n}").unwrap_or(&text);
        let body = format!("{body},\n");
        let sum = crc32c::crc32c(body.as_bytes());
        Ok(format!("{body}{CHECKSUM}{sum:08x}\"\n}}\n").into_bytes())
    }

    /// Reads the settings object.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version,
    /// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |why: &str| {
            Error::corrupt(format!(
                "{KEY}: {why}; restore it from a backup (it holds the store's hash key)"
            ))
        };
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("not text"))?;
        let opening: Opening =
            serde_json::from_str(text).map_err(|e| damaged(&format!("not its format: {e}")))?;
        if opening.format != FORMAT {
            return Err(damaged("not the settings of a store"));
        }
        if opening.version > u64::from(VERSION) {
            return Err(Error::unsupported(format!(
                "{KEY}: the store has format version {}, this build reads up to {VERSION}; use a \
                 newer sojourn",
                opening.version
            )));
        }
        let at = text.rfind(CHECKSUM).ok_or_else(|| damaged("no checksum"))?;
        let (body, tail) = text.split_at(at);
        let sum = crc32c::crc32c(body.as_bytes());
        if tail != format!("{CHECKSUM}{sum:08x}\"\n}}\n") {
            return Err(damaged("checksum mismatch"));
        }
        let json = body.strip_suffix(",\n").ok_or_else(|| damaged("not its format"))?;
        let document: Document = serde_json::from_str(&format!("{json}\n}}"))
            .map_err(|e| damaged(&format!("not its format: {e}")))?;
        if document.version != VERSION {
            return Err(damaged("unknown version"));
        }
        let needs = |what: &str| {
            Error::unsupported(format!(
                "{KEY}: {what} is not known to this build; use a newer sojourn"
            ))
        };
        if document.chunking != CHUNKING {
            return Err(needs(&format!("chunking {:?}", document.chunking)));
        }
        if document.compression.algorithm != COMPRESSION {
            return Err(needs(&format!("compression {:?}", document.compression.algorithm)));
        }
        if document.encryption.is_some() {
            return Err(needs("encryption"));
        }
        check_level(document.compression.level).map_err(|e| e.context(KEY))?;
        let key = parse_hex("hash key", &document.hash_key).map_err(|e| damaged(e.message()))?;
        Ok(Self::new(key, document.compression.level))
    }
}

fn check_level(level: i32) -> Result<()> {
    if (1..=19).contains(&level) {
        return Ok(());
    }
    Err(Error::invalid(format!("compression level {level} is not valid: use 1 to 19")))
}

// The key must not reach a log.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings").field("level", &self.level).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn sample() -> Settings {
        Settings::new(std::array::from_fn(|i| i as u8), 3)
    }

    #[test]
    fn settings_survive_the_object() {
        let settings = sample().with_compression_level(7).unwrap();
        assert_eq!(Settings::decode(&settings.encode().unwrap()).unwrap(), settings);
    }

    #[test]
    fn any_truncation_or_flipped_bit_is_refused() {
        let good = sample().encode().unwrap();
        for len in 0..good.len() {
            assert!(Settings::decode(&good[..len]).is_err(), "{len} bytes");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(Settings::decode(&bad).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let text = String::from_utf8(sample().encode().unwrap()).unwrap();
        let newer = text.replace("\"version\": 1", "\"version\": 9");
        let error = Settings::decode(newer.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("version 9"), "{error}");
    }

    #[test]
    fn the_key_is_not_shown() {
        assert!(!format!("{:?}", sample()).contains("hash_key"));
    }

    #[test]
    fn compression_levels_are_checked() {
        assert!(sample().with_compression_level(0).is_err());
        assert!(sample().with_compression_level(20).is_err());
    }
}
