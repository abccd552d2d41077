//! Gathers what connections noted and writes it in order of time.

use super::{Buffer, Note, Recorder};
use crate::native::column::Effort;
use crate::native::writer::Writer;
use crate::{Flags, Header, Request};
use block::{Error, Result};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

/// Nanoseconds that a request may take and still get its place.
const PATIENCE: u64 = 1_000_000_000;
/// Nanoseconds that written requests may wait for their block to fill.
const FLUSH: u64 = 1_000_000_000;
/// Requests that are held for their place at most: 160 MiB.
const HELD: usize = 4 << 20;
/// Buffers that are kept for the next requests.
const SPARES: usize = 64;

/// Writes what a [`Recorder`] gathers. Requests are noted when they are answered; so that they
/// come in the order in which they began, they are held for a second. One that took longer is put
/// where the trace has got to, with [`Flags::LATE`].
pub struct Collector<W: Write> {
    recorder: Arc<Recorder>,
    writer: Writer<Counting<W>>,
    path: PathBuf,
    held: Vec<Request>,
    /// The time that was written up to.
    written: u64,
    /// When short blocks were written last.
    flushed: u64,
    /// Requests and bytes of then.
    safe: (u64, u64),
    /// Bytes at which recording ends.
    limit: u64,
    late: u64,
    clients: usize,
    disks: usize,
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

impl<W: Write> Collector<W> {
    /// Writes to `out`; `path` is for messages. At `limit` bytes it ends with an error.
    ///
    /// # Errors
    /// Those of the output.
    pub fn new(
        recorder: Arc<Recorder>,
        out: W,
        path: impl Into<PathBuf>,
        limit: u64,
        notes: &str,
    ) -> Result<Self> {
        let path = path.into();
        let header = Header { latencies: true, notes: notes.to_owned(), ..Header::default() };
        let out = Counting { inner: out, bytes: 0 };
        let writer = Writer::new(out, &path, header, Effort::Low)?;
        let (held, written, late) = (Vec::new(), 0, 0);
        let (flushed, safe, clients, disks) = (0, (0, 0), 0, 0);
        Ok(Self {
            recorder,
            writer,
            path,
            held,
            written,
            flushed,
            safe,
            limit,
            late,
            clients,
            disks,
        })
    }

    /// Requests and bytes that are in the file, whatever happens to the recorder.
    pub fn written(&self) -> (u64, u64) {
        self.safe
    }

    /// Takes what was noted and writes what has its place. Call it some times a second.
    ///
    /// # Errors
    /// Those of the output; [`NoSpace`](block::ErrorKind::NoSpace) at the limit.
    pub fn pass(&mut self) -> Result<()> {
        let now = self.recorder.now();
        self.gather();
        let mut until = now.saturating_sub(PATIENCE);
        if self.held.len() > HELD {
            until = self.held[self.held.len() - HELD].time;
        }
        self.write(until)?;
        if self.writer.output().bytes >= self.limit {
            return Err(Error::no_space(format!(
                "{}: the trace has reached its limit of {} bytes; move it away and record again",
                self.path.display(),
                self.limit
            )));
        }
        Ok(())
    }

    /// Writes everything, and the end of the file; gives the output back, and how many requests
    /// and bytes it holds.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> Result<(W, u64, u64)> {
        self.gather();
        self.write(u64::MAX)?;
        let (dropped, late) = (self.recorder.dropped(), self.late);
        let header = self.writer.header_mut();
        if dropped > 0 {
            header.note(&format!("{dropped} requests were dropped: the recorder was too slow"));
        }
        if late > 0 {
            header.note(&format!("{late} requests took so long that they come late"));
        }
        let requests = self.writer.requests();
        let out = self.writer.finish()?;
        Ok((out.inner, requests, out.bytes))
    }

    /// Takes all that was noted, and puts it in order.
    fn gather(&mut self) {
        let (before, written) = (self.held.len(), self.written);
        let mut buffers = std::mem::take(&mut *self.recorder.full.lock());
        let mut taps = std::mem::take(&mut *self.recorder.taps.lock());
        taps.retain(|tap| {
            let Some(tap) = tap.upgrade() else { return false };
            let mut buffer = tap.buffer.lock();
            if !buffer.is_empty() {
                let place = |note: &Note| note.request(tap.client, tap.disk, written);
                self.held.extend(buffer.iter().map(place));
                buffer.clear();
            }
            true
        });
        self.recorder.taps.lock().append(&mut taps);
        for Buffer { client, disk, notes } in &mut buffers {
            self.held.extend(notes.iter().map(|note| note.request(*client, *disk, written)));
            notes.clear();
        }
        {
            let mut spare = self.recorder.spare.lock();
            let room = SPARES.saturating_sub(spare.len());
            spare.extend(buffers.drain(..).take(room).map(|buffer| buffer.notes));
        }
        let late = self.held[before..].iter().filter(|r| r.flags.has(Flags::LATE)).count();
        self.late += late as u64;
        // What was held is in order: only what the new ones may go between is sorted again.
        let new = self.held[before..].iter().map(|r| r.time).min().unwrap_or(u64::MAX);
        let from = self.held[..before].partition_point(|r| r.time <= new);
        self.held[from..].sort_by_key(|r| r.time);
        let parties = self.recorder.parties.lock();
        if (parties.clients.len(), parties.disks.len()) != (self.clients, self.disks) {
            (self.clients, self.disks) = (parties.clients.len(), parties.disks.len());
            let header = self.writer.header_mut();
            header.clients.clone_from(&parties.clients);
            header.disks.clone_from(&parties.disks);
        }
    }

    /// Writes what began before `until`.
    fn write(&mut self, until: u64) -> Result<()> {
        let count = self.held.partition_point(|r| r.time < until);
        self.writer.append(&self.held[..count])?;
        if let Some(last) = self.held[..count].last() {
            self.written = last.time;
        }
        // Short blocks cost more: a trickle is gathered for a while.
        if until >= self.flushed.saturating_add(FLUSH) {
            self.flushed = until;
            self.writer.flush()?;
            self.safe = (self.writer.requests(), self.writer.output().bytes);
        }
        self.held.drain(..count);
        Ok(())
    }
}
