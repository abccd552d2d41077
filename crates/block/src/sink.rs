//! Where a read's bytes go: into memory that the receiver has, or out of memory that both share.

use bytes::Bytes;

/// Takes the bytes of a read, in order. A layer gives what it holds in shared memory without a copy,
/// and fills in what it has to fetch.
pub trait Sink {
    /// The next `len` bytes, of any content: the caller fills all of them.
    fn room(&mut self, len: usize) -> &mut [u8];

    /// The next bytes, as they are: a part of `whole` bytes that stay in memory with them.
    fn share(&mut self, bytes: Bytes, whole: usize);
}

/// A buffer that is filled from its start.
#[derive(Debug)]
pub struct Filling<'a> {
    rest: &'a mut [u8],
}

impl<'a> Filling<'a> {
    /// Nothing yet, of a read as long as `buf`.
    pub fn new(buf: &'a mut [u8]) -> Self {
        Self { rest: buf }
    }
}

impl Sink for Filling<'_> {
    fn room(&mut self, len: usize) -> &mut [u8] {
        let (room, rest) = std::mem::take(&mut self.rest).split_at_mut(len);
        self.rest = rest;
        room
    }

    fn share(&mut self, bytes: Bytes, _whole: usize) {
        self.room(bytes.len()).copy_from_slice(&bytes);
    }
}
