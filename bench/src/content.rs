//! What every disk of the benchmark holds: each eight-byte word follows from its offset alone, and
//! writes write what was there. So the first and last word of every 4 KiB block in any reply can
//! be checked at any time, whatever was written before, for a few nanoseconds a block.

use anyhow::{Result, bail};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// The grain in which content is stamped and checked, in bytes.
pub(crate) const GRAIN: usize = 4096;

/// The word at `offset` (bytes, a multiple of 8). The mixer is splitmix64 (Steele, Lea, Flood:
/// "Fast splittable pseudorandom number generators", OOPSLA 2014): no two blocks are alike and
/// nothing compresses.
fn word(offset: u64) -> u64 {
    let mut z = (offset / 8).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Fills `buf`, which stands at `offset`; both are multiples of 8.
pub(crate) fn fill(buf: &mut [u8], offset: u64) {
    for (index, bytes) in buf.chunks_exact_mut(8).enumerate() {
        bytes.copy_from_slice(&word(offset + 8 * index as u64).to_le_bytes());
    }
}

/// Puts the words that [`check`] looks at into `buf`, whose other bytes are of no concern.
pub(crate) fn stamp(buf: &mut [u8], offset: u64) {
    for (index, block) in buf.chunks_exact_mut(GRAIN).enumerate() {
        let at = offset + (index * GRAIN) as u64;
        block[..8].copy_from_slice(&word(at).to_le_bytes());
        block[GRAIN - 8..].copy_from_slice(&word(at + GRAIN as u64 - 8).to_le_bytes());
    }
}

/// Checks the first and last word of each 4 KiB block of `buf`, read at `offset`.
pub(crate) fn check(buf: &[u8], offset: u64) -> Result<()> {
    for (index, block) in buf.chunks_exact(GRAIN).enumerate() {
        let at = offset + (index * GRAIN) as u64;
        let (head, tail) = (&block[..8], &block[GRAIN - 8..]);
        if head != word(at).to_le_bytes() || tail != word(at + GRAIN as u64 - 8).to_le_bytes() {
            bail!("wrong content in the block at {at}");
        }
    }
    Ok(())
}

/// Writes a disk image of `size` bytes (whole MiB) to `path`.
pub(crate) fn write_image(path: &Path, size: u64) -> Result<()> {
    let mut out = BufWriter::with_capacity(1 << 20, File::create(path)?);
    let mut buf = vec![0; 1 << 20];
    for offset in (0..size).step_by(1 << 20) {
        fill(&mut buf, offset);
        out.write_all(&buf)?;
    }
    out.flush()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filled_and_stamped_blocks_pass_the_check() {
        let mut buf = vec![0; 4 * GRAIN];
        fill(&mut buf, 1 << 20);
        check(&buf, 1 << 20).unwrap();
        let mut buf = vec![7; 4 * GRAIN];
        stamp(&mut buf, 8 << 20);
        check(&buf, 8 << 20).unwrap();
    }

    #[test]
    fn a_block_from_elsewhere_is_found() {
        let mut buf = vec![0; 2 * GRAIN];
        fill(&mut buf, 0);
        assert!(check(&buf, GRAIN as u64).is_err());
        buf.copy_within(..GRAIN, GRAIN);
        assert_eq!(check(&buf, 0).unwrap_err().to_string(), "wrong content in the block at 4096");
    }

    #[test]
    fn an_image_file_has_the_content_at_its_offsets() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        write_image(&path, 2 << 20).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert_eq!(bytes.len(), 2 << 20);
        check(&bytes, 0).unwrap();
    }
}
