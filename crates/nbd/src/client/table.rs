//! The requests that wait for their answer.

use crate::codec::constants::{command, command_flags as flag};
use crate::codec::request::RequestHeader;
use block::{Error, Extent, Result};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// Pieces of a read that may be apart from each other at a time.
const MOST_PARTS: usize = 16 << 10;

/// A request that this many connections were lost with is not sent again: it may be the cause.
const MOST_LOSSES: u32 = 5;

/// What the server gave.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Data(Vec<u8>),
    Extents(Vec<Extent>),
}

/// A request on its way to the server. Its cookie is given by the table.
#[derive(Debug)]
pub(super) struct QueuedRequest {
    pub(super) request: RequestHeader,
    pub(super) payload: Bytes,
    pub(super) answer: oneshot::Sender<Result<Answer>>,
    /// Its share of the bytes that may be under way.
    pub(super) share: OwnedSemaphorePermit,
}

/// A request that waits for its answer, and what came of it so far.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) order: QueuedRequest,
    /// Writes that were acknowledged before this request was taken.
    acknowledged: u64,
    pub(super) data: Vec<u8>,
    /// The parts of a read that came, sorted.
    covered: Vec<Range<u64>>,
    pub(super) extents: Vec<Extent>,
    pub(super) error: Option<Error>,
    /// Connections that were lost while it waited.
    losses: u32,
}

impl Pending {
    pub(super) fn request(&self) -> &RequestHeader {
        &self.order.request
    }

    /// Notes that a part of a read came; it must lie inside and must not have come before.
    pub(super) fn cover(&mut self, offset: u64, len: u64) -> Result<Range<usize>> {
        let request = *self.request();
        let start = offset.checked_sub(request.offset);
        let part = start.and_then(|start| Some(start..start.checked_add(len)?));
        let Some(part) = part.filter(|part| part.end <= request.len && len > 0) else {
            return Err(Error::invalid("the server sent data outside of the request"));
        };
        let at = self.covered.partition_point(|other| other.start < part.start);
        let clear = (at == 0 || self.covered[at - 1].end <= part.start)
            && self.covered.get(at).is_none_or(|next| part.end <= next.start);
        if !clear {
            return Err(Error::invalid("the server sent the same data twice"));
        }
        let place = part.start as usize..part.end as usize;
        if at > 0 && self.covered[at - 1].end == part.start {
            self.covered[at - 1].end = part.end;
        } else if self.covered.len() < MOST_PARTS {
            self.covered.insert(at, part);
        } else {
            return Err(Error::invalid("the server sent data in too many pieces"));
        }
        if self.data.is_empty() {
            self.data = vec![0; request.len as usize];
        }
        Ok(place)
    }

    fn result(&mut self) -> Result<Answer> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        match self.request().command {
            command::READ => {
                let came: u64 = self.covered.iter().map(|part| part.end - part.start).sum();
                if came != self.request().len {
                    return Err(Error::invalid("the server left out a part of the data"));
                }
                Ok(Answer::Data(std::mem::take(&mut self.data)))
            }
            command::BLOCK_STATUS if self.extents.is_empty() => {
                Err(Error::invalid("the server left out the extents"))
            }
            command::BLOCK_STATUS => Ok(Answer::Extents(std::mem::take(&mut self.extents))),
            _ => Ok(Answer::Done),
        }
    }
}

/// The requests that wait, by cookie, which is their order too; and which acknowledged writes a
/// lost connection may have taken along.
#[derive(Debug, Default)]
pub(super) struct RequestTable {
    pending: BTreeMap<u64, Pending>,
    next: u64,
    answered: u64,
    /// Changes acknowledged without forced unit access.
    acknowledged: u64,
    /// How many of them are known to be durable.
    flushed: u64,
    /// The connection was lost when some were not.
    doubtful: bool,
}

impl RequestTable {
    /// Takes a request; `None` when it was answered without the server.
    pub(super) fn insert(&mut self, mut order: QueuedRequest) -> Option<&Pending> {
        if order.request.command == command::FLUSH && self.doubtful {
            self.answer_doubtful(order);
            return None;
        }
        let cookie = self.next;
        self.next += 1;
        order.request.cookie = cookie;
        let pending = Pending {
            order,
            acknowledged: self.acknowledged,
            data: Vec::new(),
            covered: Vec::new(),
            extents: Vec::new(),
            error: None,
            losses: 0,
        };
        Some(self.pending.entry(cookie).or_insert(pending))
    }

    /// A flush cannot vouch for what another connection acknowledged: the server may have crashed.
    fn answer_doubtful(&mut self, order: QueuedRequest) {
        self.doubtful = false;
        self.flushed = self.acknowledged;
        let _ = order.answer.send(Err(Error::unavailable(
            "the connection was lost with writes acknowledged but not flushed: they may be missing; write them again",
        )));
    }

    /// How many requests the server has answered.
    pub(super) fn answered(&self) -> u64 {
        self.answered
    }

    pub(super) fn get(&mut self, cookie: u64) -> Result<&mut Pending> {
        let pending = self.pending.get_mut(&cookie);
        pending.ok_or_else(|| Error::invalid("the server answered a request that was not made"))
    }

    /// All that wait, in order.
    pub(super) fn cookies(&self) -> Vec<u64> {
        self.pending.keys().copied().collect()
    }

    /// Ends a request.
    ///
    /// # Errors
    /// When the server's answer is not whole; the request still waits then.
    pub(super) fn finish(&mut self, cookie: u64) -> Result<()> {
        let pending = self.get(cookie)?;
        let failed_there = pending.error.is_some();
        let result = match pending.result() {
            Err(e) if !failed_there => return Err(e),
            result => result,
        };
        let Some(pending) = self.pending.remove(&cookie) else { return Ok(()) };
        self.answered += 1;
        if result.is_ok() {
            let request = pending.request();
            match request.command {
                command::FLUSH => self.flushed = self.flushed.max(pending.acknowledged),
                command::WRITE | command::TRIM | command::WRITE_ZEROES
                    if request.flags & flag::FUA == 0 =>
                {
                    self.acknowledged += 1;
                }
                _ => {}
            }
        }
        drop(pending.order.share);
        let _ = pending.order.answer.send(result); // the caller may be gone
        Ok(())
    }

    /// The connection is lost: forgets half answers, and gives up what is lost too often. What
    /// nobody waits for any more is not sent again: a stale write could land on a newer one.
    pub(super) fn interrupt(&mut self, error: &Error) {
        self.doubtful |= self.acknowledged > self.flushed;
        let given_up = self.pending.extract_if(.., |_, pending| {
            pending.losses += 1;
            pending.losses >= MOST_LOSSES || pending.order.answer.is_closed()
        });
        for (_, pending) in given_up.collect::<Vec<_>>() {
            let _ = pending.order.answer.send(Err(Error::new(error.kind(), error.message())));
        }
        for pending in self.pending.values_mut() {
            pending.data = Vec::new();
            pending.covered.clear();
            pending.extents.clear();
            pending.error = None;
        }
        if self.doubtful {
            let is_flush = |pending: &Pending| pending.request().command == command::FLUSH;
            let flushes: Vec<_> =
                self.pending.extract_if(.., |_, pending| is_flush(pending)).collect();
            for (_, flush) in flushes {
                self.answer_doubtful(flush.order);
            }
        }
    }

    /// Fails all that wait.
    pub(super) fn fail(&mut self, error: &Error) {
        for (_, pending) in std::mem::take(&mut self.pending) {
            let _ = pending.order.answer.send(Err(Error::new(error.kind(), error.message())));
        }
    }
}
