//! Puts a trace in order of time in bounded memory: sorted runs in temporary files, then merged;
//! where there are too many to merge at once, some of them to longer ones first.

use crate::foreign::{Foreign, intake};
use crate::merge::Interleaved;
use crate::native::column::Effort;
use crate::native::reader::NativeReader;
use crate::native::writer::Writer;
use crate::{Header, Memory, Request, Source};
use block::{Error, Result};
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom};

/// Requests of a run: 160 MiB.
const RUN: usize = 4 << 20;
/// Runs that are merged at a time: each takes some memory, and a descriptor.
const RUNS: usize = 256;

/// The requests of a source in order of time; at one time, in the order in which they came. The source is read
/// to its end first.
pub(crate) fn sorted(source: Box<dyn Foreign + Send>) -> Result<Box<dyn Source + Send>> {
    sorted_by(source, RUN, RUNS)
}

fn sorted_by(
    mut source: Box<dyn Foreign + Send>,
    run: usize,
    width: usize,
) -> Result<Box<dyn Source + Send>> {
    let mut pending: Vec<Request> = Vec::new();
    // Of each level those that are not merged yet: of level 0 runs, above it what `width` of the
    // level below were merged to. Older ones are on higher levels, and in front.
    let mut levels: Vec<Vec<File>> = Vec::new();
    let mut least = u64::MAX;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        least = batch.iter().fold(least, |least, r| least.min(r.time));
        if pending.len() + batch.len() > run {
            add(&mut levels, spill(&mut pending)?, width)?;
        }
        pending.extend_from_slice(&batch);
    }
    pending.sort_by_key(|r| r.time);
    let start = intake::start_of(source.times(), least.min(u64::MAX - 1));
    let header = source.header().clone();
    if levels.is_empty() {
        pending.iter_mut().for_each(|r| r.time -= start);
        return Ok(Box::new(Memory::new(header, pending)));
    }
    let mut parts: Vec<Box<dyn Source + Send>> = Vec::new();
    for run in levels.into_iter().rev().flatten() {
        parts.push(open(run)?);
    }
    parts.push(Box::new(Memory::new(Header::default(), pending)));
    Ok(Box::new(Sorted { inner: Interleaved::new(parts), header, start }))
}

/// Adds a run; a level that is full becomes one run of the next.
fn add(levels: &mut Vec<Vec<File>>, run: File, width: usize) -> Result<()> {
    let (mut run, mut level) = (run, 0);
    loop {
        if levels.len() == level {
            levels.push(Vec::new());
        }
        levels[level].push(run);
        if levels[level].len() < width {
            return Ok(());
        }
        let parts = std::mem::take(&mut levels[level]);
        run = merged(parts.into_iter().map(open).collect::<Result<_>>()?)?;
        level += 1;
    }
}

/// Merges runs, those in front first where times are the same, to one.
fn merged(parts: Vec<Box<dyn Source + Send>>) -> Result<File> {
    let mut inner = Interleaved::new(parts);
    let mut batch = Vec::new();
    write(|writer| {
        while inner.fill(&mut batch, |_, _, _| Ok(()))? {
            writer.append(&batch)?;
        }
        Ok(())
    })
}

/// Writes a sorted run.
fn spill(pending: &mut Vec<Request>) -> Result<File> {
    pending.sort_by_key(|r| r.time);
    let run = write(|writer| writer.append(pending))?;
    pending.clear();
    Ok(run)
}

/// Writes a file that has no name and goes with its handle.
fn write(fill: impl FnOnce(&mut Writer<BufWriter<File>>) -> Result<()>) -> Result<File> {
    let name = "a temporary file to sort the trace";
    let failed = |e| Error::io(name, e);
    let file = tempfile::tempfile().map_err(failed)?;
    let mut writer = Writer::new(BufWriter::new(file), name, Header::default(), Effort::Low)?;
    fill(&mut writer)?;
    let mut file = writer.finish()?.into_inner().map_err(|e| failed(e.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
}

fn open(run: File) -> Result<Box<dyn Source + Send>> {
    let input = BufReader::with_capacity(64 << 10, run);
    Ok(Box::new(NativeReader::stream(input, "a sorted run".into())?))
}

/// Runs being merged.
struct Sorted {
    inner: Interleaved<Box<dyn Source + Send>>,
    header: Header,
    start: u64,
}

impl Source for Sorted {
    fn header(&self) -> &Header {
        &self.header
    }

    fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
        let start = self.start;
        self.inner.fill(batch, |_, _, request| {
            request.time -= start;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::foreign::intake::TimeOrigin;
    use proptest::prelude::*;

    struct Fixed(Memory);
    impl Source for Fixed {
        fn header(&self) -> &Header {
            self.0.header()
        }
        fn read(&mut self, batch: &mut Vec<Request>) -> Result<bool> {
            let more = self.0.read(batch)?;
            Ok(more)
        }
    }
    impl Foreign for Fixed {
        fn times(&self) -> TimeOrigin {
            TimeOrigin::Absolute
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn sorting_in_runs_and_levels_is_a_stable_sort(
            times in prop::collection::vec(5u64..2000, 1..30_000), width in 2usize..6,
        ) {
            let number = |(i, time): (usize, &u64)| Request {
                time: *time, offset: i as u64, length: 1, ..Request::default()
            };
            let requests: Vec<Request> = times.iter().enumerate().map(number).collect();
            let source = Fixed(Memory::new(Header::default(), requests.clone()));
            let mut sorted = sorted_by(Box::new(source), 1000, width).unwrap();
            let (mut all, mut batch) = (Vec::new(), Vec::new());
            while sorted.read(&mut batch).unwrap() {
                all.extend_from_slice(&batch);
            }
            let mut wanted = requests;
            wanted.sort_by_key(|r| r.time);
            let start = wanted[0].time;
            wanted.iter_mut().for_each(|r| r.time -= start);
            prop_assert_eq!(all, wanted);
        }
    }
}
