//! What tells the front end, or the guest, that something happened: a descriptor of the front end's, which
//! may be anything, and which it may change at any time.
//!
//! An eventfd takes a count without waiting, but for one that is almost full: that is the work of somebody
//! who means harm, and whoever waits at it is freed when its ring is to end. To look for room each time would
//! cost every interrupt a system call. At all else it is looked for. The flags are left as they are: the
//! front end reads by the same file description, and may rely on waiting there.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

/// A descriptor of the front end's.
#[derive(Debug)]
pub(crate) struct Notifier {
    event: OwnedFd,
    is_eventfd: bool,
}

impl Notifier {
    /// Tells by `event`.
    pub(crate) fn new(event: OwnedFd) -> Self {
        let file = std::fs::read_link(format!("/proc/self/fd/{}", event.as_raw_fd()));
        let is_eventfd = file.is_ok_and(|file| file == Path::new("anon_inode:[eventfd]"));
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
