//! Replies as they come in: pieces of any length, parsed without waiting for a whole one. Data is
//! handed on in the pieces in which it arrives.

use block::{Error, Result};
use nbd::codec::constants::chunk;
use nbd::codec::reply::{self, ReplyHeader};
use nbd::codec::{Parsed, ReplyStyle};

/// The longest chunk that is neither data nor a hole, in bytes.
const LONGEST_CHUNK: u64 = 64 << 10;

/// What is told of the replies to requests, by cookie. An error ends the connection.
pub(crate) trait ReplySink {
    /// Offset and length of the data that a successful answer carries; 0 bytes unless it is a read.
    fn expects(&self, cookie: u64) -> Result<(u64, u64)>;
    /// A part of a read's data.
    fn data(&mut self, cookie: u64, offset: u64, bytes: &[u8]) -> Result<()>;
    /// A part of a read's data that is zero.
    fn hole(&mut self, cookie: u64, offset: u64, length: u64) -> Result<()>;
    /// The request failed with this error; its end comes as well.
    fn fail(&mut self, cookie: u64, error: u32, text: &str) -> Result<()>;
    /// The reply is complete.
    fn done(&mut self, cookie: u64) -> Result<()>;
}

#[derive(Clone, Copy, Debug)]
enum ReplyState {
    Header,
    /// A part of fixed length is gathered: a chunk's payload, or what stands before its data.
    Small {
        cookie: u64,
        kind: u16,
        done: bool,
        length: usize,
        /// Data behind it, in bytes.
        behind: u64,
    },
    Data {
        cookie: u64,
        offset: u64,
        left: u64,
        done: bool,
    },
}

/// The parser of one connection.
#[derive(Debug)]
pub(crate) struct Replies {
    style: ReplyStyle,
    state: ReplyState,
    /// The begin of what is not whole yet.
    partial: Vec<u8>,
}

impl Replies {
    pub(crate) fn new(style: ReplyStyle) -> Self {
        Self { style, state: ReplyState::Header, partial: Vec::new() }
    }

    /// Takes what was received.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when the server breaks the protocol.
    pub(crate) fn take(&mut self, bytes: &[u8], sink: &mut impl ReplySink) -> Result<()> {
        let mut rest = bytes;
        while !rest.is_empty() {
            match self.state {
                ReplyState::Header => {
                    let parsed = match self.partial.is_empty() {
                        true => ReplyHeader::parse(self.style, rest)?,
                        false => ReplyHeader::parse(self.style, &self.partial)?,
                    };
                    match parsed {
                        Parsed::Complete(header, length) => {
                            if self.partial.is_empty() {
                                rest = &rest[length..];
                            }
                            self.partial.clear();
                            self.header(header, sink)?;
                        }
                        Parsed::Incomplete(needed) => rest = self.gather(rest, needed),
                    }
                    // The header may have become whole with the last of the bytes.
                    if rest.is_empty()
                        && let Parsed::Complete(header, _) =
                            ReplyHeader::parse(self.style, &self.partial)?
                    {
                        self.partial.clear();
                        self.header(header, sink)?;
                    }
                }
                ReplyState::Small { cookie, kind, done, length, behind } => {
                    rest = self.gather(rest, length);
                    if self.partial.len() == length {
                        let payload = std::mem::take(&mut self.partial);
                        self.state = ReplyState::Header;
                        self.small(cookie, kind, done, behind, &payload, sink)?;
                        self.partial = payload;
                        self.partial.clear();
                    }
                }
                ReplyState::Data { cookie, offset, left, done } => {
                    let part = rest.len().min(usize::try_from(left).unwrap_or(usize::MAX));
                    sink.data(cookie, offset, &rest[..part])?;
                    rest = &rest[part..];
                    self.data(cookie, offset + part as u64, left - part as u64, done, sink)?;
                }
            }
        }
        Ok(())
    }

