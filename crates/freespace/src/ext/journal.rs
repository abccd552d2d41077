//! The journal: a file system whose superblock says that nothing waits in it is believed only when
//! the journal says so too.

use super::groups::{Groups, INODE_UNINIT};
use super::inode::{Inode, Piece};
use super::superblock::ExtSuperblock;
use crate::bytes::be32;
use crate::refusal::refuse;
use crate::{Refusal, Window};

/// The first bytes of every block of a journal that is not data (`JBD2_MAGIC_NUMBER`).
const MAGIC: u32 = 0xC03B_3998;

/// Refuses unless the journal is empty.
///
/// # Errors
/// [`Code::NeedsReplay`](crate::Code::NeedsReplay), and what is wrong with its inode.
pub(super) fn check(
    window: &Window<'_>,
    sb: &ExtSuperblock,
    groups: &Groups,
) -> Result<(), Refusal> {
    let Some(number) = sb.journal else { return Ok(()) };
    if number == 0 || u64::from(number) > u64::from(sb.groups) * u64::from(sb.inodes_per_group) {
        refuse!(Structure, "its journal's inode {number} does not exist; run e2fsck");
    }
    let group = groups.list[((number - 1) / sb.inodes_per_group) as usize];
    if group.flags & INODE_UNINIT != 0 {
        refuse!(Structure, "its journal's inode {number} was never written; run e2fsck");
    }
    let slot = u64::from((number - 1) % sb.inodes_per_group);
    let at = group.inode_table * u64::from(sb.block_size) + slot * u64::from(sb.inode_size);
    let raw = window.bytes(at, sb.inode_size as usize)?;
    let inode = Inode::new(window, sb, number, &raw);
    inode.verify()?;
    let mut first = None;
    inode.pieces(&mut |piece: Piece| {
        if piece.logical == Some(0) {
            first = Some(piece.start);
        }
        Ok(())
    })?;
    let Some(first) = first else {
        refuse!(Structure, "its journal has no first block; run e2fsck");
    };
    let head = window.bytes(first * u64::from(sb.block_size), 1024)?;
    if be32(&head, 0) != MAGIC || !matches!(be32(&head, 4), 3 | 4) {
        refuse!(Structure, "its journal does not begin as a journal; run e2fsck");
    }
    if be32(&head, 0x1C) != 0 {
        refuse!(
            NeedsReplay,
            "its journal is not empty, although its superblock says so; run e2fsck"
        );
    }
    if be32(&head, 0x20) != 0 {
        refuse!(Errors, "its journal has recorded an error; run e2fsck");
    }
    Ok(())
}
