//! The resume set: which extents of memory a resume reads before its first second is over, in that order.
//! The next resume has them fetched ahead, as a boot has its boot list.

use crate::EXTENT;
use block::{Error, Result};

/// The most extents that a set names: 1 GiB of memory.
pub const MAX_EXTENTS: usize = 16384;

/// A set as bytes: each extent's number in four bytes, little-endian.
pub fn encode(extents: &[u32]) -> Vec<u8> {
    extents.iter().take(MAX_EXTENTS).flat_map(|extent| extent.to_le_bytes()).collect()
}

/// Reads a set of a machine with `memory` bytes.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it is none.
pub fn decode(bytes: &[u8], memory: u64) -> Result<Vec<u32>> {
    let damaged = |why: &str| Err(Error::corrupt(format!("the resume set of a parcel {why}")));
    if !bytes.len().is_multiple_of(4) || bytes.len() / 4 > MAX_EXTENTS {
        return damaged("has a length that it cannot have");
    }
    let mut extents = Vec::with_capacity(bytes.len() / 4);
    for number in bytes.chunks_exact(4) {
        let extent = u32::from_le_bytes([number[0], number[1], number[2], number[3]]);
        if u64::from(extent) >= memory.div_ceil(EXTENT) {
            return damaged("names an extent beyond the end of the memory");
        }
        extents.push(extent);
    }
    Ok(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_lies_beyond_the_memory_is_refused() {
        assert_eq!(decode(&encode(&[1, 0]), 2 * EXTENT).unwrap(), [1, 0]);
        assert!(decode(&encode(&[2]), 2 * EXTENT).is_err());
        assert!(decode(&[1, 2, 3], 1 << 30).is_err());
    }

    proptest! {
        #[test]
        fn a_set_is_read_back(extents in proptest::collection::vec(0u32..8192, 0..100)) {
            prop_assert_eq!(decode(&encode(&extents), 512 << 20).unwrap(), extents);
        }

        #[test]
        fn any_bytes_are_a_set_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes, 1 << 24);
        }
    }
}
