//! Reads of which it is known where on the disk they begin, before they are made.

use super::threads::Threads;
use super::{Directory, failed, read};
use block::fs::{File, FsPath, Open};
use bytes::Bytes;
use object_store::Result;
use object_store::path::Path;
use std::ops::Range;

/// Ranges of an object that are to be read in a turn.
#[derive(Debug)]
pub(crate) struct PlacedRead {
    path: FsPath,
    file: File,
    ranges: Vec<Range<u64>>,
    threads: Threads,
    /// Where the first begins on the device; `None` when the file system does not tell.
    pub(crate) position: Option<u64>,
}

impl PlacedRead {
    /// How many bytes it is from the begin of the first range to the end of the last.
    pub(crate) fn span(&self) -> u64 {
        let first = self.ranges.iter().map(|range| range.start).min().unwrap_or(0);
        let last = self.ranges.iter().map(|range| range.end).max().unwrap_or(0);
        last.saturating_sub(first)
    }

    /// Reads them.
    pub(crate) async fn read(self) -> Result<Vec<Bytes>> {
        let threads = self.threads.clone();
        let read =
            move || self.ranges.iter().map(|range| read(&self.path, &self.file, range)).collect();
        threads.run(read).await
    }
}

impl Directory {
    /// Ranges of an object if memory has all of them; else where they are.
    pub(crate) async fn read_or_place(
        &self,
        location: &Path,
        ranges: &[Range<u64>],
    ) -> Result<Result<Vec<Bytes>, PlacedRead>> {
        let (path, ranges) = (self.path(location)?, ranges.to_vec());
        let threads = self.threads.clone();
        self.work(move || {
            let file = path.open(Open::READ).map_err(|e| failed(&path, e))?;
            let is_in_memory = |range: &Range<u64>| {
                let len = range.end.saturating_sub(range.start);
                usize::try_from(len).is_ok_and(|len| file.is_in_memory(range.start, len))
            };
            if ranges.iter().all(is_in_memory) {
                let parts = ranges.iter().map(|range| read(&path, &file, range));
                return parts.collect::<Result<_>>().map(Ok);
            }
            let position = ranges.first().and_then(|first| file.device_position(first.start));
            Ok(Err(PlacedRead { path, file, ranges, threads, position }))
        })
        .await
    }
}
