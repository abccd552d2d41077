//! Several sources as one, by time.

use crate::header::MAX_PARTIES;
use crate::{Header, Request, Source};
use block::{Error, Result};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// Requests of several sources in order of time; at one time, in order of the sources.
pub(crate) struct Interleaved<S> {
    sources: Vec<MergedSource<S>>,
    /// (time, source) of each source's next request.
    next: BinaryHeap<Reverse<(u64, usize)>>,
    started: bool,
}

struct MergedSource<S> {
    source: S,
    batch: Vec<Request>,
    at: usize,
}

impl<S: Source> MergedSource<S> {
    /// The time of the next request, reading on when needed.
    fn peek(&mut self) -> Result<Option<u64>> {
        if self.at == self.batch.len() {
            self.at = 0;
            if !self.source.read(&mut self.batch)? {
                return Ok(None);
            }
        }
        Ok(self.batch.get(self.at).map(|r| r.time))
    }
}

impl<S: Source> Interleaved<S> {
    pub(crate) fn new(sources: impl IntoIterator<Item = S>) -> Self {
        let part = |source| MergedSource { source, batch: Vec::new(), at: 0 };
        let sources = sources.into_iter().map(part).collect();
        Self { sources, next: BinaryHeap::new(), started: false }
    }

    /// Fills the batch, saying to `each` which source a request is from.
    pub(crate) fn fill(
        &mut self,
        batch: &mut Vec<Request>,
        mut each: impl FnMut(usize, &S, &mut Request) -> Result<()>,
    ) -> Result<bool> {
        batch.clear();
        if !self.started {
            self.started = true;
            for (index, part) in self.sources.iter_mut().enumerate() {
                self.next.extend(part.peek()?.map(|time| Reverse((time, index))));
            }
        }
        while batch.len() < crate::source::BATCH {
            let Some(Reverse((_, index))) = self.next.pop() else { break };
            let part = &mut self.sources[index];
            // As long as nobody else comes before, without the heap.
            let limit = self.next.peek().map(|Reverse(other)| *other);
            loop {
                let mut request = part.batch[part.at];
                part.at += 1;
                each(index, &part.source, &mut request)?;
                batch.push(request);
                let Some(time) = part.peek()? else { break };
                let full = batch.len() >= crate::source::BATCH;
                if full || limit.is_some_and(|other| (time, index) > other) {
                    self.next.push(Reverse((time, index)));
                    break;
                }
            }
        }
        Ok(!batch.is_empty())
    }
}

/// What of several traces is one and the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MergeOptions {
    /// Disks of the same name are the same; so are all that have none. Otherwise each trace has its
    /// own.
    pub disks: bool,
    /// The same of clients. Otherwise each trace has its own, named after the trace.
    pub clients: bool,
}

/// A trace whose requests get other times, one after the other.
struct Retimed<F> {
    source: Box<dyn Source + Send>,
    time: F,
}

impl<F: FnMut(u64) -> u64 + Send> Source for Retimed<F> {
    fn header(&self) -> &Header {
        self.source.header()
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let more = self.source.read(batch)?;
        for request in batch {
            request.time = (self.time)(request.time);
        }
        Ok(more)
    }
}

/// The span in which the requests of each of several traces lie evenly; finer than any number of
/// requests that is really there.
const SPAN: u128 = 1 << 56;

/// The places in the span of so `many` requests, one after the other.
fn evenly(many: u64) -> impl FnMut(u64) -> u64 + Send {
    let mut done = 0u64;
    move |_| {
        let place = u128::from(done) * SPAN / u128::from(many.max(1));
        done += 1;
        u64::try_from(place).unwrap_or(u64::MAX)
    }
}

/// Several traces as one.
pub struct Merged {
    inner: Interleaved<Box<dyn Source + Send>>,
    header: Header,
    names: Vec<String>,
    same: MergeOptions,
    /// The numbers that each trace's clients and disks got.
    clients: Vec<Vec<Option<u32>>>,
    disks: Vec<Vec<Option<u32>>>,
    /// The clients and the disks by their names.
    clients_by_name: HashMap<String, usize>,
    disks_by_name: HashMap<String, usize>,
    /// Requests so far.
    merged: u64,
}

impl Merged {
    /// Traces with their names, which tell clients apart, in proportion to their lengths.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a trace that does not know its length ahead.
    pub fn in_proportion(
        traces: Vec<(String, Box<dyn Source + Send>)>,
        same: MergeOptions,
    ) -> Result<Self> {
        let even = |(name, source): (String, Box<dyn Source + Send>)| {
            let Some(many) = source.header().requests else {
                return Err(Error::invalid(format!(
                    "{name}: how many requests it has is not known before they are read; convert it to .sjt \
                     first (sojourn trace convert)"
                )));
            };
            let even: Box<dyn Source + Send> = Box::new(Retimed { source, time: evenly(many) });
            Ok((name, even))
        };
        let mut merged = Self::new(traces.into_iter().map(even).collect::<Result<_>>()?, same);
        merged.header.times = false;
        merged.header.note("mixed in proportion to the lengths of the traces");
        Ok(merged)
    }

