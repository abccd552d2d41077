//! What tells the front end, or the guest, that something happened: a descriptor of the front end's, which
//! it may change at any time.
//!
//! An eventfd takes a count without waiting, but for one that is almost full: that is the work of somebody
//! who means harm, and whoever waits at it is freed when its ring is to end. To look for room each time would
//! cost every interrupt a system call. At all else it is looked for. The flags are left as they are: the
//! front end reads by the same file description, and may rely on waiting there.

use block::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

/// A descriptor of the front end's that the server keeps, to tell by or to be told by: an eventfd or a pipe.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for anything else. A socket may be the front end's own end of the
/// connection, which would then never be over, and hold the disk; so may what a ring of io_uring keeps. A file
/// may be on a file system that hangs whoever looks at it.
pub(crate) fn event(file: File) -> Result<OwnedFd> {
    let status = fstat(&file).map_err(|e| Error::io("what a front end tells by", e.into()))?;
    let good = match FileType::from_raw_mode(status.st_mode) {
        FileType::Fifo => true,
        // What has no type is the kernel's own.
        FileType::Unknown => status.st_mode & 0o170_000 == 0 && is_eventfd(&file) != Some(false),
        _ => false,
    };
    match good {
        true => Ok(file.into()),
        false => Err(Error::invalid(
            "what a front end tells by, or is told by, is no eventfd and no pipe",
        )),
    }
}

/// What the front end kicks with: an eventfd. A pipe would have to be read, or it fills up and whoever kicks waits
/// for ever; a read of it may be one that somebody else waits for.
///
/// # Errors
/// [`Invalid`](block::ErrorKind::Invalid) for anything else.
pub(crate) fn kick(file: File) -> Result<OwnedFd> {
    let kick = event(file)?;
    let is_pipe = fstat(&kick)
        .map_err(|e| Error::io("what a front end kicks with", e.into()))
        .map(|status| FileType::from_raw_mode(status.st_mode) == FileType::Fifo)?;
    if is_pipe {
        return Err(Error::invalid("what a front end kicks with is a pipe: an eventfd is needed"));
    }
    Ok(kick)
}

/// Whether it is an eventfd; `None` where that is not to be found out.
fn is_eventfd(event: &impl AsFd) -> Option<bool> {
    let file = std::fs::read_link(format!("/proc/self/fd/{}", event.as_fd().as_raw_fd()));
    file.ok().map(|file| file == Path::new("anon_inode:[eventfd]"))
}

/// A descriptor of the front end's.
#[derive(Debug)]
pub(crate) struct Notifier {
    event: OwnedFd,
    is_eventfd: bool,
}

impl Notifier {
    /// Tells by `event`.
    pub(crate) fn new(event: OwnedFd) -> Self {
        let is_eventfd = is_eventfd(&event) == Some(true);
        Self { event, is_eventfd }
    }

    /// Counts an event; what cannot be told is the front end's own loss. It may wait until
    /// [freed](Self::free).
    #[inline]
    pub(crate) fn tell(&self) {
        if self.is_eventfd {
            signal(&self.event);
        } else {
            self.tell_if_there_is_room();
        }
    }

    /// The same, without waiting.
    pub(crate) fn tell_if_there_is_room(&self) {
        if self.has_room() {
            signal(&self.event);
        }
    }

    fn has_room(&self) -> bool {
        let mut polled = [PollFd::new(&self.event, PollFlags::OUT)];
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().contains(PollFlags::OUT)
    }

    /// Frees whoever waits in [`tell`](Self::tell).
    pub(crate) fn free(&self) {
        if !self.is_eventfd || self.has_room() {
            return;
        }
        // What is full is read, which makes room; it must not be waited for what somebody else reads first.
        let Ok(flags) = fcntl_getfl(&self.event) else { return };
        if fcntl_setfl(&self.event, flags | OFlags::NONBLOCK).is_ok() {
            let _ = rustix::io::read(&self.event, &mut [0; 8]);
            let _ = fcntl_setfl(&self.event, flags);
        }
    }
}

/// Counts an event.
pub(crate) fn signal(event: &OwnedFd) {
    let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
}
