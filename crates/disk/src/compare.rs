//! Where two manifests differ.

use block::{BLOCK, Device, Result, Span};
use std::collections::VecDeque;
use store::{Content, Manifest, Piece};

/// How much is compared in one step: a segment of a manifest.
const WINDOW: u64 = 256 << 20;

/// The pieces of a window; what lies behind the end of the manifest is a hole.
async fn pieces(manifest: &Manifest, window: Span) -> Result<VecDeque<Piece>> {
    let (inside, behind) = window.split_at(manifest.size());
    let mut list = VecDeque::new();
    if !inside.is_empty() {
        list.extend(manifest.pieces(inside).await?);
    }
    if !behind.is_empty() {
        list.push_back(Piece { span: behind, content: Content::Hole });
    }
    Ok(list)
}

/// The rest of a piece from `at`.
fn behind(piece: Piece, at: u64) -> Piece {
    let cut = at - piece.span.offset();
    let content = match piece.content {
        Content::Hole => Content::Hole,
        Content::Chunk { at: chunk, skip } => Content::Chunk { at: chunk, skip: skip + cut as u32 },
    };
    Piece { span: Span::between(at, piece.span.end()), content }
}

fn same(a: &Content, b: &Content) -> bool {
    match (a, b) {
        (Content::Hole, Content::Hole) => true,
        (Content::Chunk { at: x, skip: s }, Content::Chunk { at: y, skip: t }) => {
            x.id == y.id && s == t
        }
        _ => false,
    }
}

/// Spans in which `a` and `b` may differ, in order: all that differs is in them, and they may hold
/// bytes that do not, where the two are cut into other chunks. Sizes count: the longer one's rest
/// is compared with zeroes. The spans are whole blocks, so the last one may go beyond the ends.
pub(crate) async fn differences(a: &Manifest, b: &Manifest) -> Result<Vec<Span>> {
    let mut list = Vec::new();
    if a.id() == b.id() {
        return Ok(list);
    }
    for window in Span::whole(a.size().max(b.size())).pieces(WINDOW) {
        let (mut left, mut right) = (pieces(a, window).await?, pieces(b, window).await?);
        while let (Some(x), Some(y)) = (left.pop_front(), right.pop_front()) {
            let end = x.span.end().min(y.span.end());
            if !same(&x.content, &y.content) {
                push(&mut list, Span::between(x.span.offset(), end).align_outward(BLOCK));
            }
            if x.span.end() > end {
                left.push_front(behind(x, end));
            }
            if y.span.end() > end {
                right.push_front(behind(y, end));
            }
        }
    }
    Ok(list)
}

/// Appends a span to an ordered list, joining it with the last one where they touch.
pub(crate) fn push(list: &mut Vec<Span>, span: Span) {
    match list.last_mut() {
        Some(last) if last.end() >= span.offset() => {
            *last = Span::between(last.offset(), last.end().max(span.end()));
        }
        _ if span.is_empty() => {}
        _ => list.push(span),
    }
}

/// Everything that is in either of two ordered lists.
pub(crate) fn union(a: &[Span], b: &[Span]) -> Vec<Span> {
    let mut all: Vec<Span> = a.iter().chain(b).copied().collect();
    all.sort_unstable();
    let mut list = Vec::new();
    all.into_iter().for_each(|span| push(&mut list, span));
    list
}

/// What is in both of two ordered lists.
pub(crate) fn intersection(a: &[Span], b: &[Span]) -> Vec<Span> {
    let (mut i, mut j) = (0, 0);
    let mut list = Vec::new();
    while let (Some(x), Some(y)) = (a.get(i), b.get(j)) {
        if let Some(common) = x.intersect(*y) {
            push(&mut list, common);
        }
        if x.end() <= y.end() {
            i += 1;
        } else {
            j += 1;
        }
    }
    list
}

/// What is in `a` and not in `b`, both ordered.
pub(crate) fn difference(a: &[Span], b: &[Span]) -> Vec<Span> {
    let mut list = Vec::new();
    for span in a {
        let mut rest = *span;
        let first = b.partition_point(|other| other.end() <= rest.offset());
        for other in &b[first..] {
            if other.offset() >= rest.end() {
                break;
            }
            let (before, from) = rest.split_at(other.offset());
            push(&mut list, before);
            rest = from.split_at(other.end()).1;
        }
        push(&mut list, rest);
    }
    list
}

/// The parts of `spans` before `size`.
pub(crate) fn clipped(spans: &[Span], size: u64) -> Vec<Span> {
    let inside = spans.iter().map(|span| span.split_at(size).0);
    inside.filter(|span| !span.is_empty()).collect()
}

/// How many bytes a list covers.
pub(crate) fn total(list: &[Span]) -> u64 {
    list.iter().map(|span| span.len()).sum()
}

/// Reads `spans` from several devices of one size side by side and tells `each` about every block,
/// with its bytes in each of them.
pub(crate) async fn blocks<const N: usize>(
    devices: [&dyn Device; N],
    spans: &[Span],
    mut each: impl FnMut(Span, [&[u8]; N]) -> Result<()>,
) -> Result<()> {
    const STEP: u64 = 1 << 20;
    let mut buffers = [(); N].map(|()| vec![0; STEP as usize]);
    for piece in spans.iter().flat_map(|span| span.pieces(STEP)) {
        for (device, buffer) in devices.iter().zip(&mut buffers) {
            device.read(piece, &mut buffer[..piece.len() as usize]).await?;
        }
        for block in piece.pieces(BLOCK) {
            let range = block.index_in(piece);
            each(block, std::array::from_fn(|i| &buffers[i][range.clone()]))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(bits: &[bool]) -> Vec<Span> {
        let mut list = Vec::new();
        for (i, _) in bits.iter().enumerate().filter(|(_, bit)| **bit) {
            push(&mut list, Span::between(i as u64, i as u64 + 1));
        }
        list
    }

    proptest! {
        #[test]
        fn lists_of_spans_are_sets_of_bytes(
            pairs in prop::collection::vec((any::<bool>(), any::<bool>()), 0..40),
        ) {
            let (a, b): (Vec<bool>, Vec<bool>) = pairs.iter().copied().unzip();
            let of = |f: fn(bool, bool) -> bool| {
                spans(&pairs.iter().map(|(x, y)| f(*x, *y)).collect::<Vec<_>>())
            };
            let (a, b) = (spans(&a), spans(&b));
            prop_assert_eq!(union(&a, &b), of(|x, y| x || y));
            prop_assert_eq!(intersection(&a, &b), of(|x, y| x && y));
            prop_assert_eq!(difference(&a, &b), of(|x, y| x && !y));
            prop_assert_eq!(total(&a) as usize, pairs.iter().filter(|p| p.0).count());
        }
    }
}
