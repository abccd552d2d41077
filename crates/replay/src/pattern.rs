//! What replayed writes hold: every 512 bytes say where they belong and which write made them.
//!
//! | bytes | content |
//! |---|---|
//! | 0..8 | `sojourn!` |
//! | 8..16 | the offset of these 512 bytes on the disk, little-endian |
//! | 16..24 | the stamp of the write, little-endian |
//! | 24..512 | words that follow from offset and stamp, and do not compress |

/// The grain of the pattern, in bytes.
pub const GRAIN: usize = 512;
/// What each grain begins with.
pub const MAGIC: [u8; 8] = *b"sojourn!";

/// Fills `buffer`, which begins at `offset` of the disk, for the write with this stamp. Any offset
/// and length: grains that it covers in part get the part of their content that falls in.
pub fn fill(buffer: &mut [u8], offset: u64, stamp: u64) {
    each(offset, buffer.len(), |grain, from, range| {
        let mut whole = [0; GRAIN];
        content(&mut whole, grain, stamp);
        let length = range.len();
        buffer[range].copy_from_slice(&whole[from..from + length]);
    });
}

/// The stamp of a whole grain that belongs to `offset` and is undamaged.
pub fn stamp(grain: &[u8], offset: u64) -> Option<u64> {
    let stamp = grain.get(16..24)?.try_into().map(u64::from_le_bytes).ok()?;
    let mut whole = [0; GRAIN];
    content(&mut whole, offset, stamp);
    (grain == whole).then_some(stamp)
}

/// Calls `visit` for every grain that `length` bytes from `offset` touch: the grain's offset, where
/// in the grain the touched part begins, and which part of the buffer it is.
pub(crate) fn each(
    offset: u64,
    length: usize,
    mut visit: impl FnMut(u64, usize, std::ops::Range<usize>),
) {
    let mut done = 0;
    while done < length {
        let at = offset + done as u64;
        let from = (at % GRAIN as u64) as usize;
        let part = (GRAIN - from).min(length - done);
        visit(at - from as u64, from, done..done + part);
        done += part;
    }
}

fn content(grain: &mut [u8; GRAIN], offset: u64, stamp: u64) {
    grain[..8].copy_from_slice(&MAGIC);
    grain[8..16].copy_from_slice(&offset.to_le_bytes());
    grain[16..24].copy_from_slice(&stamp.to_le_bytes());
    // xorshift64* (S. Vigna, "An experimental exploration of Marsaglia's xorshift generators,
    // scrambled", ACM TOMS 2016), seeded by offset and stamp.
    let mut state = (offset ^ stamp.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for word in grain[24..].chunks_exact_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        word.copy_from_slice(&state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_write_in_pieces_is_the_write_as_a_whole(
            offset in 0u64..5000, length in 1usize..3000, cut in 0usize..3000, stamp_ in any::<u64>(),
        ) {
            let cut = cut.min(length);
            let (mut whole, mut pieces) = (vec![0; length], vec![0; length]);
            fill(&mut whole, offset, stamp_);
            fill(&mut pieces[..cut], offset, stamp_);
            fill(&mut pieces[cut..], offset + cut as u64, stamp_);
            prop_assert_eq!(&whole, &pieces);
            each(offset, length, |grain, from, range| {
                if from == 0 && range.len() == GRAIN {
                    assert_eq!(stamp(&whole[range.clone()], grain), Some(stamp_));
                    assert_eq!(stamp(&whole[range], grain + 512), None);
                }
            });
        }
    }

    #[test]
    fn a_damaged_grain_has_no_stamp() {
        let mut grain = [0; GRAIN];
        fill(&mut grain, 4096, 7);
        assert_eq!(stamp(&grain, 4096), Some(7));
        for at in [0, 8, 16, 24, 511] {
            let mut damaged = grain;
            damaged[at] ^= 1;
            assert_eq!(stamp(&damaged, 4096), None, "{at}");
        }
        assert_eq!(stamp(&grain[..100], 4096), None);
    }
}
