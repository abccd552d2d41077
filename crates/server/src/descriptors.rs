//! How many files and sockets the process may have open.

use block::Error;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the system allows; every connection and every disk takes some. The
/// low default is for programs that use select(2), which this one does not.
pub fn raise() {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let _ = setrlimit(Resource::Nofile, raised); // it works with fewer
    }
}

/// How many there may be; the highest number when there is no limit.
pub fn limit() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Whether something failed because there are that many already.
pub fn are_lacking(error: &Error) -> bool {
    let cause = std::error::Error::source(error).and_then(|e| e.downcast_ref::<std::io::Error>());
    cause.and_then(Errno::from_io_error) == Some(Errno::MFILE)
}

/// How many connections leave a quarter of the descriptors to disks and the store: each takes one,
/// whatever its client does.
pub(crate) fn connections() -> usize {
    let limit = limit();
    usize::try_from(limit - limit / 4).map_or(usize::MAX, |most| most.max(1))
}
