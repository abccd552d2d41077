//! The boot sector of NTFS and its copy.

use crate::bytes::{le16, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// The largest cluster that Windows makes, in bytes.
const MAX_CLUSTER: u64 = 2 << 20;

/// The geometry, checked against the window. Sizes in bytes, places in clusters.
#[derive(Debug)]
pub(super) struct NtfsBoot {
    pub(super) cluster: u64,
    pub(super) clusters: u64,
    pub(super) size: u64,
    pub(super) mft: u64,
    pub(super) mirror: u64,
    pub(super) record: usize,
    pub(super) serial: u64,
}

pub(super) fn read(window: &Window<'_>) -> Result<NtfsBoot, Refusal> {
    let head = window.bytes(0, 512)?;
    let sector = u64::from(le16(&head, 11));
    if &head[3..11] != b"NTFS    "
        || head[510..512] != [0x55, 0xAA]
        || !matches!(sector, 512 | 1024 | 2048 | 4096)
    {
        refuse!(Geometry, "no boot sector of an NTFS");
    }
    // Above 128 the number is a negative power of two.
    let per_cluster = match head[13] {
        n @ 1..=128 if n.is_power_of_two() => u64::from(n),
        n @ 0xF4.. => 1 << (256 - u32::from(n)),
        n => refuse!(Geometry, "{n} sectors in a cluster"),
    };
    let cluster = sector * per_cluster;
    let record = match head[64] {
        n @ 0xF4..=0xF7 => 1usize << (256 - u32::from(n)),
        n @ 1..=8 if n.is_power_of_two() => usize::from(n) * cluster as usize,
        n => refuse!(Geometry, "file records of size code {n:#x}"),
    };
    if cluster > MAX_CLUSTER || !matches!(record, 512 | 1024 | 2048 | 4096) {
        refuse!(Geometry, "clusters of {cluster} bytes, file records of {record}");
    }
    let sectors = le64(&head, 40);
    // The copy of the boot sector lies behind the counted sectors.
    let Some(size) = sectors.checked_mul(sector).filter(|size| {
        *size > 0 && size.checked_add(sector).is_some_and(|end| end <= window.size())
    }) else {
        refuse!(
            Geometry,
            "it has {sectors} sectors of {sector} bytes and one more, and there are only {} bytes",
            window.size()
        );
    };
    let copy = window.bytes(size, 512)?;
    if copy[..84] != head[..84] || copy[510..] != head[510..] {
        refuse!(
            Structure,
            "its boot sector and the copy behind its end differ; check it with chkdsk"
        );
    }
    let boot = NtfsBoot {
        cluster,
        clusters: size / cluster,
        size,
        mft: le64(&head, 48),
        mirror: le64(&head, 56),
        record,
        serial: le64(&head, 72),
    };
    if boot.clusters > u64::from(u32::MAX)
        || boot.mft >= boot.clusters
        || boot.mirror >= boot.clusters
    {
        refuse!(Geometry, "its file table lies at cluster {} of {}", boot.mft, boot.clusters);
    }
    Ok(boot)
}
