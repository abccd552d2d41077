//! Partition tables, and what is on a disk: any first sectors, as they are or as a sealed GPT.
#![no_main]

use freespace::{PartitionTable, Window, probe};
use libfuzzer_sys::fuzz_target;

const SIZE: usize = 1 << 20;
const SECTOR: usize = 512;
/// The 128 entries of a GPT.
const ENTRIES: usize = 128 * 128;

/// CRC-32 (IEEE 802.3), bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            (crc >> 1) ^ (0xEDB8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

/// Makes the two headers and the entries of a GPT agree, whatever they say.
fn seal(disk: &mut [u8]) {
    let last = SIZE / SECTOR - 1;
    disk[450] = 0xEE;
    disk[454] = 1;
    disk[458] = 0xFF;
    disk[510..512].copy_from_slice(&[0x55, 0xAA]);
    let entries = disk[2 * SECTOR..2 * SECTOR + ENTRIES].to_vec();
    let copy = last - ENTRIES / SECTOR;
    disk[copy * SECTOR..copy * SECTOR + ENTRIES].copy_from_slice(&entries);
    let mut header = disk[SECTOR..SECTOR + 92].to_vec();
    header[..16].copy_from_slice(b"EFI PART\0\0\x01\0\x5c\0\0\0");
    header[80..84].copy_from_slice(&128u32.to_le_bytes());
    header[84..88].copy_from_slice(&128u32.to_le_bytes());
    header[88..92].copy_from_slice(&crc32(&entries).to_le_bytes());
    for (own, other, at) in [(1, last, 2), (last, 1, copy)] {
        header[16..20].fill(0);
        header[24..32].copy_from_slice(&(own as u64).to_le_bytes());
        header[32..40].copy_from_slice(&(other as u64).to_le_bytes());
        header[72..80].copy_from_slice(&(at as u64).to_le_bytes());
        let sum = crc32(&header);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        disk[own * SECTOR..own * SECTOR + 92].copy_from_slice(&header);
    }
}

fuzz_target!(|data: &[u8]| {
    let [sealed, data @ ..] = data else { return };
    let mut disk = vec![0; SIZE];
    let len = data.len().min(SIZE);
    disk[..len].copy_from_slice(&data[..len]);
    if sealed & 1 == 1 {
        seal(&mut disk);
    }
    // Neither may panic; what is found lies inside and apart.
    let _ = probe::probe(&Window::whole(&disk));
    let Ok(table) = PartitionTable::read(&disk) else { return };
    let mut spans: Vec<_> = table.partitions().iter().map(|partition| partition.span).collect();
    spans.sort_unstable();
    assert!(spans.iter().all(|span| span.end() <= SIZE as u64));
    assert!(spans.windows(2).all(|pair| pair[0].end() <= pair[1].offset()));
});
