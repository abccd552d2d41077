//! A device read from a thread that may wait, with a bound on all of it.

use block::{Device, Error, Result, Span};
use parking_lot::Mutex;
use std::sync::Arc;
use tokio::runtime::Handle;

/// The most bytes read of one disk to find and fetch a kernel.
const MOST_BYTES: u64 = 2 << 30;
/// The most reads.
const MOST_READS: u64 = 1 << 20;
/// The most looks at what was read: each step through the chain of a file is one.
const MOST_LOOKS: u64 = 16 << 20;
/// The grain of reading: what is read is asked for in small pieces, close to each other.
const PIECE: u64 = 64 << 10;

/// The bytes of a disk. Shared by the readers of its parts.
#[derive(Clone)]
pub struct DiskBytes {
    device: Arc<dyn Device>,
    runtime: Handle,
    state: Arc<Mutex<ReadState>>,
}

struct ReadState {
    bytes: u64,
    reads: u64,
    looks: u64,
    /// The piece read last.
    at: u64,
    piece: Vec<u8>,
}

impl DiskBytes {
    /// The bytes of `device`, whose reads go on on `runtime`.
    pub fn new(device: Arc<dyn Device>, runtime: Handle) -> Self {
        let state = ReadState { bytes: 0, reads: 0, looks: 0, at: 0, piece: Vec::new() };
        Self { device, runtime, state: Arc::new(Mutex::new(state)) }
    }

    /// The size of the disk in bytes.
    pub fn size(&self) -> u64 {
        self.device.size()
    }

    /// Fills `buf` from `offset`. Waits: not for a thread that serves requests.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) beyond the end and when more is read than any honest disk
    /// needs; any error from the device.
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let end = offset.checked_add(buf.len() as u64).filter(|end| *end <= self.size());
        let Some(end) = end else {
            return Err(Error::invalid("its file system leads beyond the end of the disk"));
        };
        let mut state = self.state.lock();
        state.looks += 1;
        if state.looks > MOST_LOOKS {
            return Err(circles());
        }
        let mut at = offset;
        while at < end {
            state.fetch(at, self)?;
            let within = (at - state.at) as usize;
            let length = (state.piece.len() - within).min((end - at) as usize);
            let to = (at - offset) as usize;
            buf[to..to + length].copy_from_slice(&state.piece[within..within + length]);
            at += length as u64;
        }
        Ok(())
    }
}

fn circles() -> Error {
    Error::invalid("its file system leads in circles")
}

impl ReadState {
    /// Makes the piece that holds the byte `at` the one at hand.
    fn fetch(&mut self, at: u64, disk: &DiskBytes) -> Result<()> {
        if (self.at..self.at + self.piece.len() as u64).contains(&at) {
            return Ok(());
        }
        let start = at - at % PIECE;
        let length = PIECE.min(disk.size() - start);
        self.reads += 1;
        self.bytes += length;
        if self.reads > MOST_READS || self.bytes > MOST_BYTES {
            return Err(circles());
        }
        self.piece.resize(length as usize, 0);
        let span = Span::between(start, start + length);
        let read = disk.runtime.block_on(disk.device.read(span, &mut self.piece));
        match read {
            Ok(()) => self.at = start,
            Err(_) => self.piece.clear(),
        }
        read
    }
}
