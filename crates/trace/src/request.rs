//! One request as a block device saw it.

use serde::Serialize;

/// What a request asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(u8)]
pub enum Op {
    /// Read.
    #[default]
    Read = 0,
    /// Write.
    Write = 1,
    /// Make everything answered before durable; carries no range.
    Flush = 2,
    /// The range is no longer needed (discard, unmap).
    Trim = 3,
    /// Make the range read as zeroes.
    Zero = 4,
}

impl Op {
    /// All of them, in the order of their codes.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Flush, Self::Trim, Self::Zero];

    /// The operation with this code in our format.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Read),
            1 => Some(Self::Write),
            2 => Some(Self::Flush),
            3 => Some(Self::Trim),
            4 => Some(Self::Zero),
            _ => None,
        }
    }

    /// One lower-case word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Trim => "trim",
            Self::Zero => "zero",
        }
    }

    /// One capital, as in CSV files: R, W, F, T, Z.
    pub const fn letter(self) -> char {
        match self {
            Self::Read => 'R',
            Self::Write => 'W',
            Self::Flush => 'F',
            Self::Trim => 'T',
            Self::Zero => 'Z',
        }
    }
}

/// What else is known of a request: a set of bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// Nothing.
    pub const NONE: Self = Self(0);
    /// Forced unit access: the answer says that it is durable.
    pub const FUA: Self = Self(1);
    /// It was answered with an error.
    pub const FAILED: Self = Self(2);
    /// It began earlier than `time` says: the recorder learned of it too late to put it in its
    /// place. `time` + `latency` is right.
    pub const LATE: Self = Self(4);
    /// Every bit that has a meaning.
    pub const KNOWN: Self = Self(7);

    /// Whether all bits of `other` are set.
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The bits of both.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// Where the largest device ends, in bytes: 2^63.
pub(crate) const PLACES: u64 = 1 << 63;

/// One request as a block device saw it.
///
/// Every [`Source`](crate::Source) promises that `offset + length` is at most 2^63, that `client` and
/// `disk` are below [`MAX_PARTIES`](crate::header::MAX_PARTIES), and that times do not go back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Request {
    /// When it arrived, in nanoseconds since the trace's start.
    pub time: u64,
    /// Who asked: an index into [`Header::clients`](crate::Header::clients).
    pub client: u32,
    /// The disk, an index into [`Header::disks`](crate::Header::disks).
    pub disk: u32,
    /// What was asked for.
    pub op: Op,
    /// Where, in bytes.
    pub offset: u64,
    /// How much, in bytes; 0 for a flush.
    pub length: u32,
    /// Nanoseconds until the answer; 0: not known. Saturates at 4.29 s.
    pub latency: u32,
    /// What else is known.
    pub flags: Flags,
}

impl Request {
    /// Where it ends: the offset of the first byte behind it.
    pub const fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}
