//! Kernels that are given for image versions, and go before those in the images' own file systems.
//!
//! A folder holds one directory for each image version, `NAME:TAG`, with the files and `boot.toml`, which names them. A
//! kernel that takes the place of another one has files of its own, so that whoever began to read the other one does
//! not get half of each; `boot.toml` is replaced when they are on stable storage, and then the old files go.

use super::tree::{FileTree, LONGEST_INITRD, LONGEST_KERNEL, PIECE};
use crate::registry::replace_file;
use crate::script;
use block::fs::{File, FsPath, Open};
use block::lock::{LockFile, Taking};
use block::{ByteSize, Error, Result};
use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// What says which files count.
const INDEX: &str = "boot.toml";
/// Locked while the folder is changed.
const LOCK: &str = "lock";
/// The longest index, in bytes.
const LONGEST_INDEX: u64 = 1 << 20;
/// The longest command line that kernels of x86-64 take (COMMAND_LINE_SIZE).
const LONGEST_COMMAND_LINE: usize = 2048;
/// What the index begins with.
const HEADER: &str = "# Written by `sojourn image boot set`.\n\n";

/// A kernel that was given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenKernel {
    /// The kernel's parameters.
    #[serde(default)]
    pub append: Vec<String>,
    /// The kernel.
    pub kernel: GivenFile,
    /// The initial RAM disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd: Option<GivenFile>,
    /// Its directory.
    #[serde(skip)]
    pub(super) directory: PathBuf,
}

/// A file of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GivenFile {
    /// Its name in the directory.
    pub file: String,
    /// What it was called where it came from.
    pub name: String,
    /// Its bytes.
    pub bytes: u64,
}

/// What is to be given.
#[derive(Debug, Clone)]
pub struct KernelToGive {
    /// The kernel.
    pub kernel: PathBuf,
    /// The initial RAM disk.
    pub initrd: Option<PathBuf>,
    /// The kernel's parameters, as in [`parameters`].
    pub append: Vec<String>,
}

/// The words of a command line, each of which an iPXE script can hold.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) naming the one that cannot stand there.
pub fn parameters(text: &str) -> Result<Vec<String>> {
    if text.len() > LONGEST_COMMAND_LINE {
        return Err(Error::invalid(format!(
            "the kernel takes no more than {LONGEST_COMMAND_LINE} bytes of parameters"
        )));
    }
    match text.split_whitespace().find(|word| script::word(word).is_err()) {
        Some(word) => Err(Error::invalid(format!(
            "{word:?} cannot stand in an iPXE script: a parameter has letters, digits and signs, but no quotation \
             mark, no backslash and no ${{"
        ))),
        None => Ok(text.split_whitespace().map(str::to_owned).collect()),
    }
}

/// The kernels that were given.
#[derive(Debug, Clone)]
pub struct GivenKernels {
    folder: FsPath,
}

