//! A file mapped into memory, for small stores without a system call: they outlive a kill of the process as
//! what write(2) wrote does.
//!
//! A store is one instruction, so that a kill leaves the old 16 bytes or the new ones. It fails where
//! write(2) would (the file system is full, storage fails, somebody cut the file short), which the kernel
//! tells by SIGBUS; [`Guarded`] has the thread go on, and the caller writes by a system call what the file may
//! not have.
//!
//! Only x86-64 has a store of 16 bytes that is known to be one instruction; elsewhere nothing is mapped.

// Safety, of all of this module and `fault`:
//
// * The mapping is shared and belongs to one `Mapping`, which unmaps it when it goes. Nobody makes a
//   reference to its bytes: other processes may change them at any time. They are stored to alone, by an
//   instruction that the compiler does not look into, at offsets that were checked against the length.
// * A thread that stores says so in `fault::USED` first, and takes it back before the `Mapping` can go.
//   The handler looks at that of its own thread, so that what it points to is live.
// * What the handler does is allowed in a handler: it loads and stores atomics, and calls membarrier(2) and
//   mmap(2).
#![allow(unsafe_code)]

mod fault;

pub use fault::{Guarded, handle_missing_pages};

use crate::fs::File;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::os::fd::AsFd;
use std::ptr;

/// The length of what is stored at once, in bytes, and what its offset is a multiple of.
pub const CELL: usize = 16;

/// The first bytes of a file, mapped.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Mapping,
}

/// The memory. Once a page is memory of this process in the place of the file's, nothing is stored any more.
#[derive(Debug)]
struct Mapping {
    start: usize,
    len: usize,
    guard: Guarded,
}

impl MappedFile {
    /// Maps the first `len` bytes of a file that is open for reading and writing, and makes it as long as
    /// that. `None` where it cannot be mapped: it is not the system's, its file system or this processor
    /// does not do it, or memory is short.
    pub fn new(file: &File, len: u64) -> Option<Self> {
        let size = usize::try_from(len).ok().filter(|size| *size > 0)?;
        if !cfg!(target_arch = "x86_64") || !file.is_system() {
            return None;
        }
        if file.len().ok()? < len {
            file.set_len(len).ok()?;
        }
        // SAFETY: a new mapping, where the kernel finds room for it.
        let start = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            mmap(ptr::null_mut(), size, access, MapFlags::SHARED, file.as_fd(), 0)
        };
        let start = start.ok()?.expose_provenance();
        let whole = std::iter::once(start..start + size);
        // SAFETY: that mapping, which the guard goes with.
        let Some(guard) = (unsafe { Guarded::new(whole) }) else {
            unmap(start, size);
            return None;
        };
        Some(Self { mapping: Mapping { start, len: size, guard } })
    }

    /// How much of the file is mapped, in bytes.
    #[allow(clippy::len_without_is_empty)] // never empty
    pub fn len(&self) -> u64 {
        self.mapping.len as u64
    }

    /// Stores cells from `offset` on, a multiple of [`CELL`]. When it returns `false` the file may have none,
    /// some or all of them, and the caller writes them; that is so from the first failure on, and behind the
    /// end of the mapping.
    #[must_use]
    pub fn store(&self, offset: u64, cells: &[[u8; CELL]]) -> bool {
        let mapping = &self.mapping;
        let end = offset.checked_add((cells.len() * CELL) as u64);
        if !offset.is_multiple_of(CELL as u64)
            || end.is_none_or(|end| end > mapping.len as u64)
            || mapping.guard.is_torn()
        {
            return false;
        }
        mapping.guard.access(|| {
            let mut at = mapping.start + offset as usize;
            for cell in cells {
                store(at, cell);
                at += CELL;
            }
        });
        !mapping.guard.was_torn()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        unmap(self.start, self.len);
    }
}

/// Unmaps what [`MappedFile::new`] mapped, and nobody stores to: that borrows what owns it.
fn unmap(start: usize, len: usize) {
    // SAFETY: as said above; both callers own the mapping.
    let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(start), len) };
    debug_assert!(unmapped.is_ok());
}

/// Stores a cell by one instruction.
#[cfg(target_arch = "x86_64")]
#[inline]
fn store(at: usize, cell: &[u8; CELL]) {
    // SAFETY: `at` is a multiple of 16 and the 16 bytes there are mapped, as `MappedFile::store` has
    // checked; the cell is readable. The instructions touch nothing else but the register named.
    unsafe {
        std::arch::asm!(
            "movups {value}, [{cell}]",
            "movaps [{at}], {value}",
            cell = in(reg) cell.as_ptr(),
            at = in(reg) at,
            value = out(xmm_reg) _,
            options(nostack, preserves_flags),
        );
    }
}

/// Is not called: nothing is mapped.
#[cfg(not(target_arch = "x86_64"))]
fn store(_: usize, _: &[u8; CELL]) {}

