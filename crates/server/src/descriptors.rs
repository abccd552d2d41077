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

/// How many the process's table of descriptors has room for from the start: 256 KiB of the kernel's memory.
const ROOM: u64 = 32 << 10;

/// Makes the table large, which must be done while there is one thread. In a process with several the kernel waits
/// for a grace period of RCU whenever it enlarges the table, some 10 to 30 ms, and so does every thread that opens
/// something meanwhile: the first writes of 50 new disks were held up.
pub fn make_room() {
    let highest = i32::try_from(ROOM.min(limit()).saturating_sub(1)).unwrap_or(i32::MAX);
    // It works with a small one.
    let _ = rustix::io::fcntl_dupfd_cloexec(std::io::stderr(), highest);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_room_before_it_is_needed() {
        make_room();
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let size = status.lines().find_map(|line| line.strip_prefix("FDSize:")).unwrap();
        assert!(size.trim().parse::<u64>().unwrap() >= ROOM.min(limit()));
    }
}
