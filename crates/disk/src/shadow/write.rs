//! Writing: whole blocks at once, parts of blocks together with the rest of their block.

use super::Inner;
use crate::blockmap::BlockState;
use crate::stack::blocks_of;
use block::{Attempt, BLOCK, Filling, Result, Span};

/// The rest of a block that is written in part.
struct PartialBlock {
    /// The stack from whose lower layers `bytes` were read.
    generation: Option<u64>,
    bytes: [u8; BLOCK as usize],
}

impl PartialBlock {
    const fn new() -> Self {
        Self { generation: None, bytes: [0; BLOCK as usize] }
    }
}

/// A span cut into whole blocks and the parts of blocks before and behind them.
pub(super) struct Parts {
    pub(super) head: Option<Span>,
    pub(super) whole: Option<Span>,
    pub(super) tail: Option<Span>,
}

impl Parts {
    /// The last block of a device of `size` bytes may be short, and counts as whole.
    pub(super) fn of(span: Span, size: u64) -> Self {
        let start = span.offset().next_multiple_of(BLOCK);
        let end = if span.end() == size { size } else { span.end() / BLOCK * BLOCK };
        let some = |a, b| (a < b).then(|| Span::between(a, b));
        if start > end {
            // Inside one block.
            return Self { head: some(span.offset(), span.end()), whole: None, tail: None };
        }
        Self {
            head: some(span.offset(), start),
            whole: some(start, end),
            tail: some(end, span.end()),
        }
    }
}

impl Inner {
    /// Writes whole blocks, all inside one region.
    pub(super) fn put_whole(&self, span: Span, data: &[u8]) -> Result<()> {
        let _shared = self.region(span.offset()).read();
        let stack = self.stack.load();
        let top = stack.top();
        self.admit(&stack, blocks_of(span))?;
        top.write(span.offset(), data)?;
        self.set(top, blocks_of(span), BlockState::Private)
    }

    /// Writes a part of one block; `Ok(false)` when `edge` does not hold what is needed for that.
    fn put_part(&self, span: Span, data: &[u8], edge: &PartialBlock) -> Result<bool> {
        let block = span.offset() / BLOCK;
        let region = self.region(span.offset());
        {
            let _shared = region.read();
            let stack = self.stack.load();
            if stack.top().map.get(block) == BlockState::Private {
                stack.top().write(span.offset(), data)?;
                return Ok(true);
            }
        }
        let _alone = region.write();
        let stack = self.stack.load();
        let top = stack.top();
        let mut bytes = match top.map.get(block) {
            BlockState::Private => {
                top.write(span.offset(), data)?;
                return Ok(true);
            }
            BlockState::Zero => [0; BLOCK as usize],
            BlockState::Below if edge.generation == Some(stack.generation) => edge.bytes,
            BlockState::Below => return Ok(false),
        };
        self.admit(&stack, block..block + 1)?;
        let start = block * BLOCK;
        let len = (self.size() - start).min(BLOCK) as usize;
        let at = (span.offset() - start) as usize;
        bytes[at..at + data.len()].copy_from_slice(data);
        top.write(start, &bytes[..len])?;
        self.set(top, block..block + 1, BlockState::Private)?;
        Ok(true)
    }

    /// The block around `part`, clipped to the device.
    fn block_around(&self, part: Span) -> Span {
        part.align_outward(BLOCK).split_at(self.size()).0
    }

    /// Reads into `edge` what is below the block of `part`, if that is needed and can be had now.
    fn try_edge(&self, part: Span, edge: &mut PartialBlock) -> Result<Attempt> {
        let stack = self.stack.load();
        edge.generation = None;
        if stack.top().map.get(part.offset() / BLOCK) != BlockState::Below {
            return Ok(Attempt::Done);
        }
        let span = self.block_around(part);
        let attempt = stack.try_read_to(
            1,
            span,
            &mut Filling::new(&mut edge.bytes[..span.len() as usize]),
        )?;
        if attempt == Attempt::Done {
            edge.generation = Some(stack.generation);
        }
        Ok(attempt)
    }

    pub(super) async fn write_part(&self, part: Span, data: &[u8]) -> Result<()> {
        let mut edge = Box::new(PartialBlock::new());
        loop {
            if self.try_edge(part, &mut edge)? == Attempt::WouldWait {
                let stack = self.stack.load_full();
                let span = self.block_around(part);
                stack.read(1, span, &mut edge.bytes[..span.len() as usize]).await?;
                edge.generation = Some(stack.generation);
            }
            if self.put_part(part, data, &edge)? {
                return Ok(());
            }
        }
    }

    /// A write with parts of blocks, if all that they need can be had now.
    pub(super) fn try_write_parts(
        &self,
        span: Span,
        data: &[u8],
        parts: &Parts,
    ) -> Result<Attempt> {
        let mut edges = [PartialBlock::new(), PartialBlock::new()];
        let ends = [parts.head, parts.tail];
        for (part, edge) in ends.iter().zip(&mut edges) {
            if let Some(part) = part
                && self.try_edge(*part, edge)? == Attempt::WouldWait
            {
                return Ok(Attempt::WouldWait);
            }
        }
        for (part, edge) in ends.iter().zip(&edges) {
            if let Some(part) = part
                && !self.put_part(*part, &data[part.index_in(span)], edge)?
            {
                // A layer was sealed meanwhile. The other part may be written already; it will be
                // written again with the same bytes.
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }
}
