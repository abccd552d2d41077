//! Layers over a base: where the bytes of a block are.

use crate::blockmap::BlockState;
use crate::layer::ShadowLayer;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Filling, Result, Sink, Span,
    ZeroMode, extent,
};
use std::ops::Range;
use std::sync::Arc;

/// How far the end of a run is looked for at first, in bytes: while runs are short, no layer is gone
/// through again and again for what lies far behind them.
const NEAR: u64 = 8 << 20;
/// Runs between which others have their turn: a client may have made millions of them.
const RUNS: usize = 1024;
/// Runs after which extents end early, however many of them were joined, unless more are asked for.
const MOST_RUNS: usize = 4 * RUNS;

/// The layers of a shadow, newest first, and what they stand on. Only the newest one changes.
pub(crate) struct Stack {
    /// Told apart from every other stack of the same shadow.
    pub(crate) generation: u64,
    pub(crate) layers: Vec<Arc<ShadowLayer>>,
    pub(crate) base: Arc<dyn Device>,
}

/// Where a run of blocks is.
pub(crate) enum BlockSource<'a> {
    Layer(&'a ShadowLayer),
    Zero,
    Base,
}

/// The blocks that a span touches.
pub(crate) fn blocks_of(span: Span) -> Range<u64> {
    span.offset() / BLOCK..span.end().div_ceil(BLOCK)
}

impl Stack {
    /// The layer that takes writes.
    pub(crate) fn top(&self) -> &ShadowLayer {
        &self.layers[0]
    }

    /// Where the first of `blocks` is, and where the run ends that is there too, as seen from
    /// layer `from` downward.
    fn resolve(&self, from: usize, blocks: Range<u64>) -> (BlockSource<'_>, u64) {
        let mut end = blocks.end;
        for layer in &self.layers[from..] {
            let (state, run) = layer.map.run(blocks.start..end);
            end = run;
            match state {
                BlockState::Private => return (BlockSource::Layer(layer), end),
                BlockState::Zero => return (BlockSource::Zero, end),
                BlockState::Below => {}
            }
        }
        (BlockSource::Base, end)
    }

    /// The runs of `span`, each with its place.
    fn runs(&self, from: usize, span: Span) -> impl Iterator<Item = (BlockSource<'_>, Span)> {
        let mut rest = span;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let (source, end) = self.resolve(from, blocks_of(rest));
            let (run, behind) = rest.split_at(end.saturating_mul(BLOCK));
            rest = behind;
            Some((source, run))
        })
    }

    /// How many blocks are private, in all layers together.
    pub(crate) fn private(&self) -> u64 {
        self.layers.iter().map(|layer| layer.map.private()).sum()
    }

    /// The part of `span` that the base has; what lies behind it reads as zeroes.
    fn in_base(&self, span: Span) -> Span {
        span.split_at(self.base.size()).0
    }

    pub(crate) fn try_read_to(
        &self,
        from: usize,
        span: Span,
        sink: &mut dyn Sink,
    ) -> Result<Attempt> {
        for (source, run) in self.runs(from, span) {
            let len = run.len() as usize;
            let attempt = match source {
                BlockSource::Layer(layer) => layer.data.try_read(run.offset(), sink.room(len))?,
                BlockSource::Zero => {
                    sink.room(len).fill(0);
                    Attempt::Done
                }
                BlockSource::Base => {
                    let inside = self.in_base(run);
                    let attempt = if inside.is_empty() {
                        Attempt::Done
                    } else {
                        self.base.try_read_to(inside, sink)?
                    };
                    if attempt == Attempt::Done && inside.len() < run.len() {
                        sink.room((run.len() - inside.len()) as usize).fill(0);
                    }
                    attempt
                }
            };
            if attempt == Attempt::WouldWait {
                return Ok(Attempt::WouldWait);
            }
        }
        Ok(Attempt::Done)
    }

    pub(crate) async fn read(&self, from: usize, span: Span, buf: &mut [u8]) -> Result<()> {
        let mut rest = span;
        while !rest.is_empty() {
            let (source, end) = self.resolve(from, blocks_of(rest));
            let (run, behind) = rest.split_at(end.saturating_mul(BLOCK));
            rest = behind;
            let part = &mut buf[run.index_in(span)];
            match source {
                BlockSource::Layer(layer) => layer.data.read(run.offset(), part).await?,
                BlockSource::Zero => part.fill(0),
                BlockSource::Base => {
                    let inside = self.in_base(run);
                    let (head, tail) = part.split_at_mut(inside.len() as usize);
                    tail.fill(0);
                    if !inside.is_empty() {
                        self.base.read(inside, head).await?;
                    }
                }
            }
        }
        Ok(())
    }

    /// What `span` holds, in `limit` extents at most. Ends early behind very many runs, too.
    pub(crate) async fn extents(
        &self,
        from: usize,
        span: Span,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut walk = Walk::new(self, from, span);
        let most = limit.max(MOST_RUNS);
        // To one more than is told: a run that comes in several pieces is told whole.
        while walk.runs < most
            && list.len() <= limit
            && let Some((source, run)) = walk.next().await
        {
            match source {
                BlockSource::Layer(_) => extent::push(&mut list, run, ExtentKind::Data),
                BlockSource::Zero => extent::push(&mut list, run, ExtentKind::Hole),
                BlockSource::Base => {
                    let inside = self.in_base(run);
                    let mut at = inside.offset();
                    while at < inside.end() && list.len() <= limit {
                        let asked = Span::between(at, inside.end());
                        for found in
                            self.base.extents(asked, limit.saturating_add(1) - list.len()).await?
                        {
                            extent::push(&mut list, found.span, found.kind);
                            at = found.span.end();
                        }
                    }
                    if at < inside.end() {
                        break;
                    }
                    let behind = Span::between(inside.end(), run.end());
                    extent::push(&mut list, behind, ExtentKind::Hole);
                }
            }
        }
        list.truncate(limit);
        Ok(list)
    }

    /// Says that `span` will be read soon, to those parts of the base that show: to the first of very
    /// many, as nobody fetches that much ahead.
    pub(crate) async fn prefetch(&self, from: usize, span: Span) -> Result<()> {
        let mut walk = Walk::new(self, from, span);
        while walk.runs < RUNS
            && let Some((source, run)) = walk.next().await
        {
            let inside = self.in_base(run);
            if matches!(source, BlockSource::Base) && !inside.is_empty() {
                self.base.prefetch(inside).await?;
            }
        }
        Ok(())
    }

    /// The spans of a disk of `size` bytes that layers from `from` downward hold, in order and
    /// aligned to blocks, but for the end of the disk.
    pub(crate) fn changed(&self, from: usize, size: u64) -> Vec<Span> {
        let all = 0..size.div_ceil(BLOCK);
        let mut runs: Vec<Range<u64>> = Vec::new();
        for layer in &self.layers[from..] {
            runs.extend(layer.held(all.clone()));
        }
        runs.sort_unstable_by_key(|run| run.start);
        let mut list: Vec<Span> = Vec::new();
        for run in runs {
            let span = Span::between(run.start * BLOCK, (run.end * BLOCK).min(size));
            match list.last_mut() {
                Some(last) if last.end() >= span.offset() => {
                    *last = Span::between(last.offset(), last.end().max(span.end()));
                }
                _ => list.push(span),
            }
        }
        list
    }
}

