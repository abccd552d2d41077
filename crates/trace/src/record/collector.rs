//! Gathers what connections noted and writes it in order of time.

use super::Recorder;
use super::log::{AnswerBatch, Party};
use super::reorder::{Owner, ReorderBuffer};
use crate::header::MAX_PARTIES;
use crate::native::column::Effort;
use crate::native::writer::Writer;
use crate::{Flags, Header, Op, Request};
use block::{Action, Answered, Result};
use std::collections::HashMap;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::time::Instant;

/// Nanoseconds that a request may take and still get its place.
const PATIENCE: u64 = 1_000_000_000;
/// Nanoseconds that written requests may wait for their block to fill.
const FLUSH: u64 = 1_000_000_000;
/// Requests that are held for their place at most: 48 MiB, or 150 where each is a batch of its own.
const HELD: usize = 2 << 20;
/// Blocks after which a file is full: of more than 2.3 million an index cannot tell.
const MOST_BLOCKS: usize = 2_000_000;
/// Bytes of names after which a file is full.
const NAMES: u64 = 64 << 20;

/// Writes what a [`Recorder`] gathers, into one file after the other. Requests are noted when they
/// are answered; so that they come in the order in which they began, they are held for a second.
/// One that took longer is put where the trace has got to, with [`Flags::LATE`].
pub struct Collector<W: Write> {
    recorder: Arc<Recorder>,
    file: TraceFile<W>,
    held: ReorderBuffer,
    /// The recorder's time that was written up to.
    written: u64,
    /// When short blocks were written last.
    flushed: u64,
    /// Bytes at which a file is full.
    limit: u64,
    notes: String,
}

/// A file being written.
struct TraceFile<W: Write> {
    writer: Writer<Counting<W>>,
    /// The recorder's time that is 0 in the file.
    base: u64,
    clients: HashMap<String, u32>,
    disks: HashMap<String, u32>,
    /// Requests that came late.
    late: u64,
    /// Requests that the recorder had dropped when the file was begun.
    dropped: u64,
    /// Requests of clients or disks that the file has no more room to name.
    unnamed: u64,
    /// Requests and bytes that are safe.
    safe: (u64, u64),
}

/// Counts bytes on the way.
struct Counting<W> {
    inner: W,
    bytes: u64,
}

impl<W: Write> Write for Counting<W> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.bytes += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> TraceFile<W> {
    fn new(recorder: &Recorder, base: u64, out: W, path: PathBuf, notes: &str) -> Result<Self> {
        let start = recorder.clock.saturating_add(base);
        let header =
            Header { latencies: true, notes: notes.to_owned(), start, ..Header::default() };
        let out = Counting { inner: out, bytes: 0 };
        Ok(Self {
            writer: Writer::new(out, path, header, Effort::Low)?,
            base,
            clients: HashMap::new(),
            disks: HashMap::new(),
            late: 0,
            dropped: recorder.dropped(),
            unnamed: 0,
            safe: (0, 0),
        })
    }

    /// The numbers of a client and a disk, which are named now if they are new. `None` when the
    /// file can name no more.
    fn numbers(&mut self, party: &Party) -> Option<(u32, u32)> {
        let full = |known: &HashMap<String, u32>, writer: &Writer<_>| {
            known.len() >= MAX_PARTIES as usize || writer.names() >= NAMES
        };
        let client = match self.clients.get(&party.client) {
            Some(number) => *number,
            None if full(&self.clients, &self.writer) => return None,
            None => {
                let number = self.writer.name_client(party.client.clone());
                self.clients.insert(party.client.clone(), number);
                number
            }
        };
        let disk = match self.disks.get(&party.disk.name) {
            Some(number) => *number,
            None if full(&self.disks, &self.writer) => return None,
            None => {
                let number = self.writer.name_disk(party.disk.clone());
                self.disks.insert(party.disk.name.clone(), number);
                number
            }
        };
        Some((client, disk))
    }

