//! Sealing: what an encrypted store does to the bytes that it stores.
//!
//! One scheme for everything: AES-256-GCM-SIV (RFC 8452) under a key of its own for each chunk and
//! each object key, with a nonce of zeroes, and 16 bytes of tag behind the ciphertext. The cipher
//! is deterministic and resists the reuse of a nonce: sealing the same bytes again gives the same
//! bytes, and a chunk that is stored twice under different compression gives away nothing but that
//! the two differ.

use crate::ChunkId;
use crate::encoding::{Encoding, TAG};
use aws_lc_rs::aead::{AES_256_GCM_SIV, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use block::{Error, Result};
use zeroize::Zeroize;

/// The contexts of the derived keys.
mod context {
    pub(super) const CHUNK: &str = "sojourn 2026-11-21 chunk cipher v1";
    pub(super) const OBJECT: &str = "sojourn 2026-11-21 object cipher v1";
    pub(super) const NAME: &str = "sojourn 2026-11-21 name v1";
}

/// The keys that seal a store, derived from its master key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Sealer {
    chunk: [u8; 32],
    object: [u8; 32],
    name: [u8; 32],
}

/// Sealed bytes that are not what was sealed: damaged, moved from elsewhere, or of another store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Broken;

impl Sealer {
    pub(crate) fn new(master: &[u8; 32]) -> Self {
        Self {
            chunk: blake3::derive_key(context::CHUNK, master),
            object: blake3::derive_key(context::OBJECT, master),
            name: blake3::derive_key(context::NAME, master),
        }
    }

    /// Seals a chunk: `bytes` are as `encoding` says before sealing, of `blocks` plain blocks.
    pub(crate) fn seal_chunk(
        &self,
        id: &ChunkId,
        blocks: u16,
        encoding: Encoding,
        bytes: &mut Vec<u8>,
    ) -> Result<()> {
        seal(&key(&self.chunk, &id.0)?, &chunk_context(id, blocks, encoding), bytes)
    }

    /// Opens a chunk into `out`, which is overwritten.
    pub(crate) fn open_chunk(
        &self,
        id: &ChunkId,
        blocks: u16,
        encoding: Encoding,
        sealed: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<(), Broken> {
        let key = key(&self.chunk, &id.0).map_err(|_| Broken)?;
        open(&key, &chunk_context(id, blocks, encoding), sealed, out)
    }

    /// Seals the content of the object that is called `name`; `head` is what the object says in
    /// clear, and is bound to the content.
    pub(crate) fn seal_object(&self, name: &str, head: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
        seal(&key(&self.object, name.as_bytes())?, &object_context(name, head), bytes)
    }

    /// Opens what [`seal_object`](Self::seal_object) sealed.
    pub(crate) fn open_object(
        &self,
        name: &str,
        head: &[u8],
        sealed: &[u8],
    ) -> Result<Vec<u8>, Broken> {
        let key = key(&self.object, name.as_bytes()).map_err(|_| Broken)?;
        let mut out = Vec::new();
        open(&key, &object_context(name, head), sealed, &mut out)?;
        Ok(out)
    }

    /// What stands for a name in keys.
    pub(crate) fn hide_name(&self, kind: &str, name: &str) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.name);
        hasher.update(kind.as_bytes()).update(b"/").update(name.as_bytes());
        hasher.finalize().to_hex().to_string()
    }
}

impl Drop for Sealer {
    fn drop(&mut self) {
        for key in [&mut self.chunk, &mut self.object, &mut self.name] {
            key.zeroize();
        }
    }
}

/// What is bound to a chunk: its id, plain length and encoding.
fn chunk_context(id: &ChunkId, blocks: u16, encoding: Encoding) -> [u8; 35] {
    let mut context = [0; 35];
    context[..32].copy_from_slice(&id.0);
    context[32..34].copy_from_slice(&blocks.to_le_bytes());
    context[34] = encoding as u8;
    context
}

/// What is bound to an object: what it says in clear, and its key.
fn object_context(name: &str, head: &[u8]) -> Vec<u8> {
    [head, name.as_bytes()].concat()
}

/// The cipher under the key that belongs to `what`.
fn key(purpose: &[u8; 32], what: &[u8]) -> Result<LessSafeKey> {
    let mut bytes = *blake3::keyed_hash(purpose, what).as_bytes();
    let cipher = cipher(&bytes);
    bytes.zeroize();
    cipher
}

/// The cipher under a key.
fn cipher(key: &[u8; 32]) -> Result<LessSafeKey> {
    UnboundKey::new(&AES_256_GCM_SIV, key)
        .map(LessSafeKey::new)
        .map_err(|_| Error::internal("AES-256-GCM-SIV does not take a key"))
}

