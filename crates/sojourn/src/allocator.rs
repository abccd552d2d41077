//! How the C library's allocator treats a process that lives for months.
//!
//! By itself it gives every few threads an arena of their own, eight for each processor, and learns from
//! the first large block that is freed to take such blocks from the arenas, too: what a snapshot or a
//! burst of requests needed once stays with the process, spread over all arenas. So there are few of
//! them, and what is large comes from the system and goes back there.

// `mallopt` is a call of the C library.
#![allow(unsafe_code)]

/// Blocks from this size on come from the system, in bytes; so much may be free at an arena's end.
#[cfg(target_env = "gnu")]
const LARGE: libc::c_int = 1 << 20;

/// Has memory go back to the system that is no longer needed. To be called before there are threads.
pub(crate) fn give_back() {
    #[cfg(target_env = "gnu")]
    {
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let arenas = libc::c_int::try_from(processors.max(2)).unwrap_or(libc::c_int::MAX);
        for (what, value) in [
            (libc::M_ARENA_MAX, arenas),
            (libc::M_MMAP_THRESHOLD, LARGE),
            (libc::M_TRIM_THRESHOLD, LARGE),
        ] {
            // SAFETY: takes two numbers, and refuses values that it does not know: then it stays as
            // it was.
            unsafe { libc::mallopt(what, value) };
        }
    }
}
