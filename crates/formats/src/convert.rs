//! Formats that are read by converting them: `qemu-img` writes a temporary raw file.

use crate::raw::Raw;
use crate::{Format, child, truncated, vhd};
use block::reserve::Volume;
use block::{ByteSize, Device, Error, ErrorKind, RandomFile, Result, offload};
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// What a conversion leaves of the file system that it writes to: this part, and so many bytes at the most. It is
/// often that of disks in use, whose guests are refused new blocks when there is less.
const KEPT_PART: u64 = 8;
const MOST_KEPT: u64 = 1 << 30;
/// How often is looked for what is left.
const LOOK: Duration = Duration::from_millis(100);

/// What of the tool's messages is passed on, in bytes.
const MOST_MESSAGE: usize = 500;

/// A driver of `qemu-img`, which is told what to read: it never guesses a format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Qcow2,
    Vmdk,
    Vpc,
    Vhdx,
    Vdi,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vpc => "vpc",
            Self::Vhdx => "vhdx",
            Self::Vdi => "vdi",
        }
    }

    /// The image as the tool takes it: no other file is opened, whatever its header says.
    fn source(self, path: &str) -> String {
        let mut image = serde_json::json!({
            "driver": self.name(),
            "file": { "driver": "file", "filename": path },
        });
        match self {
            Self::Qcow2 | Self::Vmdk => image["backing"] = serde_json::Value::Null,
            // Else it takes the size from the geometry, unless it knows who made the image.
            Self::Vpc => image["force_size_calc"] = "current_size".into(),
            Self::Vhdx | Self::Vdi => {}
        }
        format!("json:{image}")
    }
}

/// Opens a VHD, VHDX or VDI image for reading.
pub(crate) async fn open(path: &Path, format: Format, scratch: &Path) -> Result<Arc<dyn Device>> {
    let tool = match format {
        Format::Vhd => Tool::Vpc,
        Format::Vhdx => Tool::Vhdx,
        Format::Vdi => Tool::Vdi,
        other => return Err(Error::internal(format!("{other} images are not converted"))),
    };
    with_tool(path, tool, scratch).await
}

/// Converts an image into a raw file in `scratch`, and opens that for reading. The file has no
/// name: its room is given back when the device is dropped, or this process ends.
pub(crate) async fn with_tool(path: &Path, tool: Tool, scratch: &Path) -> Result<Arc<dyn Device>> {
    with_tool_in(path, tool, scratch, Volume::of).await
}

/// The same, where `look` tells the room that there is.
async fn with_tool_in(
    path: &Path,
    tool: Tool,
    scratch: &Path,
    look: fn(&Path) -> Result<Volume>,
) -> Result<Arc<dyn Device>> {
    let owned = path.to_owned();
    let size = offload(move || check(&owned, tool)).await?;
    let absolute = std::path::absolute(path).map_err(|e| Error::io(path.display(), e))?;
    let Some(name) = absolute.to_str() else {
        return Err(Error::invalid(format!(
            "{}: the path is not UTF-8; give the file another name",
            path.display()
        )));
    };
    // Without a name from the beginning: nothing is left of it, however this process ends.
    let raw = tempfile::tempfile_in(scratch).map_err(|e| Error::io(scratch.display(), e))?;
    let target = raw.try_clone().map_err(|e| Error::io(scratch.display(), e))?;
    let mut command = Command::new("qemu-img");
    command
        .args(["convert", "-q", "-O", "raw"])
        .arg(tool.source(name))
        .arg("/proc/self/fd/0")
        .env("LC_ALL", "C")
        .stdin(target)
        .stdout(Stdio::null());
    let ended = tokio::select! {
        biased;
        short = until_short(path, scratch, look) => return Err(short),
        ended = child::run(command) => ended?,
    };
    let ended = ended.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::unsupported(format!(
            "{}: {} images are read with qemu-img, which is not installed; install qemu-utils, or \
             convert it to qcow2 elsewhere",
            path.display(),
            tool.name()
        )),
        _ => Error::io("qemu-img", e),
    })?;
    if !ended.status.success() {
        return Err(failure(path, scratch, &ended.errors));
    }
    let path = path.to_owned();
    offload(move || {
        let raw = Raw::new(RandomFile::from_file(raw, &path), true)?;
        match size.filter(|size| *size != raw.size()) {
            None => Ok(Arc::new(raw) as Arc<dyn Device>),
            Some(size) => Err(Error::corrupt(format!(
                "{}: the disk has {size} bytes, and qemu-img made {} of it; convert it to qcow2 where it \
                 was made",
                path.display(),
                raw.size()
            ))),
        }
    })
    .await
}

