//! The header of a qcow2 file, as far as it decides how the file is read.

use crate::file::{be32, be64};
use block::{Error, Result};

/// Incompatible features, by bit.
pub(super) mod feature {
    pub(in crate::qcow2) const DIRTY: u64 = 1;
    pub(in crate::qcow2) const CORRUPT: u64 = 1 << 1;
    pub(in crate::qcow2) const EXTERNAL_DATA: u64 = 1 << 2;
    pub(in crate::qcow2) const COMPRESSION: u64 = 1 << 3;
    pub(in crate::qcow2) const EXTENDED_L2: u64 = 1 << 4;
}

/// L1 entries that any reader accepts (QEMU's limit of 32 MiB).
const MOST_L1_ENTRIES: u32 = 4 << 20;

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Qcow2Header {
    pub(super) version: u32,
    pub(super) cluster_bits: u32,
    pub(super) size: u64,
    pub(super) l1_offset: u64,
    pub(super) l1_entries: u32,
    pub(super) features: u64,
    pub(super) refcount_offset: u64,
    pub(super) refcount_clusters: u32,
    /// The width of a reference count is two to this, in bits.
    pub(super) refcount_order: u32,
}

/// How a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReadMethod {
    Library,
    /// By conversion, because of what the text names.
    Convert(&'static str),
}

/// Parses the first 104 bytes of a file; version 2 needs only 72 of them.
pub(super) fn parse(bytes: &[u8]) -> Result<(Qcow2Header, ReadMethod)> {
    let corrupt = |what: &str| Err(Error::corrupt(format!("not a valid qcow2 image: {what}")));
    if bytes.len() < 72 {
        return corrupt("the file ends in the header; fetch it again");
    }
    if !bytes.starts_with(b"QFI\xfb") {
        return corrupt("the magic number is missing; name its real format");
    }
    let version = be32(bytes, 4);
    if !(2..=3).contains(&version) {
        return Err(Error::unsupported(format!(
            "qcow2 version {version} is not known (2 and 3 are); convert it with qemu-img convert"
        )));
    }
    if version == 3 && bytes.len() < 104 {
        return corrupt("the file ends in the header; fetch it again");
    }
    let header = Qcow2Header {
        version,
        cluster_bits: be32(bytes, 20),
        size: be64(bytes, 24),
        l1_offset: be64(bytes, 40),
        l1_entries: be32(bytes, 36),
        features: if version == 3 { be64(bytes, 72) } else { 0 },
        refcount_offset: be64(bytes, 48),
        refcount_clusters: be32(bytes, 56),
        refcount_order: if version == 3 { be32(bytes, 96) } else { 4 },
    };
    if be64(bytes, 8) != 0 {
        return Err(Error::denied(
            "has a backing file, which is not opened; flatten it with qemu-img convert -O qcow2",
        ));
    }
    if be32(bytes, 32) != 0 {
        return Err(Error::unsupported("is encrypted; decrypt it with qemu-img convert"));
    }
    if !(9..=21).contains(&header.cluster_bits) {
        return corrupt(&format!("clusters of 2^{} bytes", header.cluster_bits));
    }
    if header.refcount_order > 6 {
        return corrupt(&format!("reference counts of 2^{} bits", header.refcount_order));
    }
    if header.size > i64::MAX as u64 {
        return corrupt(&format!("a disk of {} bytes", header.size));
    }
    if header.l1_entries > MOST_L1_ENTRIES {
        return corrupt(&format!("a table of {} entries", header.l1_entries));
    }
    // One L1 entry stands for one L2 table: a cluster of 8-byte entries, a cluster each.
    if header.size.div_ceil(1 << (2 * header.cluster_bits - 3)) > u64::from(header.l1_entries) {
        return corrupt("its table is too short for the disk's size");
    }
    Ok((header, reader(header.features)?))
}

fn reader(features: u64) -> Result<ReadMethod> {
    if features & feature::CORRUPT != 0 {
        return Err(Error::corrupt(
            "is marked as corrupt; repair a copy of it with qemu-img check -r all",
        ));
    }
    if features & feature::EXTERNAL_DATA != 0 {
        return Err(Error::denied(
            "has an external data file, which is not opened; merge it with qemu-img convert -O qcow2",
        ));
    }
    if features & feature::DIRTY != 0 {
        return Err(Error::unsupported(
            "was not closed cleanly; repair it with qemu-img check -r all",
        ));
    }
    let known = feature::COMPRESSION | feature::EXTENDED_L2;
    if features & !known != 0 {
        return Err(Error::unsupported(format!(
            "needs qcow2 features {:#x}, which are not known; convert it with qemu-img convert -O qcow2",
            features & !known
        )));
    }
    Ok(match () {
        () if features & feature::EXTENDED_L2 != 0 => ReadMethod::Convert("extended L2 entries"),
        () if features & feature::COMPRESSION != 0 => ReadMethod::Convert("zstd compression"),
        () => ReadMethod::Library,
    })
}
