//! From a disk to its kernel.

use super::BootFile;
use super::file_systems::{self, FoundPart};
use super::given::{GivenFile, GivenFiles, GivenKernel};
use super::look::{self, BootPiece, BootPlan};
use super::partitions;
use super::root::{self, Root, unsupported};
use super::source::DiskBytes;
use super::tree::{FileTree, LONGEST_INITRD, LONGEST_KERNEL};
use block::{Device, Error, Result};
use bytes::Bytes;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::runtime::Handle;

/// Parameters that are of another way to start, and would only make the kernel wait.
const DROPPED: [&str; 10] = [
    "root=",
    "nbdroot=",
    "nbddev=",
    "ip=",
    "initrd=",
    "BOOT_IMAGE=",
    "BOOTIF=",
    "resume=",
    "boot=",
    "sojourn.disk=",
];
/// What a system has whose initial RAM disk is of initramfs-tools.
const INITRAMFS_TOOLS: &str = "/usr/share/initramfs-tools/init";
/// What a system has whose initial RAM disk is of dracut, and makes disks of machines without one.
const DRACUT: [&str; 2] =
    ["/usr/lib/dracut/dracut-init.sh", "/usr/lib/dracut/modules.d/95sojourn/module-setup.sh"];

/// What the initial RAM disk of a disk can make of a root over NBD. Where both are installed it is of one of them, and
/// takes no harm of what is for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NbdRoot {
    /// It may be of initramfs-tools, as Debian's: then it takes our [boot script](crate::overlay).
    pub boot_script: bool,
    /// It may be of dracut, which has our module: then the parameters are enough.
    pub dracut_module: bool,
}

/// Where the files of a boot are.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BootOrigin {
    /// In the disk's part of this number; 0 is the whole disk.
    Part(u32),
    /// In a directory of this machine.
    Given(PathBuf),
}

/// What a disk would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootFiles {
    origin: BootOrigin,
    root: Root,
    boot: BootPlan,
    nbd_root: NbdRoot,
    /// The lengths that the kernel and the initial RAM disk had.
    lengths: [u64; 2],
}

impl BootFiles {
    /// The kernel's parameter `root` for a disk that it calls `disk`, such as `/dev/nbd0`.
    pub fn root(&self, disk: &str) -> String {
        match &self.root {
            Root::Part(0) => disk.to_owned(),
            Root::Part(number) => format!("{disk}p{number}"),
            Root::Named(name) => name.clone(),
        }
    }

    /// The kernel's parameters but for its root.
    pub fn arguments(&self) -> &[String] {
        &self.boot.arguments
    }

    /// The path of the kernel, or of what has it.
    pub fn kernel(&self) -> &str {
        &self.boot.kernel.path
    }

    /// Whether there is an initial RAM disk.
    pub fn has_initrd(&self) -> bool {
        !self.boot.initrds.is_empty()
    }

    /// What the initial RAM disk can make of a root over NBD.
    pub fn nbd_root(&self) -> NbdRoot {
        self.nbd_root
    }

    /// How many bytes [`read`](Self::read) gives at the most, behind those that are put in front.
    pub fn length(&self, which: BootFile) -> u64 {
        let [kernel, initrd] = self.lengths;
        match which {
            BootFile::Kernel => kernel.min(LONGEST_KERNEL),
            BootFile::Initrd => initrd.min(LONGEST_INITRD),
        }
    }

    /// Reads one of them, with something in front of it.
    ///
    /// # Errors
    /// [`NotFound`](block::ErrorKind::NotFound) when it is not there any more,
    /// [`Invalid`](block::ErrorKind::Invalid) when it is too long or longer than it was when it was found, and any
    /// error from the device.
    pub async fn read(
        &self,
        device: Arc<dyn Device>,
        which: BootFile,
        front: Bytes,
    ) -> Result<Bytes> {
        let (files, runtime) = (self.clone(), Handle::current());
        let read = move || files.read_from(&DiskBytes::new(device, runtime), which, &front);
        block::offload(read).await
    }

    fn read_from(&self, disk: &DiskBytes, which: BootFile, front: &[u8]) -> Result<Bytes> {
        let tree: Box<dyn FileTree> = match &self.origin {
            BootOrigin::Given(directory) => Box::new(GivenFiles::of(directory)),
            BootOrigin::Part(number) => {
                let parts = partitions::read(disk)?;
                let part = parts.iter().find(|part| part.number == *number);
                let tree = part.map(|part| file_systems::open(disk, part)).transpose()?.flatten();
                tree.ok_or_else(|| Error::not_found("the disk was divided anew meanwhile"))?
            }
        };
        let longest = self.length(which).saturating_add(joined(front.len() as u64));
        let mut all = Vec::new();
        all.reserve_exact(longest as usize);
        all.extend_from_slice(front);
        for piece in pieces(&self.boot, which) {
            all.resize(joined(all.len() as u64) as usize, 0);
            let room = longest.saturating_sub(all.len() as u64);
            if !append(tree.as_ref(), piece, room, &mut all)? {
                return Err(Error::not_found(format!("{} is not there any more", piece.path)));
            }
        }
        Ok(all.into())
    }
}