/// The runs of a span, one after the other, with turns for others in between. A long run comes in
/// several.
struct Walk<'a> {
    stack: &'a Stack,
    from: usize,
    rest: Span,
    /// How far the end of the next run is looked for, in bytes.
    reach: u64,
    /// How many there were.
    runs: usize,
}

impl<'a> Walk<'a> {
    fn new(stack: &'a Stack, from: usize, span: Span) -> Self {
        Self { stack, from, rest: span, reach: NEAR, runs: 0 }
    }

    async fn next(&mut self) -> Option<(BlockSource<'a>, Span)> {
        if self.rest.is_empty() {
            return None;
        }
        if self.runs > 0 && self.runs.is_multiple_of(RUNS) {
            tokio::task::yield_now().await;
        }
        self.runs += 1;
        let (near, _) = self.rest.split_at(self.rest.offset().saturating_add(self.reach));
        let (source, end) = self.stack.resolve(self.from, blocks_of(near));
        let (run, behind) = self.rest.split_at(end.saturating_mul(BLOCK));
        self.reach = if run.end() < near.end() { NEAR } else { self.reach.saturating_mul(2) };
        self.rest = behind;
        Some((source, run))
    }
}

/// A stack whose layers from `from` downward do not change any more, as a device.
pub(crate) struct Frozen {
    pub(crate) stack: Arc<Stack>,
    pub(crate) from: usize,
    pub(crate) size: u64,
}

impl Frozen {
    fn refuse(&self) -> Error {
        Error::denied("this view of a disk is read-only")
    }
}

