//! Making blocks zero, and giving their room back or reserving it.

use super::{Inner, REGION, Shadow};
use crate::blockmap::{BlockMap, BlockState};
use crate::stack::blocks_of;
use block::offload::ZeroingTurn;
use block::{BLOCK, Error, ErrorKind, Extent, Result, Span, offload};
use std::ops::Range;
use std::sync::{Arc, Weak};

/// How much is zeroed between two looks at what is below.
const WINDOW: u64 = 1 << 30;
/// Runs that a request remembers, to give back what it took. What it took of a finer map stays taken.
const MOST_RUNS: usize = 1 << 16;
/// Threads that one shadow has for this at a time. It is done one by one: reservations wait for each other, and the
/// file system changes the room of a file alone. The second one is there as soon as the first is done.
pub(super) const TURNS: usize = 2;

/// Whether anybody still waits for a request. What is left of one whose client is gone must not go
/// on beside the next one's: a write that is answered to that one would be lost.
pub(super) struct RequestWaiter(Weak<()>);

impl RequestWaiter {
    /// Lasts as long as `request` lives.
    pub(super) fn by(request: &Arc<()>) -> Self {
        Self(Arc::downgrade(request))
    }

    fn check(&self) -> Result<()> {
        match self.0.strong_count() {
            0 => Err(Error::unavailable("the request was given up")),
            _ => Ok(()),
        }
    }
}

impl Inner {
    /// Puts blocks, all inside one region, into the states that `next` has for theirs.
    fn turn(&self, span: Span, next: impl Fn(BlockState) -> Result<BlockState>) -> Result<()> {
        let _alone = self.region(span.offset()).write();
        let stack = self.stack.load();
        let top = stack.top();
        let all = blocks_of(span);
        let mut at = all.start;
        while at < all.end {
            let (state, end) = top.map.run(at..all.end);
            let next = next(state)?;
            if next != state {
                self.set(top, at..end, next)?;
            }
            at = end;
        }
        Ok(())
    }

    /// Makes blocks zero. Where all is zero below, which is `quiet`, those that say nothing are left
    /// alone.
    pub(super) fn mark_zero(&self, span: Span, quiet: bool, wanted: &RequestWaiter) -> Result<()> {
        span.pieces(REGION).try_for_each(|piece| {
            self.turn(piece, |state| {
                // With the region taken alone: who writes from now on writes behind this.
                wanted.check()?;
                Ok(if quiet && state == BlockState::Below { state } else { BlockState::Zero })
            })
        })
    }

    /// Makes whole blocks zero and gives their room back, as long as somebody wants it. Below `quiet`
    /// all is zero. Waits for the disk.
    fn clear(&self, span: Span, quiet: &[Span], wanted: &RequestWaiter) -> Result<()> {
        let mut from = span.offset();
        for run in quiet {
            self.mark_zero(Span::between(from, run.offset()), false, wanted)?;
            self.mark_zero(*run, true, wanted)?;
            from = run.end();
        }
        self.mark_zero(Span::between(from, span.end()), false, wanted)?;
        self.give_back(span, wanted)
    }

