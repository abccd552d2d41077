//! Bounded reading of the formats: nothing is taken on trust, and no memory before its bytes are there.

use block::{Error, Result};

/// Bytes that are still to be read.
#[derive(Debug)]
pub(crate) struct WireReader<'a> {
    what: &'a str,
    rest: &'a [u8],
}

impl<'a> WireReader<'a> {
    /// `what` names the file in errors.
    pub(crate) fn new(what: &'a str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    /// The error of a file that breaks its format.
    pub(crate) fn damaged(&self, why: &str) -> Error {
        Error::corrupt(format!("{} is damaged: {why}", self.what))
    }

    /// The next `len` bytes.
    pub(crate) fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let Some((taken, rest)) = self.rest.split_at_checked(len) else {
            return Err(self.damaged("it is cut off"));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    pub(crate) fn u16(&mut self) -> Result<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub(crate) fn id(&mut self) -> Result<[u8; 32]> {
        self.array()
    }

    /// A number of things that take at least `each` bytes: no more than there are bytes for.
    pub(crate) fn count(&mut self, each: usize) -> Result<usize> {
        let count = self.u32()? as usize;
        if count > self.rest.len() / each {
            return Err(self.damaged("it names more than it holds"));
        }
        Ok(count)
    }

    /// Everything was read.
    pub(crate) fn end(self) -> Result<()> {
        match self.rest {
            [] => Ok(()),
            _ => Err(self.damaged("more follows than it should")),
        }
    }
}
