//! Files and directories of a file system, read-only.

use block::{Error, Result};
use std::ops::Range;

/// The longest kernel, in bytes.
pub const LONGEST_KERNEL: u64 = 128 << 20;
/// The longest initial RAM disk.
pub const LONGEST_INITRD: u64 = 512 << 20;
/// The most names of a directory that are looked at.
pub const MOST_NAMES: usize = 4096;
/// Bytes read of a file at a time.
pub const PIECE: usize = 1 << 20;

/// A file system that a kernel may lie in.
pub trait FileTree {
    /// What the kernel calls its UUID, in lower case.
    fn uuid(&self) -> String;

    /// What it is called.
    fn label(&self) -> String;

    /// The names in a directory; none when it is not there.
    ///
    /// # Errors
    /// Damage, and any error from reading.
    fn names(&self, directory: &str) -> Result<Vec<String>>;

    /// The length of a file, in bytes, as the file system has it; `None` when there is none.
    ///
    /// # Errors
    /// Damage, and any error from reading.
    fn length(&self, path: &str) -> Result<Option<u64>>;

    /// Appends these bytes of a file, for which it takes the memory at once; `false` when there is no file.
    ///
    /// # Errors
    /// [`Corrupt`](block::ErrorKind::Corrupt) when the file is shorter; other damage, and any error from reading.
    fn append_range(&self, path: &str, range: Range<u64>, to: &mut Vec<u8>) -> Result<bool>;

    /// Appends a whole file of at most so many bytes; `false` when there is none.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when it is longer; damage, and any error from reading.
    fn append(&self, path: &str, longest: u64, to: &mut Vec<u8>) -> Result<bool> {
        let Some(length) = self.length(path)? else { return Ok(false) };
        if length > longest {
            return Err(Error::invalid(format!(
                "{path} of the disk has {length} bytes, more than {longest}"
            )));
        }
        self.append_range(path, 0..length, to)
    }

    /// Whether a file or directory is there.
    fn has(&self, path: &str) -> bool;
}
