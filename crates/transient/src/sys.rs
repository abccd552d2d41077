//! System calls that need `unsafe`: locking memory, writing pages out, the kernel's keyring, the ioctls of
//! device-mapper, loop devices and optical drives, a process that waits in place of this one.
//!
//! Why each is sound is written at its call. Nothing else in this crate is unsafe.

#![allow(unsafe_code)]

use crate::identity::DiskIdentity;
use block::Span;
use rustix::io::Errno;
use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

fn check(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Keeps the pages of `value` in memory, and out of core dumps.
pub(crate) fn lock<T>(value: &T) -> io::Result<()> {
    let (start, len) = (std::ptr::from_ref(value).cast_mut().cast(), size_of::<T>());
    // SAFETY: the range is that of a live value. Locking changes no byte of it, and leaving a
    // range out of core dumps is advice about memory, not a change to it.
    unsafe {
        check(libc::mlock(start, len))?;
        let _ = check(libc::madvise(start, len, libc::MADV_DONTDUMP));
    }
    Ok(())
}

/// Keeps pages of this thread's own stack in memory, and out of core dumps.
pub(crate) fn lock_stack(start: usize, len: usize) -> io::Result<()> {
    let start = std::ptr::without_provenance_mut(start);
    // SAFETY: neither call reads or changes a byte through the pointer. A range that is not mapped,
    // or that this process may not lock, makes them fail.
    unsafe {
        check(libc::mlock(start, len))?;
        let page = 4096;
        let aligned = start.map_addr(|at| at / page * page);
        let _ = libc::madvise(aligned, len + (start.addr() - aligned.addr()), libc::MADV_DONTDUMP);
    }
    Ok(())
}

/// Undoes [`lock`].
pub(crate) fn unlock<T>(value: &T) {
    let (start, len) = (std::ptr::from_ref(value).cast_mut().cast(), size_of::<T>());
    // SAFETY: as in `lock`. A failure leaves a page locked that nobody needs locked.
    unsafe {
        let _ = libc::madvise(start, len, libc::MADV_DODUMP);
        let _ = libc::munlock(start, len);
    }
}

/// Has the kernel write out what the page cache holds of `span`, and waits for that. The disk's own cache is
/// not flushed.
pub(crate) fn write_out(file: impl AsFd, span: Span) -> io::Result<()> {
    let wanted = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let offset =
        |at: u64| i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (start, len) = (offset(span.offset())?, offset(span.len())?);
    // SAFETY: four integers, one of which is a descriptor that is open during the call.
    check(unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), start, len, wanted) })
}

/// What a loop device stands on; `None` when it is not attached. The kernel asks the file system of that file, and
/// waits for as long as it takes; who is [apart] may.
pub(crate) fn loop_backing(device: impl AsFd) -> Result<Option<DiskIdentity>, Errno> {
    /// `LOOP_GET_STATUS64` of `linux/loop.h`.
    const STATUS: u32 = 0x4C05;
    /// `struct loop_info64`: the numbers of the file system, the file, and the device if it is one.
    #[repr(C)]
    struct Info {
        device: u64,
        inode: u64,
        rdevice: u64,
        rest: [u8; 208],
    }
    let mut info = Info { device: 0, inode: 0, rdevice: 0, rest: [0; 208] };
    // SAFETY: a loop device writes one `loop_info64`, which `info` has the size and layout of. Other
    // devices do not know the request, and fail.
    let asked = unsafe { libc::ioctl(device.as_fd().as_raw_fd(), STATUS.into(), &raw mut info) };
    if asked != -1 {
        return Ok(Some(match info.rdevice {
            0 => DiskIdentity::File(info.device, info.inode),
            device => DiskIdentity::Device(device),
        }));
    }
    // SAFETY: the address of this thread's own error number.
    match Errno::from_raw_os_error(unsafe { *libc::__errno_location() }) {
        Errno::NXIO => Ok(None),
        error => Err(error),
    }
}

