//! Copies one device onto another, holes kept as holes.

use crate::{Device, Durability, Error, Result, Span, ZeroMode};
use futures::stream::{FuturesUnordered, StreamExt};
use std::collections::VecDeque;

/// The longest request, in bytes.
const PIECE: u64 = 1 << 20;

/// Runs of zeroes in data that are at least this long and aligned to it are not written as data.
const GRAIN: u64 = 64 << 10;

/// Extents asked for at a time.
const EXTENTS: usize = 256;

/// How to copy.
#[derive(Debug, Clone, Copy)]
pub struct CopyOptions {
    /// Requests in flight; each takes up to 1 MiB of memory. At least 1.
    pub depth: usize,
    /// The destination is known to read as zeroes: nothing is done where the source does.
    pub fresh: bool,
}

impl Default for CopyOptions {
    fn default() -> Self {
        Self { depth: 8, fresh: false }
    }
}

/// Makes the first `from.size()` bytes of `to` equal to `from`, then flushes `to`. What `to` has
/// beyond them stays.
///
/// What the source knows to be zero is not read. Zeroes, known or found, are zeroed in the
/// destination and its room is given back. `progress` is told of every finished range, in bytes of
/// the source, zeroes included; in sum the size of the source. Returns the bytes written as data.
///
/// # Errors
/// [`Invalid`](crate::ErrorKind::Invalid) when the destination is smaller than the source, or goes
/// on where the source ends inside its smallest request;
/// [`Denied`](crate::ErrorKind::Denied) when it is read-only; else what reading or writing
/// returned, with the offset. The destination then holds some of the copy.
pub async fn copy(
    from: &dyn Device,
    to: &dyn Device,
    options: CopyOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<u64> {
    let size = from.size();
    if to.size() < size {
        return Err(Error::invalid(format!(
            "the destination has {} bytes and the source {size}; use a destination that is as large",
            to.size()
        )));
    }
    if to.read_only() {
        return Err(Error::denied("the destination is read-only; open it for writing"));
    }
    let copier = Copier::new(from, to, options.fresh);
    if !size.is_multiple_of(copier.align) && to.size() > size {
        return Err(Error::invalid(format!(
            "the source's {size} bytes do not end on a multiple of {}, which the destination needs; \
             use a destination of the same size",
            copier.align
        )));
    }
    let mut plan = CopyPlan { at: 0, size, align: copier.align, pieces: VecDeque::new() };
    let mut running = FuturesUnordered::new();
    let mut buffers: Vec<Vec<u8>> = Vec::new();
    let mut copied = 0;
    loop {
        while running.len() < options.depth.max(1) {
            let Some(step) = plan.next(from, copier.piece).await? else { break };
            running.push(copier.run(step, buffers.pop().unwrap_or_default()));
        }
        let Some(done) = running.next().await else { break };
        let (step, written, buffer) = done?;
        buffers.push(buffer);
        copied += written;
        progress(step.span.len());
    }
    to.flush().await?;
    Ok(copied)
}

/// One range to do.
#[derive(Debug, Clone, Copy)]
struct CopyStep {
    span: Span,
    zero: bool,
}

/// The ranges to do, from the extents of the source.
struct CopyPlan {
    at: u64,
    size: u64,
    align: u64,
    pieces: VecDeque<CopyStep>,
}

impl CopyPlan {
    async fn next(&mut self, from: &dyn Device, piece: u64) -> Result<Option<CopyStep>> {
        if self.pieces.is_empty() && self.at < self.size {
            let asked = Span::between(self.at, self.size);
            let list = from
                .extents(asked, EXTENTS)
                .await
                .map_err(|e| e.context(format_args!("extents at offset {}", self.at)))?;
            let mut end = self.at;
            for extent in list {
                end = extent.span.end();
                if extent.kind.reads_zero()
                    && let Some(zero) = self.aligned(extent.span)
                {
                    self.push_data(zero.offset());
                    self.pieces.push_back(CopyStep { span: zero, zero: true });
                    self.at = zero.end();
                }
            }
            // A data range may reach into what the next extent has: it is read anyway.
            let end = end.checked_next_multiple_of(self.align).unwrap_or(self.size);
            self.push_data(end.min(self.size));
        }
        // Cut one by one: a source of any size is one range of data if it says so.
        let Some(step) = self.pieces.pop_front() else { return Ok(None) };
        if step.zero {
            return Ok(Some(step));
        }
        let boundary = (step.span.offset() / piece + 1).saturating_mul(piece);
        let (head, rest) = step.span.split_at(boundary);
        if !rest.is_empty() {
            self.pieces.push_front(CopyStep { span: rest, zero: false });
        }
        Ok(Some(CopyStep { span: head, zero: false }))
    }

    /// The part of a zero range that the destination can zero: ends on its grain or at the end.
    fn aligned(&self, span: Span) -> Option<Span> {
        let start = span.offset().max(self.at).checked_next_multiple_of(self.align)?;
        let end =
            if span.end() == self.size { self.size } else { span.end() / self.align * self.align };
        (start < end).then(|| Span::between(start, end))
    }

    fn push_data(&mut self, end: u64) {
        if self.at < end {
            self.pieces.push_back(CopyStep { span: Span::between(self.at, end), zero: false });
            self.at = end;
        }
    }
}

struct Copier<'a> {
    from: &'a dyn Device,
    to: &'a dyn Device,
    fresh: bool,
    /// What request ends must be multiples of, in both devices.
    align: u64,
    /// The longest request that both take.
    piece: u64,
}

