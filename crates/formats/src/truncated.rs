//! Whether a file holds all the data that its own map points to.
//!
//! `qemu-img` reads what lies behind the end of a VDI or sparse VMDK file as zeroes, and its check
//! finds neither. So their maps are followed before it converts them. What is no map at all is left
//! to the tool, which refuses it.

use crate::file::{le32, le64, len, read_up_to};
use block::{Error, Result};
use std::fs::File;
use std::path::Path;

const SECTOR: u64 = 512;
/// Bytes of a map that are read at a time.
const PIECE: u64 = 64 << 10;
/// From here on an entry of a VDI's map is no place: the block has no data.
const VDI_NO_DATA: u32 = 0xffff_fffe;
/// Up to here an entry of a VMDK's grain table is no place: not written, or zeroes.
const VMDK_NO_DATA: u32 = 1;
/// More tables than these are in no VMDK: the largest, of 62 TiB, has two million.
const MOST_TABLES: u64 = 4 << 20;
/// Entries of each table of an ESX sparse extent, and of any other at most.
const IN_TABLE_OF_ESX: u32 = 4096;
/// A VMDK header says that its grain directory is named by another header, at the end.
const AT_END: u64 = u64::MAX;

/// A file of which is looked whether it is whole.
struct CheckedFile<'a> {
    file: &'a File,
    path: &'a Path,
    /// Its length in bytes.
    len: u64,
}

/// Refuses a VDI file that ends before its data does. Format: VirtualBox, `VDICore.h`, version 1.1.
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it does; any error from reading it.
pub(crate) fn vdi(file: &File, path: &Path) -> Result<()> {
    let looked = CheckedFile { file, path, len: len(file, path)? };
    let head = looked.head(0)?;
    let (map, data) = (u64::from(le32(&head, 0x154)), u64::from(le32(&head, 0x158)));
    let (size, block) = (le64(&head, 0x170), u64::from(le32(&head, 0x178)));
    looked.entries(map, le32(&head, 0x180).into(), |index, entry| {
        if entry >= VDI_NO_DATA {
            return Ok(());
        }
        // The last block of the disk may end where the disk does.
        let offset = index.saturating_mul(block);
        let begin = u64::from(entry).saturating_mul(block).saturating_add(data);
        looked.holds(begin, block.min(size.saturating_sub(offset)), offset)
    })
}

/// Refuses a sparse VMDK file that ends before its data does. Format: VMware, "Virtual Disk Format
/// 5.0".
///
/// # Errors
/// [`Corrupt`](block::ErrorKind::Corrupt) when it does; any error from reading it.
pub(crate) fn vmdk(file: &File, path: &Path) -> Result<()> {
    let looked = CheckedFile { file, path, len: len(file, path)? };
    let grains = Grains::of(&looked)?;
    let grain = u64::from(grains.sectors) * SECTOR;
    let size = grains.capacity.saturating_mul(SECTOR);
    let in_table = u64::from(grains.in_table);
    let mut last = (0, 0);
    for (at, table) in looked.tables(&grains)? {
        looked.entries(u64::from(at) * SECTOR, in_table, |index, entry| {
            let offset = (table * in_table + index).saturating_mul(grain);
            if entry <= VMDK_NO_DATA || offset >= size {
                return Ok(());
            }
            let begin = u64::from(entry) * SECTOR;
            last = last.max((begin, offset));
            // The last grain of the disk may end where the disk does.
            let len = if grains.compressed { 1 } else { grain.min(size - offset) };
            looked.holds(begin, len, offset)
        })?;
    }
    if !grains.marked || last == (0, 0) {
        return Ok(());
    }
    // Only the grain says how long it is: the last one in the file is the one that is cut.
    let marker = looked.read(last.0, 12, last.1)?;
    looked.holds(last.0 + 12, le32(&marker, 8).into(), last.1)
}

/// Where a sparse VMDK file says that its data is.
struct Grains {
    /// Sectors of the disk.
    capacity: u64,
    /// Sectors of a grain.
    sectors: u32,
    /// Entries of a grain table.
    in_table: u32,
    /// Where the directory of the tables begins, in bytes.
    directory: u64,
    /// Entries of it.
    tables: u64,
    /// Grains are compressed.
    compressed: bool,
    /// Each grain says how many bytes it has.
    marked: bool,
}

