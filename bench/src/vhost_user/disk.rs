//! A virtio disk over vhost-user, by the crate `blkio` (libblkio's), driven at a fixed depth.

// Safety: completions are read only as far as `do_io` said that it filled them in. Buffers lie in the
// library's own memory region, which lives as long as the queue; each is read by this thread alone, and
// only between its request's answer and the next request, when the server does not write to it.
#![allow(unsafe_code)]

use crate::client::{ConnectionResult, Job};
use crate::content;
use crate::side_by_side::Driven;
use anyhow::{Context, Result, anyhow, ensure};
use blkio::{Blkio, Blkioq, Completion, MemoryRegion, ReqFlags};
use std::mem::MaybeUninit;
use std::path::Path;
use std::time::{Duration, Instant};

/// Completions that are taken at a time.
const COMPLETIONS: usize = 64;
/// How long a server may be silent before the connection counts as failed.
const PATIENCE: Duration = Duration::from_secs(10);
/// The region's length is a multiple of this.
const ALIGNMENT: usize = 2 << 20;

/// A connected disk.
pub(super) struct VirtioDisk {
    queue: Blkioq,
    region: MemoryRegion,
    _blkio: Blkio,
}

impl VirtioDisk {
    /// Connects to `socket`, with room for `room` bytes of requests.
    pub(super) fn open(socket: &Path, room: usize) -> Result<Self> {
        let said = |e: blkio::Error| anyhow!("{}", e.message());
        let mut blkio = Blkio::new("virtio-blk-vhost-user").map_err(said)?;
        blkio.set_str("path", socket.to_str().context("the path is not text")?).map_err(said)?;
        blkio.connect().map_err(said).context("cannot connect")?;
        let queue = blkio.start().map_err(said)?.queues.pop().context("no queue")?;
        let region = blkio.alloc_mem_region(room.next_multiple_of(ALIGNMENT)).map_err(said)?;
        blkio.map_mem_region(&region).map_err(said)?;
        Ok(Self { queue, region, _blkio: blkio })
    }

    fn ask(&mut self, job: Job, slot: usize, offset: u64) {
        let at = std::ptr::with_exposed_provenance_mut(self.region.addr + slot * job.bytes);
        match job.writes {
            true => self.queue.write(offset, at, job.bytes, slot, ReqFlags::empty()),
            false => self.queue.read(offset, at, job.bytes, slot, ReqFlags::empty()),
        }
    }

    /// What a read gave.
    fn buffer(&self, job: Job, slot: usize) -> &[u8] {
        let at = std::ptr::with_exposed_provenance(self.region.addr + slot * job.bytes);
        // SAFETY: inside the region, which `drive` has checked; nobody writes there now (above).
        unsafe { std::slice::from_raw_parts(at, job.bytes) }
    }
}

impl Driven for VirtioDisk {
    fn drive(
        &mut self,
        job: Job,
        until: Option<Instant>,
        next: &mut dyn FnMut() -> Option<u64>,
    ) -> Result<ConnectionResult> {
        ensure!(job.depth * job.bytes <= self.region.len, "no room for so many requests");
        let mut slots = vec![(0, Instant::now()); job.depth];
        let mut tally = ConnectionResult::default();
        let mut in_flight = 0;
        for (number, slot) in slots.iter_mut().enumerate() {
            let Some(offset) = next() else { break };
            *slot = (offset, Instant::now());
            self.ask(job, number, offset);
            in_flight += 1;
        }
        let mut completions = [const { MaybeUninit::<Completion>::uninit() }; COMPLETIONS];
        while in_flight > 0 {
            let count = self
                .queue
                .do_io(
                    &mut completions[..in_flight.min(COMPLETIONS)],
                    1,
                    Some(&mut { PATIENCE }),
                    None,
                )
                .map_err(|e| anyhow!("no answer: {}", e.message()))?;
            let now = Instant::now();
            let open = until.is_none_or(|until| now < until);
            for completion in &completions[..count] {
                // SAFETY: the first `count` were filled in.
                let completion = unsafe { completion.assume_init_ref() };
                ensure!(completion.ret == 0, "a request failed: {}", completion.ret);
                let slot = completion.user_data;
                let (offset, sent) = slots[slot];
                if !job.writes {
                    content::check(self.buffer(job, slot), offset)?;
                }
                let nanos = now.duration_since(sent).as_nanos();
                tally.latency.add(u64::try_from(nanos).unwrap_or(u64::MAX));
                tally.in_window += u64::from(open);
                in_flight -= 1;
                if open && let Some(offset) = next() {
                    slots[slot] = (offset, now);
                    self.ask(job, slot, offset);
                    in_flight += 1;
                }
            }
        }
        let now = Instant::now();
        tally.end = Some(until.map_or(now, |until| until.min(now)));
        Ok(tally)
    }
}
