//! The one module with `unsafe`: a socket's registration with the runtime, for one direction alone.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A socket that is registered with the runtime.
pub(super) type Registered = AsyncFd<Arc<OwnedFd>>;

/// Registers `socket` with the runtime of the caller, which learns of what `interest` names.
///
/// # Errors
/// [`Other`](io::ErrorKind::Other) outside a runtime; the kinds of `epoll_ctl`, such as
/// [`OutOfMemory`](io::ErrorKind::OutOfMemory).
pub(super) fn register(socket: Arc<OwnedFd>, interest: Interest) -> io::Result<Registered> {
    // SAFETY: the descriptor must be open, and the same, as long as the registration lives. That
    // owns a share of the `OwnedFd`, which nobody can take out of a share or change: it is closed
    // after the registration, and its number is the same all the time.
    let registered = unsafe { AsyncFd::register_with_interest(socket, interest) };
    registered.map_err(io::Error::from)
}
