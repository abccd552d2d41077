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
    /// [`Conflict`](block::ErrorKind::Conflict) when it is not; [`Unavailable`](block::ErrorKind::Unavailable) when
    /// that cannot be read now, which says nothing of who uses it.
    pub(crate) fn check(&self, disk: &dyn Source) -> Result<()> {
        let window = Window::part(disk, self.base, self.size);
        match window.and_then(|window| self.stamp.holds(&window)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(Error::conflict(format!(
                "the file system at {} has changed since its free blocks were found: somebody else uses it; nothing \
                 is written to it from now on",
                self.base
            ))),
            Err(refusal) if refusal.code == Code::ReadError => Err(Error::unavailable(format!(
                "the file system at {} could not be read again ({}); nothing is written to it until it can be",
                self.base, refusal.sentence
            ))),
            Err(refusal) => Err(Error::conflict(format!(
                "the file system at {} cannot be looked at any more ({refusal}): nothing is written to it from now on",
                self.base
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use block::ErrorKind;
    use std::io;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A disk whose next read fails, if that is set.
    struct Flaky {
        bytes: Vec<u8>,
        fails: AtomicBool,
    }

    impl Source for Flaky {
        fn size(&self) -> u64 {
            self.bytes.size()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            if self.fails.swap(false, Ordering::Relaxed) {
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            self.bytes.read_at(offset, buf)
        }
    }

    #[test]
    fn a_read_that_fails_once_says_nothing_of_who_uses_a_file_system() {
        let mut disk = Flaky { bytes: vec![7; 64 << 10], fails: AtomicBool::new(false) };
        let stamp = Stamp::take(&Window::whole(&disk), vec![Span::between(0, 4096)]).unwrap();
        let (kind, level) = (FileSystem::EXT4, Level::Fast);
        let claim = Claim { kind, level, base: 0, size: disk.size(), stamp };
        disk.fails = AtomicBool::new(true);
        let error = claim.check(&disk).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.message().contains("until it can be"), "{error}");
        claim.check(&disk).unwrap();
        disk.bytes[4095] = 8;
        assert_eq!(claim.check(&disk).unwrap_err().kind(), ErrorKind::Conflict);
    }
}