    /// Adds to what is gathered until it has `needed` bytes; gives the rest.
    fn gather<'a>(&mut self, bytes: &'a [u8], needed: usize) -> &'a [u8] {
        let part = needed.saturating_sub(self.partial.len()).min(bytes.len());
        self.partial.extend_from_slice(&bytes[..part]);
        &bytes[part..]
    }

    /// Goes on with data of which so much is left.
    fn data(
        &mut self,
        cookie: u64,
        offset: u64,
        left: u64,
        done: bool,
        sink: &mut impl ReplySink,
    ) -> Result<()> {
        if left > 0 {
            self.state = ReplyState::Data { cookie, offset, left, done };
            return Ok(());
        }
        self.state = ReplyState::Header;
        if done { sink.done(cookie) } else { Ok(()) }
    }

    fn header(&mut self, header: ReplyHeader, sink: &mut impl ReplySink) -> Result<()> {
        match header {
            ReplyHeader::Simple { cookie, error } => {
                let (offset, length) = sink.expects(cookie)?;
                if error != 0 {
                    sink.fail(cookie, error, "")?;
                    return sink.done(cookie);
                }
                if length > 0 && self.style != ReplyStyle::Simple {
                    return Err(wrong("answers a read without a chunk"));
                }
                self.data(cookie, offset, length, true, sink)
            }
            ReplyHeader::Chunk { cookie, done, kind, len } => {
                let (_, expected) = sink.expects(cookie)?;
                let head = reply::DATA_OFFSET as u64;
                match kind {
                    chunk::OFFSET_DATA => {
                        if len <= head || len - head > expected {
                            return Err(wrong("sent a data chunk that does not fit"));
                        }
                        let length = reply::DATA_OFFSET;
                        self.state =
                            ReplyState::Small { cookie, kind, done, length, behind: len - head };
                        Ok(())
                    }
                    _ if len > LONGEST_CHUNK => Err(wrong("sent a chunk that is too long")),
                    _ if len == 0 => self.small(cookie, kind, done, 0, &[], sink),
                    _ => {
                        let length = len as usize;
                        self.state = ReplyState::Small { cookie, kind, done, length, behind: 0 };
                        Ok(())
                    }
                }
            }
        }
    }

    /// A part of fixed length is whole.
    fn small(
        &mut self,
        cookie: u64,
        kind: u16,
        done: bool,
        behind: u64,
        payload: &[u8],
        sink: &mut impl ReplySink,
    ) -> Result<()> {
        match kind {
            chunk::NONE if payload.is_empty() => {}
            chunk::OFFSET_DATA => {
                let mut offset = [0; reply::DATA_OFFSET];
                offset.copy_from_slice(payload);
                return self.data(cookie, u64::from_be_bytes(offset), behind, done, sink);
            }
            chunk::OFFSET_HOLE => {
                let (offset, length) = reply::parse_hole(payload)?;
                sink.hole(cookie, offset, u64::from(length))?;
            }
            kind if kind & chunk::ERROR_BIT != 0 => {
                let (error, text) = reply::parse_error(payload)?;
                if error == 0 {
                    return Err(wrong("sent an error without a number"));
                }
                sink.fail(cookie, error, &text)?;
            }
            _ => return Err(wrong("sent a chunk that does not fit its request")),
        }
        if done { sink.done(cookie) } else { Ok(()) }
    }
}

