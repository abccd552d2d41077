//! Recording: a layer that notes every request of a device, and what gathers the notes and writes
//! them in order of time.
//!
//! A client never waits for the recorder. Each connection notes into a buffer of its own; full
//! buffers are handed over, and where nobody takes them fast enough they are emptied and counted as
//! dropped. The caller calls [`Collector::pass`] now and then, away from the threads that serve.
//!
//! | module | concept |
//! |---|---|
//! | [`layer`] | [`Recorded`], the layer |
//! | [`collector`] | [`Collector`], which writes |

mod collector;
mod layer;

#[cfg(test)]
mod tests;

pub use collector::Collector;
pub use layer::Recorded;

use crate::{Disk, Flags, Op, Request};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use tokio::time::Instant;

/// Of so many requests that are answered on the spot, the time of one is taken: that takes
/// nearly as long as the answer does.
const TIMED: u64 = 16;
/// Requests of a buffer.
const BUFFER: usize = 1024;
/// Buffers that wait for the collector at most: 48 MiB.
const WAITING: usize = 2048;

/// Where the connections of a server note their requests.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    parties: Mutex<Parties>,
    full: Mutex<Vec<Buffer>>,
    spare: Mutex<Vec<Vec<Note>>>,
    taps: Mutex<Vec<Weak<Tap>>>,
    dropped: AtomicU64,
    stopped: AtomicBool,
}

/// The clients and disks that were seen.
#[derive(Debug, Default)]
struct Parties {
    clients: Vec<String>,
    client_numbers: HashMap<String, u32>,
    disks: Vec<Disk>,
    disk_numbers: HashMap<String, u32>,
}

/// A request as it is noted: small, because writing it to memory is most of what noting costs.
#[derive(Clone, Copy, Debug)]
struct Note {
    /// Time, in the upper 56 bits (two years); operation; flags; [`COARSE`].
    when: u64,
    offset: u64,
    length: u32,
    latency: u32,
}

/// The latency is in microseconds: it is too long for nanoseconds.
const COARSE: u64 = 8;

impl Note {
    /// `took` is the latency in nanoseconds, in place of the request's own.
    #[inline]
    fn new(request: &Request, took: u64) -> Self {
        let kind = (request.op as u64) << 4 | u64::from(request.flags.0 & 7);
        let (latency, coarse) = match u32::try_from(took) {
            Ok(latency) => (latency, 0),
            Err(_) => (u32::try_from(took / 1000).unwrap_or(u32::MAX), COARSE),
        };
        let when = request.time << 8 | kind | coarse;
        Self { when, offset: request.offset, length: request.length, latency }
    }

    /// The request, at its place in a trace that was written up to `written`: one that began
    /// before is moved there, with [`Flags::LATE`].
    fn request(self, client: u32, disk: u32, written: u64) -> Request {
        let began = self.when >> 8;
        let moved = written.saturating_sub(began);
        let unit = if self.when & COARSE == 0 { 1 } else { 1000 };
        let latency = match u64::from(self.latency) * unit {
            // Not known.
            0 => 0,
            took => u32::try_from(took.saturating_sub(moved)).unwrap_or(u32::MAX).max(1),
        };
        let flags = Flags((self.when & 7) as u8);
        Request {
            time: began + moved,
            client,
            disk,
            op: Op::from_code((self.when >> 4 & 0xf) as u8).unwrap_or_default(),
            offset: self.offset,
            length: self.length,
            latency,
            flags: if moved > 0 { flags.with(Flags::LATE) } else { flags },
        }
    }
}

/// What a connection noted.
#[derive(Debug)]
struct Buffer {
    client: u32,
    disk: u32,
    notes: Vec<Note>,
}

/// The buffer of one connection.
#[derive(Debug)]
struct Tap {
    recorder: Arc<Recorder>,
    client: u32,
    disk: u32,
    buffer: Mutex<Vec<Note>>,
    /// Requests answered on the spot.
    quick: AtomicU64,
}

impl Recorder {
    /// A recorder whose trace begins now.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            start: Instant::now(),
            parties: Mutex::default(),
            full: Mutex::default(),
            spare: Mutex::default(),
            taps: Mutex::default(),
            dropped: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
        })
    }

    /// Nanoseconds since the start.
    fn now(&self) -> u64 {
        let since = self.start.elapsed();
        since.as_secs() * 1_000_000_000 + u64::from(since.subsec_nanos())
    }

    /// Requests that were not recorded because nobody took them in time.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// From now on nothing is noted.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// A buffer for a connection of `client` to `disk`. `None` when there are more of them than a
    /// trace can name.
    fn tap(self: &Arc<Self>, client: &str, disk: &Disk) -> Option<Arc<Tap>> {
        let (client, disk) = {
            let Parties { clients, client_numbers, disks, disk_numbers } =
                &mut *self.parties.lock();
            let full = |count: usize| count >= crate::header::MAX_PARTIES as usize;
            let client = match client_numbers.get(client) {
                Some(number) => *number,
                None if full(clients.len()) => return None,
                None => {
                    clients.push(client.to_owned());
                    let number = clients.len() as u32 - 1;
                    client_numbers.insert(client.to_owned(), number);
                    number
                }
            };
            let disk = match disk_numbers.get(&disk.name) {
                Some(number) => *number,
                None if full(disks.len()) => return None,
                None => {
                    disks.push(disk.clone());
                    let number = disks.len() as u32 - 1;
                    disk_numbers.insert(disk.name.clone(), number);
                    number
                }
            };
            (client, disk)
        };
        // Grows with its first requests: most connections are quiet.
        let buffer = Mutex::new(Vec::new());
        let (recorder, quick) = (Arc::clone(self), AtomicU64::new(0));
        let tap = Arc::new(Tap { recorder, client, disk, buffer, quick });
        self.taps.lock().push(Arc::downgrade(&tap));
        Some(tap)
    }

    /// Takes a full buffer and gives an empty one; drops its requests when too many wait.
    fn hand_over(&self, client: u32, disk: u32, notes: &mut Vec<Note>) {
        let mut full = self.full.lock();
        if full.len() >= WAITING {
            self.dropped.fetch_add(notes.len() as u64, Ordering::Relaxed);
            notes.clear();
            return;
        }
        let empty = self.spare.lock().pop().unwrap_or_else(|| Vec::with_capacity(BUFFER));
        full.push(Buffer { client, disk, notes: std::mem::replace(notes, empty) });
    }
}

impl Tap {
    /// Whether it is the turn of a request answered on the spot to be timed. One connection asks
    /// at a time, so a turn that is counted twice does no harm.
    #[inline]
    fn is_timed(&self) -> bool {
        let turn = self.quick.load(Ordering::Relaxed);
        self.quick.store(turn + 1, Ordering::Relaxed);
        turn.is_multiple_of(TIMED)
    }

    #[inline]
    fn note(&self, request: &Request, took: u64) {
        let mut buffer = self.buffer.lock();
        buffer.push(Note::new(request, took));
        if buffer.len() >= BUFFER {
            self.recorder.hand_over(self.client, self.disk, &mut buffer);
        }
    }
}

impl Drop for Tap {
    fn drop(&mut self) {
        let notes = self.buffer.get_mut();
        if !notes.is_empty() {
            self.recorder.hand_over(self.client, self.disk, notes);
        }
    }
}
