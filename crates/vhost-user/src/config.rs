//! Features and the configuration space of a virtio-blk device (virtio 1.2, 5.2.3 and 5.2.4).

use block::{Device, Limits};

/// A sector, the unit of all offsets and lengths, in bytes.
pub(crate) const SECTOR: u64 = 512;
/// Queues of a device at most: front ends ask for one for each processor.
pub(crate) const QUEUES: u16 = 128;
/// The most descriptors of a ring.
pub(crate) const QUEUE_SIZE: u16 = 1024;
/// Segments of data in a request, as the driver is told.
const SEGMENTS: u32 = 126;
/// Ranges in a request to discard or zero.
pub(crate) const RANGES: u32 = 32;
/// The longest of these ranges, in sectors: 1 GiB.
const RANGE_SECTORS: u32 = 1 << 21;

/// Feature bits.
pub(crate) mod feature {
    pub(crate) const SEG_MAX: u64 = 1 << 2;
    pub(crate) const RO: u64 = 1 << 5;
    pub(crate) const BLK_SIZE: u64 = 1 << 6;
    pub(crate) const FLUSH: u64 = 1 << 9;
    pub(crate) const TOPOLOGY: u64 = 1 << 10;
    pub(crate) const MQ: u64 = 1 << 12;
    pub(crate) const DISCARD: u64 = 1 << 13;
    pub(crate) const WRITE_ZEROES: u64 = 1 << 14;
    pub(crate) const INDIRECT_DESC: u64 = 1 << 28;
    pub(crate) const EVENT_IDX: u64 = 1 << 29;
    pub(crate) const PROTOCOL_FEATURES: u64 = 1 << 30;
    pub(crate) const VERSION_1: u64 = 1 << 32;
}

/// What is offered for a device.
pub(crate) fn features(read_only: bool) -> u64 {
    use feature::*;
    let both = SEG_MAX
        | BLK_SIZE
        | FLUSH
        | TOPOLOGY
        | MQ
        | INDIRECT_DESC
        | EVENT_IDX
        | PROTOCOL_FEATURES
        | VERSION_1;
    both | if read_only { RO } else { DISCARD | WRITE_ZEROES }
}

/// The part of the configuration space that a driver asks for; zeroes where it has no meaning.
pub(crate) fn read(device: &dyn Device, offset: u32, len: u32) -> Vec<u8> {
    let space = space(device.size(), device.limits());
    let byte = |at: u64| usize::try_from(at).ok().and_then(|at| space.get(at)).copied();
    (0..u64::from(len)).map(|at| byte(u64::from(offset) + at).unwrap_or(0)).collect()
}

fn space(size: u64, limits: Limits) -> [u8; 60] {
    let mut space = [0; 60];
    let mut put = |at: usize, bytes: &[u8]| space[at..at + bytes.len()].copy_from_slice(bytes);
    let logical = u64::from(limits.minimum).max(SECTOR);
    let physical = u64::from(limits.preferred).max(logical);
    put(0, &(size / SECTOR).to_le_bytes()); // capacity
    put(12, &SEGMENTS.to_le_bytes()); // seg_max
    put(20, &(logical as u32).to_le_bytes()); // blk_size
    put(24, &[(physical / logical).ilog2() as u8]); // physical_block_exp
    put(26, &(u16::try_from(physical / logical).unwrap_or(1)).to_le_bytes()); // min_io_size
    put(34, &QUEUES.to_le_bytes()); // num_queues
    put(36, &RANGE_SECTORS.to_le_bytes()); // max_discard_sectors
    put(40, &RANGES.to_le_bytes()); // max_discard_seg
    put(44, &((physical / SECTOR) as u32).to_le_bytes()); // discard_sector_alignment
    put(48, &RANGE_SECTORS.to_le_bytes()); // max_write_zeroes_sectors
    put(52, &RANGES.to_le_bytes()); // max_write_zeroes_seg
    put(56, &[1]); // write_zeroes_may_unmap
    space
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::Memory;

    #[test]
    fn the_space_says_what_the_device_is_and_any_part_of_it_can_be_asked_for() {
        let device = Memory::new(5 << 20);
        let whole = read(&device, 0, 60);
        assert_eq!(whole[..8], 10_240_u64.to_le_bytes());
        assert_eq!(whole[20..24], 512_u32.to_le_bytes());
        assert_eq!((whole[24], whole[26]), (3, 8), "4 KiB are what it likes");
        assert_eq!(read(&device, 20, 4), whole[20..24]);
        assert_eq!(read(&device, 56, 8), [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(read(&device, u32::MAX, 3), [0; 3]);
    }

    #[test]
    fn a_grain_above_a_sector_is_the_block_size() {
        let limits = Limits { minimum: 65_536, preferred: 65_536, ..Limits::default() };
        let space = space(1 << 20, limits);
        assert_eq!(space[20..24], 65_536_u32.to_le_bytes());
        assert_eq!((space[24], space[26]), (0, 1));
    }
}
