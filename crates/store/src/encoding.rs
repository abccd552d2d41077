//! How a chunk's bytes are stored: compressed or not, sealed or not, and how long that makes them.

/// Bytes that sealing adds to what it seals.
pub(crate) const TAG: usize = 16;

/// How a chunk's bytes are stored. Numbers above 3 are reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Encoding {
    /// The bytes as they are.
    Plain = 0,
    /// One zstd frame, shorter than the plain bytes.
    Zstd = 1,
    /// The bytes as they are, sealed: 16 bytes longer.
    Sealed = 2,
    /// One zstd frame, shorter than the plain bytes, then sealed.
    SealedZstd = 3,
}

/// Bytes that sealing adds.
const SEAL: u32 = TAG as u32;

impl Encoding {
    /// The encoding of this number, if there is one.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Plain),
            1 => Some(Self::Zstd),
            2 => Some(Self::Sealed),
            3 => Some(Self::SealedZstd),
            _ => None,
        }
    }

    /// Whether `len` plain bytes can be `stored` bytes.
    pub fn allows(self, stored: u32, len: u32) -> bool {
        match self {
            Self::Plain => stored == len,
            Self::Zstd => (1..len).contains(&stored),
            Self::Sealed => stored == len + SEAL,
            Self::SealedZstd => (1 + SEAL..len + SEAL).contains(&stored),
        }
    }

    /// How `stored` bytes encode `len` plain ones in a store that is sealed or not.
    pub fn of(stored: u32, len: u32, sealed: bool) -> Self {
        match sealed {
            false if stored < len => Self::Zstd,
            false => Self::Plain,
            true if stored < len + SEAL => Self::SealedZstd,
            true => Self::Sealed,
        }
    }

    /// Whether the stored bytes are sealed.
    pub(crate) const fn is_sealed(self) -> bool {
        matches!(self, Self::Sealed | Self::SealedZstd)
    }
}
