//! Where the bytes of a file lie on its device, and what that device is: for whoever orders reads by where
//! a disk's head is. The one module of `fs` with `unsafe`.
//!
//! The argument for it: `FIEMAP` is a request to the file system that writes into the memory it is given, a
//! header and as many extents as the header says there is room for. Here that is one, in a structure of the
//! kernel's layout that lives on the stack for the time of the call. `mincore` asks of a mapping which of its pages
//! are in memory; the mapping is made for that, nobody reads from it, and it is gone before the function returns.

#![allow(unsafe_code)]

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The block device that a file system is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockDevice {
    /// Bytes of the whole disk.
    pub size: u64,
    /// Where the partition begins that the file system is on, in bytes; 0 when it has all of the disk.
    pub start: u64,
}

impl BlockDevice {
    /// The device of the file system that `path` is on; `None` when that is on none (a network, memory), on
    /// several, or the kernel does not tell. Reads sysfs.
    pub fn of(path: &Path) -> Option<Self> {
        let number = fs::metadata(path).ok()?.dev();
        let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
        let own = Path::new("/sys/dev/block").join(format!("{major}:{minor}"));
        let own = fs::canonicalize(own).ok()?;
        // A partition's folder is in that of its disk.
        let disk = if own.join("queue").exists() { own.clone() } else { own.parent()?.to_owned() };
        let number = |path: &Path| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
        let start = if own == disk { 0 } else { number(&own.join("start"))? };
        Some(Self {
            size: number(&disk.join("size"))?.checked_mul(512)?,
            start: start.checked_mul(512)?,
        })
    }
}

/// `struct fiemap` of `linux/fiemap.h` with room for one extent.
#[repr(C)]
#[derive(Default)]
struct Fiemap {
    start: u64,
    length: u64,
    flags: u32,
    mapped_extents: u32,
    extent_count: u32,
    reserved: u32,
    extent: FiemapExtent,
}

#[repr(C)]
#[derive(Default)]
struct FiemapExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `_IOWR('f', 11, struct fiemap)`, whose size there is that of the header.
const FS_IOC_FIEMAP: u32 = 0xC020_660B;

/// The longest range of which anybody is told whether it is in memory, in bytes.
const MOST_MAPPED: usize = 64 << 20;

/// Extents of which there is no place on the device, or that share it with others: unknown, not allocated
/// yet, encoded, not aligned, and data in an inode or behind another file's end.
const NOWHERE: u32 = 0x2 | 0x4 | 0x8 | 0x100 | 0x200 | 0x400;

/// Where the byte of a file at `offset` is on the device of its file system, counted from that one's begin;
/// `None` for a hole, and where the file system does not tell. Asks for no byte of the file; may read the
/// file system's own records of it.
pub(super) fn device_position(file: &fs::File, offset: u64) -> Option<u64> {
    let mut map = Fiemap { start: offset, length: 1, extent_count: 1, ..Fiemap::default() };
    // SAFETY: the descriptor is open for as long as `file` is, and `map` has the layout that the request
    // is defined for, with room for the one extent that it says there is room for.
    let done = unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_FIEMAP.into(), &raw mut map) };
    let extent = &map.extent;
    let is_found = done == 0 && map.mapped_extents == 1 && extent.flags & NOWHERE == 0;
    let inside = offset.checked_sub(extent.logical).filter(|inside| *inside < extent.length);
    inside.filter(|_| is_found).and_then(|inside| extent.physical.checked_add(inside))
}

/// Whether the page cache has all of a range of a file; `false` also when the kernel does not tell, as with a file that
/// this process may not write. Nothing is read for it.
pub(super) fn is_in_memory(file: &fs::File, offset: u64, len: usize) -> bool {
    // SAFETY: takes a number and gives one.
    let Ok(page @ 1..) = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }) else {
        return false;
    };
    let inside = (offset % page as u64) as usize;
    let Some(mapped) = len.checked_add(inside).filter(|mapped| (1..=MOST_MAPPED).contains(mapped))
    else {
        return false;
    };
    let Ok(start) = libc::off_t::try_from(offset - inside as u64) else { return false };
    let mut pages = vec![0u8; mapped.div_ceil(page)];
    // SAFETY: a new mapping, at an address of the kernel's choice, that is only asked about and then unmapped as
    // it was made; `pages` has a byte for each of its pages.
    let known = unsafe {
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED);
        let fd = file.as_raw_fd();
        let at = libc::mmap(std::ptr::null_mut(), mapped, read, shared, fd, start);
        if at == libc::MAP_FAILED {
            return false;
        }
        let known = libc::mincore(at, mapped, pages.as_mut_ptr()) == 0;
        libc::munmap(at, mapped) == 0 && known
    };
    known && pages.iter().all(|page| page & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn the_structure_has_the_size_that_the_kernel_gives_it() {
        assert_eq!(size_of::<FiemapExtent>(), 56);
        assert_eq!(size_of::<Fiemap>(), 32 + 56);
    }

    #[test]
    fn a_file_s_bytes_follow_each_other_within_a_page_where_the_file_system_tells() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&[7; 1 << 20]).unwrap();
        file.sync_all().unwrap();
        let Some(first) = device_position(&file, 0) else { return };
        assert_eq!(device_position(&file, 4095), Some(first + 4095));
        assert_eq!(device_position(&file, 1 << 20), None, "behind the end");
        if let Some(device) = BlockDevice::of(&path) {
            assert!(device.start + first < device.size, "{device:?} {first}");
        }
    }

    #[test]
    fn what_was_just_written_is_in_memory_and_what_is_not_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let mut file = fs::File::create_new(dir.path().join("file")).unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        drop(file);
        let file =
            fs::File::options().read(true).write(true).open(dir.path().join("file")).unwrap();
        assert!(is_in_memory(&file, 0, 100_000));
        assert!(is_in_memory(&file, 4097, 5000));
        assert!(!is_in_memory(&file, 0, 0), "nothing");
        assert!(!is_in_memory(&file, 1 << 30, 1), "behind the end");
        assert!(!is_in_memory(&file, u64::MAX, usize::MAX));
    }

    #[test]
    fn memory_is_no_block_device() {
        assert_eq!(BlockDevice::of(Path::new("/proc/self/status")), None);
        assert_eq!(BlockDevice::of(Path::new("/there/is/nothing")), None);
    }
}
