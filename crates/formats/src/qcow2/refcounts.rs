//! The reference counts of a qcow2 file, checked before it is written to.
//!
//! A writer takes clusters whose count is zero. Where the counts are wrong it takes clusters that
//! are in use, and the disk is lost; the library also follows gaps in the counts without end. So
//! everything that is in use must be counted, tables must overlap nothing, and there are no gaps.

use super::tables::{RangeUse, Tables, numbers};
use block::{Error, Result};

/// The most clusters that are checked: 32 MiB of marks, a file of 16 TiB with usual clusters.
const MOST_CLUSTERS: u64 = 1 << 28;

/// The longest refcount table that any writer makes, in bytes (QEMU's limit is 8 MiB).
const MOST_TABLE: u64 = 32 << 20;

/// A set of clusters.
struct Marks(Vec<u64>);

impl Marks {
    fn new(clusters: u64) -> Self {
        Self(vec![0; clusters.div_ceil(64) as usize])
    }

    fn has(&self, cluster: u64) -> bool {
        self.0.get((cluster / 64) as usize).is_some_and(|word| word >> (cluster % 64) & 1 == 1)
    }

    fn add(&mut self, cluster: u64) {
        if let Some(word) = self.0.get_mut((cluster / 64) as usize) {
            *word |= 1 << (cluster % 64);
        }
    }
}

/// Checks that the file can be written to.
pub(super) fn check(tables: &Tables<'_>) -> Result<()> {
    let cluster = tables.cluster();
    let clusters = tables.len.div_ceil(cluster);
    if clusters > MOST_CLUSTERS {
        return Err(Error::unsupported(format!(
            "{}: has too many clusters to be checked for writing; open it read-only, or convert it \
             to larger clusters with qemu-img convert -O qcow2",
            tables.path.display()
        )));
    }
    let counted = counted(tables, clusters)?;
    let mut taken = Marks::new(clusters); // by tables
    let mut used = Marks::new(clusters); // by data
    let mut visit = |kind: RangeUse, offset: u64, len: u64| {
        for index in offset / cluster..(offset + len).div_ceil(cluster) {
            if !counted.has(index) {
                return Err(tables.corrupt(&format!("cluster {index} is in use and not counted")));
            }
            if taken.has(index) || kind == RangeUse::Table && used.has(index) {
                return Err(tables.corrupt(&format!("a table overlaps cluster {index}")));
            }
            match kind {
                RangeUse::Table => taken.add(index),
                RangeUse::Data => used.add(index),
            }
        }
        Ok(())
    };
    visit(RangeUse::Table, 0, cluster)?; // the header
    let table_len = u64::from(tables.header.refcount_clusters) * cluster;
    visit(RangeUse::Table, tables.header.refcount_offset, table_len)?;
    for block in blocks(tables)?.into_iter().filter(|offset| *offset != 0) {
        visit(RangeUse::Table, block, cluster)?;
    }
    tables.walk(&mut visit)
}

/// The offsets of the blocks of counts, in the order of what they count; 0 for none.
fn blocks(tables: &Tables<'_>) -> Result<Vec<u64>> {
    let len = u64::from(tables.header.refcount_clusters) * tables.cluster();
    if len > MOST_TABLE {
        return Err(tables.corrupt(&format!("a refcount table of {len} bytes")));
    }
    let table = tables.read("the refcount table", tables.header.refcount_offset, len)?;
    let offsets: Vec<u64> = numbers(&table).map(|entry| entry & !0x1ff).collect();
    tables.distinct("refcount block", offsets.iter().copied().filter(|o| *o != 0).collect())?;
    Ok(offsets)
}

/// The clusters whose count is not zero.
fn counted(tables: &Tables<'_>, clusters: u64) -> Result<Marks> {
    let bits = 1_u64 << tables.header.refcount_order;
    let per_block = tables.cluster() * 8 / bits;
    let blocks = blocks(tables)?;
    let mut counted = Marks::new(clusters);
    for index in 0..clusters.div_ceil(per_block) {
        let offset = blocks.get(index as usize).copied().unwrap_or(0);
        if offset == 0 {
            return Err(tables.corrupt(&format!("refcount block {index} is missing")));
        }
        let block = tables.read("a refcount block", offset, tables.cluster())?;
        let first = index * per_block;
        (0..per_block)
            .filter(|place| is_counted(&block, *place, bits))
            .for_each(|place| counted.add(first + place));
    }
    Ok(counted)
}

fn is_counted(block: &[u8], place: u64, bits: u64) -> bool {
    let at = (place * bits / 8) as usize;
    if bits >= 8 {
        return block[at..at + (bits / 8) as usize].iter().any(|byte| *byte != 0);
    }
    block[at] >> (place * bits % 8) & ((1 << bits) - 1) != 0
}
