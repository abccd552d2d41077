//! Requests as eight columns.

use super::MAX_REQUESTS;
use super::column::{Column, Effort, Encoder};
use crate::bytes::{u32_at, u64_at};
use crate::header::MAX_PARTIES;
use crate::request::{Flags, Op, PLACES, Request};
use block::{Error, Result};
use zstd::bulk::Decompressor;

/// Bytes of a block before its columns.
pub(crate) const HEAD: usize = 20;
/// Requests that are put together at a time: their columns fit a core's first cache.
const CHUNK: usize = 512;
const COLUMNS: usize = 8;
/// Where a column stands among the others.
const TIME: usize = 0;
const CLIENT: usize = 1;
const DISK: usize = 2;
const OP: usize = 3;
const LENGTH: usize = 4;
const OFFSET: usize = 5;
const LATENCY: usize = 6;
const FLAGS: usize = 7;

/// Writes blocks.
pub(crate) struct BlockWriter {
    encoder: Encoder,
    column: Vec<u64>,
    lengths: Vec<u64>,
}

impl BlockWriter {
    pub(crate) fn new(effort: Effort) -> Result<Self> {
        Ok(Self { encoder: Encoder::new(effort)?, column: Vec::new(), lengths: Vec::new() })
    }

    /// The payload of a block of these requests, at least one, sorted and in range.
    pub(crate) fn encode(&mut self, requests: &[Request], out: &mut Vec<u8>) -> Result<()> {
        out.clear();
        let (Some(first), Some(last)) = (requests.first(), requests.last()) else {
            return Ok(());
        };
        out.extend_from_slice(&(requests.len() as u32).to_le_bytes());
        out.extend_from_slice(&first.time.to_le_bytes());
        out.extend_from_slice(&last.time.to_le_bytes());
        self.lengths.clear();
        self.lengths.extend(requests.iter().map(|r| u64::from(r.length)));
        for column in 0..COLUMNS {
            if column == LENGTH {
                self.encoder.column(out, &self.lengths, None, false)?;
                continue;
            }
            self.column.clear();
            let values = requests.iter();
            match column {
                TIME => self.column.extend(values.map(|r| r.time)),
                CLIENT => self.column.extend(values.map(|r| u64::from(r.client))),
                DISK => self.column.extend(values.map(|r| u64::from(r.disk))),
                OP => self.column.extend(values.map(|r| r.op as u64)),
                OFFSET => self.column.extend(values.map(|r| r.offset)),
                LATENCY => self.column.extend(values.map(|r| u64::from(r.latency))),
                _ => self.column.extend(values.map(|r| u64::from(r.flags.0))),
            }
            let lengths = (column == OFFSET).then_some(self.lengths.as_slice());
            self.encoder.column(out, &self.column, lengths, column == TIME)?;
        }
        Ok(())
    }
}

/// A block's number of requests, its first and its last time.
pub(crate) fn summary(payload: &[u8]) -> Result<(usize, u64, u64)> {
    if payload.len() < HEAD {
        return Err(Error::corrupt("a block is cut off"));
    }
    let count = u32_at(payload, 0) as usize;
    if count == 0 || count > MAX_REQUESTS {
        return Err(Error::corrupt(format!(
            "a block of {count} requests, where 1 to {MAX_REQUESTS} are possible"
        )));
    }
    Ok((count, u64_at(payload, 4), u64_at(payload, 12)))
}

/// Reads blocks.
pub(crate) struct BlockReader {
    decompressor: Decompressor<'static>,
    columns: [Column; COLUMNS],
    scratch: Box<[[u64; CHUNK]; COLUMNS]>,
}

impl BlockReader {
    pub(crate) fn new() -> Result<Self> {
        let decompressor =
            Decompressor::new().map_err(|e| Error::io("cannot start decompressing", e))?;
        Ok(Self {
            decompressor,
            columns: Default::default(),
            scratch: Box::new([[0; CHUNK]; COLUMNS]),
        })
    }

