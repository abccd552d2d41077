//! VMware disks: which are read, and which files they may name.
//!
//! A VMDK is a text descriptor, in a file of its own beside flat extents, or inside a sparse file
//! that holds all data. Source of the format: VMware, "Virtual Disk Format 5.0".
//!
//! A descriptor can name any file. Flat extents are opened only where they carry the names that
//! VMware gives them: `NAME-flat.vmdk` or `NAME-fNNN.vmdk` in the directory of `NAME.vmdk`. So an
//! image that came from somewhere else cannot make another file readable.

use crate::convert::{self, Tool};
use crate::driver::{self, ImageDriver, Traits};
use crate::file::{le64, read_up_to};
use block::{Device, Error, ErrorKind, Result, offload};
use imago::file::File as ImagoFile;
use imago::format::gate::ImplicitOpenGate;
use imago::vmdk::Vmdk;
use imago::{FormatAccess, FormatDriverBuilder, StorageOpenOptions};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio::runtime::Handle;

/// The longest embedded descriptor that is looked at, in bytes (QEMU's limit is 20 sectors).
const MOST_DESCRIPTOR: u64 = 64 << 10;

/// Opens a VMDK image for reading.
pub(crate) async fn open(path: &Path, scratch: &Path) -> Result<Arc<dyn Device>> {
    let owned = path.to_owned();
    let runtime = Handle::current();
    let flat = offload(move || {
        let path = owned.as_path();
        let file = crate::file::open(path, true)?;
        if is_sparse(&file, path)? {
            return Ok(None);
        }
        open_flat(file, path, &runtime).map(|device| Some(Arc::new(device) as Arc<dyn Device>))
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
/// [`Denied`](ErrorKind::Denied) when it is sparse and needs other files.
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
    let count = sectors.saturating_mul(512).min(MOST_DESCRIPTOR) as usize;
    let descriptor = read_up_to(file, path, offset, count)?;
    let text = String::from_utf8_lossy(&descriptor);
    let parent =
        text.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| {
            match key.trim().to_ascii_lowercase().as_str() {
                "parentcid" => !value.trim().trim_matches('\0').eq_ignore_ascii_case("ffffffff"),
                "parentfilenamehint" => true,
                _ => false,
            }
        });
    if parent { Err(denied(path, "it is the difference to another image")) } else { Ok(true) }
}

fn denied(path: &Path, why: &str) -> Error {
    Error::denied(format!(
        "{}: {why}, which is not opened; flatten it with qemu-img convert -O qcow2",
        path.display()
    ))
}

fn open_flat(file: File, path: &Path, runtime: &Handle) -> Result<ImageDriver> {
    let siblings = Siblings::of(path);
    let image = driver::guard(path, || {
        runtime.block_on(async {
            let options = StorageOpenOptions::new().filename(path);
            let file = ImagoFile::from_open_file(file, options)?;
            Vmdk::<ImagoFile>::builder(file).open(siblings).await
        })
    })?
    .map_err(|e| {
        let error = driver::error(path, e);
        match error.kind() {
            ErrorKind::Unsupported => {
                let message =
                    format!("{}; convert it with qemu-img convert -O qcow2", error.message());
                Error::unsupported(message).with_source(error)
            }
            _ => error,
        }
    })?;
    let traits = Traits { read_only: true, unit: 1, zero_marks: false };
    Ok(ImageDriver::new(FormatAccess::new(image), path, traits))
}

/// Lets a descriptor open the extents of its own name and place, and nothing else.
struct Siblings {
    directory: PathBuf,
    stem: String,
    /// The descriptor's, with its dot; tools give extents the same.
    extension: String,
}

impl Siblings {
    fn of(path: &Path) -> Self {
        let extension = path.extension().map(|e| format!(".{}", e.to_string_lossy()));
        Self {
            directory: path.parent().unwrap_or(Path::new("")).to_owned(),
            stem: path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
            extension: extension.unwrap_or_default(),
        }
    }

    fn allows(&self, extent: &Path) -> bool {
        let Some(name) = extent.file_name().and_then(|name| name.to_str()) else { return false };
        // The whole path is compared, so "sub/../NAME-flat.vmdk" is another file.
        if extent.as_os_str() != self.directory.join(name).as_os_str() {
            return false;
        }
        let rest =
            name.strip_prefix(&self.stem).and_then(|rest| rest.strip_suffix(&self.extension));
        match rest {
            Some("-flat") => true,
            Some(rest) => rest
                .strip_prefix("-f")
                .is_some_and(|n| n.len() == 3 && n.bytes().all(|b| b.is_ascii_digit())),
            None => false,
        }
    }
}

impl ImplicitOpenGate<ImagoFile> for Siblings {
    async fn open_format<F: FormatDriverBuilder<ImagoFile>>(
        &mut self,
        _: F,
    ) -> io::Result<FormatAccess<ImagoFile>> {
        Err(io::Error::new(io::ErrorKind::PermissionDenied, "it refers to another image"))
    }

    async fn open_storage(&mut self, options: StorageOpenOptions) -> io::Result<ImagoFile> {
        let extent = options.get_filename().unwrap_or(Path::new(""));
        if !self.allows(extent) {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                format!(
                    "an extent may only be {0}-flat{1} or {0}-fNNN{1} beside the descriptor; \
                     convert it with qemu-img convert -O qcow2",
                    self.stem, self.extension
                ),
            ));
        }
        if !std::fs::symlink_metadata(extent)?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::PermissionDenied,
                "an extent must be a file itself, not a link or a device",
            ));
        }
        let file = crate::file::open(extent, true)
            .map_err(|e| io::Error::new(io::ErrorKind::ResourceBusy, e.to_string()))?;
        ImagoFile::from_open_file(file, options.write(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_extents_of_its_own_name_and_place_are_opened() {
        let siblings = Siblings::of(Path::new("/images/win.vmdk"));
        for good in ["/images/win-flat.vmdk", "/images/win-f001.vmdk"] {
            assert!(siblings.allows(Path::new(good)), "{good}");
        }
        for bad in [
            "/etc/shadow",
            "/images/other-flat.vmdk",
            "/images/win.vmdk",
            "/images/sub/win-flat.vmdk",
            "/images/sub/../win-flat.vmdk",
            "/images/win-f1.vmdk",
            "/images/win-flat.vmdk/..",
            "",
        ] {
            assert!(!siblings.allows(Path::new(bad)), "{bad}");
        }
    }
}
