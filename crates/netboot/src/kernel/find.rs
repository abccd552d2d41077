//! From a disk to its kernel.

use super::BootFile;
use super::entry::{self, BootEntry};
use super::partitions::{self, DiskPart};
use super::source::DiskBytes;
use super::tree::{self, FileTree};
use block::{Device, Error, Result};
use bytes::Bytes;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The longest kernel, in bytes.
const LONGEST_KERNEL: u64 = 128 << 20;
/// The longest initial RAM disk.
const LONGEST_INITRD: u64 = 512 << 20;
/// The most entries of the Boot Loader Specification that are looked at.
const MOST_ENTRIES: usize = 64;

/// Where entries of the Boot Loader Specification lie.
const ENTRIES: [&str; 2] = ["/loader/entries", "/boot/loader/entries"];
/// Where GRUB's configuration lies.
const GRUB: [&str; 4] =
    ["/boot/grub/grub.cfg", "/boot/grub2/grub.cfg", "/grub/grub.cfg", "/grub2/grub.cfg"];
/// Where kernels lie.
const DIRECTORIES: [&str; 2] = ["/boot", ""];

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

/// What a disk would start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BootFiles {
    /// The part with the kernel; 0 is the whole disk.
    part: u32,
    /// The part with the root file system; 0 is the whole disk.
    root: u32,
    entry: BootEntry,
    nbd_root: NbdRoot,
    /// The lengths that the kernel and the initial RAM disk had.
    lengths: [u64; 2],
}

impl BootFiles {
    /// The root file system on a disk that the kernel calls `disk`, such as `/dev/nbd0`.
    pub fn root(&self, disk: &str) -> String {
        match self.root {
            0 => disk.to_owned(),
            number => format!("{disk}p{number}"),
        }
    }

    /// The kernel's parameters but for its root.
    pub fn arguments(&self) -> &[String] {
        &self.entry.arguments
    }

    /// The path of the kernel.
    pub fn kernel(&self) -> &str {
        &self.entry.kernel
    }

    /// Whether there is an initial RAM disk.
    pub fn has_initrd(&self) -> bool {
        !self.entry.initrds.is_empty()
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
        let parts = partitions::read(disk)?;
        let part = parts.iter().find(|part| part.number == self.part);
        let tree = part.map(|part| tree::open(disk, part)).transpose()?.flatten();
        let tree = tree.ok_or_else(|| Error::not_found("the disk was divided anew meanwhile"))?;
        let longest = self.length(which).saturating_add(joined(front.len() as u64));
        let mut all = Vec::new();
        all.reserve_exact(longest as usize);
        all.extend_from_slice(front);
        for path in paths(&self.entry, which) {
            all.resize(joined(all.len() as u64) as usize, 0);
            let room = longest.saturating_sub(all.len() as u64);
            if !tree.append(path, room, &mut all)? {
                return Err(Error::not_found(format!("{path} is not on the disk any more")));
            }
        }
        Ok(all.into())
    }
}

fn paths(entry: &BootEntry, which: BootFile) -> &[String] {
    match which {
        BootFile::Kernel => std::slice::from_ref(&entry.kernel),
        BootFile::Initrd => &entry.initrds,
    }
}

/// Where another file begins behind so many bytes: several make one (Linux,
/// Documentation/driver-api/early-userspace/buffer-format).
fn joined(length: u64) -> u64 {
    length.checked_next_multiple_of(4).unwrap_or(u64::MAX)
}

/// How long what is read of an entry will be.
fn length(tree: &dyn FileTree, entry: &BootEntry, which: BootFile) -> Result<u64> {
    let mut all = 0;
    for path in paths(entry, which) {
        all = joined(all).saturating_add(tree.length(path)?.unwrap_or(0));
    }
    Ok(all)
}

/// Finds what a disk would start.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) with the way out when nothing is found, and any error from the
/// device.
pub async fn find(device: Arc<dyn Device>) -> Result<BootFiles> {
    let runtime = Handle::current();
    block::offload(move || find_on(&DiskBytes::new(device, runtime))).await
}

type ReadablePart = (DiskPart, Box<dyn FileTree>);

fn find_on(disk: &DiskBytes) -> Result<BootFiles> {
    let mut trees: Vec<ReadablePart> = Vec::new();
    for part in partitions::read(disk)? {
        if let Some(tree) = tree::open(disk, &part)? {
            trees.push((part, tree));
        }
    }
    let mut found = None;
    for (part, tree) in &trees {
        let tree = tree.as_ref();
        if let Some(entry) = look(tree)? {
            let lengths = [BootFile::Kernel, BootFile::Initrd];
            let [kernel, initrd] = lengths.map(|which| length(tree, &entry, which));
            found = Some((part.number, entry, [kernel?, initrd?]));
            break;
        }
    }
    let Some((part, mut entry, lengths)) = found else {
        return Err(unsupported(
            "no kernel was found on it, or it is in a file system that is not known here",
        ));
    };
    let root = root_of(&trees, part, &entry.arguments)?;
    entry.arguments.retain(|word| !DROPPED.iter().any(|dropped| word.starts_with(dropped)));
    let system = trees.iter().find(|(part, _)| part.number == root);
    let has =
        |path: &str| !entry.initrds.is_empty() && system.is_some_and(|(_, tree)| tree.has(path));
    let nbd_root =
        NbdRoot { boot_script: has(INITRAMFS_TOOLS), dracut_module: DRACUT.into_iter().all(has) };
    Ok(BootFiles { part, root, entry, nbd_root, lengths })
}