    /// Traces with their names, which tell clients apart, by the clock: each begins as much later than
    /// the first as it was recorded later. So the parts of one recording become the whole.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid) for a trace that does not know when it began, or has no
    /// times.
    pub fn by_clock(
        traces: Vec<(String, Box<dyn Source + Send>)>,
        same: MergeOptions,
    ) -> Result<Self> {
        for (name, source) in &traces {
            let header = source.header();
            if header.start == 0 || !header.times {
                return Err(Error::invalid(format!(
                    "{name}: when its requests were made is not known; only recordings say it: merge \
                     without the clock"
                )));
            }
        }
        let start = traces.iter().map(|(_, source)| source.header().start).min().unwrap_or(0);
        let later = |(name, source): (String, Box<dyn Source + Send>)| {
            let by = source.header().start - start;
            let time = move |time: u64| time.saturating_add(by);
            let later: Box<dyn Source + Send> = Box::new(Retimed { source, time });
            (name, later)
        };
        let mut merged = Self::new(traces.into_iter().map(later).collect(), same);
        merged.header.start = start;
        Ok(merged)
    }

    /// Traces with their names, which tell clients apart, by their times, as if all began together.
    pub fn new(traces: Vec<(String, Box<dyn Source + Send>)>, same: MergeOptions) -> Self {
        let all = |wanted: fn(&Header) -> bool| traces.iter().all(|(_, s)| wanted(s.header()));
        let any = |wanted: fn(&Header) -> bool| traces.iter().any(|(_, s)| wanted(s.header()));
        let mut header = Header {
            times: all(|h| h.times),
            latencies: any(|h| h.latencies),
            ops: any(|h| h.ops),
            complete: all(|h| h.complete),
            ..Header::default()
        };
        // What headers claim may be anything.
        header.requests = traces
            .iter()
            .try_fold(0u64, |sum, (_, source)| sum.checked_add(source.header().requests?));
        // The greatest power of two that divides all.
        let zeroes = traces.iter().map(|(_, s)| s.header().alignment.trailing_zeros());
        header.alignment = 1 << zeroes.min().unwrap_or(0).min(31);
        for (name, source) in &traces {
            header.note(&format!("merged from {name}"));
            source.header().notes.lines().for_each(|line| header.note(&format!("{name}: {line}")));
        }
        let (names, sources): (Vec<_>, Vec<_>) = traces.into_iter().unzip();
        let count = names.len();
        Self {
            inner: Interleaved::new(sources),
            header,
            names,
            same,
            clients: vec![Vec::new(); count],
            disks: vec![Vec::new(); count],
            clients_by_name: HashMap::new(),
            disks_by_name: HashMap::new(),
            merged: 0,
        }
    }
}

/// The number that was given to a party, or a new one.
fn renumber(map: &mut Vec<Option<u32>>, number: u32, new: impl FnOnce() -> usize) -> Result<u32> {
    let at = number as usize;
    if let Some(Some(known)) = map.get(at) {
        return Ok(*known);
    }
    let known = u32::try_from(new()).ok().filter(|n| *n < MAX_PARTIES).ok_or_else(|| {
        Error::invalid(format!("more than {MAX_PARTIES} clients or disks in all; merge fewer"))
    })?;
    if map.len() <= at {
        map.resize(at + 1, None);
    }
    map[at] = Some(known);
    Ok(known)
}

/// The name of a client of a trace.
fn client_name(trace: &str, client: &str) -> String {
    match client {
        "" => trace.to_owned(),
        named => format!("{trace}/{named}"),
    }
}

impl Source for Merged {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let Self { inner, header, names, same, clients, disks, merged, .. } = self;
        let (clients_by_name, disks_by_name) = (&mut self.clients_by_name, &mut self.disks_by_name);
        let more = inner.fill(batch, |index, source, request| {
            if !header.times {
                request.time = *merged; // counts requests, as in every trace without times
            }
            *merged += 1;
            let (client, disk) = (request.client as usize, request.disk as usize);
            request.client = renumber(&mut clients[index], request.client, || {
                let name = source.header().clients.get(client).map_or("", String::as_str);
                let new = header.clients.len();
                if !same.clients {
                    header.clients.push(client_name(&names[index], name));
                    return new;
                }
                let known = *clients_by_name.entry(name.to_owned()).or_insert(new);
                if known == new {
                    header.clients.push(name.to_owned());
                }
                known
            })?;
            request.disk = renumber(&mut disks[index], request.disk, || {
                let new = source.header().disks.get(disk).cloned().unwrap_or_default();
                if same.disks
                    && let Some(known) = disks_by_name.get(&new.name)
                {
                    header.disks[*known].size = header.disks[*known].size.max(new.size);
                    return *known;
                }
                disks_by_name.insert(new.name.clone(), header.disks.len());
                header.disks.push(new);
                header.disks.len() - 1
            })?;
            Ok(())
        })?;
        if !more {
            // Only now is it known of a pipe whether it was whole.
            header.complete = inner.sources.iter().all(|part| part.source.header().complete);
        }
        Ok(more)
    }
}
