//! The boot region of exFAT: geometry, state, checksum (Microsoft's exFAT specification, section 3).

use crate::bytes::{le16, le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// Sectors of the boot region; the last one repeats its checksum.
const REGION: usize = 12;

/// The geometry, checked against the window. Offsets and sizes in bytes.
#[derive(Debug)]
pub(super) struct ExfatBoot {
    pub(super) sector: u64,
    pub(super) cluster: u64,
    /// How many clusters there are; they are numbered from 2.
    pub(super) clusters: u64,
    pub(super) size: u64,
    pub(super) fat: u64,
    pub(super) heap: u64,
    pub(super) root: u32,
    pub(super) serial: u32,
}

pub(super) fn read(window: &Window<'_>) -> Result<ExfatBoot, Refusal> {
    let head = window.bytes(0, 512)?;
    if &head[3..11] != b"EXFAT   " || head[510..512] != [0x55, 0xAA] {
        refuse!(Structure, "no exFAT boot sector");
    }
    if head[11..64].iter().any(|b| *b != 0) {
        refuse!(Structure, "the boot sector is of exFAT and of FAT at once");
    }
    let (sector_shift, cluster_shift) = (head[108], head[109]);
    if !(9..=12).contains(&sector_shift) || cluster_shift > 25 - sector_shift {
        refuse!(Geometry, "sectors of 2^{sector_shift} bytes, 2^{cluster_shift} in a cluster");
    }
    let sector = 1u64 << sector_shift;
    let region = window.bytes(0, REGION << sector_shift)?;
    check_sum(&region, sector as usize)?;
    state(&head)?;
    let spread = u64::from(le32(&head, 84)) * sector;
    let length = le64(&head, 72);
    let Some(size) = length.checked_mul(sector).filter(|size| *size <= window.size()) else {
        refuse!(
            Geometry,
            "it has {length} sectors of {sector} bytes, and there are only {} bytes",
            window.size()
        );
    };
    let boot = ExfatBoot {
        sector,
        cluster: sector << cluster_shift,
        clusters: u64::from(le32(&head, 92)),
        size,
        fat: u64::from(le32(&head, 80)) * sector,
        heap: u64::from(le32(&head, 88)) * sector,
        root: le32(&head, 96),
        serial: le32(&head, 100),
    };
    // At most 2^32 clusters of at most 2^25 bytes: none of this overflows.
    let end = boot.heap + boot.clusters * boot.cluster;
    if boot.fat < 24 * sector
        || boot.fat + spread > boot.heap
        || spread < (boot.clusters + 2) * 4
        || end > size
        || boot.clusters == 0
        || boot.clusters > 0xFFFF_FFF5
    {
        refuse!(
            Geometry,
            "FAT, {} clusters and {} sectors do not fit together",
            boot.clusters,
            length
        );
    }
    Ok(boot)
}

/// The checksum covers eleven sectors but for the state and the fill level, which change in use.
fn check_sum(region: &[u8], sector: usize) -> Result<(), Refusal> {
    let (covered, stored) = region.split_at((REGION - 1) * sector);
    let sum = covered
        .iter()
        .enumerate()
        .filter(|(i, _)| !matches!(i, 106 | 107 | 112))
        .fold(0u32, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u32::from(*byte)));
    if stored.chunks_exact(4).any(|word| le32(word, 0) != sum) {
        refuse!(
            Checksum,
            "the checksum of its boot region does not match; check it with its own tool"
        );
    }
    Ok(())
}

fn state(head: &[u8]) -> Result<(), Refusal> {
    let revision = le16(head, 104);
    if revision >> 8 != 1 {
        refuse!(
            UnknownFeature,
            "revision {}.{:02} of exFAT; only 1 is known",
            revision >> 8,
            revision & 0xFF
        );
    }
    if head[110] != 1 {
        refuse!(UnsupportedFeature, "it has {} FATs (TexFAT), not one", head[110]);
    }
    let flags = le16(head, 106);
    if flags & 0x2 != 0 {
        refuse!(Unclean, "it was not unmounted; unmount or check it in its own system");
    }
    if flags & 0x4 != 0 {
        refuse!(Errors, "its medium has failed before");
    }
    // Bit 3 (clear to zero) has no meaning while nothing is written.
    if flags & !0x8 != 0 {
        refuse!(UnknownFeature, "unknown state bits {:#x}", flags & !0x8);
    }
    if head[112] > 100 && head[112] != 0xFF {
        refuse!(Structure, "it is said to be {} % full", head[112]);
    }
    Ok(())
}
