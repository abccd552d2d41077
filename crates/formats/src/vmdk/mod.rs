//! VMware disks: which are read, and which files they may name.
//!
//! A VMDK is a text descriptor, in a file of its own beside flat extents, or inside a sparse file
//! that holds all data. Source of the format: VMware, "Virtual Disk Format 5.0".
//!
//! A descriptor can name any file. Flat extents are opened only where they carry the names that
//! VMware gives them: `NAME-flat.vmdk` or `NAME-fNNN.vmdk` in the directory of `NAME.vmdk`. So an
//! image that came from somewhere else cannot make another file readable.

mod descriptor;
mod flat;
mod siblings;

use crate::convert::{self, Tool};
use crate::file::{le64, read_up_to};
use block::image_lock::LockedFile;
use block::{Device, Error, Result, offload};
use flat::Flat;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// The longest embedded descriptor that is looked at, in bytes (QEMU's limit is 20 sectors).
const MOST_EMBEDDED: u64 = 64 << 10;
/// The longest descriptor in a file of its own: a line for each 2 GiB of the disk.
const MOST_DESCRIPTOR: u64 = 2 << 20;

/// Opens a VMDK image for reading.
pub(crate) async fn open(path: &Path, scratch: &Path) -> Result<Arc<dyn Device>> {
    let owned = path.to_owned();
    let flat = offload(move || {
        let path = owned.as_path();
        let file = crate::file::open(path, true)?;
        if is_sparse(&file, path)? {
            return Ok(None);
        }
        open_flat(file, path).map(|device| Some(Arc::new(device) as Arc<dyn Device>))
    })
    .await?;
    match flat {
        Some(device) => Ok(device),
        None => convert::with_tool(path, Tool::Vmdk, scratch).await,
    }
}

/// Whether it is a sparse file that holds all its data itself.
///
/// # Errors
/// [`Denied`](block::ErrorKind::Denied) when it is sparse and needs other files.
fn is_sparse(file: &File, path: &Path) -> Result<bool> {
    let head = read_up_to(file, path, 0, 512)?;
    if head.starts_with(b"COWD") {
        return Ok(true); // an ESX sparse extent names no other file
    }
    if !head.starts_with(b"KDMV") {
        return Ok(false);
    }
    let corrupt = |what| Error::corrupt(format!("{}: {what}; fetch it again", path.display()));
    if head.len() < 512 {
        return Err(corrupt("the VMDK header is truncated"));
    }
    let (capacity, start, sectors) = (le64(&head, 12), le64(&head, 28), le64(&head, 36));
    if capacity == 0 {
        // Its descriptor decides what the data is: files of any name.
        return Err(denied(path, "its data is in other files"));
    }
    let offset = start.checked_mul(512).ok_or_else(|| corrupt("the VMDK header is damaged"))?;
    let count = sectors.saturating_mul(512).min(MOST_EMBEDDED) as usize;
    let descriptor = read_up_to(file, path, offset, count)?;
    let text = String::from_utf8_lossy(&descriptor);
    if descriptor::has_parent(&text) { Err(has_parent(path)) } else { Ok(true) }
}

fn has_parent(path: &Path) -> Error {
    denied(path, "it is the difference to another image")
}

fn denied(path: &Path, why: &str) -> Error {
    Error::denied(format!(
        "{}: {why}, which is not opened; flatten it with qemu-img convert -O qcow2",
        path.display()
    ))
}

fn open_flat(file: LockedFile, path: &Path) -> Result<Flat> {
    let len = crate::file::len(&file, path)?;
    if len > MOST_DESCRIPTOR {
        return Err(Error::corrupt(format!(
            "{}: a descriptor of {len} bytes is longer than any; fetch it again",
            path.display()
        )));
    }
    let descriptor = read_up_to(&file, path, 0, len as usize)?;
    // Other encodings are only seen in comments, and in names that are not opened.
    let text = String::from_utf8_lossy(&descriptor);
    if descriptor::has_parent(&text) {
        return Err(has_parent(path));
    }
    Flat::open(file, path, &text)
}