impl<'a> Copier<'a> {
    fn new(from: &'a dyn Device, to: &'a dyn Device, fresh: bool) -> Self {
        let (source, destination) = (from.limits(), to.limits());
        let align = u64::from(source.minimum.max(destination.minimum));
        let longest = u64::from(source.maximum.min(destination.maximum));
        let piece = (longest.min(PIECE) / align * align).max(align);
        Self { from, to, fresh, align, piece }
    }

    async fn run(&self, step: CopyStep, mut buffer: Vec<u8>) -> Result<(CopyStep, u64, Vec<u8>)> {
        let written = if step.zero {
            self.zero(step.span).await?;
            0
        } else {
            self.data(step.span, &mut buffer).await?
        };
        Ok((step, written, buffer))
    }

    async fn zero(&self, span: Span) -> Result<()> {
        if self.fresh {
            return Ok(());
        }
        let mode = ZeroMode { may_punch: true, only_if_fast: false };
        self.to
            .zero(span, mode, Durability::Buffered)
            .await
            .map_err(|e| e.context(format_args!("zeroing at offset {}", span.offset())))
    }

    async fn data(&self, span: Span, buffer: &mut Vec<u8>) -> Result<u64> {
        buffer.resize(span.len() as usize, 0);
        self.from
            .read(span, buffer)
            .await
            .map_err(|e| e.context(format_args!("reading at offset {}", span.offset())))?;
        let mut written = 0;
        let mut at = span.offset();
        while at < span.end() {
            let (run, zero) = next_run(span, buffer, at);
            if zero {
                self.zero(run).await?;
            } else {
                self.to
                    .write(run, &buffer[run.index_in(span)], Durability::Buffered)
                    .await
                    .map_err(|e| e.context(format_args!("writing at offset {}", run.offset())))?;
                written += run.len();
            }
            at = run.end();
        }
        Ok(written)
    }
}