fn unsupported(why: &str) -> Error {
    Error::unsupported(format!(
        "the disk cannot be started by its kernel: {why}; use --method iscsi"
    ))
}

/// What is started from a file system, if anything.
fn look(tree: &dyn FileTree) -> Result<Option<BootEntry>> {
    let whole = |entry: &BootEntry| {
        tree.has(&entry.kernel) && entry.initrds.iter().all(|initrd| tree.has(initrd))
    };
    let mut newest: Option<(String, BootEntry)> = None;
    for directory in ENTRIES {
        let names = tree.names(directory)?;
        for name in names.iter().filter(|name| name.ends_with(".conf")).take(MOST_ENTRIES) {
            let Some(text) = text(tree, &format!("{directory}/{name}"))? else { continue };
            let Some(found) = entry::of_specification(name, &text) else { continue };
            let newer = newest
                .as_ref()
                .is_none_or(|(version, _)| entry::by_version(version, &found.0).is_lt());
            if newer && whole(&found.1) {
                newest = Some(found);
            }
        }
    }
    if let Some((_, entry)) = newest {
        return Ok(Some(entry));
    }
    for path in GRUB {
        let Some(text) = text(tree, path)? else { continue };
        if let Some(entry) = entry::of_grub(&text).filter(whole) {
            return Ok(Some(entry));
        }
    }
    for directory in DIRECTORIES {
        let names = tree.names(if directory.is_empty() { "/" } else { directory })?;
        if let Some(entry) = entry::of_names(directory, &names).filter(whole) {
            return Ok(Some(entry));
        }
    }
    Ok(None)
}

fn text(tree: &dyn FileTree, path: &str) -> Result<Option<String>> {
    let mut bytes = Vec::new();
    let is_there = tree.append(path, entry::LONGEST, &mut bytes)?;
    Ok(is_there.then(|| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The part with the root file system: what the parameter `root=` names, or else the first that has `/etc`.
fn root_of(trees: &[ReadablePart], kernel: u32, arguments: &[String]) -> Result<u32> {
    // The last one counts.
    let named = arguments.iter().rev().find_map(|word| word.strip_prefix("root="));
    let Some(named) = named else {
        let own = trees.iter().find(|(part, tree)| part.number == kernel && tree.has("/etc"));
        let any = own.or_else(|| trees.iter().find(|(_, tree)| tree.has("/etc")));
        let (part, _) = any.ok_or_else(|| unsupported("its root file system was not found"))?;
        return Ok(part.number);
    };
    let is = |(part, tree): &&ReadablePart| match named.split_once('=') {
        Some(("PARTUUID", uuid)) => {
            part.uuid.as_deref() == Some(uuid.to_ascii_lowercase().as_str())
        }
        Some(("UUID", uuid)) => tree.uuid() == uuid.to_ascii_lowercase(),
        Some(("LABEL", label)) => tree.label() == label,
        _ => numbered(named) == Some(part.number),
    };
    match trees.iter().find(is) {
        Some((part, _)) => Ok(part.number),
        None => Err(unsupported(&format!(
            "its root {named} is not among the file systems that are known here"
        ))),
    }
}

/// The number in the name of a partition: 2 in `/dev/sda2`, `/dev/vda2`, `/dev/nvme0n1p2`.
fn numbered(device: &str) -> Option<u32> {
    let name = device.strip_prefix("/dev/")?;
    let digits = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = name[digits.len()..].parse().ok()?;
    let known = ["sd", "vd", "hd", "xvd"].iter().any(|kind| name.starts_with(kind));
    let counted = ["nvme", "mmcblk", "nbd"].iter().any(|kind| name.starts_with(kind))
        && digits.ends_with('p');
    (known || counted).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::numbered;

    #[test]
    fn partitions_are_known_by_the_names_of_devices() {
        for (name, number) in [
            ("/dev/sda1", Some(1)),
            ("/dev/nvme0n1p12", Some(12)),
            ("/dev/nvme0n1", None),
            ("/dev/mapper/root", None),
            ("/dev/md0", None),
            ("sda1", None),
        ] {
            assert_eq!(numbered(name), number, "{name}");
        }
    }
}