fn pieces(boot: &BootPlan, which: BootFile) -> &[BootPiece] {
    match which {
        BootFile::Kernel => std::slice::from_ref(&boot.kernel),
        BootFile::Initrd => &boot.initrds,
    }
}

/// Appends a piece of at most so many bytes; `false` when its file is not there.
fn append(tree: &dyn FileTree, piece: &BootPiece, room: u64, to: &mut Vec<u8>) -> Result<bool> {
    let path = &piece.path;
    match &piece.range {
        None => tree.append(path, room, to),
        Some(range) if range.end - range.start <= room => {
            tree.append_range(path, range.clone(), to)
        }
        Some(_) => Err(Error::invalid(format!("a part of {path} has more than {room} bytes"))),
    }
}

/// Where another file begins behind so many bytes: several make one (Linux,
/// Documentation/driver-api/early-userspace/buffer-format).
fn joined(length: u64) -> u64 {
    length.checked_next_multiple_of(4).unwrap_or(u64::MAX)
}

/// How long what is read will be.
fn length(tree: &dyn FileTree, boot: &BootPlan, which: BootFile) -> Result<u64> {
    let mut all = 0;
    for piece in pieces(boot, which) {
        let length = match &piece.range {
            Some(range) => range.end - range.start,
            None => tree.length(&piece.path)?.unwrap_or(0),
        };
        all = joined(all).saturating_add(length);
    }
    Ok(all)
}

/// Finds what a disk would start.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) with the way out when nothing is found, and any error from the
/// device.
pub async fn find(device: Arc<dyn Device>) -> Result<BootFiles> {
    with_parts(device, |parts| {
        let none = "no kernel was found on it, or it is in a file system that is not known here";
        let choice = look::first_choice(parts)?.ok_or_else(|| unsupported(none))?;
        complete(parts, BootOrigin::Part(choice.part), choice.tree, choice.boot)
    })
    .await
}

/// The same with a kernel that was given, for the root of the disk.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when nothing says which root that is, and any error from the device
/// and from looking at what was given.
pub async fn find_given(device: Arc<dyn Device>, given: GivenKernel) -> Result<BootFiles> {
    with_parts(device, move |parts| {
        let files = GivenFiles::of(&given.directory);
        let piece = |file: GivenFile| BootPiece { path: file.file, range: None };
        let boot = BootPlan {
            kernel: piece(given.kernel),
            initrds: given.initrd.into_iter().map(piece).collect(),
            arguments: given.append,
        };
        complete(parts, BootOrigin::Given(given.directory), &files, boot)
    })
    .await
}

async fn with_parts(
    device: Arc<dyn Device>,
    work: impl FnOnce(&[FoundPart]) -> Result<BootFiles> + Send + 'static,
) -> Result<BootFiles> {
    let runtime = Handle::current();
    block::offload(move || work(&file_systems::all(&DiskBytes::new(device, runtime))?)).await
}

fn complete(
    parts: &[FoundPart],
    origin: BootOrigin,
    tree: &dyn FileTree,
    mut boot: BootPlan,
) -> Result<BootFiles> {
    let lengths = [BootFile::Kernel, BootFile::Initrd];
    let [kernel, initrd] = lengths.map(|which| length(tree, &boot, which));
    let lengths = [kernel?, initrd?];
    let (part, is_given) = match &origin {
        BootOrigin::Part(number) => (Some(*number), false),
        BootOrigin::Given(_) => (None, true),
    };
    let root = root::find(parts, part, &boot.arguments, is_given)?;
    boot.arguments.retain(|word| !DROPPED.iter().any(|dropped| word.starts_with(dropped)));
    let system = parts.iter().find(|found| root == Root::Part(found.part.number));
    let system = system.and_then(FoundPart::tree);
    let has_initrd = !boot.initrds.is_empty();
    let has = |path: &str| has_initrd && system.is_some_and(|tree| tree.has(path));
    // Nobody can say whose it is then, and the script does no harm to others.
    let is_anybodys = has_initrd && (is_given || system.is_none());
    let boot_script = is_anybodys || has(INITRAMFS_TOOLS);
    let nbd_root = NbdRoot { boot_script, dracut_module: DRACUT.into_iter().all(has) };
    Ok(BootFiles { origin, root, boot, nbd_root, lengths })
}
