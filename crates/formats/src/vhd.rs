//! What is checked of a VHD before `qemu-img` converts it: footer, type, length, header.
//!
//! Source of the format: Microsoft, "Virtual Hard Disk Image Format Specification", version 1.0.
//!
//! The tool takes the size of some images from the geometry in the footer, which may be smaller than the
//! disk, and does not compare the length of an image of a fixed size with what its footer says.

use crate::file::{be32, be64, len, read_up_to};
use block::{Error, Result};
use std::fs::File;
use std::path::Path;

/// The length of a footer, which is the end of each file.
const FOOTER: usize = 512;
/// The length of the header of a dynamic image.
const DYNAMIC_HEADER: usize = 1024;
/// Where their checksums are.
const FOOTER_SUM: usize = 64;
const DYNAMIC_HEADER_SUM: usize = 36;

/// Refuses what is no VHD, is damaged, or needs another file; returns the size of the disk in bytes.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it is damaged or truncated,
/// [`Denied`](block::ErrorKind::Denied) for the difference to another image,
/// [`Unsupported`](block::ErrorKind::Unsupported) for other types; any error from reading it.
pub(crate) fn check(file: &File, path: &Path) -> Result<u64> {
    let len = len(file, path)?;
    let footer = read_up_to(file, path, len.saturating_sub(FOOTER as u64), FOOTER)?;
    if footer.len() < FOOTER || !footer.starts_with(b"conectix") {
        return Err(truncated(path, "a VHD ends with a footer, and this does not"));
    }
    if be32(&footer, FOOTER_SUM) != checksum(&footer, FOOTER_SUM) {
        return Err(damaged(path, "footer"));
    }
    let size = be64(&footer, 48);
    match be32(&footer, 60) {
        2 if size == len - FOOTER as u64 => Ok(size),
        2 => Err(truncated(
            path,
            format_args!(
                "its footer says that the disk has {size} bytes, and there are {} before it",
                len - FOOTER as u64
            ),
        )),
        3 => {
            let header = read_up_to(file, path, be64(&footer, 16), DYNAMIC_HEADER)?;
            let is_header = header.len() == DYNAMIC_HEADER && header.starts_with(b"cxsparse");
            if !is_header
                || be32(&header, DYNAMIC_HEADER_SUM) != checksum(&header, DYNAMIC_HEADER_SUM)
            {
                return Err(damaged(path, "header"));
            }
            Ok(size)
        }
        4 => Err(Error::denied(format!(
            "{}: it is the difference to another image, which is not opened; merge them first",
            path.display()
        ))),
        other => Err(Error::unsupported(format!(
            "{}: VHD type {other} is not known (fixed and dynamic are); convert it to qcow2",
            path.display()
        ))),
    }
}

/// The ones' complement of the sum of all bytes but those of the checksum, which is `at`.
fn checksum(bytes: &[u8], at: usize) -> u32 {
    let without = bytes[..at].iter().chain(&bytes[at + 4..]);
    !without.fold(0, |sum: u32, byte| sum.wrapping_add(u32::from(*byte)))
}

fn truncated(path: &Path, why: impl std::fmt::Display) -> Error {
    Error::corrupt(format!("{}: truncated: {why}; fetch it again", path.display()))
}

fn damaged(path: &Path, what: &str) -> Error {
    Error::corrupt(format!(
        "{}: the VHD's {what} is damaged (its checksum is another one); fetch it again",
        path.display()
    ))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The footer of an image of a fixed size, as VirtualBox writes it: its geometry is that of a part
    /// of the disk.
    pub(crate) fn fixed_footer(size: u64) -> Vec<u8> {
        let mut footer = b"conectix\0\0\0\x02\0\x01\0\0".to_vec();
        footer.extend(u64::MAX.to_be_bytes());
        footer.extend(b"\0\0\0\0vbox\0\x01\0\0Wi2k");
        footer.extend(size.to_be_bytes());
        footer.extend(size.to_be_bytes());
        footer.extend([0, 10, 4, 17]);
        footer.extend(2u32.to_be_bytes());
        footer.resize(FOOTER, 0);
        seal(&mut footer, FOOTER_SUM);
        footer
    }

    /// The footer (or header) with this at `offset`, and its checksum as it then is.
    pub(crate) fn patched(mut bytes: Vec<u8>, offset: usize, with: &[u8]) -> Vec<u8> {
        bytes[offset..offset + with.len()].copy_from_slice(with);
        let at = if bytes.len() == FOOTER { FOOTER_SUM } else { DYNAMIC_HEADER_SUM };
        seal(&mut bytes, at);
        bytes
    }

    fn seal(bytes: &mut [u8], at: usize) {
        let sum = checksum(bytes, at);
        bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
    }
}
