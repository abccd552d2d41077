//! Foreign disk image files as devices: raw, qcow2, VMDK; VHD, VHDX and VDI by conversion.
//!
//! This crate may know image file formats and the tools that read them. It must not know what an
//! image is used for. Every image file is hostile: whatever is in it, opening it opens no file
//! that its owner did not mean, and ends in a device or in one error that names the file.
//!
//! | module | concept |
//! |---|---|
//! | `format` | [`Format`] and [`probe`] |
//! | `packed` | [`Packed`]: what is compressed, and no image yet |
//! | `unread` | [`Unread`]: what holds a disk, and is not read |
//! | `file` | opening a file so that two writers cannot meet |
//! | `raw` | a raw file or block device |
//! | `driver` | what the `imago` library reads and writes, with a guard around it |
//! | `qcow2` | what is checked of a qcow2 file before the library sees it |
//! | `vmdk` | which VMDK files are read, which files they may name, and flat ones as devices |
//! | `child` | running a program of others, which does not outlive this process |
//! | `convert` | what `qemu-img` converts into a temporary raw file |
//! | `vhd` | what is checked of a VHD file before `qemu-img` sees it |
//! | `truncated` | what is checked of files of which `qemu-img` does not see that they end too early |
//!
//! What is read how:
//!
//! | format | read | written |
//! |---|---|---|
//! | raw | yes, block devices too | yes |
//! | qcow2 versions 2 and 3, zlib clusters | yes | yes |
//! | qcow2 with zstd clusters or extended L2 entries | by conversion | no |
//! | VMDK, flat extents (ESX's too) `NAME-flat.vmdk` or `NAME-fNNN.vmdk` beside the descriptor | yes | no |
//! | VMDK, monolithic sparse or stream-optimised | by conversion | no |
//! | VHD, VHDX, VDI | by conversion | no |
//! | anything with a backing file, an external data file or encryption | no | no |

mod child;
mod convert;
mod driver;
mod file;
mod format;
mod packed;
mod qcow2;
mod raw;
#[cfg(test)]
mod tests;
mod truncated;
mod unread;
mod vhd;
mod vmdk;

pub use file::remove_leftover;
pub use format::{Format, probe};
pub use packed::{Packed, packed};
pub use unread::Unread;

use block::{Device, Error, Result, offload};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How to open an image file.
#[derive(Debug, Clone)]
pub struct OpenOptions {
    /// The format; found out with [`probe`] when not given.
    pub format: Option<Format>,
    /// Open for reading only.
    pub read_only: bool,
    /// A directory for temporary files: an image of a format that is converted takes its data's
    /// size there while it is open.
    pub scratch: PathBuf,
}

/// Opens an image file as a device of exactly the disk's size in bytes.
///
/// The file is locked while it is open: shared for reading, exclusive for writing.
///
/// # Errors
/// All name the file. [`Corrupt`](block::ErrorKind::Corrupt) when it breaks its format's rules or is
/// truncated; [`Denied`](block::ErrorKind::Denied) when it wants other files opened, or is to be
/// written in a format that is only read; [`Unsupported`](block::ErrorKind::Unsupported) when it
/// needs what is not there (a conversion tool, a key) or, where no format is given, is
/// [packed](Packed) or [not read](Unread), with what to do;
/// [`Conflict`](block::ErrorKind::Conflict) when another process writes it;
/// [`Invalid`](block::ErrorKind::Invalid) when it is neither a file nor a block device.
pub async fn open(path: &Path, options: OpenOptions) -> Result<Arc<dyn Device>> {
    let format = match options.format {
        Some(format) => format,
        None => {
            let path = path.to_owned();
            offload(move || probe(&path)).await?
        }
    };
    if !options.read_only && !format.writable() {
        return Err(Error::denied(format!(
            "{}: {format} images can only be read; open it read-only, or convert it to qcow2",
            path.display()
        )));
    }
    match format {
        Format::Raw => raw::open(path, options.read_only).await,
        Format::Qcow2 => qcow2::open(path, options.read_only, &options.scratch).await,
        Format::Vmdk => vmdk::open(path, &options.scratch).await,
        Format::Vhd | Format::Vhdx | Format::Vdi => {
            convert::open(path, format, &options.scratch).await
        }
    }
}

/// Creates an image file that reads as `size` zero bytes, and opens it for writing. A flush makes
/// it durable; without one a qcow2 file is not complete. `mode`: the permissions of the file, less
/// what the process takes from new files.
///
/// # Errors
/// [`Conflict`](block::ErrorKind::Conflict) when there is a file of that name already;
/// [`Unsupported`](block::ErrorKind::Unsupported) for a format that is only read;
/// [`Invalid`](block::ErrorKind::Invalid) when `size` is not a multiple of 512.
pub async fn create(path: &Path, format: Format, size: u64, mode: u32) -> Result<Arc<dyn Device>> {
    if !size.is_multiple_of(512) {
        return Err(Error::invalid(format!(
            "{}: a size of {size} bytes is not a multiple of 512; round it up",
            path.display()
        )));
    }
    match format {
        Format::Raw => raw::create(path, size, mode).await,
        Format::Qcow2 => qcow2::create(path, size, mode).await,
        _ => Err(Error::unsupported(format!(
            "{}: {format} images are not written; choose raw or qcow2",
            path.display()
        ))),
    }
}
