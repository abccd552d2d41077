//! Disk images to test with.

use std::path::Path;

/// `length` bytes (a multiple of 8) that look random and follow from `seed` (xorshift64).
pub fn random(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes
}

/// An image of `mib` MiB (at least 8) as real ones are: data, text that compresses, written
/// zeroes, one MiB that occurs twice, and holes.
pub fn image(seed: u64, mib: usize) -> Vec<u8> {
    let mut bytes = vec![0; mib << 20];
    for index in 0..mib {
        let part = &mut bytes[index << 20..][..1 << 20];
        match index % 8 {
            0 | 3 => part.copy_from_slice(&random(seed + index as u64, 1 << 20)),
            1 => part.chunks_mut(16).enumerate().for_each(|(line, text)| {
                let line = format!("line {:>10}\n", line + index);
                text.copy_from_slice(line.as_bytes());
            }),
            5 => part.copy_from_slice(&random(seed, 1 << 20)),
            6 => part[300 << 10..][..4096].copy_from_slice(&random(seed + 9, 4096)),
            _ => {}
        }
    }
    bytes
}

/// Writes `bytes` to `path`, with holes where whole 64 KiB are zero.
pub fn write_sparse(path: &Path, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::create(path).expect("image file");
    file.set_len(bytes.len() as u64).expect("image size");
    for (index, part) in bytes.chunks(64 << 10).enumerate() {
        if part.iter().any(|byte| *byte != 0) {
            file.write_all_at(part, (index as u64) << 16).expect("image data");
        }
    }
}

/// Panics, with the offset, when two images differ.
pub fn assert_same(what: &str, got: &[u8], expected: &[u8]) {
    assert_eq!(got.len(), expected.len(), "{what}: length");
    if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
        panic!("{what}: first difference at byte {at} ({:#x} for {:#x})", got[at], expected[at]);
    }
}