#[cfg(test)]
#[cfg(target_arch = "x86_64")]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::FileExt;
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    fn mapped(len: u64) -> (tempfile::NamedTempFile, MappedFile) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let map = MappedFile::new(&file.reopen().unwrap().into(), len).unwrap();
        (file, map)
    }

    #[test]
    fn what_is_stored_is_what_others_read_from_the_file() {
        let (file, map) = mapped(1 << 20);
        assert_eq!((map.len(), file.as_file().metadata().unwrap().len()), (1 << 20, 1 << 20));
        assert!(map.store(4096 - 16, &[[1; 16], [2; 16]]));
        assert!(map.store((1 << 20) - 16, &[[3; 16]]));
        let bytes = fs::read(file.path()).unwrap();
        let mut expected = vec![0; 1 << 20];
        expected[4080..4096].fill(1);
        expected[4096..4112].fill(2);
        expected[(1 << 20) - 16..].fill(3);
        assert!(bytes == expected);
        drop(map);
        assert!(fs::read(file.path()).unwrap() == expected);
    }

    #[test]
    fn a_store_beside_the_cells_or_behind_the_end_is_refused() {
        let (file, map) = mapped(4096);
        for (offset, count) in [(8, 1), (4096, 1), (4080, 2), (u64::MAX - 15, 1)] {
            assert!(!map.store(offset, &vec![[1; 16]; count]), "{offset}");
        }
        assert!(map.store(0, &[]) && fs::read(file.path()).unwrap() == [0; 4096]);
    }

    #[test]
    fn what_a_file_cannot_take_is_said_and_later_stores_are_left_to_the_caller() {
        let (file, map) = mapped(16 << 12);
        assert!(map.store(0, &[[1; 16]]));
        file.as_file().set_len(4096).unwrap();
        // As on a full file system: the page cannot be had.
        assert!(!map.store(3 << 12, &[[2; 16]]));
        assert!(!map.store(0, &[[3; 16]]), "a mapping with a page that is not the file's");
        let mut first = [0; 16];
        file.as_file().read_exact_at(&mut first, 0).unwrap();
        assert_eq!((first, file.as_file().metadata().unwrap().len()), ([1; 16], 4096));
        // Others are as they were.
        let (other, map) = mapped(4096);
        assert!(map.store(16, &[[4; 16]]) && fs::read(other.path()).unwrap()[16] == 4);
    }

    #[test]
    fn no_store_is_said_to_be_in_the_file_that_is_not() {
        for round in 0..50 {
            let (file, map) = mapped(8 << 12);
            std::thread::scope(|scope| {
                for thread in 0..4_u64 {
                    let (map, file) = (&map, &file);
                    scope.spawn(move || {
                        for i in 0..512 {
                            let at = i % 8 * 4096 + thread * 1024 + i / 8 * 16;
                            let cell = [1 + i as u8 % 200; 16];
                            if thread == 0 && i == 100 + round {
                                // One page goes, and comes back empty.
                                file.as_file().set_len(7 << 12).unwrap();
                                file.as_file().set_len(8 << 12).unwrap();
                            }
                            let stored = map.store(at, &[cell]);
                            if i % 8 == 7 {
                                continue;
                            }
                            let mut found = [0; 16];
                            file.as_file().read_exact_at(&mut found, at).unwrap();
                            assert!(!stored || found == cell, "{thread} {i}");
                        }
                    });
                }
            });
        }
    }

    #[test]
    fn a_thread_goes_on_with_zeroes_where_guarded_memory_has_gone() {
        let (file, map) = mapped(8 << 12);
        let guard = &map.mapping.guard;
        assert!(map.store(0, &[[1; 16]]));
        let byte = |at: usize| {
            let at = ptr::with_exposed_provenance::<u8>(map.mapping.start + at);
            // SAFETY: mapped, and guarded by who calls this.
            unsafe { at.read_volatile() }
        };
        let (_other, inner) = mapped(4096);
        let found = guard.access(|| {
            // The guard is this one's again behind the use of another one within it.
            assert!(inner.store(0, &[[2; 16]]));
            file.as_file().set_len(4096).unwrap();
            (byte(0), byte(5 << 12))
        });
        assert_eq!(found, (1, 0));
        assert!(guard.is_torn() && !inner.mapping.guard.is_torn());
    }

    #[test]
    fn a_fault_that_is_not_a_store_ends_the_process_as_ever() {
        const CHILD: &str = "SOJOURN_TEST_FAULT";
        if std::env::var_os(CHILD).is_some() {
            let (file, map) = mapped(4096);
            file.as_file().set_len(0).unwrap();
            // SAFETY: reads mapped memory whose page the file does not have: the kernel ends the process.
            unsafe { ptr::with_exposed_provenance::<u8>(map.mapping.start).read_volatile() };
            return;
        }
        let name = "mapped::tests::a_fault_that_is_not_a_store_ends_the_process_as_ever";
        let status = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(CHILD, "1")
            .output()
            .unwrap()
            .status;
        assert_eq!(status.signal(), Some(libc::SIGBUS));
    }
}
