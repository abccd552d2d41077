//! Framed objects: all that a store holds but for packs, refs, key slots and its settings.
//!
//! | offset | bytes | field |
//! |---|---|---|
//! | 0 | 8 | magic of the kind |
//! | 8 | 2 | version |
//! | 10 | 2 | flags: 1 when the body is sealed |
//! | 12 | 4 | CRC-32C of all bytes from 16 on; in any other version, or with another flag, of bytes 8 to 11 before them |
//! | 16 | … | body |
//!
//! What is hashed, where a key is the hash of its object, is the body.

use crate::Settings;
use crate::encoding::TAG;
use crate::object_kind::ObjectKind;
use crate::wire::{self, FRAME, Frame, SEALED, damaged};
use block::{Error, ErrorKind, Result};
use bytes::Bytes;
use object_store::ObjectStore;
use objects::Hint;
use zerocopy::{FromBytes, IntoBytes};

const VERSION: u16 = 1;

/// The object that holds `body`. The same body under the same key always gives the same bytes.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the body is longer than its kind allows.
pub(crate) fn encode(
    settings: &Settings,
    kind: ObjectKind,
    key: &str,
    body: &[u8],
) -> Result<Bytes> {
    if body.len() as u64 > kind.max_body() {
        return Err(Error::invalid(format!(
            "object {key} would have {} bytes, more than its format allows ({})",
            body.len(),
            kind.max_body()
        )));
    }
    let mut bytes = Vec::with_capacity(FRAME + body.len() + TAG);
    let Some(sealer) = settings.sealer() else {
        bytes.extend_from_slice(Frame::of(kind.magic(), VERSION, 0, body).as_bytes());
        bytes.extend_from_slice(body);
        return Ok(bytes.into());
    };
    let mut sealed = Vec::with_capacity(body.len() + TAG);
    sealed.extend_from_slice(body);
    sealer.seal_object(key, &head(kind), &mut sealed)?;
    bytes.extend_from_slice(Frame::of(kind.magic(), VERSION, SEALED, &sealed).as_bytes());
    bytes.extend_from_slice(&sealed);
    Ok(bytes.into())
}

/// What a sealed body is bound to: the frame but for its checksum.
fn head(kind: ObjectKind) -> [u8; 12] {
    let frame = Frame::of(kind.magic(), VERSION, SEALED, &[]);
    let mut head = [0; 12];
    head.copy_from_slice(&frame.as_bytes()[..12]);
    head
}

/// The body of an object: magic, version, flags and checksum were checked, and the seal in an
/// encrypted store; its hash was not.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) for anything that is not what was written,
/// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version or unknown flags.
pub(crate) fn decode(
    settings: &Settings,
    kind: ObjectKind,
    key: &str,
    bytes: Bytes,
) -> Result<Bytes> {
    if bytes.len() as u64 > max_len(kind) {
        return Err(damaged(key, "it is longer than its format allows"));
    }
    let (frame, body) =
        Frame::ref_from_prefix(&bytes).map_err(|_| damaged(key, "it is too short"))?;
    frame.check(key, kind.magic(), VERSION, body)?;
    wire::check_sealed(key, frame.flags.get(), settings.is_encrypted())?;
    match settings.sealer() {
        None => Ok(bytes.slice(FRAME..)),
        Some(sealer) => sealer
            .open_object(key, &head(kind), body)
            .map(Bytes::from)
            .map_err(|_| damaged(key, "it is not what was sealed under its name")),
    }
}

/// The longest object.
fn max_len(kind: ObjectKind) -> u64 {
    kind.max_body() + (FRAME + TAG) as u64
}

/// The id of an object with this body.
pub(crate) fn id_of(settings: &Settings, kind: ObjectKind, body: &[u8]) -> [u8; 32] {
    *blake3::keyed_hash(settings.object_key(kind), body).as_bytes()
}

/// Reads and opens an object; as [`decode`].
pub(crate) async fn read(
    backend: &dyn ObjectStore,
    settings: &Settings,
    kind: ObjectKind,
    key: &str,
) -> Result<Bytes> {
    let bytes = objects::get(backend, key, max_len(kind)).await?;
    match decode(settings, kind, key, bytes) {
        // What is kept of the object on a local disk may be older than its repair.
        Err(e) if e.kind() == ErrorKind::Corrupt => {
            let fresh = objects::get_with(backend, key, max_len(kind), Some(Hint::Fresh)).await;
            decode(settings, kind, key, fresh.map_err(|_| e)?)
        }
        other => other,
    }
}

/// Reads, as [`read`] does, an object whose key is the hash of its body, which is checked.
pub(crate) async fn read_content(
    backend: &dyn ObjectStore,
    settings: &Settings,
    kind: ObjectKind,
    id: &[u8; 32],
) -> Result<Bytes> {
    let key = kind.key(&blake3::Hash::from_bytes(*id));
    let body = read(backend, settings, kind, &key).await?;
    must_be(settings, kind, &key, id, body)
}

