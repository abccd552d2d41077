//! The frame of binary objects, and the errors of those that break their format.
//!
//! A flipped bit must not pass for a newer format, which nobody may touch. So every version but the first,
//! and every flag but [`SEALED`], comes with a checksum that covers version and flags too: an object that
//! names one without it is damaged.

use block::{Error, Result};
use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a frame.
pub(crate) const FRAME: usize = 16;

/// The flag of an object whose body, or of a pack whose index, is sealed.
pub(crate) const SEALED: u16 = 1;

/// The frame's fields.
#[derive(Debug, Clone, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct Frame {
    pub(crate) magic: [u8; 8],
    pub(crate) version: U16,
    pub(crate) flags: U16,
    pub(crate) checksum: U32,
}

impl Frame {
    /// The frame of an object whose remaining bytes are `body`.
    pub(crate) fn of(magic: [u8; 8], version: u16, flags: u16, body: &[u8]) -> Self {
        Self {
            magic,
            version: version.into(),
            flags: flags.into(),
            checksum: crc32c::crc32c(body).into(),
        }
    }

    /// The frame of an object of a later version than the first, whose remaining bytes are `body`.
    pub(crate) fn of_later(magic: [u8; 8], version: u16, flags: u16, body: &[u8]) -> Self {
        let mut frame = Self::of(magic, version, flags, body);
        frame.checksum = frame.newer_checksum(body).into();
        frame
    }

    /// The checksum of an object of a newer format: of version and flags, then of the body.
    fn newer_checksum(&self, body: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&self.as_bytes()[8..12]), body)
    }

    /// Checks the fields against what is expected; `key` names the object.
    ///
    /// # Errors
    /// [`Unsupported`](block::ErrorKind::Unsupported) for a newer version or unknown flags,
    /// [`Corrupt`](block::ErrorKind::Corrupt) for anything else that is not as it was written.
    pub(crate) fn check(&self, key: &str, magic: [u8; 8], version: u16, body: &[u8]) -> Result<()> {
        match self.check_versions(key, magic, version, body)? == version {
            true => Ok(()),
            false => Err(damaged(key, "it has a version that it never had")),
        }
    }

    /// Checks the frame of an object that may have any version up to `version`; gives the one that it has.
    pub(crate) fn check_versions(
        &self,
        key: &str,
        magic: [u8; 8],
        version: u16,
        body: &[u8],
    ) -> Result<u16> {
        if self.magic != magic {
            return Err(damaged(key, "it does not begin with its magic"));
        }
        let is_newer = self.version.get() > version;
        if !is_newer && self.flags.get() & !SEALED == 0 {
            let checksum = match self.version.get() {
                0 => None,
                1 => Some(crc32c::crc32c(body)),
                _ => Some(self.newer_checksum(body)),
            };
            return match checksum == Some(self.checksum.get()) {
                true => Ok(self.version.get()),
                false => Err(damaged(key, "checksum mismatch")),
            };
        }
        if self.version.get() == 0 || self.newer_checksum(body) != self.checksum.get() {
            return Err(damaged(key, "its version and flags are not those that were written"));
        }
        Err(Error::unsupported(match is_newer {
            true => format!(
                "object {key} has format version {}, this build reads up to {version}; use a newer \
                 sojourn",
                self.version
            ),
            false => format!(
                "object {key} uses features {:#x} that this build does not know; use a newer \
                 sojourn",
                self.flags
            ),
        }))
    }
}

/// Makes a whole object one of a newer format, for tests: `value` is its version (at 8) or its flags
/// (at 10).
#[cfg(test)]
pub(crate) fn make_newer(bytes: &mut [u8], at: usize, value: u8) {
    bytes[at] = value;
    let Ok((frame, body)) = Frame::mut_from_prefix(bytes) else { return };
    frame.checksum = frame.newer_checksum(body).into();
}

/// Whether an object is sealed, as its flags say: it has to be exactly in an encrypted store.
pub(crate) fn check_sealed(key: &str, flags: u16, encrypted: bool) -> Result<()> {
    match (flags & SEALED != 0, encrypted) {
        (true, false) => Err(damaged(key, "it is sealed, and the store is not encrypted")),
        (false, true) => Err(damaged(key, "it is not sealed, and the store is encrypted")),
        _ => Ok(()),
    }
}

/// The error of an object that breaks its format.
pub(crate) fn damaged(key: &str, why: &str) -> Error {
    Error::corrupt(format!("object {key} is damaged: {why}; restore it from a backup"))
}

/// The error of an object that is well formed, and uses something that this build does not know.
pub(crate) fn unknown(key: &str, what: &str) -> Error {
    Error::unsupported(format!("object {key} uses {what}; use a newer sojourn"))
}
