//! Where an image is written to, and what is refused before anything is written.

use super::arguments::{ExportArgs, is_uri};
use block::file::sync_directory;
use block::{Device, Error, ErrorKind, Result};
use formats::{Format, Packed};
use rustix::fs::{AtFlags, CWD, RenameFlags};
use rustix::io::Errno;
use std::fs::{File, FileType, Metadata, Permissions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The permissions of a new file, less what the process takes from them.
const NEW: u32 = 0o666;
/// The permissions of a file that takes the place of one until it has that one's: the owner's alone.
const PRIVATE: u32 = 0o600;

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
        let replaced = match std::fs::metadata(path) {
            Ok(metadata) => Some(metadata),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(Error::io(path.display(), e)),
        };
        let present = replaced.as_ref().map(Metadata::file_type);
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
        Ok(Self::File(Replacement::of(path, replaced.as_ref(), args.force)?, format(args, path)?))
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
            "{}: an export is not compressed; pipe it: sojourn image export {} - | {}",
            path.display(),
            args.name,
            packed.packer(&path.display().to_string())
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
/// is there under its own name is whole. As long as it is written it is locked: another export to
/// the same file is refused, and what a killed one left is nobody's.
#[derive(Debug)]
pub(super) struct Replacement {
    /// The path as the user named it.
    named: PathBuf,
    /// Where links lead from there.
    target: PathBuf,
    /// The temporary name.
    partial: PathBuf,
    /// Whose the file is that is there, if one is.
    replaced: Option<Ownership>,
    /// What is there when the file is whole is replaced, too.
    force: bool,
}

/// Whose a file is, and what others may do with it.
#[derive(Debug, Clone, Copy)]
struct Ownership {
    uid: u32,
    gid: u32,
    mode: u32,
}

impl Ownership {
    fn of(file: &Metadata) -> Self {
        Self { uid: file.uid(), gid: file.gid(), mode: file.mode() & 0o777 }
    }
}

impl Replacement {
    fn of(path: &Path, replaced: Option<&Metadata>, force: bool) -> Result<Self> {
        let target = block::file::behind_links(path);
        let Some(name) = target.file_name() else {
            return Err(Error::invalid(format!("{} is not a file's name", path.display())));
        };
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        let partial = target.with_file_name(partial);
        let replaced = replaced.map(Ownership::of);
        Ok(Self { named: path.to_owned(), target, partial, replaced, force })
    }

    /// Makes the file under its temporary name, which `write` then fills, and gives it its own.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when another export writes the file, or it is there
    /// by now and not to be replaced; any error of `write` or the system. Nothing is left then.
    pub(super) async fn fill<T>(
        &self,
        format: Format,
        size: u64,
        write: impl AsyncFnOnce(&dyn Device) -> Result<T>,
    ) -> Result<T> {
        formats::remove_leftover(&self.partial).map_err(|e| match e.kind() {
            ErrorKind::Conflict => e.context(format_args!(
                "{}: another export may be writing it; wait for that, or write to another file",
                self.named.display()
            )),
            _ => e,
        })?;
        let mode = if self.replaced.is_some() { PRIVATE } else { NEW };
        let created = formats::create(&self.partial, format, size, mode).await;
        // It is dropped, and its lock with it, when the file has its own name or none.
        let device = created.map_err(|e| self.in_own_name(e))?;
        let filled = async {
            self.keep_owner()?;
            let written = write(&*device).await?;
            self.finish()?;
            Ok(written)
        };
        filled.await.map_err(|e| {
            let _ = std::fs::remove_file(&self.partial);
            self.in_own_name(e)
        })
    }

    /// Gives the empty file the owner and the permissions of the one that it replaces. A group that
    /// cannot be kept is not replaced by another one that then may read it.
    fn keep_owner(&self) -> Result<()> {
        let Some(Ownership { uid, gid, mut mode }) = self.replaced else { return Ok(()) };
        let fail = |e| Error::io(self.partial.display(), e);
        let no_link = rustix::fs::OFlags::NOFOLLOW.bits().cast_signed();
        let file = File::options().read(true).custom_flags(no_link).open(&self.partial);
        let file = file.map_err(fail)?;
        let made = file.metadata().map_err(fail)?;
        if made.uid() != uid {
            // Only root gives files away; for others it becomes theirs, as any file that they write.
            let _ = std::os::unix::fs::fchown(&file, Some(uid), None);
        }
        if made.gid() != gid && std::os::unix::fs::fchown(&file, None, Some(gid)).is_err() {
            mode &= !0o070;
        }
        file.set_permissions(Permissions::from_mode(mode)).map_err(fail)
    }

    /// Gives the file its name, on stable storage.
    fn finish(&self) -> Result<()> {
        let fail = |e| Error::io(self.named.display(), e);
        if self.force {
            std::fs::rename(&self.partial, &self.target).map_err(fail)?;
        } else {
            match rename_to_free_name(&self.partial, &self.target) {
                Err(Errno::EXIST) => return Err(exists(&self.named)),
                renamed => renamed.map_err(|e| fail(e.into()))?,
            }
        }
        let directory = self.target.parent().filter(|path| !path.as_os_str().is_empty());
        sync_directory(directory.unwrap_or(Path::new(".")))
    }

    /// An error of the temporary file as one of the file that the user named.
    fn in_own_name(&self, error: Error) -> Error {
        let [partial, named] = [&self.partial, &self.named].map(|path| path.display().to_string());
        Error::new(error.kind(), error.message().replace(&partial, &named)).with_source(error)
    }
}

/// Renames a file, and replaces none.
fn rename_to_free_name(from: &Path, to: &Path) -> std::result::Result<(), Errno> {
    match rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        renamed => return renamed,
    }
    // Not on this file system, such as NFS: a second name is not given to what has one, either.
    match rustix::fs::linkat(CWD, from, CWD, to, AtFlags::empty()) {
        Ok(()) => rustix::fs::unlink(from),
        Err(Errno::EXIST) => Err(Errno::EXIST),
        // Nor has it links: looking first is all that is left.
        Err(_) if std::fs::symlink_metadata(to).is_ok() => Err(Errno::EXIST),
        Err(_) => rustix::fs::rename(from, to),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replacement(path: &Path, force: bool) -> Replacement {
        Replacement::of(path, std::fs::metadata(path).ok().as_ref(), force).unwrap()
    }

    #[tokio::test]
    async fn of_two_exports_to_one_file_the_second_is_refused_and_the_first_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.raw");
        for format in [Format::Raw, Format::Qcow2] {
            for force in [false, true] {
                let _ = std::fs::remove_file(&path);
                let (first, second) = (replacement(&path, force), replacement(&path, force));
                let whole = first.fill(format, 1 << 20, async |device| {
                    let error = second.fill(format, 1 << 20, async |_| Ok(())).await.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
                    assert!(error.message().contains("another export"), "{error}");
                    let data = [7; 512];
                    device
                        .write(block::Span::whole(512), &data, block::Durability::Buffered)
                        .await?;
                    device.flush().await
                });
                whole.await.unwrap();
                let written = std::fs::read(&path).unwrap();
                assert!(written.windows(512).any(|piece| piece == [7; 512]), "{format}");
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
            }
        }
    }

    #[tokio::test]
    async fn a_file_that_appears_during_an_export_is_replaced_only_when_that_is_asked_for() {
        for force in [false, true] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("out.raw");
            let appears = async |_: &dyn Device| {
                std::fs::write(&path, b"precious").unwrap();
                Ok(())
            };
            let done = replacement(&path, force).fill(Format::Raw, 512, appears).await;
            let there = std::fs::read(&path).unwrap();
            match force {
                true => assert!(done.is_ok() && there == [0; 512]),
                false => {
                    assert_eq!(done.unwrap_err().kind(), ErrorKind::Conflict);
                    assert_eq!(there, b"precious");
                }
            }
            assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "something is left");
        }
    }

    #[tokio::test]
    async fn a_private_file_is_private_while_it_is_replaced_and_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.raw");
        let mode = |path: &Path| std::fs::metadata(path).unwrap().mode() & 0o777;
        for kept in [0o600, 0o640, 0o664, 0o400] {
            let _ = std::fs::remove_file(&path);
            std::fs::write(&path, b"before").unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(kept)).unwrap();
            let file = replacement(&path, true);
            let fill = async |_: &dyn Device| {
                assert_eq!(mode(&file.partial), kept);
                Ok(())
            };
            file.fill(Format::Raw, 512, fill).await.unwrap();
            assert_eq!((mode(&path), std::fs::read(&path).unwrap().len()), (kept, 512));
        }
    }
}
