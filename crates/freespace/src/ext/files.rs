//! Just enough reading of files to find suspended systems in swap files.
//!
//! This looks at file systems in any state, also those that are refused: a suspended system leaves
//! its own unclean. Whatever cannot be read is passed over.

use super::groups::{BlockGroup, Groups, INODE_UNINIT};
use super::inode::{Inode, Piece};
use super::superblock::ExtSuperblock;
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::swap_files::{is_unit, listed_in_table, listed_in_unit};
use crate::{Refusal, Window, swap};
use std::collections::VecDeque;

const ROOT: u32 = 2;
/// Directories and configuration files are read up to this many bytes.
const MAX_FILE: u64 = 4 << 20;
/// More units of systemd, or symbolic links on the way to a file, are not looked at.
const MAX_UNITS: usize = 64;
const MAX_LINKS: usize = 16;
/// Where systemd's units are.
const UNITS: [&str; 3] = ["/etc/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system"];

/// Where a path leads.
#[derive(Debug, PartialEq, Eq)]
enum PathTarget {
    /// To this inode.
    Inode(u32),
    /// To nothing here; to this path once symbolic links were followed, perhaps of another file
    /// system that is mounted on the way.
    Elsewhere(String),
}

/// A file system whose files can be looked at.
pub(crate) struct ExtFiles<'a> {
    window: &'a Window<'a>,
    sb: ExtSuperblock,
    groups: Groups,
}

impl<'a> ExtFiles<'a> {
    /// The files of a file system in any state.
    ///
    /// # Errors
    /// When its superblock or descriptors are damaged.
    pub(crate) fn open(window: &'a Window<'a>) -> Result<Self, Refusal> {
        let sb = ExtSuperblock::read_in_any_state(window)?;
        let groups = Groups::read(window, &sb)?;
        Ok(Self { window, sb, groups })
    }

    /// The swap files that its `/etc/fstab` and units of systemd name, as paths of the running system.
    pub(crate) fn listed(&self) -> Vec<String> {
        let mut paths = Vec::new();
        if let Some(table) = self.text("/etc/fstab") {
            paths.extend(listed_in_table(&table));
        }
        for directory in UNITS {
            let names = self.names(directory).unwrap_or_default();
            for name in names.iter().filter(|name| is_unit(name)).take(MAX_UNITS) {
                let unit = self.text(&format!("{directory}/{name}"));
                paths.extend(unit.as_deref().and_then(listed_in_unit));
            }
        }
        paths
    }

    /// Whether a suspended system is stored in the file at `path`; else where else its symbolic links
    /// lead, if anywhere.
    pub(crate) fn is_suspended(&self, path: &str) -> Result<bool, Option<String>> {
        match self.find(path) {
            Ok(PathTarget::Inode(number)) => {
                let head = self.content(number, swap::HEAD as u64);
                Ok(head.is_ok_and(|head| swap::is_suspended(&head)))
            }
            Ok(PathTarget::Elsewhere(other)) if other != path => Err(Some(other)),
            _ => Err(None),
        }
    }

