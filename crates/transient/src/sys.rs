//! System calls that need `unsafe`: locking memory, the kernel's keyring, device-mapper's ioctl,
//! asking for locks (rustix cannot be told of one that belongs to no process).
//!
//! Why each is sound is written at its call. Nothing else in this crate is unsafe.

#![allow(unsafe_code)]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

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

/// Undoes [`lock`].
pub(crate) fn unlock<T>(value: &T) {
    let (start, len) = (std::ptr::from_ref(value).cast_mut().cast(), size_of::<T>());
    // SAFETY: as in `lock`. A failure leaves a page locked that nobody needs locked.
    unsafe {
        let _ = libc::madvise(start, len, libc::MADV_DODUMP);
        let _ = libc::munlock(start, len);
    }
}

/// Whether somebody else has locked a range of the file, for a process or for an open file.
pub(crate) fn has_locked_ranges(file: &File) -> io::Result<bool> {
    // SAFETY: `flock` is integers only, for which zero is a value: from the start to the end.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: F_GETLK reads and writes one `flock`, which is live, and changes no lock.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) })?;
    Ok(lock.l_type != libc::F_UNLCK as libc::c_short)
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
