//! What a file system lends, and how to tell that nobody has used it since.

use crate::HostDisk;
use crate::direct::Direct;
use block::{Error, Result, Span};
use freespace::{Code, FileSystem, FreeSpaceOptions, Level, Refusal, Source, Stamp, Window};
use std::sync::Arc;

/// What one file system lends.
#[derive(Debug)]
pub struct Loan {
    /// The disk that it is on, held.
    pub disk: Arc<HostDisk>,
    /// The file system.
    pub claim: Claim,
    /// The lent ranges, in bytes of the disk, rising.
    pub spans: Vec<Span>,
}

/// Where a file system is, and how to tell that it has not been used since.
#[derive(Debug, Clone)]
pub struct Claim {
    /// What it is.
    pub kind: FileSystem,
    /// How its free blocks were proven free.
    pub level: Level,
    /// Where it starts on the disk, in bytes.
    pub base: u64,
    /// Its size in bytes.
    pub size: u64,
    /// What must still be so before the first write.
    pub stamp: Stamp,
}

impl Loan {
    /// Reads the owner's file system once more from the disk itself, as if nothing were known of it,
    /// after its loan has been used: it must be accepted again, and all that was lent must still be
    /// free.
    ///
    /// # Errors
    /// What is wrong with it now.
    pub fn recheck(&self) -> Result<(), Refusal> {
        let claim = &self.claim;
        // What is on the disk, and not what the page cache kept of it.
        let disk = Direct::open(self.disk.file())
            .map_err(|e| Refusal::new(Code::ReadError, format!("cannot read it again: {e}")))?;
        let window = Window::part(&disk, claim.base, claim.size)?;
        let options =
            FreeSpaceOptions { level: Some(claim.level), btrfs: true, shadow_copies: true };
        let found = freespace::read(claim.kind, &window, &options)?;
        let mut free = found.free.iter().peekable();
        for span in &self.spans {
            let span = span.relative_to(claim.base);
            while free.peek().is_some_and(|free| free.end() <= span.offset()) {
                free.next();
            }
            if free.peek().is_none_or(|free| free.intersect(span) != Some(span)) {
                return Err(Refusal::new(
                    Code::Conflict,
                    format!("{} lent bytes at {} are not free any more", span.len(), span.offset()),
                ));
            }
        }
        Ok(())
    }
}

impl Claim {
    /// Looks whether the file system is as it was when its free blocks were found.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when it is not.
    pub(crate) fn check(&self, disk: &dyn Source) -> Result<()> {
        let changed = |why: String| {
            Error::conflict(format!(
                "the file system at {} {why} since its free blocks were found: somebody else uses \
                 it; nothing is written to it from now on",
                self.base
            ))
        };
        let window = Window::part(disk, self.base, self.size)
            .map_err(|refusal| changed(format!("cannot be looked at ({refusal})")))?;
        match self.stamp.holds(&window) {
            Ok(true) => Ok(()),
            Ok(false) => Err(changed("has changed".to_owned())),
            Err(refusal) => Err(changed(format!("cannot be read again ({refusal})"))),
        }
    }
}
