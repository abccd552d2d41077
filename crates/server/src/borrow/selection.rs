//! Which disks are borrowed from, and by which policy.

use block::{ByteSize, Error, Result, offload};
use freespace::FreeSpaceOptions;
use std::path::PathBuf;
use transient::{BorrowPolicy, Scan, ScanOptions};

/// Disks, consent and policy.
#[derive(Debug, Clone)]
pub struct BorrowSelection {
    /// Disks, partitions or image files; all disks of this machine when there are none.
    pub targets: Vec<PathBuf>,
    /// How much is taken, and of what.
    pub policy: BorrowPolicy,
    /// How thoroughly is looked, and what the owner agrees to.
    pub options: ScanOptions,
}

impl BorrowSelection {
    /// `size` bytes of these disks, with the usual policy.
    pub(crate) fn of(targets: &[PathBuf], size: ByteSize, nothing_suspended: bool) -> Self {
        let reader = FreeSpaceOptions { level: None, btrfs: false, shadow_copies: false };
        Self {
            targets: targets.to_vec(),
            policy: BorrowPolicy {
                want: Some(size.0),
                floor: None,
                most: transient::policy::MOST,
                reserve: 0,
            },
            options: ScanOptions { reader, nothing_hidden: nothing_suspended },
        }
    }

    /// Looks at the disks. What is accepted stays held as long as the scan lives.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when a disk or image that was named does not exist.
    pub async fn scan(&self) -> Result<Scan> {
        for target in &self.targets {
            std::fs::metadata(target).map_err(|e| Error::io(target.display(), e))?;
        }
        let (targets, options) = (self.targets.clone(), self.options.clone());
        let scan = offload(move || Ok(Scan::run(&targets, &options))).await?;
        for warning in scan.warnings() {
            tracing::warn!("{warning}");
        }
        Ok(scan)
    }
}