    /// Appends a block's requests, whose times must not be before `earliest`.
    pub(crate) fn decode(
        &mut self,
        payload: &[u8],
        earliest: u64,
        out: &mut Vec<Request>,
    ) -> Result<()> {
        let (count, first, last) = summary(payload)?;
        let mut rest = &payload[HEAD..];
        for column in &mut self.columns {
            column.load(&mut rest, count, &mut self.decompressor)?;
        }
        if !rest.is_empty() {
            return Err(Error::corrupt("a block is longer than its columns"));
        }
        for (column, scratch) in self.columns.iter().zip(self.scratch.iter_mut()) {
            if let Some(value) = column.constant() {
                scratch.fill(value);
            }
        }
        let start = out.len();
        out.reserve(count);
        let mut gap = 0;
        let mut before = earliest;
        let mut from = 0;
        while from < count {
            let n = CHUNK.min(count - from);
            for k in 0..COLUMNS {
                if self.columns[k].constant().is_none() {
                    // Lengths come before offsets, which may need them.
                    let (done, here) = self.scratch.split_at_mut(k);
                    let gaps = done.get(LENGTH).map_or(&[][..], |lengths| &lengths[..n]);
                    self.columns[k].chunk(from, &mut here[0][..n], gaps, gap);
                }
            }
            gap = self.scratch[LENGTH][n - 1];
            before = check(&self.columns, &self.scratch, n, before)?;
            assemble(&self.scratch, n, out);
            from += n;
        }
        match out.get(start).map(|r| r.time) == Some(first) && before == last {
            true => Ok(()),
            false => Err(Error::corrupt("a block's times are not those that it says")),
        }
    }
}

/// Checks what every request promises; returns the last time.
fn check(
    kinds: &[Column; COLUMNS],
    columns: &[[u64; CHUNK]; COLUMNS],
    n: usize,
    before: u64,
) -> Result<u64> {
    // All bits that any value has: enough for limits that are powers of two.
    let bits = |column: usize| match kinds[column].constant() {
        Some(value) => value,
        None => columns[column][..n].iter().fold(0, |bits: u64, v| bits | *v),
    };
    let word = u64::from(u32::MAX);
    if bits(CLIENT).max(bits(DISK)) >= u64::from(MAX_PARTIES) {
        return Err(Error::corrupt("a client or disk beyond the limit of the format"));
    }
    let most = columns[OP][..n].iter().fold(0, |most: u64, op| most.max(*op));
    if most >= Op::ALL.len() as u64 || bits(FLAGS) > u64::from(Flags::KNOWN.0) {
        return Err(Error::unsupported(
            "an operation or flag that this version does not know; use a newer one",
        ));
    }
    let ends = columns[OFFSET][..n].iter().zip(&columns[LENGTH][..n]);
    // With lengths below 2^32 the sum cannot overflow while offsets are in range.
    let outside = ends.fold(false, |outside, (offset, length)| {
        outside | (*offset > PLACES) | (offset.wrapping_add(*length) > PLACES)
    });
    if bits(LENGTH) > word || bits(LATENCY) > word || outside {
        return Err(Error::corrupt("a length, latency or offset beyond the limit of the format"));
    }
    let times = &columns[TIME][..n];
    let back = times.windows(2).fold(false, |back, pair| back | (pair[0] > pair[1]));
    if back || times[0] < before {
        return Err(Error::corrupt("times go back"));
    }
    Ok(times[n - 1])
}

fn assemble(columns: &[[u64; CHUNK]; COLUMNS], n: usize, out: &mut Vec<Request>) {
    let [time, client, disk, op, length, offset, latency, flags] = columns;
    out.extend((0..n).map(|i| Request {
        time: time[i],
        client: client[i] as u32,
        disk: disk[i] as u32,
        op: Op::ALL[(op[i] as usize).min(Op::ALL.len() - 1)],
        offset: offset[i],
        length: length[i] as u32,
        latency: latency[i] as u32,
        flags: Flags(flags[i] as u8),
    }));
}
