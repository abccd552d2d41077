//! What the rest of the project has to know of a file system that is read.

use crate::head::PartHead;
use crate::{FileSystem, FreeSpace, FreeSpaceOptions, Refusal, Window};

/// How the free space of a file system is read. Everything that depends on which one it is stands
/// here.
#[derive(Debug)]
pub struct FileSystemReader {
    /// What it reads.
    pub kinds: &'static [FileSystem],
    /// What the marks at the beginning say that it is, if it is one of these.
    pub(crate) recognize: fn(&PartHead) -> Option<FileSystem>,
    /// Reads what is free.
    pub(crate) read: fn(&Window<'_>, &FreeSpaceOptions) -> Result<FreeSpace, Refusal>,
    /// Whether one that was mounted when the power went or the system slept can be told from one that
    /// was unmounted.
    pub shows_mounted: bool,
    /// Where in it a suspended system may be stored.
    pub suspended: SuspendedIn,
}

/// Where in a file system a suspended system may be stored, and who looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SuspendedIn {
    /// In no file, or in one that the reader looks for whatever else is there.
    Nothing,
    /// In a file that the reader comes by while it reads all others.
    OwnFile,
    /// In swap files, which [`in_swap_files`](crate::suspended::in_swap_files) looks into.
    SwapFiles,
    /// In files, which nobody looks into.
    UnreadFiles,
}