/// Does `work` in a process of its own that shares this one's memory, and waits for it: whoever waits for a file
/// system that does not answer cannot even be killed, and a process whose thread does so never ends, nor lets go of
/// what it holds. The other process has none of this one's files open.
///
/// `work` makes system calls and writes to memory of its own, and nothing else: it does not allocate, lock or panic.
pub(crate) fn apart(mut work: &mut dyn FnMut()) -> io::Result<()> {
    const STACK: usize = 256 << 10;
    extern "C" fn start(work: *mut libc::c_void) -> libc::c_int {
        // SAFETY: the argument is the `work` of the caller, which waits. Closing the numbers of files touches no
        // memory, and this process has a table of its own.
        unsafe {
            if libc::syscall(libc::SYS_close_range, 0, libc::c_uint::MAX, 0) != 0 {
                // Before Linux 5.9.
                (0..1 << 16).for_each(|number| _ = libc::close(number));
            }
            (*work.cast::<&mut dyn FnMut()>())();
        }
        0
    }
    let mut stack = vec![0_u128; STACK / size_of::<u128>()];
    let flags = libc::CLONE_VM | libc::CLONE_VFORK;
    // SAFETY: the new process runs on a stack of its own, and its memory is this one's: with CLONE_VFORK, this
    // thread stands still until it has ended, and keeps what it uses. Without a signal that is let in, nothing of
    // this process runs there but `start`. When this process is killed meanwhile, the kernel keeps the memory.
    let child = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        let top = stack.as_mut_ptr_range().end.cast();
        let child = libc::clone(start, top, flags, (&raw mut work).cast());
        let error = io::Error::last_os_error();
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        if child == -1 { Err(error) } else { Ok(child) }
    }?;
    // SAFETY: it has ended, and is only taken off the kernel's list; nothing is written.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::__WALL) };
    Ok(())
}

/// Whether an optical drive says that no disc is in it, or that its tray is open. Other devices do not.
pub(crate) fn has_no_disc(device: &File) -> bool {
    /// `CDROM_DRIVE_STATUS` of `linux/cdrom.h`, of the disc that the drive has now (`CDSL_CURRENT`).
    const STATUS: u32 = 0x5326;
    const CURRENT: libc::c_int = libc::c_int::MAX;
    /// `CDS_NO_DISC`, `CDS_TRAY_OPEN`.
    const EMPTY: [libc::c_int; 2] = [1, 2];
    // SAFETY: the argument is an integer, and nothing is read or written through it. Other devices do not know
    // the request, and fail.
    EMPTY.contains(&unsafe { libc::ioctl(device.as_raw_fd(), STATUS.into(), CURRENT) })
}

/// A key of type `logon` in this process's keyring: the kernel can use it, nobody can read it.
#[derive(Debug)]
pub(crate) struct KernelKey(libc::c_long);

impl KernelKey {
    /// Adds a key.
    pub(crate) fn add(description: &CStr, bytes: &[u8]) -> io::Result<Self> {
        // SAFETY: add_key(2) reads the two strings and `bytes.len()` bytes during the call.
        let serial = unsafe {
            libc::syscall(
                libc::SYS_add_key,
                c"logon".as_ptr(),
                description.as_ptr(),
                bytes.as_ptr(),
                bytes.len(),
                libc::KEY_SPEC_PROCESS_KEYRING,
            )
        };
        if serial == -1 { Err(io::Error::last_os_error()) } else { Ok(Self(serial)) }
    }
}

impl Drop for KernelKey {
    fn drop(&mut self) {
        // SAFETY: keyctl(2) with two integers. What a key that cannot be removed leaves ends with
        // the process, whose keyring it is in.
        unsafe {
            libc::syscall(
                libc::SYS_keyctl,
                libc::KEYCTL_UNLINK,
                self.0,
                libc::KEY_SPEC_PROCESS_KEYRING,
            );
        }
    }
}

/// An ioctl whose argument starts with a header that holds the length of all of `buffer`, such as
/// device-mapper's.
pub(crate) fn ioctl(file: &File, request: u32, buffer: &mut [u8]) -> io::Result<()> {
    // SAFETY: the caller of this crate-private function passes a device-mapper request, which reads
    // and writes at most `data_size` bytes; `dm::ioctl` sets that field to `buffer.len()`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), request.into(), buffer.as_mut_ptr()) })
}