impl GivenKernels {
    /// Those in a folder, which need not be there yet.
    pub fn of(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// The one of an image version; `None` when none was given, or there can be none with such a name.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when its index is damaged; [`Denied`](block::ErrorKind::Denied) or
    /// [`Unavailable`](block::ErrorKind::Unavailable) when it cannot be read.
    pub fn get(&self, image: &str) -> Result<Option<GivenKernel>> {
        if !is_name(image) {
            return Ok(None);
        }
        let directory = self.folder.join(image);
        let index = directory.join(INDEX);
        let file = match index.open(Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(index.error(e)),
        };
        let bytes = file.read_to_end(0, LONGEST_INDEX).map_err(|e| index.error(e))?;
        let text = String::from_utf8_lossy(&bytes);
        let given = toml::from_str::<GivenKernel>(&text).map_err(|e| e.to_string());
        let given = given.and_then(|given| {
            let are_here = given.files().all(is_name);
            are_here.then_some(given).ok_or_else(|| "it names a file elsewhere".to_owned())
        });
        let given = given.map_err(|why| {
            Error::invalid(format!(
                "{} is damaged ({why}): give the kernel of image {image} again, with `sojourn image boot set`",
                index.display()
            ))
        })?;
        Ok(Some(GivenKernel { directory: directory.to_path_buf(), ..given }))
    }

    /// Gives an image version a kernel, in place of any other one; after that it survives a loss of power.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) or [`Denied`](block::ErrorKind::Denied) when a file cannot be read,
    /// [`Invalid`](block::ErrorKind::Invalid) when one is none, empty or too long;
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody else changes kernels at the same time;
    /// [`NoSpace`](block::ErrorKind::NoSpace) or [`Unavailable`](block::ErrorKind::Unavailable) from the home's disk.
    pub fn set(&self, image: &str, give: &KernelToGive) -> Result<GivenKernel> {
        if !is_name(image) {
            return Err(Error::invalid(format!("{image:?} is no image version")));
        }
        let kernel = FileToCopy::open(&give.kernel, LONGEST_KERNEL)?;
        let initrd = give.initrd.as_deref().map(|path| FileToCopy::open(path, LONGEST_INITRD));
        let initrd = initrd.transpose()?;
        let directory = self.folder.join(image);
        self.folder.create_dir_all().map_err(|e| self.folder.error(e))?;
        let _lock = self.lock()?;
        directory.create_dir_all().map_err(|e| directory.error(e))?;
        for path in [&self.folder.above(), &self.folder] {
            path.sync_directory()?;
        }
        let number = free_number(&directory)?;
        let given = GivenKernel {
            append: give.append.clone(),
            kernel: kernel.copy_to(&directory, format!("kernel-{number}"))?,
            initrd: match initrd {
                Some(initrd) => Some(initrd.copy_to(&directory, format!("initrd-{number}"))?),
                None => None,
            },
            directory: directory.to_path_buf(),
        };
        directory.sync_directory()?;
        let text = toml::to_string_pretty(&given)
            .map_err(|e| Error::internal("cannot write which kernel was given").with_source(e))?;
        replace_file(&directory.join(INDEX), format!("{HEADER}{text}").as_bytes())?;
        // What stays is swept away another time.
        let _ = sweep(&directory, &given);
        Ok(given)
    }

    /// Takes the kernel of an image version back; says whether there was one.
    ///
    /// # Errors
    /// [`Conflict`](block::ErrorKind::Conflict) when somebody else changes kernels at the same time;
    /// [`Denied`](block::ErrorKind::Denied) or [`Unavailable`](block::ErrorKind::Unavailable) from the home's disk.
    pub fn unset(&self, image: &str) -> Result<bool> {
        let directory = self.folder.join(image);
        if !is_name(image) || !directory.is_dir() {
            return Ok(false);
        }
        let _lock = self.lock()?;
        let index = directory.join(INDEX);
        let was_there = match index.remove_synced() {
            Ok(()) => true,
            Err(e) if e.kind() == io::ErrorKind::NotFound => false,
            Err(e) => return Err(index.error(e)),
        };
        directory.remove_dir_all().map_err(|e| directory.error(e))?;
        self.folder.sync_directory()?;
        Ok(was_there)
    }

    fn lock(&self) -> Result<LockFile> {
        match LockFile::take(self.folder.join(LOCK))? {
            Taking::Ours(lock) => Ok(lock),
            Taking::Held(holder) => Err(Error::conflict(format!(
                "the kernels of images are being changed by {holder}; try again"
            ))),
            Taking::Replaced => {
                Err(Error::conflict("the kernels of images are being changed; try again"))
            }
        }
    }
}

impl GivenKernel {
    /// The names of its files.
    fn files(&self) -> impl Iterator<Item = &str> {
        [Some(&self.kernel), self.initrd.as_ref()].into_iter().flatten().map(|it| it.file.as_str())
    }
}

/// Whether this may be the name of a file in a directory.
fn is_name(name: &str) -> bool {
    !name.is_empty() && !name.starts_with('.') && !name.contains(['/', '\0']) && name != LOCK
}

/// A number that no file of a directory has.
fn free_number(directory: &FsPath) -> Result<u64> {
    let entries = directory.read_dir().map_err(|e| directory.error(e))?;
    let number = |name: &str| name.rsplit_once('-').and_then(|(_, number)| number.parse().ok());
    let taken = entries.iter().filter_map(|entry| entry.name.to_str().and_then(number));
    Ok(taken.max().unwrap_or(0_u64).saturating_add(1))
}

/// Removes the files that do not count any more.
fn sweep(directory: &FsPath, given: &GivenKernel) -> io::Result<()> {
    for entry in directory.read_dir()? {
        let counts = |name: &str| name == INDEX || given.files().any(|file| file == name);
        if !entry.name.to_str().is_some_and(counts) {
            directory.join(&entry.name).remove_file()?;
        }
    }
    Ok(())
}

/// A file that is to be given.
struct FileToCopy {
    path: FsPath,
    file: File,
    length: u64,
}

impl FileToCopy {
    fn open(path: &Path, longest: u64) -> Result<Self> {
        let path = FsPath::from(path);
        let file = path.open(Open::READ).map_err(|e| path.error(e))?;
        let found = file.metadata().map_err(|e| path.error(e))?;
        let wrong = |why: String| Err(Error::invalid(format!("{}: {why}", path.display())));
        if found.kind != block::fs::FileType::File {
            return wrong("is not a file".to_owned());
        }
        match found.len {
            0 => wrong("is empty".to_owned()),
            length if length > longest => wrong(format!(
                "has {}, and no more than {} are taken",
                ByteSize(length),
                ByteSize(longest)
            )),
            length => Ok(Self { path, file, length }),
        }
    }

