//! Writing a file.

use super::FULL;
use super::block::BlockWriter;
use super::column::Effort;
use super::frame::{self, BlockEntry, FrameKind, TraceIndex};
use super::names::{self, NamesFrame};
use crate::header::MAX_PARTIES;
use crate::request::PLACES;
use crate::{Header, Request, TraceDisk};
use block::{Error, Result};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

/// Makes a file in our format, in place of what was there.
///
/// # Errors
/// Any error from the file.
pub fn create(path: &Path, header: Header, effort: Effort) -> Result<Writer<BufWriter<File>>> {
    let file = File::create(path).map_err(|e| Error::io(path.display(), e))?;
    Writer::new(BufWriter::with_capacity(1 << 20, file), path, header, effort)
}

/// Writes requests, in order of time, in our format.
///
/// What was pushed is in the file after [`flush`](Self::flush); without [`finish`](Self::finish)
/// the file can be read up to there, and says that it is not whole.
pub struct Writer<W: Write> {
    out: W,
    path: PathBuf,
    at: u64,
    header: Header,
    header_changed: bool,
    /// The names that the file has.
    named: (Vec<String>, Vec<TraceDisk>),
    /// Bytes of names frames.
    name_bytes: u64,
    blocks: BlockWriter,
    pending: Vec<Request>,
    payload: Vec<u8>,
    index: TraceIndex,
    last: u64,
    clients: u32,
    disks: u32,
    /// A write failed: how much of it is in the file is not known, so nothing may follow.
    broken: bool,
}

impl<W: Write> Writer<W> {
    /// Begins a file; `path` is for messages.
    ///
    /// # Errors
    /// Any error from the output.
    pub fn new(out: W, path: impl Into<PathBuf>, header: Header, effort: Effort) -> Result<Self> {
        let mut writer = Self {
            out,
            path: path.into(),
            at: 0,
            header: Header { requests: None, ..header },
            header_changed: true,
            named: Default::default(),
            name_bytes: 0,
            blocks: BlockWriter::new(effort)?,
            pending: Vec::with_capacity(FULL),
            payload: Vec::new(),
            index: TraceIndex::default(),
            last: 0,
            clients: 0,
            disks: 0,
            broken: false,
        };
        writer.raw(&frame::prologue())?;
        writer.write_header()?;
        Ok(writer)
    }

    /// The header, to change: it is written again with the next block, and so are names that
    /// changed.
    pub fn header_mut(&mut self) -> &mut Header {
        self.header_changed = true;
        &mut self.header
    }

    /// Adds a client and gives its number. Its name is written with the next block.
    pub(crate) fn name_client(&mut self, name: String) -> u32 {
        self.header.clients.push(name);
        self.header.clients.len() as u32 - 1
    }

    /// The same for a disk.
    pub(crate) fn name_disk(&mut self, disk: TraceDisk) -> u32 {
        self.header.disks.push(disk);
        self.header.disks.len() as u32 - 1
    }

    /// Bytes that names take in the file so far.
    pub(crate) fn names(&self) -> u64 {
        self.name_bytes
    }

    /// The output.
    pub(crate) fn output(&self) -> &W {
        &self.out
    }

    /// How many blocks were written.
    pub(crate) fn blocks(&self) -> usize {
        self.index.entries.len()
    }

    /// How many requests were pushed.
    pub fn requests(&self) -> u64 {
        self.index.requests + self.pending.len() as u64
    }

    /// Adds a request.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when its time is before the last one's, or it is out
    /// of range; any error from the output.
    pub fn push(&mut self, request: &Request) -> Result<()> {
        if request.time < self.last {
            return Err(Error::invalid(format!(
                "{}: request {} is of {} ns, but the one before it of {} ns; sort them first",
                self.path.display(),
                self.requests() + 1,
                request.time,
                self.last
            )));
        }
        let outside = request.offset.checked_add(request.length.into()).is_none_or(|e| e > PLACES);
        if outside || request.client.max(request.disk) >= MAX_PARTIES {
            return Err(Error::invalid(format!(
                "{}: request {} has a place, client or disk beyond the limit of the format",
                self.path.display(),
                self.requests() + 1
            )));
        }
        self.last = request.time;
        self.clients = self.clients.max(request.client + 1);
        self.disks = self.disks.max(request.disk + 1);
        self.pending.push(*request);
        if self.pending.len() == FULL {
            self.write_block()?;
        }
        Ok(())
    }