    fn text(&self, path: &str) -> Option<String> {
        let Ok(PathTarget::Inode(number)) = self.find(path) else { return None };
        let bytes = self.content(number, MAX_FILE).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn raw(&self, number: u32) -> Result<Vec<u8>, Refusal> {
        let per_group = self.sb.inodes_per_group;
        let index = number.wrapping_sub(1) / per_group;
        let Some(BlockGroup { inode_table, flags, .. }) = self.groups.list.get(index as usize)
        else {
            refuse!(Structure, "inode {number} does not exist");
        };
        if flags & INODE_UNINIT != 0 {
            refuse!(Structure, "inode {number} was never written");
        }
        let slot = u64::from((number - 1) % per_group) * u64::from(self.sb.inode_size);
        let table = inode_table.checked_mul(u64::from(self.sb.block_size));
        let at = table.and_then(|at| at.checked_add(slot)).unwrap_or(u64::MAX);
        self.window.bytes(at, self.sb.inode_size as usize)
    }

    /// The first `most` bytes of a file; holes are zeroes.
    fn content(&self, number: u32, most: u64) -> Result<Vec<u8>, Refusal> {
        let raw = self.raw(number)?;
        let size = u64::from(le32(&raw, 4)) | u64::from(le32(&raw, 0x6C)) << 32;
        let inode = Inode::new(self.window, &self.sb, number, &raw);
        let size = size.min(most);
        // A short symbolic link lies where others have their list of blocks.
        let mut within = inode.inline().map(|(first, rest)| [first, rest].concat());
        if is_link(&raw) && size < 60 && inode.has_no_extents() {
            within = Some(raw[0x28..0x64].to_vec());
        }
        if let Some(mut bytes) = within {
            bytes.truncate(size as usize);
            return Ok(bytes);
        }
        let mut bytes = vec![0; size as usize];
        let block = u64::from(self.sb.block_size);
        inode.pieces(&mut |piece: Piece| {
            let Some(at) = piece.logical.and_then(|logical| logical.checked_mul(block)) else {
                return Ok(());
            };
            if at < size {
                let len = (piece.count * block).min(size - at) as usize;
                let at = at as usize;
                self.window.read(piece.start * block, &mut bytes[at..at + len])?;
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit` with each name in a directory and its inode, until it says that it is enough.
    fn entries(
        &self,
        directory: u32,
        mut visit: impl FnMut(&[u8], u32) -> bool,
    ) -> Result<(), Refusal> {
        let raw = self.raw(directory)?;
        if let Some((first, rest)) = Inode::new(self.window, &self.sb, directory, &raw).inline() {
            // The parent's number comes first, and no entry crosses from one part into the other.
            let _ = each_entry(&first[4..], &mut visit) || each_entry(rest, &mut visit);
            return Ok(());
        }
        // Each block holds whole entries; what a tree of hashes keeps in blocks of its own looks like
        // entries that are not in use.
        let bytes = self.content(directory, MAX_FILE)?;
        let _ =
            bytes.chunks(self.sb.block_size as usize).any(|block| each_entry(block, &mut visit));
        Ok(())
    }

    fn names(&self, directory: &str) -> Result<Vec<String>, Refusal> {
        let mut names = Vec::new();
        if let PathTarget::Inode(number) = self.find(directory)? {
            self.entries(number, |name, _| {
                names.push(String::from_utf8_lossy(name).into_owned());
                false
            })?;
        }
        Ok(names)
    }

    /// Follows a path and the symbolic links on it.
    fn find(&self, path: &str) -> Result<PathTarget, Refusal> {
        let split = |path: &str| -> Vec<String> {
            path.split('/')
                .filter(|part| !part.is_empty() && *part != ".")
                .map(Into::into)
                .collect()
        };
        let mut left: VecDeque<String> = split(path).into();
        let mut trail: Vec<(String, u32)> = Vec::new();
        let mut links = 0;
        while let Some(name) = left.pop_front() {
            if name == ".." {
                trail.pop();
                continue;
            }
            let directory = trail.last().map_or(ROOT, |(_, number)| *number);
            let mut found = None;
            self.entries(directory, |entry, number| {
                found = (entry == name.as_bytes()).then_some(number);
                found.is_some()
            })?;
            let Some(number) = found else {
                let names = trail.into_iter().map(|(name, _)| name).chain([name]).chain(left);
                let path: String = names.map(|name| format!("/{name}")).collect();
                return Ok(PathTarget::Elsewhere(path));
            };
            if !is_link(&self.raw(number)?) {
                trail.push((name, number));
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                refuse!(Structure, "symbolic links lead round and round");
            }
            let target = self.content(number, 4096)?;
            let target = String::from_utf8_lossy(&target);
            if target.starts_with('/') {
                trail.clear();
            }
            for part in split(&target).into_iter().rev() {
                left.push_front(part);
            }
        }
        Ok(PathTarget::Inode(trail.last().map_or(ROOT, |(_, number)| *number)))
    }
}

fn is_link(raw: &[u8]) -> bool {
    le16(raw, 0) >> 12 == 0xA
}

/// Calls `visit` with each entry in a block of a directory; whether it said that it is enough.
fn each_entry(block: &[u8], visit: &mut impl FnMut(&[u8], u32) -> bool) -> bool {
    let mut at = 0;
    while at + 8 <= block.len() {
        let (inode, step) = (le32(block, at), usize::from(le16(block, at + 4)));
        if step < 8 {
            return false;
        }
        let name = block.get(at + 8..at + 8 + usize::from(block[at + 6]));
        if let Some(name) = name.filter(|_| inode != 0)
            && visit(name, inode)
        {
            return true;
        }
        at += step;
    }
    false
}