fn wrong(what: &str) -> Error {
    Error::invalid(format!("the server {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::codec::reply::{Mark, put_done, put_error, put_hole, put_read_head};
    use proptest::prelude::*;

    /// Cookie 0 is a read of 100 bytes at 1000, others carry nothing.
    #[derive(Debug, Default, PartialEq)]
    struct Log {
        data: Vec<(u64, u8)>,
        holes: Vec<(u64, u64)>,
        ended: Vec<(u64, u32)>,
        error: u32,
    }

    impl ReplySink for Log {
        fn expects(&self, cookie: u64) -> Result<(u64, u64)> {
            match cookie {
                0 => Ok((1000, 100)),
                1..8 => Ok((0, 0)),
                _ => Err(Error::invalid("unknown")),
            }
        }
        fn data(&mut self, _: u64, offset: u64, bytes: &[u8]) -> Result<()> {
            self.data.extend(bytes.iter().enumerate().map(|(i, b)| (offset + i as u64, *b)));
            Ok(())
        }
        fn hole(&mut self, _: u64, offset: u64, length: u64) -> Result<()> {
            self.holes.push((offset, length));
            Ok(())
        }
        fn fail(&mut self, _: u64, error: u32, _: &str) -> Result<()> {
            self.error = error;
            Ok(())
        }
        fn done(&mut self, cookie: u64) -> Result<()> {
            let error = std::mem::take(&mut self.error);
            self.ended.push((cookie, error));
            Ok(())
        }
    }

    fn style() -> impl Strategy<Value = ReplyStyle> {
        prop_oneof![
            Just(ReplyStyle::Simple),
            Just(ReplyStyle::Structured),
            Just(ReplyStyle::Extended)
        ]
    }

    fn replies(style: ReplyStyle, kinds: &[u8]) -> (Vec<u8>, Log) {
        let (mut bytes, mut log) = (Vec::new(), Log::default());
        for (i, kind) in kinds.iter().enumerate() {
            let cookie = i as u64 % 7 + 1;
            let mark = Mark { cookie, offset: 0 };
            let read = Mark { cookie: 0, offset: 1000 };
            match kind {
                0 => put_done(style, mark, &mut bytes),
                1 => put_error(style, mark, 5, "broken", &mut bytes),
                2 if style != ReplyStyle::Simple => {
                    put_hole(style, read, true, 1000, 100, &mut bytes);
                    log.holes.push((1000, 100));
                    log.ended.push((0, 0));
                    continue;
                }
                _ => {
                    put_read_head(style, read, 100, &mut bytes);
                    bytes.extend(0..100u8);
                    log.data.extend((0..100u8).map(|b| (1000 + u64::from(b), b)));
                    log.ended.push((0, 0));
                    continue;
                }
            }
            log.ended.push((cookie, u32::from(*kind) * 5));
        }
        (bytes, log)
    }

    proptest! {
        #[test]
        fn replies_come_out_the_same_however_they_are_cut(
            style in style(), kinds in proptest::collection::vec(0u8..4, 0..20),
            cuts in proptest::collection::vec(1usize..40, 1..50),
        ) {
            let (bytes, expected) = replies(style, &kinds);
            let mut parser = Replies::new(style);
            let mut log = Log::default();
            let (mut rest, mut cuts) = (bytes.as_slice(), cuts.iter().cycle());
            while !rest.is_empty() {
                let (part, behind) = rest.split_at(rest.len().min(*cuts.next().unwrap()));
                parser.take(part, &mut log).unwrap();
                rest = behind;
            }
            prop_assert_eq!(log, expected);
        }

        #[test]
        fn no_bytes_panic(style in style(), bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Replies::new(style).take(&bytes, &mut Log::default());
            let (mut whole, _) = replies(style, &[3, 2, 1]);
            for (i, byte) in bytes.iter().enumerate() {
                let at = i * 37 % whole.len();
                whole[at] ^= byte;
            }
            let _ = Replies::new(style).take(&whole, &mut Log::default());
        }
    }

    #[test]
    fn lengths_are_not_believed() {
        let mark = Mark { cookie: 0, offset: 0 };
        let mut bytes = Vec::new();
        put_read_head(ReplyStyle::Structured, mark, 101, &mut bytes);
        let error = Replies::new(ReplyStyle::Structured).take(&bytes, &mut Log::default());
        assert!(error.unwrap_err().message().contains("does not fit"));
    }
}
