//! Error kinds and error numbers.

use super::constants::{errno, option_reply};
use block::ErrorKind;

/// The number that a failed request is answered with.
pub const fn number(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::Invalid => errno::EINVAL,
        ErrorKind::NoSpace => errno::ENOSPC,
        ErrorKind::Denied | ErrorKind::Fenced => errno::EPERM,
        ErrorKind::Unsupported => errno::ENOTSUP,
        _ => errno::EIO,
    }
}

/// The kind of a request's error number. Unknown numbers count as `EINVAL`, as the specification
/// asks.
pub const fn kind(number: u32) -> ErrorKind {
    match number {
        errno::EPERM => ErrorKind::Denied,
        errno::EIO | errno::ENOMEM | errno::ESHUTDOWN => ErrorKind::Unavailable,
        errno::ENOSPC => ErrorKind::NoSpace,
        errno::ENOTSUP => ErrorKind::Unsupported,
        _ => ErrorKind::Invalid,
    }
}

/// The error that an option is refused with.
pub const fn option_number(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::Invalid => option_reply::ERR_INVALID,
        ErrorKind::Denied | ErrorKind::Conflict | ErrorKind::Fenced => option_reply::ERR_POLICY,
        ErrorKind::Unsupported => option_reply::ERR_UNSUP,
        _ => option_reply::ERR_UNKNOWN,
    }
}

/// The kind of an option's error.
pub const fn option_kind(number: u32) -> ErrorKind {
    match number {
        option_reply::ERR_UNSUP | option_reply::ERR_PLATFORM => ErrorKind::Unsupported,
        option_reply::ERR_POLICY | option_reply::ERR_TLS_REQD => ErrorKind::Denied,
        option_reply::ERR_UNKNOWN => ErrorKind::NotFound,
        option_reply::ERR_SHUTDOWN => ErrorKind::Unavailable,
        _ => ErrorKind::Invalid,
    }
}
