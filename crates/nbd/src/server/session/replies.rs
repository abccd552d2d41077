//! Replies that wait to be sent, gathered so that one call sends many.

use crate::server::schedule::spare::SpareBuffers;
use block::Sink;
use bytes::Bytes;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::AsyncWrite;

/// What a quiet connection keeps.
const SMALLEST: usize = 16 << 10;
/// Slices handed to one vectored write: the heads and payloads of a usual batch of small reads.
const SLICES: usize = 72;
/// Shorter bytes in shared memory are copied: that costs less than a slice of their own.
const SHARED: usize = 2 << 10;
/// Shared bytes that the peer did not take at once are copied when fewer than this are left, or less than
/// half of what stays in memory with them: a chunk that the cache may have given up long ago. So a client
/// holds at most twice what is counted as unsent.
const KEPT: usize = 64 << 10;

/// The send queue: an arena of headers and short payloads, and payloads that stand between its bytes
/// without being copied into it: long ones, and those in memory shared with a cache.
#[derive(Debug)]
pub(super) struct Replies {
    /// Always initialised to its full length.
    arena: Vec<u8>,
    start: usize,
    end: usize,
    long: VecDeque<Long>,
    /// Bytes to send.
    unsent: usize,
    must_flush: bool,
}

#[derive(Debug)]
struct Long {
    /// It is sent when the arena was sent up to here.
    at: usize,
    bytes: Payload,
    sent: usize,
}

#[derive(Debug)]
enum Payload {
    Own(Vec<u8>),
    Shared {
        bytes: Bytes,
        /// How many stay in memory with them.
        whole: usize,
    },
}

impl std::ops::Deref for Payload {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Own(bytes) => bytes,
            Self::Shared { bytes, .. } => bytes,
        }
    }
}

/// How far the queue was filled, to go back to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    queued: usize,
    long: usize,
    unsent: usize,
}

impl Sink for Replies {
    #[inline]
    fn room(&mut self, len: usize) -> &mut [u8] {
        Self::room(self, len)
    }

    #[inline]
    fn share(&mut self, bytes: Bytes, whole: usize) {
        if bytes.len() < SHARED {
            self.push(&bytes);
        } else {
            self.unsent += bytes.len();
            let bytes = Payload::Shared { bytes, whole };
            self.long.push_back(Long { at: self.end, bytes, sent: 0 });
        }
    }
}

impl Replies {
    pub(super) fn new() -> Self {
        let long = VecDeque::new();
        Self { arena: vec![0; SMALLEST], start: 0, end: 0, long, unsent: 0, must_flush: false }
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.unsent
    }

    /// Whether everything was handed to the system.
    pub(super) fn is_empty(&self) -> bool {
        self.unsent == 0 && !self.must_flush
    }

    /// Appends `len` bytes of any content, to be filled by the caller.
    pub(super) fn room(&mut self, len: usize) -> &mut [u8] {
        if self.end + len > self.arena.len() {
            self.grow(len);
        }
        let room = &mut self.arena[self.end..self.end + len];
        self.end += len;
        self.unsent += len;
        room
    }

    #[cold]
    fn grow(&mut self, len: usize) {
        if self.start > 0 {
            self.arena.copy_within(self.start..self.end, 0);
            for long in &mut self.long {
                long.at -= self.start;
            }
            self.end -= self.start;
            self.start = 0;
        }
        let needed = self.end + len;
        if needed > self.arena.len() {
            self.arena.resize(needed.next_power_of_two(), 0);
        }
    }

    /// Where the queue ends now.
    #[inline]
    pub(super) fn mark(&self) -> Mark {
        Mark { queued: self.end - self.start, long: self.long.len(), unsent: self.unsent }
    }

    /// Takes back what was appended since; nothing was sent meanwhile.
    pub(super) fn take_back(&mut self, mark: Mark) {
        self.end = self.start + mark.queued;
        self.long.truncate(mark.long);
        self.unsent = mark.unsent;
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
    }

    /// Appends a long payload without copying it.
    pub(super) fn push_long(&mut self, bytes: Vec<u8>) {
        self.unsent += bytes.len();
        self.long.push_back(Long { at: self.end, bytes: Payload::Own(bytes), sent: 0 });
    }