/// The same from the store itself, and not from what is kept of it on a local disk.
pub(crate) async fn read_fresh_content(
    backend: &dyn ObjectStore,
    settings: &Settings,
    kind: ObjectKind,
    id: &[u8; 32],
) -> Result<Bytes> {
    let key = kind.key(&blake3::Hash::from_bytes(*id));
    let bytes = objects::get_with(backend, &key, max_len(kind), Some(Hint::Fresh)).await?;
    let body = decode(settings, kind, &key, bytes)?;
    must_be(settings, kind, &key, id, body)
}

/// A body, if it is that of the object with this id.
fn must_be(
    settings: &Settings,
    kind: ObjectKind,
    key: &str,
    id: &[u8; 32],
    body: Bytes,
) -> Result<Bytes> {
    if id_of(settings, kind, &body) != *id {
        return Err(damaged(key, "its hash is wrong"));
    }
    Ok(body)
}

/// Writes an object whose key is the hash of its body; returns its id. One that is there already
/// is kept when it is the same, and else replaced.
pub(crate) async fn write_content(
    backend: &dyn ObjectStore,
    settings: &Settings,
    kind: ObjectKind,
    body: &[u8],
) -> Result<[u8; 32]> {
    let id = id_of(settings, kind, body);
    let key = kind.key(&blake3::Hash::from_bytes(id));
    let bytes = encode(settings, kind, &key, body)?;
    let compare = bytes.len();
    objects::put_content(backend, &key, bytes, compare).await?;
    Ok(id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;
    use block::ErrorKind;
    use proptest::prelude::*;

    fn both() -> [Settings; 2] {
        [testing::settings(), testing::encrypted_settings()]
    }

    #[test]
    fn any_truncation_or_flipped_bit_of_an_object_of_any_kind_is_refused() {
        for settings in both() {
            for kind in ObjectKind::ALL {
                let good = encode(&settings, kind, "k", b"what it says").unwrap();
                let read = |bytes: &[u8]| decode(&settings, kind, "k", bytes.to_vec().into());
                assert_eq!(read(&good).unwrap(), b"what it says".as_slice());
                for len in 0..good.len() {
                    assert!(read(&good[..len]).is_err(), "{kind:?}, {len} bytes");
                }
                for at in 0..good.len() {
                    for bit in 0..8 {
                        let mut bad = good.to_vec();
                        bad[at] ^= 1 << bit;
                        let error = read(&bad).unwrap_err();
                        let is_damage = error.kind() == ErrorKind::Corrupt;
                        assert!(is_damage, "{kind:?}, bit {bit} of byte {at}: {error}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_newer_version_is_refused_by_its_number_and_unknown_flags_by_theirs() {
        for settings in both() {
            let good = encode(&settings, ObjectKind::Pin, "k", b"x").unwrap();
            for (at, value, says) in [(8, 9, "version 9"), (10, 0x83, "features 0x83")] {
                let mut newer = good.to_vec();
                wire::make_newer(&mut newer, at, value);
                let error =
                    decode(&settings, ObjectKind::Pin, "k", newer.into()).expect_err("newer");
                assert_eq!(error.kind(), ErrorKind::Unsupported);
                assert!(error.message().contains(says), "{error}");
            }
        }
    }

    #[test]
    fn a_sealed_object_is_refused_under_another_key_or_kind_and_one_in_clear_always() {
        let [plain, encrypted] = both();
        let sealed = encode(&encrypted, ObjectKind::Moved, "moved/a", b"body").unwrap();
        for (settings, kind, key) in [
            (&encrypted, ObjectKind::Moved, "moved/b"),
            (&encrypted, ObjectKind::Pin, "moved/a"),
            (&plain, ObjectKind::Moved, "moved/a"),
        ] {
            let error = decode(settings, kind, key, sealed.clone()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{key}");
        }
        let clear = encode(&plain, ObjectKind::Moved, "moved/a", b"body").unwrap();
        let error = decode(&encrypted, ObjectKind::Moved, "moved/a", clear).unwrap_err();
        assert!(error.message().contains("not sealed"), "{error}");
    }

    #[test]
    fn a_body_that_is_too_long_is_neither_written_nor_read() {
        for settings in both() {
            let kind = ObjectKind::Pin;
            let longest = vec![7; kind.max_body() as usize];
            let bytes = encode(&settings, kind, "k", &longest).unwrap();
            assert_eq!(decode(&settings, kind, "k", bytes).unwrap(), longest);
            let error = encode(&settings, kind, "k", &[7; 4097]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            let error = decode(&settings, kind, "k", vec![7; 5000].into()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_body_comes_back_and_its_id_depends_on_it_alone(
            body in prop::collection::vec(any::<u8>(), 0..2000),
            which in 0..ObjectKind::ALL.len(),
        ) {
            let kind = ObjectKind::ALL[which];
            for settings in both() {
                let bytes = encode(&settings, kind, "k", &body).unwrap();
                prop_assert_eq!(&bytes, &encode(&settings, kind, "k", &body).unwrap());
                let read = decode(&settings, kind, "k", bytes).unwrap();
                prop_assert_eq!(id_of(&settings, kind, &read), id_of(&settings, kind, &body));
                prop_assert_eq!(read, body.clone());
            }
        }
    }
}
