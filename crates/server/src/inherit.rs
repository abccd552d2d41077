//! Sockets that the service manager opened for us (LISTEN_FDS of sd_listen_fds(3)).
//!
//! The one module with `unsafe`: turning the numbers 3, 4, … into owned descriptors.

#![allow(unsafe_code)]

use block::{Error, Result};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

const FIRST: RawFd = 3;
const MAXIMUM: RawFd = 1024;

static TAKEN: AtomicBool = AtomicBool::new(false);

/// Takes the sockets that were passed to this process; none the second time.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) when the environment speaks of sockets that are not
/// there.
pub(crate) fn sockets() -> Result<Vec<OwnedFd>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|v| v.parse::<u32>().ok());
    let count = match (number("LISTEN_PID"), number("LISTEN_FDS")) {
        (Some(pid), Some(count)) if pid == std::process::id() => count,
        _ => return Ok(Vec::new()),
    };
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(Vec::new());
    }
    let count = RawFd::try_from(count).ok().filter(|count| *count <= MAXIMUM).ok_or_else(|| {
        Error::invalid(format!("LISTEN_FDS={count} is too many; at most {MAXIMUM} are taken"))
    })?;
    (FIRST..FIRST + count).map(take).collect()
}

fn take(fd: RawFd) -> Result<OwnedFd> {
    if !std::path::Path::new(&format!("/proc/self/fd/{fd}")).exists() {
        return Err(Error::invalid(format!(
            "LISTEN_FDS names descriptor {fd}, which is not open; start this from a socket unit"
        )));
    }
    // SAFETY: the descriptor is open (checked above). The protocol of LISTEN_FDS gives it to the
    // process whose id LISTEN_PID is, which is us; this runs before anything of ours opens files
    // that it closes by number; and TAKEN makes sure that it is taken once.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC)
        .map_err(|e| Error::io(format!("descriptor {fd} of LISTEN_FDS"), e.into()))?;
    Ok(socket)
}