/// Waits until the file system of `scratch` has no more left than is kept; says so.
async fn until_short(path: &Path, scratch: &Path, look: fn(&Path) -> Result<Volume>) -> Error {
    loop {
        let place = scratch.to_owned();
        if let Ok(found) = offload(move || look(&place)).await
            && !found.is_unlimited()
            && found.available < kept(&found)
        {
            return Error::no_space(format!(
                "{}: to convert {} would leave less than {} there, which disks need; free some, or convert it \
                 elsewhere",
                scratch.display(),
                path.display(),
                ByteSize(kept(&found))
            ));
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn kept(volume: &Volume) -> u64 {
    (volume.total / KEPT_PART).min(MOST_KEPT)
}

/// Refuses what the tool would read without saying that something is missing. Returns the size of the
/// disk in bytes, where the tool may have another idea of it.
fn check(path: &Path, tool: Tool) -> Result<Option<u64>> {
    let file = crate::file::open(path, true)?;
    match tool {
        Tool::Vpc => vhd::check(&file, path).map(Some),
        Tool::Vdi => truncated::vdi(&file, path).map(|()| None),
        Tool::Vmdk => truncated::vmdk(&file, path).map(|()| None),
        Tool::Qcow2 | Tool::Vhdx => Ok(None),
    }
}

fn failure(path: &Path, scratch: &Path, stderr: &[u8]) -> Error {
    let text = String::from_utf8_lossy(&stderr[..stderr.len().min(MOST_MESSAGE)]);
    let lines = text.trim().lines().map(|line| line.trim_start_matches("qemu-img: "));
    let text = lines.collect::<Vec<_>>().join("; ");
    if text.contains("No space left on device") || text.contains("File too large") {
        return Error::no_space(format!(
            "{}: no room to convert {}; free some, or convert it elsewhere",
            scratch.display(),
            path.display()
        ));
    }
    if text.contains("lock") && text.contains("Is another process using the image") {
        return Error::conflict(format!(
            "{}: in use by another process; stop that first",
            path.display()
        ));
    }
    Error::new(ErrorKind::Corrupt, format!("{}: qemu-img cannot read it: {text}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// What the file system is said to have left.
    static AVAILABLE: AtomicU64 = AtomicU64::new(0);

    #[tokio::test]
    async fn a_conversion_ends_before_it_takes_the_room_that_disks_need() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image.vdi");
        let mut create = Command::new("qemu-img");
        create.args(["create", "-q", "-f", "vdi"]).arg(&path).arg("64M");
        if !create.status().is_ok_and(|status| status.success()) {
            eprintln!("skipped: qemu-img is not installed");
            return;
        }
        let look =
            |_: &Path| Ok(Volume { total: 80 << 30, available: AVAILABLE.load(Ordering::Relaxed) });
        let convert = || with_tool_in(&path, Tool::Vdi, dir.path(), look);
        AVAILABLE.store(MOST_KEPT, Ordering::Relaxed);
        assert_eq!(convert().await.unwrap().size(), 64 << 20);
        AVAILABLE.store(MOST_KEPT - 1, Ordering::Relaxed);
        let error = convert().await.err().unwrap();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().contains("would leave less than 1 GiB"), "{error}");
    }
}
