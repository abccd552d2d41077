//! Layers over a base: where the bytes of a block are.

use crate::blockmap::State;
use crate::layer::Layer;
use async_trait::async_trait;
use block::{
    Attempt, BLOCK, Device, Durability, Error, Extent, ExtentKind, Filling, Result, Sink, Span,
    ZeroMode, extent,
};
use std::ops::Range;
use std::sync::Arc;

/// The layers of a shadow, newest first, and what they stand on. Only the newest one changes.
pub(crate) struct Stack {
    /// Told apart from every other stack of the same shadow.
    pub(crate) generation: u64,
    pub(crate) layers: Vec<Arc<Layer>>,
    pub(crate) base: Arc<dyn Device>,
}

/// Where a run of blocks is.
pub(crate) enum Source<'a> {
    Layer(&'a Layer),
    Zero,
    Base,
}

/// The blocks that a span touches.
pub(crate) fn blocks_of(span: Span) -> Range<u64> {
    span.offset() / BLOCK..span.end().div_ceil(BLOCK)
}

impl Stack {
    /// The layer that takes writes.
    pub(crate) fn top(&self) -> &Layer {
        &self.layers[0]
    }

    /// Where the first of `blocks` is, and where the run ends that is there too, as seen from
    /// layer `from` downward.
    fn resolve(&self, from: usize, blocks: Range<u64>) -> (Source<'_>, u64) {
        let mut end = blocks.end;
        for layer in &self.layers[from..] {
            let (state, run) = layer.map.run(blocks.start..end);
            end = run;
            match state {
                State::Private => return (Source::Layer(layer), end),
                State::Zero => return (Source::Zero, end),
                State::Below => {}
            }
        }
        (Source::Base, end)
    }

    /// The runs of `span`, each with its place.
    fn runs(&self, from: usize, span: Span) -> impl Iterator<Item = (Source<'_>, Span)> {
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

    /// How many blocks are private, those of all layers counted.
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
                Source::Layer(layer) => layer.data.try_read(run.offset(), sink.room(len))?,
                Source::Zero => {
                    sink.room(len).fill(0);
                    Attempt::Done
                }
                Source::Base => {
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
                Source::Layer(layer) => layer.data.read(run.offset(), part).await?,
                Source::Zero => part.fill(0),
                Source::Base => {
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

    pub(crate) async fn extents(
        &self,
        from: usize,
        span: Span,
        limit: usize,
    ) -> Result<Vec<Extent>> {
        let mut list = Vec::new();
        let mut rest = span;
        while !rest.is_empty() && list.len() < limit {
            let (source, end) = self.resolve(from, blocks_of(rest));
            let (run, behind) = rest.split_at(end.saturating_mul(BLOCK));
            rest = behind;
            match source {
                Source::Layer(_) => extent::push(&mut list, run, ExtentKind::Data),
                Source::Zero => extent::push(&mut list, run, ExtentKind::Hole),
                Source::Base => {
                    let inside = self.in_base(run);
                    let mut at = inside.offset();
                    while at < inside.end() && list.len() < limit {
                        let asked = Span::between(at, inside.end());
                        for found in self.base.extents(asked, limit - list.len()).await? {
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
        // One that could not be joined with the last may have come on top.
        list.truncate(limit);
        Ok(list)
    }

    /// Says that `span` will be read soon, to those parts of the base that show.
    pub(crate) async fn prefetch(&self, from: usize, span: Span) -> Result<()> {
        let mut rest = span;
        while !rest.is_empty() {
            let (source, end) = self.resolve(from, blocks_of(rest));
            let (run, behind) = rest.split_at(end.saturating_mul(BLOCK));
            rest = behind;
            let inside = self.in_base(run);
            if matches!(source, Source::Base) && !inside.is_empty() {
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
