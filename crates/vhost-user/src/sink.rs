//! Reads that go to the guest without a copy between: what a layer shares is copied from there to the guest;
//! only what it has to fetch takes a buffer.

use crate::request::Chain;
use block::Sink;
use bytes::Bytes;
use vm_memory::GuestMemoryMmap;

/// The longest read that is tried on the ring's thread, in bytes.
pub(crate) const TRIED: usize = 256 << 10;

/// The buffer, kept from read to read.
#[derive(Debug)]
pub(crate) struct ReadBuffer {
    bytes: Box<[u8]>,
    /// Parts of it that were filled in: where in the read, where in `bytes`, how long.
    filled: Vec<(usize, usize, usize)>,
}

impl ReadBuffer {
    pub(crate) fn new() -> Self {
        Self { bytes: vec![0; TRIED].into_boxed_slice(), filled: Vec::new() }
    }

    /// The first `len` bytes, of any content.
    pub(crate) fn bytes(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[..len]
    }
}

/// Takes a read of at most [`TRIED`] bytes for a request.
pub(crate) struct ToGuest<'a> {
    memory: &'a GuestMemoryMmap,
    chain: &'a Chain,
    room: &'a mut ReadBuffer,
    /// How much of the read, and of the room, is given out.
    at: usize,
    used: usize,
    broken: bool,
}

impl<'a> ToGuest<'a> {
    pub(crate) fn new(
        memory: &'a GuestMemoryMmap,
        chain: &'a Chain,
        room: &'a mut ReadBuffer,
    ) -> Self {
        room.filled.clear();
        Self { memory, chain, room, at: 0, used: 0, broken: false }
    }

    /// Copies what was filled in; `false` when the guest has no memory where it wants the read.
    pub(crate) fn finish(self) -> bool {
        let Self { memory, chain, room, broken, .. } = self;
        let mut copied = !broken;
        for (at, from, len) in room.filled.drain(..) {
            copied &= chain.scatter(memory, at, &room.bytes[from..from + len]).is_ok();
        }
        copied
    }
}

impl Sink for ToGuest<'_> {
    fn room(&mut self, len: usize) -> &mut [u8] {
        let from = self.used;
        self.room.filled.push((self.at, from, len));
        self.at += len;
        self.used += len;
        &mut self.room.bytes[from..from + len]
    }

    fn share(&mut self, bytes: Bytes, _whole: usize) {
        self.broken |= self.chain.scatter(self.memory, self.at, &bytes).is_err();
        self.at += bytes.len();
    }
}
