//! The short trees of an allocation group: free space by place and by size, inodes.

use super::superblock::{XfsSuperblock, check_sum};
use crate::bytes::{be16, be32, be64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// Bytes of a block's header, with checksum.
const HEADER: usize = 56;
/// No tree of a group is higher.
const MAX_LEVELS: u32 = 10;

/// What a tree holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub(super) magic: &'static [u8; 4],
    pub(super) name: &'static str,
    /// Bytes of a record in a leaf, and of a key above.
    pub(super) record: usize,
    pub(super) key: usize,
}

/// Free space, sorted by place.
pub(super) const BY_BLOCK: Shape =
    Shape { magic: b"AB3B", name: "the tree of free blocks", record: 8, key: 8 };
/// Free space, sorted by size.
pub(super) const BY_SIZE: Shape =
    Shape { magic: b"AB3C", name: "the tree of free sizes", record: 8, key: 8 };
/// Chunks of 64 inodes.
pub(super) const INODES: Shape =
    Shape { magic: b"IAB3", name: "the tree of inodes", record: 16, key: 4 };

/// What a walk meets.
pub(super) enum VisitRecord<'b> {
    /// A block of the tree itself, by its number in the group.
    Node(u64),
    /// A record of a leaf.
    Record(&'b [u8]),
}

/// One tree of one group.
pub(super) struct Tree<'t> {
    pub(super) window: &'t Window<'t>,
    pub(super) superblock: &'t XfsSuperblock,
    pub(super) group: u64,
    pub(super) shape: Shape,
}

impl Tree<'_> {
    /// Visits every block of the tree, and every record in order.
    pub(super) fn walk(
        &self,
        root: u32,
        levels: u32,
        mut visit: impl FnMut(VisitRecord<'_>) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if levels == 0 || levels > MAX_LEVELS {
            refuse!(
                Structure,
                "{} of group {} has {levels} levels; check it with xfs_repair",
                self.shape.name,
                self.group
            );
        }
        // What waits to be read, the next one last: block and level.
        let mut waiting = vec![(u64::from(root), levels - 1)];
        let mut left = self.superblock.blocks_of(self.group);
        while let Some((number, level)) = waiting.pop() {
            if left == 0 {
                refuse!(Structure, "{} runs in circles; check it with xfs_repair", self.shape.name);
            }
            left -= 1;
            visit(VisitRecord::Node(number))?;
            let bytes = self.block(number, level)?;
            let count = usize::from(be16(&bytes, 6));
            if level == 0 {
                let records = bytes[HEADER..].chunks_exact(self.shape.record).take(count);
                records.map(VisitRecord::Record).try_for_each(&mut visit)?;
            } else {
                let most = self.most(level);
                let pointers = &bytes[HEADER + most * self.shape.key..];
                let pointers = pointers.chunks_exact(4).take(count);
                waiting.extend(pointers.rev().map(|bytes| (u64::from(be32(bytes, 0)), level - 1)));
            }
        }
        Ok(())
    }

    /// The most records of a block at this level.
    fn most(&self, level: u32) -> usize {
        let room = self.superblock.block as usize - HEADER;
        room / if level == 0 { self.shape.record } else { self.shape.key + 4 }
    }

    fn block(&self, number: u64, level: u32) -> Result<Vec<u8>, Refusal> {
        let (superblock, group) = (self.superblock, self.group);
        if number >= superblock.blocks_of(group) {
            refuse!(
                OutsideFileSystem,
                "{} leads to block {number} of group {group}, which does not exist; check it with xfs_repair",
                self.shape.name
            );
        }
        let offset = superblock.offset(group, number);
        let bytes = self.window.bytes(offset, superblock.block as usize)?;
        let what = format!("block {number} of {} of group {group}", self.shape.name);
        check_sum(&bytes, 52, &what)?;
        let count = usize::from(be16(&bytes, 6));
        // An empty tree is a root without records.
        if &bytes[..4] != self.shape.magic
            || u32::from(be16(&bytes, 4)) != level
            || count > self.most(level)
            || (level > 0 && count == 0)
            || be64(&bytes, 16) != offset / 512
            || bytes[32..48] != superblock.meta_uuid
            || u64::from(be32(&bytes, 48)) != group
        {
            refuse!(Structure, "{what} is not what it should be; check it with xfs_repair");
        }
        Ok(bytes)
    }
}
