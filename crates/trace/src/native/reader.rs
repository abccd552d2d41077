//! Reading a file, whole or cut off, from a disk or from a pipe.

use super::block::{self as blocks, BlockReader};
use super::frame::{self, BlockEntry, FrameHead, FrameKind, HEAD, TRAILER, TraceIndex};
use super::names::{self, NamesFrame};
use crate::bytes::fill;
use crate::{Header, Request, Source};
use block::{Error, Result};
use std::io::{Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::PathBuf;

/// Input that can be positioned.
pub(crate) trait Seekable: Read + Seek {}
impl<T: Read + Seek> Seekable for T {}

/// A trace in our format.
pub(crate) struct NativeReader<R> {
    input: R,
    path: PathBuf,
    at: u64,
    /// Where the blocks end, when that is known.
    end: Option<u64>,
    header: Header,
    blocks: BlockReader,
    payload: Vec<u8>,
    /// Bytes of names frames that were read.
    name_bytes: u64,
    last: u64,
    read: u64,
    done: bool,
}

impl<R: Read> NativeReader<R> {
    /// Reads from a pipe: the header is the first one, and names come as they are needed.
    pub(crate) fn stream(input: R, path: PathBuf) -> Result<Self> {
        let mut reader = Self::raw(input, path)?;
        reader.prologue()?;
        match reader.next_frame()? {
            Some((at, FrameKind::Header)) => reader.take_header(at)?,
            Some((at, _)) => return Err(reader.corrupt(at, "the first frame is no header")),
            None => return Err(reader.corrupt(reader.at, "the trace ends before its header")),
        }
        Ok(reader)
    }

    fn raw(input: R, path: PathBuf) -> Result<Self> {
        Ok(Self {
            input,
            path,
            at: 0,
            end: None,
            header: Header::default(),
            blocks: BlockReader::new()?,
            payload: Vec::new(),
            name_bytes: 0,
            last: 0,
            read: 0,
            done: false,
        })
    }

    fn prologue(&mut self) -> Result<()> {
        let mut bytes = [0; HEAD];
        let n = fill(&mut self.input, &mut bytes).map_err(|e| self.io(e))?;
        if n < HEAD {
            return Err(self.corrupt(0, "the trace ends in its prologue"));
        }
        frame::check_prologue(&bytes).map_err(|e| e.context(self.path.display()))?;
        self.at = HEAD as u64;
        Ok(())
    }

    /// Reads a frame into `payload`; where it stands and its kind. `None` where the input ends.
    fn next_frame(&mut self) -> Result<Option<(u64, FrameKind)>> {
        let at = self.at;
        if self.end.is_some_and(|end| at >= end) {
            return Ok(None);
        }
        let mut bytes = [0; HEAD];
        let n = fill(&mut self.input, &mut bytes).map_err(|e| self.io(e))?;
        if n < HEAD {
            return Ok(None);
        }
        let head = FrameHead::parse(&bytes, at).map_err(|e| e.context(self.path.display()))?;
        let whole = frame::payload(&mut self.input, head.length, &mut self.payload)
            .map_err(|e| self.io(e))?;
        if !whole {
            return Ok(None);
        }
        head.check(&self.payload, at).map_err(|e| e.context(self.path.display()))?;
        self.at += (HEAD as u64) + u64::from(head.length);
        Ok(Some((at, head.kind)))
    }

    /// Takes the header that is in `payload`. Names stay as they were.
    fn take_header(&mut self, at: u64) -> Result<()> {
        let header =
            frame::parse_header(&self.payload, at).map_err(|e| e.context(self.path.display()))?;
        let old = std::mem::replace(&mut self.header, header);
        (self.header.clients, self.header.disks) = (old.clients, old.disks);
        Ok(())
    }

    /// Counts the names frame that is in `payload`, before it is looked at.
    fn count_names(&mut self, at: u64) -> Result<()> {
        self.name_bytes += self.payload.len() as u64 + names::FRAME;
        if self.name_bytes > names::MOST_BYTES {
            let limit = names::MOST_BYTES;
            return Err(self.corrupt(at, &format!("names of more than {limit} bytes")));
        }
        Ok(())
    }

    /// Takes the names that are in `payload`.
    fn take_names(&mut self, at: u64) -> Result<()> {
        let names = NamesFrame::parse(&self.payload, at).map_err(|e| self.in_file(e))?;
        let added = names.add_to(&mut self.header);
        added.map_err(|e| self.in_file(e.context(format!("offset {at}"))))
    }

    fn in_file(&self, error: Error) -> Error {
        error.context(self.path.display())
    }

    fn io(&self, error: std::io::Error) -> Error {
        Error::io(self.path.display(), error)
    }

    fn corrupt(&self, at: u64, what: &str) -> Error {
        Error::corrupt(format!("{}: offset {at}: {what}", self.path.display()))
    }
}

impl<R: Seekable> NativeReader<R> {
    /// Reads a file. Blocks that lie wholly outside `times` (ns) are skipped.
    pub(crate) fn file(input: R, path: PathBuf, times: Option<Range<u64>>) -> Result<Self> {
        let mut reader = Self::raw(input, path)?;
        reader.prologue()?;
        let length = reader.seek(SeekFrom::End(0))?;
        let index = match reader.finished(length)? {
            Some(index) => index,
            None => reader.scan(length)?,
        };
        reader.seek(SeekFrom::Start(index.header))?;
        reader.at = index.header;
        match reader.next_frame()? {
            Some((at, FrameKind::Header)) => {
                let complete = reader.header.complete;
                reader.take_header(at)?;
                reader.header.complete = complete;
                reader.header.requests = Some(index.requests);
            }
            _ => return Err(reader.corrupt(index.header, "there is no header")),
        }
        reader.all_names(index.names)?;
        let inside = |entry: &&BlockEntry| {
            times.as_ref().is_none_or(|t| entry.last >= t.start && entry.first < t.end)
        };
        let first = index.entries.iter().find(inside);
        let last = index.entries.iter().rfind(inside);
        let (Some(first), Some(last)) = (first, last) else {
            reader.done = true;
            return Ok(reader);
        };
        reader.end = Some(last.offset + 1);
        reader.at = first.offset;
        reader.seek(SeekFrom::Start(first.offset))?;
        if times.is_some() {
            let chosen = index.entries.iter().filter(inside).map(|e| u64::from(e.requests));
            reader.header.requests = Some(chosen.sum());
        }
        Ok(reader)
    }

    fn seek(&mut self, to: SeekFrom) -> Result<u64> {
        self.input.seek(to).map_err(|e| Error::io(self.path.display(), e))
    }

    /// Reads all names, of which the frame at `last` has the last. Twice, as each frame says where
    /// the one before it is: of all of them together only the places are kept.
    fn all_names(&mut self, last: u64) -> Result<()> {
        let (mut places, mut at) = (Vec::new(), last);
        while at > 0 {
            self.names_at(at)?;
            self.count_names(at)?;
            places.push(at);
            at = names::before(&self.payload, at).map_err(|e| self.in_file(e))?;
        }
        for (number, at) in places.into_iter().rev().enumerate() {
            // The first was read last.
            if number > 0 {
                self.names_at(at)?;
            }
            self.take_names(at)?;
        }
        Ok(())
    }

    /// Reads the names frame at `at` into `payload`.
    fn names_at(&mut self, at: u64) -> Result<()> {
        self.seek(SeekFrom::Start(at))?;
        self.at = at;
        match self.next_frame()? {
            Some((_, FrameKind::Names)) => Ok(()),
            _ => Err(self.corrupt(at, "there are no names")),
        }
    }

    /// The index of a file that was finished.
    fn finished(&mut self, length: u64) -> Result<Option<TraceIndex>> {
        let Some(trailer_at) = length.checked_sub(TRAILER as u64) else { return Ok(None) };
        self.seek(SeekFrom::Start(trailer_at))?;
        let mut bytes = [0; TRAILER];
        let n = fill(&mut self.input, &mut bytes).map_err(|e| self.io(e))?;
        let Some(at) = (n == TRAILER).then(|| frame::parse_trailer(&bytes)).flatten() else {
            return Ok(None);
        };
        if at >= trailer_at || at < HEAD as u64 {
            return Err(self.corrupt(trailer_at, "the trailer points outside the file"));
        }
        self.at = at;
        self.seek(SeekFrom::Start(at))?;
        match self.next_frame()? {
            Some((_, FrameKind::Index)) => TraceIndex::parse(&self.payload, at)
                .map(Some)
                .map_err(|e| e.context(self.path.display())),
            _ => Err(self.corrupt(at, "there is no index")),
        }
    }

    /// The index of a file that was not finished: of all its whole frames.
    fn scan(&mut self, length: u64) -> Result<TraceIndex> {
        self.header.complete = false;
        let mut frames: Vec<(FrameKind, BlockEntry)> = Vec::new();
        let mut at = HEAD as u64;
        while at + (HEAD as u64) <= length {
            self.seek(SeekFrom::Start(at))?;
            let mut bytes = [0; HEAD];
            let n = fill(&mut self.input, &mut bytes).map_err(|e| self.io(e))?;
            // What follows the last whole frame may be anything after a power loss.
            let Some(head) = (n == HEAD).then(|| FrameHead::parse(&bytes, at).ok()).flatten()
            else {
                break;
            };
            let next = at + (HEAD as u64) + u64::from(head.length);
            if next > length {
                break;
            }
            let mut entry = BlockEntry { offset: at, requests: 0, first: 0, last: 0 };
            if head.kind == FrameKind::Block {
                let mut start = [0; blocks::HEAD];
                let n = fill(&mut self.input, &mut start).map_err(|e| self.io(e))?;
                // A payload that never reached the disk says nothing; below its checksum tells.
                if let Ok((count, first, last)) = blocks::summary(&start[..n]) {
                    entry = BlockEntry { requests: count as u32, first, last, ..entry };
                }
            }
            frames.push((head.kind, entry));
            at = next;
        }
        // The last frames may be there in length alone.
        while let Some((_, entry)) = frames.last() {
            self.seek(SeekFrom::Start(entry.offset))?;
            self.at = entry.offset;
            if self.next_frame().is_ok_and(|frame| frame.is_some()) {
                break;
            }
            frames.pop();
        }
        let header = frames.iter().rfind(|(kind, _)| *kind == FrameKind::Header);
        let header = header.map(|(_, entry)| entry.offset).ok_or_else(|| {
            self.corrupt(at, "the trace ends before its header; nothing of it can be read")
        })?;
        let names = frames.iter().rfind(|(kind, _)| *kind == FrameKind::Names);
        let names = names.map_or(0, |(_, entry)| entry.offset);
        let of_blocks = frames.into_iter().filter(|(kind, _)| *kind == FrameKind::Block);
        let entries: Vec<BlockEntry> = of_blocks.map(|(_, entry)| entry).collect();
        let requests = entries.iter().map(|e| u64::from(e.requests)).sum();
        Ok(TraceIndex { requests, header, names, entries })
    }
}

impl<R: Read + Send> Source for NativeReader<R> {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        batch.clear();
        while !self.done {
            match self.next_frame()? {
                Some((at, FrameKind::Block)) => {
                    self.blocks
                        .decode(&self.payload, self.last, batch)
                        .map_err(|e| e.context(format!("{}: offset {at}", self.path.display())))?;
                    self.read += batch.len() as u64;
                    self.last = batch.last().map_or(self.last, |r| r.time);
                    return Ok(true);
                }
                Some((at, FrameKind::Header)) => {
                    // A file's last header is known already.
                    if self.end.is_none() {
                        self.take_header(at)?;
                    }
                }
                Some((at, FrameKind::Names)) => {
                    if self.end.is_none() {
                        self.count_names(at)?;
                        self.take_names(at)?;
                    }
                }
                Some((_, FrameKind::Index)) => self.done = true,
                None => {
                    self.done = true;
                    if self.end.is_none() {
                        self.header.complete = false;
                        self.header.requests = Some(self.read);
                    }
                }
            }
        }
        Ok(false)
    }
}
