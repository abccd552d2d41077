//! Puts a trace in order of time in bounded memory: sorted runs in temporary files, then merged.

use crate::foreign::{Foreign, intake};
use crate::merge::Interleaved;
use crate::native::column::Effort;
use crate::native::reader::Reader;
use crate::native::writer::Writer;
use crate::{Header, Memory, Request, Source};
use block::{Error, Result};
use std::fs::File;
use std::io::{BufReader, BufWriter, Seek, SeekFrom};

/// Requests of a run: 160 MiB.
const RUN: usize = 4 << 20;
/// Runs at most: each takes some memory while they are merged.
const RUNS: usize = 1024;

/// The requests of a source in order of time; those of one time as they came. The source is read
/// to its end first.
pub(crate) fn sorted(source: Box<dyn Foreign + Send>) -> Result<Box<dyn Source + Send>> {
    sorted_by(source, RUN)
}

fn sorted_by(mut source: Box<dyn Foreign + Send>, run: usize) -> Result<Box<dyn Source + Send>> {
    let mut pending: Vec<Request> = Vec::new();
    let mut runs = Vec::new();
    let mut least = u64::MAX;
    let mut batch = Vec::new();
    while source.read(&mut batch)? {
        least = batch.iter().fold(least, |least, r| least.min(r.time));
        if pending.len() + batch.len() > run {
            if runs.len() == RUNS {
                return Err(Error::invalid(format!(
                    "more than {} requests to sort; cut the trace into parts first",
                    RUN * RUNS
                )));
            }
            runs.push(spill(&mut pending)?);
        }
        pending.extend_from_slice(&batch);
    }
    pending.sort_by_key(|r| r.time);
    let start = intake::start_of(source.times(), least.min(u64::MAX - 1));
    let header = source.header().clone();
    if runs.is_empty() {
        pending.iter_mut().for_each(|r| r.time -= start);
        return Ok(Box::new(Memory::new(header, pending)));
    }
    let mut parts: Vec<Box<dyn Source + Send>> = Vec::new();
    for run in runs {
        let reader =
            Reader::stream(BufReader::with_capacity(64 << 10, run), "a sorted run".into())?;
        parts.push(Box::new(reader));
    }
    parts.push(Box::new(Memory::new(Header::default(), pending)));
    Ok(Box::new(Sorted { inner: Interleaved::new(parts), header, start }))
}

/// Writes a sorted run to a file that has no name and goes with its handle.
fn spill(pending: &mut Vec<Request>) -> Result<File> {
    let failed = |e| Error::io("a temporary file to sort the trace", e);
    pending.sort_by_key(|r| r.time);
    let file = tempfile::tempfile().map_err(failed)?;
    let name = "a temporary file to sort the trace";
    let mut writer = Writer::new(BufWriter::new(file), name, Header::default(), Effort::Low)?;
    for request in pending.iter() {
        writer.push(request)?;
    }
    pending.clear();
    let mut file = writer.finish()?.into_inner().map_err(|e| failed(e.into_error()))?;
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    Ok(file)
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
    use crate::foreign::intake::Times;
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
        fn times(&self) -> Times {
            Times::Absolute
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]
        #[test]
        fn sorting_in_runs_is_a_stable_sort(times in prop::collection::vec(5u64..2000, 1..30_000)) {
            let number = |(i, time): (usize, &u64)| Request {
                time: *time, offset: i as u64, length: 1, ..Request::default()
            };
            let requests: Vec<Request> = times.iter().enumerate().map(number).collect();
            let source = Fixed(Memory::new(Header::default(), requests.clone()));
            let mut sorted = sorted_by(Box::new(source), 5000).unwrap();
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
