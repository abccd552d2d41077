//! Errors by what the caller can do about them.

use std::fmt;
use std::io;

/// The result of every fallible operation of the project's libraries.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a caller can do about an error. The command's exit code and the NBD error number follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request or the input is wrong; repeating it cannot help.
    Invalid,
    /// The named thing does not exist.
    NotFound,
    /// It exists already, or somebody else holds it.
    Conflict,
    /// A newer owner took over; this one must stop.
    Fenced,
    /// The thing behind (disk, network, server) fails or cannot be reached; trying again may help.
    Unavailable,
    /// Stored data is damaged: a checksum or a hash does not match, or a format rule is broken.
    Corrupt,
    /// No room is left.
    NoSpace,
    /// Not allowed: read-only, or the caller lacks the right.
    Denied,
    /// A valid request that this device or build does not offer.
    Unsupported,
    /// A fault of this program.
    Internal,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [Self; 10] = [
        Self::Invalid,
        Self::NotFound,
        Self::Conflict,
        Self::Fenced,
        Self::Unavailable,
        Self::Corrupt,
        Self::NoSpace,
        Self::Denied,
        Self::Unsupported,
        Self::Internal,
    ];

    /// The kind in words, for logs and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Invalid => "invalid",
            Self::NotFound => "not found",
            Self::Conflict => "conflict",
            Self::Fenced => "fenced",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::NoSpace => "no space",
            Self::Denied => "denied",
            Self::Unsupported => "unsupported",
            Self::Internal => "internal",
        }
    }

    /// The process exit code of a command that ends with this kind.
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Internal => 1,
            Self::Invalid => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::Fenced => 5,
            Self::Unavailable => 6,
            Self::Corrupt => 7,
            Self::NoSpace => 8,
            Self::Denied => 9,
            Self::Unsupported => 10,
        }
    }

    /// The kind that a process ended with; [`Internal`](Self::Internal) for a code that stands for none.
    pub fn of_exit_code(code: u8) -> Self {
        Self::ALL.into_iter().find(|kind| kind.exit_code() == code).unwrap_or(Self::Internal)
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

type ErrorSource = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An error: a kind to act upon, a lower-case message that names the thing and the remedy, and
/// what caused it. Small (one pointer), because it travels through every hot result.
pub struct Error(Box<ErrorDetails>);

struct ErrorDetails {
    kind: ErrorKind,
    message: String,
    source: Option<ErrorSource>,
}

macro_rules! constructors {
    ($($name:ident => $kind:ident, $doc:literal;)*) => { $(
        #[doc = $doc]
        pub fn $name(message: impl Into<String>) -> Self {
            Self::new(ErrorKind::$kind, message)
        }
    )* };
}

impl Error {
    /// An error of `kind`; `message` is lower-case and names the thing and the remedy.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self(Box::new(ErrorDetails { kind, message: message.into(), source: None }))
    }

    constructors! {
        invalid => Invalid, "An [`ErrorKind::Invalid`] error.";
        not_found => NotFound, "An [`ErrorKind::NotFound`] error.";
        conflict => Conflict, "An [`ErrorKind::Conflict`] error.";
        fenced => Fenced, "An [`ErrorKind::Fenced`] error.";
        unavailable => Unavailable, "An [`ErrorKind::Unavailable`] error.";
        corrupt => Corrupt, "An [`ErrorKind::Corrupt`] error.";
        no_space => NoSpace, "An [`ErrorKind::NoSpace`] error.";
        denied => Denied, "An [`ErrorKind::Denied`] error.";
        unsupported => Unsupported, "An [`ErrorKind::Unsupported`] error.";
        internal => Internal, "An [`ErrorKind::Internal`] error.";
    }

    /// The same error with what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<ErrorSource>) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error, its message preceded by `context` and a colon.
    #[must_use]
    pub fn context(mut self, context: impl fmt::Display) -> Self {
        self.0.message = format!("{context}: {}", self.0.message);
        self
    }

    /// The error of an I/O call on `what` (a path, a socket), its kind taken from the call's.
    pub fn io(what: impl fmt::Display, source: io::Error) -> Self {
        let kind = match source.kind() {
            io::ErrorKind::NotFound => ErrorKind::NotFound,
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                ErrorKind::Denied
            }
            io::ErrorKind::AlreadyExists | io::ErrorKind::AddrInUse => ErrorKind::Conflict,
            io::ErrorKind::StorageFull
            | io::ErrorKind::QuotaExceeded
            | io::ErrorKind::FileTooLarge => ErrorKind::NoSpace,
            io::ErrorKind::InvalidInput => ErrorKind::Invalid,
            io::ErrorKind::Unsupported => ErrorKind::Unsupported,
            _ => ErrorKind::Unavailable,
        };
        let remedy = match kind {
            ErrorKind::NoSpace => "; free some room and try again",
            _ => "",
        };
        Self::new(kind, format!("{what}: {source}{remedy}")).with_source(source)
    }

    /// What the caller can do.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The message, without the causes.
    pub fn message(&self) -> &str {
        &self.0.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.0.kind, self.0.message)?;
        match &self.0.source {
            Some(source) => write!(f, " ({source:?})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_ref().map(|source| source.as_ref() as _)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_io_error_keeps_what_the_caller_can_do() {
        let full = Error::io("/x", io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().starts_with("/x: "));
        let gone = Error::io("/y", io::Error::from(io::ErrorKind::NotFound));
        assert_eq!(gone.kind(), ErrorKind::NotFound);
    }

    #[test]
    fn exit_codes_are_distinct_and_not_zero() {
        let all = ErrorKind::ALL;
        let codes: std::collections::BTreeSet<u8> = all.iter().map(|k| k.exit_code()).collect();
        assert_eq!(codes.len(), all.len());
        assert!(!codes.contains(&0));
        assert!(all.into_iter().all(|kind| ErrorKind::of_exit_code(kind.exit_code()) == kind));
        assert_eq!(ErrorKind::of_exit_code(77), ErrorKind::Internal);
    }

    #[test]
    fn context_precedes_the_message_and_keeps_the_kind() {
        let error = Error::corrupt("hash mismatch").context("chunk 7");
        assert_eq!(error.to_string(), "chunk 7: hash mismatch");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }
}
