//! A virtio disk over vhost-user, as a virtual machine has it, by the crate `blkio` (libblkio's).

// Safety: completions are read only as far as `do_io` said that it filled them in, and buffers that the
// library is told of lie in its own memory region, which lives as long as the queue. Their bytes are read
// and written through the region's file.
#![allow(unsafe_code)]

use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use std::fs::File;
use std::mem::MaybeUninit;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;

/// The memory that is shared, in bytes.
const MEMORY: usize = 4 << 20;
/// How long the server has for a request.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connected disk.
pub struct VirtioDisk {
    queue: Blkioq,
    region: MemoryRegion,
    memory: File,
    blkio: Blkio,
}

impl VirtioDisk {
    /// Connects to a server's socket, to write, too.
    ///
    /// # Errors
    /// What the library says.
    pub fn connect(socket: &Path) -> Result<Self, String> {
        Self::open(socket, false)
    }

    /// The same, to read.
    ///
    /// # Errors
    /// What the library says.
    pub fn connect_to_read(socket: &Path) -> Result<Self, String> {
        Self::open(socket, true)
    }

    fn open(socket: &Path, read_only: bool) -> Result<Self, String> {
        let said = |e: blkio::Error| e.message().to_owned();
        let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(said)?;
        blkio.set_str("path", &socket.display().to_string()).map_err(said)?;
        blkio.set_bool("read-only", read_only).map_err(said)?;
        blkio.connect().map_err(said)?;
        let queue = blkio.start().map_err(said)?.queues.remove(0);
        let region = blkio.alloc_mem_region(MEMORY).map_err(said)?;
        blkio.map_mem_region(&region).map_err(said)?;
        let memory = format!("/proc/self/fd/{}", region.fd);
        let memory = File::options().read(true).write(true).open(memory).unwrap();
        Ok(Self { queue, region, memory, blkio })
    }

    /// The disk's size in bytes.
    pub fn capacity(&self) -> u64 {
        self.blkio.get_u64("capacity").unwrap()
    }

    fn buffer(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.region.addr)
    }

    /// Waits for the one request that was made; gives its result, 0 or an error number below it.
    fn done(&mut self) -> i32 {
        let mut completions = [const { MaybeUninit::<Completion>::uninit() }];
        let mut patience = PATIENCE;
        let count = self.queue.do_io(&mut completions, 1, Some(&mut patience), None);
        assert_eq!(count.map_err(|e| e.message().to_owned()), Ok(1), "no answer");
        // SAFETY: one was filled in.
        unsafe { completions[0].assume_init_ref() }.ret
    }

    /// Reads.
    ///
    /// # Panics
    /// When the read fails.
    pub fn read(&mut self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.write_all_at(&vec![0xee; len], 0).unwrap();
        self.queue.read(offset, self.buffer(), len, 0, ReqFlags::empty());
        assert_eq!(self.done(), 0, "a read of {len} at {offset}");
        self.memory.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// Writes; gives 0 or an error number below it.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) -> i32 {
        self.memory.write_all_at(bytes, 0).unwrap();
        self.queue.write(offset, self.buffer(), bytes.len(), 0, ReqFlags::empty());
        self.done()
    }

    /// Flushes; gives 0 or an error number below it.
    pub fn flush(&mut self) -> i32 {
        self.queue.flush(0, ReqFlags::empty());
        self.done()
    }

    /// Zeroes, with or without the room; gives 0 or an error number below it.
    pub fn zero(&mut self, offset: u64, len: u64, keep_room: bool) -> i32 {
        let flags = if keep_room { ReqFlags::NO_UNMAP } else { ReqFlags::empty() };
        self.queue.write_zeroes(offset, len, 0, flags);
        self.done()
    }

    /// Discards; gives 0 or an error number below it.
    pub fn discard(&mut self, offset: u64, len: u64) -> i32 {
        self.queue.discard(offset, len, 0, ReqFlags::empty());
        self.done()
    }
}
