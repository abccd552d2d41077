//! A stream that is received in large pieces, under a TLS library that asks for small ones.
//!
//! rustls asks for 4 KiB at a time: a long payload would take one call on the socket for each.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What is asked for at first, and when little came, in bytes: what a silent connection keeps.
const SMALL: usize = 4 << 10;
/// What is asked for while more comes, in bytes: four records of TLS.
const LARGE: usize = 66 << 10;

/// Receives from `stream` in large pieces while much comes; sends as it is told.
#[derive(Debug)]
pub(crate) struct Buffered<S> {
    stream: S,
    room: Box<[u8]>,
    /// What was received and not taken yet.
    start: usize,
    end: usize,
}

impl<S> Buffered<S> {
    pub(crate) fn new(stream: S) -> Self {
        Self { stream, room: Box::default(), start: 0, end: 0 }
    }

    /// Makes room for the next receive, by what the last one brought; all of it was taken.
    fn fit(&mut self) {
        let len = if self.end >= SMALL { LARGE } else { SMALL };
        if len != self.room.len() {
            self.room = vec![0; len].into_boxed_slice();
        }
        (self.start, self.end) = (0, 0);
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Buffered<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.start == this.end {
            this.fit();
            let mut room = ReadBuf::new(&mut this.room);
            let Poll::Ready(received) = Pin::new(&mut this.stream).poll_read(cx, &mut room) else {
                if this.room.len() > SMALL {
                    this.room = Box::default(); // it may be silent for long
                }
                return Poll::Pending;
            };
            received?;
            this.end = room.filled().len();
        }
        let some = buf.remaining().min(this.end - this.start);
        buf.put_slice(&this.room[this.start..this.start + some]);
        this.start += some;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Buffered<S> {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    /// Holds pieces that come one after the other; between two of them it has nothing.
    struct Pieces {
        pieces: VecDeque<Vec<u8>>,
        pause: bool,
        receives: usize,
    }

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            self.receives += 1;
            if std::mem::take(&mut self.pause) {
                return Poll::Pending;
            }
            let Some(piece) = self.pieces.front_mut() else { return Poll::Ready(Ok(())) };
            let some = buf.remaining().min(piece.len());
            buf.put_slice(&piece[..some]);
            piece.drain(..some);
            if piece.is_empty() {
                self.pieces.pop_front();
                self.pause = true;
            }
            Poll::Ready(Ok(()))
        }
    }

    fn over(pieces: impl IntoIterator<Item = Vec<u8>>) -> Buffered<Pieces> {
        let pieces = pieces.into_iter().filter(|piece| !piece.is_empty()).collect();
        Buffered::new(Pieces { pieces, pause: false, receives: 0 })
    }

    /// What comes until the end, asked for in turns by as much as `asks` say, and 4 KiB behind them.
    fn read_all(stream: &mut Buffered<Pieces>, asks: &[usize]) -> Vec<u8> {
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let (mut all, mut asks) = (Vec::new(), asks.iter());
        loop {
            let mut bytes = vec![0; asks.next().map_or(4096, |ask| *ask)];
            let mut buf = ReadBuf::new(&mut bytes);
            match Pin::new(&mut *stream).poll_read(&mut cx, &mut buf) {
                Poll::Pending => {}
                Poll::Ready(done) => {
                    done.unwrap();
                    if buf.filled().is_empty() {
                        return all;
                    }
                    all.extend_from_slice(buf.filled());
                }
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_comes_in_any_pieces_is_read_in_order(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200_000), 0..8),
            asks in prop::collection::vec(1usize..100_000, 0..40),
        ) {
            let mut stream = over(pieces.clone());
            prop_assert_eq!(read_all(&mut stream, &asks), pieces.concat());
        }
    }

    #[test]
    fn a_long_payload_takes_few_receives_though_little_is_asked_for() {
        let mut stream = over([vec![7; 1 << 20]]);
        assert_eq!(read_all(&mut stream, &[]).len(), 1 << 20);
        assert!(stream.stream.receives <= 20, "{} receives", stream.stream.receives);
    }

    #[test]
    fn a_connection_that_falls_silent_keeps_little_room() {
        let mut stream = over([vec![7; 1 << 20], vec![7; 28]]);
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let mut most = 0;
        loop {
            let mut bytes = [0; 4096];
            if Pin::new(&mut stream).poll_read(&mut cx, &mut ReadBuf::new(&mut bytes)).is_pending()
            {
                break;
            }
            most = most.max(stream.room.len());
        }
        assert_eq!(most, LARGE);
        assert!(stream.room.len() <= SMALL, "{} bytes", stream.room.len());
    }
}
