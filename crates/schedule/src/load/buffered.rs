//! The processes of [`surge`](super::surge) through a page cache: Linux' read-ahead in its shape.
//! A miss reads a window that doubles from 4 to 32 pages; the first use of a marked page of a window
//! starts the next window ahead, for which nobody waits yet.

use super::layout::{Layout, PAGE};
use super::page_cache::PageCache;
use super::surge::{Habits, METADATA, Process, processes};
use super::{Load, wakes::Wakes};
use crate::{DiskRequest, Nanos};
use block::Result;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Pages of the first window and of the largest.
const FIRST: u32 = 4;
const LARGEST: u32 = 32;

/// A file's read-ahead.
#[derive(Clone, Copy, Debug, Default)]
struct ReadAhead {
    window: u32,
    /// The page whose use starts the next window.
    mark: Option<u64>,
    /// The first page behind the windows: piece, page in it.
    end: (u32, u32),
}

/// The load through a page cache.
#[derive(Debug)]
pub struct BufferedLoad {
    layout: Arc<Layout>,
    habits: Habits,
    processes: Vec<Process>,
    ahead: Vec<ReadAhead>,
    wakes: Wakes,
    known: HashSet<u64>,
    cache: PageCache,
    /// Pages on their way, and who waits for each.
    coming: HashMap<u64, Vec<u32>>,
}

/// What a process does next.
enum ProcessStep {
    /// Waits for a page that is on its way.
    Waits,
    /// Has its page, and may have started a window.
    Has(Option<(u64, u32)>),
    /// Reads a window and waits for its first page.
    Reads(u64, u32),
}

impl BufferedLoad {
    /// Processes on this layout with so many pages of memory.
    pub fn new(layout: Arc<Layout>, habits: Habits, pages: usize, seed: u64) -> Self {
        let (processes, wakes) = processes(&habits, seed);
        Self {
            layout,
            habits,
            ahead: vec![ReadAhead::default(); processes.len()],
            processes,
            wakes,
            known: HashSet::new(),
            cache: PageCache::new(pages.max(1)),
            coming: HashMap::new(),
        }
    }

    /// The pages from a place of a file on, at most so many and none of another piece.
    fn window(&self, (piece, page): (u32, u32), most: u32) -> (u64, u32) {
        let (start, pages) = self.layout.piece(piece);
        (u64::from(start) + u64::from(page), most.min(pages - page))
    }

    fn next_of(&mut self, client: u32, page: u64) -> ProcessStep {
        let process = &self.processes[client as usize];
        let (here, end) = ((process.piece, process.page), process.end);
        let mut ahead = self.ahead[client as usize];
        let next = if let Some(waiting) = self.coming.get_mut(&page) {
            waiting.push(client);
            ProcessStep::Waits
        } else if self.cache.get(page) {
            let mut started = None;
            if ahead.mark == Some(page) {
                ahead.window = (ahead.window * 2).min(LARGEST);
                let (piece, inside) = ahead.end;
                let behind = inside >= self.layout.piece(piece).1;
                let from = if behind { (piece + 1, 0) } else { (piece, inside) };
                ahead.mark = None;
                if from.0 < end {
                    let (first, pages) = self.window(from, ahead.window);
                    (ahead.mark, ahead.end) = (Some(first), (from.0, from.1 + pages));
                    started = Some((first, pages));
                }
            }
            ProcessStep::Has(started)
        } else {
            ahead.window = if ahead.window == 0 { FIRST } else { (ahead.window * 2).min(LARGEST) };
            let (first, pages) = self.window(here, ahead.window);
            ahead.mark = (pages > 1).then_some(first + 1);
            ahead.end = (here.0, here.1 + pages);
            ProcessStep::Reads(first, pages)
        };
        self.ahead[client as usize] = ahead;
        next
    }

    /// A window is asked for.
    fn ask(
        &mut self,
        client: u32,
        (first, pages): (u64, u32),
        awaited: bool,
        tag: u32,
    ) -> DiskRequest {
        if tag != METADATA {
            for page in first..first + u64::from(pages) {
                self.coming.entry(page).or_default();
            }
        }
        let (start, sectors) = (first * PAGE, pages * PAGE as u32);
        DiskRequest { client, awaited, start, sectors, tag, ..DiskRequest::default() }
    }

    /// A process has its page.
    fn go_on(&mut self, now: Nanos, client: u32) {
        let process = &mut self.processes[client as usize];
        process.advance(&self.layout);
        let think = process.think(&self.habits);
        self.wakes.add(now + think, client);
    }
}

impl Load for BufferedLoad {
    fn next(&self) -> Option<Nanos> {
        self.wakes.next()
    }

    fn arrive(&mut self, now: Nanos, requests: &mut Vec<DiskRequest>) -> Result<()> {
        while let Some(client) = self.wakes.take(now) {
            let process = &mut self.processes[client as usize];
            if process.open(&self.layout, &self.habits, &mut self.known) {
                self.ahead[client as usize] = ReadAhead::default();
            }
            if let Some(page) = process.next_metadata() {
                requests.push(self.ask(client, (page, 1), true, METADATA));
                continue;
            }
            let (start, _) = self.layout.piece(process.piece);
            let page = u64::from(start) + u64::from(process.page);
            match self.next_of(client, page) {
                ProcessStep::Waits => {}
                ProcessStep::Has(started) => {
                    if let Some(window) = started {
                        requests.push(self.ask(client, window, false, 0));
                    }
                    self.go_on(now, client);
                }
                ProcessStep::Reads(first, pages) => {
                    requests.push(self.ask(client, (first, pages), true, 0));
                    self.coming.entry(page).or_default().push(client);
                }
            }
        }
        Ok(())
    }

    fn done(&mut self, now: Nanos, request: &DiskRequest) {
        if request.tag == METADATA {
            self.wakes.add(now, request.client);
            return;
        }
        let first = request.start / PAGE;
        for page in first..first + u64::from(request.sectors) / PAGE {
            self.cache.put(page);
            for client in self.coming.remove(&page).unwrap_or_default() {
                self.go_on(now, client);
            }
        }
    }
}
