//! Reading a device section by section: holes are skipped, data is fed on.

use super::feed::Feed;
use block::{BLOCK, Device, Error, Extent, Result, Span};
use std::collections::VecDeque;

/// Extents that are asked for at a time.
const EXTENTS: usize = 256;

/// The sections of a device: hole or data, with ends at multiples of the grain or at the end.
pub(crate) struct Sections<'a> {
    device: &'a dyn Device,
    size: u64,
    /// Reads begin and end at multiples of this, but for the end of the device.
    grain: u64,
    /// The longest read.
    longest: u64,
    extents: VecDeque<Extent>,
}

impl<'a> Sections<'a> {
    pub(crate) fn new(device: &'a dyn Device, size: u64) -> Self {
        let limits = device.limits();
        let grain = u64::from(limits.minimum).max(BLOCK);
        let longest = (u64::from(limits.maximum) / grain * grain).max(grain);
        Self { device, size, grain, longest, extents: VecDeque::new() }
    }

    /// Whether the section at `at`, a multiple of the grain, is a hole, and where it ends. Calls
    /// go forward.
    pub(crate) async fn at(&mut self, at: u64) -> Result<(bool, u64)> {
        let mut until = at;
        // The hole reaches as far as whole grains do.
        while until < self.size {
            let Some(extent) = self.extent(until).await? else { break };
            if !extent.kind.reads_zero() {
                break;
            }
            until = extent.span.end();
        }
        if until < self.size {
            until = until / self.grain * self.grain;
        }
        if until > at {
            return Ok((true, until));
        }
        // Data up to the first hole of at least a grain.
        let mut until = at;
        while until < self.size {
            let Some(extent) = self.extent(until).await? else { break };
            let end = extent.span.end();
            let start = until.next_multiple_of(self.grain);
            if extent.kind.reads_zero() && (end >= start + self.grain || end == self.size) {
                return Ok((false, start.min(self.size).max(at + 1)));
            }
            until = end;
            // Enough to go on with: the rest is asked for again.
            if until - at >= self.longest {
                break;
            }
        }
        Ok((false, until.next_multiple_of(self.grain).min(self.size)))
    }

    /// The extent that holds the byte at `at`.
    async fn extent(&mut self, at: u64) -> Result<Option<Extent>> {
        while self.extents.front().is_some_and(|extent| extent.span.end() <= at) {
            self.extents.pop_front();
        }
        match self.extents.front() {
            Some(extent) if extent.span.offset() <= at => return Ok(Some(*extent)),
            _ => self.extents.clear(),
        }
        let asked = Span::between(at, self.size);
        let list = self.device.extents(asked, EXTENTS).await.map_err(|e| at_offset(at, e))?;
        self.extents = list.into();
        match self.extents.front() {
            Some(extent) if extent.span.offset() <= at && extent.span.end() > at => {
                Ok(Some(*extent))
            }
            _ => Err(Error::internal(format!(
                "the source does not say what it holds at offset {at}"
            ))),
        }
    }

    /// Reads on from `at`, at most to `until`, into the feed; returns how far.
    pub(crate) async fn feed(&self, feed: &mut Feed, at: u64, until: u64) -> Result<u64> {
        let room = (feed.room() as u64).min(self.longest) / self.grain * self.grain;
        let len = room.max(self.grain).min(until - at);
        let buffer = feed.extend(len as usize);
        self.read(at, buffer).await?;
        feed.shorten(0);
        feed.scan();
        Ok(at + len)
    }

    /// Reads at `at`.
    pub(crate) async fn read(&self, at: u64, buffer: &mut [u8]) -> Result<()> {
        let span = Span::between(at, at + buffer.len() as u64);
        self.device.read(span, buffer).await.map_err(|e| at_offset(at, e))
    }
}

fn at_offset(at: u64, error: Error) -> Error {
    error.context(format!("reading the source at offset {at}"))
}
