//! The first bytes of a disk or a part of it.

use crate::{Refusal, Window};
use std::cell::OnceCell;

/// The first bytes, where most marks are.
pub(crate) struct PartHead {
    pub(crate) bytes: Vec<u8>,
    /// The last whole sector of 512 bytes.
    tail: OnceCell<Vec<u8>>,
}

impl PartHead {
    pub(crate) fn read(window: &Window<'_>) -> Result<Self, Refusal> {
        let len = window.size().min(68 << 10) as usize;
        Ok(Self { bytes: window.bytes(0, len)?, tail: OnceCell::new() })
    }

    pub(crate) fn tail(&self, window: &Window<'_>) -> Result<&[u8], Refusal> {
        if let Some(tail) = self.tail.get() {
            return Ok(tail);
        }
        let tail = match window.size().checked_sub(512) {
            Some(at) => window.bytes(at / 512 * 512, 512)?,
            None => Vec::new(),
        };
        Ok(self.tail.get_or_init(|| tail))
    }

    pub(crate) fn at(&self, offset: usize, len: usize) -> Option<&[u8]> {
        self.bytes.get(offset..offset.checked_add(len)?)
    }

    pub(crate) fn has(&self, offset: usize, magic: &[u8]) -> bool {
        self.at(offset, magic.len()) == Some(magic)
    }
}
