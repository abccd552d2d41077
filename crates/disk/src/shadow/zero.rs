//! Making blocks zero, and giving their room back or reserving it.

use super::{Inner, REGION, Shadow};
use crate::blockmap::State;
use crate::stack::blocks_of;
use block::{BLOCK, Error, ErrorKind, Result, Span, ZeroMode, offload};
use std::sync::{Arc, Weak};

/// How much is zeroed between two looks at what is below.
const WINDOW: u64 = 1 << 30;

impl Inner {
    /// Makes blocks zero, all inside one region, and says which were private. Blocks below which
    /// all is zero in the stack `quiet` are left alone.
    pub(super) fn mark_zero(
        &self,
        span: Span,
        quiet: Option<u64>,
        private_too: bool,
        private: &mut Vec<Span>,
    ) {
        let _alone = self.region(span.offset()).write();
        let stack = self.stack.load();
        let map = &stack.top().map;
        let all = blocks_of(span);
        let mut at = all.start;
        while at < all.end {
            let (state, end) = map.run(at..all.end);
            match state {
                State::Private => {
                    let run = Span::between(at * BLOCK, (end * BLOCK).min(span.end()));
                    match private.last_mut() {
                        Some(last) if last.end() == run.offset() => {
                            *last = Span::between(last.offset(), run.end());
                        }
                        _ => private.push(run),
                    }
                    if private_too {
                        map.set(at..end, State::Zero);
                    }
                }
                State::Below if quiet != Some(stack.generation) => map.set(at..end, State::Zero),
                _ => {}
            }
            at = end;
        }
    }

    /// Makes whole blocks zero and gives their room back, or reserves it, as long as somebody wants
    /// it: a write that is answered to the next client must not be hit by what is left of this. One
    /// that comes while the file is punched waits for that in the file system. Waits for the disk.
    fn zero_run(
        &self,
        span: Span,
        quiet: Option<u64>,
        mode: ZeroMode,
        wanted: &Weak<()>,
    ) -> Result<()> {
        let wanted = || match wanted.strong_count() {
            0 => Err(Error::unavailable("the request was given up")),
            _ => Ok(()),
        };
        if span.is_empty() {
            return Ok(());
        }
        let mut private = Vec::new();
        for piece in span.pieces(REGION) {
            wanted()?;
            self.mark_zero(piece, quiet, mode.may_punch, &mut private);
        }
        let stack = self.stack.load_full();
        let top = stack.top();
        if mode.may_punch {
            for run in private {
                wanted()?;
                match top.data.punch(run.align_outward(BLOCK)) {
                    Ok(()) => {}
                    // The room stays taken; the blocks are zero all the same.
                    Err(e) if e.kind() == ErrorKind::Unsupported => break,
                    Err(e) => return Err(e),
                }
            }
        } else {
            wanted()?;
            top.data.zero_range(span.align_outward(BLOCK))?;
        }
        top.touch();
        Ok(())
    }

    /// Whether the file system can reserve zeroed room. It is asked with the first block of `span`,
    /// which is to be zeroed anyway.
    pub(super) async fn can_reserve(&self, span: Span) -> Result<bool> {
        let stack = self.stack.load_full();
        let first = Span::between(span.offset(), span.offset() + BLOCK);
        match offload(move || stack.top().data.zero_range(first)).await {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Shadow {
    /// Zeroes whole blocks. What reads as zeroes from below is left alone, so that the discard of
    /// a blank disk costs nothing.
    pub(super) async fn zero_blocks(&self, span: Span, mode: ZeroMode) -> Result<()> {
        // Dropped with this future: what is left of a request whose client is gone must not go on
        // beside those of the next one.
        let wanted = Arc::new(());
        for window in span.pieces(WINDOW) {
            let mut at = window;
            while !at.is_empty() {
                let stack = self.inner.stack.load_full();
                let below = stack.extents(1, at, 256).await?;
                let end = below.last().map_or(at.end(), |e| e.span.end());
                // The last extent may end inside a block.
                let end = if end < at.end() {
                    (end / BLOCK * BLOCK).max(at.offset() + BLOCK).min(at.end())
                } else {
                    end
                };
                let (now, behind) = at.split_at(end);
                at = behind;
                let generation = stack.generation;
                drop(stack);
                let inner = Arc::clone(&self.inner);
                let guard = Arc::clone(&self.inner.zeroing).read_owned().await;
                let wanted = Arc::downgrade(&wanted);
                offload(move || {
                    let _guard = guard;
                    let mut from = now.offset();
                    for extent in below.iter().filter(|e| e.kind.reads_zero()) {
                        // Whole blocks of it, or the short last block of the device.
                        let start = extent.span.offset().next_multiple_of(BLOCK);
                        let end = if extent.span.end() >= now.end() {
                            now.end()
                        } else {
                            extent.span.end() / BLOCK * BLOCK
                        };
                        if start >= end || start < from {
                            continue;
                        }
                        inner.zero_run(Span::between(from, start), None, mode, &wanted)?;
                        let quiet = Some(generation);
                        inner.zero_run(Span::between(start, end), quiet, mode, &wanted)?;
                        from = end;
                    }
                    inner.zero_run(Span::between(from, now.end()), None, mode, &wanted)
                })
                .await?;
            }
        }
        Ok(())
    }
}
