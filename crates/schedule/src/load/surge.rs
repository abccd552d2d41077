//! Processes that read files page by page, in the manner of SURGE (Barford and Crovella, 1998), as
//! the seed's section 5 has them: choose a number of files by Pareto, each by Zipf; read a page, then
//! think by Pareto. Nothing is cached in memory but inodes and directories (O_DIRECT).

use super::layout::{Layout, PAGE};
use super::{Load, wakes::Wakes};
use crate::{DiskRequest, Nanos, Random, request::from_ms};
use block::Result;
use std::collections::HashSet;
use std::sync::Arc;

/// How processes behave.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Habits {
    /// How many there are.
    pub processes: u32,
    /// Shape and scale (ms) of the time to think after a page.
    pub think: (f64, f64),
    /// Shape and scale of the number of files between two sessions.
    pub files: (f64, f64),
}

impl Default for Habits {
    /// The seed's.
    fn default() -> Self {
        Self { processes: 50, think: (1.5, 2.0), files: (2.43, 1.0) }
    }
}

/// The mark of a request for an inode or a directory.
pub(super) const METADATA: u32 = 1;

/// Where a process is.
#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) random: Random,
    files_left: u64,
    /// Metadata to read first.
    metadata: [u64; 2],
    metadata_left: usize,
    /// The next page: piece, and page in it; the file's last piece is before `end`.
    pub(super) piece: u32,
    pub(super) page: u32,
    pub(super) end: u32,
}

impl Process {
    pub(super) fn new(random: Random) -> Self {
        let (metadata, metadata_left) = ([0; 2], 0);
        Self { random, files_left: 0, metadata, metadata_left, piece: 0, page: 0, end: 0 }
    }

    /// Opens the next file when there is nothing left of the last one; whether it did.
    pub(super) fn open(
        &mut self,
        layout: &Layout,
        habits: &Habits,
        known: &mut HashSet<u64>,
    ) -> bool {
        if self.piece < self.end || self.metadata_left > 0 {
            return false;
        }
        if self.files_left == 0 {
            let (shape, scale) = habits.files;
            self.files_left = self.random.pareto(shape, scale).round().max(1.0) as u64;
        }
        self.files_left -= 1;
        let file = layout.pick(&mut self.random);
        self.metadata_left = 0;
        for page in layout.metadata_pages(file).into_iter().rev() {
            if known.insert(page) {
                self.metadata[self.metadata_left] = page;
                self.metadata_left += 1;
            }
        }
        (self.piece, self.end) = layout.pieces(file);
        self.page = 0;
        true
    }

    /// The next page of metadata, if any is to be read first.
    pub(super) fn next_metadata(&mut self) -> Option<u64> {
        self.metadata_left = self.metadata_left.checked_sub(1)?;
        Some(self.metadata[self.metadata_left])
    }

    /// A page was read.
    pub(super) fn advance(&mut self, layout: &Layout) {
        self.page += 1;
        if self.page >= layout.piece(self.piece).1 {
            (self.piece, self.page) = (self.piece + 1, 0);
        }
    }

    /// A time to think.
    pub(super) fn think(&mut self, habits: &Habits) -> Nanos {
        let (shape, scale) = habits.think;
        from_ms(self.random.pareto(shape, scale))
    }
}

/// Processes that begin within 50 ms.
pub(super) fn processes(habits: &Habits, seed: u64) -> (Vec<Process>, Wakes) {
    let mut random = Random::new(seed);
    let mut wakes = Wakes::default();
    let process = |index| {
        wakes.add(from_ms(random.unit() * 50.0), index);
        Process::new(Random::new(random.bits()))
    };
    ((0..habits.processes).map(process).collect(), wakes)
}

/// The load with O_DIRECT.
#[derive(Debug)]
pub struct Surge {
    layout: Arc<Layout>,
    habits: Habits,
    processes: Vec<Process>,
    wakes: Wakes,
    /// Metadata that is in memory.
    known: HashSet<u64>,
}

impl Surge {
    /// Processes on this layout.
    pub fn new(layout: Arc<Layout>, habits: Habits, seed: u64) -> Self {
        let (processes, wakes) = processes(&habits, seed);
        Self { layout, habits, processes, wakes, known: HashSet::new() }
    }
}

impl Load for Surge {
    fn next(&self) -> Option<Nanos> {
        self.wakes.next()
    }

    fn arrive(&mut self, now: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()> {
        while let Some(client) = self.wakes.take(now) {
            let process = &mut self.processes[client as usize];
            process.open(&self.layout, &self.habits, &mut self.known);
            let (page, tag) = match process.next_metadata() {
                Some(page) => (page, METADATA),
                None => {
                    let (start, _) = self.layout.piece(process.piece);
                    (u64::from(start) + u64::from(process.page), 0)
                }
            };
            requests.push(DiskRequest {
                client,
                awaited: true,
                start: page * PAGE,
                sectors: PAGE as u32,
                tag,
                ..DiskRequest::default()
            });
        }
        Ok(())
    }

    fn done(&mut self, now: Nanos, request: &DiskRequest) {
        let process = &mut self.processes[request.client as usize];
        if request.tag == METADATA {
            self.wakes.add(now, request.client);
            return;
        }
        process.advance(&self.layout);
        let think = process.think(&self.habits);
        self.wakes.add(now + think, request.client);
    }
}
