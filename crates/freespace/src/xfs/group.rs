//! One allocation group: its headers, its free space, its inodes, and that these do not overlap.

use super::superblock::{XfsSuperblock, check_sum};
use super::tree::{BY_BLOCK, BY_SIZE, INODES, Shape, Tree, VisitRecord};
use crate::bytes::{be16, be32};
use crate::clusters::Clusters;
use crate::refusal::refuse;
use crate::{FreeList, Refusal, Window};

/// Inodes of a chunk, and of one bit of the mask that says which of them do not exist.
const CHUNK: u64 = 64;
const PER_HOLE: u64 = 4;
/// Lists of deleted files that are still open.
const BUCKETS: usize = 64;
const NONE: u32 = u32::MAX;

/// Reads one group and adds its free blocks to `free`.
pub(super) fn read(
    window: &Window<'_>,
    superblock: &XfsSuperblock,
    group: u64,
    free: &mut FreeList,
) -> Result<(), Refusal> {
    let blocks = superblock.blocks_of(group);
    let mut group = AllocationGroup { window, superblock, group, map: Clusters::full(blocks) };
    let space = group.header(1, b"XAGF", 64, 216)?;
    let inodes = group.header(2, b"XAGI", 296, 312)?;
    let list = group.header(3, b"XAFL", 8, 32)?;
    group.free_space(&space, free)?;
    // Whatever is in use must not be free, nor be two things.
    let headers = (4 * superblock.sector).div_ceil(superblock.block);
    group.map.claim(0, headers, "a header")?;
    if superblock.log_group == group.group {
        group.map.claim(superblock.log_block, superblock.log_blocks, "the log")?;
    }
    group.free_list(&space, &list)?;
    group.inodes(&inodes)
}

struct AllocationGroup<'g> {
    window: &'g Window<'g>,
    superblock: &'g XfsSuperblock,
    group: u64,
    /// The group's blocks: first the free ones are claimed, then all that have an owner here.
    map: Clusters,
}

/// What both trees of free space must agree in.
#[derive(Debug, Default, PartialEq, Eq)]
struct Totals {
    runs: u64,
    blocks: u64,
    longest: u32,
    /// The sum of a hash of every run, which does not depend on their order.
    hash: u64,
}

impl Totals {
    fn add(&mut self, start: u32, len: u32) {
        self.runs += 1;
        self.blocks += u64::from(len);
        self.longest = self.longest.max(len);
        // The finaliser of splitmix64.
        let mut z = u64::from(start) << 32 | u64::from(len);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        self.hash = self.hash.wrapping_add(z ^ (z >> 31));
    }
}

