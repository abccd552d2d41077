//! The text that `blkparse` prints by default:
//! `MAJOR,MINOR CPU SEQUENCE SECONDS PID ACTION RWBS SECTOR + SECTORS [PROCESS]`.
//!
//! A request is taken when it is queued (Q) and its completion (C) gives its latency; where a
//! trace holds no Q, when it is issued (D); where it holds neither, when it is completed.

use super::definition::{Alignment, Definition, Parser};
use super::fields::{number, seconds, shown, words};
use super::intake::{Intake, Raw};
use super::lines::LineFormat;
use super::{Parsed, SECTOR};
use crate::{Flags, Op, Request};
use std::collections::{HashMap, VecDeque};

/// The line of this format in the table.
pub(crate) const FORMAT: Definition = Definition {
    name: "blkparse",
    reader: Some(|_, _, _| Parser::Lines(Box::new(Blkparse::default()))),
    alignment: Alignment::Bytes(512),
    ..Definition::READ
};

/// Requests that wait for their completion at most; the oldest then goes without a latency.
const WAITING: usize = 8192;

/// A trace being read.
#[derive(Debug, Default)]
pub(crate) struct Blkparse {
    /// The action that begins a request here: Q, D or C; the strongest seen.
    begins: u8,
    waiting: VecDeque<(Raw, bool)>,
    /// Requests passed on so far: the number of the first that waits.
    passed: u64,
    /// (disk, offset, length) to the numbers of the requests that wait.
    open: HashMap<(u32, u64, u64), VecDeque<u64>>,
}

impl Blkparse {
    /// Which of two actions begins a request.
    fn rank(action: u8) -> u8 {
        match action {
            b'Q' => 3,
            b'D' => 2,
            b'C' => 1,
            _ => 0,
        }
    }

    /// Passes on the oldest while they are answered or too many wait.
    fn pass(&mut self, most: usize, intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        while let Some((raw, answered)) = self.waiting.front() {
            if !answered && self.waiting.len() <= most {
                break;
            }
            intake.accept(raw, out)?;
            if !answered {
                let key = (raw.disk, raw.offset, raw.length);
                let empty = self.open.get_mut(&key).is_some_and(|numbers| {
                    numbers.retain(|n| *n != self.passed);
                    numbers.is_empty()
                });
                if empty {
                    self.open.remove(&key);
                }
            }
            self.waiting.pop_front();
            self.passed += 1;
        }
        Ok(())
    }

    fn complete(&mut self, key: (u32, u64, u64), time: u64) {
        let Some(numbers) = self.open.get_mut(&key) else { return };
        let number = numbers.pop_front();
        if numbers.is_empty() {
            self.open.remove(&key);
        }
        let index = number.map(|n| (n - self.passed) as usize);
        if let Some((raw, answered)) = index.and_then(|i| self.waiting.get_mut(i)) {
            raw.latency = time.saturating_sub(raw.time).max(1);
            *answered = true;
        }
    }
}

/// What RWBS says, when it is a request of a kind that we have.
pub(crate) fn kind(rwbs: &[u8]) -> Option<(Op, Flags)> {
    let op = match rwbs {
        // A flush alone; one before data is part of the write.
        [b'F'] | [b'F', b'N', ..] => Op::Flush,
        _ if rwbs.contains(&b'D') => Op::Trim,
        _ if rwbs.contains(&b'R') => Op::Read,
        _ if rwbs.contains(&b'W') => Op::Write,
        _ if rwbs.contains(&b'F') => Op::Flush,
        _ => return None,
    };
    // F behind the letter of the operation is forced unit access, before it a flush.
    let fua = rwbs.iter().position(|b| *b == b'W').is_some_and(|w| rwbs[w..].contains(&b'F'));
    Some((op, if fua { Flags::FUA } else { Flags::NONE }))
}

impl LineFormat for Blkparse {
    fn line(&mut self, line: &[u8], intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        let (fields, count) = words::<10>(line);
        let device = fields[0];
        let comma = device.iter().position(|b| *b == b',');
        let is_event = comma.is_some_and(|c| {
            let digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
            digits(&device[..c]) && digits(&device[c + 1..])
        });
        if !is_event {
            // Behind the events comes a summary, by processor and in total.
            return match self.begins {
                0 => Err(format!("{} is no event of blkparse", shown(line))),
                _ => Ok(()),
            };
        }
        if count < 6 {
            return Err("an event of fewer than six words".to_owned());
        }
        number(fields[1], "processor")?;
        let time = seconds(fields[3], "time")?;
        let [action] = *fields[5] else { return Ok(()) };
        let rank = Self::rank(action);
        let Some((mut op, flags)) = kind(fields[6]).filter(|_| rank > 0) else { return Ok(()) };
        let disk = intake.disk(device)?;
        let (offset, length) = match (op, fields[8]) {
            (Op::Flush, _) => (0, 0),
            (_, b"+") => {
                let sectors = |field, what| {
                    number(field, what)?
                        .checked_mul(SECTOR)
                        .ok_or_else(|| format!("the {what} is too large"))
                };
                (sectors(fields[7], "sector")?, sectors(fields[9], "number of sectors")?)
            }
            // A flush that was to go before data of which there are none.
            (Op::Write, _) if fields[6].starts_with(b"F") => {
                op = Op::Flush;
                (0, 0)
            }
            // Passed-through commands have no place.
            _ => {
                if action == self.begins {
                    intake.leave_out();
                }
                return Ok(());
            }
        };
        let raw = Raw { time, disk, op, offset, length, flags, ..Raw::default() };
        if rank > Self::rank(self.begins) {
            // What came with a weaker action so far was queued before the trace began.
            self.begins = action;
        }
        if action == self.begins {
            let answered = action == b'C';
            if !answered {
                intake.header.latencies = true;
                let number = self.passed + self.waiting.len() as u64;
                self.open.entry((disk, offset, length)).or_default().push_back(number);
            }
            self.waiting.push_back((raw, answered));
        } else if action == b'C' {
            self.complete((disk, offset, length), time);
        }
        self.pass(WAITING, intake, out)
    }

    fn end(&mut self, intake: &mut Intake, out: &mut Vec<Request>) -> Parsed<()> {
        self.pass(0, intake, out)
    }
}
