//! What disk images are packed into to be sent: taken for a raw disk it would be rubbish.

use block::{Error, Result};
use std::fmt;
use std::path::Path;

/// A compression or archive of one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Packed {
    /// `.gz`
    Gzip,
    /// `.xz`
    Xz,
    /// `.zst`
    Zstd,
    /// `.bz2`
    Bzip2,
    /// `.zip`
    Zip,
    /// `.7z`
    SevenZip,
}

impl Packed {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Gzip, Self::Xz, Self::Zstd, Self::Bzip2, Self::Zip, Self::SevenZip];

    /// The name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Xz => "xz",
            Self::Zstd => "zstd",
            Self::Bzip2 => "bzip2",
            Self::Zip => "zip",
            Self::SevenZip => "7z",
        }
    }

    /// The command that writes what is in a file, whose name follows, to its standard output.
    pub const fn unpacker(self) -> &'static str {
        match self {
            Self::Gzip => "zcat",
            Self::Xz => "xzcat",
            Self::Zstd => "zstdcat",
            Self::Bzip2 => "bzcat",
            Self::Zip => "unzip -p",
            Self::SevenZip => "7z e -so",
        }
    }

    /// What the name of a file ends with behind the dot.
    const fn extension(self) -> &'static str {
        match self {
            Self::Gzip => "gz",
            Self::Xz => "xz",
            Self::Zstd => "zst",
            Self::Bzip2 => "bz2",
            Self::Zip => "zip",
            Self::SevenZip => "7z",
        }
    }

    /// The command that packs its standard input into a file.
    pub fn packer(self, file: &str) -> String {
        match self {
            Self::SevenZip => format!("7z a -si {file}"),
            _ => format!("{self} > {file}"),
        }
    }

    /// Tells by the first bytes of a file (16 are enough).
    pub fn by_magic(head: &[u8]) -> Option<Self> {
        match head {
            [0x1f, 0x8b, 8, ..] => Some(Self::Gzip),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // The size of its blocks, and a block, or the end of an empty file.
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31, 0x41, 0x59, 0x26, 0x53, 0x59, ..]
            | [b'B', b'Z', b'h', b'1'..=b'9', 0x17, 0x72, 0x45, 0x38, 0x50, 0x90, ..] => {
                Some(Self::Bzip2)
            }
            [b'P', b'K', 3, 4, ..] => Some(Self::Zip),
            [b'7', b'z', 0xbc, 0xaf, 0x27, 0x1c, ..] => Some(Self::SevenZip),
            _ => None,
        }
    }

    /// Tells by the name of a file.
    pub fn by_name(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|packed| packed.extension() == extension)
    }
}

impl fmt::Display for Packed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Tells whether a file is packed, by its first bytes.
///
/// # Errors
/// That of opening or reading the file.
pub fn packed(path: &Path) -> Result<Option<Packed>> {
    let file = crate::file::open(path, true)?;
    Ok(Packed::by_magic(&crate::file::read_up_to(&file, path, 0, 16)?))
}

/// Refuses a packed file where a disk image is needed.
pub(crate) fn refuse(path: &Path, head: &[u8]) -> Result<()> {
    let Some(packed) = Packed::by_magic(head) else { return Ok(()) };
    Err(Error::unsupported(format!(
        "{0}: packed with {packed}, and not a disk image itself; unpack it first: {1} {0} > FILE",
        path.display(),
        packed.unpacker()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_packed_is_taken_for_it() {
        for (head, packed) in [
            (&b"\x1f\x8b\x08\0"[..], Packed::Gzip),
            (b"\xfd7zXZ\0\0", Packed::Xz),
            (b"\x28\xb5\x2f\xfd\x04", Packed::Zstd),
            (b"BZh91AY&SY", Packed::Bzip2),
            (b"PK\x03\x04", Packed::Zip),
            (b"7z\xbc\xaf\x27\x1c", Packed::SevenZip),
        ] {
            assert_eq!(Packed::by_magic(head), Some(packed));
            assert_eq!(Packed::by_magic(&head[..2]), None);
        }
        // A boot sector, a text, nothing.
        for head in [&b"\xeb\x63\x90\x10"[..], b"BZhello, world", b""] {
            assert_eq!(Packed::by_magic(head), None);
        }
    }

    #[test]
    fn a_name_says_what_it_is_packed_with() {
        assert_eq!(Packed::by_name(Path::new("a/b.raw.GZ")), Some(Packed::Gzip));
        assert_eq!(Packed::by_name(Path::new("gz")), None);
        assert_eq!(Packed::by_name(Path::new("b.raw")), None);
    }
}
