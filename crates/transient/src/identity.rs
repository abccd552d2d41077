//! What a disk is, whatever its path.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// What a disk is, whatever its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DiskIdentity {
    /// A file: the number of its file system and its own.
    File(u64, u64),
    /// A block device, by its number.
    Device(u64),
}

impl DiskIdentity {
    pub(crate) fn of(meta: &Metadata) -> Self {
        match meta.file_type().is_block_device() {
            true => Self::Device(meta.rdev()),
            false => Self::File(meta.dev(), meta.ino()),
        }
    }

    pub(crate) fn of_stat(stat: &rustix::fs::Stat) -> Self {
        match rustix::fs::FileType::from_raw_mode(stat.st_mode) {
            rustix::fs::FileType::BlockDevice => Self::Device(stat.st_rdev),
            _ => Self::File(stat.st_dev, stat.st_ino),
        }
    }
}