/// The longest run from `at` whose grains are all zero, or all not.
fn next_run(span: Span, bytes: &[u8], at: u64) -> (Span, bool) {
    let mut end = at;
    let mut kind = None;
    for grain in Span::between(at, span.end()).pieces(GRAIN) {
        let zero = is_zero(&bytes[grain.index_in(span)]);
        if *kind.get_or_insert(zero) != zero {
            break;
        }
        end = grain.end();
    }
    (Span::between(at, end), kind.unwrap_or(false))
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance::Sequence;
    use crate::testing::Blank;
    use crate::{
        ErrorKind, Extent, ExtentKind, Fault, Limits, Memory, Operation, ScriptedDevice, extent,
    };
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Memory that knows where it is zero, and asks for aligned requests.
    fn sparse(bytes: Vec<u8>, minimum: u32, maximum: u32) -> ScriptedDevice<Arc<Memory>, Plan> {
        let memory = Arc::new(Memory::from(bytes));
        let (size, grain) = (memory.size(), u64::from(minimum));
        let plan = move |operation| {
            if let Operation::Read(span) | Operation::Write(span) | Operation::Zero(span) =
                operation
            {
                assert!(span.offset().is_multiple_of(grain), "{span:?}");
                assert!(span.end() == size || span.len().is_multiple_of(grain), "{span:?}");
            }
            match operation {
                Operation::Read(span) | Operation::Write(span) => {
                    assert!(span.len() <= maximum.into(), "{span:?}");
                    Fault::Yield
                }
                _ => Fault::None,
            }
        };
        let kept = Arc::clone(&memory);
        ScriptedDevice::new(memory, Box::new(plan) as Plan)
            .with_limits(Limits { minimum, preferred: 4096, maximum })
            .with_extents(move |span, limit| extents_of(&kept.to_vec(), span, limit))
    }

    type Plan = Box<dyn Fn(Operation) -> Fault + Send + Sync>;

    /// Pieces of a kilobyte, each a hole if it is zero.
    fn extents_of(bytes: &[u8], span: Span, limit: usize) -> Vec<Extent> {
        let mut list = Vec::new();
        for piece in span.pieces(1000) {
            let kind = match is_zero(&bytes[piece.offset() as usize..piece.end() as usize]) {
                true => ExtentKind::Hole,
                false => ExtentKind::Data,
            };
            extent::push(&mut list, piece, kind);
        }
        list.truncate(limit);
        list
    }

    fn is_read(operation: &Operation) -> bool {
        matches!(operation, Operation::Read(_))
    }

    fn is_write(operation: &Operation) -> bool {
        matches!(operation, Operation::Write(_))
    }

    #[tokio::test]
    async fn the_plan_of_a_copy_does_not_grow_with_the_source() {
        // As large as a hostile server may say.
        let source = Blank(1 << 62);
        let size = source.size();
        let mut plan = CopyPlan { at: 0, size, align: 1, pieces: VecDeque::new() };
        for start in [0, PIECE, 2 * PIECE] {
            let step = plan.next(&source, PIECE).await.unwrap().unwrap();
            assert_eq!(step.span, Span::between(start, start + PIECE));
            assert!(plan.pieces.len() <= 1);
        }
    }

    fn disk(size: usize, seed: u64) -> Vec<u8> {
        let mut random = Sequence::new(seed);
        let mut bytes = vec![0; size];
        for _ in 0..random.below(8) {
            let span = random.span(size as u64);
            let value = random.number() as u8;
            bytes[span.offset() as usize..span.end() as usize].fill(value);
        }
        bytes
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]
        #[test]
        fn the_destination_becomes_the_source_and_keeps_the_rest(
            size in 1usize..400_000, more in 0usize..5000, seed in any::<u64>(), fresh in any::<bool>(),
            from_minimum in 0u32..4, to_minimum in 0u32..4, maximum in 12u32..21, depth in 0usize..5,
        ) {
            let grain = [1, 512, 1024, 4096];
            let bytes = disk(size, seed);
            let from = sparse(bytes.clone(), grain[from_minimum as usize], 1 << maximum);
            // A destination that must be aligned ends where the source does.
            let to_minimum = grain[to_minimum as usize];
            let more = if to_minimum == 1 && from_minimum == 0 { more } else { 0 };
            let old = vec![if fresh { 0 } else { 0xee }; size + more];
            let to = sparse(old.clone(), to_minimum, 1 << 20);
            let told = AtomicU64::new(0);
            let options = CopyOptions { depth, fresh };
            let copied = run(copy(&from, &to, options, &|n| { told.fetch_add(n, Ordering::Relaxed); }));
            let result = to.inner().to_vec();
            prop_assert_eq!(&result[..size], &bytes[..]);
            prop_assert_eq!(&result[size..], &old[size..]);
            prop_assert_eq!(told.into_inner(), size as u64);
            prop_assert_eq!(copied.unwrap(), to.bytes(is_write));
        }
    }

    #[test]
    fn what_is_known_to_be_zero_is_neither_read_nor_written() {
        let mut bytes = vec![0; 8 << 20];
        bytes[5 << 20] = 1;
        let from = sparse(bytes, 1, 1 << 20);
        let to = sparse(vec![0; 8 << 20], 1, 1 << 20);
        let options = CopyOptions { depth: 2, fresh: true };
        let copied = run(copy(&from, &to, options, &|_| {})).unwrap();
        assert!(from.bytes(is_read) <= 1000 && copied <= 1000);
    }

    #[test]
    fn zeroes_in_data_are_found() {
        let mut bytes = vec![0; 1 << 20];
        bytes[100] = 1;
        let from = Memory::from(bytes.clone()); // says that all is data
        let to = sparse(vec![7; 1 << 20], 1, 1 << 20);
        let copied = run(copy(&from, &to, CopyOptions::default(), &|_| {})).unwrap();
        assert_eq!(copied, GRAIN);
        assert_eq!(to.inner().to_vec(), bytes);
    }

    #[test]
    fn a_destination_that_is_too_small_is_refused_before_anything_is_written() {
        let to = sparse(vec![7; 1000], 1, 1 << 20);
        let error =
            run(copy(&Memory::new(1001), &to, CopyOptions::default(), &|_| {})).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(to.inner().to_vec(), vec![7; 1000]);
    }

    #[test]
    fn an_error_names_its_offset_and_keeps_its_kind() {
        let from = Memory::from(vec![1; 4 << 20]);
        let plan = |operation| match operation {
            Operation::Write(span) if span.offset() >= 2 << 20 => Fault::Fail(ErrorKind::NoSpace),
            _ => Fault::None,
        };
        let to = ScriptedDevice::new(Memory::new(4 << 20), plan);
        let error =
            run(copy(&from, &to, CopyOptions { depth: 1, fresh: false }, &|_| {})).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.message().starts_with("writing at offset 2097152: "), "{error}");
    }
}