impl AllocationGroup<'_> {
    /// The header in a sector of the group; `uuid` and `sum` say where it has these.
    fn header(
        &self,
        sector: u64,
        magic: &[u8; 4],
        uuid: usize,
        sum: usize,
    ) -> Result<Vec<u8>, Refusal> {
        let (superblock, group) = (self.superblock, self.group);
        let at = superblock.offset(group, 0) + sector * superblock.sector;
        let bytes = self.window.bytes(at, superblock.sector as usize)?;
        let name = String::from_utf8_lossy(magic).into_owned();
        let what = format!("header {name} of group {group}");
        if bytes[..4] != *magic {
            refuse!(Structure, "{what} is missing; check it with xfs_repair");
        }
        check_sum(&bytes, sum, &what)?;
        let number = if magic == b"XAFL" { 4 } else { 8 };
        let blocks = superblock.blocks_of(group);
        let sized =
            magic == b"XAFL" || (be32(&bytes, 4) == 1 && u64::from(be32(&bytes, 12)) == blocks);
        if u64::from(be32(&bytes, number)) != group
            || bytes[uuid..uuid + 16] != superblock.meta_uuid
            || !sized
        {
            refuse!(Structure, "{what} is not what it should be; check it with xfs_repair");
        }
        Ok(bytes)
    }

    /// Walks a tree and claims its own blocks.
    fn walk(
        &mut self,
        shape: Shape,
        root: u32,
        levels: u32,
        mut record: impl FnMut(&mut Clusters, &[u8]) -> Result<(), Refusal>,
    ) -> Result<(), Refusal> {
        let (window, superblock, group) = (self.window, self.superblock, self.group);
        let map = &mut self.map;
        Tree { window, superblock, group, shape }.walk(root, levels, |visit| match visit {
            VisitRecord::Node(block) => map.claim(block, 1, shape.name),
            VisitRecord::Record(bytes) => record(map, bytes),
        })
    }

    /// Both trees of free blocks, and what the header counts.
    fn free_space(&mut self, header: &[u8], free: &mut FreeList) -> Result<(), Refusal> {
        let (superblock, group) = (self.superblock, self.group);
        let mut totals = Totals::default();
        self.walk(BY_BLOCK, be32(header, 16), be32(header, 28), |map, record| {
            let (start, len) = (be32(record, 0), be32(record, 4));
            if len == 0 {
                refuse!(Structure, "an empty run of free blocks; check it with xfs_repair");
            }
            map.claim(u64::from(start), u64::from(len), "free space")?;
            totals.add(start, len);
            let from = superblock.offset(group, u64::from(start));
            free.push(from, from + u64::from(len) * superblock.block)
        })?;
        let mut by_size = Totals::default();
        self.walk(BY_SIZE, be32(header, 20), be32(header, 32), |_, record| {
            by_size.add(be32(record, 0), be32(record, 4));
            Ok(())
        })?;
        if totals.blocks != u64::from(be32(header, 52)) || totals.longest != be32(header, 56) {
            refuse!(
                Counts,
                "group {group} counts {} free blocks, and its tree has {}; check it with xfs_repair",
                be32(header, 52),
                totals.blocks
            );
        }
        if totals != by_size {
            refuse!(
                Counts,
                "the two trees of free space of group {group} differ; check it with xfs_repair"
            );
        }
        Ok(())
    }

    /// Blocks that are kept ready for the trees: a ring in its own sector.
    fn free_list(&mut self, header: &[u8], list: &[u8]) -> Result<(), Refusal> {
        let room = (list.len() - 36) / 4;
        let [first, last, count] = [40, 44, 48].map(|at| be32(header, at) as usize);
        let sane = first < room
            && last < room
            && count <= room
            && (count == 0 || (first + count - 1) % room == last);
        if !sane {
            refuse!(
                Structure,
                "the list of kept blocks of group {} is impossible; check it with xfs_repair",
                self.group
            );
        }
        for index in 0..count {
            let block = be32(list, 36 + 4 * ((first + index) % room));
            self.map.claim(u64::from(block), 1, "the list of kept blocks")?;
        }
        Ok(())
    }

    /// The blocks of all chunks of inodes; no inode may wait for its deletion.
    fn inodes(&mut self, header: &[u8]) -> Result<(), Refusal> {
        if (0..BUCKETS).any(|bucket| be32(header, 40 + 4 * bucket) != NONE) {
            refuse!(
                Orphans,
                "group {} has deleted files that are not given back; mount and unmount it",
                self.group
            );
        }
        let per_block = self.superblock.inodes_per_block;
        let sparse = self.superblock.sparse_inodes;
        let mut inodes = 0;
        let mut last = None;
        self.walk(INODES, be32(header, 20), be32(header, 24), |map, record| {
            let start = u64::from(be32(record, 0));
            // A set bit of the mask: these four inodes do not exist.
            let holes = if sparse { be16(record, 4) } else { 0 };
            inodes += CHUNK - PER_HOLE * u64::from(holes.count_ones());
            // Where a block holds several chunks, it is claimed once.
            for at in (0..CHUNK).step_by(per_block.min(CHUNK) as usize) {
                let block = (start + at) / per_block;
                if holes >> (at / PER_HOLE) & 1 == 0 && last != Some(block) {
                    map.claim(block, 1, "a chunk of inodes")?;
                    last = Some(block);
                }
            }
            Ok(())
        })?;
        if inodes != u64::from(be32(header, 16)) {
            refuse!(
                Counts,
                "group {} counts {} inodes, and its tree has {inodes}; check it with xfs_repair",
                self.group,
                be32(header, 16)
            );
        }
        Ok(())
    }
}
