//! The formats and their names, and how to tell them apart.

use crate::{packed, unread};
use block::{Error, Result};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::Path;
use std::str::FromStr;

/// A disk image file format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// The bytes of the disk, and nothing else; a block device too.
    Raw,
    /// QEMU copy-on-write, versions 2 and 3.
    Qcow2,
    /// VMware virtual machine disk.
    Vmdk,
    /// Virtual PC and Hyper-V virtual hard disk.
    Vhd,
    /// Hyper-V virtual hard disk, version 2.
    Vhdx,
    /// VirtualBox disk image.
    Vdi,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Raw, Self::Qcow2, Self::Vmdk, Self::Vhd, Self::Vhdx, Self::Vdi];

    /// The name, as the command line spells it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Qcow2 => "qcow2",
            Self::Vmdk => "vmdk",
            Self::Vhd => "vhd",
            Self::Vhdx => "vhdx",
            Self::Vdi => "vdi",
        }
    }

    /// Whether images of it can be written.
    pub const fn writable(self) -> bool {
        matches!(self, Self::Raw | Self::Qcow2)
    }

    /// Tells the format by the first bytes of a file (512 are enough); raw when no magic number
    /// matches. A VHD of a fixed size has none there.
    pub fn by_magic(head: &[u8]) -> Self {
        let at = |offset: usize, magic: &[u8]| {
            head.get(offset..).is_some_and(|rest| rest.starts_with(magic))
        };
        match () {
            () if at(0, b"QFI\xfb") => Self::Qcow2,
            // A sparse extent, an ESX extent, or a descriptor in a file of its own.
            () if at(0, b"KDMV") || at(0, b"COWD") => Self::Vmdk,
            () if at(0, b"# Disk DescriptorFile") || at(0, b"# Disk Descriptor File") => Self::Vmdk,
            () if at(0, b"conectix") => Self::Vhd,
            () if at(0, b"vhdxfile") => Self::Vhdx,
            () if at(64, &0xbeda_107f_u32.to_le_bytes()) => Self::Vdi,
            () => Self::Raw,
        }
    }

    /// Tells the format that the name of a file promises, if it is one.
    pub fn by_name(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?.to_ascii_lowercase();
        Self::ALL.into_iter().find(|format| format.as_str() == extension)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Format {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|format| format.as_str() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::as_str).join(", ");
            Error::invalid(format!("image format \"{text}\" is unknown; use one of {names}"))
        })
    }
}

/// Tells the format of a file by its magic numbers; raw when none matches.
///
/// The content decides, so a guest that writes a magic number to its raw disk changes the answer:
/// whoever knows the format should say it rather than ask.
///
/// # Errors
/// [`Unsupported`](block::ErrorKind::Unsupported) when the file is [packed](crate::Packed), or of a kind
/// that is [not read](crate::Unread); that of opening or reading it.
pub fn probe(path: &Path) -> Result<Format> {
    let file = crate::file::open(path, true)?;
    let head = crate::file::read_up_to(&file, path, 0, 512)?;
    packed::refuse(path, &head)?;
    unread::refuse(&file, path, &head)?;
    let found = Format::by_magic(&head);
    if found != Format::Raw {
        return Ok(found);
    }
    // A fixed VHD is a raw disk with a footer of one sector.
    let len = crate::file::len(&file, path)?;
    let tail = crate::file::read_up_to(&file, path, len.saturating_sub(512), 8)?;
    Ok(if tail == b"conectix" { Format::Vhd } else { Format::Raw })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for format in Format::ALL {
            assert_eq!(format.to_string().parse::<Format>().unwrap(), format);
        }
        let error = "cow".parse::<Format>().unwrap_err();
        assert!(error.message().contains("use one of raw, qcow2"), "{error}");
    }

    #[test]
    fn short_and_empty_files_are_raw() {
        for head in [&b""[..], b"QFI", b"vhdxfil"] {
            assert_eq!(Format::by_magic(head), Format::Raw);
        }
    }

    #[test]
    fn a_name_promises_a_format() {
        for (name, format) in [
            ("a/b.QCOW2", Some(Format::Qcow2)),
            ("b.raw", Some(Format::Raw)),
            ("b.vhdx", Some(Format::Vhdx)),
            ("b.img", None),
            ("vhdx", None),
        ] {
            assert_eq!(Format::by_name(Path::new(name)), format, "{name}");
        }
    }
}
