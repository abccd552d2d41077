//! Byte ranges that are known to be inside a device.

use crate::{Error, Result};

/// A byte range. Made from untrusted numbers only by [`Span::within`], which checks them against a
/// device's size; everything else derives spans from spans, so a layer never sees a bad range.
///
/// A span may be empty. `offset + len` never overflows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Span {
    offset: u64,
    len: u64,
}

impl Span {
    /// The range of `len` bytes at `offset` of a device of `size` bytes.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when it does not lie inside the device.
    pub fn within(offset: u64, len: u64, size: u64) -> Result<Self> {
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(Self { offset, len }),
            _ => Err(Error::invalid(format!(
                "range of {len} bytes at offset {offset} is beyond the end of the device ({size} bytes)"
            ))),
        }
    }

    /// The whole of a device of `size` bytes.
    #[inline]
    pub const fn whole(size: u64) -> Self {
        Self { offset: 0, len: size }
    }

    /// The span from `start` to `end`.
    ///
    /// # Panics
    /// When `end < start`: the two come from other spans, so this is a fault of the caller.
    #[inline]
    pub const fn between(start: u64, end: u64) -> Self {
        assert!(start <= end, "a span ends before it starts");
        Self { offset: start, len: end - start }
    }

    /// Where it starts, in bytes.
    #[inline]
    pub const fn offset(self) -> u64 {
        self.offset
    }

    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty)]
    #[inline]
    pub const fn len(self) -> u64 {
        self.len
    }

    /// Where it ends: the offset of the first byte behind it.
    #[inline]
    pub const fn end(self) -> u64 {
        self.offset + self.len
    }

    /// Whether it holds no byte.
    #[inline]
    pub const fn is_empty(self) -> bool {
        self.len == 0
    }

    /// The bytes that both have, if any.
    #[inline]
    pub fn intersect(self, other: Self) -> Option<Self> {
        let start = self.offset.max(other.offset);
        let end = self.end().min(other.end());
        (start < end).then(|| Self::between(start, end))
    }

    /// The same bytes seen from `origin`: the span moved down by `origin`.
    ///
    /// # Panics
    /// When the span starts before `origin`.
    #[inline]
    pub const fn relative_to(self, origin: u64) -> Self {
        assert!(self.offset >= origin, "a span starts before its origin");
        Self { offset: self.offset - origin, len: self.len }
    }

    /// Splits at `at`: what lies before it and what lies behind it.
    #[inline]
    pub fn split_at(self, at: u64) -> (Self, Self) {
        let at = at.clamp(self.offset, self.end());
        (Self::between(self.offset, at), Self::between(at, self.end()))
    }

    /// Whether both ends are multiples of `grain`.
    #[inline]
    pub const fn is_aligned(self, grain: u64) -> bool {
        self.offset.is_multiple_of(grain) && self.len.is_multiple_of(grain)
    }

    /// The largest part whose ends are multiples of `grain`; `None` when there is no such part.
    #[inline]
    pub fn align_inward(self, grain: u64) -> Option<Self> {
        let start = self.offset.checked_next_multiple_of(grain)?;
        let end = self.end() / grain * grain;
        (start < end).then(|| Self::between(start, end))
    }

    /// The smallest span with ends at multiples of `grain` that holds this one. The end may lie
    /// beyond a device whose size is not such a multiple.
    #[inline]
    pub fn align_outward(self, grain: u64) -> Self {
        let start = self.offset / grain * grain;
        let end = self.end().checked_next_multiple_of(grain).unwrap_or(u64::MAX);
        Self::between(start, end)
    }

    /// The span cut at every multiple of `grain`, in order.
    #[inline]
    pub fn pieces(self, grain: u64) -> impl Iterator<Item = Self> + Clone {
        let mut rest = self;
        std::iter::from_fn(move || {
            if rest.is_empty() {
                return None;
            }
            let boundary = (rest.offset / grain + 1).saturating_mul(grain);
            let (piece, behind) = rest.split_at(boundary);
            rest = behind;
            Some(piece)
        })
    }

    /// Where this span's bytes stand in a buffer that holds all of `outer`.
    ///
    /// # Panics
    /// When the span does not lie inside `outer`.
    #[inline]
    pub fn index_in(self, outer: Self) -> std::ops::Range<usize> {
        assert!(
            outer.offset <= self.offset && self.end() <= outer.end(),
            "span outside its buffer"
        );
        let start = (self.offset - outer.offset) as usize;
        start..start + self.len as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_range_beyond_the_device_is_refused() {
        assert!(Span::within(0, 512, 512).is_ok());
        assert!(Span::within(512, 0, 512).is_ok());
        assert!(Span::within(1, 512, 512).is_err());
        assert!(Span::within(u64::MAX, 2, u64::MAX).is_err());
    }

    proptest! {
        #[test]
        fn pieces_cover_the_span_in_order_and_cross_no_boundary(
            offset in 0u64..100_000, len in 0u64..100_000, grain in 1u64..9000,
        ) {
            let span = Span::between(offset, offset + len);
            let mut at = span.offset();
            for piece in span.pieces(grain) {
                prop_assert_eq!(piece.offset(), at);
                prop_assert!(!piece.is_empty());
                prop_assert_eq!(piece.offset() / grain, (piece.end() - 1) / grain);
                at = piece.end();
            }
            prop_assert_eq!(at, span.end());
        }

        #[test]
        fn alignment_brackets_the_span(offset in 0u64..100_000, len in 0u64..100_000) {
            let span = Span::between(offset, offset + len);
            let out = span.align_outward(4096);
            prop_assert!(out.is_aligned(4096) && out.offset() <= span.offset() && out.end() >= span.end());
            if let Some(inner) = span.align_inward(4096) {
                prop_assert!(inner.is_aligned(4096));
                prop_assert_eq!(inner.intersect(span), Some(inner));
            }
        }
    }
}