fn nonce() -> Nonce {
    Nonce::assume_unique_for_key([0; NONCE_LEN])
}

fn seal(cipher: &LessSafeKey, context: &[u8], bytes: &mut Vec<u8>) -> Result<()> {
    cipher
        .seal_in_place_append_tag(nonce(), Aad::from(context), bytes)
        .map_err(|_| Error::internal("AES-256-GCM-SIV does not seal"))
}

fn open(
    cipher: &LessSafeKey,
    context: &[u8],
    sealed: &[u8],
    out: &mut Vec<u8>,
) -> Result<(), Broken> {
    out.clear();
    out.extend_from_slice(sealed);
    let len = cipher.open_in_place(nonce(), Aad::from(context), out).map_err(|_| Broken)?.len();
    out.truncate(len);
    Ok(())
}

/// Seals a secret of 32 bytes under a key that is used for nothing else.
pub(crate) fn wrap(key: &[u8; 32], context: &[u8], secret: &[u8; 32]) -> Result<[u8; 32 + TAG]> {
    let mut bytes = secret.to_vec();
    seal(&cipher(key)?, context, &mut bytes)?;
    bytes.try_into().map_err(|_| Error::internal("AES-256-GCM-SIV does not seal"))
}

/// Opens what [`wrap`] sealed.
pub(crate) fn unwrap(
    key: &[u8; 32],
    context: &[u8],
    wrapped: &[u8; 32 + TAG],
) -> Result<[u8; 32], Broken> {
    let mut out = Vec::with_capacity(wrapped.len());
    open(&cipher(key).map_err(|_| Broken)?, context, wrapped, &mut out)?;
    let secret = out.as_slice().try_into().map_err(|_| Broken);
    out.zeroize();
    secret
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sealer() -> Sealer {
        Sealer::new(&[7; 32])
    }

    #[test]
    fn the_cipher_is_that_of_rfc_8452() {
        // Appendix C.2: key 1, 15 zero bytes, 15 more and so on; nonce 3; plain text 1.
        let mut key = [0; 32];
        key[0] = 1;
        let mut number = [0; NONCE_LEN];
        number[0] = 3;
        let mut bytes = vec![1, 0, 0, 0, 0, 0, 0, 0];
        let nonce = Nonce::assume_unique_for_key(number);
        cipher(&key).unwrap().seal_in_place_append_tag(nonce, Aad::empty(), &mut bytes).unwrap();
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hex, "c2ef328e5c71c83b843122130f7364b761e0b97427e3df28");
    }

    #[test]
    fn any_change_of_sealed_bytes_or_of_what_they_are_bound_to_is_found() {
        let sealer = sealer();
        let mut sealed = b"what an object says".to_vec();
        sealer.seal_object("pins/1", b"head", &mut sealed).unwrap();
        assert_eq!(sealer.open_object("pins/1", b"head", &sealed).unwrap(), b"what an object says");
        assert_eq!(sealer.open_object("pins/2", b"head", &sealed), Err(Broken));
        assert_eq!(sealer.open_object("pins/1", b"heat", &sealed), Err(Broken));
        assert_eq!(Sealer::new(&[8; 32]).open_object("pins/1", b"head", &sealed), Err(Broken));
        for len in 0..sealed.len() {
            assert_eq!(sealer.open_object("pins/1", b"head", &sealed[..len]), Err(Broken));
        }
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut bad = sealed.clone();
                bad[at] ^= 1 << bit;
                assert_eq!(sealer.open_object("pins/1", b"head", &bad), Err(Broken));
            }
        }
    }

    proptest! {
        #[test]
        fn a_chunk_comes_back_under_its_own_id_length_and_encoding_only(
            plain in prop::collection::vec(any::<u8>(), 0..300),
            id in any::<[u8; 32]>(),
            blocks in 1u16..=64,
        ) {
            let (sealer, id) = (sealer(), ChunkId(id));
            let mut sealed = plain.clone();
            sealer.seal_chunk(&id, blocks, Encoding::Sealed, &mut sealed).unwrap();
            prop_assert_eq!(sealed.len(), plain.len() + TAG);
            let open = |id: &ChunkId, blocks, encoding| {
                let mut out = vec![9; 5];
                sealer.open_chunk(id, blocks, encoding, &sealed, &mut out).map(|()| out)
            };
            prop_assert_eq!(open(&id, blocks, Encoding::Sealed).unwrap(), plain);
            prop_assert_eq!(open(&id, blocks + 1, Encoding::Sealed), Err(Broken));
            prop_assert_eq!(open(&id, blocks, Encoding::SealedZstd), Err(Broken));
            let mut other = id;
            other.0[31] ^= 1;
            prop_assert_eq!(open(&other, blocks, Encoding::Sealed), Err(Broken));
        }
    }
}
