//! `store.json`: the settings that every user of a store shares.

use crate::document::Form;
use crate::id::parse_hex;
use crate::object_kind::ObjectKind;
use crate::seal::Sealer;
use crate::slots;
use crate::world::Entropy;
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use zeroize::{Zeroize, Zeroizing};

/// The key of the settings object.
pub const KEY: &str = "store.json";

/// The format version that this build writes and reads.
pub const VERSION: u16 = 1;

const FORM: Form = Form {
    format: "sojourn-store",
    version: VERSION,
    remedy: "restore it from a backup (without it the store cannot be read)",
};
const CHUNKING: &str = "page-cdc-32-96-256-tails";
const COMPRESSION: &str = "zstd";
const ENCRYPTION: &str = "aes-256-gcm-siv";

/// What all users of a store agree on. Made once, by [`Settings::generate`] or
/// [`Settings::generate_encrypted`]; never changed.
#[derive(Clone, PartialEq, Eq)]
pub struct Settings {
    /// The hash key of a store in clear, or the master key of an encrypted one: all other keys are
    /// derived from it.
    root: Zeroizing<[u8; 32]>,
    level: i32,
    keys: HashKeys,
    sealer: Option<Sealer>,
}

/// The keys of the hashes, one for each kind of id.
#[derive(Clone, PartialEq, Eq)]
struct HashKeys {
    chunk: [u8; 32],
    pack: [u8; 32],
    /// By [`ObjectKind`].
    objects: [[u8; 32]; ObjectKind::ALL.len()],
}

impl Drop for HashKeys {
    fn drop(&mut self) {
        self.chunk.zeroize();
        self.pack.zeroize();
        self.objects.zeroize();
    }
}

/// The contexts of the derived keys.
mod context {
    pub(super) const CHUNK: &str = "sojourn 2026-11-21 chunk id v1";
    pub(super) const PACK: &str = "sojourn 2026-11-21 pack id v1";
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SettingsDocument {
    format: String,
    version: u16,
    chunking: String,
    compression: Compression,
    /// The hash key of a store in clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hash_key: Option<String>,
    /// The encryption of a store that is not in clear.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Compression {
    algorithm: String,
    level: i32,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Encryption {
    algorithm: String,
    key_id: String,
}

/// What a settings object says.
#[derive(Debug)]
pub(crate) enum Found {
    /// All there is to know.
    Open(Box<Settings>),
    /// The settings of an encrypted store, whose master key is needed.
    Locked(Locked),
}

/// Settings without the master key.
#[derive(Debug)]
pub(crate) struct Locked {
    level: i32,
    key_id: [u8; 16],
}

impl Locked {
    /// Tells which master key is the store's.
    pub(crate) fn key_id(&self) -> [u8; 16] {
        self.key_id
    }

    /// The settings, with the master key of [`key_id`](Self::key_id).
    pub(crate) fn unlock(self, master: Zeroizing<[u8; 32]>) -> Settings {
        Settings::new(master, self.level, true)
    }
}

/// The highest level of zstd that is used.
pub(crate) const HIGHEST_LEVEL: i32 = 19;

impl Settings {
    /// The compression level of zstd unless told otherwise: level 3 takes a fifth more time and makes
    /// a system's image 1 % smaller.
    pub const LEVEL: i32 = 2;

    /// Settings for a new store in clear, with a fresh hash key.
    ///
    /// # Errors
    /// That of `entropy`.
    pub fn generate(entropy: &dyn Entropy) -> Result<Self> {
        Ok(Self::new(fresh(entropy)?, Self::LEVEL, false))
    }

    /// Settings for a new encrypted store, with a fresh master key.
    ///
    /// # Errors
    /// That of `entropy`.
    pub fn generate_encrypted(entropy: &dyn Entropy) -> Result<Self> {
        Ok(Self::new(fresh(entropy)?, Self::LEVEL, true))
    }

    fn new(root: Zeroizing<[u8; 32]>, level: i32, encrypted: bool) -> Self {
        let derive = |context: &str| blake3::derive_key(context, &*root);
        let keys = HashKeys {
            chunk: derive(context::CHUNK),
            pack: derive(context::PACK),
            objects: ObjectKind::ALL.map(|kind| derive(kind.id_context())),
        };
        let sealer = encrypted.then(|| Sealer::new(&root));
        Self { root, level, keys, sealer }
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
        self.sealer.is_some()
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

    /// What seals, in an encrypted store.
    /// Checks that `bytes` are the settings object of the store that has these settings.
    ///
    /// # Errors
    /// Any error from [`decode`](Self::decode); [`Corrupt`](block::ErrorKind::Corrupt) when it is another store's.
    pub(crate) fn check_stored(&self, bytes: &[u8]) -> Result<()> {
        let ours = match Self::decode(bytes)? {
            Found::Open(settings) => *settings == *self,
            Found::Locked(locked) => {
                self.master().is_some_and(|key| slots::key_id_of(key) == locked.key_id)
            }
        };
        if ours { Ok(()) } else { Err(FORM.damaged(KEY, "it is that of another store")) }
    }

    pub(crate) const fn sealer(&self) -> Option<&Sealer> {
        self.sealer.as_ref()
    }

    /// The master key of an encrypted store.
    pub(crate) fn master(&self) -> Option<&[u8; 32]> {
        self.is_encrypted().then_some(&*self.root)
    }

    /// The settings object.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let hash_key = || blake3::Hash::from_bytes(*self.root).to_hex().to_string();
        let encryption = |master| Encryption {
            algorithm: ENCRYPTION.to_owned(),
            key_id: slots::hex(&slots::key_id_of(master)),
        };
        FORM.encode(&SettingsDocument {
            format: FORM.format.to_owned(),
            version: VERSION,
            chunking: CHUNKING.to_owned(),
            compression: Compression { algorithm: COMPRESSION.to_owned(), level: self.level },
            hash_key: (!self.is_encrypted()).then(hash_key),
            encryption: self.master().map(encryption),
        })
    }

    /// Reads the settings object.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version,
    /// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Found> {
        let damaged = |why: &str| FORM.damaged(KEY, why);
        let document: SettingsDocument = FORM.decode(KEY, bytes)?;
        let needs = |what: &str, name: &str| Err(FORM.unknown(KEY, &format!("{what} {name:?}")));
        if document.chunking != CHUNKING {
            return needs("chunking", &document.chunking);
        }
        if document.compression.algorithm != COMPRESSION {
            return needs("compression", &document.compression.algorithm);
        }
        let level = document.compression.level;
        check_level(level).map_err(|e| damaged(e.message()))?;
        match (document.hash_key, document.encryption) {
            (Some(key), None) => {
                let key = parse_hex("hash key", &key).map_err(|_| damaged("its key is no key"))?;
                Ok(Found::Open(Box::new(Self::new(Zeroizing::new(key), level, false))))
            }
            (None, Some(Encryption { algorithm, .. })) if algorithm != ENCRYPTION => {
                needs("encryption", &algorithm)
            }
            (None, Some(Encryption { key_id, .. })) => {
                let key_id = parse_hex("key id", &key_id).map_err(|e| damaged(e.message()))?;
                Ok(Found::Locked(Locked { level, key_id }))
            }
            _ => Err(damaged("it has to have either a hash key or encryption")),
        }
    }
}

fn fresh(entropy: &dyn Entropy) -> Result<Zeroizing<[u8; 32]>> {
    let mut key = Zeroizing::new([0; 32]);
    entropy.fill(&mut *key)?;
    Ok(key)
}

fn check_level(level: i32) -> Result<()> {
    if (1..=HIGHEST_LEVEL).contains(&level) {
        return Ok(());
    }
    Err(Error::invalid(format!("compression level {level} is not valid: use 1 to {HIGHEST_LEVEL}")))
}

// The key must not reach a log.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settings")
            .field("level", &self.level)
            .field("encrypted", &self.is_encrypted())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;

