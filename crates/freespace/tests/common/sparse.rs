//! A disk image in memory, with holes; and the same with a few bytes changed.

use freespace::Source;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Mutex;

const PAGE: u64 = 4096;

/// An image of which only the pages that are not zero take memory.
#[derive(Clone)]
pub(crate) struct Sparse {
    pages: HashMap<u64, Box<[u8]>>,
    size: u64,
}

impl Sparse {
    /// The image in a file.
    pub(crate) fn load(path: &Path) -> Self {
        use rustix::fs::SeekFrom;
        let file = File::open(path).unwrap();
        let mut image = Self { pages: HashMap::new(), size: file.metadata().unwrap().len() };
        let mut at = 0;
        while let Ok(data) = rustix::fs::seek(&file, SeekFrom::Data(at)) {
            let end = rustix::fs::seek(&file, SeekFrom::Hole(data)).unwrap();
            at = data / PAGE * PAGE;
            while at < end {
                let mut page = vec![0; PAGE.min(image.size - at) as usize];
                file.read_exact_at(&mut page, at).unwrap();
                page.resize(PAGE as usize, 0);
                if page.iter().any(|byte| *byte != 0) {
                    image.pages.insert(at / PAGE, page.into_boxed_slice());
                }
                at += PAGE;
            }
        }
        image
    }

    /// Changes bytes for good.
    pub(crate) fn patch(&mut self, offset: u64, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let page = self.pages.entry(at / PAGE).or_insert_with(|| vec![0; 4096].into());
            page[(at % PAGE) as usize] = *byte;
        }
    }

    /// The same, cut or grown to `size`.
    pub(crate) fn resized(mut self, size: u64) -> Self {
        self.size = size;
        self
    }

    /// Some of its bytes.
    pub(crate) fn bytes(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.read_at(offset, &mut bytes).unwrap();
        bytes
    }
}

impl Source for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset.checked_add(buf.len() as u64).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let within = (at % PAGE) as usize;
            let len = (PAGE as usize - within).min(buf.len() - done);
            match self.pages.get(&(at / PAGE)) {
                Some(page) => buf[done..done + len].copy_from_slice(&page[within..within + len]),
                None => buf[done..done + len].fill(0),
            }
            done += len;
        }
        Ok(())
    }
}

/// An image that notes which bytes are read.
pub(crate) struct Recording<'a> {
    image: &'a Sparse,
    reads: Mutex<Vec<Range<u64>>>,
}

impl<'a> Recording<'a> {
    pub(crate) fn new(image: &'a Sparse) -> Self {
        Self { image, reads: Mutex::default() }
    }

    /// What was read: sorted, merged.
    pub(crate) fn finish(self) -> Vec<Range<u64>> {
        let mut reads = self.reads.into_inner().unwrap();
        reads.sort_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for read in reads {
            match merged.last_mut() {
                Some(last) if read.start <= last.end => last.end = last.end.max(read.end),
                _ => merged.push(read),
            }
        }
        merged
    }
}

impl Source for Recording<'_> {
    fn size(&self) -> u64 {
        self.image.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.reads.lock().unwrap().push(offset..offset + buf.len() as u64);
        self.image.read_at(offset, buf)
    }
}

/// An image with some bytes changed.
pub(crate) struct Changed<'a> {
    pub(crate) image: &'a Sparse,
    pub(crate) changes: Vec<(u64, Vec<u8>)>,
}

impl Source for Changed<'_> {
    fn size(&self) -> u64 {
        self.image.size
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.image.read_at(offset, buf)?;
        let end = offset + buf.len() as u64;
        for (at, bytes) in &self.changes {
            let from = offset.max(*at);
            let to = end.min(at + bytes.len() as u64);
            if from < to {
                buf[(from - offset) as usize..(to - offset) as usize]
                    .copy_from_slice(&bytes[(from - at) as usize..(to - at) as usize]);
            }
        }
        Ok(())
    }
}
