//! What every foreign request goes through: limits, the shift, the trace's start, the order.

use super::Parsed;
use super::names::NameNumbers;
use crate::header::{Header, TraceDisk};
use crate::request::PLACES;
use crate::{Flags, Op, Request};

/// A request as a format has it: any numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Raw {
    /// Nanoseconds from whatever start.
    pub(crate) time: u64,
    pub(crate) client: u32,
    pub(crate) disk: u32,
    pub(crate) op: Op,
    pub(crate) offset: u64,
    pub(crate) length: u64,
    /// Nanoseconds; 0: not known.
    pub(crate) latency: u64,
    pub(crate) flags: Flags,
}

/// What a format's times are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimeOrigin {
    /// There are none: requests are counted.
    None,
    /// They begin with the trace.
    Relative,
    /// They begin long before the trace: the first one is its start.
    Absolute,
}

/// Times from here on are of a clock, not of a trace: a year, in nanoseconds.
const YEAR: u64 = 365 * 86_400 * super::SECOND;

/// Turns raw requests into requests.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) header: Header,
    pub(crate) times: TimeOrigin,
    /// Requests may come in any order; whoever reads them sorts.
    unsorted: bool,
    shift: u64,
    start: Option<u64>,
    /// The last request's time.
    pub(crate) last: u64,
    count: u64,
    /// Requests without a length that were left out.
    empty: u64,
    pub(crate) clients: NameNumbers,
    pub(crate) disks: NameNumbers,
}

impl Intake {
    /// For a format with these times; `shift` is added to each offset.
    pub(crate) fn new(times: TimeOrigin, shift: u64, unsorted: bool) -> Self {
        let header = Header { times: times != TimeOrigin::None, ..Header::default() };
        Self {
            header,
            times,
            unsorted,
            shift,
            start: None,
            last: 0,
            count: 0,
            empty: 0,
            clients: NameNumbers::default(),
            disks: NameNumbers::default(),
        }
    }

    /// The number of the client of this name.
    pub(crate) fn client(&mut self, name: &[u8]) -> Parsed<u32> {
        let (number, new) = self.clients.number(name)?;
        self.header.clients.extend(new);
        Ok(number)
    }

    /// The number of the disk of this name.
    pub(crate) fn disk(&mut self, name: &[u8]) -> Parsed<u32> {
        let (number, new) = self.disks.number(name)?;
        self.header.disks.extend(new.map(|name| TraceDisk { name, ..TraceDisk::default() }));
        Ok(number)
    }

    /// Counts a request that has no place.
    pub(crate) fn leave_out(&mut self) {
        self.empty += 1;
    }

    /// Checks a request and adds it.
    #[inline(always)]
    pub(crate) fn accept(&mut self, raw: &Raw, batch: &mut Vec<Request>) -> Parsed<()> {
        if raw.length == 0 && raw.op != Op::Flush {
            self.empty += 1;
            return Ok(());
        }
        let length = u32::try_from(raw.length).map_err(|_| too_long(raw.length))?;
        let shift = if raw.op == Op::Flush { 0 } else { self.shift };
        let offset = raw.offset.checked_add(shift).filter(|o| *o <= PLACES - raw.length);
        let offset = offset.ok_or_else(|| too_far(raw))?;
        let time = match self.times {
            TimeOrigin::None => self.count,
            // Who sorts takes the least of all times off instead.
            _ if self.unsorted => raw.time,
            TimeOrigin::Absolute => self.since_start(raw.time, true)?,
            TimeOrigin::Relative => self.since_start(raw.time, false)?,
        };
        if time < self.last && !self.unsorted {
            return Err(too_early(self.last - time));
        }
        self.last = time;
        self.count += 1;
        batch.push(Request {
            time,
            client: raw.client,
            disk: raw.disk,
            op: raw.op,
            offset,
            length,
            latency: u32::try_from(raw.latency).unwrap_or(u32::MAX),
            flags: raw.flags,
        });
        Ok(())
    }

    #[inline]
    fn since_start(&mut self, time: u64, absolute: bool) -> Parsed<u64> {
        let first = if absolute || time > YEAR { time } else { 0 };
        let start = *self.start.get_or_insert(first);
        time.checked_sub(start).ok_or_else(before_first)
    }

    /// What was read is all there is.
    pub(crate) fn end(&mut self) {
        self.header.requests = Some(self.count);
        if self.header.clients.is_empty() && self.count > 0 {
            self.header.clients.push(String::new());
        }
        if self.header.disks.is_empty() && self.count > 0 {
            self.header.disks.push(TraceDisk::default());
        }
        if self.empty > 0 {
            let line = format!("{} requests of no length were left out", self.empty);
            self.header.note(&line);
            self.empty = 0;
        }
    }
}

// What is wrong with a request, apart from what is done with those that are right.

#[cold]
fn too_long(length: u64) -> String {
    format!("a length of {length} bytes, 2^32 or more")
}

#[cold]
fn too_far(raw: &Raw) -> String {
    format!("{} bytes at offset {} end beyond 2^63", raw.length, raw.offset)
}

#[cold]
fn too_early(nanoseconds: u64) -> String {
    format!("its time is {nanoseconds} ns before that of the one before it; read it with --sort")
}

#[cold]
fn before_first() -> String {
    "its time is before that of the first one; read it with --sort".to_owned()
}

/// What sorting takes off all times, given the least and whether the format's are absolute.
pub(crate) fn start_of(times: TimeOrigin, least: u64) -> u64 {
    match times {
        TimeOrigin::None => 0,
        TimeOrigin::Absolute => least,
        TimeOrigin::Relative => {
            if least > YEAR {
                least
            } else {
                0
            }
        }
    }
}
