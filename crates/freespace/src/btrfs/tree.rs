//! Trees: checked blocks, walked in the order of their keys.

use super::chunk::Chunks;
use super::key::TreeKey;
use super::superblock::{BtrfsSuperblock, TreeRoot, check_sum};
use crate::bytes::{le32, le64};
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// Bytes of a block's header, of an item's head in a leaf, of a pointer above.
const HEADER: usize = 101;
const ITEM: usize = 25;
const POINTER: usize = 33;
const MAX_LEVEL: u8 = 7;

/// What reads trees.
pub(super) struct TreeReader<'r> {
    pub(super) window: &'r Window<'r>,
    pub(super) superblock: &'r BtrfsSuperblock,
    pub(super) chunks: &'r Chunks,
}

impl TreeReader<'_> {
    /// Visits every item with a key in the range (both ends in it), in order.
    pub(super) fn walk(
        &self,
        root: TreeRoot,
        (from, to): (TreeKey, TreeKey),
        mut visit: impl FnMut(TreeKey, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        if root.level > MAX_LEVEL {
            refuse!(Structure, "a tree has {} levels; check it with btrfs check", root.level);
        }
        // What waits to be read, the next one last. Each has a rising first key, which makes sure
        // that nothing is walked twice.
        let mut waiting = vec![root];
        let mut last: Option<TreeKey> = None;
        while let Some(at) = waiting.pop() {
            let bytes = self.block(at)?;
            let count = le32(&bytes, 96) as usize;
            if at.level > 0 {
                let pointers: Vec<&[u8]> =
                    bytes[HEADER..].chunks_exact(POINTER).take(count).collect();
                for (index, pointer) in pointers.iter().enumerate().rev() {
                    let next = pointers.get(index + 1).map(|next| TreeKey::new(next));
                    if TreeKey::new(pointer) > to || next.is_some_and(|next| next <= from) {
                        continue;
                    }
                    waiting.push(TreeRoot {
                        logical: le64(pointer, 17),
                        level: at.level - 1,
                        generation: le64(pointer, 25),
                    });
                }
                continue;
            }
            for item in bytes[HEADER..].chunks_exact(ITEM).take(count) {
                let key = TreeKey::new(item);
                if last.is_some_and(|last| last >= key) {
                    refuse!(Structure, "the keys of a tree do not rise; check it with btrfs check");
                }
                last = Some(key);
                if key < from || key > to {
                    continue;
                }
                let start = HEADER + le32(item, 17) as usize;
                let end = start.saturating_add(le32(item, 21) as usize);
                let Some(data) = bytes.get(start..end) else {
                    refuse!(Structure, "an item of a tree is damaged; check it with btrfs check");
                };
                visit(key, data)?;
            }
        }
        Ok(())
    }

    /// A tree block: whole, at its place, of this level and generation.
    fn block(&self, at: TreeRoot) -> Result<Vec<u8>, Refusal> {
        let len = self.superblock.node;
        let place = self.chunks.place(at.logical, len as u64)?;
        let bytes = self.window.bytes(place, len)?;
        if !check_sum(&bytes) {
            refuse!(
                Checksum,
                "the checksum of the tree block at {} does not match; check it with btrfs check",
                at.logical
            );
        }
        let count = le32(&bytes, 96) as usize;
        let most = (len - HEADER) / if at.level == 0 { ITEM } else { POINTER };
        let sane = bytes[32..48] == self.superblock.tree_uuid
            && le64(&bytes, 48) == at.logical
            && le64(&bytes, 80) == at.generation
            && bytes[100] == at.level
            && count <= most
            && (at.level == 0 || count > 0);
        if !sane {
            refuse!(
                Structure,
                "the tree block at {} is not what it should be; check it with btrfs check",
                at.logical
            );
        }
        Ok(bytes)
    }
}
