//! What file system a part has: one whose files are read here, one that is known by its names, or another one.

use super::ext::Ext;
use super::fat::Fat;
use super::partitions::{self, DiskPart, PartBytes};
use super::source::DiskBytes;
use super::tree::FileTree;
use block::Result;

/// The least room that any of them needs.
const SMALLEST: u64 = 4096;
/// Where ext2, ext3 and ext4 have their superblock.
const EXT: u64 = 1024;
/// Where btrfs has its superblock.
const BTRFS: u64 = 64 << 10;
/// Where swap space is marked, if its pages have 4 KiB.
const SWAP: u64 = 4086;

/// What a part holds.
pub enum Content {
    /// Files that can be read.
    Files(Box<dyn FileTree>),
    /// A file system that is not read here.
    Named(FileSystemNames),
    /// Swap space, or not even room for a file system.
    Nothing,
    /// Something that is not known here, such as a file system within an encrypted disk.
    Unknown,
}

/// What a file system is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileSystemNames {
    /// Its UUID, in lower case.
    pub uuid: String,
    /// Its label.
    pub label: String,
}

/// A part, and what it holds.
pub struct FoundPart {
    /// Where it is.
    pub part: DiskPart,
    /// What it holds.
    pub content: Content,
}

impl FoundPart {
    /// Its files, if they can be read.
    pub fn tree(&self) -> Option<&dyn FileTree> {
        match &self.content {
            Content::Files(tree) => Some(tree.as_ref()),
            _ => None,
        }
    }

    /// What its file system is called, if that is known.
    pub fn names(&self) -> Option<FileSystemNames> {
        match &self.content {
            Content::Files(tree) => {
                Some(FileSystemNames { uuid: tree.uuid(), label: tree.label() })
            }
            Content::Named(names) => Some(names.clone()),
            Content::Nothing | Content::Unknown => None,
        }
    }
}

/// The parts of a disk with what they hold.
///
/// # Errors
/// Any error from reading.
pub fn all(disk: &DiskBytes) -> Result<Vec<FoundPart>> {
    let parts = partitions::read(disk)?.into_iter();
    parts
        .map(|part| {
            let content = content(&PartBytes::new(disk, &part))?;
            Ok(FoundPart { part, content })
        })
        .collect()
}

/// The files of a part; `None` when they cannot be read.
///
/// # Errors
/// Any error from reading.
pub fn open(disk: &DiskBytes, part: &DiskPart) -> Result<Option<Box<dyn FileTree>>> {
    match content(&PartBytes::new(disk, part))? {
        Content::Files(tree) => Ok(Some(tree)),
        _ => Ok(None),
    }
}

fn content(bytes: &PartBytes) -> Result<Content> {
    if bytes.length() < SMALLEST {
        return Ok(Content::Nothing);
    }
    if at::<2>(bytes, EXT + 56)? == [0x53, 0xef] {
        return Ok(match Ext::open(bytes.clone()) {
            Some(system) => Content::Files(Box::new(system)),
            None => Content::Named(names(&at(bytes, EXT + 104)?, &at::<16>(bytes, EXT + 120)?)),
        });
    }
    if let Some(system) = Fat::open(bytes.clone())? {
        return Ok(Content::Files(Box::new(system)));
    }
    if at::<4>(bytes, 0)? == *b"XFSB" {
        return Ok(Content::Named(names(&at(bytes, 32)?, &at::<12>(bytes, 108)?)));
    }
    if bytes.length() > BTRFS + 4096 && at::<8>(bytes, BTRFS + 64)? == *b"_BHRfS_M" {
        return Ok(Content::Named(names(&at(bytes, BTRFS + 32)?, &at::<256>(bytes, BTRFS + 299)?)));
    }
    Ok(match at::<10>(bytes, SWAP)? == *b"SWAPSPACE2" {
        true => Content::Nothing,
        false => Content::Unknown,
    })
}

fn at<const LENGTH: usize>(bytes: &PartBytes, start: u64) -> Result<[u8; LENGTH]> {
    let mut found = [0; LENGTH];
    bytes.fill(start, &mut found)?;
    Ok(found)
}

/// Names as superblocks have them: sixteen bytes, and text that ends with a zero or the field.
fn names(uuid: &[u8; 16], label: &[u8]) -> FileSystemNames {
    let mut text = String::with_capacity(36);
    for (index, byte) in uuid.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    let label = label.split(|byte| *byte == 0).next().unwrap_or_default();
    FileSystemNames { uuid: text, label: String::from_utf8_lossy(label).into_owned() }
}
