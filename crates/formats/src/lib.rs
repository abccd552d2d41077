//! Foreign disk image files as devices: raw, qcow2, VMDK; VHD, VHDX and VDI by conversion.
//!
//! This crate may know image file formats and the tools that read them. It must not know what an
//! image is used for. Every image file is hostile: whatever is in it, opening it opens no other
//! file, and ends in a device or in one error that names the file.

mod format;

pub use format::{Format, probe};

use block::{Device, Error, Result};
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

/// Opens an image file as a device.
///
/// # Errors
/// as documented soon
pub async fn open(path: &Path, options: OpenOptions) -> Result<Arc<dyn Device>> {
    let _ = (path, options);
    Err(Error::internal("not yet"))
}

/// Creates an image file that reads as `size` zero bytes, and opens it for writing.
///
/// # Errors
/// as documented soon
pub async fn create(path: &Path, format: Format, size: u64) -> Result<Arc<dyn Device>> {
    let _ = (path, format, size);
    Err(Error::internal("not yet"))
}