    /// Takes all that waits, in order and in one piece, for somebody else to send.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(self.unsent);
        let mut at = self.start;
        for long in &self.long {
            rest.extend_from_slice(&self.arena[at..long.at]);
            rest.extend_from_slice(&long.bytes[long.sent..]);
            at = long.at;
        }
        rest.extend_from_slice(&self.arena[at..self.end]);
        self.clear();
        rest
    }

    /// Drops all that waits: the peer is gone.
    pub(super) fn clear(&mut self) {
        (self.start, self.end, self.unsent, self.must_flush) = (0, 0, 0, false);
        self.long.clear();
    }

    /// Sends as much as the peer takes now; gives how many bytes that was. Registers for a wake-up
    /// when something is left.
    pub(super) fn poll_send(
        &mut self,
        cx: &mut Context<'_>,
        stream: &mut (impl AsyncWrite + Unpin),
        spare: &mut SpareBuffers,
    ) -> io::Result<usize> {
        let mut total = 0;
        while self.unsent > 0 {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let count = self.slices(&mut slices);
            let written = if stream.is_write_vectored() {
                Pin::new(&mut *stream).poll_write_vectored(cx, &slices[..count])
            } else {
                Pin::new(&mut *stream).poll_write(cx, &slices[0])
            };
            match written {
                Poll::Pending => {
                    self.own_the_short(spare);
                    return Ok(total);
                }
                Poll::Ready(Err(e)) => return Err(e),
                Poll::Ready(Ok(0)) => return Err(io::ErrorKind::WriteZero.into()),
                Poll::Ready(Ok(n)) => {
                    self.sent(n, spare);
                    total += n;
                    self.must_flush = true;
                }
            }
        }
        if self.must_flush && Pin::new(stream).poll_flush(cx)?.is_ready() {
            self.must_flush = false;
        }
        Ok(total)
    }

    /// Lets short shared bytes go that the peer does not take now.
    fn own_the_short(&mut self, spare: &mut SpareBuffers) {
        for long in &mut self.long {
            if let Payload::Shared { bytes, whole } = &long.bytes
                && (bytes.len() - long.sent < KEPT || bytes.len() - long.sent < whole / 2)
            {
                let rest = &bytes[long.sent..];
                let mut own = spare.take(rest.len());
                own.copy_from_slice(rest);
                (long.bytes, long.sent) = (Payload::Own(own), 0);
            }
        }
    }

    /// What is to be sent next, in order; gives the number of slices, none of them empty.
    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; SLICES]) -> usize {
        let (mut count, mut at) = (0, self.start);
        for long in &self.long {
            if count + 2 > SLICES {
                return count;
            }
            if at < long.at {
                slices[count] = IoSlice::new(&self.arena[at..long.at]);
                count += 1;
                at = long.at;
            }
            slices[count] = IoSlice::new(&long.bytes[long.sent..]);
            count += 1;
        }
        if at < self.end && count < SLICES {
            slices[count] = IoSlice::new(&self.arena[at..self.end]);
            count += 1;
        }
        count
    }

    fn sent(&mut self, mut n: usize, spare: &mut SpareBuffers) {
        self.unsent -= n;
        while n > 0 {
            let before = self.long.front().map_or(self.end, |long| long.at) - self.start;
            let part = n.min(before);
            self.start += part;
            n -= part;
            if n == 0 {
                break;
            }
            let Some(long) = self.long.front_mut() else { break };
            let part = n.min(long.bytes.len() - long.sent);
            long.sent += part;
            n -= part;
            if long.sent == long.bytes.len()
                && let Some(Long { bytes: Payload::Own(bytes), .. }) = self.long.pop_front()
            {
                spare.give(bytes);
            }
        }
        if self.unsent == 0 {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Gives memory back that a quiet connection does not need.
    pub(super) fn shrink(&mut self) {
        if self.is_grown() && self.unsent == 0 {
            self.arena.truncate(SMALLEST);
            self.arena.shrink_to_fit();
        }
    }

    pub(super) fn is_grown(&self) -> bool {
        self.arena.len() > SMALLEST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Takes as many bytes per write as it is told, then blocks.
    struct Picky {
        taken: Vec<u8>,
        appetite: Vec<usize>,
        vectored: bool,
    }

    impl AsyncWrite for Picky {
        fn poll_write(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match self.appetite.pop() {
                None => Poll::Pending,
                Some(n) => {
                    let n = n.min(bytes.len());
                    self.taken.extend_from_slice(&bytes[..n]);
                    Poll::Ready(Ok(n))
                }
            }
        }
        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let Some(most) = self.appetite.pop() else { return Poll::Pending };
            let all: Vec<u8> = slices.iter().flat_map(|s| s.iter().copied()).collect();
            let n = most.min(all.len());
            self.taken.extend_from_slice(&all[..n]);
            Poll::Ready(Ok(n))
        }
        fn is_write_vectored(&self) -> bool {
            self.vectored
        }
        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn a_peer_that_takes_nothing_keeps_no_short_piece_of_shared_memory() {
        let mut picky = Picky { taken: Vec::new(), appetite: vec![5000], vectored: true };
        let (mut replies, mut spare) = (Replies::new(), SpareBuffers::default());
        let (chunk, whole) = (Bytes::from(vec![7; 256 << 10]), Bytes::from(vec![8; KEPT]));
        replies.share(chunk.slice(..4096), chunk.len());
        replies.share(chunk.slice(4096..8192), chunk.len());
        replies.share(whole.clone(), whole.len());
        assert!(!chunk.is_unique() && !whole.is_unique());
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap(), 5000);
        assert!(chunk.is_unique(), "a stuck client keeps a chunk for a piece of it");
        assert!(!whole.is_unique());
        picky.appetite = vec![usize::MAX; 10];
        replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap();
        assert!(whole.is_unique() && replies.is_empty());
        assert!(picky.taken == [vec![7; 8192], vec![8; KEPT]].concat());
    }

    #[test]
    fn a_peer_that_takes_nothing_keeps_at_most_twice_what_it_is_counted_for() {
        let mut picky = Picky { taken: Vec::new(), appetite: vec![], vectored: true };
        let (mut replies, mut spare) = (Replies::new(), SpareBuffers::default());
        let chunks: Vec<_> = (0..8).map(|i| Bytes::from(vec![i; 256 << 10])).collect();
        for (i, chunk) in chunks.iter().enumerate() {
            replies.share(chunk.slice(..(i + 1) * (32 << 10)), chunk.len());
        }
        let mut cx = Context::from_waker(std::task::Waker::noop());
        assert_eq!(replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap(), 0);
        let kept = chunks.iter().filter(|chunk| !chunk.is_unique()).count() * (256 << 10);
        let own = chunks.iter().zip(1..).filter(|(chunk, _)| chunk.is_unique());
        let own: usize = own.map(|(_, i)| i * (32 << 10)).sum();
        assert!(kept > 0 && kept + own <= 2 * replies.unsent(), "{kept} + {own}");
        // Of a whole one only the end is left.
        picky.appetite = vec![replies.unsent() - (100 << 10)];
        replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap();
        assert!(chunks.iter().all(Bytes::is_unique));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_queued_arrives_in_order_however_the_peer_takes_it(
            steps in prop::collection::vec((0u8..5, 0usize..20_000), 1..60), vectored: bool,
        ) {
            let mut picky = Picky { taken: Vec::new(), appetite: Vec::new(), vectored };
            let (mut replies, mut spare) = (Replies::new(), SpareBuffers::default());
            let (mut expected, mut mark) = (Vec::new(), 0u8);
            let mut cx = Context::from_waker(std::task::Waker::noop());
            for (what, size) in steps {
                mark = mark.wrapping_add(1);
                match what {
                    0 => replies.push(&vec![mark; size]),
                    1 => {
                        let mut long = spare.take(size + 1);
                        long.fill(mark);
                        replies.push_long(long);
                    }
                    2 => {
                        let before = replies.mark();
                        replies.room(size);
                        replies.share(vec![mark; size].into(), size);
                        replies.room(size / 2);
                        replies.take_back(before);
                    }
                    3 => replies.share(vec![mark; 4 * size].into(), 4 * size),
                    _ => {
                        picky.appetite = vec![size + 1, size / 2 + 1];
                        replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap();
                    }
                }
                match what {
                    0 => expected.extend(vec![mark; size]),
                    1 => expected.extend(vec![mark; size + 1]),
                    3 => expected.extend(vec![mark; 4 * size]),
                    _ => {}
                }
                prop_assert_eq!(replies.unsent(), expected.len() - picky.taken.len());
            }
            picky.appetite = vec![usize::MAX; 1000];
            replies.poll_send(&mut cx, &mut picky, &mut spare).unwrap();
            prop_assert!(replies.is_empty());
            prop_assert!(picky.taken == expected);
        }
    }
}