    /// Gives back the room of blocks of which none is private any more, in one call: where there is
    /// no room, that costs next to nothing. Not only what was private has some: a discard may have
    /// been given up or have failed before this, and a reservation before it counted. A write that
    /// comes while the file is punched waits for that in the file system.
    fn give_back(&self, span: Span, wanted: &RequestWaiter) -> Result<()> {
        let stack = self.stack.load_full();
        let top = stack.top();
        if top.data.len()? <= span.offset() {
            return Ok(());
        }
        wanted.check()?;
        match top.data.punch(span.align_outward(BLOCK)) {
            Ok(()) => top.touch(),
            // The room stays taken; the blocks are zero all the same.
            Err(e) if e.kind() == ErrorKind::Unsupported => {}
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Makes whole blocks, all inside one region, zeroes that have room: they are private, and count
    /// as such. Waits for the disk, without the region's lock.
    fn reserve(&self, span: Span, wanted: &RequestWaiter) -> Result<()> {
        // Two could each take what is left up to the limit.
        let _alone = self.limit.reserving();
        let stack = self.stack.load_full();
        let top = stack.top();
        self.admit(&stack, blocks_of(span))?;
        // A write of a part of a block must not fetch from below what is being zeroed.
        self.turn(span, |state| {
            wanted.check()?;
            Ok(if state == BlockState::Below { BlockState::Zero } else { state })
        })?;
        self.reach(span, wanted)?;
        wanted.check()?;
        top.data.zero_range(span.align_outward(BLOCK))?;
        top.touch();
        // Also when it is not wanted any more: the room is taken. What was written meanwhile is
        // private, and what is zero is so in the file, too, or about to be punched.
        self.turn(span, |state| {
            Ok(if state == BlockState::Zero { BlockState::Private } else { state })
        })
    }

    /// Gives back what a request took that found no room for all of it: these runs of blocks were not
    /// private before. They read as zeroes, as far as it came. Once nobody wants it any more, what is left stays taken:
    /// what is private then may have been written since.
    pub(super) fn undo_filling(&self, runs: &[Range<u64>], wanted: &RequestWaiter) -> Result<()> {
        let size = self.size();
        for run in runs {
            let span = Span::between(run.start * BLOCK, (run.end * BLOCK).min(size));
            span.pieces(REGION).try_for_each(|piece| {
                self.turn(piece, |state| {
                    wanted.check()?;
                    Ok(if state == BlockState::Private { BlockState::Zero } else { state })
                })
            })?;
            let stack = self.stack.load_full();
            wanted.check()?;
            match stack.top().data.punch(span.align_outward(BLOCK)) {
                Ok(()) => stack.top().touch(),
                Err(e) if e.kind() == ErrorKind::Unsupported => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Makes the data file reach to the end of `span`, inside one region, as it does for private
    /// blocks. A reservation alone does not, and behind the end no room is given back.
    fn reach(&self, span: Span, wanted: &RequestWaiter) -> Result<()> {
        let _alone = self.region(span.offset()).write();
        wanted.check()?;
        let stack = self.stack.load();
        let top = stack.top();
        if top.data.len()? < span.end() {
            top.write(span.end() - 1, &[0])?;
        }
        Ok(())
    }

    /// Tries, unless somebody did, whether the file system can reserve zeroed room, with the first block of
    /// `span` where there is room for all of it. The block keeps its state: when it cannot, nothing may
    /// have changed.
    fn try_reserving(&self, span: Span, wanted: &RequestWaiter) -> Result<bool> {
        // One who tries takes the room of a block, which does not count yet.
        let _alone = self.limit.reserving();
        if let Some(known) = self.reserves.get() {
            return Ok(*known);
        }
        let stack = self.stack.load_full();
        self.check_room(&stack, blocks_of(span))?;
        let block = span.split_at(span.offset() + BLOCK).0;
        wanted.check()?;
        let can = match stack.top().data.zero_range(block.align_outward(BLOCK)) {
            Ok(()) => true,
            Err(e) if e.kind() == ErrorKind::Unsupported => false,
            Err(e) => return Err(e),
        };
        stack.top().touch();
        Ok(*self.reserves.get_or_init(|| can))
    }
}

impl Shadow {
    /// Does `work` on a thread that may wait, while no layer is sealed, when it is its turn: without turns a guest that
    /// zeroes much at once would have every thread of the process. It may outlive this future.
    async fn zeroing<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Inner) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let inner = Arc::clone(&self.inner);
        // Before the guard: what waits for its turn keeps no layer from being sealed. Whoever seals or closes needs no
        // turn, so that those who have one and wait for that get the guard.
        let own = Arc::clone(&inner.turns).acquire_owned().await;
        let turn = ZeroingTurn::take().await;
        let guard = Arc::clone(&self.inner.zeroing).read_owned().await;
        offload(move || {
            let (_own, _turn, _guard) = (own, turn, guard);
            work(&inner)
        })
        .await
    }

    /// Waits until no blocks are being zeroed, also for requests that were given up.
    pub(crate) async fn until_zeroed(&self) {
        drop(self.inner.zeroing.write().await);
    }

    /// Whether the file system can reserve zeroed room. It is asked once, with the first block of
    /// `span`, which is to be zeroed anyway.
    pub(super) async fn can_reserve(&self, span: Span) -> Result<bool> {
        if let Some(known) = self.inner.reserves.get() {
            return Ok(*known);
        }
        let request = Arc::new(());
        let wanted = RequestWaiter::by(&request);
        self.zeroing(move |inner| inner.try_reserving(span, &wanted)).await
    }

    /// Makes whole blocks zeroes that have room, by writing them where `written` says that it cannot be
    /// reserved. When there is no room for all of them they take none: what was taken is given back.
    pub(super) async fn fill_with_zeroes(&self, span: Span, written: bool) -> Result<()> {
        let look = move |inner: &Inner| {
            let stack = inner.stack.load_full();
            inner.check_room(&stack, blocks_of(span))?;
            Ok(fresh_runs(&stack.top().map, blocks_of(span)))
        };
        let fresh = self.zeroing(look).await?;
        let filled = match written {
            true => self.write_zeroes(span).await,
            false => self.reserve_blocks(span).await,
        };
        if let Err(error) = &filled
            && error.kind() == ErrorKind::NoSpace
        {
            let request = Arc::new(());
            let wanted = RequestWaiter::by(&request);
            self.zeroing(move |inner| inner.undo_filling(&fresh, &wanted)).await?;
        }
        filled
    }

    async fn write_zeroes(&self, span: Span) -> Result<()> {
        let zeroes = vec![0; span.len().min(REGION) as usize];
        for piece in span.pieces(REGION) {
            self.inner.put_whole(piece, &zeroes[..piece.len() as usize])?;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    /// Makes whole blocks zeroes that have room.
    async fn reserve_blocks(&self, span: Span) -> Result<()> {
        let request = Arc::new(());
        for window in span.pieces(WINDOW) {
            let wanted = RequestWaiter::by(&request);
            self.zeroing(move |inner| {
                // From the end, so that the file is made longer once.
                let pieces: Vec<Span> = window.pieces(REGION).collect();
                pieces.into_iter().rev().try_for_each(|piece| inner.reserve(piece, &wanted))
            })
            .await?;
        }
        Ok(())
    }

    /// Zeroes whole blocks and gives their room back. What reads as zeroes from below is left alone,
    /// so that the discard of a blank disk costs nothing.
    pub(super) async fn clear_blocks(&self, span: Span) -> Result<()> {
        let request = Arc::new(());
        for window in span.pieces(WINDOW) {
            let mut at = window;
            while !at.is_empty() {
                let stack = self.inner.stack.load_full();
                let below = stack.extents(1, at, 256).await?;
                let generation = stack.generation;
                drop(stack);
                let (now, behind) = at.split_at(whole_blocks_of(&below, at));
                at = behind;
                let wanted = RequestWaiter::by(&request);
                self.zeroing(move |inner| {
                    // A layer may have been sealed since.
                    let known = inner.stack.load().generation == generation;
                    let quiet = if known { zeroes_of(&below, now) } else { Vec::new() };
                    inner.clear(now, &quiet, &wanted)
                })
                .await?;
            }
        }
        Ok(())
    }
}

/// The runs of `blocks` that are not private, in order: the first [`MOST_RUNS`] of them.
pub(super) fn fresh_runs(map: &BlockMap, blocks: Range<u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut at = blocks.start;
    while at < blocks.end && runs.len() < MOST_RUNS {
        let (state, end) = map.run(at..blocks.end);
        match runs.last_mut() {
            _ if state == BlockState::Private => {}
            Some(last) if last.end == at => last.end = end,
            _ => runs.push(at..end),
        }
        at = end;
    }
    runs
}

/// Where the blocks of `span` end that `extents` of its start tell of; at least one is.
fn whole_blocks_of(extents: &[Extent], span: Span) -> u64 {
    let end = extents.last().map_or(span.end(), |e| e.span.end());
    if end >= span.end() {
        return end;
    }
    // The last extent may end inside a block.
    (end / BLOCK * BLOCK).max(span.offset() + BLOCK).min(span.end())
}

/// The runs of whole blocks of `span` that read as zeroes, in order.
fn zeroes_of(extents: &[Extent], span: Span) -> Vec<Span> {
    let zero = extents.iter().filter(|e| e.kind.reads_zero());
    let runs = zero.filter_map(|extent| {
        let start = extent.span.offset().next_multiple_of(BLOCK);
        // Whole blocks of it, or the short last block of the device.
        let end = if extent.span.end() >= span.end() {
            span.end()
        } else {
            extent.span.end() / BLOCK * BLOCK
        };
        (start < end).then(|| Span::between(start, end))
    });
    runs.collect()
}