    fn sample(encrypted: bool) -> Settings {
        Settings::new(Zeroizing::new(std::array::from_fn(|i| i as u8)), 3, encrypted)
    }

    #[test]
    fn settings_survive_the_object() {
        let settings = sample(false).with_compression_level(7).unwrap();
        match Settings::decode(&settings.encode().unwrap()).unwrap() {
            Found::Open(found) => assert_eq!(*found, settings),
            Found::Locked(_) => panic!("it is not encrypted"),
        }
        let settings = sample(true).with_compression_level(7).unwrap();
        match Settings::decode(&settings.encode().unwrap()).unwrap() {
            Found::Open(_) => panic!("it is encrypted"),
            Found::Locked(locked) => {
                assert_eq!(locked.unlock(settings.root.clone()), settings);
            }
        }
    }

    #[test]
    fn any_truncation_or_flipped_bit_is_refused() {
        for encrypted in [false, true] {
            let good = sample(encrypted).encode().unwrap();
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
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number() {
        let text = String::from_utf8(sample(false).encode().unwrap()).unwrap();
        let damaged = text.replace("\"version\": 1", "\"version\": 9");
        let error = Settings::decode(damaged.as_bytes()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "the checksum covers the version");
        let newer = serde_json::json!({"format": "sojourn-store", "version": 9});
        let error = Settings::decode(&FORM.encode(&newer).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("version 9"), "{error}");
    }

    #[test]
    fn another_cipher_asks_for_a_newer_build() {
        let document = serde_json::json!({
            "format": "sojourn-store", "version": 1, "chunking": CHUNKING,
            "compression": {"algorithm": "zstd", "level": 3},
            "encryption": {"algorithm": "rot13", "key_id": "00"},
        });
        let error = Settings::decode(&FORM.encode(&document).unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains("rot13"), "{error}");
    }

    #[test]
    fn the_settings_of_an_encrypted_store_hold_no_key() {
        let settings = sample(true);
        let text = String::from_utf8(settings.encode().unwrap()).unwrap();
        assert!(!text.contains("hash_key") && !text.contains("000102030405"), "{text}");
        assert!(!format!("{settings:?}").contains("root"));
    }

    #[test]
    fn compression_levels_are_checked() {
        assert!(sample(false).with_compression_level(0).is_err());
        assert!(sample(false).with_compression_level(20).is_err());
    }
}
