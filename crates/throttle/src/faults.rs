//! Injected faults: errors, unreadable ranges, stalls.

use block::{Error, Result, Span};
use schedule::{Nanos, Random};
use std::ops::Range;

/// The longest stall: a day, in nanoseconds.
const LONGEST: Nanos = 86_400_000_000_000;

/// Pauses of the whole disk.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Stall {
    /// The part of requests that begin one, 0 to 1.
    pub part: f64,
    /// How long one is, in nanoseconds of the model's time; at most a day.
    pub time: Nanos,
}

/// The faults of one disk.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Faults {
    /// The part of reads and writes that fail, 0 to 1.
    pub fail: f64,
    /// Reads and writes that touch these bytes fail.
    pub bad: Vec<Range<u64>>,
    /// Pauses.
    pub stall: Option<Stall>,
}

impl Faults {
    /// Checks that parts are 0 to 1, ranges not empty, and stalls at most a day long.
    ///
    /// # Errors
    /// [`Invalid`](block::ErrorKind::Invalid): which value, and what it may be.
    pub fn check(&self) -> Result<()> {
        let parts = [("fail", self.fail), ("stall", self.stall.map_or(0.0, |s| s.part))];
        for (name, part) in parts {
            if !(0.0..=1.0).contains(&part) {
                return Err(Error::invalid(format!("{name} is {part}; give a part from 0 to 1")));
            }
        }
        if self.stall.is_some_and(|stall| stall.time > LONGEST) {
            return Err(Error::invalid("a stall lasts for more than a day; give less"));
        }
        match self.bad.iter().find(|range| range.start >= range.end) {
            Some(range) => Err(Error::invalid(format!(
                "the bad range from {} to {} holds nothing; write FROM-TO",
                range.start, range.end
            ))),
            None => Ok(()),
        }
    }

    /// Whether a read or write of this span fails.
    pub(crate) fn fails(&self, span: Span, random: &mut Random) -> bool {
        let touches = |range: &Range<u64>| range.start < span.end() && span.offset() < range.end;
        self.bad.iter().any(touches) || (self.fail > 0.0 && random.unit() < self.fail)
    }

    /// The pause that a request begins.
    pub(crate) fn pause(&self, random: &mut Random) -> Nanos {
        self.stall.filter(|stall| random.unit() < stall.part).map_or(0, |stall| stall.time)
    }
}