    /// Adds requests, as [`push`](Self::push) does each.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) when its time is before the last one's, or it is out
    /// of range; any error from the output.
    pub fn append(&mut self, requests: &[Request]) -> Result<()> {
        requests.iter().try_for_each(|request| self.push(request))
    }

    /// Writes out what was pushed, in a short block.
    ///
    /// # Errors
    /// Any error from the output.
    pub fn flush(&mut self) -> Result<()> {
        self.write_block()?;
        self.out.flush().map_err(|e| Error::io(self.path.display(), e))
    }

    /// Writes the rest, the final header, the index; returns the output.
    ///
    /// # Errors
    /// Any error from the output.
    pub fn finish(mut self) -> Result<W> {
        self.write_block()?;
        let (clients, disks) = (self.clients as usize, self.disks as usize);
        self.header.clients.resize(self.header.clients.len().max(clients), String::new());
        self.header.disks.resize(self.header.disks.len().max(disks), TraceDisk::default());
        self.header.requests = Some(self.index.requests);
        self.write_header()?;
        let index = self.at;
        let payload = self.index.payload();
        self.frame(FrameKind::Index, &payload)?;
        self.raw(&frame::trailer(index))?;
        self.out.flush().map_err(|e| Error::io(self.path.display(), e))?;
        Ok(self.out)
    }

    fn write_block(&mut self) -> Result<()> {
        let (Some(first), Some(last)) = (self.pending.first(), self.pending.last()) else {
            return Ok(());
        };
        let requests = self.pending.len() as u32;
        let entry = BlockEntry { offset: 0, requests, first: first.time, last: last.time };
        if self.header_changed {
            self.write_header()?;
        }
        self.write_names()?;
        let mut payload = std::mem::take(&mut self.payload);
        self.blocks.encode(&self.pending, &mut payload)?;
        self.index.entries.push(BlockEntry { offset: self.at, ..entry });
        self.index.requests += u64::from(requests);
        self.frame(FrameKind::Block, &payload)?;
        self.payload = payload;
        self.pending.clear();
        Ok(())
    }

    fn write_header(&mut self) -> Result<()> {
        self.index.header = self.at;
        self.header_changed = false;
        // Whoever changes the header may have changed any name.
        let (clients, disks) = &mut self.named;
        clients.truncate(names::same(clients, &self.header.clients));
        disks.truncate(names::same(disks, &self.header.disks));
        let payload = frame::header_payload(&self.header)?;
        self.frame(FrameKind::Header, &payload)?;
        self.write_names()
    }

    /// Writes the names that the file has not got.
    fn write_names(&mut self) -> Result<()> {
        loop {
            let mut names = NamesFrame::of(&self.header, self.named.0.len(), self.named.1.len());
            if names.is_empty() {
                return Ok(());
            }
            names.before = self.index.names;
            let payload = names.payload()?;
            self.name_bytes += payload.len() as u64 + names::FRAME;
            if self.name_bytes > names::MOST_BYTES {
                return Err(Error::invalid(format!(
                    "{}: the names of clients and disks are more than a trace can hold ({} bytes)",
                    self.path.display(),
                    names::MOST_BYTES
                )));
            }
            self.index.names = self.at;
            self.frame(FrameKind::Names, &payload)?;
            self.named.0.append(&mut names.clients);
            self.named.1.append(&mut names.disks);
        }
    }

    fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<()> {
        let head = frame::head(kind, payload).map_err(|e| e.context(self.path.display()))?;
        self.raw(&head)?;
        self.raw(payload)
    }

    fn raw(&mut self, bytes: &[u8]) -> Result<()> {
        if self.broken {
            return Err(Error::unavailable(format!(
                "{}: an earlier write failed, and the trace ends there",
                self.path.display()
            )));
        }
        self.at += bytes.len() as u64;
        self.out.write_all(bytes).map_err(|e| {
            self.broken = true;
            Error::io(self.path.display(), e)
        })
    }
}
