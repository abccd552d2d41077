//! How many files and sockets the process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows; every connection and every disk takes some. The
/// low default is for programs that use select(2), which this one does not.
pub(crate) fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, raised); // it works with fewer
    }
}

/// How many connections leave a quarter of the descriptors to disks and the store.
pub(crate) fn connections() -> usize {
    getrlimit(Resource::Nofile)
        .current
        .and_then(|limit| usize::try_from(limit).ok())
        .map_or(usize::MAX, |limit| (limit - limit / 4).max(1))
}