    /// Writes a batch whose turn is at `time`.
    fn write(
        &mut self,
        time: u64,
        owner: &mut Owner,
        batch: AnswerBatch,
        requests: &[Answered],
    ) -> Result<()> {
        if owner.numbers.is_none() {
            owner.numbers = self.numbers(&owner.party);
        }
        let Some((client, disk)) = owner.numbers else {
            self.unnamed += requests.len() as u64;
            return Ok(());
        };
        let moved = time.saturating_sub(batch.began);
        // A latency of 0 would say that it is not known.
        let latency = u32::try_from(batch.took.saturating_sub(moved)).unwrap_or(u32::MAX).max(1);
        let common = if moved > 0 { Flags::LATE } else { Flags::NONE };
        let time = time - self.base;
        for one in requests {
            let mut flags = common;
            if one.durable {
                flags = flags.with(Flags::FUA);
            }
            if one.failed {
                flags = flags.with(Flags::FAILED);
            }
            let op = match one.action {
                Action::Read => Op::Read,
                Action::Write => Op::Write,
                Action::Flush => Op::Flush,
                Action::Trim => Op::Trim,
                Action::Zero => Op::Zero,
            };
            // Longer effects than a request can say count as several.
            let (mut offset, end) = (one.span.offset(), one.span.end());
            loop {
                let length = (end - offset).min(u64::from(u32::MAX / 4096 * 4096)) as u32;
                self.writer.push(&Request {
                    time,
                    client,
                    disk,
                    op,
                    offset,
                    length,
                    latency,
                    flags,
                })?;
                offset += u64::from(length);
                if offset >= end {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Ends the file.
    fn finish(mut self, recorder: &Recorder) -> Result<(W, u64, u64)> {
        let dropped = recorder.dropped() - self.dropped + self.unnamed;
        let header = self.writer.header_mut();
        if dropped > 0 {
            header.note(&format!("{dropped} requests were dropped: the recorder was too slow"));
        }
        if self.late > 0 {
            header.note(&format!("{} requests took so long that they come late", self.late));
        }
        let requests = self.writer.requests();
        let out = self.writer.finish()?;
        Ok((out.inner, requests, out.bytes))
    }
}

impl<W: Write> Collector<W> {
    /// Writes to `out`; `path` is for messages. At `limit` bytes it is [full](Self::is_full).
    ///
    /// # Errors
    /// Any error from the output.
    pub fn new(
        recorder: Arc<Recorder>,
        out: W,
        path: impl Into<PathBuf>,
        limit: u64,
        notes: &str,
    ) -> Result<Self> {
        let file = TraceFile::new(&recorder, 0, out, path.into(), notes)?;
        let (held, notes) = (ReorderBuffer::default(), notes.to_owned());
        Ok(Self { recorder, file, held, written: 0, flushed: 0, limit, notes })
    }

    /// Requests and bytes that are in the file, whatever happens to the recorder.
    pub fn written(&self) -> (u64, u64) {
        self.file.safe
    }

    /// Whether the file has reached its limit: it is time for [`rotate`](Self::rotate), or for
    /// [`finish`](Self::finish).
    pub fn is_full(&self) -> bool {
        let writer = &self.file.writer;
        let long = writer.output().bytes >= self.limit || writer.blocks() >= MOST_BLOCKS;
        long || self.file.unnamed > 0
    }

    /// Takes what was noted and writes what has its place. Call it some times a second.
    ///
    /// # Errors
    /// Any error from the output.
    pub fn pass(&mut self) -> Result<()> {
        let now = self.recorder.nanos(Instant::now());
        self.gather();
        let mut until = now.saturating_sub(PATIENCE);
        if self.held.requests() > HELD {
            until = until.max(self.held.time_of_excess(HELD));
        }
        self.write(until)
    }

    /// Ends the file and goes on in another, whose times begin at 0 again. Gives the output back,
    /// and how many requests and bytes it holds.
    ///
    /// # Errors
    /// Any error from either output.
    pub fn rotate(&mut self, out: W, path: impl Into<PathBuf>) -> Result<(W, u64, u64)> {
        let next = TraceFile::new(&self.recorder, self.written, out, path.into(), &self.notes)?;
        self.held.rename();
        std::mem::replace(&mut self.file, next).finish(&self.recorder)
    }

    /// Writes everything, and the end of the file; gives the output back, and how many requests
    /// and bytes it holds.
    ///
    /// # Errors
    /// Any error from the output.
    pub fn finish(mut self) -> Result<(W, u64, u64)> {
        self.gather();
        self.write(u64::MAX)?;
        self.file.finish(&self.recorder)
    }

    /// Takes all that was noted, and puts it in order.
    fn gather(&mut self) {
        self.file.late += self.held.add(self.recorder.take(), self.written);
    }

    /// Writes what began before `until`.
    fn write(&mut self, until: u64) -> Result<()> {
        let Self { held, file, written, recorder, .. } = self;
        held.drain(
            until,
            |time, owner, batch, requests| {
                *written = time;
                file.write(time, owner, batch, requests)
            },
            |notes| recorder.give_back(notes),
        )?;
        // Short blocks cost more: a trickle is gathered for a while.
        if until >= self.flushed.saturating_add(FLUSH) {
            self.flushed = until;
            self.file.writer.flush()?;
            self.file.safe = (self.file.writer.requests(), self.file.writer.output().bytes);
        }
        Ok(())
    }
}
