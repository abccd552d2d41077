//! Locks of an open file description on ranges of bytes. Rustix has only a process's, which
//! any close of the same file gives up.

#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Locks one byte for reading: others can do so too, and nobody can lock it for writing.
pub(super) fn share(file: &File, byte: u64) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_RDLCK, byte, 1).map(drop)
}

/// Gives up every range that this open file description has locked.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    call(file, libc::F_OFD_SETLK, libc::F_UNLCK, 0, 0).map(drop)
}

/// Whether somebody else has locked a byte of the range, in any way. A length of 0 reaches up to the
/// end of all files.
pub(super) fn is_locked(file: &File, start: u64, len: u64) -> io::Result<bool> {
    let found = call(file, libc::F_OFD_GETLK, libc::F_WRLCK, start, len)?;
    Ok(found != libc::F_UNLCK as libc::c_short)
}

/// Calls fcntl(2); returns the type of lock that the kernel answers with.
fn call(
    file: &File,
    command: libc::c_int,
    kind: libc::c_int,
    start: u64,
    len: u64,
) -> io::Result<libc::c_short> {
    // SAFETY: `flock` is integers only, for which zero is a value. Open file description locks want
    // `l_pid` to be 0.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = start.cast_signed();
    lock.l_len = len.cast_signed();
    // SAFETY: these commands read and write one `flock`, which is live, and touch no other memory.
    if unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(lock.l_type)
}