impl Grains {
    fn of(looked: &CheckedFile<'_>) -> Result<Self> {
        let mut head = looked.head(0)?;
        if head.starts_with(b"COWD") {
            let (capacity, sectors) = (u64::from(le32(&head, 12)), le32(&head, 16));
            // More than the disk needs point nowhere.
            let needed = capacity.div_ceil(u64::from(sectors.max(1)) * u64::from(IN_TABLE_OF_ESX));
            return Ok(Self {
                capacity,
                sectors,
                in_table: IN_TABLE_OF_ESX,
                directory: u64::from(le32(&head, 20)) * SECTOR,
                tables: needed.min(le32(&head, 24).into()),
                compressed: false,
                marked: false,
            });
        }
        if le64(&head, 56) == AT_END {
            head = looked.head(looked.len.saturating_sub(1024))?;
            if !head.starts_with(b"KDMV") {
                return Err(looked.truncated("it should end with a second header, and does not"));
            }
        }
        let (capacity, sectors, in_table) = (le64(&head, 12), le64(&head, 20), le32(&head, 44));
        // Beyond what the tool reads: it says so.
        let known = u32::try_from(sectors).ok().filter(|_| (1..=512).contains(&in_table));
        let sectors = known.unwrap_or(0);
        let of_table = u64::from(sectors) * u64::from(in_table);
        let flags = le32(&head, 8);
        Ok(Self {
            capacity,
            sectors,
            in_table,
            directory: le64(&head, 56).saturating_mul(SECTOR),
            tables: if of_table == 0 { 0 } else { capacity.div_ceil(of_table) },
            compressed: head[77] == 1,
            marked: flags & 1 << 17 != 0,
        })
    }
}

impl CheckedFile<'_> {
    fn truncated(&self, why: impl std::fmt::Display) -> Error {
        Error::corrupt(format!("{}: truncated: {why}; fetch it again", self.path.display()))
    }

    /// Where a directory says that tables are, in the order of the file, and their numbers. No two may share
    /// a byte: so what is read because of a directory is not much more than the file.
    fn tables(&self, grains: &Grains) -> Result<Vec<(u32, u64)>> {
        let damaged =
            |why: &str| Error::corrupt(format!("{}: {why}; fetch it again", self.path.display()));
        if grains.tables > MOST_TABLES {
            return Err(damaged("its header asks for a larger map than any"));
        }
        let mut tables = Vec::new();
        self.entries(grains.directory, grains.tables, |table, at| {
            if at != 0 {
                tables.push((at, table));
            }
            Ok(())
        })?;
        tables.sort_unstable();
        let sectors = (u64::from(grains.in_table) * 4).div_ceil(SECTOR);
        let overlap = |pair: &[(u32, u64)]| u64::from(pair[0].0) + sectors > pair[1].0.into();
        match tables.windows(2).any(overlap) {
            true => Err(damaged("two ranges of its disk share one table")),
            false => Ok(tables),
        }
    }

    /// `count` bytes at `at`, which belong to what the disk has at `offset`.
    fn read(&self, at: u64, count: usize, offset: u64) -> Result<Vec<u8>> {
        self.holds(at, count as u64, offset)?;
        read_up_to(self.file, self.path, at, count)
    }

    /// A header of 512 bytes.
    fn head(&self, at: u64) -> Result<Vec<u8>> {
        let head = read_up_to(self.file, self.path, at, SECTOR as usize)?;
        if head.len() as u64 == SECTOR { Ok(head) } else { Err(self.truncated("it has no header")) }
    }

    /// Calls `each` with the number and the value of each entry of a table of `count`.
    fn entries(
        &self,
        at: u64,
        count: u64,
        mut each: impl FnMut(u64, u32) -> Result<()>,
    ) -> Result<()> {
        let end = count.checked_mul(4).and_then(|bytes| at.checked_add(bytes));
        let Some(end) = end.filter(|end| *end <= self.len) else {
            return Err(self.truncated("its map lies behind the end of the file"));
        };
        let mut index = 0;
        for begin in (at..end).step_by(PIECE as usize) {
            let count = PIECE.min(end - begin) as usize;
            let piece = read_up_to(self.file, self.path, begin, count)?;
            for entry in piece.chunks_exact(4) {
                each(index, le32(entry, 0))?;
                index += 1;
            }
        }
        Ok(())
    }

    /// Refuses the file when it does not hold `len` bytes at `begin`, which the disk has at
    /// `offset`.
    fn holds(&self, begin: u64, len: u64, offset: u64) -> Result<()> {
        if begin.checked_add(len).is_some_and(|end| end <= self.len) {
            return Ok(());
        }
        let why = format!("the data of offset {offset} lies behind the end of the file");
        Err(self.truncated(why))
    }
}
