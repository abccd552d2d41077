//! Whether a guest reads in order, and how far ahead of it to be.
//!
//! As the kernel's read-ahead does, a second read that goes on where one ended begins a stream, whose
//! window doubles up to a limit while the guest follows; the next window is asked for when the guest
//! comes to the middle of the last. A disk has few streams, so that what one may have under way is
//! bounded; a read elsewhere begins a new one in place of the one that was used least recently.

use block::Span;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Streams of a disk.
const STREAMS: usize = 4;
/// A read that begins so little behind the end of the last one goes on in order.
const SKIP: u64 = 64 << 10;
/// The first window, in bytes.
const FIRST: u64 = 128 << 10;
/// A stream that was not used in so many reads takes nothing of the budget any more.
const RECENT: u64 = 16;
/// Nothing is due.
const NEVER: u64 = u64::MAX;

/// The streams of one disk.
#[derive(Debug)]
pub struct ReadAhead {
    /// The most that is asked for ahead of the guest, in bytes; 0 is nothing.
    most: u64,
    streams: Mutex<[ReadStream; STREAMS]>,
    /// Where the next window of a stream is asked for; seen without the lock.
    due: [AtomicU64; STREAMS],
}

#[derive(Debug, Clone, Copy, Default)]
struct ReadStream {
    /// Where the last read ended.
    next: u64,
    /// How far was asked for.
    asked: u64,
    /// How much was asked for last; 0 until a second read follows the first.
    window: u64,
    /// The larger, the later it was used.
    used: u64,
}

impl ReadAhead {
    /// At most `most` bytes ahead of a guest that reads in one place; when it reads in several, each
    /// stream may have its part of that whatever the others have.
    pub fn new(most: u64) -> Self {
        let due = std::array::from_fn(|_| AtomicU64::new(NEVER));
        Self { most, streams: Mutex::default(), due }
    }

    /// Whether a read that is held in memory is one to tell of all the same.
    #[inline]
    pub fn is_due(&self, span: Span) -> bool {
        self.most > 0
            && self.due.iter().any(|due| (span.offset()..span.end()).contains(&due.load(Relaxed)))
    }

    /// The guest reads `span` of a disk of `size` bytes: what to ask for now, if anything.
    pub fn note(&self, span: Span, size: u64) -> Option<Span> {
        if self.most < FIRST {
            return None;
        }
        let mut streams = self.streams.lock();
        let latest = streams.iter().map(|stream| stream.used).max().unwrap_or(0);
        let follows = |stream: &ReadStream| {
            // Reads out of memory are not told of: the guest may be anywhere in what was asked for.
            let end = stream.next.max(stream.asked) + SKIP;
            stream.used > 0 && (stream.next..=end).contains(&span.offset())
        };
        let Some(at) = streams.iter().position(follows) else {
            let oldest = (0..STREAMS).min_by_key(|at| streams[*at].used)?;
            streams[oldest] =
                ReadStream { next: span.end(), used: latest + 1, ..ReadStream::default() };
            self.due[oldest].store(NEVER, Relaxed);
            return None;
        };
        let others: u64 = (0..STREAMS)
            .filter(|other| *other != at && latest - streams[*other].used < RECENT)
            .map(|other| streams[other].asked.saturating_sub(streams[other].next))
            .sum();
        let most = self.most.saturating_sub(others).max(self.most / STREAMS as u64);
        let stream = &mut streams[at];
        (stream.next, stream.used) = (span.end(), latest + 1);
        if stream.window > 0 && span.end() + stream.window / 2 < stream.asked {
            return None;
        }
        stream.window = (2 * stream.window).max(FIRST.max(2 * span.len())).min(most);
        let from = stream.asked.max(span.end());
        let to = (span.end() + stream.window).min(size);
        if to <= from {
            return None;
        }
        stream.asked = to;
        self.due[at].store(to - (stream.window / 2).min(to - span.end()), Relaxed);
        Some(Span::between(from, to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SIZE: u64 = 1 << 30;
    const MOST: u64 = 2 << 20;

    fn read(ahead: &ReadAhead, offset: u64, len: u64) -> Option<Span> {
        ahead.note(Span::between(offset, offset + len), SIZE)
    }

    #[test]
    fn a_second_read_in_order_begins_a_stream_whose_window_grows_to_the_limit() {
        let ahead = ReadAhead::new(MOST);
        assert_eq!(read(&ahead, 1 << 20, 65536), None);
        let (mut at, mut asked, mut longest) = ((1 << 20) + 65536, 0, 0);
        for _ in 0..200 {
            if let Some(span) = read(&ahead, at, 65536) {
                assert!(span.offset() >= asked && span.end() > at);
                asked = span.end();
                longest = longest.max(asked - (at + 65536));
            }
            at += 65536;
            assert!(asked >= at, "the guest is never ahead of what was asked for");
        }
        assert_eq!(longest, MOST);
    }

    #[test]
    fn reads_out_of_memory_are_told_of_when_the_next_window_is_due() {
        let ahead = ReadAhead::new(MOST);
        read(&ahead, 0, 65536);
        let mut asked = read(&ahead, 65536, 65536).unwrap().end();
        let mut told = 0;
        for step in 2..400u64 {
            let span = Span::between(step * 65536, (step + 1) * 65536);
            if ahead.is_due(span) {
                told += 1;
                asked = ahead.note(span, SIZE).map_or(asked, Span::end);
            }
            assert!(asked > span.end(), "{step}");
        }
        assert!((15..=60).contains(&told), "{told} of 398");
    }

    #[test]
    fn reads_here_and_there_ask_for_nothing() {
        let ahead = ReadAhead::new(MOST);
        for step in 0..100u64 {
            assert_eq!(read(&ahead, step * 7_919_000 % SIZE / 4096 * 4096, 4096), None);
        }
        let off = ReadAhead::new(0);
        assert!((0..10u64).all(|step| read(&off, step * 4096, 4096).is_none()));
    }

    #[test]
    fn several_streams_at_once_are_told_apart() {
        let ahead = ReadAhead::new(MOST);
        let mut asked = [0; STREAMS];
        for step in 0..50u64 {
            for (stream, asked) in asked.iter_mut().enumerate() {
                let span = read(&ahead, (stream as u64) * (100 << 20) + step * 32768, 32768);
                *asked += span.map_or(0, Span::len);
            }
        }
        assert!(asked.iter().all(|bytes| *bytes >= 48 * 32768), "{asked:?}");
    }

    proptest! {
        #[test]
        fn nothing_is_asked_for_beyond_the_end_nor_beyond_the_budget(
            reads in prop::collection::vec((0u64..64, 1u64..9), 1..200), most in 0u64..(4 << 20),
        ) {
            let (ahead, size) = (ReadAhead::new(most), 64 * 32768 + 5);
            for (at, len) in reads {
                let span = Span::between(at * 32768, (at * 32768 + len * 4096).min(size));
                if let Some(asked) = ahead.note(span, size) {
                    prop_assert!(asked.end() <= size && !asked.is_empty());
                    prop_assert!(asked.end() - span.end() <= most);
                }
            }
        }
    }
}
