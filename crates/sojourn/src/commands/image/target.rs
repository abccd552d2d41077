//! Where an image is written to, and what is refused before anything is written.

use super::arguments::{ExportArgs, is_uri};
use block::{Error, Result};
use formats::{Format, Packed};
use std::fs::FileType;
use std::io::IsTerminal;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

/// Where an image is written to.
#[derive(Debug)]
pub(super) enum ExportTarget {
    /// An NBD server.
    Remote,
    /// Standard output, as raw bytes.
    Stdout,
    /// A block device, as raw bytes.
    BlockDevice,
    /// A file.
    File(Replacement, Format),
}

impl ExportTarget {
    /// What the user asked for.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for what no image can be written to,
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a format that is only read,
    /// [`Conflict`](block::ErrorKind::Conflict) for what is there already, unless it is to be replaced.
    pub(super) fn of(args: &ExportArgs) -> Result<Self> {
        let raw_only = |what: &str| match args.format {
            None | Some(Format::Raw) => Ok(()),
            Some(_) => {
                Err(Error::invalid(format!("--format is for files; {what} takes raw bytes")))
            }
        };
        if is_uri(&args.target) {
            return raw_only("an NBD server").map(|()| Self::Remote);
        }
        if args.target == "-" {
            raw_only("standard output")?;
            return match std::io::stdout().is_terminal() {
                true => Err(Error::invalid(
                    "standard output is a terminal; pipe it somewhere, or name a file",
                )),
                false => Ok(Self::Stdout),
            };
        }
        let path = Path::new(&args.target);
        let present = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata.file_type()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io(path.display(), e)),
        };
        if let Some(what) = present.and_then(not_written_to) {
            return Err(Error::invalid(format!(
                "{}: {what}; name a file or a block device, or - for standard output",
                path.display()
            )));
        }
        if present.is_some() && !args.force {
            return Err(exists(path));
        }
        if present.is_some_and(|kind| kind.is_block_device()) {
            return raw_only("a block device").map(|()| Self::BlockDevice);
        }
        Ok(Self::File(Replacement::of(path)?, format(args, path)?))
    }
}

/// What stands where no image can be written, in words.
fn not_written_to(kind: FileType) -> Option<&'static str> {
    match () {
        () if kind.is_file() || kind.is_block_device() => None,
        () if kind.is_dir() => Some("a directory"),
        () if kind.is_char_device() => Some("a character device"),
        () if kind.is_fifo() => Some("a pipe"),
        () if kind.is_socket() => Some("a socket"),
        () => Some("neither a file nor a block device"),
    }
}

/// The error for a file that is not replaced without being told.
pub(crate) fn exists(path: &Path) -> Error {
    Error::conflict(format!(
        "{} exists already; write to another file, or replace it with --force",
        path.display()
    ))
}

/// The format of a file: as it is said, else as its name promises.
fn format(args: &ExportArgs, path: &Path) -> Result<Format> {
    if args.format.is_none()
        && let Some(packed) = Packed::by_name(path)
    {
        return Err(Error::unsupported(format!(
            "{1}: an export is not compressed; pipe it: sojourn image export {0} - | {packed} > {1}",
            args.name,
            path.display()
        )));
    }
    let format = args.format.or_else(|| Format::by_name(path)).unwrap_or(Format::Raw);
    if format.writable() {
        return Ok(format);
    }
    Err(Error::unsupported(format!(
        "{}: {format} images are only read; write raw or qcow2, and say so by the name or --format",
        path.display()
    )))
}

/// A file that is written under a temporary name beside the one that it then replaces, so that what
/// is there under its own name is whole.
#[derive(Debug)]
pub(super) struct Replacement {
    /// The path as the user named it.
    named: PathBuf,
    /// Where links lead from there.
    target: PathBuf,
    /// The temporary name.
    pub(super) partial: PathBuf,
}

impl Replacement {
    fn of(path: &Path) -> Result<Self> {
        let target = block::file::behind_links(path);
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("{} is not a file's name", path.display())));
        };
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        Ok(Self { named: path.to_owned(), partial: target.with_file_name(partial), target })
    }

    /// Takes away what an earlier export left.
    pub(super) fn clear(&self) {
        let _ = std::fs::remove_file(&self.partial);
    }

    /// Gives the file its name.
    pub(super) fn finish(&self) -> Result<()> {
        std::fs::rename(&self.partial, &self.target).map_err(|e| Error::io(self.named.display(), e))
    }

    /// An error of the temporary file as one of the file that the user named.
    pub(super) fn named(&self, error: Error) -> Error {
        let [partial, named] = [&self.partial, &self.named].map(|path| path.display().to_string());
        Error::new(error.kind(), error.message().replace(&partial, &named)).with_source(error)
    }
}