#[async_trait]
impl Device for Frozen {
    fn size(&self) -> u64 {
        self.size
    }
    fn read_only(&self) -> bool {
        true
    }
    fn try_read(&self, span: Span, buf: &mut [u8]) -> Result<Attempt> {
        self.try_read_to(span, &mut Filling::new(buf))
    }
    fn try_read_to(&self, span: Span, sink: &mut dyn Sink) -> Result<Attempt> {
        self.stack.try_read_to(self.from, span, sink)
    }
    async fn read(&self, span: Span, buf: &mut [u8]) -> Result<()> {
        self.stack.read(self.from, span, buf).await
    }
    async fn write(&self, _: Span, _: &[u8], _: Durability) -> Result<()> {
        Err(self.refuse())
    }
    async fn flush(&self) -> Result<()> {
        Ok(())
    }
    async fn discard(&self, _: Span, _: Durability) -> Result<()> {
        Err(self.refuse())
    }
    async fn zero(&self, _: Span, _: ZeroMode, _: Durability) -> Result<()> {
        Err(self.refuse())
    }
    async fn extents(&self, span: Span, limit: usize) -> Result<Vec<Extent>> {
        self.stack.extents(self.from, span, limit).await
    }
    async fn prefetch(&self, span: Span) -> Result<()> {
        self.stack.prefetch(self.from, span).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maplog::Identity;
    use block::testing::Blank;
    use block::{Fault, Operation, ScriptedDevice};
    use std::task::{Context, Poll, Waker};

    /// A base of zeroes that notes what it is asked.
    type Base = Arc<ScriptedDevice<Blank, fn(Operation) -> Fault>>;

    /// A stack of one layer that holds every second block of the first `blocks`, over a base of `size`
    /// bytes, the base, and the directory.
    fn fine(blocks: u64, size: u64) -> (Stack, Base, tempfile::TempDir) {
        let directory = tempfile::tempdir().unwrap();
        let layer =
            ShadowLayer::create(&directory.path().into(), Identity { disk: [5; 16], layer: 1 })
                .unwrap();
        for block in (0..blocks).step_by(2) {
            layer.map.set(block..block + 1, BlockState::Private);
        }
        let base = Arc::new(ScriptedDevice::noting(Blank(size)));
        let below = Arc::clone(&base) as _;
        (Stack { generation: 0, layers: vec![Arc::new(layer)], base: below }, base, directory)
    }

    /// Polls `future` to its end; gives what it gave, and after how many polls.
    fn polled<T>(future: impl Future<Output = T>) -> (T, usize) {
        let mut future = std::pin::pin!(future);
        for polls in 1..10_000 {
            if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(Waker::noop()))
            {
                return (done, polls);
            }
        }
        panic!("it has no end");
    }

    #[test]
    fn extents_of_a_fine_map_end_early_and_others_have_their_turn_meanwhile() {
        let blocks = 10 * MOST_RUNS as u64;
        let size = blocks * BLOCK;
        // Every run is data: of the layer, or of the base.
        let (stack, _, _directory) = fine(blocks, size);
        let (mut at, mut answers) = (0, 0);
        while at < size {
            let (list, polls) = polled(stack.extents(0, Span::between(at, size), 16));
            let list = list.unwrap();
            assert_eq!(list.len(), 1);
            assert_eq!((list[0].span.offset(), list[0].kind), (at, ExtentKind::Data));
            assert_eq!(list[0].span.len(), MOST_RUNS as u64 * BLOCK);
            assert_eq!(polls, MOST_RUNS / RUNS);
            (at, answers) = (list[0].span.end(), answers + 1);
        }
        assert_eq!(answers, 10);
        let (all, _) = polled(stack.extents(0, Span::whole(size), usize::MAX));
        assert_eq!(all.unwrap(), [Extent { span: Span::whole(size), kind: ExtentKind::Data }]);
    }

    #[test]
    fn a_long_run_is_one_extent_however_it_is_cut() {
        let size = 3 << 30;
        let (stack, _, _directory) = fine(0, 0);
        stack.top().map.set(1..(1 << 30) / BLOCK, BlockState::Private);
        let span = Span::between(100, size - 100);
        let (list, polls) = polled(stack.extents(0, span, 16));
        let list: Vec<_> = list.unwrap().iter().map(|e| (e.span.offset(), e.kind)).collect();
        use ExtentKind::{Data, Hole};
        assert_eq!(list, [(100, Hole), (BLOCK, Data), (1 << 30, Hole)]);
        assert_eq!(polls, 1);
        // Also to who asks for one extent.
        for (start, end) in [(100, BLOCK), (BLOCK, 1 << 30), (1 << 30, size), (2 << 30, size)] {
            let (list, _) = polled(stack.extents(0, Span::between(start, size), 1));
            let list = list.unwrap();
            assert_eq!(list.len(), 1);
            assert_eq!(list[0].span, Span::between(start, end), "{list:?}");
        }
    }

    #[test]
    fn of_a_fine_map_only_the_first_parts_are_read_ahead() {
        let blocks = 10 * RUNS as u64;
        let (stack, base, _directory) = fine(blocks, blocks * BLOCK);
        let (done, polls) = polled(stack.prefetch(0, Span::whole(blocks * BLOCK)));
        done.unwrap();
        let ahead = base.calls.log().count(|call| matches!(call, Operation::Prefetch(_)));
        assert_eq!((ahead, polls), (RUNS / 2, 1));
    }
}