    /// Copies it; its bytes are on stable storage then.
    fn copy_to(&self, directory: &FsPath, file: String) -> Result<GivenFile> {
        let path = directory.join(&file);
        let to = path.open(Open::NEW.private()).map_err(|e| path.error(e))?;
        let mut at = 0;
        while at < self.length {
            let piece = (self.length - at).min(PIECE as u64);
            let piece = self.file.read_range(at, piece as usize).map_err(|e| self.path.error(e))?;
            if piece.is_empty() {
                let shown = self.path.display();
                return Err(Error::conflict(format!("{shown}: becomes shorter while it is read")));
            }
            to.write_all_at(&piece, at).map_err(|e| path.error(e))?;
            at += piece.len() as u64;
        }
        to.sync_all().map_err(|e| path.error(e))?;
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(GivenFile { file, name, bytes: self.length })
    }
}

/// The directory of a kernel that was given, read as the parts of disks are.
pub(super) struct GivenFiles(FsPath);

impl GivenFiles {
    pub(super) fn of(directory: &Path) -> Self {
        Self(directory.into())
    }
}

impl FileTree for GivenFiles {
    fn uuid(&self) -> String {
        String::new()
    }

    fn label(&self) -> String {
        String::new()
    }

    fn names(&self, _: &str) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    fn length(&self, path: &str) -> Result<Option<u64>> {
        let path = self.0.join(path);
        match path.metadata() {
            Ok(found) => Ok(Some(found.len)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(path.error(e)),
        }
    }

    fn append_range(&self, path: &str, range: Range<u64>, to: &mut Vec<u8>) -> Result<bool> {
        let path = self.0.join(path);
        let file = match path.open(Open::READ) {
            Ok(file) => file,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(e) => return Err(path.error(e)),
        };
        to.reserve_exact(range.end.saturating_sub(range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let piece = (range.end - at).min(PIECE as u64) as usize;
            let piece = file.read_range(at, piece).map_err(|e| path.error(e))?;
            if piece.is_empty() {
                return Err(Error::corrupt(format!("{} ends early", path.display())));
            }
            to.extend_from_slice(&piece);
            at += piece.len() as u64;
        }
        Ok(true)
    }

    fn has(&self, path: &str) -> bool {
        self.0.join(path).exists()
    }
}
