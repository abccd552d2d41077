//! The receive buffer of a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

/// What a quiet connection keeps.
const SMALLEST: usize = 16 << 10;
/// What a busy one grows to: more than the kernel hands out at once.
const LARGEST: usize = 256 << 10;

/// Bytes received and not yet used. Each receive takes all that is there; the buffer grows while
/// receives fill it.
#[derive(Debug)]
pub(super) struct ReceiveBuffer {
    /// Always initialised to its full length.
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl ReceiveBuffer {
    /// A buffer that starts with these bytes.
    pub(super) fn new(received: &[u8]) -> Self {
        let mut bytes = vec![0; SMALLEST.max(received.len())];
        bytes[..received.len()].copy_from_slice(received);
        Self { bytes, start: 0, end: received.len() }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }

    pub(super) fn consume(&mut self, len: usize) {
        debug_assert!(len <= self.end - self.start);
        self.start += len;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
            if self.bytes.len() > LARGEST {
                self.bytes.truncate(LARGEST);
                self.bytes.shrink_to_fit();
            }
        }
    }

    /// Makes room for an item of `len` bytes at the front.
    pub(super) fn reserve(&mut self, len: usize) {
        if self.start + len > self.bytes.len() {
            self.compact();
        }
        if len > self.bytes.len() {
            self.bytes.resize(len.next_power_of_two(), 0);
        }
    }

    fn compact(&mut self) {
        self.bytes.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
    }

    /// Receives once; gives how many bytes came, 0 at the end of the stream.
    pub(super) fn poll_receive(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncRead + Unpin),
    ) -> Poll<io::Result<usize>> {
        if self.start > 0 && self.bytes.len() - self.end < self.bytes.len() / 4 {
            self.compact();
        }
        if self.end == self.bytes.len() {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        let room = &mut self.bytes[self.end..];
        let space = room.len();
        let mut buf = ReadBuf::new(room);
        ready!(Pin::new(stream).poll_read(cx, &mut buf))?;
        let got = buf.filled().len();
        self.end += got;
        if got == space && self.bytes.len() < LARGEST {
            self.bytes.resize(self.bytes.len() * 2, 0);
        }
        Poll::Ready(Ok(got))
    }

    /// Gives memory back that a quiet connection does not need.
    pub(super) fn shrink(&mut self) {
        if self.is_grown() && self.end - self.start <= SMALLEST {
            self.compact();
            self.bytes.truncate(SMALLEST);
            self.bytes.shrink_to_fit();
        }
    }

    pub(super) fn is_grown(&self) -> bool {
        self.bytes.len() > SMALLEST
    }
}
