//! The root of a manifest: the size of an image, and the segment that describes each 256 MiB of it.

use crate::chunker::SEGMENT;
use crate::object_kind::{MAX_IMAGE, ObjectKind};
use crate::wire::damaged;
use crate::{ManifestId, SegmentId};
use block::{Error, Result};
use zerocopy::byteorder::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const HEADER: usize = size_of::<RootHeader>();
/// The longest root.
const MAX_LEN: u64 = HEADER as u64 + MAX_IMAGE / SEGMENT * 32;
const _: () = assert!(MAX_LEN == ObjectKind::Root.max_body());

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RootHeader {
    size: U64,
    segments: U32,
    /// Any number: gives the manifest another id, and is 0 unless that is needed.
    salt: U32,
}

/// What a root object says: the image's size, and the segment for each part of it.
pub(crate) struct Root {
    pub(crate) size: u64,
    pub(crate) ids: Vec<Option<SegmentId>>,
}

impl Root {
    /// Reads the body of the root of a manifest, whose hash was checked.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when it makes no sense.
    pub(crate) fn read(id: &ManifestId, body: &[u8]) -> Result<Self> {
        let (size, ids) = decode(&key(id), body)?;
        Ok(Self { size, ids })
    }
}

/// The key of a root.
pub(crate) fn key(id: &ManifestId) -> String {
    ObjectKind::Root.key(id)
}

/// Checks the size of an image.
pub(crate) fn check_size(size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::invalid("the image is empty (0 bytes); give one with content"));
    }
    if !size.is_multiple_of(512) {
        return Err(Error::invalid(format!(
            "the image's size ({size} bytes) is not a multiple of 512: is it a disk? One that was cut \
             short is padded with \"truncate -s %512 FILE\""
        )));
    }
    if size > MAX_IMAGE {
        return Err(Error::invalid(format!(
            "the image's size ({size} bytes) is above the limit of {MAX_IMAGE} bytes (256 TiB)"
        )));
    }
    Ok(())
}

/// The body of a root.
pub(crate) fn encode(size: u64, segments: &[Option<SegmentId>], salt: u32) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + segments.len() * 32);
    let header = RootHeader {
        size: size.into(),
        segments: (segments.len() as u32).into(),
        salt: salt.into(),
    };
    bytes.extend_from_slice(header.as_bytes());
    for id in segments {
        bytes.extend_from_slice(&id.map_or([0; 32], |id| id.0));
    }
    bytes
}

/// Reads the body of a root, whose hash was checked.
pub(crate) fn decode(key: &str, body: &[u8]) -> Result<(u64, Vec<Option<SegmentId>>)> {
    let (header, table) =
        RootHeader::ref_from_prefix(body).map_err(|_| damaged(key, "it is too short"))?;
    let size = header.size.get();
    check_size(size).map_err(|e| damaged(key, e.message()))?;
    let (ids, rest) = table.as_chunks::<32>();
    let expected = size.div_ceil(SEGMENT);
    if ids.len() as u64 != expected
        || u64::from(header.segments.get()) != expected
        || !rest.is_empty()
    {
        return Err(damaged(key, "its lengths do not match its size"));
    }
    Ok((size, ids.iter().map(|id| (*id != [0; 32]).then_some(SegmentId(*id))).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{object, testing};

    #[test]
    fn any_truncation_or_flipped_bit_of_a_root_is_refused() {
        let ids = [Some(SegmentId([5; 32])), None, Some(SegmentId([6; 32]))];
        let size = 2 * SEGMENT + 512;
        let settings = testing::settings();
        let read = |bytes: Vec<u8>| {
            let body = object::decode(&settings, ObjectKind::Root, "r", bytes.into())?;
            decode("r", &body)
        };
        let body = encode(size, &ids, 0);
        let good = object::encode(&settings, ObjectKind::Root, "r", &body).unwrap();
        assert_eq!(read(good.to_vec()).unwrap(), (size, ids.to_vec()));
        for len in 0..good.len() {
            assert!(read(good[..len].to_vec()).is_err(), "{len} bytes");
            assert!(len >= body.len() || decode("r", &body[..len]).is_err(), "{len} bytes");
        }
        for at in 0..good.len() {
            for bit in 0..8 {
                let mut bad = good.to_vec();
                bad[at] ^= 1 << bit;
                assert!(read(bad).is_err(), "bit {bit} of byte {at}");
            }
        }
    }

    #[test]
    fn a_size_that_does_not_match_the_segments_is_refused() {
        for size in [0, 100, SEGMENT + 512, u64::MAX, MAX_IMAGE + 512] {
            assert!(decode("r", &encode(size, &[None], 0)).is_err(), "{size}");
        }
    }
}
