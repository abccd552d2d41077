//! Just enough reading of files to find suspended systems in swap files.
//!
//! This looks at file systems in any state, also those that are refused: a suspended system leaves
//! its own unclean. Whatever cannot be read is passed over.

use super::groups::{Group, Groups, INODE_UNINIT};
use super::inode::{Inode, Piece};
use super::superblock::Superblock;
use crate::bytes::{le16, le32};
use crate::refusal::refuse;
use crate::{Refusal, Window, swap};

const ROOT: u32 = 2;
/// Directories and `/etc/fstab` are read up to this many bytes.
const MAX_FILE: u64 = 4 << 20;
/// More swap files than this are not looked at.
const MAX_SWAP_FILES: usize = 16;
/// Where installers put swap files, whatever `/etc/fstab` says.
const USUAL: [&str; 4] = ["/swapfile", "/swap.img", "/swap/swapfile", "/swapfile1"];

/// The swap files, listed in `/etc/fstab` or in the usual places, that hold a suspended system.
pub(crate) fn suspended_swap_files(window: &Window<'_>) -> Result<Vec<String>, Refusal> {
    let sb = Superblock::read_in_any_state(window)?;
    let files = Files { window, groups: Groups::read(window, &sb)?, sb: &sb };
    let mut paths: Vec<String> = USUAL.iter().map(|path| (*path).to_owned()).collect();
    if let Ok(Some(number)) = files.find("/etc/fstab") {
        let text = String::from_utf8_lossy(&files.content(number, MAX_FILE)?).into_owned();
        paths.extend(listed(&text).take(MAX_SWAP_FILES));
    }
    paths.sort_unstable();
    paths.dedup();
    paths.retain(|path| files.is_suspended(path).unwrap_or(false));
    Ok(paths)
}

/// The swap files of a file system table.
fn listed(table: &str) -> impl Iterator<Item = String> + '_ {
    table.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (device, kind) = (fields.next()?, fields.nth(1)?);
        let is_file = device.starts_with('/') && !device.starts_with("/dev/");
        (is_file && kind == "swap").then(|| device.to_owned())
    })
}

struct Files<'a> {
    window: &'a Window<'a>,
    sb: &'a Superblock,
    groups: Groups,
}

impl Files<'_> {
    fn is_suspended(&self, path: &str) -> Result<bool, Refusal> {
        let Some(number) = self.find(path)? else { return Ok(false) };
        let head = self.content(number, swap::HEAD as u64)?;
        Ok(swap::is_suspended(&head))
    }

    fn raw(&self, number: u32) -> Result<Vec<u8>, Refusal> {
        let per_group = self.sb.inodes_per_group;
        let index = number.wrapping_sub(1) / per_group;
        let Some(Group { inode_table, flags, .. }) = self.groups.list.get(index as usize) else {
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
        let inode = Inode::new(self.window, self.sb, number, &raw);
        if let Some(inline) = inode.inline() {
            return Ok(inline[..inline.len().min(size as usize)].to_vec());
        }
        let size = size.min(most);
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

    /// The inode that a path leads to, without following links.
    fn find(&self, path: &str) -> Result<Option<u32>, Refusal> {
        let mut number = ROOT;
        for name in path.split('/').filter(|name| !name.is_empty()) {
            let entries = self.content(number, MAX_FILE)?;
            // Each block holds whole entries; what a tree of hashes keeps in blocks of its own
            // looks like entries that are not in use.
            let found = entries
                .chunks(self.sb.block_size as usize)
                .find_map(|block| entry(block, name.as_bytes()));
            match found {
                Some(inode) => number = inode,
                None => return Ok(None),
            }
        }
        Ok(Some(number))
    }
}

/// The inode of a name in a block of a directory.
fn entry(block: &[u8], name: &[u8]) -> Option<u32> {
    let mut at = 0;
    while at + 8 <= block.len() {
        let (inode, step) = (le32(block, at), usize::from(le16(block, at + 4)));
        if step < 8 {
            return None;
        }
        let bytes = block.get(at + 8..at + 8 + usize::from(block[at + 6]));
        if inode != 0 && bytes == Some(name) {
            return Some(inode);
        }
        at += step;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files_are_those_lines_whose_type_is_swap_and_which_name_no_device() {
        let table = "# comment\nUUID=1 / ext4 defaults 0 1\n/swapfile none swap sw 0 0\n\
                     /dev/sda2 none swap sw 0 0\n/a/b\tswap\tswap\n/x\n";
        assert_eq!(listed(table).collect::<Vec<_>>(), ["/swapfile", "/a/b"]);
    }
}
