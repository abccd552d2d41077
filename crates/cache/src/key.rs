//! What entries are found by.

/// What an entry is found by: the id of a chunk, which is a keyed hash.
pub type Key = [u8; 32];

/// Keys are keyed hashes, so their bits are good; the seed makes the result differ from cache to
/// cache, and the multiplications spread every bit of the key.
pub(crate) fn fingerprint(seed: u64, key: &Key) -> u64 {
    let (words, _) = key.as_chunks::<8>();
    words.iter().fold(seed, |state, word| {
        let mixed = u128::from(state ^ u64::from_le_bytes(*word)) * 0x9e37_79b9_7f4a_7c15;
        (mixed >> 64) as u64 ^ mixed as u64
    })
}
